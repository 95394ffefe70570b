"""The steps of writing operations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

import msgspec
from msgspec.structs import replace

from redis_history.backends.redis.plan_reads import RECORD_KEYS
from redis_history.backends.redis.search_index import documents_later, documents_of, purge_after
from redis_history.model.ids import new_token
from redis_history.model.wire import COMPRESSED, STREAMING, compress_body, placed
from redis_history.operations import (
    Append,
    Appended,
    Clear,
    DeleteConversation,
    DeleteMessages,
    Entry,
    EraseMessages,
    Restore,
    UpdateMessage,
    WriteRecord,
    rules,
)
from redis_history.operations.base import (
    APPEND,
    CLEAR,
    DELETE,
    DELETE_CONVERSATION,
    RECORD,
    TRIM,
    UPDATE,
    DocumentOf,
    Settings,
    Steps,
    refused,
    revised,
    revision_in,
    write,
    write_call,
)
from redis_history.operations.keys import field_of

#: How long subscribers can read the change log of a deleted conversation: several poll intervals.
LOG_OUTLIVES_MS: Final = b"60000"


def _append(op: Append, settings: Settings) -> Steps[list[Appended]]:
    return _append_once(op, settings, b"0") if settings.max_messages is None else _append_capped(op, settings)


def _append_once(op: Append, settings: Settings, how: bytes) -> Steps[Any]:
    document = None if op.entries[0].flags & STREAMING else settings.document  # a reply is indexed when it ends
    call = write_call(APPEND, op, settings, _added(op, settings, how, document), _appended)
    many = document is not None and len(op.entries) > 1
    return write(op, settings, call, partial(_upkeep_after, op, settings, document) if many else None)


def _append_capped(op: Append, settings: Settings) -> Steps[list[Appended]]:
    """Before an append to a conversation that is far above its cap, removes the oldest messages in short changes."""
    outcome: list[Appended] | None = yield from _append_once(op, settings, b"0")
    if outcome is not None:
        return outcome
    removed = 1
    while removed:
        revision, removed = yield from _trim(op, settings)
        if removed and op.precondition.expected_revision is not None:  # what has changed is our doing
            op = replace(op, precondition=replace(op.precondition, expected_revision=revision))
    return cast(list[Appended], (yield from _append_once(op, settings, b"2")))


def _trim(op: Append, settings: Settings) -> Steps[tuple[int, int]]:
    """Removes some of the oldest messages. Returns the revision, and their number."""
    op = replace(op, token=new_token())
    return write(op, settings, write_call(TRIM, op, settings, [b"%d" % (settings.max_messages or 0)], _trimmed))


def _trimmed(op: Append, reply: list[Any]) -> tuple[int, int]:
    if type(reply[0]) is bytes:
        refused(op, reply)
    return reply[0], reply[1]


def _upkeep_after(op: Append | Restore, settings: Settings, document: DocumentOf | None, reply: Any) -> Steps[None]:
    if type(reply) is not list or reply[0] in (b"stored", b"pending"):
        yield from purge_after(settings.keyspace.conversation(op.conversation_id), reply)
        yield from documents_later(op, settings, document, revision_in(reply))


def packed_message(entry: Entry, settings: Settings) -> tuple[bytes, bytes]:
    """A message for the scripts: characters, flags, header byte and tool marks; then the rest of the body."""
    flags, body = entry.flags, entry.body
    if settings.zstd and (smaller := compress_body(body)) is not None:
        flags, body = flags | COMPRESSED, smaller
    return entry.characters.to_bytes(3, "big") + bytes((flags, body[0])) + entry.tools, body[1:]


def _added(op: Append | Restore, settings: Settings, replace: bytes, document: DocumentOf | None) -> list[bytes]:
    characters = tokens = 0
    rest: list[bytes] = []
    for entry in op.entries:
        characters += entry.characters
        tokens += entry.tokens
        head, body = packed_message(entry, settings)
        if entry.timestamp is None:
            head += b"\0"
        else:
            time = b"%d" % entry.timestamp
            head += b"%b%c" % (time, len(time))
        rest += (field_of(entry.message.id), head, body)
    rest += documents_of(op, document)
    most = b"" if settings.max_messages is None else b"%d" % settings.max_messages
    numbers = [b"%d" % number for number in (characters, tokens, len(op.entries))]
    return [replace, most, *numbers, *rest]


def _appended(op: Append, reply: bytes | list[Any]) -> list[Appended] | None:
    """The outcome; None if messages must be removed before."""
    stored: dict[int, list[Any]] = {}
    if type(reply) is list:
        if reply[0] == b"trim":
            return None
        if reply[0] != b"stored":
            refused(op, reply)
        stored = {item[0]: item for item in reply[2]}
        reply = reply[1]
    revision, sequence, stamp, *pins = cast(bytes, reply).split()
    if pins:
        rules.warn_of_pins(op.conversation_id)
    return _placed(op, stored, int(revision), int(sequence), int(stamp))


def _placed(op: Append, stored: dict[int, list[Any]], revision: int, sequence: int, stamp: int) -> list[Appended]:
    outcome = []
    for index, entry in enumerate(op.entries):
        if stored and (before := stored.get(index)) is not None:
            message = placed(entry.message, before[2], int(before[3])) if before[2] else entry.message
            outcome.append(Appended(before[1], message, not before[4]))
            continue
        timestamp = entry.timestamp
        if timestamp is None:
            timestamp = stamp
            stamp += 1
        outcome.append(Appended(revision, placed(entry.message, sequence, timestamp), False))
        sequence += 1
    return outcome


def _delete(op: DeleteMessages, settings: Settings) -> Steps[int]:
    args = [*_ids(op.message_ids), b""]
    return write(op, settings, write_call(DELETE, op, settings, args, _deleted))


def _erase(op: EraseMessages, settings: Settings) -> Steps[int | str]:
    args = [*_ids(op.message_ids), b"none" if op.forced else b"live"]
    return write(op, settings, write_call(DELETE, op, settings, args, _erased))


def _ids(ids: tuple[str, ...]) -> list[bytes]:
    return [b"%d" % len(ids), *map(field_of, ids), *map(str.encode, ids)]


def _deleted(op: DeleteMessages, reply: list[Any]) -> int:
    if type(reply[0]) is bytes:
        refused(op, reply)
    return cast(int, reply[1])


def _erased(op: EraseMessages, reply: list[Any]) -> int | str:
    if reply[0] == b"quoted":
        return cast(bytes, reply[1]).decode()
    if type(reply[0]) is bytes:
        refused(op, reply)
    return cast(int, reply[1])


def _delete_conversation(op: DeleteConversation, settings: Settings) -> Steps[bool]:
    keys = settings.keyspace.conversation(op.conversation_id)
    # The script cannot see subscribers at another node, which hear only what is published.
    channel = b"" if settings.ringing.publishes else settings.notifications + keys.log
    call = write_call(DELETE_CONVERSATION, op, settings, [LOG_OUTLIVES_MS, channel], _conversation_deleted)
    return write(op, settings, call, partial(purge_after, keys))


def _conversation_deleted(op: DeleteConversation, reply: list[Any]) -> bool:
    if type(reply[0]) is bytes:
        refused(op, reply)
    return bool(reply[0])


def _restore(op: Restore, settings: Settings) -> Steps[int]:
    document = settings.document
    call = write_call(APPEND, op, settings, _added(op, settings, b"1", document), _restored)
    return write(op, settings, call, partial(_upkeep_after, op, settings, document))


def _restored(op: Restore, reply: bytes | list[Any]) -> int:
    if type(reply) is list:
        if reply[0] != b"pending":
            refused(op, reply)
        reply = reply[1]
    return int(cast(bytes, reply).split()[0])


def _clear(op: Clear, settings: Settings) -> Steps[int]:
    keys = settings.keyspace.conversation(op.conversation_id)
    return write(op, settings, write_call(CLEAR, op, settings, (), revised), partial(purge_after, keys))


def update(op: UpdateMessage, settings: Settings) -> Steps[Appended | None]:
    message = op.entry.message
    args = [field_of(message.id), message.id.encode(), *packed_message(op.entry, settings)]
    document = settings.document
    if document is not None:
        args += document(message, op.vectors[0] if op.vectors else b"")
    call = write_call(UPDATE, op, settings, args, _updated)
    if op.reply is not None:  # in place of 'exists', 'absent' or a lease
        what = b"reply:%b" % op.reply.token.encode() if op.reply.token else b"settle:%d" % op.reply.size
        call.args[2] = what + b";" + call.args[2] if call.args[2] else what
    return write(op, settings, call)


def _updated(op: UpdateMessage, reply: bytes | list[Any]) -> Appended | None:
    if type(reply) is list:
        if reply[0] == b"unknown":
            return None
        refused(op, reply)
    revision, sequence, timestamp = map(int, cast(bytes, reply).split())
    return Appended(revision, placed(op.entry.message, sequence, timestamp), False)


def _write_record(op: WriteRecord, settings: Settings) -> Steps[int]:
    args = [b"".join(RECORD_KEYS[name] for name in op.fields)]
    for name, value in op.fields.items():
        args += (RECORD_KEYS[name], msgspec.msgpack.encode(value))
    return write(op, settings, write_call(RECORD, op, settings, args, revised))


PLANS: Final[dict[type, Callable[[Any, Settings], Steps[Any]]]] = {
    Append: _append,
    Clear: _clear,
    DeleteConversation: _delete_conversation,
    DeleteMessages: _delete,
    EraseMessages: _erase,
    Restore: _restore,
    UpdateMessage: update,
    WriteRecord: _write_record,
}
