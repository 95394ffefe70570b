"""Caps on stored bytes, checked before anything is decoded.

5 MB of empty maps decode into 465 MB of Python objects, so bytes alone do not bound memory: the items must be
counted first. MessagePack announces every item with a header byte, so no value has more items than bytes, and only
large values need counting.
"""

from __future__ import annotations

from redis_history.errors import CorruptDataError

__all__ = ["MAX_DEPTH", "MAX_ID_BYTES", "MAX_ITEMS", "MAX_MESSAGE_BYTES", "check_caps"]

#: Of one message, encoded. A batch of one message still fits one atomic change.
MAX_MESSAGE_BYTES = 4_000_000
#: Levels of nesting inside a free-form value. msgspec itself stops near 1,000 with a RecursionError.
MAX_DEPTH = 100
#: Values inside one message.
MAX_ITEMS = 100_000
#: Of a message id, as UTF-8.
MAX_ID_BYTES = 512

_FRAME_BYTES = 64
# Bytes after the header byte of each fixed-size type, and width of the length field of each sized one.
_FIXED = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4}
_FIXED |= {0xD3: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17}
_SIZED = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_NESTED = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}  # width of the count, values per count


def check_caps(data: bytes) -> None:
    """Raises CorruptDataError if `data` is too large, or holds more than MAX_ITEMS values."""
    if len(data) > MAX_MESSAGE_BYTES + _FRAME_BYTES:
        raise CorruptDataError(f"{len(data):,} bytes are over the cap of {MAX_MESSAGE_BYTES:,} for one message")
    if len(data) > MAX_ITEMS:
        _count(data)


def _count(data: bytes) -> None:
    at, due, seen, end = 0, 1, 0, len(data)
    while due and at < end:
        head = data[at]
        at += 1
        due -= 1
        seen += 1
        if head < 0x80 or head >= 0xE0:
            pass
        elif head < 0x90:
            due += 2 * (head & 0x0F)
        elif head < 0xA0:
            due += head & 0x0F
        elif head < 0xC0:
            at += head & 0x1F
        elif head in _FIXED:
            at += _FIXED[head]
        elif head in _SIZED:
            width = _SIZED[head]
            at += width + int.from_bytes(data[at : at + width], "big") + (head in (0xC7, 0xC8, 0xC9))
        elif head in _NESTED:
            width, values = _NESTED[head]
            due += values * int.from_bytes(data[at : at + width], "big")
            at += width
        if seen + due > MAX_ITEMS:
            raise CorruptDataError(f"more than {MAX_ITEMS:,} values in one message")
