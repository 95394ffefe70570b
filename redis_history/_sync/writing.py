# Generated from ../_async by scripts/unasync: do not edit.
"""The writing half of a store: one atomic change with each call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from msgspec import UNSET, UnsetType

from redis_history import requests
from redis_history._ids import check_conversation_id
from redis_history._sync.searching import Searching
from redis_history._sync.watching import Watching
from redis_history._validation import refuse
from redis_history.errors import ConversationNotFoundError, InvalidInputError, MessageNotFoundError
from redis_history.model import Conversation, Message
from redis_history.model.message import RECORD_FIELDS
from redis_history.operations import Appended, DeleteConversation, Op, ReadConversation, WriteRecord

__all__ = ["Writing"]

T = TypeVar("T")


class Writing(Watching, Searching):
    """`append`, and all else that changes messages and records; compaction is beside it."""

    def append(
        self,
        conversation_id: str,
        message: Message,
        *,
        expected_revision: int | None = None,
        must_exist: bool = False,
        must_not_exist: bool = False,
    ) -> Appended:
        """Add one message, atomically and in one round trip; the conversation is created if need be.

        The same id and content again changes nothing, and returns what the first append did, with `duplicate` set.
        Raises MessageConflictError (the id exists with other content), RevisionConflictError (not at
        `expected_revision`), ConversationNotFoundError (`must_exist`), ConversationExistsError (`must_not_exist`).
        """
        op = requests.append_one(
            conversation_id,
            message,
            expected_revision=expected_revision,
            must_exist=must_exist,
            must_not_exist=must_not_exist,
        )
        return (self._write(op))[0]

    def append_many(
        self,
        conversation_id: str,
        messages: Iterable[Message],
        *,
        expected_revision: int | None = None,
        must_exist: bool = False,
        must_not_exist: bool = False,
    ) -> list[Appended]:
        """Add messages in this order as one change: all of them, or none. Otherwise like `append`.

        Raises BatchTooLargeError above 1,000 messages or 4 MB.
        """
        batch = requests.append(
            conversation_id,
            messages,
            expected_revision=expected_revision,
            must_exist=must_exist,
            must_not_exist=must_not_exist,
        )
        if not batch.order:
            return []
        outcome = self._write(batch.op)
        return [outcome[place] for place in batch.order]

    def update_message(
        self, conversation_id: str, message: Message, *, expected_revision: int | None = None
    ) -> Appended:
        """Give the message of this id other content; it keeps its place, whatever timestamp is given.

        The same content again changes nothing. Raises MessageNotFoundError, RevisionConflictError.
        """
        op = requests.update_message(conversation_id, message, expected_revision=expected_revision)
        updated = self._write(op)
        if updated is None:
            raise MessageNotFoundError(f"conversation {conversation_id[:80]!r} has no message {message.id[:64]!r}")
        return updated

    def clear(self, conversation_id: str, *, expected_revision: int | None = None) -> int:
        """Remove all messages, archived ones too, as one change, and keep the conversation; the revision after it.

        Raises RevisionConflictError.
        """
        op = requests.clear(conversation_id, expected_revision=expected_revision)
        return self._write(op)

    def restore(
        self, conversation_id: str, messages: Iterable[Message], *, expected_revision: int | None = None
    ) -> int:
        """Put `messages` in place of all there are, archived ones too, as one change; the revision after it.

        What others append meanwhile is replaced too, unless `expected_revision` is given: then that raises
        RevisionConflictError, and nothing is lost. Raises BatchTooLargeError above 1,000 messages or 4 MB.
        """
        op = requests.restore(conversation_id, messages, expected_revision=expected_revision)
        return self._write(op)

    def delete_messages(
        self, conversation_id: str, message_ids: Iterable[str], *, expected_revision: int | None = None
    ) -> int:
        """Remove messages by id, archived ones too, as one change; how many there were. Unknown ids are ignored.

        Raises RevisionConflictError; BatchTooLargeError above 1,000 ids.
        """
        op = requests.delete_messages(conversation_id, message_ids, expected_revision=expected_revision)
        if not op.message_ids:
            return 0
        return self._write(op)

    def create_conversation(self, conversation: Conversation) -> Conversation:
        """Create a conversation with its record; as it is then. Raises ConversationExistsError."""
        if not isinstance(conversation, Conversation):
            refuse(conversation, "conversation", "a Conversation", InvalidInputError)
        fields = {name: getattr(conversation, name) for name in RECORD_FIELDS}
        op = requests.write_record(conversation.conversation_id, fields, create=True)
        return self._write_record(op)

    def update_conversation(
        self,
        conversation_id: str,
        *,
        title: str | UnsetType | None = UNSET,
        metadata: dict[str, Any] | UnsetType = UNSET,
        user_id: int | str | UnsetType | None = UNSET,
        agent_name: str | UnsetType | None = UNSET,
        auditing_id: int | str | UnsetType | None = UNSET,
        expected_revision: int | None = None,
    ) -> Conversation:
        """Set fields of the record; those not given stay. The conversation as it is then.

        Raises ConversationNotFoundError, RevisionConflictError.
        """
        fields = {
            "title": title,
            "metadata": metadata,
            "user_id": user_id,
            "agent_name": agent_name,
            "auditing_id": auditing_id,
        }
        op = requests.write_record(conversation_id, fields, create=False, expected_revision=expected_revision)
        if not op.fields:
            raise InvalidInputError("update_conversation needs at least one field to set")
        return self._write_record(op)

    def _write_record(self, op: WriteRecord) -> Conversation:
        self._write(op)
        conversation = self._backend.execute(ReadConversation(op.conversation_id))
        if conversation is None:
            raise ConversationNotFoundError(f"conversation {op.conversation_id[:80]!r} was deleted at this moment")
        return conversation

    def delete_conversation(self, conversation_id: str) -> bool:
        """Remove everything of a conversation; whether there was one.

        Only after a lost reply may it say False of a conversation that it removed.
        """
        check_conversation_id(conversation_id)
        return self._write(DeleteConversation(conversation_id))

    def _write(self, op: Op[T]) -> T:
        if self._unopened:
            self._open_subscriptions()
        if self._options.embedder is not None:
            op = self._with_vectors(op)
        return self._backend.execute(op)
