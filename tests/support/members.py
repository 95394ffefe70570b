"""Messages as they are stored."""

from redis_history.values import Message
from redis_history.values.sizes import count_characters
from redis_history.values.wire import MAX_MESSAGE_BYTES, decode_member, encode, encode_member

__all__ = ["member_of", "stored"]


def member_of(message: Message, sequence: int = 1, timestamp: int = 0) -> bytes:
    body, flags = encode(message)
    return encode_member(sequence, count_characters(message), flags, timestamp, body)


def stored(message: Message, sequence: int = 1, timestamp: int = 0) -> Message:
    """The message as it is read back."""
    return decode_member(member_of(message, sequence, timestamp), MAX_MESSAGE_BYTES)
