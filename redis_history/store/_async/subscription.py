"""Subscriptions: every change after a cursor, in order, each once, or a Reset.

The change logs on the server are the queue. A subscription has a cursor for each conversation and at most one read in
memory, so a slow consumer costs no memory; if it falls behind the log's length, it gets a Reset. The doorbell and the
poll only decide how soon a log is read.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, Self

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from redis_history.errors import BackendUnavailableError, EventLoopError, StoreClosedError
from redis_history.store._async._runtime import Background, Lock, Openable, Signal
from redis_history.store.changelog import is_gone, owned
from redis_history.store.operations import Changes, ReadChanges, ReadConversation, ReadHead, ReadTogether
from redis_history.store.operations.backend import AsyncBackend, ChangeQuery, PendingWakeups, WeakWake
from redis_history.values.events import ANEW, ConversationDeleted, Cursor, Event, Reset
from redis_history.values.replies import Progress
from redis_history.values.runs import RunInfo
from redis_history.values.turns import Turn

_logger = logging.getLogger("redis_history")

#: Seconds that a `get` with a timeout of 0 waits for its read.
_SHORT_WAIT: Final = 1.0
#: Seconds between checks for changes that no signal announces.
_LONGEST_WAIT: Final = 3600.0
#: Seconds for which the end of a conversation is remembered: longer than backends keep its log, so that a late
#: notification does not repeat its events.
_REMEMBERED: Final = 120.0
#: Conversations of other owners that a subscription to one owner remembers.
_MOST_OTHERS: Final = 10_000


class AsyncFeed(Openable):
    """The base of all subscriptions. For one consumer at a time."""

    #: A name for the log.
    _subject: str

    def __init__(self, backend: AsyncBackend, poll_interval: float) -> None:
        self._backend = backend
        self._poll_interval = poll_interval
        self._ready: deque[Event] = deque()
        self._signal: Signal | None = None
        self._started = False
        self._closed = False
        self._opening = Lock()
        # A read that an earlier `get` had no time to wait for.
        self._reading: Background | None = None
        # Whether to read without a notification.
        self._read_now = False

    @property
    def opened(self) -> bool:
        """Whether it has begun (or has been closed)."""
        return self._started or self._closed

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        return self._closed

    async def open(self) -> None:
        """Begin: no change after this is missed. Done by the first use; more than once does no harm."""
        self._signal_of_loop()
        if self.opened:
            return
        async with self._opening:
            if not self.opened:
                try:
                    await self._start()
                except EventLoopError:
                    self._signal = None  # it may still begin in the loop of the store
                    raise
                self._started = True
                if self._closed:  # in the meantime, when there was nothing to unwatch yet
                    await self._unwatch()

    async def get(self, timeout: float | None = None) -> Event | None:
        """Return the next event, or None after `timeout` seconds without an event (None: wait), or after `aclose`.

        With a timeout of 0 or less it reads once, and waits at most a second for that. It returns in time even while
        the server is away: the read goes on, and the next call returns its result or raises its error.
        """
        signal = self._signal_of_loop()
        called_at = time.monotonic()
        self._read_now = timeout is not None and timeout <= 0
        read_timeout = _SHORT_WAIT if self._read_now else timeout
        while True:
            signal.clear()  # before the checks: later changes set it again
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
                return self._pop()
            wait = _LONGEST_WAIT
            if reading is None:
                wait = self._until_read() if self._started else 0.0
                if wait <= 0:  # in the background, so that `aclose` ends this call while the server hangs
                    self._reading = Background(self._open_or_read, signal)
                    continue
            limit = timeout if reading is None else read_timeout
            if limit is not None:
                left = called_at + limit - time.monotonic()
                if left <= 0:
                    return None
                wait = min(wait, left)
            await signal.wait(wait)

    async def _open_or_read(self) -> None:
        if not self._started:
            await self.open()
            return
        try:
            await self._read()
        except StoreClosedError:
            self._closed = True
        except BackendUnavailableError as error:
            _logger.warning("a subscription to %s waits for the server: %s", self._subject, error)
            self._pause_reads(time.monotonic() + self._poll_interval)

    async def aclose(self) -> None:
        """End the subscription, and the iteration over it, immediately."""
        if self._closed:
            return
        signal = self._signal
        if signal is not None and not signal.owner.is_parent:
            signal.owner.check()
        self._closed = True
        if signal is not None and not signal.owner.is_parent:
            signal.set()
            if self._started:  # else `open` does it
                await self._unwatch()
            reading = self._reading  # which `get` in another thread may remove
            if reading is not None:
                await reading.abandon()

    async def _sleep(self, seconds: float) -> None:
        """Return after this many seconds, or when it is closed."""
        signal, until = self._signal_of_loop(), time.monotonic() + seconds
        while True:
            signal.clear()
            left = until - time.monotonic()
            if self._closed or left <= 0:
                return
            await signal.wait(left)

    def _signal_of_loop(self) -> Signal:
        signal = self._signal
        if signal is None:
            signal = self._signal = Signal()
        elif not self._closed:
            signal.owner.check()
        return signal

    def _wake(self) -> None:
        if self._signal is not None:
            self._signal.set()

    # For each kind of subscription

    async def _start(self) -> None:
        """Find where to begin, then have the doorbell set the signal."""
        raise NotImplementedError

    async def _unwatch(self) -> None:
        """Undo the watch of `_start`. More than once does no harm."""
        raise NotImplementedError

    def _until_read(self) -> float:
        """Seconds until the next `_read`."""
        raise NotImplementedError

    async def _read(self) -> None:
        """Read once, into `_ready`."""
        raise NotImplementedError

    def _pause_reads(self, until: float) -> None:
        """The server is unavailable: do not read again before this time."""
        raise NotImplementedError

    def _pop(self) -> Event:
        """Remove the first event of `_ready`, and move the consumer's cursor behind it."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        event = await self.get()
        if event is None:
            raise StopAsyncIteration
        return event

    def _read_after(self, changes: Changes) -> float:
        """When to read this log again without a notification: earlier if the writer of a reply may have died then."""
        seconds = self._poll_interval
        if changes.dead:  # another reader may end the reply
            seconds = min(seconds, 1.0)
        elif changes.check_in is not None:
            seconds = min(seconds, max(0.1, changes.check_in + 0.05))
        return time.monotonic() + seconds


