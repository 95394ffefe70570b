# Generated from ../_async by scripts/unasync: do not edit.
"""Runs the steps of reads and searches."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from datetime import datetime
from typing import Any, Final

from msgspec.structs import replace

from redis_history._sync._runtime import in_thread, resolve
from redis_history.model import Conversation
from redis_history.model.ranges import stays
from redis_history.operations import ReadPage, ScanConversations
from redis_history.operations.backend import Backend
from redis_history.operations.base import T
from redis_history.operations.options import Embedder
from redis_history.operations.page import PAGE, next_page
from redis_history.operations.searches import Embed, Work

#: Number of messages in the first read for the oldest message that may be compressed.
_OLDEST: Final = 32
_EVERYTHING: Final = ScanConversations()


def run_steps(backend: Backend, steps: Generator[Any, Any, T], embedder: Embedder | None = None) -> T:
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
                outcome = in_thread(step.function)
            elif isinstance(step, Embed):
                assert embedder is not None  # noqa: S101
                outcome = resolve(embedder(step.texts))
            else:
                outcome = backend.execute(step)
        except Exception as raised:  # noqa: BLE001 -- the generator may handle it
            error = raised


def scan_conversations(backend: Backend, op: ScanConversations = _EVERYTHING) -> Iterator[list[Conversation]]:
    """All conversations, or those that the scan `op` selects, a page at a time, in no order. Some may come twice."""
    while True:
        page = backend.execute(op)
        yield page.conversations
        if page.cursor is None:
            return
        op = replace(op, cursor=page.cursor)


def oldest_to_compress(backend: Backend, conversation_id: str) -> datetime | None:
    """The time of the oldest message that may be compressed."""
    op: ReadPage | None = ReadPage(conversation_id, _OLDEST, newest=False)
    while op is not None:
        page = backend.execute(op)
        for message in page.messages:
            if not stays(message) and not message.is_summary and message.timestamp is not None:
                return message.timestamp
        op = next_page(op, page, min(4 * op.limit, PAGE))
    return None
