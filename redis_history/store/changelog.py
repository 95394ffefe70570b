"""Turns entries of the change log into events, or into a Reset if changes are missing.

The log has references without content: an event has the messages as they are when it is read.

As in Centrifugo, recovery succeeds only if the epoch is the same and no change is missing. A server that lost data may
reuse revisions under the same epoch, so each change also has a token: reading starts at the last entry that the
subscriber knows, which must have the known token.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from msgspec import UNSET, Struct, UnsetType

from redis_history.errors import CorruptDataError
from redis_history.values import Message, Position
from redis_history.values.events import (
    ANEW,
    BEGINNING,
    ConversationDeleted,
    ConversationUpdated,
    Cursor,
    Event,
    HistoryCleared,
    HistoryCompacted,
    HistoryExpanded,
    HistoryRestored,
    MessagesAppended,
    MessagesDeleted,
    MessageUpdated,
    ReplyEnded,
    ReplyGrew,
    Reset,
    ResetReason,
    RunChanged,
    TurnChanged,
)
from redis_history.values.replies import Progress, counts_as_alive, read_records
from redis_history.values.runs import RunInfo
from redis_history.values.turns import Turn

_logger = logging.getLogger("redis_history")


_NOWHERE: Final = Position(0, 0)
_NOTHING: Final[Mapping[int, Progress]] = MappingProxyType({})


class Kind:
    """The kinds of entries. The numbers are stored, so they never change."""

    APPENDED_ONE: Final = 1
    APPENDED: Final = 2
    RESTORED: Final = 3
    UPDATED: Final = 4
    CLEARED: Final = 5
    RECORD: Final = 6
    DELETED: Final = 7
    COMPACTED: Final = 8
    EXPANDED: Final = 9
    ENDED: Final = 10
    REPLY_ENDED: Final = 11
    PUBLISHED: Final = 12


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A change in the log, with its content as it is now.

    `messages`: of appends, restores, updates, ends of replies and compactions. `gone_ids`: known ids of its messages
    that were removed since. `ids`: the deleted messages; those that a cap removed with an append; or the one message of
    an update, end of a reply, compaction or expansion. `count`: of compactions and expansions. `through`: the end of a
    compaction, or the position of an ended reply. `fields`: of the record.
    """

    revision: int
    token: str
    kind: int
    messages: tuple[Message, ...] = ()
    gone_ids: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    count: int = 0
    through: Position = _NOWHERE
    fields: dict[str, Any] = field(default_factory=dict)


class LiveReply(NamedTuple):
    """A streaming reply. `content`: the part that the reader lacks. `size`: bytes of the whole content. `lives`:
    seconds until its writer counts as dead."""

    position: Position
    message_id: str
    content: bytes
    size: int
    lives: float


def token_of(call: str, kind: int = 0, microseconds: int = 0) -> str:
    """The token of a change, from that of its call (16 hexadecimal digits), its kind and its time; for backends other
    than Redis."""
    return f"{kind << 52 | microseconds:014x}{call[:6]}"


def events_of(conversation_id: str, epoch: str, entries: Iterable[LogEntry]) -> list[Event]:
    """The events of entries. An entry without an event, such as the beginning of a fork, is a Reset."""
    events: list[Event] = []
    for entry in entries:
        try:
            events.append(_event(conversation_id, epoch, entry, {}))
        except CorruptDataError:
            reason: ResetReason = "log_trimmed" if entry.kind == Kind.PUBLISHED else "log_unreadable"
            cursor = Cursor(epoch, entry.revision, entry.token)
            events += _reset(conversation_id, cursor, reason).events
    return events


def is_of_call(cursor: Cursor, call: str) -> bool:
    """Whether the call with this token made the change: the change's token ends with the start of the call's."""
    return cursor.token[-6:] == call[:6]


