"""Convert single parts of Gemini's contents to parts and back. Keys are in snake case here."""

from __future__ import annotations

import base64
import binascii
import mimetypes
import re
from collections.abc import Mapping
from typing import Any

from redis_history.errors import InvalidMessageError
from redis_history.formats._references import data_url, split_data_url
from redis_history.formats._results import parts_of
from redis_history.formats._shape import Json, foreign_block, is_foreign, note_of, noted, opaque, rebuild, remember
from redis_history.model import (
    AttachmentPart,
    Modality,
    Part,
    ReasoningPart,
    TextPart,
    ToolResultPart,
    ToolUsePart,
    UnknownPart,
)

__all__ = ["FORM", "part_of", "render", "synthetic_id"]

FORM = "gemini"

_ODD = re.compile(r"[^A-Za-z0-9_-]")
_MODALITIES: dict[str, Modality] = {"image": "image", "audio": "audio", "video": "video"}
_UNKNOWN = "application/octet-stream"


def synthetic_id(name: str, count: int) -> str:
    """An id for a call that has none: its name, and its number among the calls of that name in one content. Results
    get their ids by the same rule, so they match their calls even when converted separately."""
    plain = _ODD.sub("_", name) or "call"
    return plain if count == 1 else f"{plain}-{count}"


def part_of(item: Any, call_id: str) -> Part:
    """The part for one part of a content; an opaque part for an unknown one.

    `call_id` is used for calls and results without an id.
    """
    raw, blobs = _without_bytes(item)
    part = _known(raw, call_id)
    if part is None:
        return opaque(FORM, raw)
    try:
        ours = _theirs(part, part.name or "" if isinstance(part, ToolResultPart) else "")[0] or {}
        note = remember(raw, ours)
    except InvalidMessageError:
        return opaque(FORM, raw)
    if blobs:
        note["bytes"] = True
    return noted(part, FORM, note)


def _known(raw: Any, call_id: str) -> Part | None:
    match raw:
        case {"thought": True, "text": str(text)}:
            signature = raw.get("thought_signature")
            signed = signature if isinstance(signature, str) else None
            return ReasoningPart(text=text, signature=signed, provider_meta={FORM: {"thought": True}})
        case {"text": str(text)}:
            return TextPart(text=text)
        case {"function_call": {"name": str(name)} as call}:
            id_, args = call.get("id"), call.get("args")
            note = {} if isinstance(id_, str) and id_ else {"no_id": True}
            if args is None:
                note["no_args"] = True
            elif not isinstance(args, dict):
                return None
            meta = {FORM: note} if note else None
            return ToolUsePart(
                id=call_id if "no_id" in note else str(id_), name=name, input=args or {}, provider_meta=meta
            )
        case {"function_response": {"name": str(name), "response": dict(response)} as result}:
            id_ = result.get("id")
            meta = None if isinstance(id_, str) and id_ else {FORM: {"no_id": True}}
            content, wrong = _answer(response)
            return ToolResultPart(
                tool_use_id=call_id if meta else str(id_),
                content=content,
                is_error=wrong,
                name=name,
                provider_meta=meta,
            )
        case {"inline_data": {"data": str(data)} as blob}:
            mime = blob.get("mime_type")
            named = mime if isinstance(mime, str) else None
            return _attachment(data_url(named or _UNKNOWN, data), named, blob.get("display_name"))
        case {"file_data": {"file_uri": str(uri)} as file}:
            mime = file.get("mime_type")
            named = mime if isinstance(mime, str) else None
            return _attachment(uri, named, file.get("display_name"), {FORM: {"file": True}})
    return None


def _attachment(reference: str, mime: str | None, name: Any, meta: Json | None = None) -> AttachmentPart:
    modality = _MODALITIES.get((mime or "").partition("/")[0], "document")
    shown = name if isinstance(name, str) else None
    return AttachmentPart(modality=modality, name=shown, mime_type=mime, reference=reference, provider_meta=meta)


def _answer(response: dict[str, Any]) -> tuple[Any, bool]:
    """The result of a tool, and whether it is an error. By convention the response has one key, `output` or `error`;
    any other response is the result itself."""
    if list(response) == ["output"]:
        return response["output"], False
    if list(response) == ["error"]:
        return response["error"], True
    return response, False


def render(part: Part, tool_name: str | None) -> tuple[Any, str | None]:
    """The Gemini part for a part, and what was lost, or None. The first is None if Gemini cannot represent it.

    `tool_name` is the name of the tool call, for a result without a name.
    """
    if isinstance(part, UnknownPart):
        block = foreign_block(FORM, part)
        return block, None if block is not None else "an opaque part of another provider"
    ours, lost = _theirs(part, tool_name)
    if ours is None:
        return None, lost
    note = note_of(part, FORM)
    out = rebuild(ours, note)
    return (_with_bytes(out) if note.get("bytes") else out), lost


