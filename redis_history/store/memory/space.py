"""The state of the memory backend: conversations, watchers and leases."""

from __future__ import annotations

import logging
import time
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import msgspec

from redis_history.store import refusals
from redis_history.store.changelog import LogEntry, token_of
from redis_history.store.memory.owed import Turns
from redis_history.store.memory.usage import Totals
from redis_history.store.writes import FIELDS, Appended, Entry, LeaseKind, Precondition, RunFence
from redis_history.values import Message, Position
from redis_history.values._caps import MAX_MESSAGE_BYTES
from redis_history.values.approvals import OpenRequest, may_ask, note_requests
from redis_history.values.beside import KEPT, Needed, PartialMessage, references_in
from redis_history.values.events import BEGINNING, Cursor
from redis_history.values.message import ForkedFrom
from redis_history.values.pairs import oldest_with_results
from redis_history.values.replies import LEASE_SECONDS, grown, read_records
from redis_history.values.runs import (
    ANSWER_SECONDS,
    FORMER_AGE,
    FORMER_RUNS,
    PLACE_SECONDS,
    WOKEN,
    RunInfo,
    RunStatus,
    RunWaiter,
)
from redis_history.values.usage import Numbers
from redis_history.values.wire import STREAMING, decode_member, encode_member, needed_of
from redis_history.values.wire import whole as whole_message

_logger = logging.getLogger("redis_history")

#: The default cap of messages and of conversations.
DEFAULT_CAP: Final = 500
#: Seconds for which namespace subscriptions can read the log of a deleted conversation.
_LOG_OUTLIVES: Final = 60.0
#: Seconds for which it is known that a conversation was deleted.
_ENDED: Final = 120.0
#: Seconds until an abandoned draft is removed.
_DRAFT_LASTS: Final = 600.0


@dataclass(slots=True)
class StoredMessage:
    entry: Entry
    position: Position
    revision: int
    token: str

    def outcome(self, entry: Entry, token: str) -> Appended:
        """The outcome for a call whose `entry` is stored already. If `token` stored it, the call was repeated."""
        return Appended(self.revision, entry.placed(self.position), self.token != token)


@dataclass(slots=True)
class Change:
    """A change in the log. `entry`: the parts that later changes do not affect. `references`: ids and sequences of its
    messages. `fields`: names of changed fields of the record."""

    entry: LogEntry
    references: tuple[tuple[str, int], ...] = ()
    fields: tuple[str, ...] = ()


@dataclass(slots=True)
class Archive:
    """The messages that a compaction replaced. `held`: positions and ids of those that still exist, ascending.
    `former`: the id of the previous summary."""

    revision: int
    summary_id: str
    token: str
    former: str | None
    held: list[tuple[Position, str]]


@dataclass(slots=True)
class Reply:
    """A streaming reply: its content (see model.replies), and when its writer counts as dead."""

    message_id: str
    ends: float
    content: bytearray = field(default_factory=bytearray)


@dataclass(slots=True)
class Draft:
    """A conversation that is not visible yet: its last page (-1: it was dropped), when that was written, messages by
    archive, and the conversation of which it is a fork."""

    page: int = 0
    touched: float = 0.0
    sets: dict[int, dict[Position, Entry]] = field(default_factory=dict)
    source: str | None = None
    ledger: dict[str, tuple[int, Numbers] | None] = field(default_factory=dict)


@dataclass(slots=True)
class Run:
    fence: RunFence
    agent_name: str | None
    status: RunStatus
    started_at: datetime
    #: Seconds since 1970, as all leases: a stored backend outlives the monotonic clock.
    expires: float
    ended_at: datetime | None = None
    reason: str | None = None
    #: The first sequence that its messages may have, and that of the interrupted runs right before it.
    first: int = 0
    unsettled_from: int | None = None

    @property
    def is_active(self) -> bool:
        return self.status in ("active", "stopping")

    def info(self, chat: str, waiting: tuple[RunWaiter, ...] = (), former: tuple[RunInfo, ...] = ()) -> RunInfo:
        more = self.started_at, self.ended_at, self.reason, waiting, self.first, former
        return RunInfo(self.fence.run_id, chat, self.agent_name, self.status, *more)


