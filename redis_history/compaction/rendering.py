"""Messages as text for a model that summarises them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import orjson

from redis_history.model import AttachmentPart, Message, Part, ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from redis_history.model.message import content_text

__all__ = ["as_text", "chunks", "clipped", "render", "speaker"]

#: Characters of one tool call or result: what was found in a long one, the agent has said afterwards.
_TOOL_CHARACTERS: Final = 4_000


def render(message: Message, most: int | None = None) -> str:
    """Who said what, as one paragraph of at most `most` characters; without reasoning, which is not part of the
    conversation. Empty if nothing is left."""
    pieces = [piece for part in message.parts if (piece := _piece(part).strip())]
    if not pieces:
        return ""
    text = f"{speaker(message)}: " + "\n".join(pieces)
    return text if most is None else clipped(text, most)


def speaker(message: Message) -> str:
    """Who wrote a message: the display name, or the role."""
    participant = message.participant
    if participant is not None and participant.display_name:
        return participant.display_name
    return message.role.capitalize()


def chunks(messages: Iterable[Message], characters: int) -> Iterator[tuple[list[Message], str]]:
    """The messages in portions whose text has at most so many characters, each with its text."""
    portion: list[Message] = []
    texts: list[str] = []
    size = 0
    for message in messages:
        text = render(message, characters)
        if texts and size + len(text) + 2 > characters:
            yield portion, "\n\n".join(texts)
            portion, texts, size = [], [], 0
        portion.append(message)
        if text:
            texts.append(text)
            size += len(text) + 2
    if texts:
        yield portion, "\n\n".join(texts)


def clipped(text: str, most: int) -> str:
    """The text, or its beginning and its end."""
    if len(text) <= most:
        return text
    mark = f" […{len(text) - most:,} characters left out…] "
    room = max(0, most - len(mark))
    head = room * 2 // 3
    return text[:head] + mark + text[len(text) - (room - head) :] if room else text[:most]


def _piece(part: Part) -> str:
    if isinstance(part, TextPart):
        return part.text
    if isinstance(part, ToolUsePart):
        return clipped(f"[calls {part.name}({as_text(part.input)})]", _TOOL_CHARACTERS)
    if isinstance(part, ToolResultPart):
        what = "fails with" if part.is_error else "gives"
        found = content_text(part.content) or as_text(part.content)
        return clipped(f"[{part.name or 'the tool'} {what}: {found}]", _TOOL_CHARACTERS)
    if isinstance(part, AttachmentPart):
        return f"[file: {part.name or part.reference or part.id or 'unnamed'}]"
    return "" if isinstance(part, ReasoningPart) else str(part.data.get("text") or "")


def as_text(value: Any) -> str:
    """A text as it is, another value as JSON, and nothing for an empty one."""
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence | dict) and not value:
        return ""
    try:
        return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:
        return str(value)
