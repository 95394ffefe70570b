"""Caps on messages: on stored bytes before they are decoded, and on free-form values before they are encoded.

5 MB of empty maps decode into 465 MB of Python objects, so a limit on bytes does not bound memory: the items must be
counted first. Each item has a header byte in MessagePack, so no value has more items than bytes, and only large values
need counting.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from redis_history.errors import CorruptDataError, InvalidMessageError, MessageTooLargeError
from redis_history.values.message import Message, Participant, Source

#: The encoded bytes of a message, and of a message without its large contents (`values.beside`), which a script
#: gets.
MAX_MESSAGE_BYTES = 64_000_000
MAX_REST_BYTES = 4_000_000
#: Levels of nesting inside a free-form value. msgspec itself stops near 1,000 with a RecursionError.
MAX_DEPTH = 100
#: Values inside one message.
MAX_ITEMS = 100_000

# The rest of a member, around free-form values.
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


def check_caps(data: bytes, start: int = 0, most: int = MAX_MESSAGE_BYTES) -> None:
    """Raises CorruptDataError if the value that begins at `start` has more than `most` bytes, is nested too deep, or
    holds too many values."""
    size = len(data) - start
    if size > most + _FRAME_BYTES:
        raise CorruptDataError(f"{size:,} bytes are over the cap of {most:,} for one message")
    # No value has more items than bytes, and each level of nesting needs a byte that begins a list or map (text has
    # such bytes too). Few values have enough of these to be counted.
    if size > MAX_ITEMS or size - len(data.translate(None, BEGINNINGS)) > MAX_DEPTH:
        _count(data, start)


def _count(data: bytes, at: int) -> None:
    seen, end = 0, len(data)
    due = [1]  # for each open container, the number of values that follow
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


def check_values(message: Message) -> None:
    """Raises MessageTooLargeError or InvalidMessageError, naming the place, for values over the caps or not finite."""
    _Walk().fields(message, "", 0)


#: The types of most values. Others, and subclasses of these, need closer checks.
_LEAVES = frozenset({str, int, bool, bytes, type(None)})
_PLAIN = (str, int, float, bool, bytes, datetime, msgspec.msgpack.Ext, type(None))
_KINDS: dict[str, type] = {"participant": Participant, "sources": Source}


class _Walk:
    def __init__(self) -> None:
        self.items = 0

    def fields(self, struct: Struct, path: str, depth: int) -> None:
        for name in struct.__struct_fields__:
            value = getattr(struct, name)
            kind = _KINDS.get(name)
            if value is None or (type(value) is str and kind is None):
                continue
            if name in ("parts", "sources"):
                for index, item in enumerate(value):
                    if kind is not None and not isinstance(item, kind):
                        raise InvalidMessageError(f"{name}[{index}] is a {type(item).__name__}, not a {kind.__name__}")
                    self.one(item, f"{name}[{index}]", depth)
            elif kind is not None and not isinstance(value, kind):
                raise InvalidMessageError(f"{name} is a {type(value).__name__}, not a {kind.__name__}")
            else:
                self.one(value, f"{path}.{name}" if path else name, depth)

    def one(self, value: Any, path: str, depth: int) -> None:
        self.items += 1
        if self.items > MAX_ITEMS:
            raise MessageTooLargeError(f"the message has more than {MAX_ITEMS:,} items, counted at {path[:80]}")
        if depth > MAX_DEPTH:
            raise MessageTooLargeError(f"{path[:80]} is nested deeper than {MAX_DEPTH} levels")
        if type(value) in _LEAVES:
            return
        if isinstance(value, float):
            if not math.isfinite(value):
                raise InvalidMessageError(f"{path[:80]} is {value}, which JSON cannot carry; use None or a string")
        elif isinstance(value, Mapping):
            self.items += len(value)  # a key is a value too
            for key, item in value.items():
                self.one(item, f"{path}.{key}" if depth < 8 else path, depth + 1)
        elif isinstance(value, list):
            for item in value:
                self.one(item, path, depth + 1)
        elif isinstance(value, Struct):
            self.fields(value, path, depth)
        elif not isinstance(value, _PLAIN) or (isinstance(value, datetime) and value.tzinfo is None):
            raise InvalidMessageError(f"{path[:80]} is a {type(value).__name__}, which cannot be stored")
