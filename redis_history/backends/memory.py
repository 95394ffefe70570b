"""The memory backend: the same contract in this process, without a server.

It keeps the stored bytes, not the objects, so that what is read back is as independent of the caller's objects as with
Redis; and it is the model that the tests of the Redis backend compare with.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, bisect_right
from collections import deque
from functools import singledispatchmethod
from typing import Any, TypeVar, cast

import msgspec

from redis_history._time import from_microseconds
from redis_history.backends import refusals
from redis_history.backends._memory_state import ConversationState, StoredMessage, now
from redis_history.backends.base import Found, Look, Wake, WakeAll
from redis_history.backends.compacting import check_pairs, check_summary, cut_page, replaced
from redis_history.capabilities import Capabilities
from redis_history.changelog import (
    APPENDED,
    CLEARED,
    COMPACTED,
    CONVERSATION_DELETED,
    DELETED,
    EXPANDED,
    RECORD,
    RESTORED,
    UPDATED,
    LogEntry,
    encode_compacted,
    encode_expanded,
    encode_ids,
    encode_members,
    recover,
)
from redis_history.errors import (
    StoreClosedError,
)
from redis_history.events import BEGINNING, Cursor
from redis_history.model import Conversation, Message, Position
from redis_history.model.wire import decode_member, placed
from redis_history.operations import (
    Append,
    Appended,
    Changes,
    Clear,
    Compact,
    Compacted,
    DeleteConversation,
    DeleteMessages,
    Entry,
    Expand,
    Expanded,
    FindMessage,
    Head,
    ListConversations,
    Op,
    Page,
    Precondition,
    ReadChanges,
    ReadConversation,
    ReadHead,
    ReadPage,
    Restore,
    UpdateMessage,
    Write,
    WriteRecord,
)

__all__ = ["AsyncMemoryBackend", "MemoryBackend"]

T = TypeVar("T")
#: Seconds for which those who follow all conversations may still read the log of a deleted one.
OUTLIVES = 60.0
EPOCH = from_microseconds(0)


class MemoryBackend:
    """Conversations in this process's memory. Thread safe; gone with the process.

    At most `max_conversations` (the one whose last change is the oldest leaves) of at most `max_messages` messages.
    """

    def __init__(
        self,
        *,
        log_length: int = 1000,
        ttl: float | None = None,
        max_messages: int | None = 500,
        max_conversations: int | None = 500,
    ) -> None:
        self._log_length = log_length
        self._ttl = ttl
        self._max_messages = max_messages
        self._max_conversations = max_conversations
        self._lock = threading.RLock()
        self._conversations: dict[str, ConversationState] = {}
        # Logs of deleted conversations, for those who were watching; and when each was deleted, the oldest first.
        self._ended: dict[str, deque[LogEntry]] = {}
        self._deleted: dict[str, float] = {}
        self._watchers: dict[str, list[Wake]] = {}
        self._watch_all: list[WakeAll] = []
        self._closed = False

    #: Searches are ranked by the store, those of all conversations too.
    search_mode = "memory"
    #: Knows Compact, Expand, and pages with archived messages.
    compacts = True

    def execute(self, op: Op[T]) -> T:
        with self._lock:
            if self._closed:
                raise StoreClosedError("the store was closed")
            outcome = self._run(op)
            changed = op.conversation_id if isinstance(op, Write) else None
            wakes = () if changed is None else tuple(self._watchers.get(changed, ()))
            wakes_all = () if changed is None else tuple(self._watch_all)
        for wake in wakes:
            wake()
        for wake_all in wakes_all:
            wake_all(changed)
        return cast(T, outcome)

    def find_changed(self, look: Look) -> Found:
        with self._lock:
            if self._closed:
                raise StoreClosedError("the store was closed")
            found = {name: self._find_conversation(name) for name in (*self._conversations, *look.known)}
            heads = {name: BEGINNING if there is None else there.head for name, there in found.items()}
        return Found({name: head for name, head in heads.items() if head != look.known.get(name, BEGINNING)})

    def watch_all(self, wake: WakeAll) -> None:
        with self._lock:
            self._watch_all.append(wake)

    def unwatch_all(self, wake: WakeAll) -> None:
        with self._lock:
            if wake in self._watch_all:
                self._watch_all.remove(wake)
            self._forget_ended()

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
                self._forget_ended()

    def _forget_ended(self) -> None:
        """Let go of the logs of deleted conversations that nobody will read any more."""
        limit = time.monotonic() - OUTLIVES if self._watch_all else float("inf")
        for name, at in list(self._deleted.items()):
            if at > limit:
                break
            if name not in self._watchers:
                self._ended.pop(name, None)
                del self._deleted[name]

    def capabilities(self) -> Capabilities:
        with self._lock:
            if self._closed:
                raise StoreClosedError("the store was closed")
        return Capabilities("memory", search="client", doorbell="direct")

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._conversations.clear()
            self._ended.clear()
            self._deleted.clear()

    @singledispatchmethod
    def _run(self, op: Any) -> Any:
        raise TypeError(f"unknown operation {type(op).__name__}")

    @_run.register
    def _append(self, op: Append) -> list[Appended]:
        conversation = self._find_conversation(op.conversation_id)
        before = [conversation.stored.get(entry.message.id) if conversation else None for entry in op.entries]
        for entry, stored in zip(op.entries, before, strict=True):
            if stored is not None and (
                stored.entry.digest != entry.digest or entry.timestamp not in (None, stored.position.timestamp)
            ):
                raise refusals.message_conflict(op.conversation_id, entry.message.id)
        if all(before) and self._held_then(op.precondition, cast(StoredMessage, before[-1]).revision):
            return [_repeated(stored, op.token) for stored in before if stored is not None]
        self._check(op.conversation_id, op.precondition)
        conversation, replaces = self._begin(op.conversation_id, op.token)
        outcome, members, clock = [], [], now()
        for entry, stored in zip(op.entries, before, strict=True):
            if stored is not None:
                outcome.append(_repeated(stored, op.token))
                continue
            position = conversation.put(entry, op.token, clock)
            members.append(conversation.member(position))
            outcome.append(Appended(conversation.revision + 1, _placed(entry, position), False))
        self._write(op, conversation, APPENDED, encode_members(members), replaces, self._trimmed(conversation))
        return outcome

    @_run.register
    def _restore(self, op: Restore) -> int:
        self._check(op.conversation_id, op.precondition)
        conversation, replaces = self._begin(op.conversation_id, op.token)
        conversation.empty()
        clock = now()
        members = [conversation.member(conversation.put(entry, op.token, clock)) for entry in op.entries]
        return self._write(op, conversation, RESTORED, encode_members(members), replaces, self._trimmed(conversation))

    @_run.register
    def _clear(self, op: Clear) -> int:
        self._check(op.conversation_id, op.precondition)
        conversation = self._find_conversation(op.conversation_id)
        if conversation is None or not (conversation.order or conversation.archives):
            return conversation.revision if conversation else 0
        conversation.empty()
        return self._write(op, conversation, CLEARED, b"")

    @_run.register
    def _update(self, op: UpdateMessage) -> Appended | None:
        conversation = self._find_conversation(op.conversation_id)
        stored = None if conversation is None else conversation.stored.get(op.entry.message.id)
        if conversation is not None and stored is not None and stored.entry.digest == op.entry.digest:
            expected = op.precondition.expected_revision
            if expected in (None, conversation.revision, stored.revision - 1):
                return Appended(stored.revision, _placed(op.entry, stored.position), False)
        self._check(op.conversation_id, op.precondition)
        if conversation is None or stored is None or op.entry.message.id in conversation.archived:
            return None
        conversation.count(stored.entry, -1)
        conversation.count(op.entry, 1)
        revision = conversation.revision + 1
        conversation.stored[op.entry.message.id] = StoredMessage(op.entry, stored.position, revision, op.token)
        self._write(op, conversation, UPDATED, encode_members([conversation.member(stored.position)]))
        return Appended(revision, _placed(op.entry, stored.position), False)

    @_run.register
    def _compact(self, op: Compact) -> Compacted:
        conversation, summary_id = self._find_conversation(op.conversation_id), op.summary.message.id
        before = None if conversation is None else conversation.stored.get(summary_id)
        if conversation is not None and before is not None and before.entry.digest == op.summary.digest:
            for archive in conversation.archives:
                if archive.summary_id == summary_id and self._held_then(op.precondition, archive.revision):
                    message, own = _placed(op.summary, before.position), archive.token == op.token
                    return Compacted(archive.revision, message, len(archive.held), own)
        self._check(op.conversation_id, op.precondition)
        if conversation is None:
            conversation = ConversationState(op.token, deque())
        messages = [conversation.read(position) for position in conversation.order]
        count = bisect_right(conversation.order, op.through)
        leaving = replaced(op, messages[:count])
        if not leaving:
            return Compacted(conversation.revision, None, 0, False)
        if conversation.summary is not None:
            check_summary(op, conversation.stored[conversation.summary].position)
        check_pairs(op, count, messages)
        if before is not None:
            raise refusals.message_conflict(op.conversation_id, summary_id)
        member = conversation.compact(op.summary, [message.id for message in leaving], op.token)
        revision = self._write(op, conversation, COMPACTED, encode_compacted(len(leaving), member))
        message = _placed(op.summary, conversation.stored[summary_id].position)
        return Compacted(revision, message, len(leaving), True)

    @_run.register
    def _expand(self, op: Expand) -> Expanded | None:
        self._check(op.conversation_id, op.precondition)
        conversation = self._find_conversation(op.conversation_id)
        if conversation is None or op.summary_id != conversation.summary:
            return None
        [archive] = [one for one in conversation.archives if one.summary_id == op.summary_id]
        count = conversation.expand(archive)
        return Expanded(self._write(op, conversation, EXPANDED, encode_expanded(op.summary_id, count)), count)

    @_run.register
    def _delete(self, op: DeleteMessages) -> int:
        self._check(op.conversation_id, op.precondition)
        conversation = self._find_conversation(op.conversation_id)
        found = [message_id for message_id in op.message_ids if conversation and message_id in conversation.stored]
        if conversation is None or not found:
            return 0
        for message_id in found:
            conversation.take(message_id)
        self._write(op, conversation, DELETED, encode_ids(found))
        return len(found)

    @_run.register
    def _delete_conversation(self, op: DeleteConversation) -> bool:
        self._check(op.conversation_id, op.precondition)
        conversation = self._find_conversation(op.conversation_id)
        if conversation is None:
            return False
        if op.conversation_id in self._watchers or self._watch_all:
            self._forget_ended()
            self._write(op, conversation, CONVERSATION_DELETED, b"")
            self._ended[op.conversation_id] = conversation.log
            self._deleted[op.conversation_id] = time.monotonic()
        del self._conversations[op.conversation_id]
        return True

    @_run.register
    def _write_record(self, op: WriteRecord) -> int:
        self._check(op.conversation_id, op.precondition)
        conversation, replaces = self._begin(op.conversation_id, op.token)
        payload = msgspec.msgpack.encode(op.fields)
        conversation.record.update(msgspec.msgpack.decode(payload))
        return self._write(op, conversation, RECORD, payload, replaces)

    @_run.register
    def _read_conversation(self, op: ReadConversation) -> Conversation | None:
        conversation = self._find_conversation(op.conversation_id)
        if conversation is None:
            return None
        return Conversation(
            op.conversation_id,
            **msgspec.msgpack.decode(msgspec.msgpack.encode(conversation.record)),
            message_count=len(conversation.order),
            characters=conversation.characters,
            tokens=conversation.tokens,
            created_at=from_microseconds(conversation.created),
            updated_at=from_microseconds(conversation.updated),
            revision=conversation.revision,
        )

    @_run.register
    def _list(self, op: ListConversations) -> list[Conversation]:
        found = [self._read_conversation(ReadConversation(name)) for name in list(self._conversations)]
        wanted = [
            conversation
            for conversation in found
            if conversation is not None
            and op.user_id in (None, conversation.user_id)
            and op.agent_name in (None, conversation.agent_name)
        ]
        wanted.sort(key=lambda conversation: conversation.updated_at or EPOCH, reverse=True)
        return wanted[op.offset : op.offset + op.limit]

    @_run.register
    def _find(self, op: FindMessage) -> Message | None:
        conversation = self._find_conversation(op.conversation_id)
        stored = conversation and conversation.stored.get(op.message_id)
        return decode_member(conversation.member_of(op.message_id)) if conversation and stored else None

    @_run.register
    def _page(self, op: ReadPage) -> Page:
        conversation = self._find_conversation(op.conversation_id)
        if conversation is None:
            return Page([])
        if op.archived:
            return self._page_of_all(op, conversation)
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

    @staticmethod
    def _page_of_all(op: ReadPage, conversation: ConversationState) -> Page:
        held = [(position, True, name) for archive in conversation.archives for position, name in archive.held]
        held += [(position, False, conversation.ids[position]) for position in conversation.order]
        found = [
            (position, archived, decode_member(conversation.member_of(name)))
            for position, archived, name in held
            if (op.since is None or op.since <= position)
            and (op.after is None or op.after < position)
            and (op.before is None or position < op.before)
        ]
        former = frozenset(archive.former for archive in conversation.archives if archive.former is not None)
        return cut_page(op, found, former_summaries=former)

    @_run.register
    def _read_head(self, op: ReadHead) -> Head:
        conversation = self._find_conversation(op.conversation_id)
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
        conversation = self._find_conversation(op.conversation_id)
        head = conversation.head if conversation else self._end(op.conversation_id)
        log = conversation.log if conversation else self._ended.get(op.conversation_id, ())
        entries = [entry for entry in log if entry.revision >= op.after.revision]
        return recover(op.conversation_id, op.after, head, entries[: op.limit + 1], op.limit)

    def _end(self, conversation_id: str) -> Cursor:
        """The head of a conversation that does not exist: the end of its former life, if that is still known."""
        log = self._ended.get(conversation_id)
        return Cursor(BEGINNING.epoch, log[-1].revision, log[-1].token) if log else BEGINNING

    def _find_conversation(self, conversation_id: str) -> ConversationState | None:
        conversation = self._conversations.get(conversation_id)
        if conversation is not None and conversation.ends <= time.time():
            del self._conversations[conversation_id]
            return None
        return conversation

    def _begin(self, conversation_id: str, token: str) -> tuple[ConversationState, bool]:
        """The conversation, a new one if need be, and whether it takes the place of one whose log was still there."""
        conversation = self._find_conversation(conversation_id)
        if conversation is not None:
            return conversation, False
        replaces = self._ended.pop(conversation_id, None) is not None
        self._deleted.pop(conversation_id, None)
        if self._max_conversations is not None and len(self._conversations) >= self._max_conversations:
            del self._conversations[min(self._conversations, key=lambda name: self._conversations[name].updated)]
        conversation = ConversationState(token, deque(maxlen=self._log_length))
        self._conversations[conversation_id] = conversation
        return conversation, replaces

    def _trimmed(self, conversation: ConversationState) -> bytes:
        if self._max_messages is None or len(conversation.order) <= self._max_messages:
            return b""
        return encode_ids(conversation.trim(self._max_messages))

    def _write(
        self,
        op: Any,
        conversation: ConversationState,
        kind: str,
        payload: bytes,
        replaces: bool = False,
        removed: bytes = b"",
    ) -> int:
        conversation.revision += 1
        conversation.token = op.token
        conversation.updated = now()
        conversation.created = conversation.created or conversation.updated
        conversation.log.append(LogEntry(conversation.revision, op.token, kind, payload, replaces, removed))
        conversation.ttl = self._ttl or conversation.ttl
        if conversation.ttl is not None:
            conversation.ends = time.time() + conversation.ttl
        return conversation.revision

    def _check(self, conversation_id: str, precondition: Precondition) -> None:
        conversation = self._find_conversation(conversation_id)
        revision = conversation.revision if conversation else 0
        if precondition.expected_revision not in (None, revision):
            raise refusals.revision_conflict(conversation_id, revision, precondition.expected_revision)
        if precondition.must_exist and conversation is None:
            raise refusals.conversation_missing(conversation_id)
        if precondition.must_not_exist and conversation is not None:
            raise refusals.conversation_exists(conversation_id, revision)

    @staticmethod
    def _held_then(precondition: Precondition, stored_at: int) -> bool:
        """Whether the precondition held for the call that stored messages as revision `stored_at`."""
        if precondition.expected_revision not in (None, stored_at - 1):
            return False
        return not precondition.must_not_exist or stored_at == 1


def _placed(entry: Entry, position: Position) -> Message:
    return placed(entry.message, position.sequence, position.timestamp)


def _repeated(stored: StoredMessage, token: str) -> Appended:
    return Appended(stored.revision, _placed(stored.entry, stored.position), stored.token != token)


class AsyncMemoryBackend:
    """The same, for an asynchronous store; of another store's conversations if `memory` is given."""

    def __init__(self, *, memory: MemoryBackend | None = None, **options: Any) -> None:
        self._memory = memory or MemoryBackend(**options)

    search_mode = MemoryBackend.search_mode
    compacts = MemoryBackend.compacts

    async def execute(self, op: Op[T]) -> T:
        return self._memory.execute(op)

    async def watch(self, conversation_id: str, wake: Wake) -> None:
        self._memory.watch(conversation_id, wake)

    async def unwatch(self, conversation_id: str, wake: Wake) -> None:
        self._memory.unwatch(conversation_id, wake)

    async def find_changed(self, look: Look) -> Found:
        return self._memory.find_changed(look)

    async def watch_all(self, wake: WakeAll) -> None:
        self._memory.watch_all(wake)

    async def unwatch_all(self, wake: WakeAll) -> None:
        self._memory.unwatch_all(wake)

    async def capabilities(self) -> Capabilities:
        return self._memory.capabilities()

    async def aclose(self) -> None:
        self._memory.close()
