"""Subscriptions to all conversations: of each, every change after its cursor, in order, each once, or a Reset.

There is one cursor for each conversation, and the change logs are the queue, as with a single conversation. The
doorbell names a conversation, whose log is then read. A look, every few seconds and whenever notifications may have
been missed, finds those that nobody named: what it costs does not grow with the number of conversations.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any, Final

from redis_history._async._listing import follows_all
from redis_history._async.subscription import AsyncFeed, next_look
from redis_history.backends.base import AsyncBackend, ChangeQuery, PendingWakeups
from redis_history.errors import BackendUnavailableError, StoreClosedError
from redis_history.events import BEGINNING, ConversationDeleted, Cursor, Event, Reset
from redis_history.model.replies import Progress
from redis_history.operations import ReadChanges

_logger = logging.getLogger("redis_history")

#: Seconds for which the end of a conversation is remembered: longer than backends keep its log, so that what rings
#: late does not tell its life again.
_REMEMBERED: Final = 120.0


class AsyncNamespaceSubscription(AsyncFeed):
    """The changes of all conversations; made by `store.subscribe_all`. For one consumer at a time.

    Changes of one conversation are in order; those of different ones are not put in an order. Iterate over it, or take
    single events with `get`. It goes on through lost connections and restarts of the server until it is closed.
    """

    def __init__(self, backend: AsyncBackend, after: Mapping[str, Cursor] | None, poll_interval: float) -> None:
        super().__init__()
        self._backend = backend
        self._all = follows_all(backend)
        self._poll_interval = poll_interval
        self._from_now = after is None
        # How far the log of each conversation was read, and where the consumer is in that of the one in `_ready`.
        self._cursors: dict[str, Cursor] = dict(after or {})
        self._taken: tuple[str, Cursor | None] | None = None
        self._ended: dict[str, tuple[Cursor, float]] = {}
        # The conversations whose log must be read. A successful read removes its conversation.
        self._pending: dict[str, None] = {}
        self._position: Any = None
        self._news: set[str] = set()
        self._doubted: set[str] = set()
        self._look_at = self._rest_until = 0.0
        self._wakeups = PendingWakeups(self._wake)
        # Of conversations with replies that are being written: how much was read of these, and when a writer may have
        # died.
        self._replies: dict[str, tuple[dict[int, Progress], float]] = {}

    @property
    def cursors(self) -> dict[str, Cursor]:
        """For each conversation, where the consumer is: after the last event of it that was taken. A copy."""
        cursors = dict(self._cursors)
        if self._ready and self._taken is not None:
            conversation_id, cursor = self._taken
            cursors.pop(conversation_id, None)
            if cursor is not None:
                cursors[conversation_id] = cursor
        return cursors

    async def _begin(self) -> None:
        found = await self._all.poll_changes(ChangeQuery(self._cursors))
        if self._from_now:
            self._cursors = found.heads
            self._news = set(found.heads)
        else:
            self._pending = dict.fromkeys(found.heads)
        self._position = found.position
        await self._all.watch_all(self._wakeups.add)

    async def _unwatch(self) -> None:
        await self._all.unwatch_all(self._wakeups.add)

    def _wake(self) -> None:
        if self._signal is not None:
            self._signal.set()

    def _next_read(self) -> float:
        ids, any_other = self._wakeups.take()
        self._pending |= ids
        if any_other:
            self._look_at = self._rest_until = 0.0
        now = time.monotonic()
        soonest = self._look_at
        for name, (_, at) in self._replies.items():
            if at <= now:
                self._pending[name] = None
            else:
                soonest = min(soonest, at)
        if self._looks(now) or self._reads(now):
            return 0.0
        return (min(soonest, self._rest_until) if self._pending else soonest) - now

    def _reads(self, now: float) -> bool:
        """Whether the log of a conversation is to be read."""
        return bool(self._pending) and now >= self._rest_until

    def _looks(self, now: float) -> bool:
        """Whether to find out which conversations have changed."""
        return now >= self._look_at or (not self._reads(now) and (self._read_now or bool(self._doubted)))

    def _take(self) -> Event:
        event = self._ready.popleft()
        self._taken = (event.conversation_id, event.cursor)
        return event

    async def _read(self) -> None:
        now = time.monotonic()
        if self._looks(now):
            self._read_now = False
            await self._look()
        elif self._reads(now):
            await self._read_one(next(iter(self._pending)))

    async def _look(self) -> None:
        """Find what has changed without a wake-up."""
        news, doubted = self._news, self._doubted
        self._look_at = time.monotonic() + self._poll_interval
        try:
            found = await self._all.poll_changes(ChangeQuery(self._cursors, self._position, news, doubted))
        except StoreClosedError:
            self._closed = True
            return
        except BackendUnavailableError as error:
            self._wait_for_server(error)
            return
        self._news, self._doubted = set(), set()
        self._position = found.position
        self._pending |= dict.fromkeys(found.heads)
        now = time.monotonic()
        self._look_at = now + self._poll_interval
        self._ended = {name: ended for name, ended in self._ended.items() if ended[1] > now}

    async def _read_one(self, conversation_id: str) -> None:
        """Read the change log of one conversation once."""
        known = self._cursors.get(conversation_id)
        ended = self._ended.get(conversation_id)
        after = known or (ended[0] if ended else BEGINNING)
        try:
            had = self._replies.get(conversation_id, ({}, 0.0))[0]
            changes = await self._backend.execute(ReadChanges(conversation_id, after, replies=had))
        except StoreClosedError:
            self._closed = True
            return
        except BackendUnavailableError as error:
            self._wait_for_server(error)
            self._pending[conversation_id] = self._pending.pop(conversation_id)  # others first
            return
        del self._pending[conversation_id]
        self._replies.pop(conversation_id, None)
        if changes.replies or changes.check_in is not None or changes.dead:
            self._replies[conversation_id] = changes.replies, time.monotonic() + next_look(changes, self._poll_interval)
        self._taken = (conversation_id, known)
        for event in changes.events:
            if isinstance(event, Reset) and event.reason == "conversation_missing" and not known:
                return  # the consumer has it as ConversationDeleted
            self._ready.append(event)
            self._follow(event)
        if changes.more:
            self._pending[conversation_id] = None  # behind the others

    def _follow(self, event: Event) -> None:
        name, known = event.conversation_id, event.conversation_id in self._cursors
        if isinstance(event, Reset) and event.reason != "log_trimmed":
            self._doubted.add(name)
        if isinstance(event, ConversationDeleted) or event.cursor.epoch == BEGINNING.epoch:
            self._cursors.pop(name, None)
            if event.cursor.revision:
                self._ended[name] = (event.cursor, time.monotonic() + _REMEMBERED)
        else:
            self._cursors[name] = event.cursor
            self._ended.pop(name, None)
        if known != (name in self._cursors):
            self._news.add(name)

    def _wait_for_server(self, error: Exception) -> None:
        _logger.warning("a subscription to all conversations waits for the server: %s", error)
        self._rest_until = time.monotonic() + self._poll_interval
