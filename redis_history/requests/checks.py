"""Checks of single values that users pass."""

from __future__ import annotations

from redis_history.errors import InvalidInputError
from redis_history.model import Conversation, Position
from redis_history.model.wire import MAX_ID_BYTES

__all__ = [
    "check_batch",
    "check_context",
    "check_limit",
    "check_message_id",
    "check_name",
    "check_position",
    "check_range",
    "check_record",
]


def check_message_id(message_id: str) -> str:
    """Raises InvalidInputError unless it is a string that could be an id."""
    try:
        fits = isinstance(message_id, str) and 1 <= len(message_id.encode()) <= MAX_ID_BYTES
    except UnicodeEncodeError:
        fits = False
    if not fits:
        raise InvalidInputError(f"{str(message_id)[:64]!a} is not a message id: 1 to {MAX_ID_BYTES} bytes of UTF-8")
    return message_id


def check_position(position: Position) -> Position:
    """Raises InvalidInputError unless it is of two whole numbers."""
    if not all(isinstance(value, int) and not isinstance(value, bool) for value in position):
        raise InvalidInputError(f"a position is of two whole numbers, not {tuple(position)!r}")
    return position


def check_limit(limit: int | None, name: str = "limit") -> None:
    """Raises InvalidInputError unless it is None or a number from 0."""
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
        raise InvalidInputError(f"{name} is a number from 0, or None for all, not {limit!r}")


def check_batch(size: int) -> None:
    """Raises InvalidInputError unless it is a number from 1 to 100,000."""
    if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= 100_000:
        raise InvalidInputError(f"this is a number from 1 to 100,000, not {size!r}")


def check_context(count: int) -> None:
    """Raises InvalidInputError unless it is a number from 0 to 100."""
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= 100:
        raise InvalidInputError(f"context is a number of messages from 0 to 100, not {count!r}")


def check_range(limit: int, offset: int) -> None:
    """Raises InvalidInputError unless both are numbers from 0."""
    for value, name in ((limit, "limit"), (offset, "offset")):
        if value is None:
            raise InvalidInputError(f"{name} is a number from 0, not None")
        check_limit(value, name)


def check_record(conversation: Conversation) -> None:
    """Raises InvalidInputError unless it is a Conversation."""
    if not isinstance(conversation, Conversation):
        raise InvalidInputError(f"create_conversation takes a Conversation, not {type(conversation).__name__}")


def check_name(name: str | None, parameter: str) -> None:
    """Raises InvalidInputError unless it is None or a string."""
    if name is not None and not isinstance(name, str):
        raise InvalidInputError(f"{parameter} is a string, not {name!r}")
