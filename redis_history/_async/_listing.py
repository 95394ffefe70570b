"""Reads of a backend that take many operations."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TypeVar

from redis_history.backends.base import AsyncBackend, AsyncFollowsAll, ChangedHeads, ChangeQuery, WakeAll
from redis_history.model import Conversation
from redis_history.operations import ScanConversations
from redis_history.paging import Reads, find_by_listing

T = TypeVar("T")


async def read(backend: AsyncBackend, steps: Reads[T]) -> T:
    """Run the steps of a read, and return what they return."""
    try:
        op = next(steps)
        while True:
            op = steps.send(await backend.execute(op))
    except StopIteration as end:
        found: T = end.value
        return found


class AsyncListing:
    """Exact, and slow: one call for each conversation, at each look."""

    def __init__(self, backend: AsyncBackend) -> None:
        self._backend = backend

    async def poll_changes(self, query: ChangeQuery) -> ChangedHeads:
        return await read(self._backend, find_by_listing(query))

    async def watch_all(self, wake: WakeAll) -> None:
        """Nothing rings."""

    async def unwatch_all(self, wake: WakeAll) -> None:
        """Nothing rings."""


async def scan_conversations(backend: AsyncBackend) -> AsyncIterator[list[Conversation]]:
    """All conversations, a page at a time, in no order."""
    op = ScanConversations()
    while True:
        page = await backend.execute(op)
        yield page.conversations
        if page.cursor is None:
            return
        op = ScanConversations(cursor=page.cursor)


def follows_all(backend: AsyncBackend) -> AsyncFollowsAll:
    """The backend itself, if it can tell what has changed."""
    return backend if isinstance(backend, AsyncFollowsAll) else AsyncListing(backend)
