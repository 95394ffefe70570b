"""Hears changes anywhere in a cluster: one doorbell for each primary.

A node tells only of its own keys, and tells them nobody else. Every channel is asked for at every primary, not only at
the one that has the key now: then a slot that moves, or a replica that takes over, leaves nothing to be asked for anew,
and that is worth a few bytes per node. Who the primaries are is looked up from time to time, because a connection that
lives on tells nothing of a shard that was added.
"""

from __future__ import annotations

import logging
import time
from typing import Final

from redis.exceptions import RedisError

from redis_history._async._cluster import ClusterLines
from redis_history._async._doorbell import AsyncDoorbell
from redis_history._async._runtime import Job, Lock, Signal, ending, reset_after_fork, spawn
from redis_history.backends.base import Wake, WakeAll
from redis_history.backends.redis.slots import Address
from redis_history.errors import ConfigurationError

__all__ = ["AsyncClusterDoorbell"]

_logger = logging.getLogger("redis_history")

#: Seconds between looks at what is known of the cluster, which costs nothing,
_LOOK: Final = 1.0
#: and between asking a node for it.
_ASK: Final = 10.0


class AsyncClusterDoorbell:
    """Wakes those who watch a channel or a pattern of channels. Runs from the first `watch` until `aclose`."""

    def __init__(self, lines: ClusterLines, mode: str) -> None:
        self._lines = lines
        self._asked = mode
        self._watched: list[tuple[bytes, Wake]] = []
        self._watched_all: list[tuple[bytes, WakeAll]] = []
        self._bells: dict[Address, AsyncDoorbell] = {}
        self._gone: list[AsyncDoorbell] = []
        self._lock = Lock()
        self._signal: Signal | None = None
        self._job: Job | None = None
        self._closed = False
        reset_after_fork(self)

    def forget(self) -> None:
        """In a forked child: threads, connections and those who watch are the parent's."""
        self._watched = []
        self._watched_all = []
        self._bells = {}
        self._gone = []
        self._lock = Lock()
        self._signal = None
        self._job = None

    @property
    def mode(self) -> str:
        """How changes are heard of at the moment: that of the node where it is the slowest."""
        modes = [bell.mode for bell in [*self._bells.values()]]
        return next((mode for mode in ("poll", "publish") if mode in modes or mode == self._asked), "keyspace")

    async def watch(self, channel: bytes, wake: Wake) -> None:
        async with self._lock:
            self._watched.append((channel, wake))
            for bell in self._bells.values():
                await bell.watch(channel, wake)
            self._begin()

    async def watch_all(self, pattern: bytes, wake: WakeAll) -> None:
        async with self._lock:
            self._watched_all.append((pattern, wake))
            for bell in self._bells.values():
                await bell.watch_all(pattern, wake)
            self._begin()

    def _begin(self) -> None:
        if self._job is None and not self._closed:
            self._signal = Signal()
            self._job = spawn(self._run, "redis_history-doorbells")

    async def unwatch(self, channel: bytes, wake: Wake) -> None:
        async with self._lock:
            if (channel, wake) in self._watched:
                self._watched.remove((channel, wake))
            for bell in self._bells.values():
                await bell.unwatch(channel, wake)

    async def unwatch_all(self, pattern: bytes, wake: WakeAll) -> None:
        async with self._lock:
            if (pattern, wake) in self._watched_all:
                self._watched_all.remove((pattern, wake))
            for bell in self._bells.values():
                await bell.unwatch_all(pattern, wake)

    async def aclose(self) -> None:
        async with self._lock:
            self._closed = True
            if self._signal is not None:
                self._signal.set()
        if self._job is not None:
            await self._job.stop()
        for bell in [*self._bells.values(), *self._gone]:
            await bell.aclose()

    async def _run(self) -> None:
        assert self._signal is not None  # noqa: S101
        asked = time.monotonic()
        while not (self._closed or ending()):
            try:
                if self._lines.stale or time.monotonic() - asked > _ASK:
                    await self._lines.refresh()
                    asked = time.monotonic()
            except (RedisError, OSError, ConfigurationError) as error:
                _logger.info("the doorbell cannot see the cluster: %s", error)
            await self._settle()
            await self._signal.wait(_LOOK)

    async def _settle(self) -> None:
        """A doorbell for each primary, and none for others."""
        async with self._lock:
            if self._closed:
                return
            primaries = self._lines.primaries
            if self._asked == "publish" and primaries:
                # What is published anywhere is heard everywhere: one node is enough, and each would tell it once more.
                primaries = frozenset([*self._bells.keys() & primaries][:1]) or frozenset([min(primaries)])
            self._gone += [self._bells.pop(address) for address in [*self._bells] if address not in primaries]
            for address in primaries:
                if address not in self._bells:
                    bell = self._bells[address] = AsyncDoorbell(self._lines.node(address).client, self._asked)
                    for channel, wake in self._watched:
                        await bell.watch(channel, wake)
                    for pattern, wake_all in self._watched_all:
                        await bell.watch_all(pattern, wake_all)
        while self._gone:
            await self._gone[-1].aclose()
            self._gone.pop()
