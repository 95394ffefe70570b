"""The differences between asyncio and threads, under the same names. The twin in _sync is written by hand."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Final, ParamSpec, Self, TypeVar

from redis_history._validation import check_function, check_process, is_coroutine_function
from redis_history.compaction.summaries import is_interrupt, summary_error, try_in_thread
from redis_history.errors import EventLoopError

P = ParamSpec("P")
T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, None]]

Lock = asyncio.Lock
sleep = asyncio.sleep
in_thread = asyncio.to_thread

#: Seconds to wait for a cancelled summarizer.
_CANCEL_SECONDS: Final = 1.0


#: Concurrent calls to one server; more wait, because the server runs one at a time.
_MAX_CONCURRENT_CALLS: Final = 64


def turns() -> asyncio.Semaphore:
    """Limits the connections of a store to one server."""
    return asyncio.Semaphore(_MAX_CONCURRENT_CALLS)


class TimeLimit:
    """Limits an exchange on a connection of redis-py by its `socket_timeout`. Raises redis-py's TimeoutError.

    redis-py limits sending and receiving, each with a timer; on Python 3.11, with a task too. That takes 20 us more.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._seconds = connection.socket_timeout
        self._timeout = asyncio.timeout(self._seconds)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()
        self._connection.socket_timeout = None

    async def __aexit__(self, *error: Any) -> None:
        self._connection.socket_timeout = self._seconds
        try:
            await self._timeout.__aexit__(*error)
        except TimeoutError:
            from redis import exceptions  # redis-py takes long to import

            raise exceptions.TimeoutError("Timeout reading from socket") from None


async def open_cluster(cluster: Any) -> None:
    """Connect redis-py's client of a cluster."""
    await cluster.initialize()


async def close_cluster(cluster: Any) -> None:
    """Close the connections of redis-py's client of a cluster. A call that is reading the slots may have made some
    since the last time."""
    await cluster.aclose()
    await cluster.nodes_manager.aclose()


class Owner:
    """The event loop and the process that first use a store."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0

    @property
    def is_parent(self) -> bool:
        """Whether this process was forked from the process that uses the store."""
        return self._process not in (0, os.getpid())

    def check(self) -> None:
        """Raises EventLoopError in another event loop, and StoreClosedError in a forked child."""
        loop, process = asyncio.get_running_loop(), os.getpid()
        if loop is self._loop and process == self._process:
            return
        if self._loop is None:
            self._loop, self._process = loop, process
            return
        check_process(self._process)
        raise EventLoopError(
            "an AsyncHistoryStore and its subscriptions belong to the event loop of their first use: create a store in "
            "each loop, or share a HistoryStore between threads"
        )


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
        self.owner = Owner()
        self.owner.check()
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
        """Whether it was set within this many seconds."""
        if self._event.is_set():
            return True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
        return self._event.is_set()


class Receiver:
    """Waits for the messages of redis-py's `PubSub`. `interrupt` ends the wait."""

    def __init__(self) -> None:
        self._wait: asyncio.Timeout | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def get(self, pubsub: Any, seconds: float) -> Any:
        """The next message; None after this many seconds, or after an interrupt."""
        self._loop = asyncio.get_running_loop()
        try:
            # redis-py ends a wait in the same way, so that no message is lost.
            async with asyncio.timeout(None) as self._wait:
                return await pubsub.get_message(timeout=seconds)
        except TimeoutError:
            return None
        finally:
            self._wait = None

    def interrupt(self) -> None:
        if self._wait is not None:
            self._wait.reschedule(0)
            self._wait = None

    def interrupt_from_outside(self) -> None:
        """From any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self.interrupt)


class Job:
    """Work in the background, until it ends or is stopped."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task
        self._process = os.getpid()

    @property
    def ended(self) -> bool:
        return self._task.done()

    async def stop(self, patience: float = 0.0) -> None:
        """Cancel it unless it ends by itself within `patience` seconds, and return when it has ended. Does nothing in a
        forked child, because it is the parent's."""
        if self._process != os.getpid():
            return
        own = self._task is asyncio.current_task()
        try:
            if patience and not own:
                await asyncio.wait([self._task], timeout=patience)
        finally:
            self._task.cancel()
        if not own:
            await asyncio.gather(self._task, return_exceptions=True)


def spawn(work: Work, name: str) -> Job:
    """Run `work` in the background, not before the caller goes on: the tasks of a loop may begin at once
    (asyncio.eager_task_factory of Python 3.12), but this one does not ask its factory."""
    return Job(asyncio.Task(work(), name=name))


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
        """Whether this error is the cancellation by `cancel`, and by nobody else. The task is not cancelled by it any
        more, also if its code has handled the error, or raised another one."""
        return self._cancelled and self._task.uncancel() == 0 and isinstance(error, asyncio.CancelledError)


async def uninterrupted(work: Work, unfinished: set[Any]) -> None:
    """Finish `work` even if the caller is cancelled. `unfinished` holds its task until then."""
    task = asyncio.create_task(work())
    unfinished.add(task)
    task.add_done_callback(unfinished.discard)
    await asyncio.shield(task)


_closing: Final = set[Any]()


async def completed(work: Work) -> None:
    """Do `work`, which may be repeated. If the caller is cancelled, the rest is done in the background."""
    try:
        await work()
    except Exception:
        raise
    except BaseException:
        await uninterrupted(work, _closing)
        raise


async def wait_for_unfinished(unfinished: set[Any]) -> None:
    """Return when all tasks of this loop in `unfinished` have ended."""
    loop = asyncio.get_running_loop()
    while tasks := [task for task in list(unfinished) if task.get_loop() is loop]:
        await asyncio.wait(tasks)


def _cancellations() -> int:
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def is_cancelled() -> bool:
    """Whether this task was cancelled. Before Python 3.12, redis-py may lose the error, in asyncio.wait_for."""
    return _cancellations() > 0


def delivers_cancellation(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Decorates a function that awaits redis-py: it raises CancelledError if its task is then cancelled, although
    redis-py may lose that error."""
    if sys.version_info >= (3, 12):
        return function

    @functools.wraps(function)
    async def delivering(*args: P.args, **kwargs: P.kwargs) -> T:
        before = _cancellations()
        if before:
            await sleep(0)  # redis-py would lose a cancellation that is still to come
        try:
            outcome = await function(*args, **kwargs)
        except Exception:
            if _cancellations() > before:
                await _raise_cancelled()
            raise
        if _cancellations() > before:
            await _raise_cancelled()
        return outcome

    return delivering


async def _raise_cancelled() -> None:
    await sleep(0)  # anyio cancels again and again, with an error that it recognizes
    raise asyncio.CancelledError


def is_abandoned() -> bool:
    """Whether the caller of this work stopped waiting for it: then its task was cancelled."""
    return False


def check_callback(callback: object, name: str, *, optional: bool = True) -> None:
    """Raises ConfigurationError unless it can be called, or is None if `optional`."""
    check_function(callback, name, optional=optional)


async def resolve(outcome: Any) -> Any:
    """The outcome of a callback, which may be a coroutine function. Raises RuntimeError if it waits for another task,
    and that was cancelled."""
    try:
        return await outcome if isinstance(outcome, Awaitable) else outcome
    except asyncio.CancelledError as error:
        if is_cancelled():
            raise
        raise RuntimeError("it was cancelled") from error


def at_exit(work: Work) -> Callable[[], None]:
    """Do nothing: the event loop that could do the work has ended before the interpreter."""
    return lambda: None