@dataclass(slots=True)
class Runs:
    """The runs of one conversation: the newest run, those before it (see RunInfo), the waiting agents with the end of
    each place, and the last ids that began or left."""

    run: Run | None = None
    queue: list[tuple[RunWaiter, float]] = field(default_factory=list)
    fence: int = 0
    last_ids: deque[str] = field(default_factory=lambda: deque(maxlen=64))
    former: list[Run] = field(default_factory=list)
    #: Since when the next run can begin.
    freed: float = 0.0

    def refresh(self) -> bool:
        """Record expired leases and waiters. Returns whether waiters have left."""
        now = time.time()
        run = self.run
        if run is not None and run.is_active and run.expires <= now:
            run.status, run.ended_at, self.freed = "interrupted", datetime.now(UTC), now
        present = [place for place in self.queue if place[1] > now]
        left, self.queue = len(present) != len(self.queue), present
        return left

    @property
    def active(self) -> Run | None:
        return self.run if self.run is not None and self.run.is_active else None

    def turn(self) -> int | None:
        """The place of the waiter whose turn it is, if no run is active. Silent waiters are passed over, see
        run.lua."""
        now = time.time()
        if now - self.freed < ANSWER_SECONDS:
            return 0 if self.queue else None
        for at, (_, ends) in enumerate(self.queue):
            spoke = ends - PLACE_SECONDS
            if spoke > self.freed if at < WOKEN else now - spoke < ANSWER_SECONDS + 0.25:
                return at
        return None

    @property
    def look_in(self) -> float | None:
        """Seconds until the active run expires, or until a waiter that has not answered is passed over."""
        if self.active is not None:
            return self.active.expires - time.time()
        return max(0.1, self.freed + ANSWER_SECONDS - time.time()) if self.queue else None

    def begin(self, waiter: RunWaiter, kind: LeaseKind, seconds: float, newest: int) -> Run:
        """Begin the run of a waiter, after the sequence `newest`."""
        self.fence += 1
        fence, former, before = RunFence(self.fence, waiter.run_id, kind), self.run, None
        if former is not None and former.status == "interrupted":
            before = former.unsettled_from or former.first
        now, ends = datetime.now(UTC), time.time() + seconds
        runs = [former, *self.former] if former is not None else []
        self.former = [one for one in runs if one.ended_at and one.ended_at > now - FORMER_AGE][:FORMER_RUNS]
        self.run = Run(fence, waiter.agent_name, "active", now, ends, first=newest + 1, unsettled_from=before)
        self.last_ids.append(waiter.run_id)
        return self.run

    def info(self, conversation_id: str) -> RunInfo | None:
        if self.run is None:
            return None
        former = tuple(run.info(conversation_id) for run in self.former)
        return self.run.info(conversation_id, tuple(waiter for waiter, _ in self.queue), former)


