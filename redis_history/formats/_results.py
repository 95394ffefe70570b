"""Convert the content of tool results, which can have any form, into blocks that the target format supports."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from redis_history.formats._references import data_url, reference_note, split_data_url
from redis_history.model import AttachmentPart, Modality, Part, TextPart

__all__ = ["as_text", "converted", "parts_of"]


def as_text(content: Any) -> str:
    """`content` itself if it is text, else its JSON."""
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, default=str)


def parts_of(content: Any) -> list[Part] | None:
    """The texts and files in a list of content blocks of any provider; None if it is not such a list."""
    if not isinstance(content, list | tuple) or not content:
        return None
    found = [_part(block) for block in content]
    return None if None in found else found  # type: ignore[return-value]


def converted(
    content: Any, native: Iterable[str], block_of: Callable[[Part], Any]
) -> tuple[str | list[Any], str | None]:
    """The content as text, or as blocks of the types in `native`; and what was lost, or None."""
    if isinstance(content, str):
        return content, None
    known = frozenset(native)
    if isinstance(content, list) and content:
        if all(isinstance(block, Mapping) and block.get("type") in known for block in content):
            return content, None
        parts = parts_of(content)
        if parts is not None:
            blocks = [block_of(part) for part in parts]
            lost = sum(block is None for block in blocks)
            reason = f"{lost} of {len(blocks)} blocks of a tool result: files that a result cannot contain"
            return [block for block in blocks if block is not None], reason if lost else None
    return as_text(content), None


def _part(block: Any) -> Part | None:
    match block:
        case {"type": "text" | "input_text" | "output_text", "text": str(text)}:
            return TextPart(text=text)
        case {"type": "image" | "document" as kind, "source": Mapping() as source}:
            return _anthropic(kind, source)
        case {"type": "image_url", "image_url": {"url": str(url)} | str(url)}:
            return _file("image", url)
        case {"type": "input_image", "image_url": str(url)}:
            return _file("image", url)
        case {"type": "input_image" | "input_file", "file_id": str(id_)}:
            return _uploaded("image" if block["type"] == "input_image" else "document", id_, "openai_responses")
        case {"type": "input_file", "file_data": str(url)} | {"type": "input_file", "file_url": str(url)}:
            return _file("document", url)
        case {"type": "document_url", "document_url": str(url)}:
            return _file("document", url)
        case {"type": "image" | "audio" as kind, "data": str(data), "mimeType": str(mime)}:  # MCP's block type
            return _file(kind, data_url(mime, data))
    return None


def _file(modality: Modality, url: str) -> AttachmentPart:
    return AttachmentPart(modality=modality, reference=url, mime_type=split_data_url(url)[0])


def _uploaded(modality: Modality, id_: str, form: str) -> AttachmentPart:
    return AttachmentPart(modality=modality, reference=id_, provider_meta={form: reference_note(id_, is_file_id=True)})


def _anthropic(kind: Modality, source: Mapping[str, Any]) -> Part | None:
    match source:
        case {"type": "base64", "media_type": str(mime), "data": str(data)}:
            return _file(kind, data_url(mime, data))
        case {"type": "url", "url": str(url)}:
            return _file(kind, url)
        case {"type": "file", "file_id": str(id_)}:
            return _uploaded(kind, id_, "anthropic")
        case {"type": "text", "data": str(text)}:
            return TextPart(text=text)
    return None
