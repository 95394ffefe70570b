"""The formats as one table, so that what holds for all of them is one test."""

import json
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import pytest

from redis_history import Message, ReasoningPart, TextPart, ToolResultPart, ToolUsePart, UnknownPart, formats
from tests.support.members import stored
from tests.support.sdk import is_valid


class Format(NamedTuple):
    name: str
    to: Callable[..., list[dict[str, Any]]]
    from_: Callable[..., list[Message]]
    system: Callable[..., Any] | None = None

    def there_and_back(self, messages: Sequence[Message], **options: Any) -> list[Message]:
        """Through the provider's format, with the separate system value."""
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
    Format(name, getattr(formats, f"to_{name}"), getattr(formats, f"from_{name}"), getattr(formats, system, None))
    for name in ("anthropic", "gemini", "mistral", "openai_chat", "openai_responses")
    for system in (f"to_{name}_system",)
]
FORMAT = {one.name: one for one in FORMATS}
every_format = pytest.mark.parametrize("format_", FORMATS, ids=lambda f: f.name)


def through_storage(messages: Sequence[Message]) -> list[Message]:
    return [stored(message, n) for n, message in enumerate(messages, 1)]


def turns(
    messages: Sequence[Message], lost: Collection[tuple[str, int | None]] = ()
) -> list[tuple[str, list[tuple[Any, ...]]]]:
    """The content of a conversation in any format: runs of the same side, and their content. Providers divide the
    messages of a side in different places, and separate those of the system."""
    found: list[tuple[str, list[Any]]] = []
    for message in sorted(messages, key=lambda message: message.role != "system"):
        side = {"tool": "user"}.get(message.role, message.role)
        content = [_content(p) for index, p in enumerate(message.parts) if (message.id, index) not in lost]
        content = [item for item in content if item != ("text", "")]  # empty text does not count as content
        if content and (not found or found[-1][0] != side):
            found.append((side, []))
        if content:
            found[-1][1].extend(content)
    # Some have results before all else in a turn, or calls after it: all keep the order within a kind.
    return [(side, sorted(content, key=lambda item: str(item[0]))) for side, content in found]


def _content(part: Any) -> tuple[Any, ...]:
    match part:
        case TextPart():
            return ("text", part.text)
        case ReasoningPart():
            return ("reasoning", part.text, part.signature)
        case ToolUsePart():
            return ("call", part.id, part.name, _value(part.input))
        case ToolResultPart():
            content = "" if part.content is None else part.content
            if isinstance(content, list) and content and all(isinstance(b, dict) and "text" in b for b in content):
                content = [block["text"] for block in content]  # the types of text blocks differ
            return ("result", part.tool_use_id, _value(content), part.is_error)
        case UnknownPart():
            return ("unknown", _value(part.data))
    reference = part.reference
    if part.modality == "audio" and reference is not None and reference.startswith("data:"):
        reference = reference.partition(",")[2]  # Mistral sends inline audio without a type
    return ("file", part.modality or "document", reference, part.name)


def _value(value: Any) -> str:
    """A value and its JSON text are the same to a provider that takes text only."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return value
    return json.dumps(value, sort_keys=True, default=str)
