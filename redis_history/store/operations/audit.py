"""The audit trail: what was changed, when and by whom, also in conversations that were deleted since. It has no
content."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from msgspec import Struct

from redis_history.store.changelog import Kind
from redis_history.store.memory.space import Change, Space
from redis_history.store.operations.base import UNREADABLE, Call, Op, Steps, plain
from redis_history.store.operations.keys import Keyspace
from redis_history.store.operations.listing import Bucket, has_more, merged, refill
from redis_history.store.operations.read_changes import SIZES
from redis_history.store.operations.record import RECORD_KEYS, decode_value
from redis_history.store.operations.settings import Settings
from redis_history.values.times import from_microseconds

#: Changes of a bucket that are read together.
_CHUNK: Final = 200
_WHAT: Final = {
    Kind.APPENDED_ONE: "messages_appended",
    Kind.APPENDED: "messages_appended",
    Kind.RESTORED: "history_restored",
    Kind.UPDATED: "message_updated",
    Kind.CLEARED: "history_cleared",
    Kind.RECORD: "conversation_updated",
    Kind.DELETED: "messages_deleted",
    Kind.COMPACTED: "history_compacted",
    Kind.EXPANDED: "history_expanded",
    Kind.ENDED: "conversation_deleted",
    Kind.REPLY_ENDED: "reply_ended",
    Kind.PUBLISHED: "conversation_copied",
}


class AuditEntry(Struct, frozen=True, kw_only=True):
    """A change of `conversation_id` in the audit trail, at `changed_at`.

    `change` is the `event` of its kind in JSON, such as "message_updated", or "conversation_copied" (a fork or an
    import). `message_ids` are the messages that were changed, deleted or summarized, `fields` the names of changed
    fields of the record. `by` is who made the change, if the caller said so, and `auditing_id` that of the conversation
    then."""

    changed_at: datetime
    conversation_id: str
    change: str
    auditing_id: int | str | None = None
    message_ids: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    by: str | None = None


class ReadTrail(Struct, Op[list[AuditEntry]], frozen=True):
    """The newest changes in the audit trail, newest first."""

    limit: int
    conversation_id: str | None = None
    auditing_id: int | str | None = None
    by: str | None = None
    since: int | None = None
    before: int | None = None

    def has(self, time: int, entry: AuditEntry) -> bool:
        return (
            self.conversation_id in (None, entry.conversation_id)
            and self.auditing_id in (None, entry.auditing_id)
            and self.by in (None, entry.by)
            and (self.since is None or time > self.since)
            and (self.before is None or time < self.before)
        )

    def steps(self, settings: Settings) -> Steps[list[AuditEntry]]:
        keys = settings.keyspace.trails()
        if self.conversation_id is not None:
            keys = [keys[Keyspace.bucket_of(self.conversation_id)]]
        buckets: Sequence[Bucket] = [_Trail(key) for key in keys]
        found: list[AuditEntry] = []
        seen: set[tuple[bytes, bytes]] = set()
        while len(found) < self.limit and has_more(buckets):
            yield from refill(buckets, _CHUNK)
            for time, raw, key in merged(buckets):
                if self.since is not None and time <= self.since:
                    return found[: self.limit]
                if (key, raw) not in seen:  # changes during the read shift the others
                    seen.add((key, raw))
                    entry = _entry_of(raw)
                    if entry is not None and self.has(int(time), entry):
                        found.append(entry)
        return found[: self.limit]

    def apply(self, space: Space) -> list[AuditEntry]:
        trail = reversed(space.trail)
        found = ((time, _entry_in_memory(name, change, auditing_id)) for time, name, change, auditing_id in trail)
        return [entry for time, entry in found if self.has(time, entry)][: self.limit]


class _Trail(Bucket):
    """The progress in one bucket's trail, from its end."""

    def read(self, count: int) -> Call:
        first, last = b"%d" % -(self.start + count), b"%d" % -(self.start + 1)
        return plain(b"LRANGE", self.key, first, last, decode=_timed)


def _timed(reply: list[bytes]) -> list[tuple[float, bytes]]:
    return [(float(_time_of(_split(raw)[2])), raw) for raw in reversed(reply)]


def _split(raw: bytes) -> tuple[bytes, bytes, bytes]:
    """The name of the conversation, its auditing id, and the entry of the log."""
    size = int.from_bytes(raw[:2], "big")
    name, rest = raw[2 : 2 + size], raw[2 + size :]
    size = int.from_bytes(rest[:2], "big")
    return name, rest[2 : 2 + size], rest[2 + size :]


def _time_of(entry: bytes) -> int:
    return int.from_bytes(entry[:7], "big") % (1 << 52)


def _entry_of(raw: bytes) -> AuditEntry | None:
    """The change, or None if it is damaged."""
    try:
        name, auditing_id, entry = _split(raw)
        kind, rest = entry[0] >> 4, entry[10:]
        by: str | None = None
        ids: tuple[str, ...] = ()
        fields: tuple[str, ...] = ()
        if kind in (Kind.RECORD, Kind.CLEARED, Kind.PUBLISHED):
            names, _, said = rest.partition(b"\0")
            known = {key: name for name, key in RECORD_KEYS.items()}
            by, fields = said.decode() or None, tuple(known[names[at : at + 1]] for at in range(len(names)))
        elif kind in SIZES:
            values: list[Any] = decode_value(rest)
            by = values[SIZES[kind]] if len(values) > SIZES[kind] else None
            if kind == Kind.DELETED:
                ids = tuple(values[0])
            elif kind in (Kind.UPDATED, Kind.REPLY_ENDED, Kind.COMPACTED, Kind.EXPANDED):
                ids = (values[0],)
            elif kind in (Kind.APPENDED, Kind.RESTORED):
                ids = tuple(values[2])
        return AuditEntry(
            changed_at=from_microseconds(_time_of(entry)),
            conversation_id=Keyspace.name_to_id(name),
            change=_WHAT[kind],
            auditing_id=decode_value(auditing_id) if auditing_id else None,
            message_ids=ids,
            fields=fields,
            by=by,
        )
    except UNREADABLE:
        return None


def _entry_in_memory(conversation_id: str, change: Change, auditing_id: int | str | None) -> AuditEntry:
    return AuditEntry(
        changed_at=from_microseconds(_time_of(bytes.fromhex(change.entry.token))),
        conversation_id=conversation_id,
        change=_WHAT[change.entry.kind],
        auditing_id=auditing_id,
        message_ids=change.entry.ids,
        fields=change.fields,
        by=change.entry.by,
    )
