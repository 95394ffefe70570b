"""A ring buffer of the last events of a stream, encoded once for all readers. A reader is only an index."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final, NamedTuple

__all__ = ["Entry", "Ring"]

#: Events and bytes to keep, and bytes to return at once. The newest event is kept whatever its size.
COUNT: Final = 512
BYTES: Final = 1_000_000
GIVEN: Final = 65_536


class Entry(NamedTuple):
    """An encoded event, the cursor after it, and its conversation."""

    cursor: str
    conversation_id: str
    data: bytes


class Ring:
    """The events with indices from `start` up to, but not including, `end`. `closed`: no more events follow."""

    def __init__(self, cursor: str = "", count: int = COUNT, size: int = BYTES) -> None:
        self.start = self.end = 0
        self.closed = False
        self._count, self._room = count, size
        self._entries: dict[int, Entry] = {}
        # The index after each cursor, and the reverse.
        self._places = {cursor: 0}
        self._cursors = {0: cursor}
        self._news = asyncio.Event()

    def add(self, entry: Entry) -> None:
        """Add an event, and drop the oldest if necessary. Call `wake` afterwards."""
        self._entries[self.end] = entry
        self.end += 1
        self._places[entry.cursor] = self.end
        self._cursors[self.end] = entry.cursor
        self._room -= len(entry.data)
        while (self._room < 0 or self.end - self.start > self._count) and self.end - self.start > 1:
            self._room += len(self._entries.pop(self.start).data)
            cursor = self._cursors.pop(self.start)
            if self._places[cursor] == self.start:
                del self._places[cursor]
            self.start += 1

    def place_of(self, cursor: str) -> int | None:
        """The index of the first event after a cursor; None if the ring does not contain it."""
        return self._places.get(cursor)

    def read(self, index: int) -> Iterator[Entry]:
        """One entry at `index`, and the next ones while they are small. `index` must not be before `start`."""
        size = 0
        for at in range(index, self.end):
            entry = self._entries[at]
            size += len(entry.data)
            if size > GIVEN and at > index:
                return
            yield entry

    def wake(self) -> None:
        """Wake all waiting readers, for new events or a heartbeat."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def wait(self) -> None:
        """Return at the next `wake`."""
        if not self.closed:
            await self._news.wait()

    def close(self) -> None:
        self.closed = True
        self.wake()
