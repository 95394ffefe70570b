"""The record of a conversation: write it, and read it with the totals of the conversation."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from redis_history.errors import ConversationExistsError, ConversationNotFoundError, CorruptDataError, InvalidInputError
from redis_history.store.changelog import Kind
from redis_history.store.memory.space import Space
from redis_history.store.memory.usage import owner_of
from redis_history.store.operations.base import UNREADABLE, Call, Read, Revised, Steps, plain, said_by
from redis_history.store.operations.scripts import WRITING, load_script
from redis_history.store.operations.settings import Settings
from redis_history.store.writes import Precondition
from redis_history.values import Conversation
from redis_history.values._caps import check_caps
from redis_history.values._validation import check_name, check_owner, refuse
from redis_history.values.events import BEGINNING
from redis_history.values.ids import check_conversation_id, new_token
from redis_history.values.message import RECORD_FIELDS
from redis_history.values.times import from_microseconds
from redis_history.values.usage import read_days, sum_of

RECORD: Final = load_script("record", *WRITING, args="fields *values")

#: Limit of the encoded record of a conversation.
MAX_RECORD_BYTES: Final = 100_000

decode_value = msgspec.msgpack.Decoder().decode

#: The record's fields in the state, each a MessagePack value.
RECORD_KEYS: Final = {"user_id": b"U", "agent_name": b"A", "title": b"T", "auditing_id": b"D", "metadata": b"M"}
#: The fields of the state for a Conversation: revision, totals, times, origin of a fork, usage, record.
STATE_FIELDS: Final = (b"r", b"n", b"c", b"k", b"b", b"u", b"F", b"B", b"C", b"%", *RECORD_KEYS.values())


class WriteRecord(Revised, frozen=True):
    """Set fields of a conversation's record (see RECORD_FIELDS); creates the conversation if necessary. The outcome is
    the revision."""

    fields: dict[str, Any]

    @classmethod
    def of(
        cls, conversation_id: str, fields: Mapping[str, Any], *, create: bool, expected_revision: int | None = None
    ) -> WriteRecord:
        """Create a conversation, or set the given fields of an existing one (UNSET: leave the field).

        Raises InvalidConversationIdError, InvalidInputError for fields that cannot be stored.
        """
        written = {name: value for name, value in fields.items() if value is not UNSET}
        check_record(conversation_id, written)
        condition = Precondition.of(expected_revision, must_exist=not create, must_not_exist=create)
        return cls(conversation_id, written, precondition=condition)

    def steps(self, settings: Settings) -> Steps[int]:
        values: list[bytes] = []
        for name, value in self.fields.items():
            values += (RECORD_KEYS[name], msgspec.msgpack.encode(value))
        args = RECORD.args(fields=b"".join(RECORD_KEYS[name] for name in self.fields), values=values)
        return self.send(self.script_call(RECORD, settings, args), settings)

    def apply(self, space: Space) -> int:
        space.check(self.conversation_id, self.precondition)
        conversation = space.find_or_create(self.conversation_id, self.token)
        before = owner_of(conversation.record)
        conversation.record.update(msgspec.msgpack.decode(msgspec.msgpack.encode(self.fields)))
        space.usage.move(conversation.spent, before, owner_of(conversation.record))
        return space.write(self, conversation, Kind.RECORD, fields=self.fields)


def check_record(conversation_id: str, written: dict[str, Any]) -> Conversation:
    """The record with these fields, decoded from the form in which it is stored. Raises InvalidConversationIdError,
    InvalidInputError for fields that cannot be stored."""
    check_conversation_id(conversation_id)
    for name in ("user_id", "auditing_id"):
        check_owner(written.get(name), name)
    for name in ("title", "agent_name"):
        check_name(written.get(name), name)
    try:
        record = Conversation(conversation_id, **written)
        check_caps(msgspec.msgpack.encode(record))  # msgspec limits the depth only before Python 3.12
        stored = msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=Conversation)
    except (TypeError, ValueError, RecursionError, OverflowError, msgspec.MsgspecError, CorruptDataError) as error:
        raise InvalidInputError(f"the metadata of a conversation cannot be stored: {error}") from error
    if stored != record:
        raise InvalidInputError("the metadata of a conversation has values that cannot be stored: use JSON-like values")
    if (size := len(msgspec.msgpack.encode(written))) > MAX_RECORD_BYTES:
        raise InvalidInputError(
            f"the record of a conversation takes at most {MAX_RECORD_BYTES:,} bytes, not {size:,}; "
            "keep less in its metadata"
        )
    return stored


class ReadLife(Struct, Read[str], frozen=True):
    """The generation of a conversation: another `epoch` each time it is created, and one for all that do not exist."""

    conversation_id: str

    def call(self, settings: Settings) -> Call:
        state = settings.keyspace.conversation(self.conversation_id).state
        return plain(b"HGET", state, b"e", decode=_decode_epoch)

    def apply(self, space: Space) -> str:
        conversation = space.find(self.conversation_id)
        return BEGINNING.epoch if conversation is None else conversation.epoch


def _decode_epoch(reply: bytes | None) -> str:
    return BEGINNING.epoch if reply is None else reply.decode()


class ReadConversation(Struct, Read[Conversation | None], frozen=True):
    """The record and the totals of a conversation, or None."""

    conversation_id: str

    def call(self, settings: Settings) -> Call:
        state = settings.keyspace.conversation(self.conversation_id).state
        return plain(b"HMGET", state, *STATE_FIELDS, decode=partial(conversation_of, self.conversation_id))

    def apply(self, space: Space) -> Conversation | None:
        conversation = space.find(self.conversation_id)
        if conversation is None:
            return None
        return Conversation(
            self.conversation_id,
            **msgspec.msgpack.decode(msgspec.msgpack.encode(conversation.record)),
            message_count=len(conversation.live),
            characters=conversation.characters,
            estimated_tokens=conversation.tokens,
            created_at=from_microseconds(conversation.created),
            updated_at=from_microseconds(conversation.updated),
            first_message_at=from_microseconds(conversation.times[0]) if conversation.times else None,
            last_message_at=from_microseconds(conversation.times[1]) if conversation.times else None,
            revision=conversation.revision,
            forked_from=conversation.forked_from,
            usage=sum_of(conversation.spent),
        )


def create_record(conversation: Conversation, exist_ok: bool = False) -> Steps[Conversation]:
    """Create a conversation with its record: see `HistoryStore.create_conversation`."""
    if not isinstance(conversation, Conversation):
        refuse(conversation, "conversation", "a Conversation", InvalidInputError)
    fields = {name: getattr(conversation, name) for name in RECORD_FIELDS}
    op = WriteRecord.of(conversation.conversation_id, fields, create=True)
    while True:
        try:
            return (yield from write_record(op))
        except ConversationExistsError:
            if not exist_ok:
                raise
            present: Conversation | None = yield ReadConversation(op.conversation_id)
            if present is not None:
                return present
            op = replace(op, token=new_token())  # it was deleted since


def change_record(
    conversation_id: str, fields: Mapping[str, Any], expected_revision: int | None = None, by: str | None = None
) -> Steps[Conversation]:
    """Set fields of the record: see `HistoryStore.update_conversation`."""
    op = WriteRecord.of(conversation_id, fields, create=False, expected_revision=expected_revision)
    if not op.fields:
        raise InvalidInputError("update_conversation needs at least one field to set")
    return (yield from write_record(said_by(op, by)))


def write_record(op: Revised) -> Steps[Conversation]:
    """Change the record, and read it."""
    yield op
    conversation: Conversation | None = yield ReadConversation(op.conversation_id)
    if conversation is None:
        raise ConversationNotFoundError(f"conversation {op.conversation_id[:80]!r} was deleted after the change")
    return conversation


def conversation_of(conversation_id: str, values: list[bytes | None]) -> Conversation | None:
    """The conversation with these values of STATE_FIELDS; None if there is none."""
    if values[0] is None:
        return None
    try:
        revision, count, characters, tokens, created, updated = (int(value or 0) for value in values[:6])
        named = zip(RECORD_KEYS, values[10:], strict=True)
        times = [values[6][:7], values[6][7:]] if values[6] else []
        first, last = [from_microseconds(int.from_bytes(time, "big", signed=True)) for time in times] or (None, None)
        return msgspec.convert(
            {
                "conversation_id": conversation_id,
                **{name: decode_value(value) for name, value in named if value is not None},
                "message_count": count,
                "characters": characters,
                "estimated_tokens": tokens,
                "created_at": from_microseconds(created),
                "updated_at": from_microseconds(updated),
                "first_message_at": first,
                "last_message_at": last,
                "revision": revision,
                "forked_from": _origin(values[7], values[8]),
                "usage": sum_of(read_days(values[9])),
            },
            type=Conversation,
        )
    except UNREADABLE as error:
        raise CorruptDataError(f"the record of conversation {conversation_id[:80]!r} is unreadable: {error}") from error


def _origin(conversation_id: bytes | None, rest: bytes | None) -> dict[str, Any] | None:
    if conversation_id is None or rest is None:
        return None
    revision, message_id = decode_value(rest)
    return {"conversation_id": decode_value(conversation_id), "revision": revision, "message_id": message_id}
