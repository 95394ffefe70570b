"""Converts conversations, messages and hits to the JSON values for the browser. No I/O.

Leaves out signatures and provider data. Long values are cut and marked as cut; long names are cut without a mark.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import orjson
from msgspec import Struct, structs

from redis_history.model import (
    AttachmentPart,
    Conversation,
    Message,
    Part,
    Participant,
    ReasoningPart,
    Source,
    TextPart,
    ToolResultPart,
    ToolUsePart,
    UnknownPart,
)
from redis_history.search.highlight import Highlight
from redis_history.search.hits import SearchHit
from redis_history.tokens import message_tokens

__all__ = ["LONGEST", "conversation_shape", "dumps", "glimpse", "hit_shape", "message_shape", "writer"]

#: Characters of one part or other free-form value. Longer values are cut; clients fetch them in full on request.
LONGEST: Final = 20_000
#: Characters of a name, and of the beginning of a message in a list.
_NAME: Final = 1_000
_GLIMPSE: Final = 200
#: Characters of a passage that a source quotes.
_PASSAGE: Final = 1_200
_HIDDEN: Final = frozenset(("signature", "provider_meta"))


def dumps(value: Any) -> bytes:
    """The value as JSON on one line."""
    try:
        return orjson.dumps(value, default=_plain)
    except TypeError:  # some key is not a string
        return orjson.dumps(_strict(value), default=_plain)


def conversation_shape(conversation: Conversation) -> dict[str, Any]:
    """A conversation: `C` in the documentation of the HTTP interface."""
    metadata, cut = _cut(conversation.metadata, LONGEST)
    shape = {
        "id": conversation.conversation_id,
        "title": _name(conversation.title),
        "user_id": _owner(conversation.user_id),
        "agent_name": _name(conversation.agent_name),
        "auditing_id": _owner(conversation.auditing_id),
        "message_count": conversation.message_count,
        "characters": conversation.characters,
        "tokens": conversation.tokens,
        "created_at": _instant(conversation.created_at),
        "updated_at": _instant(conversation.updated_at),
        "revision": conversation.revision,
        "metadata": {} if cut else metadata,
    }
    return shape | ({"metadata_cut": cut} if cut else {})


def message_shape(message: Message, *, whole: bool = False) -> dict[str, Any]:
    """A message: `M` in the documentation of the HTTP interface. `whole`: cut nothing."""
    most = None if whole else LONGEST
    metadata, cut = _cut(message.metadata, most)
    sources = list(_sources(message.sources, most))
    shape = {
        "id": message.id,
        "role": message.role,
        "parts": [_part(part, most) for part in message.parts],
        "participant": _participant(message.participant),
        "timestamp": _instant(message.timestamp),
        "position": None if message.position is None else str(message.position),
        "sequence": message.sequence,
        "scope": message.scope,
        "metadata": {"is_summary": message.is_summary} if cut else metadata,
        "sources": sources,
        "trace_id": _name(message.trace_id),
        "is_summary": message.is_summary,
        "text": message.text[:most],
        "tokens": message_tokens(message),
    }
    cuts = {"metadata_cut": cut, "sources_cut": len(message.sources) if len(sources) < len(message.sources) else 0}
    return shape | {name: size for name, size in cuts.items() if size}


def hit_shape(hit: SearchHit) -> dict[str, Any]:
    """A search hit. Spans count UTF-16 units, as JavaScript does."""
    found = [_highlight(highlight) for highlight in hit.highlights]
    return {
        "conversation": hit.conversation_id,
        "message": message_shape(hit.message),
        "score": hit.score,
        "archived": hit.archived,
        "highlight": found[0] if found else None,
        "highlights": found,
    }


def writer(message: Message | None) -> dict[str, Any] | None:
    """The author of a message, for the display of active writers."""
    if message is None:
        return None
    who = message.participant
    if who is not None:
        return {"name": _name(who.display_name or who.id), "kind": who.kind, "id": _name(who.id)}
    kind = {"user": "user", "system": "system"}.get(message.role, "agent")
    return {"name": message.role, "kind": kind, "id": None}


def glimpse(message: Message | None) -> dict[str, Any] | None:
    """The beginning of a message, for a list."""
    if message is None:
        return None
    who = writer(message)
    text = message.text[:_GLIMPSE]
    if not text and message.tool_uses:
        text = ", ".join(part.name[:_GLIMPSE] for part in message.tool_uses[:5])[:_GLIMPSE]
    return {"role": message.role, "name": who and who["name"], "text": text}


def _part(part: Part, most: int | None) -> dict[str, Any]:
    if isinstance(part, TextPart | ReasoningPart):
        shown: dict[str, Any] = {"text": part.text}
        kind, free = ("text" if isinstance(part, TextPart) else "reasoning"), "text"
    elif isinstance(part, ToolUsePart):
        kind, free = "tool_use", "input"
        shown = {"id": _name(part.id), "name": _name(part.name), "input": part.input}
    elif isinstance(part, ToolResultPart):
        kind, free = "tool_result", "content"
        shown = {
            "tool_use_id": _name(part.tool_use_id),
            "content": part.content,
            "is_error": part.is_error,
            "name": _name(part.name),
        }
    elif isinstance(part, AttachmentPart):
        kind, free = "attachment", "reference"
        shown = {"id": _name(part.id), "name": _name(part.name), "size": part.size, "modality": part.modality}
        shown |= {"mime_type": _name(part.mime_type), "reference": part.reference}
    else:
        assert isinstance(part, UnknownPart)  # noqa: S101
        kind, free = part.type[:_NAME], "data"
        shown = {"data": {key: value for key, value in part.data.items() if key not in _HIDDEN}}
    shown[free], cut = _cut(shown[free], most)
    return {"type": kind, **shown, **({"cut": cut} if cut else {})}


def _sources(sources: Iterable[Source], most: int | None) -> Iterator[dict[str, Any]]:
    """Cuts long passages, and stops when the sources exceed `most` bytes."""
    size = 0
    for source in sources:
        chunk, cut = _cut(source.chunk, most and _PASSAGE)
        shape = {
            "document_id": _name(source.document_id),
            "document_name": _name(source.document_name),
            "chunk": chunk,
            "score": source.score,
            **({"cut": cut} if cut else {}),
        }
        size += len(dumps(shape))
        if most is not None and size > most:
            return
        yield shape


def _cut(value: Any, most: int | None) -> tuple[Any, int]:
    """(value, 0); or if its text is longer than `most` characters, the beginning and the length of that text."""
    if value is None or most is None:
        return value, 0
    if isinstance(value, str):
        return (value, 0) if len(value) <= most else (value[:most], len(value))
    text = dumps(value)
    if len(text) <= most:
        return value, 0
    whole = text.decode()
    return (value, 0) if len(whole) <= most else (whole[:most], len(whole))


def _name(value: str | None) -> str | None:
    return value if value is None else value[:_NAME]


def _owner(value: int | str | None) -> int | str | None:
    return _name(value) if isinstance(value, str) else value


def _instant(value: datetime | None) -> str | None:
    return None if value is None else value.astimezone(UTC).isoformat()


def _participant(who: Participant | None) -> dict[str, Any] | None:
    if who is None:
        return None
    return {"kind": who.kind, "id": _name(who.id), "display_name": _name(who.display_name)}


def _highlight(highlight: Highlight) -> dict[str, Any]:
    text = highlight.text
    if not text.isascii():
        return {"text": text, "spans": [[_units(text[:start]), _units(text[:end])] for start, end in highlight.ranges]}
    return {"text": text, "spans": [list(span) for span in highlight.ranges]}


def _units(text: str) -> int:
    return len(text) + sum(1 for character in text if character > "\uffff")


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"&bytes": base64.b64encode(value).decode()}
    if isinstance(value, Struct):
        return structs.asdict(value)
    return str(value)


def _strict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [_strict(item) for item in value]
    return value
