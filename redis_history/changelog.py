"""The change log: from stored entries to events, and when a Reset must replace them.

As in Centrifugo, recovery succeeds only if the epoch is the same and the whole gap is present. A server that lost data
may count up again under the same epoch, so each change has a random token: the log is read from the last entry that the
subscriber knows, which must still have the known token.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import msgspec

from redis_history.errors import CorruptDataError
from redis_history.events import (
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
    Reset,
    ResetReason,
)
from redis_history.model import Message
from redis_history.model.wire import decode_member
from redis_history.operations import Changes

__all__ = [
    "APPENDED",
    "CLEARED",
    "COMPACTED",
    "CONVERSATION_DELETED",
    "DELETED",
    "EXPANDED",
    "RECORD",
    "RESTORED",
    "UPDATED",
    "LogEntry",
    "encode_compacted",
    "encode_expanded",
    "encode_ids",
    "encode_members",
    "is_gone",
    "recover",
]

_logger = logging.getLogger("redis_history")

# The kinds of entries. They are stored, so their meaning never changes.
APPENDED: Final = "append"
RESTORED: Final = "restore"
UPDATED: Final = "update"
CLEARED: Final = "clear"
RECORD: Final = "record"
DELETED: Final = "delete"
COMPACTED: Final = "compact"
EXPANDED: Final = "expand"
CONVERSATION_DELETED: Final = "end"

_ids = msgspec.msgpack.Decoder(tuple[str, ...])
_fields = msgspec.msgpack.Decoder(dict[str, Any])
_compacted = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw])
_expanded = msgspec.msgpack.Decoder(tuple[str, int])
_raw_members = msgspec.msgpack.Decoder(tuple[msgspec.Raw, ...])


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A change in the log.

    `payload` is a MessagePack array of members (append, restore, update) or of ids (delete), or a map (record), or a
    pair of a number of messages and a member (compact), or of an id and a number of messages (expand). `removed` is an
    array of the ids that a cap removed. `replaces` marks the first entry of a conversation that replaced a deleted one
    whose log still existed.
    """

    revision: int
    token: str
    kind: str
    payload: bytes
    replaces: bool = False
    removed: bytes = b""


def encode_members(members: list[bytes]) -> bytes:
    """The payload of an append."""
    return b"\xdd" + len(members).to_bytes(4, "big") + b"".join(members)


def encode_ids(ids: list[str]) -> bytes:
    """The payload of a delete."""
    return msgspec.msgpack.encode(ids)


def encode_compacted(count: int, member: bytes) -> bytes:
    """The payload of a compaction; the scripts of Redis write the same."""
    return b"\x92\xce" + count.to_bytes(4, "big") + member


def encode_expanded(summary_id: str, count: int) -> bytes:
    """The payload of an expansion."""
    return b"\x92" + msgspec.msgpack.encode(summary_id) + b"\xce" + count.to_bytes(4, "big")


def recover(conversation_id: str, after: Cursor, head: Cursor, entries: list[LogEntry], limit: int) -> Changes:
    """The changes after `after`, from log entries that begin at its own revision; or one Reset.

    `head` is the conversation's newest change (revision 0: there is no such conversation). At most `limit` events.
    """
    reason = _break(after, head, entries)
    if reason is not None:
        return _reset(conversation_id, head, reason)
    if after.revision == 0:
        epoch = entries[0].token if entries else ""
        fresh = entries
    else:
        epoch = after.epoch
        fresh = entries[1:]
    events: list[Event] = []
    for entry in fresh[:limit]:
        try:
            events.append(_event(conversation_id, epoch, entry))
        except CorruptDataError as error:
            _logger.error("change %d of conversation %r is unreadable: %s", entry.revision, conversation_id[:80], error)
            if events:
                break  # the next read begins with it
            return _reset(conversation_id, head, "log_unreadable")
    return Changes(events, more=bool(events) and events[-1].revision < head.revision)


def _reset(conversation_id: str, head: Cursor, reason: ResetReason) -> Changes:
    return Changes([Reset(conversation_id=conversation_id, revision=head.revision, cursor=head, reason=reason)], False)


def is_gone(head: Cursor) -> bool:
    """Whether a head is that of no conversation (`head.revision` > 0: of one deleted a short while ago)."""
    return head.epoch == BEGINNING.epoch


def _break(after: Cursor, head: Cursor, entries: list[LogEntry]) -> ResetReason | None:
    if after.revision == 0:
        if not entries:
            return "log_trimmed" if head.revision else None
        if entries[0].revision != 1:
            return "log_trimmed"
        if entries[0].replaces:
            return "conversation_replaced"
    elif not entries or entries[0].revision != after.revision or entries[0].token != after.token:
        if not entries and after == head:
            return None  # the log's key was lost, but the subscriber has seen all that was in it
        if is_gone(head):
            return "conversation_missing"
        if head.epoch != after.epoch:
            return "conversation_replaced"
        found_own = bool(entries) and entries[0].revision == after.revision
        return "server_rewound" if found_own or head.revision < after.revision else "log_trimmed"
    for before, entry in pairwise(entries):
        if entry.revision != before.revision + 1:
            return "log_trimmed"
    # Backends read at least one entry behind the subscriber's own, if there is one.
    return "log_trimmed" if len(entries) == 1 and after.revision == entries[0].revision < head.revision else None


def _event(conversation_id: str, epoch: str, entry: LogEntry) -> Event:
    place: dict[str, Any] = {
        "conversation_id": conversation_id,
        "revision": entry.revision,
        "cursor": Cursor(epoch, entry.revision, entry.token),
    }
    try:
        if entry.kind in (APPENDED, RESTORED):
            kind = MessagesAppended if entry.kind == APPENDED else HistoryRestored
            removed = _ids.decode(entry.removed) if entry.removed else ()
            return kind(messages=_messages(entry), removed_ids=removed, **place)
        if entry.kind == UPDATED and (messages := _messages(entry)):
            return MessageUpdated(message=messages[0], **place)
        if entry.kind == CLEARED:
            return HistoryCleared(**place)
        if entry.kind == RECORD:
            return ConversationUpdated(fields=_fields.decode(entry.payload), **place)
        if entry.kind == DELETED:
            return MessagesDeleted(message_ids=_ids.decode(entry.payload), **place)
        if entry.kind == COMPACTED:
            count, member = _compacted.decode(entry.payload)
            return HistoryCompacted(summary=decode_member(bytes(member)), count=count, **place)
        if entry.kind == EXPANDED:
            summary_id, count = _expanded.decode(entry.payload)
            return HistoryExpanded(summary_id=summary_id, count=count, **place)
        if entry.kind == CONVERSATION_DELETED:
            return ConversationDeleted(**place)
    except msgspec.MsgspecError as error:
        raise CorruptDataError(str(error)) from error
    raise CorruptDataError(f"nothing that this version of redis_history writes (its kind is {entry.kind[:20]!r})")


def _messages(entry: LogEntry) -> tuple[Message, ...]:
    found = []
    for raw in _raw_members.decode(entry.payload):
        try:
            found.append(decode_member(bytes(raw)))
        except CorruptDataError as error:
            _logger.error("skipped an unreadable message in change %d: %s", entry.revision, error)
    return tuple(found)
