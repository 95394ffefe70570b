"""The columns of a table of messages, or the keys of a record, with the id, owner and time of a conversation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from redis_history.errors import InvalidMessageError

#: Columns with the id of the conversation that a message belongs to.
CONVERSATION: Final = (
    *("conversation_id", "session_id", "thread_id", "chat_id"),
    *("conversationId", "sessionId", "threadId", "chatId"),
)
USER: Final = ("user_id", "userId")
TIME: Final = ("timestamp", "created_at", "createdAt")


def scalar(value: Any) -> str | None:
    """`value` as text for an id; None if it is not text or a number."""
    if isinstance(value, str):
        return value or None
    number = _whole(value)
    return None if number is None else str(number)


def names_conversation(message: Any) -> bool:
    """Whether a message has a column of CONVERSATION, also without a value."""
    return isinstance(message, dict) and any(name in message for name in CONVERSATION)


def conversation_of(message: Mapping[str, Any]) -> str | None:
    """The id of the conversation that a message names; None without such a column.

    Raises InvalidMessageError for a column without a usable value: the message may belong to any conversation.
    """
    present = [name for name in CONVERSATION if name in message]
    for name in present:
        value = message[name]
        if isinstance(value, Mapping) and list(value) == ["$oid"]:  # of MongoDB
            value = value["$oid"]
        if (key := scalar(value)) is not None:
            return key
        if value not in (None, ""):
            raise InvalidMessageError(f"{name} must be text or a number, not {type(value).__name__}")
    if present:
        raise InvalidMessageError(f"{present[0]} is empty, so nothing says to which conversation the message belongs")
    return None


def user_of(record: Mapping[str, Any]) -> int | str | None:
    """The owner that a record or a message names, as text or a number as it is there."""
    for name in USER:
        value = record.get(name)
        if isinstance(value, str) and value:
            return value
        if (number := _whole(value)) is not None:
            return number
    return None


def time_of(message: Mapping[str, Any]) -> Any:
    """The time of a message as the source writes it."""
    return next((message[name] for name in TIME if message.get(name) is not None), None)


def _whole(value: Any) -> int | None:
    """A whole number; also 7.0, which tables have if the column is empty elsewhere."""
    if isinstance(value, bool) or not (isinstance(value, int) or (isinstance(value, float) and value.is_integer())):
        return None
    return int(value)
