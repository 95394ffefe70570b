"""The methods of a store that make subscriptions and callbacks."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

from redis_history import requests
from redis_history._async._runtime import Job, begin, finish, spawn
from redis_history._async.subscription import AsyncFeed, AsyncNamespaceSubscription, AsyncSubscription
from redis_history._ids import check_conversation_id
from redis_history.backends.base import AsyncBackend
from redis_history.events import Cursor, Event

_logger = logging.getLogger("redis_history")


class AsyncWatching:
    _backend: AsyncBackend
    _poll_interval: float
    _unopened: list[AsyncFeed]
    _jobs: dict[AsyncFeed, Job]

    def subscribe(self, conversation_id: str, *, after: Cursor | str | None = None) -> AsyncSubscription:
        """The changes of a conversation after the cursor `after` (None: from now on), in order, each once. The
        conversation need not exist yet.

        See `AsyncSubscription`. Cursors come from events, subscriptions and snapshots. If the change log no longer
        reaches back to the cursor, or the conversation was replaced, a Reset comes first. Raises InvalidCursorError.
        """
        check_conversation_id(conversation_id)
        subscription = AsyncSubscription(self._backend, conversation_id, requests.cursor_of(after), self._poll_interval)
        self._start(subscription)
        return subscription

    def subscribe_all(self, *, after: Mapping[str, Cursor | str] | None = None) -> AsyncNamespaceSubscription:
        """The changes of all conversations of the namespace, including later ones; each as in `subscribe`.

        `after` has cursors by conversation id, such as `cursors` of an earlier subscription: it returns the changes
        after them, and all changes of other conversations. None: from now on. Raises InvalidCursorError. It begins by
        reading the newest change of every conversation: about a second for 10,000.
        """
        subscription = AsyncNamespaceSubscription(self._backend, requests.cursors_of(after), self._poll_interval)
        self._start(subscription)
        return subscription

    async def on_change(
        self,
        conversation_id: str,
        callback: Callable[[Event], object],
        *,
        after: Cursor | str | None = None,
        on_error: Callable[[Exception, Event | None], None] | None = None,
    ) -> Callable[[], Awaitable[None]]:
        """Call `callback`, plain or a coroutine function, with each change after the cursor `after` (None: from now
        on), in order, in the background.

        The returned function ends it. `on_error` (by default the log) receives errors of the callback, and of reading,
        then without an event; the callback is called again for the next change.
        """
        subscription = self.subscribe(conversation_id, after=after)
        return await self._call(callback, subscription, on_error, repr(conversation_id[:80]))

    async def on_change_all(
        self,
        callback: Callable[[Event], object],
        *,
        after: Mapping[str, Cursor | str] | None = None,
        on_error: Callable[[Exception, Event | None], None] | None = None,
    ) -> Callable[[], Awaitable[None]]:
        """Like `on_change`, for all conversations: see `subscribe_all`. One call at a time."""
        return await self._call(callback, self.subscribe_all(after=after), on_error, "all conversations")

    async def _call(
        self,
        callback: Callable[[Event], object],
        subscription: AsyncFeed,
        on_error: Callable[[Exception, Event | None], None] | None,
        subject: str,
    ) -> Callable[[], Awaitable[None]]:
        await subscription.open()

        def report(error: Exception, event: Event | None) -> None:
            if on_error is not None:
                try:
                    on_error(error, event)
                    return
                except Exception:
                    _logger.exception("the on_error of a callback for %s failed", subject)
            _logger.error("a callback for %s failed", subject, exc_info=error)

        async def run() -> None:
            while not subscription.closed:
                try:
                    event = await subscription.get()
                except Exception as error:  # noqa: BLE001 -- such as a withdrawn permission, which may return
                    report(error, None)
                    await subscription._sleep(self._poll_interval)
                    continue
                if event is not None:
                    try:
                        await finish(callback(event))
                    except Exception as error:  # noqa: BLE001 -- a callback may raise anything
                        report(error, event)

        job = self._jobs[subscription] = spawn(run, "redis_history-callback")

        async def unsubscribe() -> None:
            self._jobs.pop(subscription, None)
            await subscription.aclose()
            await job.stop()

        return unsubscribe

    def _start(self, subscription: AsyncFeed) -> None:
        if not begin(subscription):
            # It begins when it is first awaited. A write of this store before that begins it first.
            self._unopened = [waiting for waiting in self._unopened if not waiting.opened]
            self._unopened.append(subscription)

    async def _open_subscriptions(self) -> None:
        waiting, self._unopened = self._unopened, []
        for subscription in waiting:
            await subscription.open()
