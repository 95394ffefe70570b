"""The steps of writing operations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

import msgspec

from redis_history.backends.redis.calls import (
    APPEND,
    CLEAR,
    DELETE,
    DELETE_CONVERSATION,
    RECORD,
    SENT,
    UPDATE,
    Call,
    DocumentOf,
    Settings,
    Steps,
    change,
    refused,
    revised,
    write,
)
from redis_history.backends.redis.keys import ConversationKeys, field_of
from redis_history.backends.redis.plan_reads import RECORD_KEYS
from redis_history.backends.redis.search_index import documents_later, documents_of, purge_after
from redis_history.model.wire import COMPRESSED, STREAMING, compress_body, placed
from redis_history.operations import (
    Append,
    Appended,
    Clear,
    DeleteConversation,
    DeleteMessages,
    Entry,
    Restore,
    UpdateMessage,
    WriteRecord,
)

#: How long subscribers can read the change log of a deleted conversation: several poll intervals.
LOG_OUTLIVES_MS: Final = b"60000"


def _append(op: Append, settings: Settings) -> Steps[list[Appended]]:
    keys = settings.keyspace.conversation(op.conversation_id)
    document = None if op.entries[0].flags & STREAMING else settings.document  # a reply is indexed when it ends
    call = Call(APPEND, keys.writing, _added(op, settings, keys, b"0", document), partial(_appended, op), SENT)
    many = document is not None and len(op.entries) > 1
    return write(op, settings, call, partial(_upkeep_after, op, settings, keys, document) if many else None)


def _upkeep_after(
    op: Append | Restore, settings: Settings, keys: ConversationKeys, document: DocumentOf | None, reply: Any
) -> Steps[None]:
    if type(reply) is not list or reply[0] in (b"stored", b"pending"):
        yield from purge_after(keys, reply)
        yield from documents_later(op, settings, document, _revision(reply))


def _revision(reply: bytes | list[Any]) -> int:
    return int(cast(bytes, reply[1] if type(reply) is list else reply).split()[0])


def packed_message(entry: Entry, settings: Settings) -> tuple[bytes, bytes]:
    """A message for the scripts: characters, flags, header byte and tool marks; then the rest of the body."""
    flags, body = entry.flags, entry.body
    if settings.compress and (smaller := compress_body(body)) is not None:
        flags, body = flags | COMPRESSED, smaller
    return entry.characters.to_bytes(3, "big") + bytes((flags, body[0])) + entry.tools, body[1:]


def _added(
    op: Append | Restore, settings: Settings, keys: ConversationKeys, replace: bytes, document: DocumentOf | None
) -> list[bytes]:
    characters = tokens = 0
    rest: list[bytes] = []
    for entry in op.entries:
        characters += entry.characters
        tokens += entry.tokens
        what, body = packed_message(entry, settings)
        time = b"" if entry.timestamp is None else b"%d" % entry.timestamp
        rest += (field_of(entry.message.id), b"%b%b%c" % (what, time, len(time)), body)
    rest += documents_of(op, document)
    most = b"" if settings.max_messages is None else b"%d" % settings.max_messages
    numbers = [b"%d" % number for number in (characters, tokens, len(op.entries))]
    return [*change(op, settings, keys), replace, most, *numbers, *rest]


def _appended(op: Append, reply: bytes | list[Any]) -> list[Appended]:
    stored: dict[int, list[Any]] = {}
    if type(reply) is list:
        if reply[0] != b"stored":
            refused(op, reply)
        stored = {item[0]: item for item in reply[2]}
        reply = reply[1]
    revision, sequence, stamp = map(int, cast(bytes, reply).split())
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
    keys = settings.keyspace.conversation(op.conversation_id)
    args = [*change(op, settings, keys), b"%d" % len(op.message_ids)]
    args += [*map(field_of, op.message_ids), *map(str.encode, op.message_ids)]
    return write(op, settings, Call(DELETE, keys.writing, args, partial(_deleted, op), SENT))


def _deleted(op: DeleteMessages, reply: list[Any]) -> int:
    if type(reply[0]) is bytes:
        refused(op, reply)
    return cast(int, reply[1])


def _delete_conversation(op: DeleteConversation, settings: Settings) -> Steps[bool]:
    keys = settings.keyspace.conversation(op.conversation_id)
    # The script cannot see subscribers that poll, or that listen at another node.
    channel = b"" if settings.doorbell in ("publish", "poll") else settings.doorbell_channel(keys)
    args = [*change(op, settings, keys), LOG_OUTLIVES_MS, channel]
    call = Call(DELETE_CONVERSATION, keys.writing, args, partial(_conversation_deleted, op), SENT)
    return write(op, settings, call, partial(purge_after, keys))


def _conversation_deleted(op: DeleteConversation, reply: list[Any]) -> bool:
    if type(reply[0]) is bytes:
        refused(op, reply)
    return bool(reply[0])


def _restore(op: Restore, settings: Settings) -> Steps[int]:
    keys = settings.keyspace.conversation(op.conversation_id)
    document = settings.document
    call = Call(APPEND, keys.writing, _added(op, settings, keys, b"1", document), partial(_restored, op), SENT)
    return write(op, settings, call, partial(_upkeep_after, op, settings, keys, document))


def _restored(op: Restore, reply: bytes | list[Any]) -> int:
    if type(reply) is list:
        if reply[0] != b"pending":
            refused(op, reply)
        reply = reply[1]
    return int(cast(bytes, reply).split()[0])


def _clear(op: Clear, settings: Settings) -> Steps[int]:
    keys = settings.keyspace.conversation(op.conversation_id)
    call = Call(CLEAR, keys.writing, change(op, settings, keys), partial(revised, op), SENT)
    return write(op, settings, call, partial(purge_after, keys))


def update(op: UpdateMessage, settings: Settings) -> Steps[Appended | None]:
    keys = settings.keyspace.conversation(op.conversation_id)
    entry = op.entry
    message_id = entry.message.id
    args = [*change(op, settings, keys), field_of(message_id), message_id.encode(), *packed_message(entry, settings)]
    if op.reply is not None:
        args[2] = b"reply:%b" % op.reply.token.encode() if op.reply.token else b"settle:%d" % op.reply.size
    document = settings.document
    if document is not None:
        args += document(entry.message, op.vectors[0] if op.vectors else b"")
    return write(op, settings, Call(UPDATE, keys.writing, args, partial(_updated, op), SENT))


def _updated(op: UpdateMessage, reply: bytes | list[Any]) -> Appended | None:
    if type(reply) is list:
        if reply[0] == b"unknown":
            return None
        refused(op, reply)
    revision, sequence, timestamp = map(int, cast(bytes, reply).split())
    return Appended(revision, placed(op.entry.message, sequence, timestamp), False)


def _write_record(op: WriteRecord, settings: Settings) -> Steps[int]:
    keys = settings.keyspace.conversation(op.conversation_id)
    args = [*change(op, settings, keys), b"".join(RECORD_KEYS[name] for name in op.fields)]
    for name, value in op.fields.items():
        args += (RECORD_KEYS[name], msgspec.msgpack.encode(value))
    return write(op, settings, Call(RECORD, keys.writing, args, partial(revised, op), SENT))


PLANS: Final[dict[type, Callable[[Any, Settings], Steps[Any]]]] = {
    Append: _append,
    Clear: _clear,
    DeleteConversation: _delete_conversation,
    DeleteMessages: _delete,
    Restore: _restore,
    UpdateMessage: update,
    WriteRecord: _write_record,
}
