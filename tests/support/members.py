"""Messages as they are stored."""

from redis_history.model import Message
from redis_history.model.wire import decode_member, encode, encode_member
from redis_history.tokens import count_characters

__all__ = ["member_of", "stored"]


def member_of(message: Message, sequence: int = 1, timestamp: int = 0) -> bytes:
    body, flags = encode(message)
    return encode_member(sequence, count_characters(message), flags, timestamp, body)


def stored(message: Message, sequence: int = 1, timestamp: int = 0) -> Message:
    """The message as it is read back."""
    return decode_member(member_of(message, sequence, timestamp))
