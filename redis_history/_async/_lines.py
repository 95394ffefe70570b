"""Connections for calls, kept ready between them. Its twin in _sync is written by hand too.

redis-py's pool looks at a connection each time it is taken, to see whether the server has hung up. Our calls may be
repeated when that turns out on the way, so a connection stays with us until it fails: that is a fifth of the time of
a call. Connections of a client that is the user's go back to its pool each time, because its limit is the user's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any, Final
from weakref import WeakKeyDictionary

from redis.asyncio.connection import ConnectionPool
from redis.exceptions import RedisError

__all__ = ["Lines"]

#: Calls of one event loop that are under way at once; more wait for their turn. Servers answer one call at a time.
MOST: Final = 64


class _Ready:
    """What belongs to one event loop: connections cannot be shared between loops."""

    __slots__ = ("guard", "idle", "loop", "turns")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.idle: list[Any] = []
        self.turns = asyncio.Semaphore(MOST)
        self.guard: AsyncGenerator[None, None] | None = None


class Lines:
    """Connections of one pool, ready to be used."""

    def __init__(self, pool: ConnectionPool, *, keep: bool) -> None:
        self._pool = pool
        self._keep = keep
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _Ready] = WeakKeyDictionary()
        self._recent: _Ready | None = None

    async def take(self) -> Any:
        """A connection, for one exchange; to be given back, or dropped."""
        ready = self._ready()
        if ready.guard is None:
            ready.guard = self._guard(ready)
            await anext(ready.guard)
        await ready.turns.acquire()
        try:
            return ready.idle.pop() if ready.idle else await self._pool.get_connection()
        except BaseException:
            ready.turns.release()
            raise

    async def give(self, connection: Any) -> None:
        """Back, after a whole reply."""
        if connection.should_reconnect():  # the server said that it moves elsewhere
            await self.drop(connection)
            return
        ready = self._ready()
        ready.turns.release()
        if self._keep:
            ready.idle.append(connection)
        else:
            await self._pool.release(connection)

    async def drop(self, connection: Any) -> None:
        """Back, in an unknown state: a reply still to come must not be taken for that of the next call."""
        self._ready().turns.release()
        with contextlib.suppress(RedisError, OSError):
            await connection.disconnect(nowait=True)
        await self._pool.release(connection)

    async def aclose(self) -> None:
        """Close all idle connections of this loop."""
        ready = self._ready()
        if ready.guard is not None:
            await ready.guard.aclose()
            ready.guard = None

    async def _guard(self, ready: _Ready) -> AsyncGenerator[None, None]:
        """Closes the connections of an event loop while it can still be done: asyncio.run ends all asynchronous
        generators before it closes the loop, and afterwards nothing could close them."""
        try:
            yield
        finally:
            while ready.idle:
                connection = ready.idle.pop()
                with contextlib.suppress(RedisError, OSError):
                    await connection.disconnect()
                await self._pool.release(connection)

    def _ready(self) -> _Ready:
        loop = asyncio.get_running_loop()
        ready = self._recent
        if ready is None or ready.loop is not loop:
            ready = self._loops.get(loop)
            if ready is None:
                ready = self._loops[loop] = _Ready(loop)
            self._recent = ready
        return ready
