"""Short ways to write messages and parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from redis_history.model.message import Message
from redis_history.model.parts import Part, TextPart, ToolResultPart, ToolUsePart

__all__ = ["assistant", "system", "text", "tool", "tool_result", "tool_use", "user"]

Content = str | Part | Iterable["str | Part"]


def text(value: str) -> TextPart:
    """A text part."""
    return TextPart(text=value)


def tool_use(id: str, name: str, input: Any = None) -> ToolUsePart:
    """A call of the tool `name`; `input` is its arguments."""
    return ToolUsePart(id=id, name=name, input={} if input is None else input)


def tool_result(
    tool_use_id: str, content: Any = "", is_error: bool = False, *, name: str | None = None
) -> ToolResultPart:
    """The result of the nearest earlier call of this id."""
    return ToolResultPart(tool_use_id=tool_use_id, content=content, is_error=is_error, name=name)


def user(*content: Content, **fields: Any) -> Message:
    """A message of role user: `user("hi")`, `user(text("see"), attachment)`, `user("hi", id="m1", scope="dm")`."""
    return Message(role="user", parts=_flatten(content), **fields)


def assistant(*content: Content, **fields: Any) -> Message:
    """A message of role assistant; see `user`."""
    return Message(role="assistant", parts=_flatten(content), **fields)


def system(*content: Content, **fields: Any) -> Message:
    """A message of role system; see `user`."""
    return Message(role="system", parts=_flatten(content), **fields)


def tool(*content: Content, **fields: Any) -> Message:
    """A message of role tool, for results: `tool(tool_result("call-1", "42"))`; see `user`."""
    return Message(role="tool", parts=_flatten(content), **fields)


def _flatten(content: tuple[Content, ...]) -> tuple[Any, ...]:
    items: list[Any] = []
    for item in content:
        if isinstance(item, str | bytes | Mapping | Struct) or not isinstance(item, Iterable):
            items.append(item)
        else:
            items.extend(item)
    return tuple(items)
