"""The differences between threads and asyncio, under the same names. The twin in _async is written by hand."""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

T = TypeVar("T")

Lock = threading.Lock
sleep = time.sleep


class LoopBound:
    """Threads may share everything."""

    here = True
    stopped = False

    def check(self) -> None:
        """Nothing to check."""


class Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=Closable)


class LoopLocal(Generic[C]):
    """One value for all threads, made when it is first asked for."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self.current: C | None = None
        reset_after_fork(self)

    def get(self) -> C:
        """The value."""
        if self.current is None:
            with self._lock:
                if self.current is None:
                    self.current = self._make()
        return self.current

    def close(self) -> None:
        """Close the value."""
        if self.current is not None:
            self.current.close()

    def forget(self) -> None:
        """In a forked child: a thread of the parent may have held the lock."""
        self._lock = threading.Lock()


class Openable:
    """Something that begins with `open`."""

    def open(self) -> None: ...


def begin(openable: Openable) -> bool:
    """Begin it if that can be done here; whether it was."""
    openable.open()
    return True


class Signal:
    """Set from any thread, and waited for. A lock that is open while the signal is set: threading.Event makes a lock
    for each wait, which takes twice as long."""

    def __init__(self) -> None:
        self.home = LoopBound()
        self._gate = threading.Lock()
        self._gate.acquire()

    def set(self) -> None:
        with contextlib.suppress(RuntimeError):  # it is set already
            self._gate.release()

    def clear(self) -> None:
        self._gate.acquire(blocking=False)

    def wait(self, seconds: float) -> bool:
        """Whether it was set within so many seconds."""
        found = self._gate.acquire(timeout=min(max(0.0, seconds), threading.TIMEOUT_MAX))
        if found:
            self.set()  # it stays set, for others who wait, until it is cleared
        return found


class Job:
    """Work in the background. It must end by itself once it is told to; `stop` only waits for it."""

    def __init__(self, thread: threading.Thread) -> None:
        self._thread = thread

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Return when it has ended."""
        if self._thread is not threading.current_thread():
            self._thread.join()


def spawn(work: Callable[[], None], name: str) -> Job:
    """Run `work` in the background."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return Job(thread)


class Background:
    """Work in another thread. The caller may stop waiting for it. `signal` is set when it is done."""

    def __init__(self, work: Callable[[], None], signal: Signal) -> None:
        self.left = False  # nobody waits for it any more
        self.connection: Any = None  # which it uses now
        self._work = work
        self._signal = signal
        self._error: BaseException | None = None
        self._finished = False
        try:
            self._worker = _idle.pop()
        except IndexError:
            self._worker = _Worker()
        self._worker.given.put(self)

    @property
    def done(self) -> bool:
        return self._finished or not self._worker.thread.is_alive()  # in a forked child it is not

    def result(self) -> None:
        """Raises what the work raised."""
        if self._error is not None:
            raise self._error

    def leave(self) -> None:
        """Do not wait for it. A thread cannot be ended, but its connection is shut down, and it does not try again."""
        self.left = True
        taken = getattr(self.connection, "_sock", None)
        if taken is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(taken, socket.SHUT_RDWR)  # that of TLS would take it apart

    def run(self) -> None:
        _here.work = self
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 -- it is the caller's to raise
            self._error = error
        finally:
            _here.work = None

    def finish(self) -> None:
        self._finished = True
        self._signal.set()


class _Worker:
    """A thread that does one work after the other, and ends after a second without any."""

    def __init__(self) -> None:
        self.given: SimpleQueue[Background] = SimpleQueue()
        self.thread = threading.Thread(target=self._run, name="redis_history-read", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while True:
            try:
                work = self.given.get(timeout=1.0)
            except Empty:
                try:
                    _idle.remove(self)
                except ValueError:  # somebody has just taken it
                    continue
                return
            work.run()
            _idle.append(self)  # before the caller is told, who may have the next work
            work.finish()
            del work


_idle: list[_Worker] = []
_here = threading.local()


def background() -> Background | None:
    """The work that this thread does for a caller."""
    return getattr(_here, "work", None)


def unwanted() -> bool:
    """Whether this thread works for nobody any more."""
    work = background()
    return work is not None and work.left


def uninterrupted(work: Callable[[], None], unfinished: set[Any]) -> None:
    """Do it: a thread is not cancelled."""
    work()


def settle(unfinished: set[Any]) -> None:
    """Nothing is ever unfinished here."""


def place() -> int:
    """Threads may all wait for one another."""
    return 0


def ending() -> bool:
    """Whether this work was told to end: a thread cannot be."""
    return False


def in_thread(function: Callable[[], T]) -> T:
    """The outcome of a function that blocks."""
    return function()


def finish(outcome: Any) -> Any:
    """The outcome of a callback."""
    return outcome


_inherited: WeakSet[Any] = WeakSet()


def reset_after_fork(thing: Any) -> None:
    """Call `thing.forget()` in every forked child."""
    _inherited.add(thing)


def _in_child() -> None:
    _idle.clear()
    for thing in list(_inherited):
        thing.forget()


os.register_at_fork(after_in_child=_in_child)


def at_exit(work: Callable[[], None]) -> Callable[[], None]:
    """Run `work` when the interpreter ends; the outcome takes that back."""
    atexit.register(work)
    return lambda: atexit.unregister(work)