class Changes(Struct, frozen=True):
    """Changes after a cursor, in order; `more`: there are further ones.

    `replies`: how much the reader has now of each reply that is being written, by sequence. `check_in`: seconds after
    which a writer or the holder of the run may have died. `dead`: the positions of replies whose writers
    have died. `run` and `turns`: the newest run and the present turns, if all changes were read. `dead_run`:
    the fence of the run, if its holder is dead and this is not recorded yet.
    """

    events: list[Event]
    more: bool
    replies: dict[int, Progress] = {}
    check_in: float | None = None
    dead: tuple[Position, ...] = ()
    run: RunInfo | None = None
    dead_run: int | None = None
    turns: tuple[Turn, ...] = ()


def recover(
    conversation_id: str,
    after: Cursor,
    head: Cursor,
    entries: list[LogEntry],
    limit: int,
    *,
    former: str = "",
    replies: Sequence[LiveReply] = (),
    had: Mapping[int, Progress] = _NOTHING,
    run: RunInfo | None = None,
    expires: float | None = None,
    known_run: RunInfo | UnsetType | None = UNSET,
    turns: tuple[Turn, ...] = (),
    known_turns: tuple[Turn, ...] = (),
) -> Changes:
    """At most `limit` changes after `after`, or one Reset.

    `entries`: the log from the revision of `after` on. `head`: the conversation's newest change (revision 0: it does
    not exist). `former`: if another conversation of this id ended a short while ago, the token
    of a cursor that was taken since, or "log" if its log still existed when this one began. `replies`: the streaming
    ones, if `entries` end with the newest change. `had`: the reader's progress in them, by sequence. `run`: the newest
    run, and the seconds until it expires; `known_run`: the run that the reader knows, UNSET if it has not read before.
    `turns` and `known_turns`: the present turns, and those that the reader knows.
    """
    reason = _break(after, head, entries, former)
    if reason is not None:
        return _reset(conversation_id, head, reason)
    fresh = entries if after.revision == 0 else entries[1:]
    epoch = head.epoch if after.revision == 0 else after.epoch
    events: list[Event] = []
    progress = {**had}
    for entry in fresh[:limit]:
        if entry.kind == Kind.PUBLISHED:  # it may be too long for an event
            if events:
                break
            return _reset(conversation_id, head, "log_trimmed")
        try:
            events.append(_event(conversation_id, epoch, entry, progress))
        except CorruptDataError as error:
            _logger.error("change %d of conversation %r is unreadable: %s", entry.revision, conversation_id[:80], error)
            if events:
                break  # the next read starts with it
            return _reset(conversation_id, head, "log_unreadable")
    more = bool(events) and events[-1].revision < head.revision
    if more or len(fresh) > limit:
        return Changes(events, more, progress)
    common: dict[str, Any] = {"conversation_id": conversation_id, "revision": head.revision, "cursor": head}
    before_this, progress = progress, {}
    for reply in replies:
        before = before_this.get(reply.position.sequence, Progress())
        if reply.size < before.size:  # a failover has lost text that the reader has
            return _reset(conversation_id, head, "server_rewound", more=True)
        try:
            pieces = read_records(reply.content)
        except CorruptDataError as error:
            _logger.error("reply %r of conversation %r: %s", reply.message_id[:80], conversation_id[:80], error)
            continue
        delta = before.delta(pieces)
        if pieces:
            grew = ReplyGrew(
                message_id=reply.message_id,
                offset=before.characters,
                delta=delta,
                parts=tuple(pieces),
                whole=before.size == 0,
                **common,
            )
            events.append(grew)
        progress[reply.position.sequence] = before.after(pieces, before.size + len(reply.content))
    if run is not None and (run != known_run if known_run is not UNSET else run.is_active):
        events.append(RunChanged(run=run, **common))
    if turns != known_turns and not is_gone(head):
        events.append(TurnChanged(turns=turns, **common))
    lives = [reply.lives for reply in replies if counts_as_alive(reply.lives)]
    if expires is not None:
        lives.append(expires)
    dead = tuple(reply.position for reply in replies if not counts_as_alive(reply.lives))
    return Changes(events, False, progress, min(lives, default=None), dead, run, turns=turns)


