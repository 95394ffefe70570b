"""What asyncio and threads do differently, under one set of names. Its twin in _sync is written by hand too."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Self, TypeVar

from redis_history._async._loops import Home

T = TypeVar("T")

Lock = asyncio.Lock
sleep = asyncio.sleep


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
        self.home = Home()
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
        self._home = Home()

    @property
    def ended(self) -> bool:
        return self._task.done()

    async def stop(self) -> None:
        """End it, and return when it has ended."""
        await self._home.run(self._stop)

    async def _stop(self) -> None:
        self._task.cancel()
        if self._task is not asyncio.current_task():
            await asyncio.gather(self._task, return_exceptions=True)


def spawn(work: Callable[[], Awaitable[None]], name: str) -> Job:
    """Run `work` in the background."""

    async def run() -> None:
        await work()

    return Job(asyncio.create_task(run(), name=name))


class Background:
    """Work beside a caller, who may stop waiting for it. `signal` is set when it is done."""

    def __init__(self, work: Callable[[], Awaitable[None]], signal: Signal, name: str) -> None:
        async def run() -> None:
            await work()

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled():
                task.exception()  # an error that nobody waits for is not reported
            signal.set()

        self._task = asyncio.create_task(run(), name=name)
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
    """Do it to its end, which a caller who is cancelled does not wait for: `unfinished` has it meanwhile."""

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
    """Whether this task was told to end; it must ask, as redis-py may have lost that (see Lines.send)."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def in_thread(function: Callable[[], T]) -> T:
    """The outcome of a function that blocks."""
    return await asyncio.to_thread(function)


async def finish(outcome: Any) -> Any:
    """The outcome of a callback that may be a coroutine function."""
    return await outcome if isinstance(outcome, Awaitable) else outcome


def reset_after_fork(thing: Any) -> None:
    """An event loop does not survive a fork, and neither does what belongs to one: see _loops.PerLoop."""


def at_exit(work: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run `work` when the interpreter ends, in an event loop of its own; the outcome takes that back."""

    def run() -> None:
        asyncio.run(work())

    atexit.register(run)
    return lambda: atexit.unregister(run)
