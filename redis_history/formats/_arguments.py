"""The arguments of a tool call: stored as a value; some providers use a JSON string.

Models format that string in different ways. The name of the style is stored, or the string itself if no style
reproduces it, so that the provider (and its prompt cache) gets back exactly what it sent.
"""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec

__all__ = ["dump_arguments", "parse_arguments"]

_MAX_DEPTH = 90  # the message model allows 100, and the message itself needs some of them
_STYLES = {
    "compact": ((",", ":"), False),
    "spaced": ((", ", ": "), False),
    "spaced_ascii": ((", ", ": "), True),
    "compact_ascii": ((",", ":"), True),
}


def parse_arguments(raw: Any) -> tuple[Any, dict[str, Any]]:
    """The value of `raw` and a note for `dump_arguments`. Invalid JSON, and values that cannot be stored, stay
    strings."""
    if not isinstance(raw, str):
        return raw, {"style": "object"}
    try:
        value = json.loads(raw, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return raw, {}
    if isinstance(value, str) or not _storable(value):
        return raw, {}
    for style in _STYLES:
        if _dump(value, style) == raw:
            return value, {} if style == "compact" else {"style": style}
    return value, {"raw": raw}


def dump_arguments(value: Any, note: Any = None) -> Any:
    """The string for `value`: the original one if `note` describes it and `value` is unchanged, else compact JSON."""
    if isinstance(value, str):
        return value
    note = note or {}
    style = note.get("style", "compact")
    if style == "object":
        return value
    raw = note.get("raw")
    if isinstance(raw, str) and json.loads(raw) == value:
        return raw
    return _dump(value, style if style in _STYLES else "compact")


def _dump(value: Any, style: str) -> str:
    separators, ascii_only = _STYLES[style]
    return json.dumps(value, ensure_ascii=ascii_only, separators=separators, default=str)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _storable(value: Any) -> bool:
    try:
        msgspec.msgpack.encode(value)
    except (OverflowError, UnicodeEncodeError, RecursionError):
        return False
    return _fits(value, 0)


def _fits(value: Any, level: int) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)  # 1e400 is valid JSON, but infinity as a Python float
    if isinstance(value, dict | list):
        items = value.values() if isinstance(value, dict) else value
        return level < _MAX_DEPTH and all(_fits(item, level + 1) for item in items)
    return True
