"""Runs the steps of reads and searches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from datetime import datetime
from typing import Any, Final

from msgspec.structs import replace

from redis_history._async._runtime import in_thread, resolve
from redis_history.model import Conversation
from redis_history.model.ranges import stays
from redis_history.operations import ReadPage, ScanConversations
from redis_history.operations.backend import AsyncBackend
from redis_history.operations.base import T
from redis_history.operations.options import Embedder
from redis_history.operations.page import PAGE, next_page
from redis_history.operations.searches import Embed, Work

#: Number of messages in the first read for the oldest message that may be compressed.
_OLDEST: Final = 32
_EVERYTHING: Final = ScanConversations()


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


async def scan_conversations(
    backend: AsyncBackend, op: ScanConversations = _EVERYTHING
) -> AsyncIterator[list[Conversation]]:
    """All conversations, or those that the scan `op` selects, a page at a time, in no order. Some may come twice."""
    while True:
        page = await backend.execute(op)
        yield page.conversations
        if page.cursor is None:
            return
        op = replace(op, cursor=page.cursor)


async def oldest_to_compress(backend: AsyncBackend, conversation_id: str) -> datetime | None:
    """The time of the oldest message that may be compressed."""
    op: ReadPage | None = ReadPage(conversation_id, _OLDEST, newest=False)
    while op is not None:
        page = await backend.execute(op)
        for message in page.messages:
            if not stays(message) and not message.is_summary and message.timestamp is not None:
                return message.timestamp
        op = next_page(op, page, min(4 * op.limit, PAGE))
    return None
