"""Sizes of messages, as characters and as tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import orjson

from redis_history.errors import ConfigurationError
from redis_history.model import AttachmentPart, Message, ReasoningPart, TextPart, ToolResultPart, ToolUsePart

__all__ = [
    "CHARACTERS_PER_TOKEN",
    "TokenCounter",
    "count_characters",
    "estimate_tokens",
    "message_tokens",
    "texts",
    "tiktoken_counter",
]

#: The usual rule of thumb for English text; exact counts need the model's own tokenizer.
CHARACTERS_PER_TOKEN = 4

#: From a text to its number of tokens.
TokenCounter = Callable[[str], int]

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


def message_tokens(message: Message, counter: TokenCounter | None = None) -> int:
    """Tokens of a message: by `counter`, called with each text that `count_characters` counts; by default estimated."""
    if counter is None:
        return estimate_tokens(count_characters(message))
    return sum(counter(text) for text in texts(message) if text)


def tiktoken_counter(model: Any = "gpt-4o") -> TokenCounter:
    """Counts tokens as OpenAI's models do. `model` is the name of one, or a `tiktoken.Encoding`.

    Needs `pip install 'redis_history[tiktoken]'`; tiktoken fetches the vocabulary of a model when first asked for it.
    Raises ConfigurationError if it is not installed, or knows no such model.
    """
    try:
        import tiktoken
    except ImportError as error:
        raise ConfigurationError(
            "counting with tiktoken needs another package: pip install 'redis_history[tiktoken]'"
        ) from error
    if not isinstance(model, str):
        encoding = model
    else:
        try:
            encoding = tiktoken.encoding_for_model(model)
        except KeyError as error:
            raise ConfigurationError(f"tiktoken knows no model {model[:64]!r}; pass a tiktoken.Encoding") from error

    def count(text: str) -> int:
        # What looks like a special token is text here: it was said by somebody.
        return len(encoding.encode(text, disallowed_special=()))

    return count


def texts(message: Message) -> Iterator[str]:
    """What `count_characters` counts, text by text; some may be empty."""
    for part in message.parts:
        if isinstance(part, _TEXTS):
            yield part.text
        elif isinstance(part, ToolUsePart):
            yield part.name
            yield _as_text(part.input)
        elif isinstance(part, ToolResultPart):
            yield _as_text(part.content)
        elif isinstance(part, AttachmentPart):
            yield part.name or ""


def _length(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if not value:
        return 0
    try:
        return len(orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS))
    except TypeError:  # what JSON has no form for at all
        return len(str(value))


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if not value:
        return ""
    try:
        return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:
        return str(value)
