"""From what users pass to operations: checks and conversions, before anything is sent. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, get_args

import msgspec
from msgspec import UNSET, Struct, UnsetType

from redis_history._ids import check_conversation_id
from redis_history._time import to_microseconds
from redis_history.backends.redis.durability import Confirmation
from redis_history.errors import (
    BatchTooLargeError,
    ConfigurationError,
    InvalidCursorError,
    InvalidInputError,
    InvalidMessageError,
    MessageConflictError,
)
from redis_history.events import Cursor
from redis_history.model import Conversation, Message, Position, Role, Scope, ToolResultPart, ToolUsePart
from redis_history.model.ranges import stays
from redis_history.model.wire import MAX_ID_BYTES, body_digest, encode_body
from redis_history.operations import (
    ANY,
    Append,
    Clear,
    Compact,
    DeleteMessages,
    Entry,
    Expand,
    Precondition,
    Restore,
    UpdateMessage,
    WriteRecord,
)
from redis_history.search.filters import Filters, make_filters
from redis_history.search.languages import check_language
from redis_history.search.vectors import Embedder, VectorField
from redis_history.tokens import count_characters, estimate_tokens

__all__ = [
    "DOORBELLS",
    "MAX_BATCH_BYTES",
    "MAX_BATCH_MESSAGES",
    "Batch",
    "Bound",
    "Doorbell",
    "Durability",
    "Filter",
    "Options",
    "append",
    "append_one",
    "check_batch",
    "check_limit",
    "check_message_id",
    "check_name",
    "clear",
    "compact",
    "cursor_of",
    "cursors_of",
    "delete_messages",
    "expand",
    "message_filter",
    "position_of",
    "restore",
    "through_of",
    "update_message",
    "write_record",
]

#: What one atomic change may hold: so much takes the server about 20 ms at most (docs/guarantees.md).
MAX_BATCH_MESSAGES: Final = 1000
MAX_BATCH_BYTES: Final = 4_000_000

#: Of a conversation's own fields, encoded.
MAX_RECORD_BYTES: Final = 100_000
#: Seconds; a hundred years, and far from what a server's clock can hold.
MAX_TTL: Final = 3_155_760_000.0
#: How subscribers hear of changes: by the server's notifications, by what writers publish, or by looking only; "auto":
#: by notifications if the server makes them, else by what writers publish if they do, else by looking.
Doorbell = Literal["auto", "keyspace", "publish", "poll"]
DOORBELLS: Final[tuple[str, ...]] = get_args(Doorbell)
#: Seconds; an hour.
MAX_DURABILITY_TIMEOUT: Final = 3600.0
_POSITION_LETTERS = frozenset("0123456789.-")

Filter = Callable[[Message], bool]
SearchMode = Literal["auto", "require", "off"]
Bound = datetime | str | int | float | Position
#: What a write waits for: the server has it; its disk has it; other servers have it.
Durability = Literal["server", "fsync", "replicas"]


class Batch:
    """An append, and which of its outcomes belongs to which message given: an id given twice is sent once."""

    __slots__ = ("op", "order")

    def __init__(self, op: Append, order: Sequence[int]) -> None:
        self.op = op
        self.order = order


def append_one(
    conversation_id: str,
    message: Message,
    *,
    expected_revision: int | None,
    must_exist: bool,
    must_not_exist: bool,
) -> Append:
    """The operation that appends one message. Raises as `append`."""
    check_conversation_id(conversation_id)
    precondition = _precondition(expected_revision, must_exist, must_not_exist)
    return Append(conversation_id, (_entry(message),), precondition)


def append(
    conversation_id: str,
    messages: Iterable[Message],
    *,
    expected_revision: int | None,
    must_exist: bool,
    must_not_exist: bool,
) -> Batch:
    """The operation that appends `messages`.

    Raises InvalidConversationIdError, InvalidMessageError, BatchTooLargeError, or MessageConflictError for one id
    with two contents.
    """
    check_conversation_id(conversation_id)
    if isinstance(messages, Message | str | bytes) or not isinstance(messages, Iterable):
        raise InvalidMessageError(
            f"append_many takes a list of messages, not {type(messages).__name__}; append takes one message"
        )
    entries: dict[str, Entry] = {}
    order: list[int] = []
    places: dict[str, int] = {}
    size = 0
    for message in messages:
        entry = _entry(message)
        known = entries.setdefault(message.id, entry)
        if known is entry:
            places[message.id] = len(places)
            size += len(entry.body)
        elif known.digest != entry.digest or known.timestamp != entry.timestamp:
            raise MessageConflictError(
                f"the batch has two messages of id {message.id[:64]!r} with different content", message_id=message.id
            )
        order.append(places[message.id])
        if (len(places) > MAX_BATCH_MESSAGES or size > MAX_BATCH_BYTES) and len(places) > 1:
            raise BatchTooLargeError(
                f"one atomic change holds at most {MAX_BATCH_MESSAGES:,} messages and {MAX_BATCH_BYTES:,} bytes; "
                "append in several batches"
            )
    precondition = _precondition(expected_revision, must_exist, must_not_exist)
    return Batch(Append(conversation_id, tuple(entries.values()), precondition), order)


def delete_messages(
    conversation_id: str, message_ids: Iterable[str], *, expected_revision: int | None
) -> DeleteMessages:
    """Raises InvalidConversationIdError, InvalidInputError, BatchTooLargeError."""
    check_conversation_id(conversation_id)
    if isinstance(message_ids, str | bytes) or not isinstance(message_ids, Iterable):
        raise InvalidInputError(f"delete_messages takes a list of ids, not {type(message_ids).__name__}")
    ids = tuple(dict.fromkeys(map(check_message_id, message_ids)))
    if len(ids) > MAX_BATCH_MESSAGES:
        raise BatchTooLargeError(f"one atomic change removes at most {MAX_BATCH_MESSAGES:,} messages, not {len(ids):,}")
    return DeleteMessages(conversation_id, ids, _precondition(expected_revision, False, False))


def update_message(conversation_id: str, message: Message, *, expected_revision: int | None) -> UpdateMessage:
    """Raises InvalidConversationIdError, InvalidMessageError."""
    check_conversation_id(conversation_id)
    return UpdateMessage(conversation_id, _entry(message), _precondition(expected_revision, False, False))


def restore(conversation_id: str, messages: Iterable[Message], *, expected_revision: int | None) -> Restore:
    """Raises as `append`."""
    batch = append(
        conversation_id, messages, expected_revision=expected_revision, must_exist=False, must_not_exist=False
    )
    return Restore(conversation_id, batch.op.entries, batch.op.precondition)


def compact(
    conversation_id: str,
    through: Position,
    summary: Message | str,
    seen: Iterable[Message] | None,
    *,
    expected_revision: int | None,
) -> Compact:
    """A text becomes a message of role user that is a summary. Raises InvalidConversationIdError, InvalidMessageError,
    InvalidInputError."""
    check_conversation_id(conversation_id)
    if isinstance(summary, str):
        if not summary.strip():
            raise InvalidInputError("a summary without text would stand for nothing")
        summary = Message(role="user", parts=summary, metadata={"is_summary": True})  # type: ignore[arg-type]
    elif not isinstance(summary, Message):
        raise InvalidMessageError(f"a summary is a text or a Message, not {type(summary).__name__}")
    elif not summary.is_summary or summary.role == "system" or summary.tool_uses or summary.tool_results:
        raise InvalidMessageError(
            "a summary is a message with metadata={'is_summary': True}, of another role than system, without tool calls"
        )
    digests = None
    if seen is not None:
        if isinstance(seen, Message | str | bytes) or not isinstance(seen, Iterable):
            raise InvalidInputError(f"seen is the list of messages that were summarised, not {type(seen).__name__}")
        digests = tuple((one.id, _entry(one).digest) for one in map(_message, seen) if not stays(one))
    return Compact(conversation_id, through, _entry(summary), digests, _precondition(expected_revision, False, False))


def _message(message: Message) -> Message:
    if not isinstance(message, Message):
        raise InvalidInputError(f"seen is the list of messages that were summarised, not of {type(message).__name__}")
    return message


def expand(conversation_id: str, summary_id: str, *, expected_revision: int | None) -> Expand:
    """Raises InvalidConversationIdError, InvalidInputError."""
    check_conversation_id(conversation_id)
    return Expand(conversation_id, check_message_id(summary_id), _precondition(expected_revision, False, False))


def through_of(through: Position | Message | str) -> Position | str:
    """A position, or the id of the message that has it. Raises InvalidInputError."""
    if isinstance(through, Position):
        return through
    if isinstance(through, Message):
        return through.position or through.id
    return check_message_id(through)


def clear(conversation_id: str, *, expected_revision: int | None) -> Clear:
    """Raises InvalidConversationIdError."""
    check_conversation_id(conversation_id)
    return Clear(conversation_id, _precondition(expected_revision, False, False))


def write_record(
    conversation_id: str, fields: Mapping[str, Any], *, create: bool, expected_revision: int | None = None
) -> WriteRecord:
    """The operation that creates a conversation, or sets the fields given (UNSET: leave it) of one that exists.

    Raises InvalidConversationIdError, InvalidInputError for fields that cannot be stored.
    """
    check_conversation_id(conversation_id)
    written = {name: value for name, value in fields.items() if value is not UNSET}
    try:
        record = Conversation(conversation_id, **written)
        found = msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=Conversation)
    except (TypeError, ValueError, RecursionError, OverflowError, msgspec.MsgspecError) as error:
        raise InvalidInputError(f"this record of a conversation cannot be stored: {error}") from error
    if found != record:
        raise InvalidInputError("the metadata of a conversation would not come back as it is: use JSON-like values")
    if len(msgspec.msgpack.encode(written)) > MAX_RECORD_BYTES:
        raise InvalidInputError(f"the record of a conversation takes at most {MAX_RECORD_BYTES:,} bytes")
    return WriteRecord(conversation_id, written, _precondition(expected_revision, not create, create))


def tool_marks(message: Message) -> bytes:
    """The tool calls and results in a message, as `Entry.tools` has them."""
    marks = b""
    for part in message.parts:
        if type(part) is ToolUsePart:
            marks += b"u" + body_digest(part.id.encode())[:4]
        elif type(part) is ToolResultPart:
            marks += b"r" + body_digest(part.tool_use_id.encode())[:4]
    return marks


def check_message_id(message_id: str) -> str:
    """Raises InvalidInputError unless it is a string that could be an id."""
    try:
        fits = isinstance(message_id, str) and 1 <= len(message_id.encode()) <= MAX_ID_BYTES
    except UnicodeEncodeError:
        fits = False
    if not fits:
        raise InvalidInputError(f"{str(message_id)[:64]!a} is not a message id: 1 to {MAX_ID_BYTES} bytes of UTF-8")
    return message_id


def check_limit(limit: int | None, name: str = "limit") -> None:
    """Raises InvalidInputError unless it is None or a number from 0."""
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
        raise InvalidInputError(f"{name} is a number from 0, or None for all, not {limit!r}")


def check_batch(size: int) -> None:
    """Raises InvalidInputError unless it is a number from 1 to 100,000."""
    if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= 100_000:
        raise InvalidInputError(f"this is a number from 1 to 100,000, not {size!r}")


def check_context(count: int) -> None:
    """Raises InvalidInputError unless it is a number from 0 to 100."""
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= 100:
        raise InvalidInputError(f"context is a number of messages from 0 to 100, not {count!r}")


def check_range(limit: int, offset: int) -> None:
    """Raises InvalidInputError unless both are numbers from 0."""
    for value, name in ((limit, "limit"), (offset, "offset")):
        if value is None:
            raise InvalidInputError(f"{name} is a number from 0, not None")
        check_limit(value, name)


def check_record(conversation: Conversation) -> None:
    """Raises InvalidInputError unless it is a Conversation."""
    if not isinstance(conversation, Conversation):
        raise InvalidInputError(f"create_conversation takes a Conversation, not {type(conversation).__name__}")


def check_name(name: str | None, parameter: str) -> None:
    """Raises InvalidInputError unless it is None or a string."""
    if name is not None and not isinstance(name, str):
        raise InvalidInputError(f"{parameter} is a string, not {name!r}")


class Options(Struct, frozen=True):
    """The options of a store, checked. Raises ConfigurationError for what makes no sense."""

    log_length: int
    poll_interval: float
    ttl: float | None = None
    max_messages: int | UnsetType | None = UNSET
    max_conversations: int | UnsetType | None = UNSET
    durability: Durability = "server"
    replicas: int | None = None
    durability_timeout: float = 5.0
    search: SearchMode = "auto"
    language: str = "english"
    embedder: Embedder | None = None
    vectors: VectorField | None = None
    #: Seconds that a search of all conversations waits for an index that the server is filling.
    search_wait: float = 10.0
    doorbell: str = "auto"

    def __post_init__(self) -> None:
        if self.durability not in get_args(Durability):
            raise ConfigurationError(f"durability is one of {get_args(Durability)}, not {self.durability!r}")
        if self.replicas is not None and (self.durability != "replicas" or not _is_count(self.replicas)):
            raise ConfigurationError(
                f"replicas is a number from 1, with durability='replicas'; "
                f"not {self.replicas!r} with durability={self.durability!r}"
            )
        timeout = self.durability_timeout
        if not isinstance(timeout, int | float) or not 0.001 <= timeout <= MAX_DURABILITY_TIMEOUT:
            raise ConfigurationError(
                f"durability_timeout is a number of seconds from 0.001 to {MAX_DURABILITY_TIMEOUT:,}, not {timeout!r}"
            )
        if not _is_count(self.log_length):
            raise ConfigurationError(f"log_length is a number of changes from 1, not {self.log_length!r}")
        if not isinstance(self.poll_interval, int | float) or not 0 < self.poll_interval < float("inf"):
            raise ConfigurationError(f"poll_interval is a positive number of seconds, not {self.poll_interval!r}")
        if self.ttl is not None and (not isinstance(self.ttl, int | float) or not 0.001 <= self.ttl < MAX_TTL):
            raise ConfigurationError(f"ttl is None or a number of seconds from 0.001, not {self.ttl!r}")
        for name in ("max_messages", "max_conversations"):
            value = getattr(self, name)
            if value is not None and value is not UNSET and not _is_count(value):
                raise ConfigurationError(f"{name} is None or a number from 1, not {value!r}")
        if self.doorbell not in DOORBELLS:
            raise ConfigurationError(f"doorbell is one of {', '.join(DOORBELLS)}, not {self.doorbell!r}")
        if self.search not in ("auto", "require", "off"):
            raise ConfigurationError(f"search is 'auto', 'require' or 'off', not {self.search!r}")
        check_language(self.language)
        if self.embedder is not None and self.vectors is None:
            raise ConfigurationError("an embedder needs the dimension of its vectors: embedder=..., vectors=384")
        if self.embedder is not None and not callable(self.embedder):
            raise ConfigurationError(f"an embedder is a function of texts, not {self.embedder!r}")

    def check_for_custom_backend(self, *others: Any) -> None:
        """Raises ConfigurationError for what a backend of the caller's own decides itself."""
        self._check_without_server("a backend of your own")
        capped = self.max_messages is not UNSET or self.max_conversations is not UNSET
        own = self.ttl is not None or capped or self.doorbell != "auto"
        if any(other is not None for other in others) or own:
            raise ConfigurationError(
                "with backend=, give no url, client, retry, ttl, max_messages, max_conversations or doorbell: "
                "they are the backend's own"
            )
        self.check_without_server()

    def check_without_server(self) -> None:
        """Raises ConfigurationError for what only a server with search has."""
        if self.search == "require" or self.embedder is not None:
            raise ConfigurationError("search='require' and embedder= are for a Redis server with search")

    def for_memory(self) -> dict[str, Any]:
        """As the memory backend takes them; its own defaults for those not given."""
        self._check_without_server("memory://")
        if self.doorbell != "auto":
            raise ConfigurationError("doorbell is for servers; subscriptions to memory:// hear of changes directly")
        given: dict[str, Any] = {"log_length": self.log_length, "ttl": self.ttl}
        for name in ("max_messages", "max_conversations"):
            if (value := getattr(self, name)) is not UNSET:
                given[name] = value
        return given

    def _check_without_server(self, backend: str) -> None:
        if self.durability != "server":
            raise ConfigurationError(f"durability={self.durability!r} needs a server, which {backend} is not")

    def confirmation(self) -> Confirmation | None:
        """What every write to a server is to be confirmed by; None: by its reply alone."""
        if self.durability == "server":
            return None
        return Confirmation(self.durability, self.replicas or 1, self.durability_timeout)

    def for_redis(self) -> int | None:
        """`max_messages` as the Redis backend takes it, which has no other cap."""
        if self.max_conversations is not UNSET and self.max_conversations is not None:
            raise ConfigurationError("max_conversations is for memory://; on a server use ttl")
        return None if isinstance(self.max_messages, UnsetType) else self.max_messages


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def position_of(bound: Bound | None) -> Position | None:
    """A bound as a position: an instant stands before all messages of its microsecond.

    Raises InvalidTimestampError or InvalidInputError for anything that is no instant and no position.
    """
    if bound is None or isinstance(bound, Position):
        return bound
    if isinstance(bound, str) and set(bound) <= _POSITION_LETTERS and "." in bound:
        return Position.parse(bound)
    return Position(to_microseconds(bound), 0)


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


