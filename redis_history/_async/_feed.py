"""What subscriptions have in common: a beginning, events to take one by one, an end."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Final, Self

from redis_history._async._runtime import Background, Lock, Openable, Signal
from redis_history.events import Event

#: Seconds that a `get` with a timeout of 0 waits for its read.
_AT_ONCE: Final = 1.0
#: Seconds between looks at what nobody signals.
_LONGEST_WAIT: Final = 3600.0


class AsyncFeed(Openable):
    """For one consumer at a time."""

    def __init__(self) -> None:
        self._ready: deque[Event] = deque()
        self._signal: Signal | None = None
        self._begun = False
        self._closed = False
        self._opening = Lock()
        # A read that an earlier `get` had no time to wait for.
        self._reading: Background | None = None
        # Whether to read though nothing has been heard.
        self._read_now = False

    @property
    def opened(self) -> bool:
        """Whether it has begun (or has been closed)."""
        return self._begun or self._closed

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        return self._closed

    async def open(self) -> None:
        """Begin: no change after this is missed. Done by the first use; more than once does no harm."""
        self._signal_here()
        if self.opened:
            return
        async with self._opening:
            if not self.opened:
                await self._begin()
                self._begun = True
                if self._closed:  # meanwhile, when there was nothing to unwatch yet
                    await self._unwatch()

    async def get(self, timeout: float | None = None) -> Event | None:
        """The next event; None if there is none within `timeout` seconds (None: wait), or after `aclose`.

        With a timeout of 0 or less it reads once, and waits at most a second for that. It returns in time also while
        the server is away: the read goes on, and the next call returns what it found, or raises what it raised.
        """
        signal = self._signal_here()
        called_at = time.monotonic()
        self._read_now = timeout is not None and timeout <= 0
        for_read = _AT_ONCE if self._read_now else timeout
        while True:
            signal.clear()  # before looking: what happens from here on sets it again
            if self._closed:
                return None
            reading = self._reading
            if reading is not None and reading.done:
                self._reading = None
                reading.result()
                continue
            if reading is None and self._ready:
                return self._take()
            wait = _LONGEST_WAIT
            if reading is None:
                wait = self._next_read() if self._begun else 0.0
                if wait <= 0:
                    if timeout is None:
                        await self._step()
                    else:
                        self._reading = Background(self._step, signal, "redis_history-read")
                    continue
            limit = timeout if reading is None else for_read
            if limit is not None:
                left = called_at + limit - time.monotonic()
                if left <= 0:
                    return None
                wait = min(wait, left)
            await signal.wait(wait)

    async def _step(self) -> None:
        await (self._read() if self._begun else self.open())

    async def aclose(self) -> None:
        """End the subscription, and the iteration over it, at once."""
        if self._closed:
            return
        if self._signal is not None:
            self._signal.home.check()
        self._closed = True
        if self._signal is not None:
            self._signal.set()
            if self._signal.home.here:
                await self._end()

    async def _end(self) -> None:
        if self._begun:  # else `open` does it
            await self._unwatch()
        if self._reading is not None:
            await self._reading.leave()

    async def _rest(self, seconds: float) -> None:
        """Return after so many seconds, or when it is closed."""
        signal, until = self._signal_here(), time.monotonic() + seconds
        while True:
            signal.clear()
            left = until - time.monotonic()
            if self._closed or left <= 0:
                return
            await signal.wait(left)

    def _signal_here(self) -> Signal:
        signal = self._signal
        if signal is None or not (self.opened or signal.home.here):
            signal = self._signal = Signal()
        elif not self._closed:
            signal.home.check()
        return signal

    # For each kind of subscription

    async def _begin(self) -> None:
        """Find where to begin, then have the doorbell set the signal."""
        raise NotImplementedError

    async def _unwatch(self) -> None:
        """Take from the doorbell what `_begin` gave it. More than once does no harm."""
        raise NotImplementedError

    def _next_read(self) -> float:
        """Seconds until `_read` has something to do."""
        raise NotImplementedError

    async def _read(self) -> None:
        """Read once, into `_ready`."""
        raise NotImplementedError

    def _take(self) -> Event:
        """The first of `_ready`, which the consumer has from now on."""
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
