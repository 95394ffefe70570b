"""Sizes of messages in characters and tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import orjson

from redis_history.errors import ConfigurationError
from redis_history.model import AttachmentPart, Message, ReasoningPart, TextPart, ToolResultPart, ToolUsePart

__all__ = [
    "CHARACTERS_PER_TOKEN", "TokenCounter", "count_characters", "estimate_tokens", "message_tokens", "text_tokens",
    "texts", "tiktoken_counter",
]  # fmt: skip

#: The usual rule of thumb for English text; exact counts need the model's own tokenizer.
CHARACTERS_PER_TOKEN = 4

#: From a text to its number of tokens.
TokenCounter = Callable[[str], int]

_TEXTS = (TextPart, ReasoningPart)


def count_characters(message: Message) -> int:
    """The characters that a model reads: text, reasoning, tool names, inputs and results, attachment names."""
    if len(message.parts) == 1 and type(only := message.parts[0]) is TextPart:  # most messages
        return len(only.text)
    return sum(map(len, _pieces(message)))


def estimate_tokens(characters: int) -> int:
    """Estimated tokens of a text with this number of characters: a quarter, rounded up."""
    return -(-characters // CHARACTERS_PER_TOKEN)


def message_tokens(message: Message, counter: TokenCounter | None = None) -> int:
    """Tokens of a message: the sum of `counter` over all texts that `count_characters` counts; None estimates."""
    if counter is None:
        return estimate_tokens(count_characters(message))
    return sum(text_tokens(text, counter) for text in texts(message))


def text_tokens(text: str, counter: TokenCounter | None = None) -> int:
    """Tokens of a text, counted by `counter`; None estimates."""
    if counter is None:
        return estimate_tokens(len(text))
    return counter(text) if text else 0


def tiktoken_counter(model: Any = "gpt-4o") -> TokenCounter:
    """Create a counter for OpenAI's models. `model` is a model name or a `tiktoken.Encoding`.

    Needs `pip install 'redis_history[tiktoken]'`. tiktoken downloads the vocabulary of a model at its first use.
    Raises ConfigurationError if tiktoken is not installed or does not know the model.
    """
    try:
        import tiktoken
    except ImportError as error:
        raise ConfigurationError("tiktoken_counter requires tiktoken: pip install 'redis_history[tiktoken]'") from error
    if not isinstance(model, str):
        encoding = model
    else:
        try:
            encoding = tiktoken.encoding_for_model(model)
        except KeyError as error:
            raise ConfigurationError(f"tiktoken has no model {model[:64]!r}: pass a tiktoken.Encoding") from error

    def count(text: str) -> int:
        # Count special tokens as text, because messages can contain them as text.
        return len(encoding.encode(text, disallowed_special=()))

    return count


def texts(message: Message) -> Iterator[str]:
    """The texts that `count_characters` counts; some may be empty."""
    return (piece if isinstance(piece, str) else piece.decode() for piece in _pieces(message))


def _pieces(message: Message) -> Iterator[str | bytes]:
    for part in message.parts:
        if isinstance(part, _TEXTS):
            yield part.text
        elif isinstance(part, ToolUsePart):
            yield part.name
            yield _json(part.input)
        elif isinstance(part, ToolResultPart):
            yield _json(part.content)
        elif isinstance(part, AttachmentPart):
            yield part.name or ""


def _json(value: Any) -> str | bytes:
    return value if isinstance(value, str) else _dumped(value) if value else ""


def _dumped(value: Any) -> str | bytes:
    try:
        return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:  # JSON cannot represent the value
        return str(value)


def as_text(value: Any) -> str:
    """Text unchanged, other values as JSON."""
    found = value if isinstance(value, str) else _dumped(value)
    return found.decode() if isinstance(found, bytes) else found
