"""Call a summariser or other slow function from a coroutine without blocking the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from redis_history.compaction.summaries import Summarizer
from redis_history.model import Message

__all__ = ["call_summarizer", "in_thread", "is_coroutine_function", "try_in_thread"]

T = TypeVar("T")


async def call_summarizer(summarizer: Summarizer, messages: Sequence[Message], previous_summary: str | None) -> object:
    """Call a summariser: a coroutine function in this event loop, a plain function in a thread."""
    if is_coroutine_function(summarizer):
        given: Any = summarizer(messages, previous_summary)
    else:
        given = await in_thread(summarizer, messages, previous_summary)
    return await given if inspect.isawaitable(given) else given


def is_coroutine_function(function: Any) -> bool:
    """Whether a function or callable object is a coroutine function."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function in a thread. Returns its result or raises its error."""
    given, error = await try_in_thread(function, *arguments)
    if error is not None:
        raise error
    return given  # type: ignore[no-any-return]


async def try_in_thread(function: Callable[..., Any], *arguments: Any) -> tuple[Any, BaseException | None]:
    """Call a function in a thread, and return its result and its error. The error is returned because a future cannot
    hold every exception. Unlike with `asyncio.to_thread`, closing the event loop does not wait for the thread."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()

    def tell(given: Any, error: BaseException | None) -> None:
        if not done.done():
            done.set_result((given, error))

    def run() -> None:
        try:
            outcome: tuple[Any, BaseException | None] = context.run(function, *arguments), None
        except BaseException as error:  # noqa: BLE001 -- `in_thread` raises it
            outcome = None, error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits for the outcome
            loop.call_soon_threadsafe(tell, *outcome)

    threading.Thread(target=run, name="redis_history-attempt", daemon=True).start()
    return await done
