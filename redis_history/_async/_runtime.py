"""The differences between asyncio and threads, under the same names. The twin in _sync is written by hand."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from typing import Any, Generic, Protocol, Self, TypeVar
from weakref import WeakSet

from redis_history.errors import EventLoopError

T = TypeVar("T")

Lock = asyncio.Lock
sleep = asyncio.sleep


class LoopBound:
    """Remembers the event loop in which it was made. Without one, any loop may use it."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        with contextlib.suppress(RuntimeError):
            self._loop = asyncio.get_running_loop()

    @property
    def here(self) -> bool:
        """Whether this is that loop."""
        return self._loop is None or self._loop is asyncio.get_running_loop()

    @property
    def stopped(self) -> bool:
        """Whether that loop does not run any more; in a forked child, the parent's loops do not."""
        return self._loop is not None and (not self._loop.is_running() or self._process != os.getpid())

    def check(self) -> None:
        """Raises EventLoopError in another loop while the own one runs."""
        if not self.here and not self.stopped:
            raise EventLoopError(
                "an AsyncHistoryStore and its subscriptions belong to one event loop, and that loop runs in another "
                "thread: create a store in each loop, or share a HistoryStore between threads"
            )


class Closable(Protocol):
    async def aclose(self) -> None: ...


C = TypeVar("C", bound=Closable)


class LoopLocal(Generic[C]):
    """A value that belongs to one event loop: the first that asks for it, and when that has stopped, the next.

    Connections, tasks and locks of asyncio work in one loop only.
    """

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._home = LoopBound()
        self._value: C | None = None
        self._inherited: list[Any] = []
        _loop_locals.add(self)

    def get(self) -> C:
        """The value. Raises EventLoopError while another loop uses it."""
        loop = asyncio.get_running_loop()
        if self._loop is loop and self._value is not None:
            return self._value
        with self._lock:
            if self._value is not None:
                self._home.check()
            self._home, self._value, self._loop = LoopBound(), self._make(), loop
            return self._value

    @property
    def current(self) -> C | None:
        """The value, if its loop still runs."""
        return None if self._home.stopped else self._value

    async def aclose(self) -> None:
        """Close the value. A loop that stopped has ended its tasks and closed its connections already."""
        if self._value is not None:
            self._home.check()
            if self._home.here:
                await self._value.aclose()

    def forget(self) -> None:
        """In a forked child, which has other loops. The parent's value is kept, untouched: closing a connection
        would take it out of the list that the parent's loop waits on, which both processes share."""
        self._inherited.append((self._loop, self._value))
        self._loop = self._value = None
        self._lock = threading.Lock()


_loop_locals: WeakSet[LoopLocal[Any]] = WeakSet()


def _in_child() -> None:
    for one in list(_loop_locals):
        one.forget()


os.register_at_fork(after_in_child=_in_child)


def at_the_end(work: Callable[[], Awaitable[None]]) -> AsyncGenerator[None, None]:
    """Do `work` when what this returns is closed, and else while this loop can still do it: asyncio.run ends all
    asynchronous generators before it closes the loop, and afterwards nothing could be awaited."""

    async def waiting() -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await work()

    generator = waiting()
    with contextlib.suppress(StopIteration):
        generator.__anext__().send(None)  # up to its yield there is nothing to wait for
    return generator


class Openable:
    """Something that begins with `open`: awaiting it begins it, and gives it back."""

    async def open(self) -> None: ...

    async def _opened(self) -> Self:
        await self.open()
        return self

    def __await__(self) -> Generator[Any, None, Self]:
        return self._opened().__await__()


def begin(openable: Openable) -> bool:
    """Begin it if that can be done here; whether it was."""
    return False  # without await nothing can be asked


class Signal:
    """Set from any thread, waited for by one task."""

    def __init__(self) -> None:
        self.home = LoopBound()
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
    """Work in the background."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task
        self._home = LoopBound()

    @property
    def ended(self) -> bool:
        return self._task.done()

    async def stop(self) -> None:
        """Cancel it, and return when it has ended."""
        self._home.check()
        if self._home.here:
            self._task.cancel()
            if self._task is not asyncio.current_task():
                await asyncio.gather(self._task, return_exceptions=True)


def spawn(work: Callable[[], Awaitable[None]], name: str) -> Job:
    """Run `work` in the background."""

    async def run() -> None:
        await work()

    return Job(asyncio.create_task(run(), name=name))


class Background:
    """Work in the background. The caller may stop waiting for it. `signal` is set when it is done."""

    def __init__(self, work: Callable[[], Awaitable[None]], signal: Signal) -> None:
        async def run() -> None:
            await work()

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled():
                task.exception()  # an error that nobody waits for is not reported
            signal.set()

        self._task = asyncio.create_task(run(), name="redis_history-read")
        self._task.add_done_callback(ended)

    @property
    def done(self) -> bool:
        return self._task.done()

    def result(self) -> None:
        """Raises what the work raised."""
        if not self._task.cancelled():
            self._task.result()

    async def leave(self) -> None:
        """End it, or at least do not wait for it."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def uninterrupted(work: Callable[[], Awaitable[None]], unfinished: set[Any]) -> None:
    """Do it to its end, even if the caller is cancelled; meanwhile `unfinished` holds it."""

    async def run() -> None:
        await work()

    task = asyncio.create_task(run())
    unfinished.add(task)
    task.add_done_callback(unfinished.discard)
    await asyncio.shield(task)


async def settle(unfinished: set[Any]) -> None:
    """Return when all of this that runs in this event loop has ended."""
    loop = asyncio.get_running_loop()
    while here := [task for task in list(unfinished) if task.get_loop() is loop]:
        await asyncio.wait(here)


def place() -> int:
    """Where this runs: what waits for one another must be in one place."""
    return id(asyncio.get_running_loop())


def ending() -> bool:
    """Whether this task was cancelled; it must ask, as redis-py may have lost that (see ConnectionPool.send)."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def unwanted() -> bool:
    """Whether this works for nobody any more: such a task was cancelled."""
    return False


async def in_thread(function: Callable[[], T]) -> T:
    """The outcome of a function that blocks."""
    return await asyncio.to_thread(function)


async def finish(outcome: Any) -> Any:
    """The outcome of a callback that may be a coroutine function."""
    return await outcome if isinstance(outcome, Awaitable) else outcome


def reset_after_fork(thing: Any) -> None:
    """An event loop does not survive a fork, and neither does what belongs to one: see LoopLocal."""


def at_exit(work: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run `work` when the interpreter ends, in a new event loop. Returns a function that undoes this."""

    def run() -> None:
        asyncio.run(work())

    atexit.register(run)
    return lambda: atexit.unregister(run)
