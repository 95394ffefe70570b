"""Free-form values on their way in: how deep, how many, and nothing that JSON has no form for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from redis_history.errors import InvalidMessageError, MessageTooLargeError
from redis_history.model._caps import MAX_DEPTH, MAX_ITEMS
from redis_history.model.message import Message

__all__ = ["check_values"]


def check_values(message: Message) -> None:
    """Raises MessageTooLargeError or InvalidMessageError, naming the place, for values over the caps or not finite."""
    _Walk().fields(message, "", 0)


class _Walk:
    def __init__(self) -> None:
        self.items = 0

    def fields(self, struct: Struct, path: str, depth: int) -> None:
        for name in struct.__struct_fields__:
            value = getattr(struct, name)
            if value is None or type(value) is str:
                continue
            if name == "parts" or name == "sources":
                for index, item in enumerate(value):
                    self.one(item, f"{name}[{index}]", depth)
            else:
                self.one(value, f"{path}.{name}" if path else name, depth)

    def one(self, value: Any, path: str, depth: int) -> None:
        self.items += 1
        if self.items > MAX_ITEMS:
            raise MessageTooLargeError(f"the message has more than {MAX_ITEMS:,} items, counted at {path[:80]}")
        if depth > MAX_DEPTH:
            raise MessageTooLargeError(f"{path[:80]} is nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, float):
            if not math.isfinite(value):
                raise InvalidMessageError(f"{path[:80]} is {value}, which JSON cannot carry; use None or a string")
        elif isinstance(value, Mapping):
            self.items += len(value)  # a key is a value too
            for key, item in value.items():
                self.one(item, f"{path}.{key}" if depth < 8 else path, depth + 1)
        elif isinstance(value, list | tuple | set | frozenset):
            for item in value:
                self.one(item, path, depth + 1)
        elif isinstance(value, Struct):
            self.fields(value, path, depth)
