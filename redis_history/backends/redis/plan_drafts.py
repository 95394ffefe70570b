"""The steps of drafts: conversations that are written in several parts, and become visible at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from redis_history.backends.redis.plan_reads import RECORD_KEYS
from redis_history.model.message import RECORD_FIELDS
from redis_history.model.times import to_microseconds
from redis_history.model.wire import COMPRESSED, compress_body, encode_member
from redis_history.operations import Archive, DropDraft, Entry, Layout, Publish, ReadLayout, WriteDraft
from redis_history.operations.base import (
    ARCHIVES,
    DRAFT,
    PUBLISH,
    Call,
    Settings,
    Steps,
    plain,
    refused,
    write,
    write_call,
)
from redis_history.operations.keys import ConversationKeys, extend_keys, field_of, pack_keys

#: Until a draft that nobody continues is removed.
_DRAFT_LASTS_MS: Final = b"600000"


def read_layout(op: ReadLayout, settings: Settings) -> Call:
    keys = settings.keyspace.conversation(op.conversation_id)
    return Call(ARCHIVES, pack_keys(keys.state), [], _layout)


def _layout(reply: list[bytes]) -> Layout | None:
    if not reply:
        return None
    ttl, *rest = reply
    archives = (
        Archive(int(rest[at]), rest[at + 1].decode() or None, rest[at + 2].decode() or None)
        for at in range(0, len(rest), 3)
    )
    return Layout(tuple(archives), int(ttl) / 1000 if ttl else None)


def _set_of(keys: ConversationKeys, token: str, archive: int) -> bytes:
    return b"%b:%d" % (keys.draft(token), archive)


def write_draft(op: WriteDraft, settings: Settings) -> Call:
    keys = settings.keyspace.conversation(op.conversation_id)
    args = [b"%d" % op.page, _DRAFT_LASTS_MS, b"%d" % len(op.removed)]
    for message_id, (timestamp, sequence) in op.removed:
        args += (b"%d" % timestamp, b"%d" % sequence, field_of(message_id))
    mark = bytes.fromhex(op.token[:6])
    for entry in op.entries:
        timestamp, sequence = entry.timestamp or 0, entry.message.sequence or 0
        place = timestamp.to_bytes(7, "big", signed=True) + mark + _packed(sequence) + _packed(op.revision)
        args += (b"%d" % timestamp, _member(entry, settings), field_of(entry.message.id), place + entry.tools)
    return Call(DRAFT, pack_keys(keys.draft(op.token), _set_of(keys, op.token, op.archive)), args, bool)


def _member(entry: Entry, settings: Settings) -> bytes:
    flags, body = entry.flags, entry.body
    if settings.zstd and (smaller := compress_body(body)) is not None:
        flags, body = flags | COMPRESSED, smaller
    return encode_member(entry.message.sequence or 0, entry.characters, flags, entry.timestamp or 0, body)


def _packed(number: int) -> bytes:
    """As `pack_number` of lua/_change.lua."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def drop_draft(op: DropDraft, settings: Settings) -> Call:
    keys = settings.keyspace.conversation(op.conversation_id)
    sets = (_set_of(keys, op.token, archive) for archive in (0, *op.archives))
    return plain(b"UNLINK", keys.draft(op.token), *sets, decode=lambda _: None)


def _publish(op: Publish, settings: Settings) -> Steps[bool]:
    keys, record = settings.keyspace.conversation(op.conversation_id), op.record
    times = [one.times for one in (op.live, *(held for _, held in op.archives)) if one.times is not None]
    fields: dict[bytes, bytes] = {
        b"c": b"%d" % op.live.characters,
        b"k": b"%d" % op.live.tokens,
        b"q": b"%d" % op.sequence,
    }
    if times:
        bounds = min(first for first, _ in times), max(last for _, last in times)
        fields[b"F"] = b"".join(time.to_bytes(7, "big", signed=True) for time in bounds)
    for name in RECORD_FIELDS:
        if (value := getattr(record, name)) not in (None, {}):
            fields[RECORD_KEYS[name]] = msgspec.msgpack.encode(value)
    if record.forked_from is not None:
        fields[b"B"] = msgspec.msgpack.encode(record.forked_from.conversation_id)
        fields[b"C"] = msgspec.msgpack.encode((record.forked_from.revision, record.forked_from.message_id))
    fields |= _fields_of_archives(op)
    ttl = b"" if op.ttl is None or settings.ttl is not None else b"%d" % round(op.ttl * 1000)
    moments = (record.created_at, record.updated_at)
    args = [
        b"%d" % op.page,
        *(b"" if time is None else b"%d" % to_microseconds(time) for time in moments),
        b"%d" % record.revision,
        b"%d" % op.live.messages,
        b"%d" % len(op.archives),
        *(b"%d" % held.messages for _, held in op.archives),
        *(part for pair in fields.items() for part in pair),
    ]
    call = write_call(PUBLISH, op, settings, args, _published)
    if ttl:
        call.args[5] = ttl
    sets = [keys.draft(op.token), _set_of(keys, op.token, 0)]
    for archive, _ in op.archives:
        sets += (_set_of(keys, op.token, archive.number), keys.archive(archive.number))
    return write(op, settings, replace(call, keys=extend_keys(call.keys, sets)))


def _fields_of_archives(op: Publish) -> dict[bytes, bytes]:
    """The fields of the state: see lua/_archive.lua."""
    if not op.archives:
        return {}
    fields, listed, documents = {}, b"", 0
    for archive, held in op.archives:
        first, last = held.times or (0, 0)
        listed += b"%d %d %d;" % (archive.number, first, last)
        size = f"{held.messages} {held.characters} {held.tokens} {op.token}"
        if archive.former is not None:
            size += f" {archive.former}"
            documents -= 1
        documents += held.messages
        fields[b"#%d" % archive.number] = size.encode()
        if archive.summary_id is not None:
            fields[b"^" + archive.summary_id.encode()] = b"%d" % archive.number
    newest = op.archives[-1][0].summary_id
    if newest is not None:
        fields[b"s"] = newest.encode()
    return fields | {b"w": listed, b"m": b"%d" % documents, b"a": b"0"}


def _published(op: Publish, reply: int | list[Any]) -> bool:
    if type(reply) is list:
        if reply[0] == b"lost":
            return False
        refused(op, reply)
    return True


CALLS: Final[dict[type, Callable[[Any, Settings], Call]]] = {
    DropDraft: drop_draft,
    ReadLayout: read_layout,
    WriteDraft: write_draft,
}
PLANS: Final[dict[type, Callable[[Any, Settings], Steps[Any]]]] = {Publish: _publish}
