"""Handlers of events: called one at a time, in the order of the events, with no lock held.

Code that changes something posts events, then delivers them. If another call is delivering, that one delivers these
too: a handler that changes the history causes no recursion, and several threads cause no disorder.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from redis_history._validation import check_function
from redis_history.errors import InvalidInputError

_logger = logging.getLogger("redis_history")
_running: set[asyncio.Task[None]] = set()


def run_aside(work: Awaitable[Any], failed: Callable[[Exception], None]) -> None:
    """Run a coroutine: as a task in a running event loop; without one, here and to its end."""

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
        _running.add(task)  # a loop holds its tasks only weakly
        task.add_done_callback(_running.discard)


class Listeners:
    """The handlers of each event, and what is to be delivered to them."""

    def __init__(self, events: tuple[str, ...]) -> None:
        self._handlers: dict[str, list[Callable[..., object]]] = {event: [] for event in events}
        self._posted: deque[Callable[[], None]] = deque()
        self._delivering = False
        self._lock = threading.Lock()

    def on(self, event: str, handler: Callable[..., object]) -> Callable[[], None]:
        """Call `handler` from now on, with as many of the event's arguments as it takes; the outcome ends that."""
        if event not in self._handlers:
            raise InvalidInputError(f"there is no event {event!r}; there are {', '.join(self._handlers)}")
        check_function(handler, "handler", optional=False, error=InvalidInputError)
        called = _adapted(handler)
        with self._lock:
            self._handlers[event] = [*self._handlers[event], called]

        def unsubscribe() -> None:
            with self._lock:
                self._handlers[event] = [other for other in self._handlers[event] if other is not called]

        return unsubscribe

    def renew_lock(self) -> None:
        self._lock = threading.Lock()
        self._delivering = False

    def wants(self, event: str) -> bool:
        return bool(self._handlers[event])

    def post(self, event: str, *arguments: Any) -> None:
        """Deliver this event with the next `deliver`. An argument that is `Late` is evaluated then."""
        if self._handlers[event]:
            self.post_call(lambda: self._call(event, arguments))

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

    def _call(self, event: str, arguments: tuple[Any, ...]) -> None:
        for handler in self._handlers[event]:
            try:
                outcome = handler(*(one.value() if isinstance(one, Late) else one for one in arguments))
                if inspect.isawaitable(outcome):
                    run_aside(outcome, lambda error: self._failed(event, error))
            except Exception as error:  # noqa: BLE001 -- a handler's error must not reach who changed the history
                self._failed(event, error)

    @staticmethod
    def _failed(event: str, error: Exception) -> None:
        _logger.error("a handler of %r failed", event, exc_info=error)


class Late:
    """An argument that is evaluated at delivery."""

    def __init__(self, value: Callable[[], Any]) -> None:
        self.value = value


def _adapted(handler: Callable[..., object]) -> Callable[..., object]:
    """A function that passes on as many arguments as the handler takes."""
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):  # not all built-in functions have a signature
        return lambda *arguments: handler(*arguments)
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return lambda *arguments: handler(*arguments)
    count = sum(one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) for one in parameters)
    return lambda *arguments: handler(*arguments[:count])
