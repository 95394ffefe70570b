"""The content of a reply that is being written: a stream of records with pieces of text and whole parts. Pure.

A record is one byte for its kind (1 text, 2 a part as in a stored message), the length of its data in 3 bytes, and the
data. Text continues the last part if that is plain text, and otherwise begins a new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final, NamedTuple
from zlib import crc32

import msgspec
from msgspec.structs import replace

from redis_history.errors import CorruptDataError
from redis_history.values._caps import check_caps
from redis_history.values.message import Message, text_of
from redis_history.values.parts import Part, TextPart
from redis_history.values.rows import part_of, row_of

#: A writer without a sign of life for this many seconds is dead.
LEASE_SECONDS: Final = 6.0


def counts_as_alive(seconds: float) -> bool:
    """Whether the lease of a writer, which ends in this number of seconds, is valid. If it lasts longer than any lease
    can, the clock was set back in the meantime, and a living writer renews it."""
    return 0 < seconds <= LEASE_SECONDS


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
    for plain, run in groupby(pieces, is_plain):
        if not plain:
            found += run
            continue
        text = "".join(piece.text for piece in run)  # type: ignore[union-attr]
        if found and is_plain(found[-1]):
            text = found.pop().text + text  # type: ignore[union-attr]
        found.append(TextPart(text=text))
    return found


def grown(message: Message, pieces: Iterable[Part], *, whole: bool = False) -> Message:
    """The message with further pieces; with `whole`, they replace its parts."""
    return replace(message, parts=tuple(merged(() if whole else message.parts, pieces)))


class Progress(NamedTuple):
    """How much of a reply a reader has: bytes of its stream, characters of `message.text`, whether the last part is
    plain text with characters, which further text continues without a line break, and the checksum of the text."""

    size: int = 0
    characters: int = 0
    open: bool = False
    checksum: int = 0

    def is_in(self, text: str) -> bool:
        """Whether `text` begins with the text that the reader has."""
        return len(text) >= self.characters and crc32(text[: self.characters].encode()) == self.checksum

    def delta(self, pieces: Sequence[Part]) -> str:
        """The text that further pieces append to `message.text`."""
        return self._read(pieces)[0]

    def _read(self, pieces: Sequence[Part]) -> tuple[str, bool]:
        """That text, and `open` behind these pieces."""
        found: list[str] = []
        has_text, is_open = self.characters > 0, self.open
        for piece in pieces:
            text = text_of(piece)
            if text and has_text and not (is_open and is_plain(piece)):
                found.append("\n")
            found.append(text)
            # An empty part is joined with the text behind it, but not with a part of another kind before it.
            has_text, is_open = has_text or bool(text), is_plain(piece) and (bool(text) or is_open)
        return "".join(found), is_open

    def after(self, pieces: Sequence[Part], size: int) -> Progress:
        """The progress with further pieces; `size` is that of the stream up to their end."""
        if not pieces:
            return self
        delta, is_open = self._read(pieces)
        return Progress(size, self.characters + len(delta), is_open, crc32(delta.encode(), self.checksum))
