"""The read rights of a client, by lives of conversations, because another user can reuse the id of a deleted one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, NamedTuple

from redis_history.store._async.store import AsyncHistoryStore
from redis_history.store.operations import ReadLife, ReadTogether

#: Read rights of one client that are cached.
_MAX_CACHED: Final = 10_000
#: Rights that are asked for together.
_AT_ONCE: Final = 20
#: How often a right is checked again if the conversation was created or deleted during the check.
_TRIES: Final = 3


class _Known(NamedTuple):
    """Whether the client may read this life of a conversation, and when the right is checked again."""

    life: str
    allowed: bool
    expires: float


class ReadRights:
    """Asks `allows` whether a client may read a conversation, and caches the answers for `lasts` seconds, separately
    for each life of the conversation. If `allows` is None, the client may read everything."""

    def __init__(
        self, store: AsyncHistoryStore, allows: Callable[[str], Coroutine[Any, Any, bool]] | None, lasts: float = 0.0
    ) -> None:
        self._store, self._allows, self._lasts = store, allows, lasts
        self._known: dict[str, _Known] = {}
        self._shown: set[str] = set()  # conversations in `_known` that the client could read

    @property
    def is_open(self) -> bool:
        """Whether the client may read everything."""
        return self._allows is None

    async def readable(self, conversation_ids: Iterable[str], limit: int | None = None) -> dict[str, str]:
        """Return the first `limit` conversations that the client may read, with their lives before `authorize` was
        asked. Data that is read afterwards may be shown only if they are `unchanged` then: `authorize` answers for the
        life at that moment, and another life may have begun before or after it."""
        if self._allows is None:
            return dict.fromkeys(list(conversation_ids)[:limit], "")
        lives = await _lives_of(self._store, conversation_ids)
        ids, found = list(lives), list[str]()
        for first in range(0, len(ids), _AT_ONCE):
            some = ids[first : first + _AT_ONCE]
            allowed = await asyncio.gather(*map(self._allows, some))
            found += [one for one, may in zip(some, allowed, strict=True) if may]
            if limit is not None and len(found) >= limit:
                break
        return {one: lives[one] for one in found[:limit]}

    async def unchanged(self, lives: dict[str, str]) -> dict[str, str]:
        """Return the conversations that still have these lives."""
        if self._allows is None:
            return lives
        now = await _lives_of(self._store, lives)
        return {one: life for one, life in lives.items() if now[one] == life}

    async def readable_life(self, conversation_id: str) -> str | None:
        """The present life of a conversation, if the client may read it."""
        for _ in range(_TRIES):
            found = await self.readable([conversation_id])
            if not found or await self.unchanged(found):
                return found.get(conversation_id)
        return None

    async def allow(self, conversation_id: str, life: str) -> bool:
        """Whether the client may read this life of a conversation. A life that has ended may not be read."""
        if self._allows is None:
            return True
        known = self._known.get(conversation_id)
        if known is None or known.life != life or known.expires <= time.monotonic():
            self._know(conversation_id, life, allowed=await self.readable_life(conversation_id) == life)
        return self._known[conversation_id].allowed

    async def learn(self, conversation_ids: Iterable[str]) -> None:
        """Ask for the rights before they are needed, so that `lost` knows these conversations."""
        if self._allows is not None:
            for one, life in (await self.unchanged(await self.readable(conversation_ids))).items():
                self._know(one, life, allowed=True)

    def lost(self, conversation_id: str) -> bool:
        """Whether the client could read a conversation that it now cannot, because it has ended or was created again.
        After a deletion, `authorize` cannot answer: it may allow everybody to read a missing conversation. True only
        once."""
        if self._allows is None:
            return True
        if conversation_id not in self._shown:
            return False
        self._shown.remove(conversation_id)
        return True

    def _know(self, conversation_id: str, life: str, *, allowed: bool) -> None:
        self._known.pop(conversation_id, None)
        while len(self._known) >= _MAX_CACHED:
            oldest = next(iter(self._known))
            del self._known[oldest]
            self._shown.discard(oldest)
        self._known[conversation_id] = _Known(life, allowed, time.monotonic() + self._lasts)
        if allowed:
            self._shown.add(conversation_id)


async def _lives_of(store: AsyncHistoryStore, conversation_ids: Iterable[str]) -> dict[str, str]:
    """The present lives of conversations, in one round trip."""
    ids = list(conversation_ids)
    lives = await store.backend.execute(ReadTogether(tuple(map(ReadLife, ids))))
    return dict(zip(ids, lives, strict=True))
