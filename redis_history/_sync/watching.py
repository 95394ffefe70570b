# Generated from ../_async by scripts/unasync: do not edit.
"""The methods of a store that make subscriptions and callbacks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from redis_history import requests
from redis_history._ids import check_conversation_id
from redis_history._sync._runtime import Job, begin, finish, spawn
from redis_history._sync.subscription import Feed, NamespaceSubscription, Subscription
from redis_history.backends.base import Backend
from redis_history.events import Cursor, Event

_logger = logging.getLogger("redis_history")


class Watching:
    _backend: Backend
    _poll_interval: float
    _unopened: list[Feed]
    _jobs: dict[Feed, Job]

    def subscribe(self, conversation_id: str, *, after: Cursor | str | None = None) -> Subscription:
        """The changes of a conversation after the cursor `after` (None: from now on), in order, each once. The
        conversation need not exist yet.

        See `Subscription`. Cursors come from events, subscriptions and snapshots. If the change log no longer
        reaches back to the cursor, or the conversation was replaced, a Reset comes first. Raises InvalidCursorError.
        """
        check_conversation_id(conversation_id)
        subscription = Subscription(self._backend, conversation_id, requests.cursor_of(after), self._poll_interval)
        self._start(subscription)
        return subscription

    def subscribe_all(self, *, after: Mapping[str, Cursor | str] | None = None) -> NamespaceSubscription:
        """The changes of all conversations of the namespace, including later ones; each as in `subscribe`.

        `after` has cursors by conversation id, such as `cursors` of an earlier subscription: it returns the changes
        after them, and all changes of other conversations. None: from now on. Raises InvalidCursorError. It begins by
        reading the newest change of every conversation: about a second for 10,000.
        """
        subscription = NamespaceSubscription(self._backend, requests.cursors_of(after), self._poll_interval)
        self._start(subscription)
        return subscription

    def on_change(
        self,
        conversation_id: str,
        callback: Callable[[Event], object],
        *,
        after: Cursor | str | None = None,
        on_error: Callable[[Exception, Event | None], None] | None = None,
    ) -> Callable[[], None]:
        """Call `callback`, plain or a coroutine function, with each change after the cursor `after` (None: from now
        on), in order, in the background.

        The returned function ends it. `on_error` (by default the log) receives errors of the callback, and of reading,
        then without an event; the callback is called again for the next change.
        """
        subscription = self.subscribe(conversation_id, after=after)
        return self._call(callback, subscription, on_error, repr(conversation_id[:80]))

    def on_change_all(
        self,
        callback: Callable[[Event], object],
        *,
        after: Mapping[str, Cursor | str] | None = None,
        on_error: Callable[[Exception, Event | None], None] | None = None,
    ) -> Callable[[], None]:
        """Like `on_change`, for all conversations: see `subscribe_all`. One call at a time."""
        return self._call(callback, self.subscribe_all(after=after), on_error, "all conversations")

    def _call(
        self,
        callback: Callable[[Event], object],
        subscription: Feed,
        on_error: Callable[[Exception, Event | None], None] | None,
        subject: str,
    ) -> Callable[[], None]:
        subscription.open()

        def report(error: Exception, event: Event | None) -> None:
            if on_error is not None:
                try:
                    on_error(error, event)
                    return
                except Exception:
                    _logger.exception("the on_error of a callback for %s failed", subject)
            _logger.error("a callback for %s failed", subject, exc_info=error)

        def run() -> None:
            while not subscription.closed:
                try:
                    event = subscription.get()
                except Exception as error:  # noqa: BLE001 -- such as a withdrawn permission, which may return
                    report(error, None)
                    subscription._sleep(self._poll_interval)
                    continue
                if event is not None:
                    try:
                        finish(callback(event))
                    except Exception as error:  # noqa: BLE001 -- a callback may raise anything
                        report(error, event)

        job = self._jobs[subscription] = spawn(run, "redis_history-callback")

        def unsubscribe() -> None:
            self._jobs.pop(subscription, None)
            subscription.close()
            job.stop()

        return unsubscribe

    def _start(self, subscription: Feed) -> None:
        if not begin(subscription):
            # It begins when it is first awaited. A write of this store before that begins it first.
            self._unopened = [waiting for waiting in self._unopened if not waiting.opened]
            self._unopened.append(subscription)

    def _open_subscriptions(self) -> None:
        waiting, self._unopened = self._unopened, []
        for subscription in waiting:
            subscription.open()
