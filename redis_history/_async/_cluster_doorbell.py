"""Listens for changes anywhere in a cluster: one doorbell for each primary.

A node notifies only of its own keys. Every channel is subscribed to at every primary, not only at the one that has the
key now: then nothing must be subscribed to again when a slot moves or a replica takes over. That costs a few bytes per
node. The list of primaries is read again from time to time, because a connection that lasts says nothing of a shard
that was added.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

from redis_history._async._cluster import ClusterNodes
from redis_history._async._doorbell import AsyncDoorbell
from redis_history._async._runtime import Job, Signal, ending, reset_after_fork, spawn
from redis_history.backends.base import Wake, WakeAll
from redis_history.backends.redis.server_info import slowest_mode
from redis_history.backends.redis.slots import Address

_logger = logging.getLogger("redis_history")

#: Seconds between comparisons with the known primaries, which cost nothing,
_LOOK: Final = 1.0
#: and between asking a node for them.
_ASK: Final = 10.0


class AsyncClusterDoorbell:
    """Wakes those who watch a channel or a pattern of channels. Runs from the first `watch` until `aclose`."""

    def __init__(self, connections: ClusterNodes, mode: str) -> None:
        self._connections = connections
        self._asked = mode
        # What is watched and by whom, in order: for doorbells that are added later.
        self._watched: dict[tuple[bytes, Wake], None] = {}
        self._watched_all: dict[tuple[bytes, WakeAll], None] = {}
        self._doorbells: dict[Address, AsyncDoorbell] = {}
        self._removed: list[AsyncDoorbell] = []
        self._guard = threading.Lock()  # for the four above; never held during a call to a server
        self._signal: Signal | None = None
        self._job: Job | None = None
        self._closed = False
        reset_after_fork(self)

    def forget(self) -> None:
        """In a forked child: threads, connections and the watchers are the parent's."""
        self._watched = {}
        self._watched_all = {}
        self._doorbells = {}
        self._removed = []
        self._guard = threading.Lock()
        self._signal = None
        self._job = None

    @property
    def mode(self) -> str:
        """What wakes the watchers now: that of the slowest node; "poll" while one has no doorbell."""
        doorbells = {**self._doorbells}
        if self._asked != "publish" and self._connections.primaries - doorbells.keys():
            return "poll"
        return slowest_mode([doorbell.mode for doorbell in doorbells.values()])

    def watch(self, channel: bytes, wake: Wake) -> None:
        with self._guard:
            self._watched[channel, wake] = None
            for doorbell in self._doorbells.values():
                doorbell.watch(channel, wake)
            self._begin()

    def watch_all(self, pattern: bytes, wake: WakeAll) -> None:
        with self._guard:
            self._watched_all[pattern, wake] = None
            for doorbell in self._doorbells.values():
                doorbell.watch_all(pattern, wake)
            self._begin()

    def _begin(self) -> None:
        if not self._closed and (self._job is None or self._job.ended):
            self._signal = Signal()
            self._job = spawn(self._run, "redis_history-doorbells")

    def unwatch(self, channel: bytes, wake: Wake) -> None:
        with self._guard:
            self._watched.pop((channel, wake), None)
            for doorbell in self._doorbells.values():
                doorbell.unwatch(channel, wake)

    def unwatch_all(self, pattern: bytes, wake: WakeAll) -> None:
        with self._guard:
            self._watched_all.pop((pattern, wake), None)
            for doorbell in self._doorbells.values():
                doorbell.unwatch_all(pattern, wake)

    async def aclose(self) -> None:
        with self._guard:
            self._closed = True
            watched, watched_all = [*self._watched], [*self._watched_all]
        for _, wake in watched:  # whoever waits sees that the store was closed
            wake()
        for _, wake_all in watched_all:
            wake_all(None)
        if self._signal is not None:
            self._signal.set()
        if self._job is not None:
            await self._job.stop()
        for doorbell in [*self._doorbells.values(), *self._removed]:
            await doorbell.aclose()

    async def _run(self) -> None:
        assert self._signal is not None  # noqa: S101
        asked = time.monotonic()
        while not (self._closed or ending()):
            try:
                if self._connections.stale or time.monotonic() - asked > _ASK:
                    await self._connections.refresh()
                    asked = time.monotonic()
            except Exception as error:  # noqa: BLE001 -- whatever it is, the next attempt may work
                _logger.info("the doorbell cannot read the list of the cluster's nodes: %s", error)
            try:
                await self._match_primaries()
            except Exception as error:
                _logger.warning("the doorbell failed and tries again", exc_info=error)
            await self._signal.wait(_LOOK)

    async def _match_primaries(self) -> None:
        """A doorbell for each primary, and none for other nodes."""
        with self._guard:
            if self._closed:
                return
            primaries = self._connections.primaries
            if self._asked == "publish" and primaries:
                # What is published on one node arrives at all: one doorbell is enough, and more would wake repeatedly.
                primaries = frozenset([*self._doorbells.keys() & primaries][:1]) or frozenset([min(primaries)])
            self._removed += [self._doorbells.pop(node) for node in [*self._doorbells] if node not in primaries]
            for address in primaries:
                if address not in self._doorbells:
                    doorbell = AsyncDoorbell(self._connections.node(address).client, self._asked)
                    for channel, wake in self._watched:
                        doorbell.watch(channel, wake)
                    for pattern, wake_all in self._watched_all:
                        doorbell.watch_all(pattern, wake_all)
                    self._doorbells[address] = doorbell
        while self._removed:
            await self._removed[-1].aclose()
            self._removed.pop()
