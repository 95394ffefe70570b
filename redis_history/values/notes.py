"""Notes in `provider_meta` that quote the content of a part, such as the original JSON text of arguments.

The note has the digest of that content under the key "of". After an edit it is out of date and must not bring back
removed content, so it is ignored, and dropped when the message is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from zlib import crc32

import msgspec
from msgspec.structs import replace

from redis_history.values.message import Message
from redis_history.values.parts import (
    AttachmentPart,
    Part,
    ReasoningPart,
    TextPart,
    ToolResultPart,
    ToolUsePart,
    UnknownPart,
)

#: The key of such a note inside the note of a format.
QUOTES: Final = "quotes"


def digest_of(holder: Any) -> int:
    """A digest of the content of a part, or of all parts of a message."""
    try:
        return crc32(msgspec.msgpack.encode(_content_of(holder)))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return -1  # it cannot be stored


def is_current(quotes: Any, holder: Any) -> bool:
    """Whether a note that quotes content belongs to the present content."""
    return isinstance(quotes, Mapping) and quotes.get("of") == digest_of(holder)


def without_stale_notes(message: Message) -> Message:
    """The message without notes that quote former content."""
    if not message.provider_meta and not any(getattr(part, "provider_meta", None) for part in message.parts):
        return message
    parts = tuple(map(_cleaned, message.parts))
    if any(new is not old for new, old in zip(parts, message.parts, strict=True)):
        message = replace(message, parts=parts)
    cleaned: Message = _cleaned(message)
    return cleaned


def _cleaned(holder: Any) -> Any:
    meta = getattr(holder, "provider_meta", None)
    if not meta or not isinstance(meta, dict):
        return holder
    kept = {form: _without_stale(note, holder) for form, note in meta.items()}
    return holder if all(kept[form] is meta[form] for form in meta) else replace(holder, provider_meta=kept)


def _without_stale(note: Any, holder: Any) -> Any:
    if not isinstance(note, dict) or QUOTES not in note or is_current(note[QUOTES], holder):
        return note
    return {key: value for key, value in note.items() if key != QUOTES}


def _content_of(holder: Message | Part) -> Any:
    match holder:
        case Message():
            return [_content_of(part) for part in holder.parts]
        case TextPart() | ReasoningPart():
            return holder.text
        case ToolUsePart():
            return [holder.name, holder.input]
        case ToolResultPart():
            return holder.content
        case AttachmentPart():
            return [holder.name, holder.reference]
        case UnknownPart():
            return holder.data
