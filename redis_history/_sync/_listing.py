# Generated from ../_async by scripts/unasync: do not edit.
"""Follows all conversations of a backend that cannot tell what changed: lists them, and asks each for its newest."""

from __future__ import annotations

from typing import Final

from redis_history.backends.base import Backend, FollowsAll, Found, Look, WakeAll
from redis_history.changelog import is_gone
from redis_history.events import BEGINNING, Cursor
from redis_history.operations import ListConversations, ReadHead

__all__ = ["Listing", "follows_all"]

_PAGE: Final = 500


class Listing:
    """Exact, and slow: one call for each conversation, at each look."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def find_changed(self, look: Look) -> Found:
        ids = set(look.known)
        offset, full = 0, True
        while full:
            page = self._backend.execute(ListConversations(None, None, _PAGE, offset))
            ids.update(conversation.conversation_id for conversation in page)
            offset, full = offset + len(page), len(page) == _PAGE
        heads: dict[str, Cursor] = {}
        for conversation_id in ids:
            head = (self._backend.execute(ReadHead(conversation_id))).cursor
            if is_gone(head):
                head = BEGINNING
            if head != look.known.get(conversation_id, BEGINNING):
                heads[conversation_id] = head
        return Found(heads)

    def watch_all(self, wake: WakeAll) -> None:
        """Nothing rings."""

    def unwatch_all(self, wake: WakeAll) -> None:
        """Nothing rings."""


def follows_all(backend: Backend) -> FollowsAll:
    """The backend itself, if it can tell what has changed."""
    return backend if isinstance(backend, FollowsAll) else Listing(backend)
