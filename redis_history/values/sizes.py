"""Sizes of messages in characters and tokens, as estimates of their cost for a model.

All limits, totals, prompts and summaries use these sizes. All texts count, also in tool results and in parts that are
kept opaque for one provider. An image, audio or file counts as `MEDIA_TOKENS`, in an attachment as in the middle of a
tool result. Base64, signatures and encrypted content do not count as text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import orjson

from redis_history.errors import ConfigurationError
from redis_history.values import AttachmentPart, Message, ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from redis_history.values.beside import PartialMessage
from redis_history.values.contents import MIN_BASE64, Media, is_plain, is_readable, readable, readable_text
from redis_history.values.pairing import PAIR

__all__ = [
    "CHARACTERS_PER_TOKEN", "MAX_CHARACTERS", "MEDIA_TOKENS", "TokenCounter", "count_characters", "estimate_tokens",
    "message_tokens", "text_tokens", "tiktoken_counter",
]  # fmt: skip

#: The usual rule of thumb for English text; exact counts need the model's own tokenizer.
CHARACTERS_PER_TOKEN = 4

#: From a text to its number of tokens.
TokenCounter = Callable[[str], int]

#: Tokens of an image, audio, video or other file, whatever its size, because only its provider can measure it.
#:
#: - "image": an image of 1,024 x 1,024 pixels takes 765 tokens of GPT-4o, 1,024 of GPT-4.1, up to 1,032 of Gemini and
#:   1,398 of Claude (width x height / 750); a screenshot of 1,024 x 768 pixels takes 1,049 of Claude.
#: - "audio": a minute takes 600 tokens of GPT-4o and 1,920 of Gemini.
#: - "video": ten seconds take about 3,000 of Gemini.
#: - "file": a page of a PDF takes 1,500 to 3,000 of Claude.
#: - "data": base64 of an unknown kind, as long as the shortest that is recognized.
MEDIA_TOKENS: Final[Mapping[Media, int]] = MappingProxyType(
    {"image": 1_000, "audio": 1_000, "video": 3_000, "file": 2_000, "data": MIN_BASE64 // CHARACTERS_PER_TOKEN}
)

#: The most characters that a message counts, because its stored form has three bytes for them.
MAX_CHARACTERS: Final = 2**24 - 1

_TEXTS: Final = (TextPart, ReasoningPart)
_MODALITIES: Final[Mapping[str | None, Media]] = {"image": "image", "audio": "audio", "video": "video"}


class _Size(NamedTuple):
    """The texts that a model reads, some of which may be empty, and the tokens of images and other files."""

    texts: list[str]
    media_tokens: int


def count_characters(message: Message) -> int:
    """The characters that a model reads: text, reasoning, tool names, inputs and results, opaque parts, attachment
    names; and four for each token of images, audio and files (`MEDIA_TOKENS`)."""
    if type(message) is PartialMessage:
        return int.from_bytes(message.stored[4:7], "big")  # as it was counted whole
    if len(message.parts) == 1 and type(only := message.parts[0]) is TextPart:
        text = only.text
        if (len(text) < MIN_BASE64 and text[:5] != "data:") or is_readable(text):  # most messages
            return min(len(text), MAX_CHARACTERS)
    size = _size(message)
    return min(sum(map(len, size.texts)) + CHARACTERS_PER_TOKEN * size.media_tokens, MAX_CHARACTERS)


def estimate_tokens(characters: int) -> int:
    """Estimated tokens of a text with this number of characters: a quarter, rounded up."""
    return -(-characters // CHARACTERS_PER_TOKEN)


def message_tokens(message: Message, counter: TokenCounter | None = None) -> int:
    """Tokens of a message: those of its texts, which `counter` gets joined by newlines, and `MEDIA_TOKENS` of images,
    audio and files. Without a counter, the same is estimated from its characters."""
    if counter is None or type(message) is PartialMessage:
        return estimate_tokens(count_characters(message))
    size = _size(message)
    return text_tokens("\n".join(filter(None, size.texts)), counter) + size.media_tokens


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


def _size(message: Message) -> _Size:
    texts: list[str] = []
    media: list[Media] = []

    def add(value: Any) -> None:
        if isinstance(value, str):
            if is_readable(value):  # most texts
                texts.append(value)
                return
            found, more = readable_text(value)
        elif not value:
            return
        elif is_plain(dumped := _dumped(value)):  # most inputs
            texts.append(dumped.decode())
            return
        else:
            found, more = readable(value)
        texts.append(as_text(found) if found else "")
        media.extend(more)

    for part in message.parts:
        if isinstance(part, _TEXTS):
            add(part.text)
        elif isinstance(part, ToolUsePart):
            texts.append(part.name)
            add(part.input)
        elif isinstance(part, ToolResultPart):
            add(part.content)
        elif isinstance(part, AttachmentPart):
            texts.append(part.name or "")
            media += [_MODALITIES.get(part.modality, "file")] if part.reference is not None else []
        else:
            data = part.data
            add({key: data[key] for key in data if key != PAIR} if PAIR in data else data)
    return _Size(texts, sum(map(MEDIA_TOKENS.__getitem__, media)))


def _dumped(value: Any) -> str | bytes:
    try:
        return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:  # JSON cannot represent the value
        return str(value)


def as_text(value: Any) -> str:
    """Text unchanged, other values as JSON."""
    found = value if isinstance(value, str) else _dumped(value)
    return found.decode() if isinstance(found, bytes) else found
