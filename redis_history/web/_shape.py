"""Adapts the JSON form of conversations, messages and hits to the browser. No I/O.

Leaves out signatures and provider data. Long values are cut and marked as cut; long names are cut without a mark.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from redis_history.formats.json_form import dumps, to_json
from redis_history.store.search.hits import Highlight, SearchHit
from redis_history.values import Conversation, Message, Part, TextPart
from redis_history.values.approvals import Approval
from redis_history.values.contents import readable_text
from redis_history.values.runs import RunInfo
from redis_history.values.turns import Turn
from redis_history.values.wire import missing_in_parts
from redis_history.web._images import image_numbers

#: Characters of one part or other free-form value. Longer values are cut; clients fetch them in full on request.
LONGEST: Final = 20_000
#: Characters of a name, of the preview of a message, and of a passage that a source quotes.
_NAME: Final = 1_000
_PREVIEW: Final = 200
_PASSAGE: Final = 1_200
#: Facts of a reply: the type of the value, and the names that providers give it; and how many levels and objects to
#: search for them.
_REPLY: Final[dict[str, tuple[tuple[type, ...], tuple[str, ...]]]] = {
    "model": ((str,), ("model", "model_name", "model_slug", "modelVersion", "model_version")),
    "input_tokens": ((int,), ("input_tokens", "prompt_tokens", "promptTokenCount", "prompt_token_count")),
    "output_tokens": ((int,), ("output_tokens", "completion_tokens", "candidatesTokenCount", "candidates_token_count")),
    "cost": ((int, float), ("cost", "cost_usd", "costUSD", "total_cost_usd", "response_cost")),
}
_LEVELS: Final = 4
_OBJECTS: Final = 100
_HIDDEN: Final = frozenset(("signature", "provider_meta", "schema_version"))
#: The free-form field of each type of part.
_FREE: Final = {
    "text": "text",
    "reasoning": "text",
    "tool_use": "input",
    "tool_result": "content",
    "attachment": "reference",
}


def conversation_shape(conversation: Conversation) -> dict[str, Any]:
    """A conversation: `C` in the documentation of the HTTP interface."""
    shape = _shortened(to_json(conversation), "metadata", LONGEST, "metadata_cut")
    shape["id"] = shape.pop("conversation_id")
    return shape | ({"metadata": {}} if "metadata_cut" in shape else {})


def run_shape(run: RunInfo) -> dict[str, Any]:
    """A run: `Run` in the documentation of the HTTP interface."""
    shape: dict[str, Any] = to_json(run)
    for name in ("conversation_id", "first_sequence", "former"):
        del shape[name]
    return shape


def turn_shape(turn: Turn) -> dict[str, Any]:
    """A turn: `Turn` in the documentation of the HTTP interface."""
    shape: dict[str, Any] = _shortened(to_json(turn))
    for name in ("messages", "interrupted"):
        del shape[name]
    shape["conversation"] = shape.pop("conversation_id")
    return shape


def message_shape(message: Message, *, whole: bool = False) -> dict[str, Any]:
    """A message: `M` in the documentation of the HTTP interface. `whole`: cut nothing."""
    most = None if whole else LONGEST
    fields: dict[str, Any] = to_json(message)
    sources = fields.pop("sources")
    missing = missing_in_parts(message)
    shape = _shortened(fields, "metadata", most, "metadata_cut", missing.get(None, 0))
    if "metadata_cut" in shape:
        shape["metadata"] = {"is_summary": message.is_summary}
    if shape["participant"] is not None:
        shape["participant"] = _shortened(shape["participant"])
    shape["text"] = fields["text"][:most]
    shape["parts"] = [_part_shape(part, most, missing.get(at, 0)) for at, part in enumerate(fields["parts"])]
    for at, numbers in image_numbers(message).items():
        shape["parts"][at]["images"] = numbers
    shape["sources"] = _source_shapes(sources, most)
    if len(shape["sources"]) < len(sources):
        shape["sources_cut"] = len(sources)
    if message.role == "assistant" and (reply := _facts_of_reply(message)):
        shape["reply"] = reply
    return shape


def hit_shape(hit: SearchHit) -> dict[str, Any]:
    """A search hit. Spans count UTF-16 units, as JavaScript does."""
    return {
        "conversation": hit.conversation_id,
        "message": message_shape(hit.message),
        "score": hit.score,
        "archived": hit.archived,
        "highlights": [_highlight_shape(one) for one in hit.highlights],
    }


def approval_shape(approval: Approval) -> dict[str, Any]:
    """A tool call that waits for approval, or the decision."""
    shape = _shortened(to_json(approval), "input", LONGEST, "input_cut")
    del shape["duplicate"]
    ids = {"conversation": "conversation_id", "call": "call_id", "message": "message_id"}
    return {name: shape.pop(given) for name, given in ids.items()} | shape


def message_preview(message: Message | None) -> dict[str, Any] | None:
    """The beginning of a message, for a list."""
    if message is None:
        return None
    author = message.participant
    name = message.role if author is None else author.display_name or author.id
    text = readable_text(message.text)[0] or ", ".join(part.name[:_PREVIEW] for part in message.tool_uses[:5])
    if not text and message.status == "streaming":
        text = "…"
    return {
        "role": message.role,
        "name": name[:_NAME],
        "text": text[:_PREVIEW],
        "timestamp": to_json(message.timestamp),
    }


def parts_shape(parts: Iterable[Part]) -> list[dict[str, Any]]:
    """Parts, as within a message, but with whole texts, which further text may continue."""
    return [_part_shape(to_json(part), None if type(part) is TextPart else LONGEST) for part in parts]


def _facts_of_reply(message: Message) -> dict[str, Any]:
    """The model, tokens and cost of a model's reply: its usage, or wherever a provider or a program has put them."""
    facts: dict[str, Any] = {}
    if message.usage is not None:
        facts = {name: value for name in _REPLY if (value := getattr(message.usage, name))}
    level: list[Any] = [*message.metadata.values(), *message.provider_meta.values(), message.metadata]
    for _ in range(_LEVELS):
        objects = [value for value in level if isinstance(value, dict)][:_OBJECTS]
        for one in objects:
            for fact, (types, names) in _REPLY.items():
                value = next((one[name] for name in names if type(one.get(name)) in types), None)
                if value is not None and fact not in facts:
                    facts[fact] = value[:_NAME] if isinstance(value, str) else value
        level = [value for one in objects for value in one.values()]
    return facts


