"""The formats as one table, so that what holds for all of them is one test."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from redis_history import Message, ReasoningPart, TextPart, ToolResultPart, ToolUsePart, UnknownPart
from redis_history.formats import (
    from_anthropic,
    from_gemini,
    from_mistral,
    from_openai_chat,
    from_openai_responses,
    to_anthropic,
    to_anthropic_system,
    to_gemini,
    to_gemini_system,
    to_mistral,
    to_openai_chat,
    to_openai_responses,
)
from tests.support.members import stored
from tests.support.sdk import is_valid

__all__ = ["FORMATS", "Format", "carried", "through_storage", "turns"]


class Format(NamedTuple):
    name: str
    to: Callable[..., list[dict[str, Any]]]
    from_: Callable[..., list[Message]]
    system: Callable[..., Any] | None = None

    def there_and_back(self, messages: Sequence[Message], **options: Any) -> list[Message]:
        """Through the provider's form, the separate system value included."""
        items = self.to(messages, **options)
        if self.system is None:
            return self.from_(items)
        return self.from_(items, system=self.system(messages, **options))

    def restored(self, originals: Sequence[Any]) -> list[Message]:
        """The messages of these dicts, which come back exactly after they were stored."""
        messages = self.from_(originals)
        stored = through_storage(messages)
        back = self.to(stored, shape="original")
        assert back == list(originals)
        assert [list(item) for item in back] == [list(item) for item in originals]
        if is_valid(self.name, originals):
            assert self.to(stored) == list(originals)
        return messages


FORMATS = [
    Format("anthropic", to_anthropic, from_anthropic, to_anthropic_system),
    Format("gemini", to_gemini, from_gemini, to_gemini_system),
    Format("mistral", to_mistral, from_mistral),
    Format("openai_chat", to_openai_chat, from_openai_chat),
    Format("openai_responses", to_openai_responses, from_openai_responses),
]


def through_storage(messages: Sequence[Message]) -> list[Message]:
    return [stored(message, n) for n, message in enumerate(messages, 1)]


def turns(messages: Sequence[Message], lost: set[tuple[str, int | None]] = frozenset()) -> list[tuple[str, list[Any]]]:  # type: ignore[assignment]
    """The content of a conversation in any format: runs of the same side, and what is in them. Providers draw the line
    between two messages of a side in different places, and give the system's apart."""
    found: list[tuple[str, list[Any]]] = []
    for message in sorted(messages, key=lambda message: message.role != "system"):
        side = {"tool": "user"}.get(message.role, message.role)
        said = [carried(p) for index, p in enumerate(message.parts) if (message.id, index) not in lost]
        said = [item for item in said if item != ("text", "")]  # no text is no content
        if not said:
            continue
        if not found or found[-1][0] != side:
            found.append((side, []))
        found[-1][1].extend(said)
    # Some have results before all else in a turn, or calls after it: the order within a kind is what all keep.
    return [(side, sorted(said, key=lambda item: item[0])) for side, said in found]


def carried(part: Any) -> tuple[Any, ...]:
    match part:
        case TextPart():
            return ("text", part.text)
        case ReasoningPart():
            return ("reasoning", part.text, part.signature)
        case ToolUsePart():
            return ("call", part.id, part.name, _value(part.input))
        case ToolResultPart():
            return ("result", part.tool_use_id, _value(_told(part.content)), part.is_error)
        case UnknownPart():
            return ("unknown", _value(part.data))
    return ("file", part.modality or "document", part.reference)


def _told(content: Any) -> Any:
    """Text blocks are the same whatever they are called."""
    if isinstance(content, list) and content and all(isinstance(b, dict) and "text" in b for b in content):
        return [block["text"] for block in content]
    return "" if content is None else content


def _value(value: Any) -> str:
    """A value and its JSON text are the same to a provider that takes text only."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return value
    return json.dumps(value, sort_keys=True, default=str)
