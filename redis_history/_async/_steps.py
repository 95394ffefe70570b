"""Runs the steps of reads and searches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from typing import Any, TypeVar

from redis_history._async._runtime import in_thread, resolve
from redis_history.backends.base import AsyncBackend
from redis_history.model import Conversation
from redis_history.operations import ScanConversations
from redis_history.requests.store_options import Embedder
from redis_history.search.searches import Embed, Work

T = TypeVar("T")


async def run_steps(backend: AsyncBackend, steps: Generator[Any, Any, T], embedder: Embedder | None = None) -> T:
    """Do what the generator yields, send it the outcomes, and return what it returns."""
    outcome: Any = None
    error: Exception | None = None
    while True:
        try:
            step = steps.send(outcome) if error is None else steps.throw(error)
        except StopIteration as end:
            result: T = end.value
            return result
        outcome = error = None
        try:
            if isinstance(step, Work):
                outcome = await in_thread(step.function)
            elif isinstance(step, Embed):
                assert embedder is not None  # noqa: S101
                outcome = await resolve(embedder(step.texts))
            else:
                outcome = await backend.execute(step)
        except Exception as raised:  # noqa: BLE001 -- the generator may handle it
            error = raised


async def scan_conversations(backend: AsyncBackend) -> AsyncIterator[list[Conversation]]:
    """All conversations, a page at a time, in no order."""
    op = ScanConversations()
    while True:
        page = await backend.execute(op)
        yield page.conversations
        if page.cursor is None:
            return
        op = ScanConversations(cursor=page.cursor)
