"""Follows all conversations of a backend that cannot tell what changed: lists them, and asks each for its newest."""

from __future__ import annotations

from typing import Final

from redis_history.backends.base import AsyncBackend, AsyncFollowsAll, Found, Look, WakeAll
from redis_history.changelog import is_gone
from redis_history.events import BEGINNING, Cursor
from redis_history.operations import ListConversations, ReadHead

__all__ = ["AsyncListing", "follows_all"]

_PAGE: Final = 500


class AsyncListing:
    """Exact, and slow: one call for each conversation, at each look."""

    def __init__(self, backend: AsyncBackend) -> None:
        self._backend = backend

    async def find_changed(self, look: Look) -> Found:
        ids = set(look.known)
        offset, full = 0, True
        while full:
            page = await self._backend.execute(ListConversations(None, None, _PAGE, offset))
            ids.update(conversation.conversation_id for conversation in page)
            offset, full = offset + len(page), len(page) == _PAGE
        heads: dict[str, Cursor] = {}
        for conversation_id in ids:
            head = (await self._backend.execute(ReadHead(conversation_id))).cursor
            if is_gone(head):
                head = BEGINNING
            if head != look.known.get(conversation_id, BEGINNING):
                heads[conversation_id] = head
        return Found(heads)

    async def watch_all(self, wake: WakeAll) -> None:
        """Nothing rings."""

    async def unwatch_all(self, wake: WakeAll) -> None:
        """Nothing rings."""


def follows_all(backend: AsyncBackend) -> AsyncFollowsAll:
    """The backend itself, if it can tell what has changed."""
    return backend if isinstance(backend, AsyncFollowsAll) else AsyncListing(backend)
