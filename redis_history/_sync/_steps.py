# Generated from ../_async by scripts/unasync: do not edit.
"""Runs the steps of reads and searches."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, TypeVar

from redis_history._sync._runtime import in_thread, resolve
from redis_history.backends.base import Backend
from redis_history.model import Conversation
from redis_history.operations import ScanConversations
from redis_history.requests.store_options import Embedder
from redis_history.search.searches import Embed, Work

T = TypeVar("T")


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


def scan_conversations(backend: Backend) -> Iterator[list[Conversation]]:
    """All conversations, a page at a time, in no order."""
    op = ScanConversations()
    while True:
        page = backend.execute(op)
        yield page.conversations
        if page.cursor is None:
            return
        op = ScanConversations(cursor=page.cursor)
