"""Content blocks and tool calls of OpenAI chat completions, one by one, to parts and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from redis_history.errors import InvalidMessageError
from redis_history.formats._arguments import dump_arguments, parse_arguments
from redis_history.formats._data_url import data_url, split_data_url
from redis_history.formats._shape import Json, foreign_block, note_of, opaque, rebuild, remember, with_note
from redis_history.model import AttachmentPart, Part, TextPart, ToolResultPart, ToolUsePart, UnknownPart

__all__ = ["FORM", "block_of", "call_of", "part_of_block", "part_of_call", "result_content"]

FORM = "openai_chat"


def part_of_block(block: Any) -> Part:
    """The part for one block of a message's content; opaque where we have none."""
    part = _known_block(block)
    if part is None:
        return opaque(FORM, block)
    try:
        note = remember(block, _block(part) or {})
    except InvalidMessageError:
        return opaque(FORM, block)
    return _noted(part, note)


def _known_block(block: Any) -> Part | None:
    match block:
        case {"type": "text", "text": str(text)}:
            return TextPart(text=text)
        case {"type": "refusal", "refusal": str(text)}:
            return TextPart(text=text, provider_meta={FORM: {"type": "refusal"}})
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return AttachmentPart(modality="image", reference=url, mime_type=split_data_url(url)[0])
        case {"type": "input_audio", "input_audio": {"data": str(data), "format": str(kind)}}:
            mime = f"audio/{kind}"
            return AttachmentPart(modality="audio", mime_type=mime, reference=data_url(mime, data))
        case {"type": "file", "file": Mapping() as file}:
            named = [file.get(key) for key in ("file_id", "filename", "file_data")]
            if all(value is None or isinstance(value, str) for value in named):
                return AttachmentPart(id=named[0], name=named[1], modality="document", reference=named[2])
    return None


def block_of(part: Part) -> Any:
    """The content block for a part; None if chat completions cannot carry it."""
    if isinstance(part, UnknownPart):
        return foreign_block(FORM, part)
    ours = _block(part)
    return None if ours is None else rebuild(ours, note_of(part, FORM))


def _block(part: Part) -> Json | None:
    if isinstance(part, TextPart):
        kind = "refusal" if note_of(part, FORM).get("type") == "refusal" else "text"
        return {"type": kind, kind: part.text}
    if not isinstance(part, AttachmentPart):
        return None
    reference = part.reference
    mime, data = split_data_url(reference or "")
    if part.modality == "image" and reference is not None:
        return {"type": "image_url", "image_url": {"url": reference}}
    if part.modality == "audio" and data is not None and mime is not None:
        return {"type": "input_audio", "input_audio": {"data": data, "format": mime.partition("/")[2]}}
    if part.id is None and data is None and FORM not in (part.provider_meta or {}) and reference is not None:
        return None  # a file by URL is not part of this API
    named = {"file_id": part.id, "filename": part.name, "file_data": reference}
    return {"type": "file", "file": {key: value for key, value in named.items() if value is not None}}


def part_of_call(call: Any) -> Part:
    """The part for one item of `tool_calls`; opaque where it is not a call as we know them."""
    match call:
        case {"function": {"name": str(name), "arguments": raw}}:
            value, style = parse_arguments(raw)
            note: Json = {"arguments": style} if style else {}
        case {"type": "custom", "custom": {"name": str(name), "input": str(value)}}:
            note = {"type": "custom"}
        case _:
            return opaque(FORM, {"tool_call": call})
    part = ToolUsePart(id=_string(call.get("id")), name=name, input=value, provider_meta=with_note(FORM, note))
    try:
        return _noted(part, remember(call, _call(part)))
    except InvalidMessageError:
        return opaque(FORM, {"tool_call": call})


def call_of(part: Part) -> Any:
    """The `tool_calls` item for a part; None if it is none."""
    if isinstance(part, UnknownPart):
        block = foreign_block(FORM, part)
        return block["tool_call"] if isinstance(block, Mapping) and "tool_call" in block else None
    return rebuild(_call(part), note_of(part, FORM)) if isinstance(part, ToolUsePart) else None


def _call(part: ToolUsePart) -> Json:
    note = note_of(part, FORM)
    if note.get("type") == "custom" and isinstance(part.input, str):
        return {"id": part.id, "type": "custom", "custom": {"name": part.name, "input": part.input}}
    function = {"name": part.name, "arguments": dump_arguments(part.input, note.get("arguments"))}
    return {"id": part.id, "type": "function", "function": function}


def result_content(part: ToolResultPart) -> tuple[Any, str | None]:
    """A tool result as `content` (a string or text blocks), and what of it could not be carried, if anything."""
    content = part.content
    if content is None or isinstance(content, str) or FORM in (part.provider_meta or {}):
        return content, None
    if isinstance(content, list | tuple):
        texts = [block for block in content if isinstance(block, Mapping) and block.get("type") == "text"]
        if len(texts) == len(content):
            return list(content), None
        if texts:
            return texts, "blocks other than text in a tool result"
    return json.dumps(content, ensure_ascii=False, default=str), None


def _noted(part: Any, note: Json) -> Part:
    if not note:
        return part  # type: ignore[no-any-return]
    kept = {**note_of(part, FORM), **note}
    changed: Part = msgspec.structs.replace(part, provider_meta={FORM: kept})
    return changed


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""
