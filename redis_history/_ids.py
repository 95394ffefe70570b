"""Message ids: UUID version 7 (RFC 9562), which sort by the time they were made."""

from __future__ import annotations

import os
import time
from typing import Final

__all__ = ["new_id", "new_token"]

_VERSION_7: Final = 0x7 << 76
_VARIANT: Final = 0b10 << 62


def new_id() -> str:
    """A new UUIDv7 as its 36-character text: 48 bits of milliseconds, 74 random bits.

    The random bits come from the operating system, so forked processes never share a stream.
    """
    random = int.from_bytes(os.urandom(10), "big")
    value = (time.time_ns() // 1_000_000) << 80
    value |= _VERSION_7 | ((random >> 68) & 0xFFF) << 64 | _VARIANT | (random & 0x3FFFFFFFFFFFFFFF)
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def new_token() -> str:
    """64 random bits in hex: names one change, so that a retry and a rewound log are recognised."""
    return os.urandom(8).hex()
