"""One subscription for each watched conversation, shared by all its readers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from redis_history._async.store import AsyncHistoryStore
from redis_history.errors import BackendUnavailableError
from redis_history.web._encoding import PING, encoded, frame
from redis_history.web._ring import Entry, Ring

__all__ = ["Hub", "Watch"]

_logger = logging.getLogger("redis_history")

#: Seconds without a change after which to check whether the store can be reached.
_LOOK: Final = 5.0
#: How many readers of a conversation may catch up at once: each holds one read of the change log in memory.
_CATCHING_UP: Final = 4
#: Bytes that such a reader keeps of a read. The rest of it, up to about 1 MB, is dropped, so that a stalled reader
#: holds no more than this.
_AT_ONCE: Final = 262_144


class Watch:
    """The changes of one conversation after a cursor."""

    def __init__(self, store: AsyncHistoryStore, conversation_id: str, cursor: str, heartbeat: float) -> None:
        self.ring = Ring(cursor)
        self.readers = 0
        self.ending: asyncio.TimerHandle | None = None
        self._store = store
        self._conversation_id = conversation_id
        self._heartbeat = heartbeat
        self._away = False  # whether the store could not be reached at the last check
        self._catching_up = asyncio.Semaphore(_CATCHING_UP)
        self.task = asyncio.create_task(self._run(cursor), name="redis_history-watch")

    async def _run(self, cursor: str) -> None:
        try:
            async with self._store.subscribe(self._conversation_id, after=cursor) as feed:
                said = time.monotonic()
                while not feed.closed:
                    event = await feed.get(min(self._heartbeat, _LOOK))
                    before = self._away
                    if event is not None:
                        self.ring.add(await encoded(self._store, event))
                        self._away = False
                    else:
                        self._away = await self._is_away()
                    if event is not None or self._away != before or time.monotonic() - said >= self._heartbeat:
                        self.ring.wake()
                        said = time.monotonic()
        except Exception as error:  # noqa: BLE001 -- readers reconnect, which starts a new subscription
            _logger.warning(
                "the live view of the conversation %r ends, and clients reconnect: %s",
                self._conversation_id[:80],
                error,
            )
        finally:
            self.ring.close()

    async def _is_away(self) -> bool:
        """Whether the store cannot be reached. A subscription waits silently, but readers should see that it does."""
        try:
            await self._store.get_conversation(self._conversation_id)
        except BackendUnavailableError:
            return True
        return False

    async def follow(self, cursor: str) -> AsyncGenerator[bytes, None]:
        """Encoded events after a cursor for one reader, heartbeats, and notices that the store is away or back; until
        the watch ends.

        A reader whose cursor is older than the ring reads the change log until it reaches the ring. Even a slow reader
        holds only the data that is being sent.
        """
        place, away = self.ring.place_of(cursor), False
        while not self.ring.closed:
            if self._away != away:
                away = self._away
                yield frame("away" if away else "back", {})
            if place is not None and place < self.ring.start:
                place = None
            if place is None:
                entries = await self._catch_up(cursor)
                place = self.ring.place_of(entries[-1].cursor if entries else cursor)
            else:
                entries = list(self.ring.read(place))
                place += len(entries)
            if entries:
                cursor = entries[-1].cursor
                yield b"".join(entry.data for entry in entries)
            elif place is None or place == self.ring.end:
                before = self.ring.end
                await self.ring.wait()
                if before == self.ring.end and self._away == away and not self.ring.closed:
                    yield PING

    async def _catch_up(self, cursor: str) -> list[Entry]:
        """Events after a cursor, until the ring contains the place, the size limit is reached, or there are no more."""
        entries: list[Entry] = []
        size = 0
        async with self._catching_up, self._store.subscribe(self._conversation_id, after=cursor) as feed:
            while size < _AT_ONCE and self.ring.place_of(entries[-1].cursor if entries else cursor) is None:
                event = await feed.get(0)
                if event is None:
                    break
                entries.append(await encoded(self._store, event))
                size += len(entries[-1].data)
        return entries


class Hub:
    """The watches of one application. Each ends `grace` seconds after its last reader."""

    def __init__(self, store: AsyncHistoryStore, *, heartbeat: float, grace: float) -> None:
        self._store = store
        self._heartbeat, self._grace = heartbeat, grace
        self._watches: dict[str, Watch] = {}

    async def follow(self, conversation_id: str, cursor: str, first: bytes = b"") -> AsyncGenerator[bytes, None]:
        """Like `Watch.follow`, but sends `first` before the events."""
        watch = self._watches.get(conversation_id)
        if watch is None or watch.ring.closed:
            watch = self._watches[conversation_id] = Watch(self._store, conversation_id, cursor, self._heartbeat)
        if watch.ending is not None:
            watch.ending.cancel()
            watch.ending = None
        watch.readers += 1
        try:
            if first:
                yield first
            async with aclosing(watch.follow(cursor)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            watch.readers -= 1
            if not watch.readers:
                watch.ending = asyncio.get_running_loop().call_later(self._grace, self._end, conversation_id, watch)

    def _end(self, conversation_id: str, watch: Watch) -> None:
        watch.task.cancel()
        if self._watches.get(conversation_id) is watch:
            del self._watches[conversation_id]

    async def aclose(self) -> None:
        """End all watches, and with them all streams of single conversations."""
        watches = list(self._watches.items())
        for conversation_id, watch in watches:
            if watch.ending is not None:
                watch.ending.cancel()
            self._end(conversation_id, watch)
        await asyncio.gather(*(watch.task for _, watch in watches), return_exceptions=True)
