"""Ids of messages (UUID version 7 of RFC 9562, which sort by creation time), changes and conversations."""

from __future__ import annotations

import hashlib
import os
import random
import re
import time
from typing import Final

import msgspec
import orjson

from redis_history.errors import InvalidConversationIdError, InvalidInputError
from redis_history.values._validation import MAX_INTEGER, MIN_INTEGER, refuse

#: A private random generator, so that programs may seed the module `random` alike in every process without retrying in
#: step, and rely on its numbers. Seeded by the operating system, and again in a forked child.
rng: Final = random.Random()  # noqa: S311 -- ids and waits must differ, but need not be secret
os.register_at_fork(after_in_child=rng.seed)

MAX_CONVERSATION_ID_BYTES: Final = 512
#: A message id in UTF-8.
MAX_ID_BYTES: Final = 512

_VERSION_7: Final = 0x7 << 76
_VARIANT: Final = 0b10 << 62
_LOW_62: Final = 2**62 - 1


def new_id() -> str:
    """A new UUIDv7 as its 36-character text: 48 bits of milliseconds, 74 random bits."""
    bits = rng.getrandbits(74)
    value = (time.time_ns() // 1_000_000) << 80 | _VERSION_7 | (bits >> 62) << 64 | _VARIANT | bits & _LOW_62
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def new_token() -> str:
    """64 random bits in hex. They identify a change, to recognize a retry and a rewound log."""
    return f"{rng.getrandbits(64):016x}"


def check_conversation_id(conversation_id: str, name: str = "conversation_id") -> bytes:
    """The id as UTF-8. Raises InvalidConversationIdError unless it is 1 to 512 bytes of Unicode text."""
    if not isinstance(conversation_id, str):
        refuse(conversation_id, name, "a str", InvalidConversationIdError)
    try:
        encoded = conversation_id.encode()
    except UnicodeEncodeError as error:
        raise InvalidConversationIdError(
            f"{name} has a lone surrogate at index {error.start}, which UTF-8 cannot carry; use another id"
        ) from error
    if not 1 <= len(encoded) <= MAX_CONVERSATION_ID_BYTES:
        raise InvalidConversationIdError(
            f"{name} must have 1 to {MAX_CONVERSATION_ID_BYTES} bytes in UTF-8, not {len(encoded)}"
        )
    return encoded


def check_message_id(message_id: str, name: str = "message_id") -> str:
    """The id. Raises InvalidInputError unless it is a str of 1 to 512 bytes in UTF-8."""
    try:
        fits = isinstance(message_id, str) and 1 <= len(message_id.encode()) <= MAX_ID_BYTES
    except UnicodeEncodeError:
        fits = False
    if not fits:
        refuse(message_id, name, f"a str of 1 to {MAX_ID_BYTES} bytes in UTF-8", InvalidInputError)
    return message_id


_INTEGER: Final = re.compile(r"0|-?[1-9][0-9]{0,18}")


def owner_of(text: str) -> int | str:
    """Parses an owner: a 64-bit integer becomes an int, a JSON string its value, other text itself. So 1 is the number,
    and "1" in double quotes the string."""
    if _INTEGER.fullmatch(text) and MIN_INTEGER <= int(text) <= MAX_INTEGER:
        return int(text)
    if len(text) > 1 and text[0] == text[-1] == '"':
        try:
            return str(orjson.loads(text))
        except orjson.JSONDecodeError:
            return text
    return text


def owner_text(owner: int | str) -> str:
    """The text by which `owner_of` finds this owner."""
    if isinstance(owner, int) or owner_of(owner) == owner:
        return str(owner)
    return orjson.dumps(owner).decode()


def digest_of(owner: int | str) -> bytes:
    """The name of an owner, an agent or a forked conversation in keys, of 40 bytes."""
    return hashlib.sha1(msgspec.msgpack.encode(owner), usedforsecurity=False).hexdigest().encode()
