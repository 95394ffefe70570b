"""The last events of a stream, encoded once, for any number of readers: each of them is an index, nothing more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final, NamedTuple

__all__ = ["Entry", "Ring"]

#: What is kept, and how much of it is given at once, in bytes. The newest event is kept whatever its size.
COUNT: Final = 512
BYTES: Final = 1_000_000
GIVEN: Final = 65_536


class Entry(NamedTuple):
    """An event as it is sent; the cursor after it, and its conversation."""

    cursor: str
    conversation_id: str
    data: bytes


class Ring:
    """Events from index `start` to before `end`; what is older has been dropped. `closed`: no more will come."""

    def __init__(self, cursor: str = "", count: int = COUNT, size: int = BYTES) -> None:
        self.start = self.end = 0
        self.closed = False
        self._count, self._room = count, size
        self._entries: dict[int, Entry] = {}
        # Which index comes after which cursor, and back.
        self._places = {cursor: 0}
        self._cursors = {0: cursor}
        self._news = asyncio.Event()

    def add(self, entry: Entry) -> None:
        """Call `wake` afterwards."""
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
        """The index of what comes after a cursor; None if that is not here."""
        return self._places.get(cursor)

    def read(self, index: int) -> Iterator[Entry]:
        """Entries from an index on that is not before `start`: one, and more if they are small."""
        size = 0
        for at in range(index, self.end):
            entry = self._entries[at]
            size += len(entry.data)
            if size > GIVEN and at > index:
                return
            yield entry

    def wake(self) -> None:
        """Let all who wait go on: there are news, or it is time for a sign of life."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def wait(self) -> None:
        """Return at the next `wake`."""
        if not self.closed:
            await self._news.wait()

    def close(self) -> None:
        self.closed = True
        self.wake()
