"""Subscriptions: every change of a conversation after a cursor, in order, each once.

The server's change log is the queue. A subscription holds its place in it and at most one read of it, so a slow
consumer costs no memory here; one that falls behind the log's length gets a Reset. The doorbell and the poll only
decide how soon the log is read.
"""

from __future__ import annotations

import logging
import time

from redis_history._async._feed import AsyncFeed
from redis_history.backends.base import AsyncBackend
from redis_history.errors import BackendUnavailableError, StoreClosedError
from redis_history.events import ConversationDeleted, Cursor, Event, Reset
from redis_history.operations import ReadChanges, ReadHead

_logger = logging.getLogger("redis_history")


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
            changes = await self._backend.execute(ReadChanges(self.conversation_id, self._read_to))
        except StoreClosedError:
            self._closed = True
            return
        except BackendUnavailableError as error:
            _logger.warning("subscription to %r waits for the server: %s", self.conversation_id[:80], error)
            self._read_at = time.monotonic() + self._poll_interval
            return
        self._read_at = 0.0 if changes.more else time.monotonic() + self._poll_interval
        for event in changes.events:
            if isinstance(event, Reset) and event.reason == "conversation_missing" and self._ended:
                return  # the consumer has it as ConversationDeleted
            self._ended = isinstance(event, ConversationDeleted)
            self._read_to = event.cursor
            self._ready.append(event)
