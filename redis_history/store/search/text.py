"""The searchable text of a message, its words for the index, and vectors. Pure."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, cast

from redis_history.errors import InvalidInputError
from redis_history.store.search.words import LONG_WORD, MAX_WORD, plain_lines, split_words, words
from redis_history.values import (
    AttachmentPart,
    Message,
    ReasoningPart,
    TextPart,
    ToolResultPart,
    ToolUsePart,
    UnknownPart,
)
from redis_history.values.contents import readable_text

#: Characters at the beginning of a message that are searchable.
MAX_CHARACTERS: Final = 131_072
#: Of these, the characters whose words are all in the index, in their order, so that phrases are found. Each other word
#: of the rest is there once, which makes the listings of tools a fifth as long.
MAX_IN_ORDER: Final = 16_384

_MAX_DEPTH: Final = 16
_MAX_VALUES: Final = 2_000

#: Keys of tool calls and results whose values are not text for readers.
_OPAQUE_KEYS: Final = frozenset({"type", "signature", "thought_signature", "encrypted_content", "data", "mime_type"})

_DATA_URL: Final = re.compile(r"data:[\w.+/-]{0,100}[;,][^\s\"'()<>]*")
_RUN: Final = re.compile(r"(?<![A-Za-z0-9+/=_-])[A-Za-z0-9+/=_-]{65,}")
_PIECE: Final = re.compile(r"(?<![A-Za-z0-9])[A-Za-z0-9]{33,}")


def searchable(message: Message) -> str:
    """The text of all parts as it was written, behind the writer's display name; at most MAX_CHARACTERS.

    It has the names and all values of tool calls and results, and the names of attachments, but no signatures, data
    URLs or encoded bytes.
    """
    return _without_bytes(_text(message))


def shown_text(message: Message) -> str:
    """The plain text as a reader sees it: with a marker such as "[image]" in the place of base64."""
    return readable_text(message.text)[0][:MAX_CHARACTERS]


def index_words(message: Message) -> list[str]:
    """The words of the searchable text, as they are searched for."""
    text = _text(message)
    if len(text) <= MAX_IN_ORDER:
        return _words_without_bytes(text)
    # At a blank, because a word may continue behind the bound.
    blank = max(text.rfind(mark, MAX_IN_ORDER - MAX_WORD, MAX_IN_ORDER) for mark in " \n") + 1 or MAX_IN_ORDER
    found = _words_without_bytes(text[:blank])
    known = set(found)
    return found + [word for word in dict.fromkeys(_words_without_bytes(text[blank:])) if word not in known]


def index_lines(messages: Sequence[Message]) -> list[str]:
    """`index_words` of each message, with blanks between and around them."""
    texts = list(map(_text, messages))
    lines = plain_lines([text if len(text) <= MAX_IN_ORDER else "" for text in texts])
    for at, (text, line) in enumerate(zip(texts, lines, strict=True)):
        if line is None or "data:" in text or len(text) > MAX_IN_ORDER:
            lines[at] = f" {' '.join(index_words(messages[at]))} "
    return cast(list[str], lines)


def is_question(message: Message) -> bool:
    """Whether the message ends in a question mark."""
    last = message.parts[-1] if message.parts else None
    return isinstance(last, TextPart) and last.text[-20:].rstrip().endswith(("?", "？", "؟"))


def author_words(participant_id: str, display_name: str | None) -> frozenset[str]:
    """The words by which a question may name a writer: those of the id and the display name, without numbers."""
    named = (*words(participant_id), *words(display_name or ""))
    return frozenset(word for word in named if len(word) > 1 and word.isalpha())


def _words_without_bytes(text: str) -> list[str]:
    found = split_words(text)
    # Encoded bytes leave a long word or begin with "data:". Looking for them costs as much as the rest.
    if "data:" in text or (found and max(map(len, found)) > LONG_WORD):
        found = words(_without_bytes(text))
    return found


def _text(message: Message) -> str:
    writer = message.participant
    name = "" if writer is None or not writer.display_name else f"{writer.display_name}: "
    if len(message.parts) == 1 and type(only := message.parts[0]) is TextPart:  # most messages
        return (name + only.text)[:MAX_CHARACTERS]
    pieces: list[str] = []
    left = MAX_CHARACTERS
    for piece in _pieces(message):
        pieces.append(piece[:left])
        left -= len(piece) + 1
        if left <= 0:
            break
    return (name + "\n".join(pieces))[:MAX_CHARACTERS]


def _without_bytes(text: str) -> str:
    if "data:" in text:
        text = _DATA_URL.sub(" ", text)
    # A path is long as well, but its names are short; base64 has a separator only every 32nd character or so.
    return _RUN.sub(lambda run: " " if _PIECE.search(run[0]) else run[0], text)


def _pieces(message: Message) -> Iterator[str]:
    for part in message.parts:
        if isinstance(part, TextPart | ReasoningPart):
            yield part.text
        elif isinstance(part, ToolUsePart):
            yield part.name
            yield from _texts(part.input)
        elif isinstance(part, ToolResultPart):
            if part.name:
                yield part.name
            yield from _texts(part.content)
        elif isinstance(part, AttachmentPart):
            if part.name:
                yield part.name
        elif isinstance(part, UnknownPart) and isinstance(text := part.data.get("text"), str):
            yield text


def _texts(value: Any) -> Iterator[str]:
    """The strings and numbers in a JSON-like value, in order, up to the caps."""
    left = _MAX_VALUES
    stack = [iter((value,))]
    while stack and left > 0:
        for item in stack[-1]:
            left -= 1
            if isinstance(item, str):
                yield item
            elif isinstance(item, int | float) and not isinstance(item, bool):
                yield str(item)
            elif len(stack) <= _MAX_DEPTH:
                if isinstance(item, Mapping):
                    stack.append(iter([value for key, value in item.items() if key not in _OPAQUE_KEYS]))
                    break
                if isinstance(item, list | tuple):
                    stack.append(iter(item))
                    break
            if left <= 0:
                break
        else:
            stack.pop()


def chunk_length(sizes: Iterable[int], most: int, most_characters: int) -> int:
    """How many of the next texts, of these `sizes` in characters, fit into one batch: up to `most`, at least one if
    there is any. Other characters do not count."""
    length, left = 0, most_characters
    for size in islice(sizes, most):
        left -= min(size, MAX_CHARACTERS)
        if left < 0 and length:
            break
        length += 1
    return length


def pack(vector: Any, dimension: int) -> bytes:
    """A vector in 16-bit floats, scaled to the length 1. Raises InvalidInputError unless it has `dimension` finite
    numbers."""
    try:
        values = [float(value) for value in vector]
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(f"the embedder must return vectors of numbers, not {str(vector)[:80]}") from error
    if len(values) != dimension:
        raise InvalidInputError(f"the embedder returned a vector of {len(values)} numbers, not of {dimension}")
    if not all(map(math.isfinite, values)):
        raise InvalidInputError("the embedder returned a vector with a number that is not finite")
    length = math.hypot(*values) or 1.0
    if not math.isfinite(length):
        raise InvalidInputError("the embedder returned a vector with numbers too large to compare")
    return struct.pack(f"<{len(values)}e", *(value / length for value in values))


def pack_all(vectors: Any, count: int, dimension: int) -> list[bytes]:
    """The vectors of `count` texts. Raises InvalidInputError for another number of them, or as `pack`."""
    packed = [pack(vector, dimension) for vector in vectors]
    if len(packed) != count:
        raise InvalidInputError(f"the embedder returned {len(packed)} vectors for {count} texts")
    return packed
