"""What an adapter says when its framework is not installed."""

from __future__ import annotations

from redis_history.errors import InvalidConversationIdError, MissingExtraError

__all__ = ["checked_id", "missing"]


def missing(extra: str, error: ImportError) -> MissingExtraError:
    """The error to raise from `error`."""
    return MissingExtraError(f"{error.name or 'a package'} is not installed: pip install 'redis_history[{extra}]'")


def checked_id(conversation_id: str) -> str:
    """Raises InvalidConversationIdError at once, not at the first message."""
    if not isinstance(conversation_id, str) or not conversation_id:
        raise InvalidConversationIdError(f"a conversation id is a non-empty string, not {conversation_id!r}")
    return conversation_id