def _theirs(part: Part, tool_name: str | None) -> tuple[Json | None, str | None]:
    match part:
        case TextPart():
            return {"text": part.text}, None
        case ReasoningPart():
            return _thought(part)
        case ToolUsePart():
            return _call(part)
        case ToolResultPart():
            return _result(part, tool_name)
        case AttachmentPart():
            return _file(part)
    return None, "a part of an unknown kind"


def _thought(part: ReasoningPart) -> tuple[Json | None, str | None]:
    out: Json = {"text": part.text, "thought": True}
    if part.signature is None:
        return out, None
    if is_foreign(part, FORM):
        if not part.text:
            return None, "reasoning that only another provider can decrypt"
        return out, "the signature of another provider"
    if FORM not in (part.provider_meta or {}) and not _is_base64(part.signature):
        return out, "a signature that is not base64"
    return {**out, "thought_signature": part.signature}, None


def _call(part: ToolUsePart) -> tuple[Json, str | None]:
    note = note_of(part, FORM)
    value, lost = part.input, None
    if not isinstance(value, dict):
        value, lost = {"arguments": value}, "arguments that are not an object (wrapped as {arguments: …})"
    call: Json = {} if note.get("no_id") else {"id": part.id}
    call["name"] = part.name
    if value or not note.get("no_args"):
        call["args"] = value
    return {"function_call": call}, lost


def _result(part: ToolResultPart, tool_name: str | None) -> tuple[Json, str | None]:
    content, lost = part.content, None
    name = part.name if part.name is not None else tool_name
    if name is None:
        name, lost = part.tool_use_id, "the name of the tool (its call is missing; the id is used instead)"
    found = parts_of(content)
    if found is not None and any(isinstance(inner, AttachmentPart) for inner in found):
        content = [{"type": "text", "text": inner.text} for inner in found if isinstance(inner, TextPart)]
        lost = "files in a tool result"
    wrapped = part.is_error or not isinstance(content, dict) or list(content) in (["output"], ["error"])
    response = {"error" if part.is_error else "output": content} if wrapped else content
    id_: Json = {} if note_of(part, FORM).get("no_id") else {"id": part.tool_use_id}
    return {"function_response": {**id_, "name": name, "response": response}}, lost


def _file(part: AttachmentPart) -> tuple[Json | None, str | None]:
    reference = part.reference
    own = FORM in (part.provider_meta or {})
    mime, data = split_data_url(reference or "")
    # Only one of Google's two APIs accepts a display name. It is restored if the original had it, but never added.
    lost = "the name of a file" if part.name is not None and not own else None
    if data is not None and not note_of(part, FORM).get("file"):
        if not own and not _is_base64(data):
            return None, "inline content that is not base64"
        kind = part.mime_type if mime == _UNKNOWN else mime
        typed = {} if kind is None else {"mime_type": kind}
        return {"inline_data": {**typed, "data": data}}, lost
    if reference is None or not (own or re.match(r"(https?|gs)://", reference)):
        return None, "a file that is not inline, not a URL and not uploaded to this provider"
    kind = part.mime_type or (None if own else mimetypes.guess_type(part.name or reference.partition("?")[0])[0])
    seen = _MODALITIES.get((kind or "").partition("/")[0], "document")
    if not own and lost is None and part.modality in _MODALITIES.values() and part.modality != seen:
        lost = f"the modality {part.modality}: the MIME type of the file does not say it"
    typed = {} if kind is None else {"mime_type": kind}
    return {"file_data": {**typed, "file_uri": reference}}, lost


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def _without_bytes(item: Any) -> tuple[Any, bool]:
    """`item` with bytes replaced by base64 text, and whether it had any."""
    if not isinstance(item, Mapping):
        return item, False
    out, found = dict(item), False
    if isinstance(out.get("thought_signature"), bytes):
        out["thought_signature"], found = _text(out["thought_signature"]), True
    blob = out.get("inline_data")
    if isinstance(blob, Mapping) and isinstance(blob.get("data"), bytes):
        out["inline_data"], found = {**blob, "data": _text(blob["data"])}, True
    return out, found


def _with_bytes(item: Json) -> Json:
    out = dict(item)
    if isinstance(out.get("thought_signature"), str):
        out["thought_signature"] = _bytes(out["thought_signature"])
    blob = out.get("inline_data")
    if isinstance(blob, Mapping) and isinstance(blob.get("data"), str):
        out["inline_data"] = {**blob, "data": _bytes(blob["data"])}
    return out


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text.replace("-", "+").replace("_", "/"))
