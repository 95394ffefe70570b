"""The differences between threads and asyncio, under the same names. The twin in _async is written by hand."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from redis_history.errors import ConfigurationError
from redis_history.store.lanes import EXCHANGES, Kind, take
from redis_history.values._validation import check_function, check_process, is_coroutine_function

T = TypeVar("T")
Work = Callable[[], None]

Lock = threading.Lock
sleep = time.sleep

#: Seconds after which a new subscription is sent to the server, and a store is closed, at the latest.
_SHORT_WAIT: Final = 0.05


_UNLIMITED: Final = contextlib.nullcontext()


def time_limit(seconds: float | None) -> contextlib.AbstractContextManager[None]:
    """Limits nothing: the socket has a timeout."""
    return _UNLIMITED


def begin_again(limit: None, seconds: float | None) -> None:
    """Nothing is limited."""


def socket_timeout(seconds: float | None) -> float | None:
    """The option `socket_timeout` of connections."""
    return seconds


def drop_client(client: Any) -> None:
    """Do nothing: the client may hold a lock that was never released. Its sockets are closed with it."""


class Request:
    """Commands that go out together, and the thread that waits for their replies."""

    __slots__ = ("_error", "_gate", "_replies", "commands", "confirm", "done", "has_left", "size")

    def __init__(self, commands: Sequence[Sequence[Any]], confirm: Sequence[Any] | None, size: int) -> None:
        self.commands, self.confirm, self.size = commands, confirm, size
        self.done = False
        #: Whether nobody waits for the replies.
        self.has_left = False
        self._gate: threading.Lock | None = None  # made only if the thread waits for another one
        self._replies: list[Any] = []
        self._error: Exception | None = None

    def answer(self, replies: list[Any]) -> None:
        self._replies = replies
        self.done = True
        self.wake()

    def fail(self, error: Exception) -> None:
        self._error = error
        self.done = True
        self.wake()

    def replies(self) -> list[Any]:
        """Raises what `fail` was called with."""
        if self._error is not None:
            raise self._error
        return self._replies

    def wake(self) -> None:
        """End the wait of its thread: it is done, or the thread is to send what has queued."""
        gate = self._gate
        if gate is not None:
            with contextlib.suppress(RuntimeError):  # it is awake already
                gate.release()

    def listen(self) -> bool:
        """From now on, `wake` is not missed. Returns whether that is new."""
        if self._gate is not None:
            return False
        gate = threading.Lock()
        gate.acquire()
        self._gate = gate
        return True

    def wait(self, seconds: float) -> None:
        """Wait until `wake`, or so many seconds. After `listen`."""
        assert self._gate is not None  # noqa: S101
        if not self.done:
            self._gate.acquire(timeout=seconds)


class _Held:
    """A lane, made when it is first used, and the lock and the request of the thread that uses it."""

    __slots__ = ("lane", "leader", "lock")

    def __init__(self) -> None:
        self.lane: Any = None
        self.leader: Request | None = None
        #: Reentrant, because only such a lock tells whether it is of this thread.
        self.lock = threading.RLock()


#: Seconds after which a waiting thread looks for a free lane itself: two interrupts in a row can lose a wake-up.
_LANE_WAIT: Final = 1.0


class Lanes:
    """A queue of requests of one kind, and the lanes that send what has queued. `make`: returns a new lane.

    The thread that finds a lane free sends all that has queued, until its own request is done, and then wakes the
    thread of the next request to do so. KeyboardInterrupt, or the exception of a signal's handler, can come between any
    two steps. A thread that is interrupted while it sends for others fails none of them: they repeat their calls.
    """

    def __init__(self, make: Callable[[], Any], kind: Kind, *, direct: bool) -> None:
        self._make = make
        self._kind = kind
        self._held = [_Held() for _ in range(EXCHANGES[kind])]
        self._queue: deque[Request] = deque()

    def send(self, request: Request) -> list[Any]:
        """The replies to a request, in one pipeline with others that queue at the same time."""
        taken: list[Request] = []
        try:
            self._queue.append(request)
            while not request.done:
                held = self._free_lane()
                # After `listen`, it looks once more, because a lane may just have become free.
                if (held is None or not self._exchange(held, request, taken)) and not request.listen():
                    request.wait(_LANE_WAIT)
        except BaseException:
            request.has_left = True
            self._leave(request, taken)
            raise
        return request.replies()

    def _free_lane(self) -> _Held | None:
        """A lane whose lock this thread has now."""
        nested = False
        for held in self._held:
            if held.lock.acquire(blocking=False):
                if held.leader is None:
                    return held
                held.lock.release()
                nested = True
        if not nested:
            return None
        # This is the handler of a signal, in the middle of an exchange of its own thread, which cannot wait for itself.
        held = _Held()
        held.lock.acquire()
        self._held.append(held)
        return held

    def _exchange(self, held: _Held, request: Request, taken: list[Request]) -> bool:
        """Send what has queued. Returns whether there was anything."""
        held.leader = request
        taken.clear()
        take(self._queue, taken, self._kind)
        if taken:
            if held.lane is None:
                held.lane = self._make()
            held.lane.exchange(taken)
        held.leader = None
        held.lock.release()
        # Only now: a thread that found this lane taken is in the queue, and a later one finds it free.
        self._wake_next()
        return bool(taken)

    def _leave(self, request: Request, taken: list[Request]) -> None:
        """The thread of a request was interrupted, perhaps while it sent others."""
        for one in taken:
            if not one.done:
                one.fail(ConnectionError("the thread that sent this call for another one was interrupted"))
            one.wake()
        for held in self._held:
            if held.leader is request:
                held.leader = None
            if held.leader is None:
                with contextlib.suppress(RuntimeError):  # it is free, or of another thread
                    held.lock.release()
        self._wake_next()

    def _wake_next(self) -> None:
        for request in self._queue.copy():
            if not request.has_left:
                request.wake()
                break

    def close(self) -> None:
        """Nothing to wait for: threads end with errors, because their connections are closed."""


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


#: Whether work can be cancelled.
CAN_CANCEL: Final = False


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
