"""Reads of a backend that take many operations."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TypeVar

from redis_history.backends.base import AsyncBackend
from redis_history.model import Conversation
from redis_history.operations import ScanConversations
from redis_history.paging import Reads

T = TypeVar("T")


async def read(backend: AsyncBackend, steps: Reads[T]) -> T:
    """Run the steps of a read, and return what they return."""
    try:
        op = next(steps)
        while True:
            op = steps.send(await backend.execute(op))
    except StopIteration as end:
        result: T = end.value
        return result


async def scan_conversations(backend: AsyncBackend) -> AsyncIterator[list[Conversation]]:
    """All conversations, a page at a time, in no order."""
    op = ScanConversations()
    while True:
        page = await backend.execute(op)
        yield page.conversations
        if page.cursor is None:
            return
        op = ScanConversations(cursor=page.cursor)
