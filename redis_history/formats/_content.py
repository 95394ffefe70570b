"""The content of parts: references to files, and arguments of tool calls.

A reference with a scheme is a URI. A reference of only letters, digits, "-" and "_" is the id of a file that was
uploaded to a provider. Providers cannot use any other reference, such as an object key or a path.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from redis_history.formats._notes import FORMS, Json, Rendered, note_of, storable, stored_value, with_note
from redis_history.values import AttachmentPart, Modality

NOT_USABLE = "a file that is not inline, not a URL and not uploaded to this provider"

#: The type of a data URL for inline content without a type.
UNKNOWN_TYPE = "application/octet-stream"

_FILE_ID = re.compile(r"[A-Za-z0-9_-]{1,256}")
#: Both formats belong to OpenAI and share its uploaded files.
_OPENAI = frozenset(("openai_chat", "openai_responses"))
_STYLES = {
    "compact": ((",", ":"), False),
    "spaced": ((", ", ": "), False),
    "spaced_ascii": ((", ", ": "), True),
    "compact_ascii": ((",", ":"), True),
}


def data_url(mime_type: str, base64: str) -> str:
    """A URL such as `data:image/png;base64,…`. The base64 text is not decoded."""
    return f"data:{mime_type};base64,{base64}"


def standard_base64(text: str) -> str:
    """Base64 text in the standard alphabet and with padding. Pydantic writes the URL-safe one, which most APIs reject;
    browsers leave out the padding."""
    plain = text.replace("-", "+").replace("_", "/") if "-" in text or "_" in text else text
    return plain + "=" * (-_letters(plain) % 4)


def accepted_data_url(url: str) -> str:
    """A data URL whose base64 all APIs accept: standard, and without line breaks, which encoders of mail write."""
    head, _, data = url.partition(",")
    return f"{head},{standard_base64(''.join(data.split()))}"


def base64_style(text: str) -> str:
    """How `text` differs from its standard form, for `styled_base64`."""
    return ("safe " if "-" in text or "_" in text else "") + ("bare" if _letters(text) % 4 else "")


def _letters(text: str) -> int:
    return len(text) - text.count("\n") - text.count("\r")


def styled_base64(text: str, style: str) -> str:
    """Base64 text as it was before `standard_base64`."""
    text = text.rstrip("=") if "bare" in style else text
    return text.replace("+", "-").replace("/", "_") if "safe" in style else text


def split_data_url(url: str | None) -> tuple[str | None, str | None]:
    """MIME type and base64 text of a data URL; (None, None) for other URLs."""
    head, comma, data = (url or "").partition(",")
    if comma and head.startswith("data:") and head.endswith(";base64"):
        return head[5:-7], data
    return None, None


def is_image(part: AttachmentPart) -> bool:
    return part.modality == "image" or (part.modality is None and (part.mime_type or "").startswith("image/"))


def text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def reference_note(reference: str, *, uploaded: bool) -> Json:
    """A note that `reference` is a file id of this provider, or that it is not a file id although it looks like one.

    The note contains the reference itself, so it no longer applies after the reference was edited.
    """
    if uploaded:
        return {"file_id": reference}
    return {"not_file_id": reference} if _FILE_ID.fullmatch(reference) else {}


def attachment(
    form: str,
    modality: Modality,
    reference: str,
    *,
    name: Any = None,
    mime_type: Any = None,
    uploaded: bool = False,
    note: Json | None = None,
) -> AttachmentPart:
    """A file of the provider of `form`. `uploaded`: the reference is the id of a file there."""
    return AttachmentPart(
        modality=modality,
        name=text_or_none(name),
        mime_type=mime_type if isinstance(mime_type, str) else split_data_url(reference)[0],
        reference=reference,
        provider_meta=with_note(form, {**(note or {}), **reference_note(reference, uploaded=uploaded)}),
    )


def anthropic_file(kind: Modality, source: Mapping[str, Any], name: Any = None) -> AttachmentPart | None:
    """The file of an Anthropic `source`."""
    match source:
        case {"type": "base64", "media_type": str(mime), "data": str(data)}:
            return attachment("anthropic", kind, data_url(mime, data), name=name)
        case {"type": "url", "url": str(url)}:
            return attachment("anthropic", kind, url, name=name)
        case {"type": "file", "file_id": str(id_)}:
            return attachment("anthropic", kind, id_, name=name, uploaded=True)
    return None


def file_id(part: AttachmentPart, form: str) -> str | None:
    """The id of the file at the provider of `form`; None if it was not uploaded there."""
    reference = part.reference
    if reference is None:
        return None
    for name in {*FORMS, form}:
        note = note_of(part, name)
        if note.get("file_id") == reference:
            return reference if name == form or {name, form} == _OPENAI else None
        if note.get("not_file_id") == reference:
            return None
    return reference if _FILE_ID.fullmatch(reference) else None


# Arguments of tool calls are stored as a value. Some providers use a JSON string, which models format in different
# ways. The note has the name of the style, or the string itself, so that the provider (and its prompt cache) gets back
# exactly what it sent.


def parse_arguments(raw: Any) -> tuple[Any, Json]:
    """The value of `raw` and a note for `dump_arguments`. Invalid JSON, and values that cannot be stored, stay strings.
    Servers write no arguments as {}, null or an empty text, or leave them out."""
    if raw is None or raw == "":
        return {}, {"style": "null" if raw is None else "empty"}
    if not isinstance(raw, str):
        value, is_text = stored_value(raw)
        return (_dump(raw), {"style": "parsed"}) if is_text else (value, {"style": "object"})
    try:
        value = json.loads(raw, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return raw, {}
    if isinstance(value, str) or not storable(value):
        return raw, {}
    for style in _STYLES:
        if _dump(value, style) == raw:
            return value, {} if style == "compact" else {"style": style}
    return value, {"raw": raw}


def given_arguments(value: Any) -> tuple[Any, Json]:
    """The arguments of a call whose provider writes them as an object, and a note that restores them: null, no value
    and an empty text are no arguments."""
    return ({}, {"empty": value}) if value is None or value == "" else (value, {})


def dump_arguments(value: Any, note: Any = None, *, text: bool = False) -> Any:
    """The string for `value`: the original one if `note` describes it and `value` is unchanged, else compact JSON.

    A value that the provider wrote as an object stays one, unless `text`.
    """
    note = note or {}
    style = note.get("style", "compact")
    if value == {} and (style == "empty" or (style == "null" and not text)):
        return "" if style == "empty" else None
    if isinstance(value, str):
        return value if style != "parsed" or text else parsed(value)
    if style in ("object", "parsed") and not text:
        return value
    raw = note.get("raw")
    if isinstance(raw, str) and json.loads(raw) == value:
        return raw
    return _dump(value, style if style in _STYLES else "compact")


def parsed(text: Any) -> Any:
    """The value of JSON text; `text` itself if it is not JSON."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def as_object(arguments: Any, *, own: bool = False) -> Rendered:
    """The arguments of a call as an object. `own`: this provider wrote the JSON text."""
    found = parsed(arguments)
    if isinstance(found, dict) and (own or found is arguments or _is_json(found)):
        return found, None
    return {"arguments": arguments}, "arguments that are not an object (wrapped as {arguments: …})"


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return False
    return True


def _dump(value: Any, style: str = "compact") -> str:
    separators, ascii_only = _STYLES[style]
    return json.dumps(value, ensure_ascii=ascii_only, separators=separators, default=str)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")
