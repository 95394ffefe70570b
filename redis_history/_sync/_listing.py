# Generated from ../_async by scripts/unasync: do not edit.
"""Reads of a backend that take many operations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from redis_history.backends.base import Backend, ChangedHeads, ChangeQuery, FollowsAll, WakeAll
from redis_history.model import Conversation
from redis_history.operations import ScanConversations
from redis_history.paging import Reads, find_by_listing

T = TypeVar("T")


def read(backend: Backend, steps: Reads[T]) -> T:
    """Run the steps of a read, and return what they return."""
    try:
        op = next(steps)
        while True:
            op = steps.send(backend.execute(op))
    except StopIteration as end:
        found: T = end.value
        return found


class Listing:
    """Exact, and slow: one call for each conversation, at each look."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def poll_changes(self, query: ChangeQuery) -> ChangedHeads:
        return read(self._backend, find_by_listing(query))

    def watch_all(self, wake: WakeAll) -> None:
        """Nothing rings."""

    def unwatch_all(self, wake: WakeAll) -> None:
        """Nothing rings."""


def scan_conversations(backend: Backend) -> Iterator[list[Conversation]]:
    """All conversations, a page at a time, in no order."""
    op = ScanConversations()
    while True:
        page = backend.execute(op)
        yield page.conversations
        if page.cursor is None:
            return
        op = ScanConversations(cursor=page.cursor)


def follows_all(backend: Backend) -> FollowsAll:
    """The backend itself, if it can tell what has changed."""
    return backend if isinstance(backend, FollowsAll) else Listing(backend)
