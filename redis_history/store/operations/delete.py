"""Remove messages, erase every copy of them, or remove a whole conversation."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from typing import Any, Final, NamedTuple

from redis_history.errors import BatchTooLargeError
from redis_history.store.changelog import Kind, token_of
from redis_history.store.memory.space import Space
from redis_history.store.operations.append import MAX_BATCH_MESSAGES
from redis_history.store.operations.archives import scrub
from redis_history.store.operations.base import Call, Steps, T, Write, field_of
from redis_history.store.operations.documents import purge_after
from redis_history.store.operations.drafts import drop_forks
from redis_history.store.operations.scripts import PLACES, WRITING, load_script
from redis_history.store.operations.settings import Settings
from redis_history.store.writes import Precondition
from redis_history.values._validation import check_list
from redis_history.values.ids import check_conversation_id, check_message_id

DELETE: Final = load_script("delete", *WRITING, *PLACES, args="count *fields")
DELETE_CONVERSATION: Final = load_script("delete_conversation", *WRITING, "_empty", args="log_lasts channel")

#: How long subscribers can read the change log of a deleted conversation: several poll intervals.
LOG_OUTLIVES_MS: Final = b"60000"


class _Removing(Write[T], frozen=True):
    message_ids: tuple[str, ...]

    def _call(self, settings: Settings, quoted: bytes) -> Call:
        ids = self.message_ids
        fields = [*map(field_of, ids), *map(str.encode, ids), quoted]
        return self.script_call(DELETE, settings, DELETE.args(count=b"%d" % len(ids), fields=fields))

    def decode(self, reply: list[Any]) -> Any:
        if type(reply[0]) is bytes:
            self.refuse(reply)
        return reply[1]


class DeleteMessages(_Removing[int], frozen=True):
    """Remove messages by id, archived or not; unknown ids are ignored. The outcome is the number of removed ones."""

    @classmethod
    def of(
        cls, conversation_id: str, message_ids: Iterable[str], expected_revision: int | None = None
    ) -> DeleteMessages:
        """Raises InvalidConversationIdError, InvalidInputError, BatchTooLargeError."""
        check_conversation_id(conversation_id)
        check_list(message_ids, "message_ids")
        ids = tuple(dict.fromkeys(map(check_message_id, message_ids)))
        if len(ids) > MAX_BATCH_MESSAGES:
            raise BatchTooLargeError(
                f"one atomic change removes at most {MAX_BATCH_MESSAGES:,} messages, not {len(ids):,}"
            )
        return cls(conversation_id, ids, precondition=Precondition.of(expected_revision))

    def steps(self, settings: Settings) -> Steps[int]:
        return self.send(self._call(settings, b""), settings)

    def apply(self, space: Space) -> int:
        conversation = space.check(self.conversation_id, self.precondition)
        found = [message_id for message_id in self.message_ids if conversation and message_id in conversation.stored]
        if conversation is None or not found:
            return 0
        for message_id in found:
            conversation.remove(message_id)
        space.write(self, conversation, Kind.DELETED, ids=tuple(found))
        return len(found)


class _Erased(NamedTuple):
    """The outcome of an erasure, and whether summaries that it has made invisible must still be removed."""

    outcome: int | str
    has_work: bool


class EraseMessages(_Removing[int | str], frozen=True):
    """Remove messages by id, and all summaries that may quote them, in one change.

    The outcome is the number of removed messages. If the live summary may quote a removed message, nothing changes
    unless `forced`, and the outcome is the id of that summary: expanding it first returns its other messages to the
    conversation.
    """

    forced: bool = False

    def steps(self, settings: Settings) -> Steps[int | str]:
        keys = settings.keyspace.conversation(self.conversation_id)
        while True:
            call = self._call(settings, b"none" if self.forced else b"live")
            done: _Erased | bytes = yield from self.send(call, settings, drop=drop_forks)
            if isinstance(done, bytes) or done.has_work:
                yield from scrub(keys)
            if isinstance(done, _Erased):
                return done.outcome

    def decode(self, reply: list[Any]) -> _Erased | bytes:
        """The erasure; b"unfinished" if summaries of an earlier erasure must be removed first, so it wrote nothing."""
        if reply[0] == b"unfinished":
            return b"unfinished"
        if reply[0] == b"quoted":
            return _Erased(reply[1].decode(), False)
        return _Erased(super().decode(reply), bool(reply[2]))

    def apply(self, space: Space) -> int | str:
        conversation = space.check(self.conversation_id, self.precondition)
        stored = {} if conversation is None else conversation.stored
        found = [message_id for message_id in self.message_ids if message_id in stored]
        if conversation is None or not found:
            space.drop_forks(self.conversation_id)
            return 0
        earliest = min(stored[message_id].position for message_id in found)
        # A summary has the position of the last message it replaced, so an earlier one cannot quote these messages.
        # There should be one live summary at most, but that is not relied on.
        summaries = {name for archive in conversation.archives for name in (archive.summary_id, archive.former)}
        quoting = sorted(name for name in summaries - {*found} if name in stored and stored[name].position >= earliest)
        if conversation.summary in quoting and not self.forced:
            return conversation.summary
        space.drop_forks(self.conversation_id)
        for message_id in (*found, *quoting):
            conversation.remove(message_id)
        space.write(self, conversation, Kind.DELETED, ids=(*found, *quoting))
        return len(found)


class DeleteConversation(Write[bool], frozen=True):
    """Remove everything of a conversation. The outcome is whether it existed."""

    def steps(self, settings: Settings) -> Steps[bool]:
        keys = settings.keyspace.conversation(self.conversation_id)
        # The script cannot see subscribers at another node, which hear only published messages.
        channel = b"" if settings.publishes else settings.notifications + keys.log
        args = DELETE_CONVERSATION.args(log_lasts=LOG_OUTLIVES_MS, channel=channel)
        call = self.script_call(DELETE_CONVERSATION, settings, args)
        return self.send(call, settings, partial(purge_after, keys), drop=drop_forks)

    def decode(self, reply: list[Any]) -> bool:
        if type(reply[0]) is bytes:
            self.refuse(reply)
        return bool(reply[0])

    def revision_in(self, reply: Any) -> None:
        return None

    def apply(self, space: Space) -> bool:
        conversation = space.check(self.conversation_id, self.precondition)
        space.drop_forks(self.conversation_id)
        if conversation is None:
            return False
        if (self.conversation_id, "") in space.watchers or space.watchers_of_all:
            space.drop_old_logs()
            space.write(self, conversation, Kind.ENDED)
            space.deleted_logs[self.conversation_id] = conversation.log
            space.deleted[self.conversation_id] = time.time()
        elif space.audit is not None:
            space.write(self, conversation, Kind.ENDED)
        space.end(self.conversation_id, token_of(self.token))
        return True
