"""The kinds of attachment references: a data URL, another URI, or the id of a file that was uploaded to a provider.

A reference with a scheme is a URI. A reference of only letters, digits, "-" and "_" is a file id. Providers cannot use
any other reference, such as an object key or a path.
"""

from __future__ import annotations

import re
from typing import Final

from redis_history.formats._shape import FORMS, Json, is_foreign, note_of
from redis_history.model import AttachmentPart

__all__ = ["data_url", "file_id", "reference_note", "split_data_url"]

_FILE_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,256}")
#: Both formats belong to OpenAI and share its uploaded files.
_OPENAI: Final = frozenset(("openai_chat", "openai_responses"))


def data_url(mime_type: str, base64: str) -> str:
    """A URL such as `data:image/png;base64,…`. The base64 text is not decoded."""
    return f"data:{mime_type};base64,{base64}"


def split_data_url(url: str) -> tuple[str | None, str | None]:
    """MIME type and base64 text of a data URL; (None, None) for other URLs."""
    head, comma, data = url.partition(",")
    if comma and head.startswith("data:") and head.endswith(";base64"):
        return head[5:-7], data
    return None, None


def reference_note(reference: str, *, is_file_id: bool = False) -> Json:
    """A note that `reference` is a file id of this provider, or that it is not a file id although it looks like one.

    The note contains the reference itself, so it no longer applies after the reference was edited.
    """
    if is_file_id:
        return {"file_id": reference}
    return {"not_file_id": reference} if _FILE_ID.fullmatch(reference) else {}


def file_id(part: AttachmentPart, form: str) -> str | None:
    """The id of the file at the provider of `form`; None if it was not uploaded there."""
    reference = part.reference
    if reference is None:  # version 0.1.0 stored the ids of imported files in `id`
        return None if is_foreign(part, form) else part.id
    for name in {*FORMS, form}:
        note = note_of(part, name)
        if note.get("file_id") == reference:
            return reference if name == form or {name, form} == _OPENAI else None
        if note.get("not_file_id") == reference:
            return None
    return reference if _FILE_ID.fullmatch(reference) else None
