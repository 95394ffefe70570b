"""Convert single content blocks of OpenAI chat completions to parts and back."""

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
    note_of,
    part_or_opaque,
    rebuild,
    with_note,
)
from redis_history.model import AttachmentPart, Part, TextPart, ToolResultPart, UnknownPart

__all__ = ["FORM", "block_of", "part_of_block", "result_content"]

FORM = "openai_chat"

_SOUNDS = ("wav", "mp3")


def part_of_block(block: Any) -> Part:
    """The part for one block of a message's content; an opaque part for an unknown block."""
    return part_or_opaque(FORM, block, _known_block(block), _block)


def _known_block(block: Any) -> Part | None:
    match block:
        case {"type": "text", "text": str(text)}:
            return TextPart(text=text)
        case {"type": "refusal", "refusal": str(text)}:
            return TextPart(text=text, provider_meta={FORM: {"type": "refusal"}})
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            meta = with_note(FORM, reference_note(url))
            return AttachmentPart(modality="image", reference=url, mime_type=split_data_url(url)[0], provider_meta=meta)
        case {"type": "input_audio", "input_audio": {"data": str(data), "format": str(kind)}}:
            mime = f"audio/{kind}"
            return AttachmentPart(modality="audio", mime_type=mime, reference=data_url(mime, data))
        case {"type": "file", "file": Mapping() as file}:
            id_, name, content = (file.get(key) for key in ("file_id", "filename", "file_data"))
            if all(value is None or isinstance(value, str) for value in (id_, name, content)):
                reference = id_ if content is None else content
                note = {} if reference is None else reference_note(reference, is_file_id=content is None)
                return AttachmentPart(
                    name=name, modality="document", reference=reference, provider_meta=with_note(FORM, note)
                )
    return None


def block_of(part: Part, shape: Shape) -> Any:
    """The content block for a part; None if chat completions cannot represent it."""
    if isinstance(part, UnknownPart):
        block = foreign_block(FORM, part)
        return None if is_call(block) else block
    note = note_of(part, FORM)
    ours = _block(part, "original" if note.get("own") else shape)
    return None if ours is None else rebuild(ours, note, valid=shape != "original")


def _block(part: Part, shape: Shape) -> Json | None:
    if isinstance(part, TextPart):
        kind = "refusal" if note_of(part, FORM).get("type") == "refusal" else "text"
        return {"type": kind, kind: part.text}
    return _file(part, shape) if isinstance(part, AttachmentPart) else None


def _file(part: AttachmentPart, shape: Shape) -> Json | None:
    reference = part.reference
    mime, data = split_data_url(reference or "")
    picture = part.modality == "image" or (part.modality is None and (part.mime_type or "").startswith("image/"))
    uploaded = file_id(part, FORM)
    if picture and reference is not None and uploaded is None:
        linked = data is not None or reference.startswith(("http://", "https://"))
        return {"type": "image_url", "image_url": {"url": reference}} if linked or shape == "original" else None
    if part.modality == "audio" and data is not None and mime is not None:
        kind = {"mpeg": "mp3", "x-wav": "wav", "wave": "wav"}.get(mime.partition("/")[2], mime.partition("/")[2])
        if shape == "original":
            kind = mime.partition("/")[2]
        elif kind not in _SOUNDS:
            return None
        return {"type": "input_audio", "input_audio": {"data": data, "format": kind}}
    if part.modality == "video" or (part.modality == "audio" and FORM not in (part.provider_meta or {})):
        return None
    if uploaded is None and data is None and shape != "original":
        return None  # only the Responses API accepts a file by URL
    named = {"file_id": uploaded, "filename": part.name, "file_data": reference if uploaded is None else None}
    return {"type": "file", "file": {key: value for key, value in named.items() if value is not None}}


def result_content(part: ToolResultPart, shape: Shape) -> tuple[Any, str | None]:
    """A tool result as `content` (a string or text blocks), and what was lost, or None."""
    content = part.content
    if isinstance(content, str):
        return content, None
    own = FORM in (part.provider_meta or {})
    if (shape == "original" and (content is None or own)) or (content == [] and own):
        return content, None
    if content is None:
        return "", None
    return converted(content, ("text",), _text_block)


def _text_block(part: Part) -> Json | None:
    return {"type": "text", "text": part.text} if isinstance(part, TextPart) else None
