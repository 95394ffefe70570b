"""The differences between threads and asyncio, under the same names. The twin in _async is written by hand."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import inspect
import os
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final, ParamSpec, TypeVar

from redis_history._validation import check_function, check_process, is_coroutine_function
from redis_history.compaction.summaries import summary_error
from redis_history.errors import ConfigurationError

P = ParamSpec("P")
T = TypeVar("T")
Work = Callable[[], None]

Lock = threading.Lock
sleep = time.sleep

#: Seconds after which a new subscription is sent to the server, and a store is closed, at the latest.
_SHORT_WAIT: Final = 0.05


def turns() -> contextlib.nullcontext[None]:
    """No limit: there are as many connections as threads that call at once."""
    return contextlib.nullcontext()


_UNLIMITED: Final = contextlib.nullcontext()


def TimeLimit(connection: Any) -> contextlib.AbstractContextManager[None]:  # noqa: N802 -- a class in the twin
    """Limits nothing: the socket has a timeout."""
    return _UNLIMITED


def open_cluster(cluster: Any) -> None:
    """Nothing to do: the constructor connects."""


def close_cluster(cluster: Any) -> None:
    """Close the connections of redis-py's client of a cluster."""
    cluster.close()
    cluster.disconnect_connection_pools()


class Owner:
    """The process that first uses a store; threads may share everything."""

    def __init__(self) -> None:
        self._process = 0

    @property
    def is_parent(self) -> bool:
        """Whether this process was forked from the one that uses the store."""
        return self._process not in (0, os.getpid())

    def check(self) -> None:
        """Raises StoreClosedError in a forked child."""
        process = os.getpid()
        if process != self._process:
            if self._process:
                check_process(self._process)
            self._process = process


class Openable:
    """The constructor's caller opens it (see `open_without_await`)."""

    def open(self) -> None: ...


def open_without_await(openable: Openable) -> bool:
    """Open it; returns whether it was opened."""
    openable.open()
    return True


class Signal:
    """Set from any thread, and waited for. A lock that is open while the signal is set: threading.Event makes a lock
    for each wait, which takes twice as long."""

    def __init__(self) -> None:
        self.owner = Owner()
        self.owner.check()
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


class Receiver:
    """Waits for the messages of redis-py's `PubSub`. redis-py cannot interrupt a wait in a thread, so all are short."""

    def get(self, pubsub: Any, seconds: float) -> Any:
        """The next message, or None after a moment."""
        return pubsub.get_message(timeout=min(seconds, _SHORT_WAIT))

    def interrupt(self) -> None:
        """Nothing to do."""

    interrupt_from_outside = interrupt


class Job:
    """Work in the background. It must end by itself, once asked to; `stop` only waits for that."""

    def __init__(self, thread: threading.Thread) -> None:
        self._thread = thread

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def stop(self, patience: float = 0.0) -> None:
        """Return when it has ended."""
        if self._thread is not threading.current_thread():
            self._thread.join()


def spawn(work: Work, name: str) -> Job:
    """Run `work` in the background."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return Job(thread)


class Background:
    """A read in another thread. The caller may stop waiting for it. `signal` is set when it is done."""

    def __init__(self, work: Work, signal: Signal) -> None:
        self.abandoned = False
        self._work: Work | None = work
        self._signal = signal
        self._error: BaseException | None = None
        self._finished = False
        try:
            self._worker = _idle.pop()
        except IndexError:
            self._worker = _Worker()
        self._worker.queue.put(self)

    @property
    def done(self) -> bool:
        return self._finished or not self._worker.thread.is_alive()  # a forked child has no such thread

    def result(self) -> None:
        """Raises the error of the work."""
        if self._error is not None:
            raise self._error

    def abandon(self) -> None:
        """Do not wait for it. A thread cannot be ended, but it does not retry."""
        self.abandoned = True

    def run(self) -> None:
        # Forgotten, because who reads in the background also keeps this, and a cycle would keep a dropped store.
        work, self._work = self._work, None
        assert work is not None  # noqa: S101
        _thread_local.work = self
        try:
            work()
        except BaseException as error:  # noqa: BLE001 -- `result` raises it
            self._error = error
        finally:
            _thread_local.work = None

    def finish(self) -> None:
        self._finished = True
        self._signal.set()


class _Worker:
    """A thread that runs one `Background` after the other, and ends after a second without any."""

    def __init__(self) -> None:
        self.queue: SimpleQueue[Background] = SimpleQueue()
        self.thread = threading.Thread(target=self._run, name="redis_history-read", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while True:
            try:
                work = self.queue.get(timeout=1.0)
            except Empty:
                try:
                    _idle.remove(self)
                except ValueError:  # somebody has just taken it
                    continue
                return
            work.run()
            _idle.append(self)  # before `finish` wakes the caller, which may have the next work
            work.finish()
            del work


_idle: list[_Worker] = []
_thread_local = threading.local()


def is_abandoned() -> bool:
    """Whether the caller of this thread's work stopped waiting for it."""
    work: Background | Caller | None = getattr(_thread_local, "work", None)
    return work is not None and work.abandoned


