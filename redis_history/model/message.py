"""Messages and the records of conversations, as values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypedDict, cast, get_args

import msgspec
from msgspec.structs import force_setattr

from redis_history._ids import new_id
from redis_history._time import Instant, from_microseconds, to_microseconds
from redis_history.errors import InvalidInputError, InvalidMessageError
from redis_history.model.parts import (
    AttachmentPart,
    Extra,
    OpenStruct,
    Part,
    ReasoningPart,
    TextPart,
    ToolResultPart,
    ToolUsePart,
    UnknownPart,
    _extra,
)

#: Increases with each change of the stored form. A reader of version N reads N-1, and keeps additions of N+1.
SCHEMA_VERSION = 1

Role = Literal["user", "assistant", "system", "tool"]
Scope = Literal["channel", "dm", "thread"]

_ROLES = get_args(Role)
_SCOPES = get_args(Scope)
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


class Participant(OpenStruct, frozen=True):
    """The author of a message: its `kind`, its `id`, and the `display_name` for people."""

    kind: Literal["user", "agent", "system"]
    id: str
    display_name: str | None = None
    extra: Extra = _extra()


class Source(OpenStruct, frozen=True):
    """A document that retrieval added to the context of a message: `document_id`, `document_name`, the `chunk` of its
    text, and its `score`."""

    document_id: str | None = None
    document_name: str | None = None
    chunk: str | None = None
    score: float | None = None
    extra: Extra = _extra()

    def __post_init__(self) -> None:
        if type(self.score) is int:  # else the same source would have two forms of bytes
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


class Message(OpenStruct, frozen=True, kw_only=True):
    """One turn of a conversation; provider-neutral and lossless. Immutable: change it with `msgspec.structs.replace`.

    - `id`: 1 to 512 bytes of UTF-8, unique in its conversation; a new UUIDv7 by default.
    - `role`: "user", "assistant", "system" or "tool".
    - `parts`: a part, a text, dicts of the stored form, or a list of these.
    - `participant`: the author. `scope`: where it was said. `sources`: the `Source` documents of retrieval.
    - `timestamp`: a datetime (naive means UTC), an ISO 8601 string or seconds since 1970, from 1684 to 2255, to the
      microsecond. None: the server stamps the message when it is appended.
    - `metadata`: a dict of JSON values. These keys have a meaning: `channel_type`, `channel_name`, `channel_id`,
      `thread_id`, `platform_message_id`, `mentions` (a list of participant ids), `is_summary`.
    - `trace_id`: text. `provider_meta`: a dict, opaque and preserved. `schema_version`: of the stored form.
    - `sequence`: the arrival number within the conversation, from 1; the store sets it.

    JSON values are text, finite numbers, integers of 64 bits, booleans, None, and lists and dicts of these, with text
    as keys. A stored message has at most 4,000,000 bytes, 100 levels of nesting and 100,000 values (else
    MessageTooLargeError). Raises InvalidMessageError (InvalidTimestampError for the time) for anything else, sometimes
    only when it is appended.
    """

    # The first field, and so first in the stored map, where scripts of the server can read it.
    id: str = msgspec.field(default_factory=new_id)
    role: Role
    parts: tuple[Part, ...] = ()
    participant: Participant | None = None
    timestamp: datetime | None = None
    scope: Scope | None = None
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    sources: tuple[Source, ...] = ()
    trace_id: str | None = None
    provider_meta: dict[str, Any] = msgspec.field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION
    sequence: int | None = None
    extra: Extra = _extra()

    def __post_init__(self) -> None:
        # Runs for every message that is read, so the usual case must be fast.
        if self.role not in _ROLES:
            raise InvalidMessageError(f"the role {self.role!r} is not one of {', '.join(_ROLES)}")
        if self.scope is not None and self.scope not in _SCOPES:
            raise InvalidMessageError(f"the scope {self.scope!r} is not one of {', '.join(_SCOPES)}")
        if type(self.id) is not str or not self.id:
            raise InvalidMessageError(f"a message id is a non-empty string, not {self.id!r}")
        parts = self.parts
        if type(parts) is not tuple or not _KNOWN.issuperset(map(type, parts)):
            force_setattr(self, "parts", _parts(parts))
        if self.timestamp is not None:
            force_setattr(self, "timestamp", from_microseconds(to_microseconds(cast(Instant, self.timestamp))))
        if type(self.sources) is not tuple:
            if not isinstance(self.sources, Iterable):
                raise InvalidMessageError(f"sources are a list of Source, not {type(self.sources).__name__}")
            force_setattr(self, "sources", tuple(self.sources))

    @property
    def text(self) -> str:
        """The plain text: of the text parts and of the tool results, joined by newlines."""
        return "\n".join(filter(None, map(_text_of, self.parts)))

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


def _parts(value: Any) -> tuple[Part, ...]:
    if isinstance(value, str) or type(value) in _KNOWN or isinstance(value, Mapping):
        value = (value,)
    elif not isinstance(value, Iterable):
        raise InvalidMessageError(f"parts are text or parts, not {type(value).__name__}")
    return tuple(_part(item) for item in value)


def _part(value: Any) -> Part:
    if type(value) in _KNOWN:
        return cast(Part, value)
    if isinstance(value, str):
        return TextPart(text=value)
    try:
        return msgspec.convert(
            dict(value), type=TextPart | ReasoningPart | ToolUsePart | ToolResultPart | AttachmentPart
        )
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise InvalidMessageError(
            f"{str(value)[:80]!r} is not a part this version knows; use text(), tool_use(), tool_result(), "
            "ReasoningPart or AttachmentPart"
        ) from error


def _text_of(part: Part) -> str:
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


class Conversation(OpenStruct, frozen=True):
    """The record of a conversation, for `create_conversation` and from `get_conversation`.

    The caller sets the first six fields: `conversation_id`, the owner `user_id`, `agent_name`, `title`, `metadata` (a
    dict of JSON values) and `auditing_id`. `user_id` and `auditing_id` are text or an integer of 64 bits: 1 and "1" are
    different owners. The store sets the other fields with each change: `message_count`, `characters` and estimated
    `tokens` of the messages, `created_at`, `updated_at` (the last change), `revision`, `schema_version`.
    """

    conversation_id: str
    user_id: int | str | None = None
    agent_name: str | None = None
    title: str | None = None
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    auditing_id: int | str | None = None
    message_count: int = 0
    characters: int = 0
    tokens: int = 0
    created_at: datetime | None = None
    updated_at: datetime | None = None
    revision: int = 0
    schema_version: int = 1


#: The fields that the caller sets and may change.
RECORD_FIELDS = ("user_id", "agent_name", "title", "auditing_id", "metadata")