def _part_shape(part: dict[str, Any], most: int | None, missing: int = 0) -> dict[str, Any]:
    kind = str(part.get("type"))
    if kind not in _FREE:
        part = {"type": kind, "data": {name: value for name, value in part.items() if name not in _HIDDEN}}
    return _shortened(part, _FREE.get(kind, "data"), most, missing=missing)


def _source_shapes(sources: list[dict[str, Any]], most: int | None) -> list[dict[str, Any]]:
    """Cuts long passages, and stops when the sources exceed `most` bytes."""
    shapes, size = [], 0
    for source in sources:
        shape = _shortened(source, "chunk", most and _PASSAGE)
        size += len(dumps(shape))
        if most is not None and size > most:
            break
        shapes.append(shape)
    return shapes


def _shortened(
    fields: dict[str, Any], free: str = "", most: int | None = None, mark: str = "cut", missing: int = 0
) -> dict[str, Any]:
    """The fields without hidden ones, with short texts. If the field `free` has more than `most` characters, it is cut,
    and `mark` has its full length. `missing`: what it lacks already, because the message was read without it."""
    shape = {
        name: value[:_NAME] if isinstance(value, str) and name != free else value
        for name, value in fields.items()
        if name not in _HIDDEN
    }
    value = shape.get(free)
    if value is not None and most is not None:
        text = value if isinstance(value, str) else dumps(value).decode()
        if len(text) > most or missing:
            shape |= {free: text[:most], mark: len(text) + missing}
    return shape


def _highlight_shape(highlight: Highlight) -> dict[str, Any]:
    spans = [[_utf16_units(highlight.text[:index]) for index in span] for span in highlight.ranges]
    return {"text": highlight.text, "spans": spans}


def _utf16_units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2
