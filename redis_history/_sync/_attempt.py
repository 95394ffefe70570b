"""A function of the user's, at work beside ours. Its twin in _async is written by hand too."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from typing import Any

from redis_history._sync._runtime import Signal
from redis_history.compaction.summaries import told
from redis_history.errors import SummaryError

__all__ = ["Attempt"]


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
        """What the function gave; raises what it raised.

        What is no Exception is meant for whoever runs the function's thread or task, and that is not the caller, whom
        it would end: of such it is a SummaryError.
        """
        if self._error is None:
            return self._given
        if isinstance(self._error, Exception):
            raise self._error
        raise SummaryError(f"the summariser raised {told(self._error)}") from self._error

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
