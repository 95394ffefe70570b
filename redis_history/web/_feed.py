"""The server-sent events of one answer, for all its readers in a process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from redis_history.web._events import PING

_logger = logging.getLogger("redis_history")

#: Bytes that a reader gets per read.
_AT_ONCE: Final = 65_536
#: Seconds in which an event loop runs what is ready, unless it has too much to do; the longest pause of a feed then.
_LAG: Final = 0.01
_LONGEST_PAUSE: Final = 0.25


class Feed:
    """The events are encoded once, and kept until the last reader leaves, so that each reader may begin at their start.
    A reader is only an index."""

    def __init__(self, chunks: AsyncGenerator[bytes, None]) -> None:
        self.readers = 0
        self.is_cut = False
        self._frames: list[bytes] = []
        self._done = False
        self._news = asyncio.Event()
        self.task = asyncio.create_task(self._collect(chunks), name="redis_history-chat-feed")

    async def _collect(self, chunks: AsyncGenerator[bytes, None]) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    if chunk:
                        self._frames.append(chunk)
                    self._wake()
                    # Under load, events are collected for longer, so that they take fewer reads and writes.
                    began = loop.time()
                    await asyncio.sleep(0)  # lets all readers write
                    if (lag := loop.time() - began) > _LAG:
                        await asyncio.sleep(min(4 * lag, _LONGEST_PAUSE))
        except Exception as error:  # noqa: BLE001 -- clients reconnect, which starts a new feed
            self.is_cut = True
            _logger.warning("the stream of an answer ends, and clients reconnect: %s", error)
        finally:
            self._done = True
            self._wake()

    def cut(self) -> None:
        """End the streams of all readers before the answer ends."""
        self.is_cut = self.is_cut or not self._done
        self.task.cancel()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def read(self) -> AsyncGenerator[bytes, None]:
        index = 0
        while not self.is_cut:
            if index < len(self._frames):
                chunk, index = self._after(index)
                yield chunk
            elif self._done:
                return
            else:
                await self._news.wait()
                if index == len(self._frames) and not self._done:
                    yield PING

    def _after(self, index: int) -> tuple[bytes, int]:
        """The frames from an index on, in one piece except for large ones, and the index after them."""
        size, end = 0, index
        while end < len(self._frames) and (size == 0 or size + len(self._frames[end]) <= _AT_ONCE):
            size += len(self._frames[end])
            end += 1
        return b"".join(self._frames[index:end]), end
