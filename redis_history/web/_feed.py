"""The server-sent events of one answer, for all its readers in a process."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final

from redis_history.web._events import PING, Entry, Ring
from redis_history.web._http import Refused

_logger = logging.getLogger("redis_history")

#: Seconds in which an event loop runs all ready tasks unless it is overloaded, and the longest pause of a feed then.
_LAG: Final = 0.01
_LONGEST_PAUSE: Final = 0.25


class Feed:
    """Encodes events once, and keeps them until the last reader leaves, so that each reader may begin with the first
    event. A reader is only an index."""

    def __init__(self, chunks: AsyncGenerator[bytes, None]) -> None:
        self.readers = 0
        self.is_cut = False
        self._ring = Ring(count=sys.maxsize, size=sys.maxsize)
        self.task = asyncio.create_task(self._collect(chunks), name="redis_history-chat-feed")

    @property
    def is_over(self) -> bool:
        """Whether no more events follow. New readers must not use it, because its content may have been removed
        since."""
        return self.is_cut or self._ring.closed

    async def _collect(self, chunks: AsyncGenerator[bytes, None]) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    if chunk:
                        self._ring.add(Entry("", "", chunk))
                    self._ring.wake()
                    # Under load, events are collected for longer, so that they take fewer reads and writes.
                    began = loop.time()
                    await asyncio.sleep(0)  # lets all readers write
                    if (lag := loop.time() - began) > _LAG:
                        await asyncio.sleep(min(4 * lag, _LONGEST_PAUSE))
        except Exception as error:  # noqa: BLE001 -- clients reconnect, which starts a new feed
            self.is_cut = True
            _logger.warning("the stream of an answer ends, and clients reconnect: %s", error)
        finally:
            self._ring.close()

    def cut(self) -> None:
        """End the streams of all readers before the answer ends."""
        self.is_cut = self.is_cut or not self._ring.closed
        self.task.cancel()

    async def read(self) -> AsyncGenerator[bytes, None]:
        index = 0
        while not self.is_cut:
            if entries := self._ring.read(index):
                index += len(entries)
                yield b"".join(entry.data for entry in entries)
            elif self._ring.closed:
                return
            else:
                await self._ring.wait()
                if index == self._ring.end and not self._ring.closed:
                    yield PING


class Reader:
    """One reader of a feed, which may lose its right to read. `confirm` is called before the first event, and
    `ask_again` every `interval` seconds; both raise Refused. Then the stream is cut, and the answer continues."""

    def __init__(
        self, feed: Feed, confirm: Callable[[], Awaitable[object]], ask_again: Callable[[], Awaitable[object]],
        interval: float,
    ) -> None:  # fmt: skip
        self._feed, self._confirm, self._ask_again, self._interval = feed, confirm, ask_again, interval
        self._is_refused = False

    @property
    def is_cut(self) -> bool:
        return self._is_refused or self._feed.is_cut

    async def read(self) -> AsyncGenerator[bytes, None]:
        loop = asyncio.get_running_loop()
        due, is_first = loop.time() + self._interval, True
        async with aclosing(self._feed.read()) as chunks:
            async for chunk in chunks:
                try:
                    if is_first and chunk != PING:
                        is_first = False
                        await self._confirm()
                    if loop.time() >= due:
                        await self._ask_again()
                        due = loop.time() + self._interval
                except Exception as error:  # noqa: BLE001 -- the client reconnects, and then receives the error
                    self._is_refused = True
                    if not isinstance(error, Refused):
                        _logger.warning("the stream of an answer ends, because its right is unknown: %s", error)
                    return
                yield chunk
