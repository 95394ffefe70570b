"""Helpers of all adapters."""

from __future__ import annotations

import json
from typing import Any

from redis_history._ids import check_conversation_id
from redis_history.errors import MissingExtraError


def missing(extra: str, error: ImportError) -> MissingExtraError:
    """The error for a framework that is not installed. Raise it from `error`."""
    return MissingExtraError(f"{error.name or 'a package'} is not installed: pip install 'redis_history[{extra}]'")


def plain_or(value: Any, dumped: Any) -> Any:
    """`value` if JSON has a form for it, else `dumped`. Pydantic replaces NaN and infinite numbers by None."""
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return dumped
    return value


def checked_id(conversation_id: str) -> str:
    """Raises InvalidConversationIdError at once, not at the first message."""
    check_conversation_id(conversation_id)
    return conversation_id
