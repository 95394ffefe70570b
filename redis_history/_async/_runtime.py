"""The differences between asyncio and threads, under the same names. The twin in _sync is written by hand."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import inspect
import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from typing import Any, Final, Generic, Self, TypeVar
from weakref import WeakSet

from redis_history._validation import check_function
from redis_history.compaction.summaries import is_coroutine_function, is_interrupt, summary_error, try_in_thread
from redis_history.errors import EventLoopError

T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, None]]

Lock = asyncio.Lock
sleep = asyncio.sleep
in_thread = asyncio.to_thread

#: Seconds to wait for a cancelled summarizer.
_CANCEL_SECONDS: Final = 1.0


class OwnerLoop:
    """The event loop in which this was made; if there was none, any loop counts as the owner."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self.loop: asyncio.AbstractEventLoop | None = None
        with contextlib.suppress(RuntimeError):
            self.loop = asyncio.get_running_loop()

    @property
    def is_current(self) -> bool:
        return self.loop is None or self.loop is asyncio.get_running_loop()

    @property
    def stopped(self) -> bool:
        """Whether that loop has stopped; a forked child does not run its parent's loops."""
        return self.loop is not None and (not self.loop.is_running() or self._process != os.getpid())

    def check(self) -> None:
        """Raises EventLoopError in another loop while the owner runs."""
        if not self.is_current and not self.stopped:
            raise EventLoopError(
                "an AsyncHistoryStore and its subscriptions belong to one event loop, and that loop runs in another "
                "thread: create a store in each loop, or share a HistoryStore between threads"
            )


class LoopLocal(Generic[T]):
    """A value with connections, tasks or locks, which work in one event loop only: the first loop that asks for it
    owns it. After that loop has stopped, the next one gets a new value."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._owner = OwnerLoop()
        self._value: Any = None
        self._inherited: list[Any] = []
        _loop_locals.add(self)

    def get(self) -> T:
        """The value. Raises EventLoopError while another loop uses it."""
        value: T = self._value
        if value is not None and self._owner.loop is asyncio.get_running_loop():
            return value
        with self._lock:
            if self._value is not None:
                self._owner.check()
            self._owner, self._value = OwnerLoop(), self._make()
            return self._value  # type: ignore[no-any-return]

    @property
    def current(self) -> T | None:
        """The value, if its loop still runs."""
        return None if self._owner.stopped else self._value

    async def aclose(self) -> None:
        """Close the value. A loop that stopped has ended its tasks and closed its connections already."""
        if self._value is not None:
            self._owner.check()
            if self._owner.is_current:
                await self._value.aclose()

    def forget(self) -> None:
        """Reset a forked child. The parent's value is kept, untouched: closing a connection would remove it from the
        epoll list of the parent's loop, which both processes share."""
        self._inherited.append((self._owner, self._value))
        self._value = None
        self._lock = threading.Lock()


_loop_locals: WeakSet[LoopLocal[Any]] = WeakSet()


def _reset_child() -> None:
    for value in list(_loop_locals):
        value.forget()


os.register_at_fork(after_in_child=_reset_child)


def reset_after_fork(thing: Any) -> None:
    """Nothing to do: an event loop, and all that belongs to it, ends with a fork (see LoopLocal)."""


def close_with_loop(close: Callable[[], Awaitable[None]]) -> AsyncGenerator[None, None]:
    """Call `close` when the returned generator is closed, or when the loop ends: asyncio.run ends all asynchronous
    generators before it closes the loop."""

    async def waiting() -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await close()

    generator = waiting()
    with contextlib.suppress(StopIteration):
        generator.__anext__().send(None)  # runs to the yield, without waiting
    return generator


class Openable:
    """Awaiting it opens it, and returns it."""

    async def open(self) -> None: ...

    async def _opened(self) -> Self:
        await self.open()
        return self

    def __await__(self) -> Generator[Any, None, Self]:
        return self._opened().__await__()


def open_without_await(openable: Openable) -> bool:
    """Open it if that needs no `await`; returns whether it was opened."""
    return False


class Signal:
    """Set from any thread, waited for by one task."""

    def __init__(self) -> None:
        self.owner = OwnerLoop()
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._thread = threading.get_ident()

    def set(self) -> None:
        if threading.get_ident() == self._thread:
            self._event.set()
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._event.set)

    def clear(self) -> None:
        self._event.clear()

    async def wait(self, seconds: float) -> bool:
        """Whether it was set within so many seconds."""
        if self._event.is_set():
            return True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
        return self._event.is_set()


class Job:
    """Work in the background, until it ends or is stopped."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task
        self._owner = OwnerLoop()

    @property
    def ended(self) -> bool:
        return self._task.done()

    async def stop(self) -> None:
        """Cancel it, and return when it has ended."""
        self._owner.check()
        if self._owner.is_current:
            self._task.cancel()
            if self._task is not asyncio.current_task():
                await asyncio.gather(self._task, return_exceptions=True)


def spawn(work: Work, name: str) -> Job:
    return Job(asyncio.create_task(work(), name=name))


class Background:
    """A read in the background. The caller may stop waiting for it. `signal` is set when it is done."""

    def __init__(self, work: Work, signal: Signal) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled():
                task.exception()  # retrieved, so that asyncio does not report an error that nobody waits for
            signal.set()

        self._task = asyncio.create_task(work(), name="redis_history-read")
        self._task.add_done_callback(ended)

    @property
    def done(self) -> bool:
        return self._task.done()

    def result(self) -> None:
        """Raises the error of the work."""
        if not self._task.cancelled():
            self._task.result()

    async def abandon(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


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


class Canceller:
    """Cancels the task in which it was made."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101
        self._task = task
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True
        self._task.cancel()

    def is_own(self, error: BaseException | None) -> bool:
        """Whether this error is the cancellation by `cancel`, and by nobody else; then the task is not cancelled any
        more."""
        if not (self._cancelled and isinstance(error, asyncio.CancelledError)):
            return False
        return self._task.uncancel() == 0


async def uninterrupted(work: Work, unfinished: set[Any]) -> None:
    """Finish `work` even if the caller is cancelled; meanwhile `unfinished` holds its task."""
    task = asyncio.create_task(work())
    unfinished.add(task)
    task.add_done_callback(unfinished.discard)
    await asyncio.shield(task)


async def wait_for_unfinished(unfinished: set[Any]) -> None:
    """Return when all tasks of this loop in `unfinished` have ended."""
    loop = asyncio.get_running_loop()
    while tasks := [task for task in list(unfinished) if task.get_loop() is loop]:
        await asyncio.wait(tasks)


def lock_scope() -> int:
    """Callers with the same number can share a lock: those in one event loop."""
    return id(asyncio.get_running_loop())


def is_cancelled() -> bool:
    """Whether this task was cancelled: redis-py may have lost the CancelledError (see ConnectionPool.send)."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def is_abandoned() -> bool:
    """Whether the caller of this work stopped waiting for it: then its task was cancelled."""
    return False


def check_callback(callback: object) -> None:
    """Raises ConfigurationError unless it can be called."""
    check_function(callback, "callback", optional=False)


async def resolve(outcome: Any) -> Any:
    """The outcome of a callback, which may be a coroutine function."""
    return await outcome if isinstance(outcome, Awaitable) else outcome


def at_exit(work: Work) -> Callable[[], None]:
    """Run `work` when the interpreter ends, in a new event loop. Returns a function that undoes this."""

    def run() -> None:
        asyncio.run(work())

    atexit.register(run)
    return lambda: atexit.unregister(run)
