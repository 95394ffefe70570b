"""Free-form values on their way in: how deep, how many, and nothing that JSON has no form for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from redis_history.errors import InvalidMessageError, MessageTooLargeError
from redis_history.model._caps import MAX_DEPTH, MAX_ITEMS
from redis_history.model.message import Message, Participant, Source

__all__ = ["check_values"]


def check_values(message: Message) -> None:
    """Raises MessageTooLargeError or InvalidMessageError, naming the place, for values over the caps or not finite."""
    _Walk().fields(message, "", 0)


#: What most values are; subclasses of these, and all others, are looked at more closely.
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
            raise InvalidMessageError(f"{path[:80]} is a {type(value).__name__}, which would not come back as it is")
