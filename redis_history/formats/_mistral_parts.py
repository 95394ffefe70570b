"""Convert single content chunks of Mistral's chat to parts and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redis_history.formats._calls import is_call
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
from redis_history.model import AttachmentPart, Modality, Part, ReasoningPart, TextPart, ToolResultPart, UnknownPart

__all__ = ["FORM", "part_of_block", "render", "result_content"]

FORM = "mistral"

_IN_RESULTS = ("text", "image_url", "document_url", "reference", "file", "input_audio")
_SOUND = "application/octet-stream"  # an audio chunk does not say its type


def part_of_block(block: Any) -> Part:
    """The part for one chunk; an opaque part for an unknown chunk."""
    return part_or_opaque(FORM, block, _known_block(block), lambda part, shape: _block(part, shape)[0])


def _known_block(block: Any) -> Part | None:
    match block:
        case {"type": "text", "text": str(text)}:
            return TextPart(text=text)
        case {"type": "thinking", "thinking": list(chunks)}:
            return _thought(block, chunks)
        case {"type": "image_url", "image_url": str(url)}:
            return _linked("image", url)
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return _linked("image", url, {"object": True})
        case {"type": "document_url", "document_url": str(url)}:
            name = block.get("document_name")
            return _linked("document", url, name=name if isinstance(name, str) else None)
        case {"type": "file", "file_id": str(id_)}:
            note = reference_note(id_, is_file_id=True)
            return AttachmentPart(modality="document", reference=id_, provider_meta={FORM: note})
        case {"type": "input_audio", "input_audio": str(data)}:
            if data.startswith(("http://", "https://")):
                return _linked("audio", data)
            return _linked("audio", data_url(_SOUND, data))
    return None


def _linked(modality: Modality, url: str, note: Json | None = None, name: str | None = None) -> AttachmentPart:
    mime = split_data_url(url)[0]
    mime = None if mime == _SOUND else mime
    meta = with_note(FORM, {**(note or {}), **reference_note(url)})
    return AttachmentPart(modality=modality, name=name, mime_type=mime, reference=url, provider_meta=meta)


def _thought(block: Mapping[str, Any], chunks: list[Any]) -> Part:
    note: Json = {"type": "thinking"}
    text = _said(chunks)
    if chunks != [{"type": "text", "text": text}]:
        note["chunks"] = chunks
    signature = block.get("signature")
    return ReasoningPart(
        text=text, signature=signature if isinstance(signature, str) else None, provider_meta={FORM: note}
    )


def _said(chunks: Any) -> str:
    found = (chunk.get("text") for chunk in chunks if isinstance(chunk, Mapping))
    return "".join(text for text in found if isinstance(text, str))


def render(part: Part, shape: Shape) -> tuple[Any, str | None]:
    """The chunk for a part, and what was lost, or None. The chunk is None if Mistral cannot represent it."""
    if isinstance(part, UnknownPart):
        block = foreign_block(FORM, part)
        if block is None or is_call(block):
            return None, None if block is not None else "an opaque part of another provider"
        return block, None
    note = note_of(part, FORM)
    ours, lost = _block(part, "original" if note.get("own") else shape)
    return (None if ours is None else rebuild(ours, note, valid=shape != "original")), lost


def _block(part: Part, shape: Shape) -> tuple[Json | None, str | None]:
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}, None
        case ReasoningPart():
            return _thinking(part)
        case AttachmentPart():
            return _file(part, shape)
    return None, "a part of an unknown kind"


def _thinking(part: ReasoningPart) -> tuple[Json | None, str | None]:
    chunks = note_of(part, FORM).get("chunks")
    if not isinstance(chunks, list) or _said(chunks) != part.text:
        chunks = [{"type": "text", "text": part.text}]
    out: Json = {"type": "thinking", "thinking": chunks}
    if part.signature is None:
        return out, None
    if is_foreign(part, FORM):
        if not part.text:
            return None, "reasoning that only another provider can decrypt"
        return out, "the signature of another provider"
    return {**out, "signature": part.signature}, None


def _file(part: AttachmentPart, shape: Shape) -> tuple[Json | None, str | None]:
    reference = part.reference
    mime, data = split_data_url(reference or "")
    note = note_of(part, FORM)
    if part.modality == "video":
        return None, "video, which the API does not accept"
    uploaded = file_id(part, FORM)
    if uploaded is not None:
        lost = None if part.modality not in ("audio", "image") else f"the modality {part.modality} of an uploaded file"
        return {"type": "file", "file_id": uploaded}, lost
    if reference is None or (
        data is None and shape != "original" and not reference.startswith(("http://", "https://"))
    ):
        return None, "a file that is not inline, not a URL and not uploaded to this provider"
    if part.modality == "audio":
        return {"type": "input_audio", "input_audio": reference if data is None else data}, None
    if part.modality == "image" or (part.modality is None and (mime or part.mime_type or "").startswith("image/")):
        return {"type": "image_url", "image_url": {"url": reference} if note.get("object") else reference}, None
    named = {} if part.name is None else {"document_name": part.name}
    return {"type": "document_url", "document_url": reference, **named}, None


def result_content(part: ToolResultPart, shape: Shape) -> tuple[Any, str | None]:
    """A tool result as `content` (text, chunks or null), and what was lost, or None."""
    content = part.content
    own = FORM in (part.provider_meta or {})
    if content is None or (own and (shape == "original" or content == [])):
        return content, None
    # Other providers have blocks of the same name with another structure.
    native = (*_IN_RESULTS, "thinking") if own else _IN_RESULTS
    return converted(content, native, lambda inner: _block(inner, shape)[0])