def _reset(conversation_id: str, head: Cursor, reason: ResetReason, *, more: bool = False) -> Changes:
    return Changes([Reset(conversation_id=conversation_id, revision=head.revision, cursor=head, reason=reason)], more)


def break_of(conversation_id: str, after: Cursor, head: Cursor, entries: list[LogEntry], former: str) -> list[Event]:
    """A Reset if the log does not continue from the cursor `after`. It takes the arguments of `recover`."""
    reason = _break(after, head, entries, former)
    return [] if reason is None else _reset(conversation_id, head, reason).events


def is_gone(head: Cursor) -> bool:
    """Whether the conversation of a head does not exist (`head.revision` > 0: it was deleted a short while ago)."""
    return head.epoch == BEGINNING.epoch


def _break(after: Cursor, head: Cursor, entries: list[LogEntry], former: str) -> ResetReason | None:
    if after.revision == 0:
        if not entries:
            return "log_trimmed" if head.revision else None
        if entries[0].revision != 1:
            return "log_trimmed"
        if former == "log" or (former and after.token not in (former, ANEW.token)):
            return "conversation_replaced"
    elif not entries or entries[0].revision != after.revision or entries[0].token != after.token:
        if not entries and after == head:
            return None  # the log was lost, but the subscriber has seen all of it
        if is_gone(head):
            return "conversation_missing"
        if head.epoch != after.epoch:
            return "conversation_replaced"
        found_own = bool(entries) and entries[0].revision == after.revision
        return "server_rewound" if found_own or head.revision < after.revision else "log_trimmed"
    for before, entry in pairwise(entries):
        if entry.revision != before.revision + 1:
            return "log_trimmed"
    # Backends read at least one entry after the subscriber's own, if there is one.
    return "log_trimmed" if len(entries) == 1 and after.revision == entries[0].revision < head.revision else None


def _event(conversation_id: str, epoch: str, entry: LogEntry, progress: dict[int, Progress]) -> Event:
    common: dict[str, Any] = {
        "conversation_id": conversation_id,
        "revision": entry.revision,
        "cursor": Cursor(epoch, entry.revision, entry.token),
    }
    message = entry.messages[0] if entry.messages else None
    lists: dict[str, Any] = {"messages": entry.messages, "removed_ids": entry.ids, "gone_ids": entry.gone_ids}
    match entry.kind:
        case Kind.APPENDED_ONE | Kind.APPENDED:
            return MessagesAppended(**lists, **common)
        case Kind.RESTORED:
            return HistoryRestored(**lists, **common)
        case Kind.UPDATED:
            return MessageUpdated(message_id=entry.ids[0], message=message, **common)
        case Kind.REPLY_ENDED:
            before = progress.pop(entry.through.sequence, Progress())
            offset, delta = before.characters, ""
            if message is not None:
                # An edit, for example a redaction, replaces the reader's text.
                offset = offset if before.is_in(message.text) else 0
                delta = message.text[offset:]
            return ReplyEnded(message_id=entry.ids[0], message=message, offset=offset, delta=delta, **common)
        case Kind.CLEARED:
            return HistoryCleared(**common)
        case Kind.RECORD:
            return ConversationUpdated(fields=entry.fields, **common)
        case Kind.DELETED:
            return MessagesDeleted(message_ids=entry.ids, **common)
        case Kind.COMPACTED:
            summary_id, through = entry.ids[0], entry.through
            return HistoryCompacted(
                summary_id=summary_id, summary=message, through=through, count=entry.count, **common
            )
        case Kind.EXPANDED:
            return HistoryExpanded(summary_id=entry.ids[0], count=entry.count, **common)
        case Kind.ENDED:
            return ConversationDeleted(**common)
    raise CorruptDataError(f"unknown kind of change {entry.kind}; did a newer version write it?")
