"""Runs a user's function in the background. The twin in _sync is written by hand."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Final

from redis_history._async._runtime import Signal
from redis_history.compaction.summaries import is_interrupt, summary_error

#: Seconds to wait for a cancelled task.
_ENDS: Final = 1.0


class Attempt:
    """A coroutine function runs in this loop, a plain one in a new thread.

    `signal` is set when it has `finished`. A thread cannot be ended; after `leave`, its result is ignored.
    """

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...], signal: Signal) -> None:
        self.finished = False
        self._signal = signal
        self._given: Any = None
        self._error: BaseException | None = None
        self._left = False
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
            self._await(function(*arguments))
        else:
            context = contextvars.copy_context()
            # Not of the loop's executor: the end of the loop waits for those.
            threading.Thread(
                target=context.run, args=(self._call, function, arguments), name="redis_history-attempt", daemon=True
            ).start()

    def outcome(self) -> Any:
        """The function's result. Raises SummaryError for anything it raised. A SystemExit or KeyboardInterrupt is meant
        for the function's thread or task; it must not end the caller.
        """
        if self._error is not None:
            raise summary_error(self._error)
        return self._given

    async def leave(self) -> None:
        """End it, or at least do not wait for it."""
        self._left = True
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task], timeout=_ENDS)

    def _call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        try:
            given = function(*arguments)
        except BaseException as error:  # noqa: BLE001 -- it is the caller's to raise
            self._finish(None, error)
            return
        if inspect.isawaitable(given):
            try:
                self._loop.call_soon_threadsafe(self._await, given)
            except RuntimeError:  # the loop is closed: nobody waits any more
                if inspect.iscoroutine(given):
                    given.close()
        else:
            self._finish(given, None)

    def _await(self, given: Awaitable[Any]) -> None:
        if self._left:
            if inspect.iscoroutine(given):
                given.close()
            return

        async def run() -> None:
            try:
                self._finish(await given, None)
            except asyncio.CancelledError as error:
                self._finish(None, RuntimeError("it was cancelled"))
                raise error
            except BaseException as error:
                self._finish(None, error)
                if is_interrupt(error):
                    raise

        self._task = self._loop.create_task(run(), name="redis_history-attempt")
        if inspect.iscoroutine(given):  # otherwise never awaited if it was left before it began
            self._task.add_done_callback(lambda _: given.close())

    def _finish(self, given: Any, error: BaseException | None) -> None:
        self._given, self._error = given, error
        self.finished = True
        self._signal.set()
