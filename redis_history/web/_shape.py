"""Adapts the JSON form of conversations, messages and hits to the browser. No I/O.

Leaves out signatures and provider data. Long values are cut and marked as cut; long names are cut without a mark.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import orjson

from redis_history.json_form import to_json
from redis_history.model import Conversation, Message, Part
from redis_history.search.hits import Highlight, SearchHit

#: Characters of one part or other free-form value. Longer values are cut; clients fetch them in full on request.
LONGEST: Final = 20_000
#: Characters of a name, and of the beginning of a message in a list.
_NAME: Final = 1_000
_GLIMPSE: Final = 200
#: Characters of a passage that a source quotes.
_PASSAGE: Final = 1_200
#: The facts of a reply, by type and the names that providers give them; and how deep and in how many tables to look.
_REPLY: Final[dict[str, tuple[tuple[type, ...], tuple[str, ...]]]] = {
    "model": ((str,), ("model", "model_name", "model_slug", "modelVersion", "model_version")),
    "input_tokens": ((int,), ("input_tokens", "prompt_tokens", "promptTokenCount", "prompt_token_count")),
    "output_tokens": ((int,), ("output_tokens", "completion_tokens", "candidatesTokenCount", "candidates_token_count")),
    "cost": ((int, float), ("cost", "cost_usd", "costUSD", "total_cost_usd", "response_cost")),
}
_DEPTH: Final = 4
_TABLES: Final = 100
_HIDDEN: Final = frozenset(("signature", "provider_meta", "schema_version"))
#: The free-form field of each type of part.
_FREE: Final = {
    "text": "text",
    "reasoning": "text",
    "tool_use": "input",
    "tool_result": "content",
    "attachment": "reference",
}


def dumps(value: Any) -> bytes:
    """The value as JSON on one line."""
    return orjson.dumps(value, default=to_json)


def conversation_shape(conversation: Conversation) -> dict[str, Any]:
    """A conversation: `C` in the documentation of the HTTP interface."""
    shape = _named(to_json(conversation), "metadata", LONGEST, "metadata_cut")
    shape["id"] = shape.pop("conversation_id")
    return shape | ({"metadata": {}} if "metadata_cut" in shape else {})


def message_shape(message: Message, *, whole: bool = False) -> dict[str, Any]:
    """A message: `M` in the documentation of the HTTP interface. `whole`: cut nothing."""
    most = None if whole else LONGEST
    shape: dict[str, Any] = to_json(message)
    text, sources = shape.pop("text"), shape.pop("sources")
    parts = [_part(part, most) for part in shape.pop("parts")]
    shape = _named(shape, "metadata", most, "metadata_cut")
    if "metadata_cut" in shape:
        shape["metadata"] = {"is_summary": message.is_summary}
    if shape["participant"] is not None:
        shape["participant"] = _named(shape["participant"])
    shape |= {"text": text[:most], "parts": parts, "sources": _sources(sources, most)}
    if message.role == "assistant" and (reply := _reply(message)):
        shape["reply"] = reply
    return shape | ({"sources_cut": len(sources)} if len(shape["sources"]) < len(sources) else {})


def _reply(message: Message) -> dict[str, Any]:
    """The model, tokens and cost of a model's reply, wherever a provider or a program has put them."""
    found: dict[str, Any] = {}
    layer: list[Any] = [*message.metadata.values(), *message.provider_meta.values(), message.metadata]
    for _ in range(_DEPTH):
        tables = [table for table in layer if isinstance(table, dict)][:_TABLES]
        for table in tables:
            for name, (kind, keys) in _REPLY.items():
                value = next((table[key] for key in keys if type(table.get(key)) in kind), None)
                if value is not None and name not in found:
                    found[name] = value[:_NAME] if isinstance(value, str) else value
        layer = [value for table in tables for value in table.values()]
    return found


def hit_shape(hit: SearchHit) -> dict[str, Any]:
    """A search hit. Spans count UTF-16 units, as JavaScript does."""
    return {
        "conversation": hit.conversation_id,
        "message": message_shape(hit.message),
        "score": hit.score,
        "archived": hit.archived,
        "highlights": [_highlight(one) for one in hit.highlights],
    }


def glimpse(message: Message | None) -> dict[str, Any] | None:
    """The beginning of a message, for a list."""
    if message is None:
        return None
    who = message.participant
    name = message.role if who is None else who.display_name or who.id
    text = message.text[:_GLIMPSE]
    if not text and message.tool_uses:
        text = ", ".join(part.name[:_GLIMPSE] for part in message.tool_uses[:5])[:_GLIMPSE]
    if not text and message.status == "streaming":
        text = "…"
    return {"role": message.role, "name": name[:_NAME], "text": text, "timestamp": to_json(message.timestamp)}


def parts_shape(parts: Iterable[Part]) -> list[dict[str, Any]]:
    """Parts, as within a message."""
    return [_part(to_json(part), LONGEST) for part in parts]


def _part(part: dict[str, Any], most: int | None) -> dict[str, Any]:
    kind = str(part.get("type"))
    if kind not in _FREE:
        part = {"type": kind, "data": {name: value for name, value in part.items() if name not in _HIDDEN}}
    return _named(part, _FREE.get(kind, "data"), most)


def _sources(sources: list[dict[str, Any]], most: int | None) -> list[dict[str, Any]]:
    """Cuts long passages, and stops when the sources exceed `most` bytes."""
    shapes, size = [], 0
    for source in sources:
        shape = _named(source, "chunk", most and _PASSAGE)
        size += len(dumps(shape))
        if most is not None and size > most:
            break
        shapes.append(shape)
    return shapes


def _named(fields: dict[str, Any], free: str = "", most: int | None = None, mark: str = "cut") -> dict[str, Any]:
    """The fields without hidden ones, with short names. If `free` is longer than `most`, `mark` has its full length."""
    shape = {
        name: value[:_NAME] if isinstance(value, str) and name != free else value
        for name, value in fields.items()
        if name not in _HIDDEN
    }
    cut = 0
    if free and most is not None:
        shape[free], cut = _cut(shape[free], most)
    return shape | ({mark: cut} if cut else {})


def _cut(value: Any, most: int) -> tuple[Any, int]:
    """(value, 0); or if its text is longer than `most` characters, the beginning and the length of that text."""
    if value is None:
        return value, 0
    text = value if isinstance(value, str) else dumps(value).decode()
    return (value, 0) if len(text) <= most else (text[:most], len(text))


def _highlight(highlight: Highlight) -> dict[str, Any]:
    text = highlight.text
    if not text.isascii():
        return {"text": text, "spans": [[_units(text[:start]), _units(text[:end])] for start, end in highlight.ranges]}
    return {"text": text, "spans": [list(span) for span in highlight.ranges]}


def _units(text: str) -> int:
    return len(text) + sum(1 for character in text if character > "\uffff")
