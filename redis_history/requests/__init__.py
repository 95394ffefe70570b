"""Checks and converts arguments before anything is sent. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeVar, get_args

import msgspec
import orjson
from msgspec import UNSET, Struct

from redis_history._validation import (
    MAX_INTEGER,
    MIN_INTEGER,
    check_choice,
    check_integer,
    check_name,
    check_names,
    check_owner,
    is_integer,
    refuse,
)
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
from redis_history.model._caps import MAX_MESSAGE_BYTES
from redis_history.model.helpers import MessageFields
from redis_history.model.ids import check_conversation_id, check_message_id
from redis_history.model.pairs import marks
from redis_history.model.ranges import leaving
from redis_history.model.times import to_microseconds
from redis_history.model.wire import FREE_FORM, body_digest, encode_body, flags_of
from redis_history.operations import (
    ANY,
    Append,
    Compact,
    DeleteMessages,
    Entry,
    Precondition,
    Restore,
    RunFence,
    UpdateMessage,
    WriteRecord,
)
from redis_history.tokens import count_characters, estimate_tokens

#: Limits of one atomic change: the server takes at most about 20 ms for it (docs/guarantees.md).
MAX_BATCH_MESSAGES: Final = 1000
MAX_BATCH_BYTES: Final = 4_000_000

#: Limit of the encoded record of a conversation.
MAX_RECORD_BYTES: Final = 100_000

#: No message has a higher sequence, so this one is the end of a microsecond.
LAST_SEQUENCE: Final = 2**53 - 1

_POSITION_LETTERS: Final = frozenset("0123456789.-")
_INTEGER: Final = re.compile(r"0|-?[1-9][0-9]{0,18}")

W = TypeVar("W", Append, UpdateMessage)

Bound = datetime | str | int | float | Position


def position_of(bound: Bound | None, sequence: int) -> Position | None:
    """A bound as a position, which has this `sequence` if the bound is a time. Raises InvalidInputError."""
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
    for conversation_id in after:
        check_conversation_id(conversation_id)
    return {one: cursor if isinstance(cursor, Cursor) else Cursor.parse(cursor) for one, cursor in after.items()}


def owner_of(text: str) -> int | str:
    """Parses an owner: a 64-bit integer becomes an int, a JSON string its value, other text itself. So 1 is the number,
    and "1" in double quotes the string."""
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


class Filters(Struct, frozen=True):
    """Checked filters of a read or a search; None: anything. `since` < position < `before`.

    `tool_names`: messages with a call or a result of these tools. `archived`: True for archived messages only, False
    for live ones only; messages do not contain it, so `wants` ignores it.
    """

    roles: frozenset[str] | None = None
    participant_ids: frozenset[str] | None = None
    scope: Scope | None = None
    since: Position | None = None
    before: Position | None = None
    tool_names: frozenset[str] | None = None
    archived: bool | None = None

    @property
    def first(self) -> Position | None:
        """The first position after `since`."""
        if self.since is None or self.since.sequence < LAST_SEQUENCE:
            return self.since and self.since._replace(sequence=self.since.sequence + 1)
        return Position(self.since.timestamp + 1, 0)

    @property
    def selects(self) -> bool:
        """Whether some messages between the bounds may not pass."""
        return (self.roles, self.participant_ids, self.scope, self.tool_names) != (None, None, None, None)

    @property
    def impossible(self) -> bool:
        """Whether no message at all can pass: a list is empty, or no position is between the bounds."""
        if self.before is not None and (first := self.first) is not None and first >= self.before:
            return True
        return any(names is not None and not names for names in (self.roles, self.participant_ids, self.tool_names))

    def wants(self, message: Message) -> bool:
        """Whether a stored message passes."""
        if self.roles is not None and message.role not in self.roles:
            return False
        writer = message.participant and message.participant.id
        if self.participant_ids is not None and writer not in self.participant_ids:
            return False
        if self.scope is not None and message.scope != self.scope:
            return False
        if self.tool_names is not None and self.tool_names.isdisjoint(tool_names_of(message)):
            return False
        if self.since is None and self.before is None:
            return True
        position = message.position
        return (
            position is not None
            and (self.since is None or position > self.since)
            and (self.before is None or position < self.before)
        )


ANYTHING = Filters()


def make_filters(
    roles: Iterable[Role] | None = None,
    participant_ids: Iterable[str] | None = None,
    scope: Scope | None = None,
    since: Bound | None = None,
    before: Bound | None = None,
    tool_names: Iterable[str] | None = None,
    archived: bool | None = None,
) -> Filters:
    """Raises InvalidInputError for values that no message can have, and for a string in place of a list."""
    no_names = roles is None and participant_ids is None and tool_names is None
    if no_names and since is None and before is None and scope is None and archived is None:
        return ANYTHING  # as for most reads, which the checks below would slow down
    check_choice(scope, "scope", (*get_args(Scope), None), InvalidInputError)
    check_choice(archived, "archived", (True, False, None), InvalidInputError)
    names = {"roles": roles, "participant_ids": participant_ids, "tool_names": tool_names}
    sets = {
        name: None if value is None else frozenset(check_names(value, name, InvalidInputError))
        for name, value in names.items()
    }
    for role in sets["roles"] or ():
        check_choice(role, "an item of roles", get_args(Role), InvalidInputError)
    after, upper = position_of(since, LAST_SEQUENCE), position_of(before, 0)
    return Filters(scope=scope, since=after, before=upper, archived=archived, **sets)


def tool_names_of(message: Message) -> frozenset[str]:
    """The tools that a message calls, or has named results of."""
    called = [part.name for part in message.tool_uses]
    return frozenset((*called, *(part.name for part in message.tool_results if part.name)))


class Within(Struct, frozen=True):
    """The conversations that are searched: those that meet all conditions; None: any."""

    user_id: int | str | None = None
    agent_name: str | None = None
    conversation_ids: tuple[str, ...] | None = None


def make_within(user_id: int | str | None, agent_name: str | None, conversation_ids: Iterable[str] | None) -> Within:
    """Raises InvalidInputError, InvalidConversationIdError."""
    check_owner(user_id, "user_id")
    check_name(agent_name, "agent_name")
    if conversation_ids is None:
        return Within(user_id, agent_name)
    ids = tuple(dict.fromkeys(check_names(conversation_ids, "conversation_ids", InvalidInputError)))
    for conversation_id in ids:
        check_conversation_id(conversation_id)
    return Within(user_id, agent_name, ids)


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


def with_run(op: W, run: RunFence) -> W:
    """The write, for the holder of this run only."""
    return msgspec.structs.replace(op, precondition=msgspec.structs.replace(op.precondition, run=run))


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
    condition = precondition(expected_revision, must_exist, must_not_exist)
    return Append(conversation_id, (entry_of(message),), precondition=condition)


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
    ids: list[str] = []
    size = 0
    for message in messages:
        entry = entry_of(message)
        known = entries.setdefault(message.id, entry)
        if known is entry:
            size += len(entry.body)
        elif known.body != entry.body or known.timestamp != entry.timestamp:
            raise MessageConflictError(
                f"the batch has two messages of id {message.id[:64]!r} with different content", message_id=message.id
            )
        ids.append(message.id)
        if (len(entries) > MAX_BATCH_MESSAGES or size > MAX_BATCH_BYTES) and len(entries) > 1:
            raise BatchTooLargeError(
                f"one atomic change holds at most {MAX_BATCH_MESSAGES:,} messages and {MAX_BATCH_BYTES:,} bytes; "
                "append in several batches"
            )
    condition = precondition(expected_revision, must_exist, must_not_exist)
    indexes = {message_id: index for index, message_id in enumerate(entries)}
    op = Append(conversation_id, tuple(entries.values()), precondition=condition)
    return Batch(op, [indexes[message_id] for message_id in ids])


def delete_messages(
    conversation_id: str, message_ids: Iterable[str], expected_revision: int | None = None
) -> DeleteMessages:
    """Raises InvalidConversationIdError, InvalidInputError, BatchTooLargeError."""
    check_conversation_id(conversation_id)
    _check_list(message_ids, "message_ids")
    ids = tuple(dict.fromkeys(map(check_message_id, message_ids)))
    if len(ids) > MAX_BATCH_MESSAGES:
        raise BatchTooLargeError(f"one atomic change removes at most {MAX_BATCH_MESSAGES:,} messages, not {len(ids):,}")
    return DeleteMessages(conversation_id, ids, precondition=precondition(expected_revision))


def start_reply(conversation_id: str, role: Role, fields: MessageFields) -> Append:
    """The operation that begins a reply. Raises as `append`, and InvalidInputError for a time: the server gives it."""
    check_conversation_id(conversation_id)
    if fields.get("timestamp") is not None or "status" in fields:
        raise InvalidInputError("the timestamp and the status of a reply are given by the store; leave them out")
    given: dict[str, Any] = {name: value for name, value in fields.items() if name != "id" or value is not None}
    known = MessageFields.__annotations__
    if unknown := given.keys() - known.keys():
        refuse(min(unknown), "a field of a reply", f"one of {', '.join(known)}", InvalidInputError)
    message = msgspec.structs.replace(Message(role=role, **given), status="streaming")
    return Append(conversation_id, (_entry(message),))


def part_of(part: Any) -> Part:
    """One part, or the part of a dict. Raises InvalidMessageError."""
    parts = () if isinstance(part, str) else Message(role="assistant", parts=part).parts
    if len(parts) != 1:
        refuse(part, "part", "a part; text is for write", InvalidMessageError)
    return parts[0]


def check_size(part: Part, before: int) -> int:
    """The size of a reply of `before` bytes with this part. Raises InvalidMessageError, MessageTooLargeError."""
    size = before + len(encode_body(Message(id="-", role="assistant", parts=(part,))))
    if size > MAX_MESSAGE_BYTES:
        raise MessageTooLargeError(
            f"the reply would have more than {MAX_MESSAGE_BYTES:,} bytes; end it, and go on in another message"
        )
    return size


def update_message(conversation_id: str, message: Message, expected_revision: int | None = None) -> UpdateMessage:
    """Raises InvalidConversationIdError, InvalidMessageError."""
    check_conversation_id(conversation_id)
    return UpdateMessage(conversation_id, entry_of(message), precondition=precondition(expected_revision))


def restore(conversation_id: str, messages: Iterable[Message], expected_revision: int | None = None) -> Restore:
    """Raises as `append`."""
    batch = append(conversation_id, messages, expected_revision)
    return Restore(conversation_id, batch.op.entries, precondition=batch.op.precondition)


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
        seen = list(seen)
        for message in seen:
            if not isinstance(message, Message):
                refuse(message, "an item of seen", "a Message", InvalidInputError)
        digests = tuple((one.id, body_digest(encode_body(one))) for one in leaving(seen))
    return Compact(conversation_id, through, entry_of(summary), digests, precondition=precondition(expected_revision))


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
    return WriteRecord(conversation_id, written, precondition=precondition(expected_revision, not create, create))


def _check_list(value: object, name: str, error: type[InvalidInputError] = InvalidInputError) -> None:
    if isinstance(value, Message | str | bytes) or not isinstance(value, Iterable):
        refuse(value, name, "a list", error)


def entry_of(message: Message) -> Entry:
    """A message to store. One that is being written elsewhere is interrupted here. Raises InvalidMessageError."""
    if type(message) is Message and message.status == "streaming":
        message = msgspec.structs.replace(message, status="interrupted")
    return _entry(message)


def _entry(message: Message) -> Entry:
    body, flags = encode_body(message), flags_of(message)
    timestamp = None if message.timestamp is None else to_microseconds(message.timestamp)
    characters = count_characters(message)
    tools = marks(message) if flags & FREE_FORM else b""
    return Entry(message, body, flags, timestamp, characters, estimate_tokens(characters), tools)
