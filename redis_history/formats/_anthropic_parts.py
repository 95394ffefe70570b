"""Convert single content blocks of Anthropic messages to parts and back."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from redis_history.formats._references import data_url, file_id, reference_note, split_data_url
from redis_history.formats._results import converted
from redis_history.formats._shape import (
    Json,
    Shape,
    foreign_block,
    is_foreign,
    note_of,
    part_or_opaque,
    rebuild,
    with_note,
)
from redis_history.model import AttachmentPart, Part, ReasoningPart, TextPart, ToolResultPart, ToolUsePart, UnknownPart

__all__ = ["FORM", "part_of_block", "render"]

FORM = "anthropic"

_IN_RESULTS = ("text", "image", "search_result", "document", "tool_reference", "browser_state")
_IMAGES = frozenset(("image/jpeg", "image/png", "image/gif", "image/webp"))


def part_of_block(block: Any) -> Part:
    """The part for one content block; an opaque part for an unknown block."""
    return part_or_opaque(FORM, block, _known_block(block), lambda part, shape: _block(part, shape)[0])


def _known_block(block: Any) -> Part | None:
    match block:
        case {"type": "text", "text": str(text)}:
            return TextPart(text=text)
        case {"type": "thinking", "thinking": str(text)}:
            signature = block.get("signature")
            # Only the provider that signed the reasoning accepts the signature, so the note names it.
            return ReasoningPart(
                text=text,
                signature=signature if isinstance(signature, str) else None,
                provider_meta={FORM: {"type": "thinking"}},
            )
        case {"type": "redacted_thinking", "data": str(data)}:
            return ReasoningPart(text="", signature=data, provider_meta={FORM: {"type": "redacted_thinking"}})
        case {"type": str(kind), "id": str(id_), "name": str(name), "input": dict(value)} if kind.endswith("tool_use"):
            meta = None if kind == "tool_use" else {FORM: {"type": kind}}
            return ToolUsePart(id=id_, name=name, input=value, provider_meta=meta)
        case {"type": str(kind), "tool_use_id": str(id_)} if kind.endswith("tool_result"):
            # Results of the provider's own tools can be encrypted, and are only accepted under their own type.
            note: Json = {} if kind == "tool_result" else {"type": kind}
            wrong = block.get("is_error") is True
            content = block.get("content")
            if not note and content is not None and converted(content, _IN_RESULTS, lambda part: None)[0] != content:
                note["content"] = True
            meta = {FORM: note} if note else None
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
            meta = with_note(FORM, reference_note(url))
            return AttachmentPart(modality=modality, name=name, reference=url, provider_meta=meta)
        case {"type": "file", "file_id": str(id_)}:
            meta = {FORM: reference_note(id_, is_file_id=True)}
            return AttachmentPart(modality=modality, name=name, reference=id_, provider_meta=meta)
    return None


def render(part: Part, shape: Shape) -> tuple[Any, str | None]:
    """The content block for a part, and what was lost, or None. The block is None if Anthropic cannot represent it."""
    if isinstance(part, UnknownPart):
        block = foreign_block(FORM, part)
        return block, None if block is not None else "an opaque part of another provider"
    note = note_of(part, FORM)
    ours, lost = _block(part, "original" if note.get("own") else shape)
    if ours is None:
        return None, lost
    not_null = ("content", "is_error") if isinstance(part, ToolResultPart) else ()
    return rebuild(ours, note, valid=shape != "original", not_null=not_null), lost


def _block(part: Part, shape: Shape) -> tuple[Json | None, str | None]:
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}, None
        case ReasoningPart():
            return _thinking(part)
        case ToolUsePart():
            if isinstance(part.input, dict):
                value, lost = part.input, None
            else:
                value, lost = {"arguments": part.input}, "arguments that are not an object (wrapped as {arguments: …})"
            kind = note_of(part, FORM).get("type", "tool_use")
            return {"type": kind, "id": part.id, "name": part.name, "input": value}, lost
        case ToolResultPart():
            return _result(part, shape)
        case AttachmentPart():
            return _file(part, shape)
    return None, "a part of an unknown kind"


def _thinking(part: ReasoningPart) -> tuple[Json | None, str | None]:
    if note_of(part, FORM).get("type") == "redacted_thinking":
        return {"type": "redacted_thinking", "data": part.signature or ""}, None
    if is_foreign(part, FORM):
        return None, "reasoning of another provider"
    if FORM not in (part.provider_meta or {}) and part.signature is None:
        return None, "reasoning without a signature, which the API rejects"
    return {"type": "thinking", "thinking": part.text, "signature": part.signature or ""}, None


def _result(part: ToolResultPart, shape: Shape) -> tuple[Json, str | None]:
    content, lost = part.content, None
    note = note_of(part, FORM)
    own = note.get("type", "tool_result")
    theirs = note.get("content") and (shape == "original" or content == [])
    if own == "tool_result" and content is not None and not theirs:
        content, lost = converted(content, _IN_RESULTS, lambda inner: _block(inner, shape)[0])
    out: Json = {"type": own, "tool_use_id": part.tool_use_id}
    if content is not None:
        out["content"] = content
    if part.is_error:
        out["is_error"] = True
    return out, lost


def _file(part: AttachmentPart, shape: Shape) -> tuple[Json | None, str | None]:
    if part.modality in ("audio", "video"):
        return None, f"{part.modality}, which the API does not accept"
    picture = part.modality == "image" or (part.modality is None and (part.mime_type or "").startswith("image/"))
    mime, data = split_data_url(part.reference or "")
    uploaded = file_id(part, FORM)
    source: Json
    if uploaded is not None:
        source = {"type": "file", "file_id": uploaded}
    elif data is not None:
        mime = mime or part.mime_type
        source = {"type": "base64", "media_type": mime, "data": data}
        if shape != "original" and mime not in (_IMAGES if picture else ("application/pdf",)):
            text = None if picture or mime is None or not mime.startswith("text/") else _decoded(data)
            if text is None:
                return None, f"a file of type {mime}, which the API does not accept inline"
            source = {"type": "text", "media_type": "text/plain", "data": text}
    elif part.reference is not None and (shape == "original" or part.reference.startswith(("http://", "https://"))):
        source = {"type": "url", "url": part.reference}
    else:
        return None, "a file that is not inline, not a URL and not uploaded to this provider"
    if picture:
        return {"type": "image", "source": source}, None
    return {"type": "document", "source": source, **({} if part.name is None else {"title": part.name})}, None


def _decoded(data: str) -> str | None:
    try:
        return base64.b64decode(data, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
