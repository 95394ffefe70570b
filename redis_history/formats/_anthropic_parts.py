"""Content blocks of Anthropic messages, one by one, to parts and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from redis_history.errors import InvalidMessageError
from redis_history.formats._data_url import data_url, split_data_url
from redis_history.formats._shape import Json, foreign_block, note_of, opaque, rebuild, remember
from redis_history.model import AttachmentPart, Part, ReasoningPart, TextPart, ToolResultPart, ToolUsePart, UnknownPart

__all__ = ["FORM", "block_of", "part_of_block", "shortfall"]

FORM = "anthropic"


def part_of_block(block: Any) -> Part:
    """The part for one content block; opaque where we have none."""
    part = _known_block(block)
    if part is None:
        return opaque(FORM, block)
    try:
        note = remember(block, _block(part) or {})
    except InvalidMessageError:
        return opaque(FORM, block)
    if not note:
        return part
    kept: Part = msgspec.structs.replace(part, provider_meta={FORM: {**note_of(part, FORM), **note}})
    return kept


def _known_block(block: Any) -> Part | None:
    match block:
        case {"type": "text", "text": str(text)}:
            return TextPart(text=text)
        case {"type": "thinking", "thinking": str(text)}:
            signature = block.get("signature")
            signed = isinstance(signature, str)
            return ReasoningPart(
                text=text,
                signature=signature if signed else None,
                provider_meta=None if signed else {FORM: {"type": "thinking"}},
            )
        case {"type": "redacted_thinking", "data": str(data)}:
            return ReasoningPart(text="", signature=data, provider_meta={FORM: {"type": "redacted_thinking"}})
        case {"type": str(kind), "id": str(id_), "name": str(name), "input": dict(value)} if kind.endswith("tool_use"):
            meta = None if kind == "tool_use" else {FORM: {"type": kind}}
            return ToolUsePart(id=id_, name=name, input=value, provider_meta=meta)
        case {"type": str(kind), "tool_use_id": str(id_)} if kind.endswith("tool_result"):
            # What the provider's own tools return is encrypted in places: only its own type may carry it back.
            meta = None if kind == "tool_result" else {FORM: {"type": kind}}
            wrong = block.get("is_error") is True
            content = block.get("content")
            return ToolResultPart(tool_use_id=id_, content=content, is_error=wrong, provider_meta=meta)
        case {"type": "image" | "document" as kind, "source": Mapping() as source}:
            return _attachment(kind, block, source)
    return None


def _attachment(kind: str, block: Mapping[str, Any], source: Mapping[str, Any]) -> AttachmentPart | None:
    modality: Any = kind
    title = block.get("title")
    name = title if isinstance(title, str) else None
    match source:
        case {"type": "base64", "media_type": str(mime), "data": str(data)}:
            return AttachmentPart(modality=modality, name=name, mime_type=mime, reference=data_url(mime, data))
        case {"type": "url", "url": str(url)}:
            return AttachmentPart(modality=modality, name=name, reference=url)
        case {"type": "file", "file_id": str(id_)}:
            return AttachmentPart(modality=modality, name=name, id=id_)
    return None


def block_of(part: Part) -> Any:
    """The content block for a part; None if an Anthropic message cannot carry it."""
    if isinstance(part, UnknownPart):
        return foreign_block(FORM, part)
    ours = _block(part)
    return None if ours is None else rebuild(ours, note_of(part, FORM))


def _block(part: Part) -> Json | None:
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}
        case ReasoningPart():
            if note_of(part, FORM).get("type") == "redacted_thinking":
                return {"type": "redacted_thinking", "data": part.signature or ""}
            if FORM not in (part.provider_meta or {}) and part.signature is None:
                return None  # the API refuses thinking that it did not sign
            return {"type": "thinking", "thinking": part.text, "signature": part.signature or ""}
        case ToolUsePart():
            value = part.input if isinstance(part.input, dict) else {"arguments": part.input}
            kind = note_of(part, FORM).get("type", "tool_use")
            return {"type": kind, "id": part.id, "name": part.name, "input": value}
        case ToolResultPart():
            return _result(part)
        case AttachmentPart():
            return _file(part)
    return None


def _result(part: ToolResultPart) -> Json:
    content = part.content
    own = note_of(part, FORM).get("type", "tool_result")
    out: Json = {"type": own, "tool_use_id": part.tool_use_id}
    if content is not None:
        given = isinstance(content, str | list) or own != "tool_result"
        out["content"] = content if given else json.dumps(content, ensure_ascii=False, default=str)
    if part.is_error:
        out["is_error"] = True
    return out


def _file(part: AttachmentPart) -> Json | None:
    mime, data = split_data_url(part.reference or "")
    if data is not None:
        source = {"type": "base64", "media_type": mime or part.mime_type, "data": data}
    elif part.reference is not None and part.reference.startswith(("http://", "https://")):
        source = {"type": "url", "url": part.reference}
    elif part.id is not None:
        source = {"type": "file", "file_id": part.id}
    else:
        return None
    if part.modality == "image":
        return {"type": "image", "source": source}
    if part.modality in ("audio", "video"):
        return None
    return {"type": "document", "source": source, **({} if part.name is None else {"title": part.name})}


def shortfall(part: Part) -> str | None:
    """What of a part an Anthropic message cannot carry as it is; None if it can carry all."""
    if block_of(part) is None:
        return f"a {type(part).__name__.removesuffix('Part').lower()} part"
    if isinstance(part, ToolUsePart) and not isinstance(part.input, dict):
        return "arguments that are no object (wrapped as {arguments: …})"
    return None
