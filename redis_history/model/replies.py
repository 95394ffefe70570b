"""The content of a reply that is being written: a stream of records, text as it came and whole parts. Pure.

A record is one byte for its kind (1 text, 2 a part as in a stored message), the length of its data in 3 bytes, and the
data. Text continues the last part if that is plain text, and else begins a new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from redis_history.errors import CorruptDataError
from redis_history.model._caps import check_caps
from redis_history.model.message import Message, text_of
from redis_history.model.parts import Part, TextPart
from redis_history.model.rows import part_of, row_of

#: A writer without a sign of life for so many seconds is dead.
LEASE_SECONDS: Final = 6.0

_TEXT: Final = 1
_PART: Final = 2
_HEAD: Final = 4
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


def is_plain(part: Part) -> bool:
    """Whether text can be appended to this part."""
    return type(part) is TextPart and part.provider_meta is None and part.extra is None


def record_of(part: Part) -> bytes:
    """The record of a piece of plain text, or of another part."""
    if is_plain(part):
        kind, data = _TEXT, part.text.encode()  # type: ignore[union-attr]
    else:
        kind, data = _PART, _encode(row_of(part))
    return bytes((kind,)) + len(data).to_bytes(_HEAD - 1, "big") + data


def read_records(data: bytes) -> list[Part]:
    """The pieces in whole records. Raises CorruptDataError."""
    pieces: list[Part] = []
    at = 0
    try:
        while at < len(data):
            kind, end = data[at], at + _HEAD + int.from_bytes(data[at + 1 : at + _HEAD], "big")
            if end > len(data) or end < at + _HEAD:
                raise ValueError("a record is cut")
            value = data[at + _HEAD : end]
            if kind == _TEXT:
                pieces.append(TextPart(text=value.decode()))
            elif kind == _PART:
                check_caps(value)
                pieces.append(part_of(_decode(value)))
            else:
                raise ValueError(f"a record has kind {kind}")
            at = end
    except (ValueError, TypeError, msgspec.MsgspecError) as error:
        raise CorruptDataError(f"the content of a reply is unreadable: {error}") from error
    return merged((), pieces)


def merged(parts: Sequence[Part], pieces: Iterable[Part]) -> list[Part]:
    """`parts` with further pieces."""
    found = [*parts]
    texts: list[str] = []  # that belong to the last part
    for piece in pieces:
        if is_plain(piece):
            if not texts and found and is_plain(found[-1]):
                texts.append(found[-1].text)  # type: ignore[union-attr]
            elif not texts:
                found.append(piece)
            texts.append(piece.text)  # type: ignore[union-attr]
        else:
            if texts:
                found[-1] = TextPart(text="".join(texts))
                texts = []
            found.append(piece)
    if texts:
        found[-1] = TextPart(text="".join(texts))
    return found


def grown(message: Message, pieces: Iterable[Part], *, whole: bool = False) -> Message:
    """The message with further pieces; with `whole`, they replace its parts."""
    return replace(message, parts=tuple(merged(() if whole else message.parts, pieces)))


class Progress(NamedTuple):
    """How much of a reply a reader has: bytes of its stream, characters of `message.text`, and whether text continues
    the last part."""

    size: int = 0
    characters: int = 0
    open: bool = False

    def delta(self, pieces: Sequence[Part]) -> str:
        """The text that further pieces append to `message.text`."""
        found: list[str] = []
        has_text, is_open = self.characters > 0, self.open
        for piece in pieces:
            text = text_of(piece)
            if text and has_text and not (is_open and is_plain(piece)):
                found.append("\n")
            found.append(text)
            has_text, is_open = has_text or bool(text), is_plain(piece)
        return "".join(found)

    def after(self, pieces: Sequence[Part], size: int) -> Progress:
        """The progress with further pieces; `size` is that of the stream up to their end."""
        if not pieces:
            return self
        return Progress(size, self.characters + len(self.delta(pieces)), is_plain(pieces[-1]))
