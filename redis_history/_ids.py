"""Ids: of messages (UUID version 7 of RFC 9562, which sort by the time they were made), changes and conversations."""

from __future__ import annotations

import time
from typing import Final

from redis_history._chance import CHANCE
from redis_history.errors import InvalidConversationIdError

__all__ = ["MAX_CONVERSATION_ID_BYTES", "check_conversation_id", "new_id", "new_token"]

MAX_CONVERSATION_ID_BYTES: Final = 512

_VERSION_7: Final = 0x7 << 76
_VARIANT: Final = 0b10 << 62
_LOW_62: Final = 2**62 - 1


def new_id() -> str:
    """A new UUIDv7 as its 36-character text: 48 bits of milliseconds, 74 random bits."""
    bits = CHANCE.getrandbits(74)
    value = (time.time_ns() // 1_000_000) << 80 | _VERSION_7 | (bits >> 62) << 64 | _VARIANT | bits & _LOW_62
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def new_token() -> str:
    """64 random bits in hex: names one change, so that a retry and a rewound log are recognised."""
    return f"{CHANCE.getrandbits(64):016x}"


def check_conversation_id(conversation_id: str) -> bytes:
    """The id as UTF-8. Raises InvalidConversationIdError unless it is 1 to 512 bytes of Unicode text."""
    if not isinstance(conversation_id, str):
        raise InvalidConversationIdError(f"a conversation id is a string, not {type(conversation_id).__name__}")
    try:
        encoded = conversation_id.encode()
    except UnicodeEncodeError as error:
        raise InvalidConversationIdError(
            f"the conversation id has a lone surrogate at index {error.start}, which UTF-8 cannot carry"
        ) from error
    if not 1 <= len(encoded) <= MAX_CONVERSATION_ID_BYTES:
        raise InvalidConversationIdError(
            f"a conversation id has 1 to {MAX_CONVERSATION_ID_BYTES} bytes of UTF-8, this one has {len(encoded)}"
        )
    return encoded
