"""Runs a summariser in the background. The twin in _sync is written by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from redis_history._async._runtime import Signal
from redis_history.compaction.summaries import call_summarizer, is_interrupt, summary_error

#: Seconds to wait for a cancelled task.
_ENDS: Final = 1.0


class Attempt:
    """A coroutine function runs in this loop, a plain one in a new thread.

    `signal` is set when it has `finished`. A thread cannot be ended; after `leave`, its result is ignored.
    """

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...], signal: Signal) -> None:
        self.finished = False
        self._signal = signal
        self._answer: Any = None
        self._error: BaseException | None = None
        self._left = False
        self._task = asyncio.create_task(self._run(function, arguments), name="redis_history-attempt")

    def outcome(self) -> Any:
        """The function's result. Raises SummaryError for anything it raised. A SystemExit or KeyboardInterrupt is meant
        for the function's thread or task; it must not end the caller.
        """
        if self._error is not None:
            raise summary_error(self._error)
        return self._answer

    async def leave(self) -> None:
        """End it, or at least do not wait for it."""
        self._left = True
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task], timeout=_ENDS)

    async def _run(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        try:
            self._answer = await call_summarizer(function, *arguments)
        except BaseException as error:
            self._error = error
            if self._left or is_interrupt(error):
                raise
        finally:
            self.finished = True
            self._signal.set()
