"""Caps on stored bytes, checked before anything is decoded.

5 MB of empty maps decode into 465 MB of Python objects, so bytes alone do not bound memory: the items must be
counted first. MessagePack announces every item with a header byte, so no value has more items than bytes, and only
large values need counting.
"""

from __future__ import annotations

from redis_history.errors import CorruptDataError

__all__ = ["BEGINNINGS", "MAX_DEPTH", "MAX_ITEMS", "MAX_MESSAGE_BYTES", "check_caps"]

#: Of one message, encoded. A batch of one message still fits one atomic change.
MAX_MESSAGE_BYTES = 4_000_000
#: Levels of nesting inside a free-form value. msgspec itself stops near 1,000 with a RecursionError.
MAX_DEPTH = 100
#: Values inside one message.
MAX_ITEMS = 100_000

# What a member has around the free-form values that the caps are about.
_FRAME_BYTES = 64
_FRAME_LEVELS = 8
_FRAME_ITEMS = 1000

#: The bytes with which MessagePack begins a list or map that is not empty.
BEGINNINGS = bytes([*range(0x81, 0xA0), 0xDC, 0xDD, 0xDE, 0xDF])
# Bytes after the header byte of each fixed-size type, and width of the length field of each sized one.
_FIXED = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4}
_FIXED |= {0xD3: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17}
_SIZED = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_NESTED = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}  # width of the count, values per count


def check_caps(data: bytes) -> None:
    """Raises CorruptDataError if `data` is too large, nested too deep, or holds too many values."""
    size = len(data)
    if size > MAX_MESSAGE_BYTES + _FRAME_BYTES:
        raise CorruptDataError(f"{size:,} bytes are over the cap of {MAX_MESSAGE_BYTES:,} for one message")
    # No value has more items than bytes, and every level of nesting needs a byte that begins a list or map, of which
    # there are seldom as many as levels allowed (text has such bytes too). Only then must it be looked through.
    if size > MAX_ITEMS or size - len(data.translate(None, BEGINNINGS)) > MAX_DEPTH:
        _walk(data)


def _walk(data: bytes) -> None:
    at, seen, end = 0, 0, len(data)
    due = [1]  # for each open container, how many values it still wants
    while due and at < end:
        if due[-1] == 0:
            due.pop()
            continue
        due[-1] -= 1
        head = data[at]
        at += 1
        seen += 1
        inside = 0
        if head < 0x80 or head >= 0xE0:
            pass
        elif head < 0x90:
            inside = 2 * (head & 0x0F)
        elif head < 0xA0:
            inside = head & 0x0F
        elif head < 0xC0:
            at += head & 0x1F
        elif head in _FIXED:
            at += _FIXED[head]
        elif head in _SIZED:
            width = _SIZED[head]
            at += width + int.from_bytes(data[at : at + width], "big") + (head in (0xC7, 0xC8, 0xC9))
        elif head in _NESTED:
            width, values = _NESTED[head]
            inside = values * int.from_bytes(data[at : at + width], "big")
            at += width
        if inside:
            due.append(inside)
            if len(due) > MAX_DEPTH + _FRAME_LEVELS:
                raise CorruptDataError(f"nested deeper than {MAX_DEPTH} levels")
        if seen + inside > MAX_ITEMS + _FRAME_ITEMS:
            raise CorruptDataError(f"more than {MAX_ITEMS:,} values in one message")
