"""A function of the user's, at work beside ours. Its twin in _async is written by hand too."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from typing import Any

from redis_history._sync._runtime import Signal
from redis_history.compaction.summaries import summary_error


class Attempt:
    """A function in a thread of its own; a coroutine function in an event loop of that thread.

    `signal` is set when it has `finished`. A thread cannot be ended: what it gives after it was left is thrown away.
    """

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...], signal: Signal) -> None:
        self.finished = False
        self._signal = signal
        self._given: Any = None
        self._error: BaseException | None = None
        context = contextvars.copy_context()
        threading.Thread(
            target=context.run, args=(self._call, function, arguments), name="redis_history-attempt", daemon=True
        ).start()

    def outcome(self) -> Any:
        """What the function gave. Raises SummaryError, whatever it raised: what is no Exception is meant for whoever
        runs the function's thread or task, and not for the caller, whom it would end.
        """
        if self._error is not None:
            raise summary_error(self._error)
        return self._given

    def leave(self) -> None:
        """Do not wait for it any more."""

    def _call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        async def awaited(given: Any) -> Any:
            return await given

        try:
            given = function(*arguments)
            self._given = asyncio.run(awaited(given)) if inspect.isawaitable(given) else given
        except BaseException as error:  # noqa: BLE001 -- it is the caller's to raise
            self._error = error
        self.finished = True
        self._signal.set()
