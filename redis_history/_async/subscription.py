"""Subscriptions: every change of a conversation after a cursor, in order, each once.

The server's change log is the queue. A subscription holds its place in the log and at most one read of it, so a slow
consumer costs no memory. If it falls behind the log's length, it gets a Reset. The doorbell and the poll decide only
how soon the log is read."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Final, Self

from redis_history._async._runtime import Background, Lock, Openable, Signal
from redis_history.backends.base import AsyncBackend
from redis_history.errors import BackendUnavailableError, StoreClosedError
from redis_history.events import ConversationDeleted, Cursor, Event, Reset
from redis_history.model.replies import Progress
from redis_history.operations import Changes, ReadChanges, ReadHead

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
            reading = self._reading
            if self._closed:
                if reading is not None:
                    await reading.abandon()
                return None
            if reading is not None and reading.done:
                self._reading = None
                reading.result()
                continue
            if reading is None and self._ready:
                return self._take()
            wait = _LONGEST_WAIT
            if reading is None:
                wait = self._next_read() if self._begun else 0.0
                if wait <= 0:  # in the background, so that `aclose` ends this call while the server hangs
                    self._reading = Background(self._step, signal)
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
            self._signal.owner.check()
        self._closed = True
        if self._signal is not None:
            self._signal.set()
            if self._signal.owner.is_current:
                await self._end()

    async def _end(self) -> None:
        if self._begun:  # else `open` does it
            await self._unwatch()
        reading = self._reading  # which `get` in another thread may take away
        if reading is not None:
            await reading.abandon()

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
        if signal is None or not (self.opened or signal.owner.is_current):
            signal = self._signal = Signal()
        elif not self._closed:
            signal.owner.check()
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


_logger = logging.getLogger("redis_history")


def next_look(changes: Changes, poll_interval: float) -> float:
    """Seconds until the log is read again without being woken: earlier if the writer of a reply may have died then."""
    if changes.dead:  # somebody may end the reply who is allowed to
        return min(poll_interval, 1.0)
    return poll_interval if changes.check_in is None else min(poll_interval, max(0.1, changes.check_in + 0.05))


class AsyncSubscription(AsyncFeed):
    """The changes of one conversation; made by `store.subscribe`. For one consumer at a time.

    Iterate over it, or take single events with `get`. It goes on through lost connections and restarts of the server
    until it is closed. `cursor` is where the consumer is: after the last event it took.
    """

    def __init__(self, backend: AsyncBackend, conversation_id: str, after: Cursor | None, poll_interval: float) -> None:
        super().__init__()
        self.conversation_id = conversation_id
        self._backend = backend
        self._poll_interval = poll_interval
        self._cursor = after
        self._read_to = after
        self._ended = False
        self._read_at = 0.0
        self._rung = False
        self._replies: dict[int, Progress] = {}

    @property
    def cursor(self) -> Cursor | None:
        """After the last event that was taken; None before the subscription began."""
        return self._cursor

    async def _begin(self) -> None:
        if self._read_to is None:
            self._read_to = self._cursor = (await self._backend.execute(ReadHead(self.conversation_id))).cursor
        await self._backend.watch(self.conversation_id, self._ring)

    async def _unwatch(self) -> None:
        await self._backend.unwatch(self.conversation_id, self._ring)

    def _ring(self) -> None:
        self._rung = True
        if self._signal is not None:
            self._signal.set()

    def _next_read(self) -> float:
        return 0.0 if self._rung or self._read_now else self._read_at - time.monotonic()

    def _take(self) -> Event:
        event = self._ready.popleft()
        self._cursor = event.cursor
        return event

    async def _read(self) -> None:
        """Read the change log once. The next read is when the doorbell rings, or else after the poll interval."""
        assert self._read_to is not None  # noqa: S101
        self._rung = self._read_now = False  # before reading: what happens from here on rings again
        try:
            changes = await self._backend.execute(
                ReadChanges(self.conversation_id, self._read_to, replies=self._replies)
            )
        except StoreClosedError:
            self._closed = True
            return
        except BackendUnavailableError as error:
            _logger.warning("subscription to %r waits for the server: %s", self.conversation_id[:80], error)
            self._read_at = time.monotonic() + self._poll_interval
            return
        self._replies = changes.replies
        self._read_at = 0.0 if changes.more else time.monotonic() + next_look(changes, self._poll_interval)
        for event in changes.events:
            if isinstance(event, Reset) and event.reason == "conversation_missing" and self._ended:
                return  # the consumer has it as ConversationDeleted
            self._ended = isinstance(event, ConversationDeleted)
            self._read_to = event.cursor
            self._ready.append(event)
