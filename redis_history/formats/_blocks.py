"""Content blocks of any provider or framework: the files in them, and the content of tool results.

A block in a provider's form is restored from a *template*: the block without its file, in the note of the part. So a
file that was removed or replaced does not remain elsewhere in the message.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from redis_history.formats._content import (
    UNKNOWN_TYPE,
    base64_style,
    data_url,
    reference_note,
    split_data_url,
    standard_base64,
    styled_base64,
)
from redis_history.formats._notes import Json, Rendered, note_of, with_note
from redis_history.values import AttachmentPart, Modality, Part, TextPart
from redis_history.values.contents import readable
from redis_history.values.quoting import file_hint

_MODALITIES: Final[Mapping[str, Modality]] = {
    "image": "image",
    "audio": "audio",
    "video": "video",
    "file": "document",
    "document": "document",
}


class _Place(NamedTuple):
    """Where a block has its file: `path` leads to the data, the URL or the id at the provider `owner`, `named` to the
    name of the file."""

    kind: Literal["base64", "url", "id"]
    path: tuple[str, ...]
    modality: Modality
    mime_type: Any = None
    named: tuple[str, ...] = ()
    owner: str = ""


def file_of(block: Any) -> AttachmentPart | None:
    """The file in a content block; None for other blocks."""
    place = _place(block)
    return None if place is None else _file(block, place, {})


def templated(form: str, block: Any) -> AttachmentPart | None:
    """The file in a content block, with a note of `form` that restores the block; None for other blocks."""
    place = _place(block)
    if place is None:
        return None
    template, value = _with(block, place.path, ""), _at(block, place.path)
    note: Json = {"kind": place.kind, "at": list(place.path)}
    if place.named:
        template = _with(template, place.named, "")
        note["named"] = list(place.named)
    if place.kind == "base64":
        note |= {"mime": place.mime_type, "base64": base64_style(value)}
    elif place.kind == "url" and split_data_url(value)[1] is not None:
        note["inline"] = True
    return _file(block, place, {form: {"template": {**note, "block": template}}})


def from_template(form: str, part: AttachmentPart) -> Any:
    """The block of `form` for a file that came from such a block, or None for other files and those it cannot hold."""
    note = note_of(part, form).get("template")
    if not isinstance(note, Mapping) or part.reference is None:
        return None
    mime, data = split_data_url(part.reference)
    value = part.reference
    if note["kind"] == "base64":
        if data is None or mime != (note["mime"] or UNKNOWN_TYPE):
            return None
        value = styled_base64(data, note["base64"])
    elif (data is not None) != note.get("inline", False):
        return None
    block = _with(note["block"], note["at"], value)
    return _with(block, note["named"], part.name or "") if "named" in note else block


def _file(block: Mapping[str, Any], place: _Place, notes: Json) -> AttachmentPart:
    reference = _at(block, place.path)
    if place.kind == "base64":
        reference = data_url(place.mime_type or UNKNOWN_TYPE, standard_base64(reference))
    elif place.kind == "id":
        notes = {**notes, place.owner: {**notes.get(place.owner, {}), **reference_note(reference, uploaded=True)}}
    meta = [with_note(form, note) for form, note in notes.items()]
    return AttachmentPart(
        modality=place.modality,
        name=(_at(block, place.named) or None) if place.named else None,
        mime_type=place.mime_type or split_data_url(reference)[0],
        reference=reference,
        provider_meta={form: note for one in meta if one for form, note in one.items()} or None,
    )


def _at(block: Any, path: Sequence[str]) -> Any:
    for key in path:
        block = block[key]
    return block


def _with(block: Mapping[str, Any], path: Sequence[str], value: Any) -> Json:
    head, *rest = path
    return {**block, head: _with(block[head], rest, value) if rest else value}


def _of(mime: Any, kind: str = "") -> Modality:
    return _MODALITIES.get(kind) or _MODALITIES.get(str(mime or "").partition("/")[0], "document")


def _named(block: Mapping[str, Any], *names: tuple[str, ...]) -> tuple[str, ...]:
    """The first of these places that has text."""
    for path in names:
        inner = block.get(path[0])
        if isinstance(inner.get(path[1]) if len(path) > 1 and isinstance(inner, Mapping) else inner, str):
            return path
    return ()


def _place(block: Any) -> _Place | None:
    """Where a block has its file, in the order: LangChain, Anthropic, OpenAI and Mistral, MCP, Agent Framework,
    Pydantic AI, LlamaIndex, Gemini."""
    if not isinstance(block, Mapping):
        return None
    mime = next(
        (block[key] for key in ("mime_type", "mimeType", "media_type") if isinstance(block.get(key), str)), None
    )
    match block:
        case {"type": str(kind), "source_type": "base64", "data": str()}:
            return _Place("base64", ("data",), _of(mime, kind), mime, _named(block, ("filename",), ("name",)))
        case {"type": str(kind), "source_type": "url", "url": str()}:
            return _Place("url", ("url",), _of(mime, kind), mime, _named(block, ("filename",), ("name",)))
        case {"type": str(kind), "source_type": "id", "id": str()}:
            return _Place("id", ("id",), _of(mime, kind), mime, owner="langchain")
        case {"type": "image" | "audio" | "video" | "file" as kind, "base64": str()}:
            return _Place("base64", ("base64",), _of(mime, kind), mime)
        case {"type": "media", "data": str()}:
            return _Place("base64", ("data",), _of(mime), mime)
        case {"type": "media", "file_uri": str()}:
            return _Place("url", ("file_uri",), _of(mime), mime)
        case {"type": "image" | "document" as kind, "source": {"type": "base64", "data": str()} as source}:
            found = source.get("media_type")
            return _Place("base64", ("source", "data"), _of(found, kind), found, _named(block, ("title",)))
        case {"type": "image" | "document" as kind, "source": {"type": "url", "url": str()}}:
            return _Place("url", ("source", "url"), _of(None, kind), None, _named(block, ("title",)))
        case {"type": "image" | "document" as kind, "source": {"type": "file", "file_id": str()}}:
            named = _named(block, ("title",))
            return _Place("id", ("source", "file_id"), _of(None, kind), None, named, "anthropic")
        case {"type": "image_url", "image_url": {"url": str()}}:
            return _Place("url", ("image_url", "url"), "image")
        case {"type": "image_url" | "input_image", "image_url": str()}:
            return _Place("url", ("image_url",), "image")
        case {"type": "document_url", "document_url": str()}:
            return _Place("url", ("document_url",), "document", None, _named(block, ("document_name",)))
        case {"type": "input_audio", "input_audio": {"data": str(), "format": str(form)}}:
            return _Place("base64", ("input_audio", "data"), "audio", f"audio/{form}")
        case {"type": "input_image", "file_id": str()}:
            return _Place("id", ("file_id",), "image", owner="openai_responses")
        case {"type": "input_file", "file_id": str()}:
            return _Place("id", ("file_id",), "document", None, _named(block, ("filename",)), "openai_responses")
        case {"type": "input_file", "file_data": str()}:
            return _Place("url", ("file_data",), "document", None, _named(block, ("filename",)))
        case {"type": "input_file", "file_url": str()}:
            return _Place("url", ("file_url",), "document", None, _named(block, ("filename",)))
        case {"type": "file", "file": {"file_data": str()}}:
            return _Place("url", ("file", "file_data"), "document", None, _named(block, ("file", "filename")))
        case {"type": "file", "file": {"file_id": str()}}:
            named = _named(block, ("file", "filename"))
            return _Place("id", ("file", "file_id"), "document", None, named, "openai_chat")
        case {"type": "image" | "audio" as kind, "data": str()} if mime:
            return _Place("base64", ("data",), _of(mime, kind), mime)
        case {"type": "resource", "resource": {"blob": str()} as resource}:
            found = resource.get("mimeType")
            return _Place("base64", ("resource", "blob"), _of(found), found)
        case {"type": "data" | "uri", "uri": str()}:
            return _Place("url", ("uri",), _of(mime), mime)
        case {"kind": "binary", "data": str()}:
            return _Place("base64", ("data",), _of(mime), mime)
        case {"kind": "image-url" | "audio-url" | "video-url" | "document-url" as kind, "url": str()}:
            return _Place("url", ("url",), _of(mime, kind.removesuffix("-url")), mime)
        case {"block_type": str(kind)}:
            return _of_llama_index(block, kind)
    return _of_gemini(block)


def _of_gemini(block: Mapping[str, Any]) -> _Place | None:
    for key, inner in block.items():
        if key not in ("inline_data", "inlineData", "file_data", "fileData") or not isinstance(inner, Mapping):
            continue
        mime = inner.get("mime_type", inner.get("mimeType"))
        named = _named(block, (key, "display_name"), (key, "displayName"))
        for held in ("data", "file_uri", "fileUri"):
            if isinstance(inner.get(held), str):
                return _Place("base64" if held == "data" else "url", (key, held), _of(mime), mime, named)
    return None


def _of_llama_index(block: Mapping[str, Any], kind: str) -> _Place | None:
    if kind not in ("image", "audio", "video", "document"):
        return None
    mime = block.get("format" if kind == "audio" else f"{kind}_mimetype")
    if isinstance(mime, str) and "/" not in mime:
        mime = f"{kind}/{mime}"
    named = _named(block, ("title",)) if kind == "document" else ()
    data = "data" if kind == "document" else kind
    if isinstance(block.get(data), str):
        return _Place("base64", (data,), _of(mime, kind), mime, named)
    return _Place("url", ("url",), _of(mime, kind), mime, named) if isinstance(block.get("url"), str) else None


# Content of tool results


def parts_of(content: Any) -> list[Part] | None:
    """The texts and files in a list of content blocks of any provider; None if it is not such a list."""
    if not isinstance(content, list) or not content:
        return None
    found = [_part(block) for block in content]
    return None if None in found else found  # type: ignore[return-value]


def converted(content: Any, native: Collection[str], block_of: Callable[[Part], Any]) -> Rendered:
    """The content as text, or as blocks of the types in `native`. A file that the result cannot contain becomes a
    text with its name. In other values, which are written as JSON, base64 becomes a marker such as "[image]": no model
    can look at it there. Signatures and encrypted content, which only their provider can read, are left out."""
    if isinstance(content, str):
        return content, None
    if isinstance(content, list) and content:
        if all(_is_native(block, native) for block in content):
            return content, None
        if (parts := parts_of(content)) is not None:
            blocks, missing = [], 0
            for part in parts:
                block = block_of(part)
                if block is None and isinstance(part, AttachmentPart):
                    missing += 1
                    block = block_of(TextPart(file_hint(part)))
                blocks += [] if block is None else [block]
            reason = f"{missing} of {len(parts)} blocks of a tool result: files that a result cannot contain"
            return blocks, reason if missing else None
    plain, media = readable(content)
    lost = f"{len(media)} images or files inside the value of a tool result" if media else None
    return json.dumps(plain, ensure_ascii=False, default=str), lost


def _is_native(block: Any, native: Collection[str]) -> bool:
    """Whether a block has one of the types in its native form. MCP and LangChain use the same type names as Anthropic
    and Mistral, but another form."""
    if not isinstance(block, Mapping) or block.get("type") not in native:
        return False
    kind = block["type"]
    if kind in ("image", "document"):
        return "source" in block
    if kind == "input_audio":
        return isinstance(block.get(kind), str)
    return kind != "file" or "file_id" in block


def _part(block: Any) -> Part | None:
    match block:
        case {"type": "text" | "input_text" | "output_text", "text": str(text)} | {
            "type": "image" | "document",
            "source": {"type": "text", "data": str(text)},
        }:
            return TextPart(text=text)
        case {"type": "text-plain" | "file", "text": str(text)}:
            return TextPart(text=text)
        case {"type": "resource", "resource": {"text": str(text)}}:
            return TextPart(text=text)
    return file_of(block)
