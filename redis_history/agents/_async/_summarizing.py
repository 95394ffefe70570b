"""A summarizer that runs in the background of a compressor. The twin in _sync is written by hand."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, Final

from redis_history.agents.compaction.summaries import is_interrupt, summary_error, try_in_thread
from redis_history.store._async._runtime import Signal
from redis_history.values._validation import is_coroutine_function

#: Seconds to wait for a cancelled summarizer.
_CANCEL_SECONDS: Final = 1.0


class SummarizerCall:
    """A user's summarizer in the background: a coroutine function in this loop, a plain one in a new thread.

    `signal` is set when it is `done`. A thread cannot be ended; after `abandon`, its result is ignored.
    """

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...], signal: Signal) -> None:
        self.done = False
        self._signal = signal
        self._result: Any = None
        self._error: BaseException | None = None
        self._task = asyncio.create_task(self._run(function, arguments), name="redis_history-attempt")

    def result(self) -> Any:
        """The function's result. Raises SummaryError for any error, also SystemExit and KeyboardInterrupt: these are
        meant for the function's thread or task, not for the caller."""
        if self._error is not None:
            raise summary_error(self._error)
        return self._result

    async def abandon(self) -> None:
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task], timeout=_CANCEL_SECONDS)

    async def _run(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        try:
            if is_coroutine_function(function):
                result = function(*arguments)
            else:
                result, self._error = await try_in_thread(function, *arguments)
            self._result = await result if inspect.isawaitable(result) else result
        except asyncio.CancelledError:
            self._error = RuntimeError("it was cancelled")
            raise
        except BaseException as error:
            self._error = error
            if is_interrupt(error):
                raise
        finally:
            self.done = True
            self._signal.set()