@dataclass(slots=True)
class ConversationState:
    epoch: str
    log: deque[Change]
    #: See `recover`.
    former: str = ""
    created: int = 0
    revision: int = 0
    token: str = ""
    sequence: int = 0
    stamp: int = 0
    fence: int = 0
    updated: int = 0
    ttl: float | None = None
    ends: float = float("inf")
    characters: int = 0
    tokens: int = 0
    #: The times of the earliest and the latest message since the last clear or restore.
    times: tuple[int, int] | None = None
    record: dict[str, Any] = field(default_factory=dict)
    forked_from: ForkedFrom | None = None
    #: Positions and ids of the live messages, ascending.
    live: list[tuple[Position, str]] = field(default_factory=list)
    #: Live and archived messages.
    stored: dict[str, StoredMessage] = field(default_factory=dict)
    #: Oldest first.
    archives: list[Archive] = field(default_factory=list)
    #: The archive of each archived message.
    archived: dict[str, Archive] = field(default_factory=dict)
    #: The id of the live summary.
    summary: str | None = None
    #: The streaming replies, by the tokens of their appends.
    replies: dict[str, Reply] = field(default_factory=dict)
    #: The open requests for approval, oldest first.
    requests: list[OpenRequest] = field(default_factory=list)
    #: Whether there were any after the last change.
    asked: bool = False
    #: The highest sequence of the requests that the present change has closed.
    closed: int = 0
    #: The revisions in which readers ended the replies of writers that they took for dead, by the same tokens.
    settled: dict[str, int] = field(default_factory=dict)
    #: The usage that was counted for each message id, with its day (None: it counts elsewhere), and the totals by day.
    ledger: dict[str, tuple[int, Numbers] | None] = field(default_factory=dict)
    spent: dict[int, Numbers] = field(default_factory=dict)

    @property
    def head(self) -> Cursor:
        return Cursor(self.epoch, self.revision, self.token)

    def message(self, message_id: str, contents: Needed = "all") -> Message:
        """A message, with the large contents that are needed."""
        message = decode_member(self.member_of(message_id, whole=contents == "all"), MAX_MESSAGE_BYTES)
        if contents == "texts" and type(message) is PartialMessage:
            values = {one.digest: one.data for one in self.stored[message_id].entry.packed(zstd=False).contents}
            which = zip(references_in(message.stored), needed_of(message, contents), strict=True)
            message = whole_message(message, [values[one.digest] if is_needed else KEPT for one, is_needed in which])
        if message.status != "streaming":
            return message
        return grown(message, read_records(bytes(self.replies[self.reply_token(message_id) or ""].content)))

    def reply_token(self, message_id: str) -> str | None:
        """The token of a streaming reply; None for other messages."""
        return next((token for token, reply in self.replies.items() if reply.message_id == message_id), None)

    def member_of(self, message_id: str, *, whole: bool = True) -> bytes:
        stored = self.stored[message_id]
        entry, (timestamp, sequence) = stored.entry, stored.position
        flags, body = (entry.flags, entry.body) if whole else entry.packed(zstd=False)[1:3]
        return encode_member(sequence, entry.characters, flags, timestamp, body)

    def reference(self, message_id: str) -> tuple[str, int]:
        """The id and the sequence of a message. A message that is removed and added again has another sequence."""
        return message_id, self.stored[message_id].position.sequence

    def add(self, entry: Entry, token: str, clock: int) -> Position:
        """Store a message after others with its time; `clock`: the time of the change."""
        timestamp = entry.timestamp
        if timestamp is None:
            timestamp = self.stamp = max(clock, self.stamp + 1)
        self.sequence += 1
        first, last = self.times or (timestamp, timestamp)
        self.times = min(first, timestamp), max(last, timestamp)
        position = Position(timestamp, self.sequence)
        insort(self.live, (position, entry.message.id))
        self.store(entry, position, self.revision + 1, token)
        self.note_requests(entry, position)
        if entry.flags & STREAMING:
            self.replies[token] = Reply(entry.message.id, time.time() + LEASE_SECONDS)
        self.count(entry, 1)
        return position

    def store(self, entry: Entry, position: Position, revision: int, token: str) -> None:
        self.stored[entry.message.id] = StoredMessage(entry, position, revision, token)

    def note_requests(self, entry: Entry, position: Position, former: Entry | None = None) -> None:
        """Note the requests for approval of a new or changed message, and its results."""
        if self.requests or may_ask(entry.tools):
            before = None if former is None else former.tools
            open_before = [*self.requests]
            note_requests(self.requests, entry.message.id, entry.tools, position, before)
            still = set(map(id, self.requests))
            self.closed = max([self.closed, *(one.sequence for one in open_before if id(one) not in still)])

    def add_archive(
        self, revision: int, summary_id: str, token: str, former: str | None, held: list[tuple[Position, str]]
    ) -> None:
        archive = Archive(revision, summary_id, token, former, held)
        self.archives.append(archive)
        self.archived.update(dict.fromkeys((message_id for _, message_id in held), archive))

    def remove(self, message_id: str) -> None:
        """Remove a message, live or archived. The messages that a removed summary replaced stay in the archive."""
        if (archive := self.archived.pop(message_id, None)) is not None:
            archive.held = [one for one in archive.held if one[1] != message_id]
        else:
            self.remove_live(message_id)
        del self.stored[message_id]
        self.requests = [one for one in self.requests if one.message != message_id]
        self.replies.pop(self.reply_token(message_id) or "", None)
        for archive in self.archives:
            if archive.summary_id == message_id:
                archive.summary_id = ""
            if archive.former == message_id:
                archive.former = None
        if message_id == self.summary:
            self.summary = None

    def remove_live(self, message_id: str) -> Position:
        stored = self.stored[message_id]
        del self.live[bisect_left(self.live, (stored.position, message_id))]
        self.count(stored.entry, -1)
        return stored.position

    def insert_live(self, message_id: str) -> None:
        stored = self.stored[message_id]
        insort(self.live, (stored.position, message_id))
        self.count(stored.entry, 1)

    def compact(self, entry: Entry, leaving: list[str], token: str) -> None:
        held = [(self.remove_live(message_id), message_id) for message_id in leaving]
        revision, summary_id = self.revision + 1, entry.message.id
        self.add_archive(revision, summary_id, token, self.summary, held)
        self.store(entry, held[-1][0], revision, token)
        self.insert_live(summary_id)
        self.summary = summary_id

    def expand(self, archive: Archive) -> int:
        """Restore the messages that the live summary replaced; returns their number."""
        self.remove(archive.summary_id)
        self.archives.remove(archive)
        for _, message_id in archive.held:
            del self.archived[message_id]
            self.insert_live(message_id)
        self.summary = archive.former
        return len(archive.held)

    def empty(self) -> None:
        self.live, self.stored, self.replies, self.settled = [], {}, {}, {}
        self.archives, self.archived, self.summary = [], {}, None
        self.requests = []
        self.characters = self.tokens = 0
        self.times = None

    def count(self, entry: Entry, sign: int) -> None:
        self.characters += sign * entry.characters
        self.tokens += sign * entry.tokens

    def trim(self, most: int) -> list[str]:
        """Remove the oldest messages, each with its group (see `values.pairs`); returns their ids."""
        tools = (self.stored[message_id].entry.tools for _, message_id in self.live)
        gone = oldest_with_results(tools, len(self.live) - most)
        ids = [self.live[index][1] for index in gone]
        for message_id in ids:
            self.remove(message_id)
        return ids


