"""The memory backend: the same contract in this process, without a server.

It keeps the stored bytes, not the objects, so that what is read back is as independent of the caller's objects as with
Redis; and it is the model that the tests of the Redis backend compare with.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass, field
from functools import singledispatchmethod
from typing import Any, TypeVar, cast

from redis_history.backends.base import Wake
from redis_history.changelog import (
    APPENDED,
    CONVERSATION_DELETED,
    DELETED,
    LogEntry,
    encode_ids,
    encode_members,
    recover,
)
from redis_history.errors import (
    ConversationExistsError,
    ConversationNotFoundError,
    MessageConflictError,
    RevisionConflictError,
    StoreClosedError,
)
from redis_history.events import BEGINNING, Cursor
from redis_history.model import Message, Position
from redis_history.model.wire import decode_member, encode_member, placed
from redis_history.operations import (
    Append,
    Appended,
    Changes,
    DeleteConversation,
    DeleteMessages,
    Entry,
    FindMessage,
    Head,
    Op,
    Page,
    Precondition,
    ReadChanges,
    ReadHead,
    ReadPage,
)

__all__ = ["AsyncMemoryBackend", "MemoryBackend"]

T = TypeVar("T")


@dataclass(slots=True)
class _Stored:
    """What is known of a message besides its place in the order."""

    entry: Entry
    position: Position
    revision: int
    token: str


@dataclass(slots=True)
class _Conversation:
    epoch: str
    log: deque[LogEntry]
    revision: int = 0
    token: str = ""
    sequence: int = 0
    stamp: int = 0
    characters: int = 0
    tokens: int = 0
    order: list[Position] = field(default_factory=list)
    ids: dict[Position, str] = field(default_factory=dict)
    stored: dict[str, _Stored] = field(default_factory=dict)

    @property
    def head(self) -> Cursor:
        return Cursor(self.epoch, self.revision, self.token)

    def write(self, token: str, kind: str, payload: bytes, replaces: bool = False) -> None:
        self.revision += 1
        self.token = token
        self.log.append(LogEntry(self.revision, token, kind, payload, replaces))

    def read(self, position: Position) -> Message:
        return decode_member(self.member(position))

    def member(self, position: Position) -> bytes:
        return encode_member(position.sequence, position.timestamp, self.stored[self.ids[position]].entry.body)

    def count(self, entry: Entry, sign: int) -> None:
        self.characters += sign * entry.characters
        self.tokens += sign * entry.tokens


class MemoryBackend:
    """Conversations in this process's memory. Thread safe; gone with the process."""

    def __init__(self, *, log_length: int = 1000) -> None:
        self._log_length = log_length
        self._lock = threading.RLock()
        self._conversations: dict[str, _Conversation] = {}
        # Logs of deleted conversations, for those who were watching.
        self._ended: dict[str, deque[LogEntry]] = {}
        self._watchers: dict[str, list[Wake]] = {}
        self._closed = False

    def execute(self, op: Op[T]) -> T:
        with self._lock:
            if self._closed:
                raise StoreClosedError("the store was closed")
            outcome = self._run(op)
            wakes = list(self._watchers.get(op.conversation_id, ())) if _writes(op) else ()  # type: ignore[attr-defined]
        for wake in wakes:
            wake()
        return cast(T, outcome)

    def watch(self, conversation_id: str, wake: Wake) -> None:
        with self._lock:
            self._watchers.setdefault(conversation_id, []).append(wake)

    def unwatch(self, conversation_id: str, wake: Wake) -> None:
        with self._lock:
            watchers = self._watchers.get(conversation_id, [])
            if wake in watchers:
                watchers.remove(wake)
            if not watchers:
                self._watchers.pop(conversation_id, None)
                self._ended.pop(conversation_id, None)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._conversations.clear()
            self._ended.clear()

    @singledispatchmethod
    def _run(self, op: Any) -> Any:
        raise TypeError(f"unknown operation {type(op).__name__}")

    @_run.register
    def _append(self, op: Append) -> list[Appended]:
        conversation = self._conversations.get(op.conversation_id)
        before = [conversation.stored.get(entry.message.id) if conversation else None for entry in op.entries]
        for entry, stored in zip(op.entries, before, strict=True):
            if stored is not None and (
                stored.entry.digest != entry.digest or entry.timestamp not in (None, stored.position.timestamp)
            ):
                raise MessageConflictError(
                    f"conversation {op.conversation_id[:80]!r} has a message {entry.message.id!r} already, with other "
                    "content; use another id, or update_message to change it",
                    message_id=entry.message.id,
                )
        if all(before) and self._held_then(op.precondition, cast("_Stored", before[-1]).revision):
            return [_repeated(stored, op.token) for stored in before if stored is not None]
        self._check(op.conversation_id, op.precondition)
        replaces = False
        if conversation is None:
            replaces = self._ended.pop(op.conversation_id, None) is not None
            conversation = _Conversation(op.token, deque(maxlen=self._log_length))
            self._conversations[op.conversation_id] = conversation
        outcome = []
        members = []
        stamp = max(time.time_ns() // 1000, conversation.stamp + 1)
        for entry, stored in zip(op.entries, before, strict=True):
            if stored is not None:
                outcome.append(_repeated(stored, op.token))
                continue
            timestamp = entry.timestamp
            if timestamp is None:
                timestamp = conversation.stamp = stamp
                stamp += 1
            conversation.sequence += 1
            position = Position(timestamp, conversation.sequence)
            insort(conversation.order, position)
            conversation.ids[position] = entry.message.id
            conversation.stored[entry.message.id] = _Stored(entry, position, conversation.revision + 1, op.token)
            conversation.count(entry, 1)
            members.append(conversation.member(position))
            outcome.append(Appended(conversation.revision + 1, _placed(entry, position), False))
        conversation.write(op.token, APPENDED, encode_members(members), replaces)
        return outcome

    @_run.register
    def _delete(self, op: DeleteMessages) -> int:
        self._check(op.conversation_id, op.precondition)
        conversation = self._conversations.get(op.conversation_id)
        found = [message_id for message_id in op.message_ids if conversation and message_id in conversation.stored]
        if conversation is None or not found:
            return 0
        for message_id in found:
            stored = conversation.stored.pop(message_id)
            del conversation.order[bisect_left(conversation.order, stored.position)]
            del conversation.ids[stored.position]
            conversation.count(stored.entry, -1)
        conversation.write(op.token, DELETED, encode_ids(found))
        return len(found)

    @_run.register
    def _delete_conversation(self, op: DeleteConversation) -> bool:
        self._check(op.conversation_id, op.precondition)
        conversation = self._conversations.pop(op.conversation_id, None)
        if conversation is None:
            return False
        if op.conversation_id in self._watchers:
            conversation.write(op.token, CONVERSATION_DELETED, b"")
            self._ended[op.conversation_id] = conversation.log
        return True

    @_run.register
    def _find(self, op: FindMessage) -> Message | None:
        conversation = self._conversations.get(op.conversation_id)
        stored = conversation and conversation.stored.get(op.message_id)
        return conversation.read(stored.position) if conversation and stored else None

    @_run.register
    def _page(self, op: ReadPage) -> Page:
        conversation = self._conversations.get(op.conversation_id)
        if conversation is None:
            return Page([])
        order = conversation.order
        first, last = 0, len(order)
        if op.since is not None:
            first = bisect_left(order, op.since)
        if op.after is not None:
            first = max(first, bisect_left(order, op.after._replace(sequence=op.after.sequence + 1)))
        if op.before is not None:
            last = bisect_left(order, op.before)
        if op.newest:
            first = max(first, last - op.limit)
        else:
            last = min(last, first + op.limit)
        return Page([conversation.read(position) for position in order[first:last]])

    @_run.register
    def _read_head(self, op: ReadHead) -> Head:
        conversation = self._conversations.get(op.conversation_id)
        if conversation is None:
            return Head(self._end(op.conversation_id))
        newest = conversation.order[-op.messages :] if op.messages else []
        return Head(
            conversation.head,
            len(conversation.order),
            conversation.characters,
            conversation.tokens,
            Page([conversation.read(position) for position in newest]),
        )

    @_run.register
    def _changes(self, op: ReadChanges) -> Changes:
        conversation = self._conversations.get(op.conversation_id)
        head = conversation.head if conversation else self._end(op.conversation_id)
        log = conversation.log if conversation else self._ended.get(op.conversation_id, ())
        entries = [entry for entry in log if entry.revision >= op.after.revision]
        return recover(op.conversation_id, op.after, head, entries[: op.limit + 1], op.limit)

    def _end(self, conversation_id: str) -> Cursor:
        """The head of a conversation that does not exist: the end of its former life, if that is still known."""
        log = self._ended.get(conversation_id)
        return Cursor(BEGINNING.epoch, log[-1].revision, log[-1].token) if log else BEGINNING

    def _check(self, conversation_id: str, precondition: Precondition) -> None:
        conversation = self._conversations.get(conversation_id)
        revision = conversation.revision if conversation else 0
        where = repr(conversation_id[:80])
        if precondition.expected_revision not in (None, revision):
            raise RevisionConflictError(
                f"conversation {where} is at revision {revision}, not at {precondition.expected_revision}; "
                "read it again and decide anew",
                current_revision=revision,
                expected_revision=precondition.expected_revision,
            )
        if precondition.must_exist and conversation is None:
            raise ConversationNotFoundError(f"there is no conversation {where}")
        if precondition.must_not_exist and conversation is not None:
            raise ConversationExistsError(f"conversation {where} exists already, at revision {revision}")

    @staticmethod
    def _held_then(precondition: Precondition, stored_at: int) -> bool:
        """Whether the precondition held for the call that stored messages as revision `stored_at`."""
        if precondition.expected_revision not in (None, stored_at - 1):
            return False
        return not precondition.must_not_exist or stored_at == 1


def _writes(op: Op[Any]) -> bool:
    return isinstance(op, Append | DeleteMessages | DeleteConversation)


def _placed(entry: Entry, position: Position) -> Message:
    return placed(entry.message, position.sequence, position.timestamp)


def _repeated(stored: _Stored, token: str) -> Appended:
    return Appended(stored.revision, _placed(stored.entry, stored.position), stored.token != token)


class AsyncMemoryBackend:
    """The same, for an asynchronous store; of another store's conversations if `memory` is given."""

    def __init__(self, *, log_length: int = 1000, memory: MemoryBackend | None = None) -> None:
        self._memory = memory or MemoryBackend(log_length=log_length)

    async def execute(self, op: Op[T]) -> T:
        return self._memory.execute(op)

    async def watch(self, conversation_id: str, wake: Wake) -> None:
        self._memory.watch(conversation_id, wake)

    async def unwatch(self, conversation_id: str, wake: Wake) -> None:
        self._memory.unwatch(conversation_id, wake)

    async def aclose(self) -> None:
        self._memory.close()
