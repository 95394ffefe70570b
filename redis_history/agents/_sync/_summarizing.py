"""A summarizer that runs in the background of a compressor. The twin in _async is written by hand."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from typing import Any

from redis_history.agents.compaction.summaries import summary_error
from redis_history.store._sync._runtime import Signal


class SummarizerCall:
    """A user's summarizer in a new thread; a coroutine function in an event loop of that thread.

    `signal` is set when it is `done`. A thread cannot be ended; after `abandon`, its result is ignored.
    """

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...], signal: Signal) -> None:
        self.done = False
        self._signal = signal
        self._result: Any = None
        self._error: BaseException | None = None
        context = contextvars.copy_context()
        threading.Thread(
            target=context.run, args=(self._call, function, arguments), name="redis_history-attempt", daemon=True
        ).start()

    def result(self) -> Any:
        """The function's result. Raises SummaryError for any error, also SystemExit and KeyboardInterrupt: these are
        meant for the function's thread, not for the caller."""
        if self._error is not None:
            raise summary_error(self._error)
        return self._result

    def abandon(self) -> None:
        """Ignore its result."""

    def _call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        async def awaited(awaitable: Any) -> Any:
            return await awaitable

        try:
            result = function(*arguments)
            self._result = asyncio.run(awaited(result)) if inspect.isawaitable(result) else result
        except BaseException as error:  # noqa: BLE001 -- `result` raises it
            self._error = error
        self.done = True
        self._signal.set()
