"""Helpers that all adapters use."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Unpack

from redis_history._ids import check_conversation_id
from redis_history.errors import MissingExtraError
from redis_history.tools import (
    AsyncConversationSearchTool,
    ConversationSearchTool,
    SearchOptions,
    conversation_search_tool,
)


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


def search_runner(
    store: Any, conversation_id: str, **options: Unpack[SearchOptions]
) -> tuple[ConversationSearchTool | AsyncConversationSearchTool, Callable[[Any], Awaitable[str]]]:
    """The search tool, and a coroutine function that runs it: in a thread, if the store is synchronous."""
    tool: Any = conversation_search_tool(store, conversation_id, **options)

    async def run(arguments: Any) -> str:
        if isinstance(tool, AsyncConversationSearchTool):
            return await tool.run(arguments)
        return str(await asyncio.to_thread(tool.run, arguments))

    return tool, run