class AsyncSubscription(AsyncFeed):
    """The changes of one conversation; made by `store.subscribe`. For one consumer at a time.

    Iterate over it, or take single events with `get`. It goes on through lost connections and restarts of the server
    until it is closed. `cursor` is where the consumer is: after the last event it took.
    """

    def __init__(self, backend: AsyncBackend, conversation_id: str, after: Cursor | None, poll_interval: float) -> None:
        super().__init__(backend, poll_interval)
        self.conversation_id = conversation_id
        self._subject = repr(conversation_id[:80])
        self._cursor = after
        self._read_to = after
        self._ended = False
        self._read_at = 0.0
        self._more = self._notified = False
        self._bell = WeakWake(self._notify)
        self._replies: dict[int, Progress] = {}
        self._run: RunInfo | UnsetType | None = UNSET
        self._turns: tuple[Turn, ...] = ()

    @property
    def cursor(self) -> Cursor | None:
        """After the last event that was taken; None before the subscription began."""
        return self._cursor

    @property
    def is_behind(self) -> bool:
        """Whether the last read did not come to the newest change."""
        return self._more

    async def _start(self) -> None:
        if self._read_to is None:
            self._read_to = self._cursor = (await self._backend.execute(ReadHead(self.conversation_id))).cursor
        await self._backend.watch(self.conversation_id, self._bell)

    async def _unwatch(self) -> None:
        await self._backend.unwatch(self.conversation_id, self._bell)

    def _notify(self) -> None:
        self._notified = True
        self._wake()

    def _until_read(self) -> float:
        return 0.0 if self._notified or self._read_now else self._read_at - time.monotonic()

    def _pop(self) -> Event:
        event = self._ready.popleft()
        self._cursor = event.cursor
        return event

    def _pause_reads(self, until: float) -> None:
        self._read_at = until

    async def _read(self) -> None:
        assert self._read_to is not None  # noqa: S101
        self._notified = self._read_now = False  # before the read: a later change notifies again
        op = ReadChanges(self.conversation_id, self._read_to, replies=self._replies, run=self._run, turns=self._turns)
        changes = await self._backend.execute(op)
        self._replies = changes.replies
        self._more = changes.more
        if not changes.more:
            self._run = changes.run
            self._turns = changes.turns
        self._read_at = 0.0 if changes.more else self._read_after(changes)
        for event in changes.events:
            if isinstance(event, Reset) and event.reason == "conversation_missing" and self._ended:
                return  # the consumer has seen ConversationDeleted
            self._ended = isinstance(event, ConversationDeleted)
            self._read_to = event.cursor
            self._ready.append(event)


