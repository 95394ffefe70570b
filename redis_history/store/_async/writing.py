"""The methods of a store that change messages, records and conversations: one atomic change with each call."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, Unpack, cast

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from redis_history import errors
from redis_history.store import operations as ops
from redis_history.store import refusals
from redis_history.store._async._runtime import sleep
from redis_history.store._async.executing import AsyncExecuting
from redis_history.store._async.replies import AsyncReply
from redis_history.store._async.runs import run_here
from redis_history.store.operations import fork as forks
from redis_history.store.operations.base import said_by
from redis_history.store.operations.page import ARCHIVED_PAGE
from redis_history.store.operations.record import write_record
from redis_history.store.operations.usage import ForgetUsage
from redis_history.values import Conversation, Message, Position, Role
from redis_history.values._validation import check_function, check_owner, check_seconds, refuse
from redis_history.values.approvals import Approval
from redis_history.values.helpers import MessageFields
from redis_history.values.ids import check_conversation_id, check_message_id

#: Attempts to change a message in a conversation that others change.
_ATTEMPTS: Final = 50
#: Seconds.
_LONGEST_PAUSE: Final = 0.05
#: Summaries that an erasure expands, also those that compressors write in the meantime, before it only removes them.
_EXPANSIONS: Final = 50


class AsyncWriting(AsyncExecuting):
    iter: Callable[..., AsyncIterator[Message]]
    iter_conversations: Callable[..., AsyncIterator[Conversation]]

    async def append(
        self,
        conversation_id: str,
        message: Message,
        *,
        expected_revision: int | None = None,
        must_exist: bool = False,
        must_not_exist: bool = False,
    ) -> ops.Appended:
        """Add one message, atomically and in one round trip; creates the conversation if necessary.

        Appending the same id and content again changes nothing, and returns the outcome of the first append with
        `duplicate` set. `conversation_id` has 1 to 512 bytes of UTF-8. Raises MessageConflictError (the id exists with
        other content), RevisionConflictError (not at `expected_revision`; 0: the conversation does not exist),
        ConversationNotFoundError (`must_exist`), ConversationExistsError (`must_not_exist`). A repeated call with a
        stored message succeeds if its conditions held the first time.
        """
        condition = ops.Precondition.of(expected_revision, must_exist, must_not_exist)
        return (await self._write(ops.Append.of(conversation_id, message, condition)))[0]

    async def append_many(
        self,
        conversation_id: str,
        messages: Iterable[Message],
        *,
        expected_revision: int | None = None,
        must_exist: bool = False,
        must_not_exist: bool = False,
    ) -> list[ops.Appended]:
        """Add messages in this order as one change, all or nothing. Stored messages stay unchanged.

        The options and errors are those of `append`. Raises BatchTooLargeError above 1,000 messages or 4 MB, not
        counting large contents, or 64 MB with these.
        """
        condition = ops.Precondition.of(expected_revision, must_exist, must_not_exist)
        return await self.execute(ops.append_messages(conversation_id, messages, condition))

    def stream(
        self,
        conversation_id: str,
        *,
        role: Role = "assistant",
        interval: float = 0.05,
        **fields: Unpack[MessageFields],
    ) -> AsyncReply:
        """A message that grows as it is written, such as the answer of a model, and is visible to readers in the
        meantime::

            async with store.stream(conversation_id) as reply:
                async for token in tokens:
                    await reply.write(token)

        See `AsyncReply`. `role` and `fields` are those of the message, such as its `id`. The server sets its time.
        Text is sent every `interval` seconds, 0 to 10.
        """
        op = ops.Append.of_reply(conversation_id, role, fields)
        check_seconds(interval, "interval", 0, most=10)
        if self._exclusive:
            return run_here(self, conversation_id).stream(role=role, interval=interval, **fields)
        return AsyncReply(self, op, interval)

    async def update_message(
        self, conversation_id: str, message: Message, *, expected_revision: int | None = None, by: str | None = None
    ) -> ops.Appended:
        """Replace the content of the message with this id. It keeps its position and timestamp.

        `by`, here and elsewhere, says who makes the change: up to 200 characters, for `log` and events. Writing the
        same content again changes nothing. Raises MessageNotFoundError, RevisionConflictError (not at
        `expected_revision`).
        """
        return await self.execute(ops.change_message(conversation_id, message, expected_revision, by))

    async def pin(
        self, conversation_id: str, message_id: str, *, pinned: bool = True, by: str | None = None
    ) -> Message:
        """Set `metadata["pinned"]` of a message, or remove it if not `pinned`, and return the message.

        No compaction, cap or plugin replaces or removes a pinned message, nor the calls and results that belong to it.
        Raises MessageNotFoundError, also for archived messages: `expand` their summary first. Raises ConflictError
        for a summary, which the next compaction replaces, and while the message is being written: pin it afterwards, or
        begin it with `stream(metadata={"pinned": True})`. `by` as in `update_message`.
        """
        check_conversation_id(conversation_id)
        check_message_id(message_id)
        for _ in range(_ATTEMPTS):
            revision = (await self._backend.execute(ops.ReadHead(conversation_id))).cursor.revision
            message = await self._backend.execute(ops.FindMessage(conversation_id, message_id))
            if message is None:
                raise refusals.message_missing(conversation_id, message_id)
            if message.status == "streaming":
                raise refusals.reply_not_pinned(conversation_id, message_id)
            if message.is_summary and pinned:
                raise refusals.summary_not_pinned(conversation_id, message_id)
            metadata = {name: value for name, value in message.metadata.items() if name != "pinned"}
            changed = replace(message, metadata={**metadata, "pinned": True} if pinned else metadata)
            with suppress(errors.RevisionConflictError):  # without a revision it might undo an edit
                done = await self.update_message(conversation_id, changed, expected_revision=revision, by=by)
                return done.message
        raise refusals.revision_conflict(conversation_id, revision + 1, revision)

    async def decide(
        self,
        conversation_id: str,
        call_id: str,
        approved: bool,
        *,
        reason: str | None = None,
        by: str | None = None,
    ) -> Approval:
        """Decide on a request for approval of a tool call (see `list_approvals`), and return it with the decision.

        The first decision stands: later calls change nothing, and return it with `duplicate` set. It is stored in the
        message of the call, so subscribers get a MessageUpdated event. A denied call also gets a result there, which
        tells the model, with the `reason` (up to 1,000 characters). `by` says who decided (up to 200). Raises
        ApprovalNotFoundError, also if the call was answered without a decision, or decided more than 2,000 messages
        ago.
        """
        decision, revision = ops.Decision.of(approved, reason, by), 0
        for _ in range(_ATTEMPTS):
            found = await self.execute(ops.find_request(conversation_id, call_id))
            if found.approval.approved is not None:
                return replace(found.approval, duplicate=True)
            if await self._write(found.decided(call_id, decision)) is not None:
                return found.with_decision(decision)
            revision = found.changed
        raise refusals.revision_conflict(conversation_id, revision + 1, revision)

    async def clear(self, conversation_id: str, *, expected_revision: int | None = None, by: str | None = None) -> int:
        """Remove all messages, including archived ones, and keep the conversation with its record. Returns the new
        revision.

        Without messages nothing changes. `by` as in `update_message`. Raises RevisionConflictError (not at
        `expected_revision`).
        """
        check_conversation_id(conversation_id)
        op = ops.Clear(conversation_id, precondition=ops.Precondition.of(expected_revision))
        return await self._write(said_by(op, by))

    async def restore(
        self,
        conversation_id: str,
        messages: Iterable[Message],
        *,
        expected_revision: int | None = None,
        by: str | None = None,
    ) -> int:
        """Replace all messages, archived ones too, by `messages`. Returns the new revision. Creates the conversation if
        necessary. Messages keep the timestamps they have, and get new sequences.

        This also replaces messages that others append in the meantime. To prevent it, give `expected_revision`: then it
        raises RevisionConflictError. `by` as in `update_message`. Raises BatchTooLargeError as `append_many`.
        """
        return await self._write(said_by(ops.Restore.of(conversation_id, messages, expected_revision), by))

    async def delete_messages(
        self,
        conversation_id: str,
        message_ids: Iterable[str],
        *,
        expected_revision: int | None = None,
        by: str | None = None,
    ) -> int:
        """Remove messages by id, archived ones too. Returns how many were removed. Unknown ids are ignored. A removed
        id may be appended again. `by` as in `update_message`.

        Raises RevisionConflictError (not at `expected_revision`); BatchTooLargeError above 1,000 ids.
        """
        op = ops.DeleteMessages.of(conversation_id, message_ids, expected_revision)
        return await self._write(said_by(op, by)) if op.message_ids else 0

    async def erase(self, conversation_id: str, ids: Iterable[str] | None = None) -> int:
        """Remove messages and every copy of their content: in archives, in search documents, and in summaries that may
        quote them, former and edited ones included. None: all messages. Unknown ids are ignored. Returns the number
        of removed messages, without the summaries that were removed with them.

        A live summary that may quote one of them is expanded first: the other messages it replaced are live again. On
        a server without enough memory for that, they stay in the archive. After an error, call it again with the same
        ids. Raises BatchTooLargeError above 1,000 ids.
        """
        if ids is None:
            count = 0
            async for message in self.iter(conversation_id, batch=ARCHIVED_PAGE, include_archived=True, contents=False):
                count += not message.is_summary
            await self.clear(conversation_id)
            return count
        op = ops.DeleteMessages.of(conversation_id, ids)
        if not op.message_ids:
            return 0
        for _ in range(_EXPANSIONS):
            erased = await self._write(ops.EraseMessages(conversation_id, op.message_ids))
            if isinstance(erased, int):
                return erased
            try:
                await self._write(ops.Expand(conversation_id, erased))
            except errors.BackendRefusedError:  # a full server, which allows removal only
                break
        return cast(int, await self._write(ops.EraseMessages(conversation_id, op.message_ids, forced=True)))

    async def erase_user(
        self, user_id: int | str, *, on_progress: Callable[[Conversation], object] | None = None
    ) -> int:
        """Remove all conversations of the owner `user_id` with every copy of their content: messages, archives, search
        documents, replies, records; and the owner's totals of usage and budget. Returns the number of conversations.
        Forks of these conversations that have another owner stay.

        Conversations that get this owner during the call are removed, too. `on_progress` gets the record of each
        removed one. Call it again after an error or an interruption: it continues. Raises ConflictError, with their
        ids, if new conversations of this owner keep appearing.
        """
        check_owner(user_id, "user_id")
        if user_id is None:
            refuse(user_id, "user_id", "an int or a str", errors.InvalidInputError)
        check_function(on_progress, "on_progress", plain=True, error=errors.InvalidInputError)
        count = 0
        for _ in range(_ATTEMPTS):
            left: list[str] = []
            async for one in self.iter_conversations(user_id=user_id):
                left.append(one.conversation_id)
                # It may have another owner now; then its revision is another one, too.
                condition = ops.Precondition.of(expected_revision=one.revision)
                start = time.perf_counter()
                try:
                    gone = await self._write(ops.DeleteConversation(one.conversation_id, precondition=condition))
                except errors.RevisionConflictError:
                    continue  # the next pass finds it
                if gone:
                    count += 1
                    if on_progress is not None:
                        on_progress(one)
                # Leave the server half of the time to others.
                await sleep(min(time.perf_counter() - start, _LONGEST_PAUSE))
            if not left:
                await self._backend.execute(ForgetUsage(user_id))
                return count
        shown = ", ".join(repr(one[:80]) for one in left[:10])
        raise errors.ConflictError(
            f"user {user_id!r} still has conversations, which keep changing: {shown}; erase again"
        )

    async def create_conversation(self, conversation: Conversation, *, exist_ok: bool = False) -> Conversation:
        """Create a conversation with its record, and return it as it is then.

        If it exists, ConversationExistsError; with `exist_ok`, the existing record is returned as it is.
        """
        return await self.execute(ops.create_record(conversation, exist_ok))

    async def update_conversation(
        self,
        conversation_id: str,
        *,
        title: str | UnsetType | None = UNSET,
        metadata: dict[str, Any] | UnsetType = UNSET,
        user_id: int | str | UnsetType | None = UNSET,
        agent_name: str | UnsetType | None = UNSET,
        auditing_id: int | str | UnsetType | None = UNSET,
        expected_revision: int | None = None,
        by: str | None = None,
    ) -> Conversation:
        """Set the given fields of the record. Returns the changed conversation.

        `title` and `agent_name` are text, `user_id` and `auditing_id` text or an integer of 64 bits; None removes one.
        `metadata` replaces the whole dict; `merge_metadata` sets single keys. `by` as in `update_message`. A record has
        at most 100,000 bytes
        (InvalidInputError). Raises ConversationNotFoundError, RevisionConflictError (not at `expected_revision`).
        """
        fields = {
            "title": title, "metadata": metadata, "user_id": user_id, "agent_name": agent_name,
            "auditing_id": auditing_id,
        }  # fmt: skip
        return await self.execute(ops.change_record(conversation_id, fields, expected_revision, by))

    async def merge_metadata(
        self, conversation_id: str, changes: Mapping[str, Any], *, by: str | None = None
    ) -> Conversation:
        """Set the keys of `changes` in the record's metadata, and leave the others. Returns the changed conversation.

        The value None removes a key. Concurrent calls lose nothing: each is made on what the others have written.
        Subscribers get a ConversationUpdated with all of the metadata. `by` as in `update_message`. Raises
        ConversationNotFoundError; InvalidInputError for values that cannot be stored, no changes, or more than 100,000
        bytes of metadata.
        """
        return await self.execute(write_record(said_by(ops.MergeMetadata.of(conversation_id, changes), by)))

    async def fork(
        self,
        conversation_id: str,
        new_id: str | None = None,
        *,
        through: Position | Message | str | None = None,
        user_id: int | str | UnsetType | None = UNSET,
    ) -> Conversation:
        """Copy a conversation to `new_id` (None: a new UUIDv7), and return the record of the copy.

        The copy is an atomic snapshot: it appears with all messages of one moment, also archived ones, even if others
        write during the call. Messages keep their ids and positions. A reply that is being written is left out. The
        record is copied; `forked_from` says where the copy comes from. `user_id` is the owner of the copy; by default,
        that of the source.

        `through` is the last message of the copy, its position or its id (None: the newest). If it is archived, or a
        summary replaced messages behind it, the originals are live in the copy. Results of tool calls up to `through`
        come along, wherever they are.

        Raises ConversationNotFoundError, ConversationExistsError (`new_id` exists), MessageNotFoundError for an unknown
        id, CompactionConflictError if the conversation was replaced again and again in the meantime.
        """
        return await self.execute(forks.fork(conversation_id, new_id, through, user_id))

    async def delete_conversation(self, conversation_id: str, *, by: str | None = None) -> bool:
        """Remove everything of a conversation. Returns whether it existed. After a lost reply, False may be wrong. `by`
        as in `update_message`."""
        check_conversation_id(conversation_id)
        return await self._write(said_by(ops.DeleteConversation(conversation_id), by))

    async def compact(
        self,
        conversation_id: str,
        *,
        through: Position | Message | str,
        summary: Message | str,
        seen: Iterable[Message] | None = None,
        expected_revision: int | None = None,
    ) -> ops.Compacted:
        """Replace all messages up to `through` by a summary; they move to the archive.

        `through` is the last of them: a message, its position or its id. System messages stay, also messages that
        others append in the meantime. A former summary is replaced. `summary` is a text, or a message with
        `metadata={"is_summary": True}`; it gets the position of the last replaced message.

        `seen` are the summarized messages: if other messages would be replaced (because of edits, deletions,
        insertions or compactions), it raises CompactionConflictError. Without it, the messages of that moment are
        replaced, and the summary may quote a message that was erased while you wrote it. With nothing to replace, or
        only a summary, nothing changes, and the outcome says so.

        Raises TornPairError if the range separates a tool call from its result, and names a better `through`;
        MessageNotFoundError for an unknown id, MessageConflictError (the id of the summary exists),
        RevisionConflictError (not at `expected_revision`).
        """
        return await self.execute(ops.compact_messages(conversation_id, through, summary, seen, expected_revision))

    async def expand(
        self, conversation_id: str, summary_id: str, *, expected_revision: int | None = None
    ) -> ops.Expanded:
        """Put back the messages that a summary replaced, in the same order, with a former summary if there was one.

        Raises MessageNotFoundError unless it is the live summary of the conversation; RevisionConflictError (not at
        `expected_revision`).
        """
        return await self.execute(ops.expand_summary(conversation_id, summary_id, expected_revision))