class Caller:
    """A coroutine that waits for the work of a thread. After `abandon`, the work does not begin, or calls the server no
    second time."""

    def __init__(self) -> None:
        self.abandoned = self.began = False

    def run(self, function: Callable[..., T], *arguments: Any, **options: Any) -> T | None:
        self.began = True
        if self.abandoned:
            return None
        _thread_local.work = self
        try:
            return function(*arguments, **options)
        finally:
            _thread_local.work = None


class SummarizerCall:
    """A user's summarizer in a new thread; a coroutine function in an event loop of that thread.

    `signal` is set when it is `done`. A thread cannot be ended; after `abandon`, its result is ignored.
    """

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...], signal: Signal) -> None:
        self.done = False
        self._signal = signal
        self._result: Any = None
        self._error: BaseException | None = None
        context = contextvars.copy_context()
        threading.Thread(
            target=context.run, args=(self._call, function, arguments), name="redis_history-attempt", daemon=True
        ).start()

    def result(self) -> Any:
        """The function's result. Raises SummaryError for any error, also SystemExit and KeyboardInterrupt: these are
        meant for the function's thread, not for the caller."""
        if self._error is not None:
            raise summary_error(self._error)
        return self._result

    def abandon(self) -> None:
        """Ignore its result."""

    def _call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        async def awaited(awaitable: Any) -> Any:
            return await awaitable

        try:
            result = function(*arguments)
            self._result = asyncio.run(awaited(result)) if inspect.isawaitable(result) else result
        except BaseException as error:  # noqa: BLE001 -- `result` raises it
            self._error = error
        self.done = True
        self._signal.set()


class Canceller:
    """A thread cannot be cancelled."""

    def __init__(self) -> None:
        raise ConfigurationError("cancel=True is for asyncio: a thread cannot be cancelled; use run.check()")

    def cancel(self) -> None:
        """Nothing to cancel."""

    def is_own(self, error: BaseException | None) -> bool:
        """Never."""
        return False


def uninterrupted(work: Work, unfinished: set[Any]) -> None:
    """Do `work`: a thread is not cancelled."""
    work()


def completed(work: Work) -> None:
    """Do `work`: a thread is not cancelled."""
    work()


def wait_for_unfinished(unfinished: set[Any]) -> None:
    """Nothing is ever unfinished here."""


def is_cancelled() -> bool:
    """A thread is never cancelled."""
    return False


def delivers_cancellation(function: Callable[P, T]) -> Callable[P, T]:
    """The function as it is: a thread is not cancelled."""
    return function


def in_thread(function: Callable[[], T]) -> T:
    """The outcome of a function that blocks."""
    return function()


def check_callback(callback: object, name: str, *, optional: bool = True) -> None:
    """Raises ConfigurationError unless it can be called, or is None if `optional`. A coroutine function is refused,
    because nothing would await it."""
    check_function(callback, name, optional=optional)
    if is_coroutine_function(callback):
        raise ConfigurationError(
            f"{name} must be a plain function, not the coroutine function {callback!r}: a synchronous store awaits "
            "nothing; use an AsyncHistoryStore"
        )


def resolve(outcome: Any) -> Any:
    """The outcome of a callback."""
    return outcome


os.register_at_fork(after_in_child=_idle.clear)


def at_exit(work: Work) -> Callable[[], None]:
    """Run `work` when the interpreter ends, but not in a forked child. Returns a function that undoes this."""
    process = os.getpid()

    def run() -> None:
        if os.getpid() == process:
            work()

    atexit.register(run)
    return lambda: atexit.unregister(run)
