"""The `--json` output of conversations, messages and events. It always has all fields, named as in the library."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import structs

from redis_history.events import Event
from redis_history.model import Conversation, Message, Part, UnknownPart
from redis_history.search.hits import SearchHit
from redis_history.tokens import count_characters, estimate_tokens

__all__ = ["conversation_fields", "event_fields", "hit_fields", "message_fields"]


def conversation_fields(conversation: Conversation) -> dict[str, Any]:
    """Times are ISO 8601, in UTC."""
    return structs.asdict(conversation)


def message_fields(message: Message) -> dict[str, Any]:
    """The fields of a message. `position` is text; `tokens` is an estimate."""
    participant = message.participant
    return {
        "id": message.id,
        "role": message.role,
        "participant": None
        if participant is None
        else {"kind": participant.kind, "id": participant.id, "display_name": participant.display_name},
        "timestamp": message.timestamp,
        "sequence": message.sequence,
        "position": None if message.position is None else str(message.position),
        "scope": message.scope,
        "text": message.text,
        "parts": [_part_fields(part) for part in message.parts],
        "is_summary": message.is_summary,
        "tokens": estimate_tokens(count_characters(message)),
        "metadata": message.metadata,
        "sources": [_without_extra(structs.asdict(source)) for source in message.sources],
        "trace_id": message.trace_id,
        "provider_meta": message.provider_meta,
    }


def _part_fields(part: Part) -> Any:
    if isinstance(part, UnknownPart):
        return part.data
    return {"type": part.__struct_config__.tag, **_without_extra(structs.asdict(part))}


def _without_extra(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name != "extra"}


def event_fields(event: Event) -> dict[str, Any]:
    """The fields of an event. `event`: its kind, such as messages_appended; `cursor`: the place to resume after it."""
    own = {
        "conversation_id": event.conversation_id,
        "event": event.__struct_config__.tag,
        "revision": event.revision,
        "cursor": str(event.cursor),
    }
    for field in structs.fields(event):
        if field.name not in own:
            own[field.name] = _value(getattr(event, field.name))
    return own


def _value(value: Any) -> Any:
    if isinstance(value, Message):
        return message_fields(value)
    if isinstance(value, tuple | list):
        return [_value(item) for item in value]
    return value if isinstance(value, dict) else msgspec.to_builtins(value)


def hit_fields(hit: SearchHit) -> dict[str, Any]:
    """The fields of a hit. `highlights`: fragments of text, with the ranges [start, end) of terms, in characters."""
    return {
        "conversation_id": hit.conversation_id,
        "score": hit.score,
        "archived": hit.archived,
        "highlights": [{"text": one.text, "ranges": one.ranges} for one in hit.highlights],
        "message": message_fields(hit.message),
        "before": [message_fields(message) for message in hit.before],
        "after": [message_fields(message) for message in hit.after],
    }
