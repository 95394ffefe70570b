"""Sizes of messages, as characters and as estimated tokens."""

from __future__ import annotations

from typing import Any

import orjson

from redis_history.model import AttachmentPart, Message, ReasoningPart, TextPart, ToolResultPart, ToolUsePart

__all__ = ["CHARACTERS_PER_TOKEN", "count_characters", "estimate_tokens"]

#: The usual rule of thumb for English text; exact counts need the model's own tokenizer.
CHARACTERS_PER_TOKEN = 4


_TEXTS = (TextPart, ReasoningPart)


def count_characters(message: Message) -> int:
    """Characters a model would read: text, reasoning, tool names, inputs and results, attachment names."""
    total = 0
    for part in message.parts:
        if isinstance(part, _TEXTS):
            total += len(part.text)
        elif isinstance(part, ToolUsePart):
            total += len(part.name) + _length(part.input)
        elif isinstance(part, ToolResultPart):
            total += _length(part.content)
        elif isinstance(part, AttachmentPart):
            total += len(part.name or "")
    return total


def estimate_tokens(characters: int) -> int:
    """Tokens of a text of so many characters: a quarter of them, rounded up."""
    return -(-characters // CHARACTERS_PER_TOKEN)


def _length(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if not value:
        return 0
    try:
        return len(orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS))
    except TypeError:  # what JSON has no form for at all
        return len(str(value))
