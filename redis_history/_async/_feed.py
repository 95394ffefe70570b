"""What subscriptions have in common: a beginning, events to take one by one, an end."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from redis_history._async._loops import Home
from redis_history._async._runtime import Lock, Openable, Signal
from redis_history.errors import InvalidInputError
from redis_history.events import Event

__all__ = ["AsyncFeed"]


class AsyncFeed(Openable):
    """For one consumer at a time."""

    def __init__(self) -> None:
        self._ready: deque[Event] = deque()
        self._signal: Signal | None = None
        self._closed = False
        self._opening = Lock()
        self.home = Home()

    @property
    def opened(self) -> bool:
        """Whether it has begun (or has been closed)."""
        return self._signal is not None or self._closed

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        return self._closed

    async def open(self) -> None:
        """Begin: no change after this is missed. Done by the first use; more than once does no harm."""
        if self._signal is not None and not self._closed and not self._signal.home.here:
            raise InvalidInputError(
                "a subscription belongs to the event loop that opened it; "
                "subscribe in this one, with after= the cursor of this subscription"
            )
        if self.opened:
            return
        async with self._opening:
            if not self.opened:
                await self._begin()

    async def _begin(self) -> None:
        """Find where to begin, make the signal, and have it set by the doorbell."""
        raise NotImplementedError

    async def get(self, timeout: float | None = None) -> Event | None:
        """The next event; None if there is none within `timeout` seconds (None: wait), or after `aclose`."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """End the subscription, and the iteration over it, at once."""
        if self._closed:
            return
        self._closed = True
        if self._signal is not None:
            self._signal.set()
            await self._signal.home.run(self._unwatch)

    async def _unwatch(self) -> None:
        """Take the signal from the doorbell again."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        event = await self.get()
        if event is None:
            raise StopAsyncIteration
        return event
