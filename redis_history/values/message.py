"""Messages and the records of conversations, as values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, NoReturn, TypedDict, cast, get_args

import msgspec
from msgspec.structs import astuple, force_setattr

from redis_history.errors import InvalidInputError, InvalidMessageError
from redis_history.values._validation import refuse
from redis_history.values.ids import new_id
from redis_history.values.parts import (
    PART_TYPES,
    AttachmentPart,
    OpenStruct,
    Part,
    ReasoningPart,
    TextPart,
    ToolResultPart,
    ToolUsePart,
    UnknownPart,
)
from redis_history.values.times import Instant, from_microseconds, to_microseconds
from redis_history.values.usage import Usage

#: The stored form of messages. Fields that are added later, at the end, do not change the form: readers ignore them.
SCHEMA_VERSION = 2

Role = Literal["user", "assistant", "system", "tool"]
Scope = Literal["channel", "dm", "thread"]
Status = Literal["streaming", "complete", "interrupted", "stopped"]

_ROLES = get_args(Role)
_SCOPES = get_args(Scope)
_STATUSES = get_args(Status)
_KINDS = ("user", "agent", "system")
_POSITION = re.compile(r"(-?[0-9]{1,16})\.([0-9]{1,16})")
_KNOWN = frozenset({TextPart, ReasoningPart, ToolUsePart, ToolResultPart, AttachmentPart, UnknownPart})


class Position(NamedTuple):
    """The order of a message in its conversation: by time, then by arrival. Positions compare like tuples.

    `timestamp` is in microseconds since 1970 UTC, `sequence` counts from 1. `str(position)` is a compact text form for
    URLs.
    """

    timestamp: int
    sequence: int

    def __str__(self) -> str:
        return f"{self.timestamp}.{self.sequence}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """The position of a text form. Raises InvalidInputError for other text."""
        match = _POSITION.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise InvalidInputError(f"{str(text)[:64]!a} is not a position; use `message.position` or its string")
        return cls(int(match[1]), int(match[2]))


# The types of a stored message, so that the decoder checks it.
if TYPE_CHECKING:
    _Id = str
    _Sequence = int | None
    _Timestamp = datetime | None
else:
    _Id = Annotated[str, msgspec.Meta(min_length=1)]
    _Sequence = Annotated[int, msgspec.Meta(ge=1)]
    _Timestamp = Annotated[datetime, msgspec.Meta(tz=True)]


class _Empty(dict[str, Any]):
    """The `metadata` and `provider_meta` of all messages without them, so that reading such messages creates no
    objects."""

    def _refuse(self, *_: object, **__: object) -> Any:
        raise TypeError("a message is immutable; change it with msgspec.structs.replace(message, metadata={...})")

    __setitem__ = __ior__ = setdefault = update = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return (dict, ())


_EMPTY = _Empty()


class Participant(OpenStruct, frozen=True):
    """The author of a message: its `kind`, its `id`, and the `display_name` for people."""

    kind: Literal["user", "agent", "system"]
    id: str
    display_name: str | None = None
    extra: dict[str, Any] | None = None


class Source(OpenStruct, frozen=True):
    """A document that retrieval added to the context of a message: `document_id`, `document_name`, the `chunk` of its
    text, and its `score`."""

    document_id: str | None = None
    document_name: str | None = None
    chunk: str | None = None
    score: float | None = None
    extra: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if type(self.score) is int:  # else the same source would have two forms of bytes
            with suppress(OverflowError):  # a write refuses such an integer
                force_setattr(self, "score", float(self.score))


class Metadata(TypedDict, total=False):
    """The keys of `Message.metadata` that have a meaning. Other keys are allowed."""

    channel_type: str
    channel_name: str
    channel_id: str
    thread_id: str
    platform_message_id: str
    mentions: list[str]
    is_summary: bool
    pinned: bool


class _Checked(msgspec.StructMeta):
    """Checks and converts the arguments of the constructor. `__post_init__` would also run for messages that the
    decoder has checked."""

    if not TYPE_CHECKING:  # the signature is that of the fields

        def __call__(self, *args, **fields):
            message = super().__call__(*args, **fields)
            _check(message)
            return message


class Message(OpenStruct, frozen=True, kw_only=True, metaclass=_Checked):
    """One turn of a conversation; provider-neutral and lossless. Immutable: change it with `msgspec.structs.replace`.

    - `id`: 1 to 512 bytes of UTF-8, unique in its conversation. A new UUIDv7 by default.
    - `role`: "user", "assistant", "system" or "tool".
    - `parts`: a part, a text, dicts of the JSON form, or a list of these.
    - `participant`: the author. `scope`: where it was said. `sources`: the `Source` documents of retrieval.
    - `timestamp`: a datetime (naive means UTC), an ISO 8601 string or seconds since 1970, from 1684 to 2255, to the
      microsecond. None: the server stamps the message when it is appended.
    - `metadata`: a dict of JSON values. These keys have a meaning: `channel_type`, `channel_name`, `channel_id`,
      `thread_id`, `platform_message_id`, `mentions` (a list of participant ids), `is_summary`, and `pinned`: True keeps
      the message from compaction, caps and plugins; see `store.pin`.
    - `trace_id`: text. `provider_meta`: a dict, opaque and preserved.
    - `status`: "complete", "streaming" while `store.stream` writes it, "interrupted" if that did not come to its end,
      or "stopped" if its run was stopped.
    - `sequence`: the arrival number within the conversation, from 1. The store sets it.
    - `usage`: the `Usage` of the answer, or a dict of its fields, which totals count once for each message id.
    - `extra`: the fields that a newer version stored, by name; kept unchanged.

    JSON values are text, finite numbers, integers of 64 bits, booleans, None, and lists and dicts of these, with text
    as keys. A stored message has at most 64,000,000 bytes, 4,000,000 without its values of 32,000 bytes or more, 100
    levels of nesting and 100,000 values (else MessageTooLargeError). Raises InvalidMessageError (InvalidTimestampError
    for the time) for anything else, sometimes only when it is appended.

    `msgspec.structs.replace` does not convert values; wrong values are rejected when the message is stored.
    """

    schema_version: ClassVar[int] = SCHEMA_VERSION

    # The order is that of the stored array. Older versions ignore what is behind `extra`.
    sequence: _Sequence = None
    timestamp: _Timestamp = None
    id: _Id = msgspec.field(default_factory=new_id)
    role: Role
    parts: tuple[Part, ...] = ()
    participant: Participant | None = None
    scope: Scope | None = None
    metadata: dict[str, Any] = _EMPTY
    sources: tuple[Source, ...] = ()
    trace_id: str | None = None
    provider_meta: dict[str, Any] = _EMPTY
    status: Status = "complete"
    extra: dict[str, Any] | None = None
    usage: Usage | None = None

    @property
    def text(self) -> str:
        """The plain text: of the text parts and of the tool results, joined by newlines."""
        return "\n".join(filter(None, map(text_of, self.parts)))

    @property
    def position(self) -> Position | None:
        """The position of a stored message, for `before` and `since`; None: it is not stored."""
        if self.timestamp is None or self.sequence is None:
            return None
        return Position(to_microseconds(self.timestamp), self.sequence)

    @property
    def is_summary(self) -> bool:
        """Whether this message is a summary, which replaced others."""
        return self.metadata.get("is_summary") is True

    @property
    def is_pinned(self) -> bool:
        """Whether `metadata["pinned"]` is true, so that no compaction, cap or plugin replaces or removes it. A summary
        is never pinned."""
        return self.metadata.get("pinned") is True and not self.is_summary

    @property
    def mentions(self) -> list[str]:
        """The ids of the participants this message addresses."""
        mentions = self.metadata.get("mentions")
        return list(mentions) if isinstance(mentions, list | tuple) else []

    @property
    def tool_uses(self) -> tuple[ToolUsePart, ...]:
        """The tool calls among the parts."""
        return tuple(part for part in self.parts if isinstance(part, ToolUsePart))

    @property
    def tool_results(self) -> tuple[ToolResultPart, ...]:
        """The tool results among the parts."""
        return tuple(part for part in self.parts if isinstance(part, ToolResultPart))


def _check(message: Message) -> None:
    if message.role not in _ROLES:
        _refuse(message.role, "role", f"one of {', '.join(_ROLES)}")
    if message.scope is not None and message.scope not in _SCOPES:
        _refuse(message.scope, "scope", f"None or one of {', '.join(_SCOPES)}")
    if message.status not in _STATUSES:
        _refuse(message.status, "status", f"one of {', '.join(_STATUSES)}")
    if type(message.id) is not str or not message.id:
        _refuse(message.id, "id", "a non-empty str")
    parts = message.parts
    if type(parts) is not tuple or not _KNOWN.issuperset(map(type, parts)):
        force_setattr(message, "parts", _parts(parts))
    if message.timestamp is not None:
        force_setattr(message, "timestamp", from_microseconds(to_microseconds(cast(Instant, message.timestamp))))
    if message.sources != ():
        _check_sources(message)
    if message.participant is not None:
        if not isinstance(message.participant, Participant):
            _refuse(message.participant, "participant", 'None or a Participant, such as Participant("user", "ann")')
        if message.participant.kind not in _KINDS:
            _refuse(message.participant.kind, "participant.kind", f"one of {', '.join(_KINDS)}")
    if not isinstance(message.metadata, dict):
        _refuse(message.metadata, "metadata", "a dict")
    if not isinstance(message.provider_meta, dict):
        _refuse(message.provider_meta, "provider_meta", "a dict")
    if message.trace_id is not None and not isinstance(message.trace_id, str):
        _refuse(message.trace_id, "trace_id", "None or a str")
    if message.extra is not None and not isinstance(message.extra, dict):
        _refuse(message.extra, "extra", "None or a dict")
    if message.usage is not None:
        force_setattr(message, "usage", Usage.of(message.usage))


def _check_sources(message: Message) -> None:
    if isinstance(message.sources, str | Mapping) or not isinstance(message.sources, Iterable):
        _refuse(message.sources, "sources", "a list of Source")
    sources = tuple(message.sources)
    for one in sources:
        if not isinstance(one, Source):
            _refuse(one, "sources", "a list of Source, each")
    force_setattr(message, "sources", sources)


def _refuse(value: object, name: str, rule: str) -> NoReturn:
    refuse(value, name, rule, InvalidMessageError)


def _parts(value: Any) -> tuple[Part, ...]:
    if isinstance(value, str) or type(value) in _KNOWN or isinstance(value, Mapping):
        value = (value,)
    elif not isinstance(value, Iterable):
        _refuse(value, "parts", "text or parts")
    return tuple(_part(item) for item in value)


def _part(value: Any) -> Part:
    if type(value) in _KNOWN:
        return cast(Part, value)
    if isinstance(value, str):
        return TextPart(text=value)
    try:
        fields = dict(value)
        kind = PART_TYPES[fields.pop("type")]
        part = kind(**fields)
        return msgspec.convert([kind.__struct_config__.tag, *astuple(part)], kind)  # checks the types
    except (msgspec.ValidationError, KeyError, TypeError, ValueError) as error:
        raise InvalidMessageError(
            f"{repr(value)[:80]} is not a part this version knows; use a str, text(), tool_use(), tool_result(), "
            "ReasoningPart or AttachmentPart"
        ) from error


def text_of(part: Part) -> str:
    """The text that a part adds to `message.text`."""
    if isinstance(part, TextPart):
        return part.text
    return content_text(part.content) if isinstance(part, ToolResultPart) else ""


def content_text(content: Any) -> str:
    """The text of a tool result: a text itself, or the text blocks, joined by newlines."""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        content = (content,)
    if not isinstance(content, list | tuple):
        return ""
    found = (block.get("text") if isinstance(block, Mapping) else block for block in content)
    return "\n".join(item for item in found if isinstance(item, str) and item)


class ForkedFrom(msgspec.Struct, frozen=True):
    """Where a fork comes from: the conversation `conversation_id` at its `revision`. `message_id` is the last message
    that the fork has from it, or None for a fork without messages of it."""

    conversation_id: str
    revision: int
    message_id: str | None = None


class Conversation(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The record of a conversation, for `create_conversation` and from `get_conversation`.

    The caller sets the first six fields: `conversation_id`, the owner `user_id`, `agent_name`, `title`, `metadata` (a
    dict of JSON values) and `auditing_id`. `user_id` and `auditing_id` are text or an integer of 64 bits: 1 and "1" are
    different owners. The store sets the other fields with each change: `message_count`, `characters` and
    `estimated_tokens` of the messages (a quarter of the characters of each), `created_at`, `updated_at` (the last
    change), `first_message_at` and `last_message_at` (the earliest and latest time of a message since the last `clear`
    or `restore`, so the dates of an import are those of the conversation), `revision`, `forked_from` of a fork,
    `schema_version`, and `usage` (the sum of its messages, also of those that were removed; None without any).
    """

    conversation_id: str
    user_id: int | str | None = None
    agent_name: str | None = None
    title: str | None = None
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    auditing_id: int | str | None = None
    message_count: int = 0
    characters: int = 0
    estimated_tokens: int = 0
    created_at: datetime | None = None
    updated_at: datetime | None = None
    first_message_at: datetime | None = None
    last_message_at: datetime | None = None
    revision: int = 0
    forked_from: ForkedFrom | None = None
    schema_version: int = 1
    usage: Usage | None = None


#: The fields that the caller sets and may change.
RECORD_FIELDS = ("user_id", "agent_name", "title", "auditing_id", "metadata")
