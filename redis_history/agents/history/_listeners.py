"""Handlers of events: called one at a time, in the order of the events, without a lock.

Code that changes something posts events, then delivers them. If another call is already delivering, it also delivers
these. So a handler that changes the history causes no recursion, and threads cannot reorder events.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from redis_history.errors import InvalidInputError
from redis_history.values._validation import check_function

_logger = logging.getLogger("redis_history")
_tasks: set[asyncio.Task[None]] = set()


def run_in_background(work: Awaitable[Any], failed: Callable[[Exception], None]) -> None:
    """Run a coroutine: as a task in a running event loop; without one, to its end."""

    async def run() -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 -- it belongs to the handler or plugin; it is reported
            failed(error)

    coroutine: Coroutine[Any, Any, None] = run()
    try:
        task = asyncio.get_running_loop().create_task(coroutine)
    except RuntimeError:
        asyncio.run(coroutine)
    else:
        _tasks.add(task)  # a loop holds its tasks only weakly
        task.add_done_callback(_tasks.discard)


class Listeners:
    """The handlers of each event, and the events to deliver."""

    def __init__(self, events: tuple[str, ...]) -> None:
        self._handlers: dict[str, list[Callable[..., object]]] = {event: [] for event in events}
        self._posted: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._delivering = False

    def on(self, event: str, handler: Callable[..., object]) -> Callable[[], None]:
        """Call `handler` from now on, with as many of the event's arguments as it takes. Returns a function that ends
        this."""
        if event not in self._handlers:
            raise InvalidInputError(f"there is no event {event!r}; there are {', '.join(self._handlers)}")
        check_function(handler, "handler", optional=False, error=InvalidInputError)
        count = _count_parameters(handler)

        def called(*arguments: Any) -> object:
            return handler(*arguments[:count])

        with self._lock:
            self._handlers[event] = [*self._handlers[event], called]

        def unsubscribe() -> None:
            with self._lock:
                self._handlers[event] = [other for other in self._handlers[event] if other is not called]

        return unsubscribe

    def wants(self, event: str) -> bool:
        return bool(self._handlers[event])

    def post(self, event: str, *arguments: Any) -> None:
        """Deliver this event with the next `deliver`."""
        if self._handlers[event]:
            self.post_call(lambda: self.call(event, *arguments))

    def post_call(self, call: Callable[[], None]) -> None:
        self._posted.append(call)

    def deliver(self) -> None:
        """Call the handlers of all posted events. Do not call this with a lock held."""
        while self._posted:
            with self._lock:
                if self._delivering:
                    return
                self._delivering = True
            try:
                while self._posted:
                    self._posted.popleft()()
            finally:
                self._delivering = False

    def call(self, event: str, *arguments: Any) -> None:
        def failed(error: Exception) -> None:
            _logger.error("a handler of %r failed", event, exc_info=error)

        for handler in self._handlers[event]:
            try:
                outcome = handler(*arguments)
                if inspect.isawaitable(outcome):
                    run_in_background(outcome, failed)
            except Exception as error:  # noqa: BLE001 -- a handler's error must not reach the code that made the change
                failed(error)


def _count_parameters(handler: Callable[..., object]) -> int | None:
    """How many positional arguments a handler takes; None for any number."""
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):  # not all built-in functions have a signature
        return None
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return None
    return sum(one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) for one in parameters)
