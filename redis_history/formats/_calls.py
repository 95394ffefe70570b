"""Convert tool calls in the style of chat completions to parts and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redis_history.errors import InvalidMessageError
from redis_history.formats._arguments import dump_arguments, parse_arguments
from redis_history.formats._shape import (
    Json,
    Shape,
    foreign_block,
    note_of,
    noted,
    opaque,
    rebuild,
    remember,
    with_note,
)
from redis_history.model import Part, ToolUsePart, UnknownPart

__all__ = ["call_of", "is_call", "part_of_call"]


def part_of_call(form: str, call: Any) -> Part:
    """The part for one item of `tool_calls`; an opaque part if the item has an unknown form."""
    match call:
        case {"function": {"name": str(name), "arguments": raw}}:
            value, style = parse_arguments(raw)
            note: Json = {"arguments": style} if style else {}
        case {"type": "custom", "custom": {"name": str(name), "input": str(value)}}:
            note = {"type": "custom"}
        case _:
            return opaque(form, {"tool_call": call})
    part = ToolUsePart(id=_string(call.get("id")), name=name, input=value, provider_meta=with_note(form, note))
    try:
        return noted(part, form, remember(call, _call(form, part, "original")))
    except InvalidMessageError:
        return opaque(form, {"tool_call": call})


def call_of(form: str, part: Part, shape: Shape) -> Any:
    """The `tool_calls` item for a part; None if the part is not a tool call."""
    if isinstance(part, UnknownPart):
        block = foreign_block(form, part)
        return block["tool_call"] if isinstance(block, Mapping) and "tool_call" in block else None
    if not isinstance(part, ToolUsePart):
        return None
    free = ("id", "type") if form == "mistral" else ()
    return rebuild(_call(form, part, shape), note_of(part, form), valid=shape != "original", free=free)


def is_call(block: Any) -> bool:
    """Whether the block inside an opaque part is an item of `tool_calls`."""
    return isinstance(block, Mapping) and "tool_call" in block


def _call(form: str, part: ToolUsePart, shape: Shape) -> Json:
    note = note_of(part, form)
    if note.get("type") == "custom" and isinstance(part.input, str):
        return {"id": part.id, "type": "custom", "custom": {"name": part.name, "input": part.input}}
    arguments = dump_arguments(part.input, note.get("arguments"))
    given = isinstance(arguments, str) or (form == "mistral" and isinstance(arguments, dict))
    if shape != "original" and not given:
        arguments = dump_arguments(part.input)
    return {"id": part.id, "type": "function", "function": {"name": part.name, "arguments": arguments}}


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""