def message_filter(
    roles: Iterable[Role] | None, participant_ids: Iterable[str] | None, scope: Scope | None
) -> Filter | None:
    """What a message must be like to be read; None if anything will do.

    Raises InvalidInputError for a string where a list is meant.
    """
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
    """Raises as `message_filter` and `position_of`."""
    return make_filters(
        roles=roles,
        participant_ids=participant_ids,
        scope=scope,
        since=position_of(since),
        before=position_of(before),
        tool_names=tool_names,
        archived=archived,
    )


def vector_field(vectors: VectorField | int | None) -> VectorField | None:
    """Raises ConfigurationError for what is no dimension."""
    return VectorField(vectors) if isinstance(vectors, int) else vectors


def _entry(message: Message) -> Entry:
    body = encode_body(message)
    timestamp = None if message.timestamp is None else to_microseconds(message.timestamp)
    characters = count_characters(message)
    return Entry(
        message, body, body_digest(body), timestamp, characters, estimate_tokens(characters), tool_marks(message)
    )


def _precondition(expected_revision: int | None, must_exist: bool, must_not_exist: bool) -> Precondition:
    if expected_revision is None and not must_exist and not must_not_exist:
        return ANY
    if expected_revision is not None and (
        not isinstance(expected_revision, int)
        or isinstance(expected_revision, bool)
        or not 0 <= expected_revision < 2**53
    ):
        raise InvalidInputError(f"expected_revision is a number from 0, not {expected_revision!r}")
    if must_exist and must_not_exist:
        raise InvalidInputError("must_exist and must_not_exist exclude each other")
    return Precondition(expected_revision, must_exist, must_not_exist)
