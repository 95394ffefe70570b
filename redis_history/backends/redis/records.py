"""The record and the totals of a conversation: their fields in its state, read and written. Pure: no I/O here."""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from redis_history._time import from_microseconds
from redis_history.backends.redis.calls import SENT, Call, Settings, Steps, change, revised, write
from redis_history.backends.redis.scripts import RECORD
from redis_history.errors import CorruptDataError
from redis_history.model import Conversation
from redis_history.operations import ReadConversation, WriteRecord

__all__ = ["STATE_FIELDS", "conversation_of", "read_conversation", "write_record"]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode

#: The record's fields in the state, each a MessagePack value.
_RECORD_KEYS: Final = {"user_id": b"U", "agent_name": b"A", "title": b"T", "auditing_id": b"D", "metadata": b"M"}
#: What is read of a state to tell a conversation: revision, totals, times, record.
STATE_FIELDS: Final = (b"r", b"n", b"c", b"k", b"b", b"u", *_RECORD_KEYS.values())


def write_record(op: WriteRecord, settings: Settings) -> Steps[int]:
    keys = settings.keyspace.conversation(op.conversation_id)
    args = [*change(op, settings, keys), _encode(op.fields)]
    for name, value in op.fields.items():
        args += (_RECORD_KEYS[name], _encode(value))
    return write(op, settings, Call(RECORD, keys.writing, args, partial(revised, op), SENT))


def read_conversation(op: ReadConversation, settings: Settings) -> Call:
    state = settings.keyspace.conversation(op.conversation_id).state
    return Call(None, b"", [b"HMGET", state, *STATE_FIELDS], partial(conversation_of, op.conversation_id))


def conversation_of(conversation_id: str, values: list[bytes | None]) -> Conversation | None:
    """The conversation whose STATE_FIELDS have these values; None if there is none."""
    if values[0] is None:
        return None
    try:
        revision, count, characters, tokens, created, updated = (int(value or 0) for value in values[:6])
        named = zip(_RECORD_KEYS, values[6:], strict=True)
        return msgspec.convert(
            {
                "conversation_id": conversation_id,
                **{name: _decode(value) for name, value in named if value is not None},
                "message_count": count,
                "characters": characters,
                "tokens": tokens,
                "created_at": from_microseconds(created),
                "updated_at": from_microseconds(updated),
                "revision": revision,
            },
            type=Conversation,
        )
    except (ValueError, msgspec.MsgspecError) as error:
        raise CorruptDataError(f"the record of conversation {conversation_id[:80]!r} is unreadable: {error}") from error
