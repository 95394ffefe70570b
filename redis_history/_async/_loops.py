"""What belongs to an event loop, and how others reach it. Its twin in _sync is written by hand too.

Connections, pools, tasks and locks of asyncio are for one loop, that is for one thread. A store is for all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any, Final, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary, WeakSet

#: Seconds that work in another event loop is waited for: that loop may be busy, or wait for this one.
_ELSEWHERE: Final = 1.0


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


class _Visits:
    """Work in one loop that others have asked for. A loop that ends does what it has accepted, and accepts no more."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Future[None]] = set()
        self._open = True
        self._guard = at_the_end(self._finish)

    def begin(self, work: Callable[[], Awaitable[None]], done: Future[None]) -> None:
        def finished(task: asyncio.Future[None]) -> None:
            self._tasks.discard(task)
            error = None if task.cancelled() else task.exception()
            with contextlib.suppress(InvalidStateError):  # nobody waits any more
                done.set_result(None) if error is None else done.set_exception(error)

        if self._open:
            task = asyncio.ensure_future(work())
            self._tasks.add(task)
            task.add_done_callback(finished)
        else:
            done.cancel()

    async def _finish(self) -> None:
        self._open = False
        while self._tasks:
            await asyncio.wait(list(self._tasks))


_visits: WeakKeyDictionary[asyncio.AbstractEventLoop, _Visits] = WeakKeyDictionary()


class Home:
    """The event loop that something belongs to: that in which this was made, or any, if it was made outside of one."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        with contextlib.suppress(RuntimeError):
            self._loop = asyncio.get_running_loop()
            self._visits = _visits.get(self._loop)
            if self._visits is None:
                self._visits = _visits[self._loop] = _Visits()

    @property
    def here(self) -> bool:
        """Whether this is that loop."""
        return self._loop is None or self._loop is asyncio.get_running_loop()

    @property
    def ended(self) -> bool:
        return self._loop is not None and self._loop.is_closed()

    @property
    def stopped(self) -> bool:
        """Whether that loop does not run: then what is under way there does not go on."""
        return self._loop is not None and not self._loop.is_running()

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do `work` there, and return when it is done. A loop that does not run, or is about to end, is left alone: it
        ends its tasks, and with them their connections, by itself."""
        if self._loop is None or self.here:
            await work()
        elif self._loop.is_running() and self._visits is not None:
            done: Future[None] = Future()
            with contextlib.suppress(RuntimeError):  # it was closed at this moment
                self._loop.call_soon_threadsafe(self._visits.begin, work, done)
                outcome = asyncio.wrap_future(done)
                finished, _ = await asyncio.wait([outcome], timeout=_ELSEWHERE)
                if finished and not outcome.cancelled():
                    outcome.result()
                outcome.cancel()


class Closable(Protocol):
    async def aclose(self) -> None: ...


C = TypeVar("C", bound=Closable)


class PerLoop(Generic[C]):
    """One thing for each event loop, made when it is first asked for there.

    What belongs to a loop holds on to it, so a weak dictionary would keep both for ever. Loops that have ended are
    forgotten when another one comes.
    """

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._things: dict[asyncio.AbstractEventLoop, tuple[Home, C]] = {}
        self._inherited: list[Any] = []
        _everywhere.add(self)

    def here(self) -> C:
        """The one of this loop."""
        loop = asyncio.get_running_loop()
        found = self._things.get(loop)
        if found is None:
            with self._lock:
                for other in [other for other in self._things if other.is_closed()]:
                    del self._things[other]
                found = self._things[loop] = Home(), self._make()
        return found[1]

    def every(self) -> list[tuple[Home, C]]:
        """Those of all loops, each with its loop."""
        with self._lock:
            return list(self._things.values())

    async def aclose(self) -> None:
        """Close each of them in its loop."""
        for home, thing in self.every():
            await home.run(thing.aclose)

    def forget(self) -> None:
        """In a forked child, which has loops of its own. What is the parent's is kept, untouched: to close a connection
        is to take it out of the list that the parent's loop waits on, which both processes share."""
        self._inherited.append(self._things)
        self._things = {}
        self._lock = threading.Lock()


_everywhere: WeakSet[PerLoop[Any]] = WeakSet()


def _in_child() -> None:
    for thing in list(_everywhere):
        thing.forget()


os.register_at_fork(after_in_child=_in_child)
