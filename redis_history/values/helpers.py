"""Short ways to write messages and parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, TypedDict, Unpack, cast

from msgspec import Struct

from redis_history.values.message import Message, Metadata, Participant, Role, Scope, Source, Status
from redis_history.values.parts import Part, ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from redis_history.values.times import Instant
from redis_history.values.usage import Usage

Content = str | Part | Iterable["str | Part"]


def text(value: str) -> TextPart:
    """A text part."""
    return TextPart(text=value)


def reasoning(value: str, *, signature: str | None = None) -> ReasoningPart:
    """Return a part with the reasoning of a model, and the provider's `signature` if it exists."""
    return ReasoningPart(text=value, signature=signature)


def tool_use(id: str, name: str, input: Any = None) -> ToolUsePart:
    """A call of the tool `name` with the arguments `input`."""
    return ToolUsePart(id=id, name=name, input={} if input is None else input)


def tool_result(
    tool_use_id: str, content: Any = "", is_error: bool = False, *, name: str | None = None
) -> ToolResultPart:
    """The result of the nearest earlier call of this id. `name` is that of the tool."""
    return ToolResultPart(tool_use_id=tool_use_id, content=content, is_error=is_error, name=name)


class MessageFields(TypedDict, total=False):
    """The fields of a message that `user`, `assistant`, `system` and `tool` take by name; see `Message`.

    `id=None` makes a new id. `timestamp` is a datetime, an ISO 8601 string or seconds since 1970.
    """

    id: str | None
    participant: Participant | None
    timestamp: Instant | None
    scope: Scope | None
    metadata: dict[str, Any] | Metadata
    sources: Iterable[Source]
    trace_id: str | None
    provider_meta: dict[str, Any]
    status: Status
    usage: Usage | Mapping[str, Any] | None
    extra: dict[str, Any] | None


_FIELDS = MessageFields.__annotations__.keys()


def user(*content: Content, **fields: Unpack[MessageFields]) -> Message:
    """A message of role user: `user("hi")`, `user(text("see"), attachment)`, `user("hi", id="m1", scope="dm")`.

    `fields`: those of `Message`, except `role`, `parts` and those that the store sets. Raises TypeError for an unknown
    field, InvalidMessageError for content or values that no message has.
    """
    return _message("user", content, fields)


def assistant(*content: Content, **fields: Unpack[MessageFields]) -> Message:
    """A message of role assistant; see `user`."""
    return _message("assistant", content, fields)


def system(*content: Content, **fields: Unpack[MessageFields]) -> Message:
    """A message of role system; see `user`."""
    return _message("system", content, fields)


def tool(*content: Content, **fields: Unpack[MessageFields]) -> Message:
    """A message of role tool, for results: `tool(tool_result("call-1", "42"))`; see `user`."""
    return _message("tool", content, fields)


def _message(role: Role, content: tuple[Content, ...], fields: MessageFields) -> Message:
    if not fields.keys() <= _FIELDS:
        name = next(name for name in fields if name not in _FIELDS)
        close = get_close_matches(name, _FIELDS, n=1)
        advice = f"did you mean {close[0]}?" if close else f"use one of {', '.join(_FIELDS)}"
        raise TypeError(f"{role}() has no parameter {name}: {advice}")
    if fields.get("id", "") is None:
        del fields["id"]
    parts: list[Any] = []
    for item in content:
        if isinstance(item, str | bytes | Mapping | Struct) or not isinstance(item, Iterable):
            parts.append(item)
        else:
            parts.extend(item)
    return Message(role=role, parts=tuple(parts), **cast(dict[str, Any], fields))