class AsyncNamespaceSubscription(AsyncFeed):
    """The changes of all conversations; made by `store.subscribe_all`. For one consumer at a time.

    Changes of one conversation are in order. Changes of different conversations are not ordered. Iterate over it,
    or take single events with `get`. It goes on through lost connections and restarts of the server until it is closed.
    """

    # The doorbell names a conversation, whose log is then read. A poll, every few seconds and whenever notifications
    # may have been missed, finds the others. Its cost does not grow with the number of conversations.

    _subject = "all conversations"

    def __init__(
        self,
        backend: AsyncBackend,
        after: Mapping[str, Cursor] | None,
        poll_interval: float,
        user_id: int | str | None = None,
    ) -> None:
        super().__init__(backend, poll_interval)
        self._from_now = after is None
        self._user_id = user_id
        # With `user_id`: conversations of other owners, whose notifications say nothing. A poll finds those that get
        # this owner.
        self._others: dict[str, None] = {}
        # How far the log of each conversation was read, and where the consumer is in that of the one in `_ready`.
        self._cursors: dict[str, Cursor] = dict(after or {})
        self._taken: tuple[str, Cursor | None] | None = None
        self._ended: dict[str, tuple[Cursor, float]] = {}
        # The conversations whose log must be read. A successful read removes its conversation.
        self._pending: dict[str, None] = {}
        # The position of the next poll, see ChangeQuery.
        self._position: Any = None
        self._news: set[str] = set()
        self._doubted: set[str] = set()
        self._poll_at = self._paused_until = 0.0
        self._wakeups = PendingWakeups(self._wake)
        self._bell = WeakWake(self._wakeups.add)
        # The replies that are being written, by conversation: how much of them was read, and when a writer may have
        # died.
        self._replies: dict[str, tuple[dict[int, Progress], float]] = {}
        # The newest run of each conversation, and what it is owed.
        self._runs: dict[str, RunInfo] = {}
        self._turns: dict[str, tuple[Turn, ...]] = {}

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

    async def _start(self) -> None:
        found = await self._backend.poll_changes(ChangeQuery(self._cursors, user_id=self._user_id))
        if self._from_now:
            self._cursors = await self._of_owner(found.heads)
            self._news = set(self._cursors)
        else:
            self._pending = dict.fromkeys(found.heads)
        self._position = found.position
        await self._backend.watch_all(self._bell)

    async def _unwatch(self) -> None:
        await self._backend.unwatch_all(self._bell)

    def _until_read(self) -> float:
        ids, any_other = self._wakeups.take()
        self._pending |= {name: None for name in ids if name not in self._others}
        if any_other:
            self._poll_at = self._paused_until = 0.0
        now = time.monotonic()
        soonest = self._poll_at
        for conversation_id, (_, at) in self._replies.items():
            if at <= now:
                self._pending[conversation_id] = None
            else:
                soonest = min(soonest, at)
        if self._must_poll(now) or self._can_read(now):
            return 0.0
        return (min(soonest, self._paused_until) if self._pending else soonest) - now

    def _can_read(self, now: float) -> bool:
        return bool(self._pending) and now >= self._paused_until

    def _must_poll(self, now: float) -> bool:
        return now >= self._poll_at or (not self._can_read(now) and (self._read_now or bool(self._doubted)))

    def _pop(self) -> Event:
        event = self._ready.popleft()
        self._taken = (event.conversation_id, event.cursor)
        return event

    def _pause_reads(self, until: float) -> None:
        self._paused_until = until

    async def _read(self) -> None:
        now = time.monotonic()
        if self._must_poll(now):
            self._read_now = False
            await self._poll()
        elif self._can_read(now):
            await self._read_log(next(iter(self._pending)))

    async def _poll(self) -> None:
        """Find the conversations that have changed without a notification."""
        self._poll_at = time.monotonic() + self._poll_interval
        query = ChangeQuery(self._cursors, self._position, self._news, self._doubted, self._user_id)
        found = await self._backend.poll_changes(query)
        self._news, self._doubted = set(), set()
        self._position = found.position
        self._pending |= dict.fromkeys(found.heads)
        for name in found.heads:
            self._others.pop(name, None)
        # The end of a run does not create a change, and its notification may have been lost.
        self._pending |= dict.fromkeys(name for name, run in self._runs.items() if run.is_active)
        now = time.monotonic()
        self._poll_at = now + self._poll_interval
        self._ended = {name: ended for name, ended in self._ended.items() if ended[1] > now}

    async def _read_log(self, conversation_id: str) -> None:
        known = self._cursors.get(conversation_id)
        ended = self._ended.get(conversation_id)
        after = known or (ended[0] if ended else ANEW)
        replies = self._replies.get(conversation_id, ({}, 0.0))[0]
        self._pending[conversation_id] = self._pending.pop(conversation_id)  # if the read fails, others are next
        if not known and not ended and not await self._of_owner({conversation_id: after}):
            del self._pending[conversation_id]
            return
        run = self._runs.get(conversation_id, UNSET)
        turns = self._turns.get(conversation_id, ())
        op = ReadChanges(conversation_id, after, replies=replies, run=run, turns=turns)
        changes = await self._backend.execute(op)
        del self._pending[conversation_id]
        self._replies.pop(conversation_id, None)
        if self._user_id is not None:
            if changes.owner not in (UNSET, self._user_id):
                self._leave(conversation_id)
                return
            if changes.owner is UNSET:  # whose it was before its end is not known any more, except of the end itself
                changes = self._last_of(changes)
        if changes.run is not None:
            self._runs[conversation_id] = changes.run
        if not changes.more:
            self._turns.pop(conversation_id, None)
            if changes.turns:
                self._turns[conversation_id] = changes.turns
        if changes.replies or changes.check_in is not None or changes.dead:
            self._replies[conversation_id] = changes.replies, self._read_after(changes)
        self._taken = (conversation_id, known)
        for event in changes.events:
            if isinstance(event, Reset) and event.reason == "conversation_missing" and not known:
                return  # the consumer has seen ConversationDeleted
            self._ready.append(event)
            self._follow(event)
        if changes.more:
            self._pending[conversation_id] = None  # behind the others

    async def _of_owner(self, heads: dict[str, Cursor]) -> dict[str, Cursor]:
        """The cursors of the owner's conversations, or all of them if the subscription has no owner."""
        if self._user_id is None:
            return heads
        names = list(heads)
        records = await self._backend.execute(ReadTogether(tuple(map(ReadConversation, names))))
        found = {}
        for name, record in zip(names, records, strict=True):
            if record is not None and record.user_id == self._user_id:
                found[name] = heads[name]
            elif record is not None and record.user_id is not None:  # one without an owner may get one
                self._leave(name)
        return found

    def _leave(self, conversation_id: str) -> None:
        """Stop following a conversation of another owner."""
        if conversation_id in self._cursors:
            self._news.add(conversation_id)
        self._forget(conversation_id)
        self._others.pop(conversation_id, None)
        self._others[conversation_id] = None
        if len(self._others) > _MOST_OTHERS:
            del self._others[next(iter(self._others))]

    def _forget(self, conversation_id: str) -> None:
        for known in (self._cursors, self._runs, self._turns):
            known.pop(conversation_id, None)

    def _last_of(self, changes: Changes) -> Changes:
        """The end of a conversation that was the owner's."""
        events: list[Event] = [event for event in changes.events if isinstance(event, ConversationDeleted | Reset)]
        return replace(changes, events=owned(events, self._user_id))

    def _follow(self, event: Event) -> None:
        name, known = event.conversation_id, event.conversation_id in self._cursors
        if isinstance(event, Reset) and event.reason != "log_trimmed":
            self._doubted.add(name)
        if isinstance(event, ConversationDeleted) or is_gone(event.cursor):
            self._forget(name)
            if event.cursor.revision:
                self._ended[name] = (event.cursor, time.monotonic() + _REMEMBERED)
        else:
            self._cursors[name] = event.cursor
            self._ended.pop(name, None)
        if known != (name in self._cursors):
            self._news.add(name)
