"""Helpers of all adapters."""

from __future__ import annotations

from redis_history._ids import check_conversation_id
from redis_history.errors import MissingExtraError

__all__ = ["checked_id", "missing"]


def missing(extra: str, error: ImportError) -> MissingExtraError:
    """The error for a framework that is not installed. Raise it from `error`."""
    return MissingExtraError(f"{error.name or 'a package'} is not installed: pip install 'redis_history[{extra}]'")


def checked_id(conversation_id: str) -> str:
    """Raises InvalidConversationIdError at once, not at the first message."""
    check_conversation_id(conversation_id)
    return conversation_id
