"""Runs the search tool for the frameworks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from redis_history import AsyncHistoryStore, HistoryStore
from redis_history.tokens import TokenCounter
from redis_history.tools import AsyncConversationSearchTool, ConversationSearchTool, Include, conversation_search_tool


def search_runner(
    store: HistoryStore | AsyncHistoryStore,
    conversation_id: str,
    token_cap: int | None,
    token_counter: TokenCounter | None,
    include: Iterable[Include],
) -> tuple[ConversationSearchTool | AsyncConversationSearchTool, Callable[[Any], Awaitable[str]]]:
    """The search tool, and a coroutine function that runs it: in a thread, if the store is synchronous."""
    tool = conversation_search_tool(
        store, conversation_id, token_cap=token_cap, token_counter=token_counter, include=include
    )

    async def run(arguments: Any) -> str:
        if isinstance(tool, AsyncConversationSearchTool):
            return await tool.run(arguments)
        return await asyncio.to_thread(tool.run, arguments)

    return tool, run
