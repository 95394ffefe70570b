"""From a message to the words it can be found by. Pure, and on the path of every append.

The server splits text at ASCII punctuation only and knows no words in Chinese, so the text is split here, once, for
the index and for queries alike: NFKC, case folded, words of letters, digits and marks, one blank between them. Scripts
without blanks between words (Han, kana, hangul, Thai, Lao, Khmer, Myanmar) become overlapping pairs of characters, the
last character of a run alone: "电影院" is "电影 影院 院". So any part of a run is a phrase of pairs, and a single
character is the prefix of one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any, Final

from redis_history._quoting import normalized
from redis_history.model import (
    AttachmentPart,
    Message,
    ReasoningPart,
    TextPart,
    ToolResultPart,
    ToolUsePart,
    UnknownPart,
)

__all__ = ["MAX_CHARACTERS", "MAX_WORD", "index_text", "is_unspaced", "searchable", "words"]

#: Of a message so many characters are searchable: its beginning. A longer one is found by these.
MAX_CHARACTERS: Final = 16_384

#: Longer words are keys, hashes and encoded bytes, not words; a SHA-256 in hex still is one.
MAX_WORD: Final = 64

_MAX_DEPTH: Final = 16
_MAX_VALUES: Final = 2_000

#: Keys of tool calls and results whose values are no text for readers.
_OPAQUE_KEYS: Final = frozenset({"type", "signature", "thought_signature", "encrypted_content", "data", "mime_type"})

_ASCII_WORDS: Final = bytes(
    code + 32 if 65 <= code <= 90 else code if 97 <= code <= 122 or 48 <= code <= 57 else 32 for code in range(256)
)
_DATA_URL: Final = re.compile(r"data:[\w.+/-]{0,100}[;,][^\s\"'()<>]*")
_RUN: Final = re.compile(r"(?<![A-Za-z0-9+/=_-])[A-Za-z0-9+/=_-]{65,}")
_SUSPECT: Final = 32
_PIECE: Final = re.compile(r"(?<![A-Za-z0-9])[A-Za-z0-9]{33,}")
_UNSPACED_RANGES: Final = (
    (0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1100, 0x11FF), (0x1780, 0x17FF), (0x2E80, 0x2FDF), (0x3005, 0x3007),
    (0x3021, 0x3029), (0x3040, 0x318F), (0x31A0, 0x31BF), (0x31F0, 0x31FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF),
    (0xA960, 0xA97F), (0xAC00, 0xD7FF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF),
)  # fmt: skip
_UNSPACED: Final = re.compile("[" + "".join(f"{chr(first)}-{chr(last)}" for first, last in _UNSPACED_RANGES) + "]+")


class _Letters(dict[int, int]):
    """What `str.translate` makes of a character: itself if it belongs to a word, else a blank. Filled as it is used."""

    def __missing__(self, code: int) -> int:
        category = unicodedata.category(chr(code))
        kept = code if category[0] in "LNM" else 32
        self[code] = kept
        return kept


_letters = _Letters()


def words(text: str) -> list[str]:
    """The words of a text, in order, normalised; of an unspaced run its pairs and its last character."""
    found = _split(text)
    if found and max(map(len, found)) > MAX_WORD:
        found = [word for word in found if len(word) <= MAX_WORD]
    return found


def _split(text: str) -> list[str]:
    if text.isascii():
        return text.encode().translate(_ASCII_WORDS).decode().split()
    text = unicodedata.normalize("NFKC", normalized(text).casefold()).translate(_letters)
    split: list[str] = []
    for word in text.split():
        if word.isascii() or _UNSPACED.search(word) is None:
            split.append(word)
            continue
        end = 0
        for run in _UNSPACED.finditer(word):
            start, stop = run.span()
            if end < start:
                split.append(word[end:start])
            split.extend(word[at : min(at + 2, stop)] for at in range(start, stop))
            end = stop
        if end < len(word):
            split.append(word[end:])
    return split


def is_unspaced(word: str) -> bool:
    """Whether a word is a character, or a pair, of a script without blanks."""
    return not word.isascii() and _UNSPACED.match(word) is not None


def searchable(message: Message) -> str:
    """The text of a message that can be found, as it was written: of each part, and the writer's display name.

    Of tool calls and results the names and all values; of attachments the name. No signatures, data URLs or encoded
    bytes. At most MAX_CHARACTERS.
    """
    return _without_bytes(_text(message))


def index_text(message: Message) -> str:
    """What the index holds of a message: the words of its searchable text, with a blank between them."""
    text = _text(message)
    found = _split(text)
    # Only what leaves a long word, or says so, can hold encoded bytes; looking for them costs as much as the rest.
    if "data:" in text or (found and max(map(len, found)) > _SUSPECT):
        found = words(_without_bytes(text))
    return " ".join(found)


def _text(message: Message) -> str:
    participant = message.participant
    if len(message.parts) == 1 and type(only := message.parts[0]) is TextPart:
        text = only.text
        if participant is not None and participant.display_name:
            text = f"{participant.display_name}: {text}"
    else:
        pieces = [] if participant is None or not participant.display_name else [f"{participant.display_name}:"]
        left = MAX_CHARACTERS
        for piece in _pieces(message):
            pieces.append(piece[:left])
            left -= len(piece) + 1
            if left <= 0:
                break
        text = "\n".join(pieces)
    return text[:MAX_CHARACTERS]


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
    """The strings and numbers in a JSON-like value, in order, as far as the caps go."""
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