@dataclass(slots=True)
class Space:
    """The conversations and their watchers. Protected by the backend's lock."""

    log_length: int
    ttl: float | None
    max_messages: int | None
    max_conversations: int | None
    #: Seconds for which the audit trail keeps changes; None: there is none. Each has its time, the ids of the
    #: conversation and of its audit.
    audit: float | None = None
    trail: deque[tuple[int, str, Change, int | str | None]] = field(default_factory=deque)
    conversations: MutableMapping[str, ConversationState] = field(default_factory=dict)
    #: Logs of deleted conversations, for their watchers; and when each was deleted, the oldest first.
    deleted_logs: dict[str, deque[Change]] = field(default_factory=dict)
    deleted: dict[str, float] = field(default_factory=dict)
    #: The token of the last change of each conversation that was deleted a short while ago, and until when it is known.
    ended: dict[str, tuple[str, float]] = field(default_factory=dict)
    #: By conversation id and run id; "": of all changes of the conversation.
    watchers: dict[tuple[str, str], list[Callable[[], None]]] = field(default_factory=dict)
    watchers_of_all: list[Callable[[str | None], None]] = field(default_factory=list)
    #: The caps that were reported.
    warned: set[str] = field(default_factory=set)
    drafts: MutableMapping[str, Draft] = field(default_factory=dict)
    runs: MutableMapping[tuple[str, LeaseKind], Runs] = field(default_factory=dict)
    usage: Totals = field(default_factory=Totals)
    turns: Turns = field(default_factory=Turns)
    #: Functions to call after the present operation.
    wakes: list[Callable[[], None]] = field(default_factory=list)

    @staticmethod
    def now() -> int:
        return time.time_ns() // 1000

    def announce(self, conversation_id: str) -> None:
        """Wake the watchers of a conversation after the present operation."""
        self.wakes += self.watchers.get((conversation_id, ""), ())
        self.wakes += [partial(wake, conversation_id) for wake in self.watchers_of_all]

    def ring(self, conversation_id: str, run_id: str) -> None:
        """Wake the holder of a run, or a waiting agent, after the present operation."""
        self.wakes += self.watchers.get((conversation_id, run_id), ())

    def find(self, conversation_id: str) -> ConversationState | None:
        conversation = self.conversations.get(conversation_id)
        if conversation is not None and conversation.ends <= time.time():
            self._remove(conversation_id, conversation.token)
            self.drop_runs(conversation_id)
            return None
        return conversation

    def find_or_create(self, conversation_id: str, token: str) -> ConversationState:
        conversation = self.find(conversation_id)
        if conversation is not None:
            return conversation
        former = self.deleted_head(conversation_id).token if self.deleted_head(conversation_id) != BEGINNING else ""
        if self.deleted_logs.pop(conversation_id, None) is not None:
            former = "log"
        self.deleted.pop(conversation_id, None)
        self.ended.pop(conversation_id, None)
        if self.max_conversations is not None and len(self.conversations) >= self.max_conversations:
            self.warn_of_cap("conversations", self.max_conversations, "max_conversations")
            oldest = min(self.conversations, key=lambda name: self.conversations[name].updated)
            self._remove(oldest, self.conversations[oldest].token)
        conversation = ConversationState(token, deque(maxlen=self.log_length), former)
        self.conversations[conversation_id] = conversation
        return conversation

    def check(self, conversation_id: str, precondition: Precondition) -> ConversationState | None:
        """The conversation, if it exists. Raises an error of `refusals` unless the precondition holds."""
        conversation = self.find(conversation_id)
        revision = conversation.revision if conversation else 0
        if precondition.expected_revision not in (None, revision):
            raise refusals.revision_conflict(conversation_id, revision, precondition.expected_revision)
        if precondition.run is not None and not self.holds(conversation_id, precondition.run):
            raise refusals.run_lost(conversation_id)
        if precondition.must_exist and conversation is None:
            raise refusals.conversation_missing(conversation_id)
        if precondition.must_not_exist and conversation is not None:
            raise refusals.conversation_exists(conversation_id, revision)
        return conversation

    def warn_of_cap(self, what: str, cap: int, option: str) -> None:
        if option not in self.warned and cap == DEFAULT_CAP:
            self.warned.add(option)
            _logger.warning("memory:// keeps only the last %d %s: older ones are removed. Set %s", cap, what, option)

    def trimmed(self, conversation_id: str, conversation: ConversationState) -> tuple[str, ...]:
        if self.max_messages is None or len(conversation.live) <= self.max_messages:
            return ()
        gone = tuple(conversation.trim(self.max_messages))
        self.warn_of_cap("messages of a conversation", self.max_messages, "max_messages")
        if len(conversation.live) > self.max_messages:
            refusals.warn_of_pins(conversation_id)
        return gone

    def write(
        self,
        op: Any,
        conversation: ConversationState,
        kind: int,
        *,
        references: Iterable[tuple[str, int]] = (),
        fields: Iterable[str] = (),
        **known: Any,
    ) -> int:
        """Record a change in revision, times and log; returns the new revision. `known`: fields of the log entry."""
        conversation.revision += 1
        conversation.updated = self.now()
        conversation.token = token_of(op.token, kind, conversation.updated)
        conversation.created = conversation.created or conversation.updated
        entry = LogEntry(conversation.revision, conversation.token, kind, by=op.by, **known)
        change = Change(entry, tuple(references), tuple(fields))
        conversation.log.append(change)
        self.note(op.conversation_id, conversation, change)
        self.renew(conversation)
        self.turns.prune(self, op.conversation_id)
        if conversation.asked and not conversation.requests:
            own = op.precondition.run
            own_fence = own.fence if own is not None and own.kind == "run" else None
            self.turns.decided(self, op.conversation_id, conversation.closed, own_fence)
        conversation.asked, conversation.closed = bool(conversation.requests), 0
        return conversation.revision

    def note(self, conversation_id: str, conversation: ConversationState, change: Change) -> None:
        """Add a change to the audit trail, if there is one."""
        if self.audit is not None:
            auditing_id = conversation.record.get("auditing_id")
            self.trail.append((conversation.updated, conversation_id, change, auditing_id))
            while self.trail[0][0] < conversation.updated - self.audit * 1e6:
                self.trail.popleft()

    def renew(self, conversation: ConversationState) -> None:
        """Extend the life of a conversation with a time to live."""
        conversation.ttl = self.ttl or conversation.ttl
        if conversation.ttl is not None:
            conversation.ends = time.time() + conversation.ttl

    def deleted_head(self, conversation_id: str) -> Cursor:
        """The head of a conversation that does not exist: its last change before the deletion, if still known."""
        log = self.deleted_logs.get(conversation_id)
        if log:
            return Cursor(BEGINNING.epoch, log[-1].entry.revision, log[-1].entry.token)
        token, until = self.ended.get(conversation_id, ("", 0.0))
        return msgspec.structs.replace(BEGINNING, token=token) if until > time.time() else BEGINNING

    def end(self, conversation_id: str, token: str) -> None:
        """Delete a conversation. `token`: of its last change, the deletion."""
        self._remove(conversation_id, token)
        for kind in FIELDS:  # a late copy of a call that took a lease must not begin it again
            if (runs := self.runs.get((conversation_id, kind))) is not None:
                self.runs[conversation_id, kind] = Runs(fence=runs.fence, last_ids=runs.last_ids)

    def _remove(self, conversation_id: str, token: str) -> None:
        """Remove a conversation, and remember that there was one with this last change."""
        now = time.time()
        for name in [name for name, (_, until) in self.ended.items() if until <= now]:
            del self.ended[name]
            self.drop_runs(name, of_deleted=True)
        self.ended[conversation_id] = token, now + _ENDED
        self.turns.forget(conversation_id)
        del self.conversations[conversation_id]

    def draft(self, token: str) -> Draft:
        """Return the draft of a token, creating it if necessary. Abandoned drafts are removed."""
        oldest = time.time() - _DRAFT_LASTS
        for name in [name for name, draft in self.drafts.items() if draft.touched < oldest]:
            del self.drafts[name]
        return self.drafts.get(token, Draft())

    def drop_draft(self, token: str, *, refuses: bool = False) -> None:
        """Remove a draft, if it exists. `refuses`: refuse the pages that its writer still sends."""
        if refuses:
            self.drafts[token] = Draft(page=-1, touched=time.time())
        elif token in self.drafts and self.drafts[token].page != -1:
            del self.drafts[token]

    def drop_forks(self, conversation_id: str) -> None:
        """Drop the drafts of forks of a conversation, because content was removed for good: see `operations.fork`."""
        for token in [token for token, draft in self.drafts.items() if draft.source == conversation_id]:
            self.drop_draft(token, refuses=True)

    def runs_of(self, conversation_id: str, kind: LeaseKind = "run") -> Runs:
        runs = self.runs.setdefault((conversation_id, kind), Runs())
        before = runs.active
        if runs.refresh():
            self.announce(conversation_id)
        if before is not None and runs.active is None and kind == "run":
            self.turns.died(self, conversation_id, before.fence.fence)
        return runs

    def run_now(self, conversation_id: str) -> tuple[RunInfo | None, float | None]:
        """The newest run, and the seconds until it expires."""
        if (conversation_id, "run") not in self.runs:
            return None, None
        runs = self.runs_of(conversation_id)
        return runs.info(conversation_id), None if runs.active is None else runs.look_in

    def holds(self, conversation_id: str, fence: RunFence) -> bool:
        active = self.runs_of(conversation_id, fence.kind).active
        return active is not None and active.fence == fence

    def ring_first(self, conversation_id: str, runs: Runs) -> None:
        """Wake the first waiters, not the first alone, which may be dead."""
        for waiter, _ in runs.queue[:WOKEN]:
            self.ring(conversation_id, waiter.run_id)

    def announce_run(self, conversation_id: str, kind: LeaseKind) -> None:
        if kind == "run":
            self.announce(conversation_id)

    def drop_runs(self, conversation_id: str, *, of_deleted: bool = False) -> None:
        """End all leases: the conversation is gone. `of_deleted`: forget what its deletion left."""
        for kind in FIELDS:
            runs = self.runs.get((conversation_id, kind))
            if runs is not None and not (of_deleted and (runs.run or runs.queue)):
                del self.runs[conversation_id, kind]

    def drop_old_logs(self) -> None:
        """Drop logs of deleted conversations that no subscription needs."""
        limit = time.time() - _LOG_OUTLIVES if self.watchers_of_all else float("inf")
        for name, at in list(self.deleted.items()):
            if at > limit:
                break
            if (name, "") not in self.watchers:
                self.deleted_logs.pop(name, None)
                del self.deleted[name]
