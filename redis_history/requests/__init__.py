"""Checks and converts what users pass, before anything is sent: bounds, cursors, filters and owners of reads, and the
operations of writes. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec
import orjson
from msgspec import UNSET

from redis_history._ids import check_conversation_id, check_message_id
from redis_history._time import to_microseconds
from redis_history._validation import MAX_INTEGER, MIN_INTEGER, check_integer, check_owner, is_integer, refuse
from redis_history.errors import (
    BatchTooLargeError,
    InvalidCursorError,
    InvalidInputError,
    InvalidMessageError,
    MessageConflictError,
    MessageTooLargeError,
)
from redis_history.events import Cursor
from redis_history.model import Conversation, Message, Part, Position, Role, Scope
from redis_history.model.helpers import MessageFields
from redis_history.model.pairs import marks
from redis_history.model.ranges import stays
from redis_history.model.wire import MAX_MESSAGE_BYTES, body_digest, encode_body, flags_of
from redis_history.operations import (
    ANY,
    Append,
    Compact,
    DeleteMessages,
    Entry,
    Precondition,
    Restore,
    UpdateMessage,
    WriteRecord,
)
from redis_history.requests.filters import LAST_SEQUENCE, Filters, make_filters
from redis_history.tokens import count_characters, estimate_tokens

#: Limits of one atomic change: the server takes at most about 20 ms for it (docs/guarantees.md).
MAX_BATCH_MESSAGES: Final = 1000
MAX_BATCH_BYTES: Final = 4_000_000

#: Limit of the encoded record of a conversation.
MAX_RECORD_BYTES: Final = 100_000

_POSITION_LETTERS: Final = frozenset("0123456789.-")
_INTEGER: Final = re.compile(r"0|-?[1-9][0-9]{0,18}")

Filter = Callable[[Message], bool]
Bound = datetime | str | int | float | Position


def after_of(since: Bound | None) -> Position | None:
    """The exclusive lower bound: for an instant, the last position of its microsecond.

    Raises InvalidTimestampError or InvalidInputError unless `since` is an instant or a position.
    """
    return _position(since, LAST_SEQUENCE)


def before_of(before: Bound | None) -> Position | None:
    """The exclusive upper bound: for an instant, the first position of its microsecond. Raises as `after_of`."""
    return _position(before, 0)


def _position(bound: Bound | None, sequence: int) -> Position | None:
    if bound is None:
        return None
    if isinstance(bound, Position):
        return check_position(bound)
    if isinstance(bound, str) and set(bound) <= _POSITION_LETTERS and "." in bound:
        return Position.parse(bound)
    return Position(to_microseconds(bound), sequence)


def check_position(position: Position) -> Position:
    """The position. Raises InvalidInputError unless it has two integers."""
    for name, value in zip(position._fields, position, strict=True):
        if not is_integer(value, float("-inf")):
            refuse(value, f"the {name} of a position", "an integer", InvalidInputError)
    return position


def cursor_of(after: Cursor | str | None) -> Cursor | None:
    """Raises InvalidCursorError for anything but a cursor, its text form or None."""
    return after if after is None or isinstance(after, Cursor) else Cursor.parse(after)


def cursors_of(after: Mapping[str, Cursor | str] | None) -> dict[str, Cursor] | None:
    """Raises InvalidCursorError or InvalidConversationIdError for anything but cursors by conversation id, or None."""
    if after is None:
        return None
    if not isinstance(after, Mapping):
        raise InvalidCursorError(
            f"subscribe_all takes a dict of cursors by conversation id, or None for now on, not {type(after).__name__}"
        )
    cursors = {}
    for conversation_id, cursor in after.items():
        check_conversation_id(conversation_id)
        cursors[conversation_id] = cursor if isinstance(cursor, Cursor) else Cursor.parse(cursor)
    return cursors


def owner_of(text: str) -> int | str:
    """Parses an owner: a 64-bit integer becomes an int, a JSON string its value, any other text itself. So 1 is the
    number, and "1" in double quotes the string."""
    if _INTEGER.fullmatch(text) and MIN_INTEGER <= int(text) <= MAX_INTEGER:
        return int(text)
    if len(text) > 1 and text[0] == text[-1] == '"':
        try:
            return str(orjson.loads(text))
        except orjson.JSONDecodeError:
            return text
    return text


def owner_text(owner: int | str) -> str:
    """The text by which `owner_of` finds this owner."""
    if isinstance(owner, int) or owner_of(owner) == owner:
        return str(owner)
    return orjson.dumps(owner).decode()


def message_filter(
    roles: Iterable[Role] | None, participant_ids: Iterable[str] | None, scope: Scope | None
) -> Filter | None:
    """The filter of a read; None: all messages. Raises InvalidInputError for a string in place of a list."""
    if roles is None and participant_ids is None and scope is None:
        return None
    return make_filters(roles=roles, participant_ids=participant_ids, scope=scope).wants


def search_filters(
    roles: Iterable[Role] | None,
    participant_ids: Iterable[str] | None,
    scope: Scope | None,
    since: Bound | None,
    before: Bound | None,
    tool_names: Iterable[str] | None,
    archived: bool | None,
) -> Filters:
    """Raises as `message_filter` and `after_of`."""
    return make_filters(
        roles=roles,
        participant_ids=participant_ids,
        scope=scope,
        since=after_of(since),
        before=before_of(before),
        tool_names=tool_names,
        archived=archived,
    )


def precondition(
    expected_revision: int | None = None, must_exist: bool = False, must_not_exist: bool = False
) -> Precondition:
    """The precondition of a write. Raises InvalidInputError."""
    if expected_revision is None and not must_exist and not must_not_exist:
        return ANY
    check_integer(expected_revision, "expected_revision", 0, 2**53 - 1, optional=True, error=InvalidInputError)
    if must_exist and must_not_exist:
        raise InvalidInputError("must_exist and must_not_exist exclude each other")
    return Precondition(expected_revision, must_exist, must_not_exist)


class Batch(NamedTuple):
    """An append, and for each message the index of its outcome: a repeated id is sent once."""

    op: Append
    order: Sequence[int]


def append_one(
    conversation_id: str,
    message: Message,
    expected_revision: int | None = None,
    must_exist: bool = False,
    must_not_exist: bool = False,
) -> Append:
    """The operation that appends one message. Raises as `append`."""
    check_conversation_id(conversation_id)
    return Append(conversation_id, (entry_of(message),), precondition(expected_revision, must_exist, must_not_exist))


def append(
    conversation_id: str,
    messages: Iterable[Message],
    expected_revision: int | None = None,
    must_exist: bool = False,
    must_not_exist: bool = False,
) -> Batch:
    """The operation that appends `messages`.

    Raises InvalidConversationIdError, InvalidMessageError, BatchTooLargeError, or MessageConflictError for one id
    with two contents.
    """
    check_conversation_id(conversation_id)
    _check_list(messages, "messages", InvalidMessageError)
    entries: dict[str, Entry] = {}
    order: list[int] = []
    places: dict[str, int] = {}
    size = 0
    for message in messages:
        entry = entry_of(message)
        known = entries.setdefault(message.id, entry)
        if known is entry:
            places[message.id] = len(places)
            size += len(entry.body)
        elif known.body != entry.body or known.timestamp != entry.timestamp:
            raise MessageConflictError(
                f"the batch has two messages of id {message.id[:64]!r} with different content", message_id=message.id
            )
        order.append(places[message.id])
        if (len(places) > MAX_BATCH_MESSAGES or size > MAX_BATCH_BYTES) and len(places) > 1:
            raise BatchTooLargeError(
                f"one atomic change holds at most {MAX_BATCH_MESSAGES:,} messages and {MAX_BATCH_BYTES:,} bytes; "
                "append in several batches"
            )
    condition = precondition(expected_revision, must_exist, must_not_exist)
    return Batch(Append(conversation_id, tuple(entries.values()), condition), order)


def delete_messages(
    conversation_id: str, message_ids: Iterable[str], expected_revision: int | None = None
) -> DeleteMessages:
    """Raises InvalidConversationIdError, InvalidInputError, BatchTooLargeError."""
    check_conversation_id(conversation_id)
    _check_list(message_ids, "message_ids")
    ids = tuple(dict.fromkeys(map(check_message_id, message_ids)))
    if len(ids) > MAX_BATCH_MESSAGES:
        raise BatchTooLargeError(f"one atomic change removes at most {MAX_BATCH_MESSAGES:,} messages, not {len(ids):,}")
    return DeleteMessages(conversation_id, ids, precondition(expected_revision))


def start_reply(conversation_id: str, role: Role, fields: MessageFields) -> Append:
    """The operation that begins a reply. Raises as `append`, and InvalidInputError for a time: the server gives it."""
    check_conversation_id(conversation_id)
    if fields.get("timestamp") is not None or "status" in fields:
        raise InvalidInputError("the timestamp and the status of a reply are given by the store; leave them out")
    message = Message(role=role, **_known(fields))
    entry = _entry(msgspec.structs.replace(message, status="streaming"))
    return Append(conversation_id, (entry,))


def _known(fields: MessageFields) -> dict[str, Any]:
    known = {name: value for name, value in fields.items() if name != "id" or value is not None}
    if unknown := known.keys() - MessageFields.__annotations__.keys():
        refuse(
            min(unknown), "a field of a reply", f"one of {', '.join(MessageFields.__annotations__)}", InvalidInputError
        )
    return known


def part_of(part: Any) -> Part:
    """One part, or the part of a dict. Raises InvalidMessageError."""
    parts = () if isinstance(part, str) else Message(role="assistant", parts=part).parts
    if len(parts) != 1:
        refuse(part, "part", "a part; text is for write", InvalidMessageError)
    return parts[0]


def check_written(part: Part, before: int) -> int:
    """The bytes of a reply of `before` bytes with this part. Raises InvalidMessageError, MessageTooLargeError."""
    size = before + len(encode_body(Message(id="-", role="assistant", parts=(part,))))
    if size > MAX_MESSAGE_BYTES:
        raise MessageTooLargeError(
            f"the reply would have more than {MAX_MESSAGE_BYTES:,} bytes; end it, and go on in another message"
        )
    return size


def update_message(conversation_id: str, message: Message, expected_revision: int | None = None) -> UpdateMessage:
    """Raises InvalidConversationIdError, InvalidMessageError."""
    check_conversation_id(conversation_id)
    return UpdateMessage(conversation_id, entry_of(message), precondition(expected_revision))


def restore(conversation_id: str, messages: Iterable[Message], expected_revision: int | None = None) -> Restore:
    """Raises as `append`."""
    batch = append(conversation_id, messages, expected_revision)
    return Restore(conversation_id, batch.op.entries, batch.op.precondition)


def compact(
    conversation_id: str,
    through: Position,
    summary: Message | str,
    seen: Iterable[Message] | None = None,
    expected_revision: int | None = None,
) -> Compact:
    """A text becomes a message of role user that is a summary. Raises InvalidConversationIdError, InvalidMessageError,
    InvalidInputError."""
    check_conversation_id(conversation_id)
    if isinstance(summary, str):
        if not summary.strip():
            raise InvalidInputError("summary must not be blank")
        summary = Message(role="user", parts=summary, metadata={"is_summary": True})  # type: ignore[arg-type]
    elif not isinstance(summary, Message):
        refuse(summary, "summary", "a str or a Message", InvalidMessageError)
    elif not summary.is_summary or summary.role == "system" or summary.tool_uses or summary.tool_results:
        raise InvalidMessageError(
            "a summary is a message with metadata={'is_summary': True}, of another role than system, without tool calls"
        )
    digests = None
    if seen is not None:
        _check_list(seen, "seen")
        digests = tuple((one.id, body_digest(encode_body(one))) for one in seen if not _is_left(one))
    return Compact(conversation_id, through, entry_of(summary), digests, precondition(expected_revision))


def _is_left(message: Message) -> bool:
    if not isinstance(message, Message):
        refuse(message, "an item of seen", "a Message", InvalidInputError)
    return stays(message)


def through_of(through: Position | Message | str) -> Position | str:
    """A position, or the id of the message that has it. Raises InvalidInputError."""
    if isinstance(through, Position):
        return check_position(through)
    if isinstance(through, Message):
        return through.position or through.id
    return check_message_id(through)


def write_record(
    conversation_id: str, fields: Mapping[str, Any], *, create: bool, expected_revision: int | None = None
) -> WriteRecord:
    """Create a conversation, or set the given fields of an existing one (UNSET: leave the field).

    Raises InvalidConversationIdError, InvalidInputError for fields that cannot be stored.
    """
    check_conversation_id(conversation_id)
    written = {name: value for name, value in fields.items() if value is not UNSET}
    for name in ("user_id", "auditing_id"):
        check_owner(written.get(name), name)
    try:
        record = Conversation(conversation_id, **written)
        found = msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=Conversation)
    except (TypeError, ValueError, RecursionError, OverflowError, msgspec.MsgspecError) as error:
        raise InvalidInputError(f"this record of a conversation cannot be stored: {error}") from error
    if found != record:
        raise InvalidInputError("the metadata of a conversation has values that cannot be stored: use JSON-like values")
    if len(msgspec.msgpack.encode(written)) > MAX_RECORD_BYTES:
        raise InvalidInputError(f"the record of a conversation takes at most {MAX_RECORD_BYTES:,} bytes")
    return WriteRecord(conversation_id, written, precondition(expected_revision, not create, create))


def _check_list(value: object, name: str, error: type[InvalidInputError] = InvalidInputError) -> None:
    if isinstance(value, Message | str | bytes) or not isinstance(value, Iterable):
        refuse(value, name, "a list", error)


def entry_of(message: Message) -> Entry:
    """A message to store. One that is being written elsewhere is interrupted here. Raises InvalidMessageError."""
    if type(message) is Message and message.status == "streaming":
        message = msgspec.structs.replace(message, status="interrupted")
    return _entry(message)


def _entry(message: Message) -> Entry:
    body = encode_body(message)
    timestamp = None if message.timestamp is None else to_microseconds(message.timestamp)
    characters = count_characters(message)
    tokens = estimate_tokens(characters)
    return Entry(message, body, flags_of(message), timestamp, characters, tokens, marks(message))
