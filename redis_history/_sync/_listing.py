# Generated from ../_async by scripts/unasync: do not edit.
"""Reads of a backend that take many operations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from redis_history.backends.base import Backend
from redis_history.model import Conversation
from redis_history.operations import ScanConversations
from redis_history.paging import Reads

T = TypeVar("T")


def read(backend: Backend, steps: Reads[T]) -> T:
    """Run the steps of a read, and return what they return."""
    try:
        op = next(steps)
        while True:
            op = steps.send(backend.execute(op))
    except StopIteration as end:
        result: T = end.value
        return result


def scan_conversations(backend: Backend) -> Iterator[list[Conversation]]:
    """All conversations, a page at a time, in no order."""
    op = ScanConversations()
    while True:
        page = backend.execute(op)
        yield page.conversations
        if page.cursor is None:
            return
        op = ScanConversations(cursor=page.cursor)
