"""Convert single content blocks and items of OpenAI's Responses API to parts and back."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from redis_history.errors import InvalidMessageError
from redis_history.formats._arguments import dump_arguments, parse_arguments
from redis_history.formats._references import file_id, reference_note, split_data_url
from redis_history.formats._results import converted
from redis_history.formats._shape import (
    Json,
    Shape,
    foreign_block,
    is_foreign,
    note_of,
    noted,
    opaque,
    part_or_opaque,
    rebuild,
    remember,
    with_note,
)
from redis_history.model import (
    AttachmentPart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolResultPart,
    ToolUsePart,
    UnknownPart,
)

__all__ = ["FORM", "block_of", "call_of", "part_of_block", "part_of_item", "reasoning_of", "result_of"]

FORM = "openai_responses"

_IN_RESULTS = ("input_text", "input_image", "input_file")
_NO_PLACE = "a file that is not inline, not a URL and not uploaded to this provider"


def part_of_block(block: Any, spoken: str) -> Part:
    """The part for one block of a message; an opaque part for an unknown block.

    `spoken` is the type of plain text in this message: `input_text` or `output_text`.
    """
    return part_or_opaque(FORM, block, _known_block(block), lambda part, shape: _block(part, spoken, shape)[0])


def _known_block(block: Any) -> Part | None:
    match block:
        case {"type": "input_text" | "output_text", "text": str(text)}:
            return TextPart(text=text)
        case {"type": "refusal", "refusal": str(text)}:
            return TextPart(text=text, provider_meta={FORM: {"type": "refusal"}})
        case {"type": "input_image"}:
            url, id_ = block.get("image_url"), block.get("file_id")
            given = url if id_ is None else id_
            if not isinstance(given, str) or (url is not None and id_ is not None):
                return None
            meta = with_note(FORM, reference_note(given, is_file_id=url is None))
            mime = split_data_url(given)[0]
            return AttachmentPart(modality="image", reference=given, mime_type=mime, provider_meta=meta)
        case {"type": "input_file"}:
            found = {key: block.get(key) for key in ("file_id", "file_data", "file_url")}
            named = {key: value for key, value in found.items() if value is not None}
            name = block.get("filename")
            if len(named) != 1 or not isinstance(value := next(iter(named.values())), str):
                return None
            shown = name if isinstance(name, str) else None
            mime = split_data_url(value)[0]
            note = reference_note(value, is_file_id="file_id" in named)
            if "file_data" in named and mime is None:
                note["data"] = True
            meta = with_note(FORM, note)
            return AttachmentPart(modality="document", name=shown, reference=value, mime_type=mime, provider_meta=meta)
    return None


def block_of(part: Part, spoken: str, shape: Shape) -> tuple[Any, str | None]:
    """The block for a part, and what was lost, or None. The block is None if a message item cannot contain it."""
    if isinstance(part, UnknownPart):
        block = foreign_block(FORM, part)
        return block, None if block is not None else "an opaque part of another provider"
    note = note_of(part, FORM)
    ours, lost = _block(part, spoken, "original" if note.get("own") else shape)
    return (None if ours is None else rebuild(ours, note, valid=shape != "original")), lost


def _block(part: Part, spoken: str, shape: Shape) -> tuple[Json | None, str | None]:
    if isinstance(part, TextPart):
        if spoken == "output_text" and note_of(part, FORM).get("type") == "refusal":
            return {"type": "refusal", "refusal": part.text}, None
        more: Json = {"annotations": []} if spoken == "output_text" else {}
        return {"type": spoken, "text": part.text, **more}, None
    if not isinstance(part, AttachmentPart):
        return None, f"a {type(part).__name__.removesuffix('Part').lower()} part, which a message item cannot contain"
    if spoken == "output_text":
        return None, "a file in an assistant message"
    return _file(part, shape)


def _file(part: AttachmentPart, shape: Shape) -> tuple[Json | None, str | None]:
    if part.modality in ("audio", "video"):
        return None, f"{part.modality}, which the API does not accept"
    url = part.reference
    data = split_data_url(url or "")[1]
    own = file_id(part, FORM)
    linked = (
        url is not None
        and own is None
        and (data is not None or url.startswith(("http://", "https://")) or shape == "original")
    )
    if part.modality == "image" or (part.modality is None and (part.mime_type or "").startswith("image/")):
        if linked:
            return {"type": "input_image", "detail": "auto", "image_url": url}, None
        return ({"type": "input_image", "detail": "auto", "file_id": own}, None) if own else (None, _NO_PLACE)
    named: Json = {} if part.name is None else {"filename": part.name}
    if linked:
        key = "file_data" if data is not None or note_of(part, FORM).get("data") else "file_url"
        return {"type": "input_file", key: url, **named}, None
    return ({"type": "input_file", "file_id": own, **named}, None) if own else (None, _NO_PLACE)


def part_of_item(raw: Mapping[str, Any]) -> Part:
    """The part for an item other than a message; an opaque part for an unknown item."""
    part, ours = _known_item(raw)
    if part is None:
        return opaque(FORM, dict(raw))
    try:
        return noted(part, FORM, remember(raw, ours))
    except InvalidMessageError:
        return opaque(FORM, dict(raw))


def _known_item(raw: Mapping[str, Any]) -> tuple[Part | None, Json]:
    match raw:
        case {"type": "function_call", "call_id": str(id_), "name": str(name), "arguments": arguments}:
            value, style = parse_arguments(arguments)
            call = ToolUsePart(
                id=id_, name=name, input=value, provider_meta=with_note(FORM, {"arguments": style} if style else {})
            )
            return call, _call(call, "original")
        case {"type": "custom_tool_call", "call_id": str(id_), "name": str(name), "input": str(value)}:
            call = ToolUsePart(id=id_, name=name, input=value, provider_meta={FORM: {"type": "custom"}})
            return call, _call(call, "original")
        case {
            "type": "function_call_output" | "custom_tool_call_output" as kind,
            "call_id": str(id_),
            "output": output,
        }:
            note: Json = {} if kind == "function_call_output" else {"type": kind}
            if not isinstance(output, str):
                note["content"] = True
            result = ToolResultPart(tool_use_id=id_, content=output, provider_meta=with_note(FORM, note))
            return result, _result(result, "original")[0]
        case {"type": "reasoning"}:
            thought = _thought(raw)
            return thought, {} if thought is None else _reasoning(thought, "", 0)
    return None, {}


def _thought(raw: Mapping[str, Any]) -> ReasoningPart | None:
    signature, id_ = raw.get("encrypted_content"), raw.get("id")
    summary, content = raw.get("summary"), raw.get("content")
    note: Json = {"id": id_}
    if content and not summary:
        note["content"] = content
    else:
        note["summary"] = summary
    text = _said(content if "content" in note else summary)
    if text is None or not isinstance(id_, str | None) or not isinstance(signature, str | None):
        return None
    return ReasoningPart(text=text, signature=signature, provider_meta={FORM: note})


def _said(blocks: Any) -> str | None:
    if blocks is None:
        return ""
    if not isinstance(blocks, list):
        return None
    found = [block.get("text") if isinstance(block, Mapping) else None for block in blocks]
    return "\n\n".join(found) if all(isinstance(text, str) for text in found) else None  # type: ignore[arg-type]


def reasoning_of(part: ReasoningPart, message: Message, index: int, shape: Shape) -> tuple[Json | None, str | None]:
    """The item for reasoning, and what was lost, or None."""
    if is_foreign(part, FORM):
        return None, "reasoning of another provider"
    if FORM not in (part.provider_meta or {}) and part.signature is None:
        return None, "reasoning that is not from this API"
    not_null = ("content", "status")
    ours = _reasoning(part, message.id, index)
    return rebuild(ours, note_of(part, FORM), valid=shape != "original", not_null=not_null), None


def _reasoning(part: ReasoningPart, message_id: str, index: int) -> Json:
    note = note_of(part, FORM)
    id_ = note.get("id")
    if id_ is None:
        id_ = f"rs_{hashlib.blake2b(f'{message_id}/{index}'.encode(), digest_size=16).hexdigest()}"
    out: Json = {"id": id_, "type": "reasoning"}
    if "content" in note and isinstance(note["content"], list):
        out["summary"] = []
        out["content"] = _unless_edited(note["content"], part.text, "reasoning_text")
    else:
        out["summary"] = _unless_edited(note.get("summary"), part.text, "summary_text")
    if part.signature is not None:
        out["encrypted_content"] = part.signature
    return out


def _unless_edited(blocks: Any, text: str, kind: str) -> list[Any]:
    if isinstance(blocks, list) and _said(blocks) == text:
        return blocks
    return [{"type": kind, "text": text}] if text else []


def call_of(part: ToolUsePart, shape: Shape) -> Json:
    """The item for a tool call."""
    not_null = ("id", "status", "namespace")
    return rebuild(_call(part, shape), note_of(part, FORM), valid=shape != "original", not_null=not_null)


def _call(part: ToolUsePart, shape: Shape) -> Json:
    note = note_of(part, FORM)
    if note.get("type") == "custom" and isinstance(part.input, str):
        return {"type": "custom_tool_call", "call_id": part.id, "name": part.name, "input": part.input}
    arguments = dump_arguments(part.input, note.get("arguments"))
    if shape != "original" and not isinstance(arguments, str):
        arguments = dump_arguments(part.input)
    return {"type": "function_call", "call_id": part.id, "name": part.name, "arguments": arguments}


def result_of(part: ToolResultPart, shape: Shape) -> tuple[Json, str | None]:
    """The item for a tool result, and what was lost, or None."""
    ours, lost = _result(part, shape)
    if part.is_error:
        lost = "is_error of a tool result" if lost is None else f"is_error, and {lost}"
    return rebuild(ours, note_of(part, FORM), valid=shape != "original", not_null=("id", "name")), lost


def _result(part: ToolResultPart, shape: Shape) -> tuple[Json, str | None]:
    note = note_of(part, FORM)
    output, lost = part.content, None
    if not (note.get("content") and (shape == "original" or output == [])):
        output = "" if output is None else output
        output, lost = converted(output, _IN_RESULTS, lambda inner: _block(inner, "input_text", shape)[0])
    return {"type": note.get("type", "function_call_output"), "call_id": part.tool_use_id, "output": output}, lost
