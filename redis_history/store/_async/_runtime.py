"""The differences between asyncio and threads, under the same names. The twin in _sync is written by hand."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from functools import partial
from typing import Any, Final, Self, TypeVar

from redis_history.errors import EventLoopError
from redis_history.store.lanes import EXCHANGES, Kind, take
from redis_history.values._validation import check_function, check_process

T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, None]]

Lock = asyncio.Lock
sleep = asyncio.sleep

#: Seconds to wait for exchanges whose connections are closed.
_CANCEL_SECONDS: Final = 1.0


#: Limits what is done in it to this many seconds. redis-py would limit sending and each reply, too, but before Python
#: 3.12 with a task that can lose a cancellation.
time_limit = asyncio.timeout


#: The part of a limit that begins again only when it has passed, because a new timer costs as much as some replies.
_TIMER_STEP: Final = 0.1


def begin_again(limit: asyncio.Timeout, seconds: float | None) -> None:
    """Allow about this many seconds from now on."""
    ends = limit.when()
    if seconds is None or ends is None:
        return
    now = asyncio.get_running_loop().time()
    if ends - now < seconds * (1 - _TIMER_STEP):
        limit.reschedule(now + seconds)


def socket_timeout(seconds: float | None) -> float | None:
    """The option `socket_timeout` of connections whose exchanges have a `time_limit`."""
    return None


def _running_loop() -> asyncio.AbstractEventLoop:
    """Return the running event loop. Raises EventLoopError without one, because asyncio's RuntimeError does not
    mention this package."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError as error:
        raise EventLoopError(
            "an AsyncHistoryStore needs a running event loop of asyncio or uvloop, and there is none, as under trio: "
            "there, use a HistoryStore in a thread, such as trio.to_thread.run_sync(store.get, conversation_id)"
        ) from error


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    _running_loop()
    return await asyncio.to_thread(function, *arguments)


async def drop_client(client: Any) -> None:
    """Close the connections of a client whose use was interrupted."""
    with contextlib.suppress(Exception):
        await client.connection_pool.disconnect()


class Request:
    """Commands that go out together, and the task that waits for their replies."""

    __slots__ = ("_answered", "_error", "_replies", "commands", "confirm", "has_left", "size")

    def __init__(self, commands: Sequence[Sequence[Any]], confirm: Sequence[Any] | None, size: int) -> None:
        self.commands, self.confirm, self.size = commands, confirm, size
        #: Whether the caller no longer waits for the replies.
        self.has_left = False
        self._answered: asyncio.Future[None] | None = None  # made only if another task makes the exchange
        self._replies: list[Any] = []
        self._error: Exception | None = None

    def answer(self, replies: list[Any]) -> None:
        self._replies = replies
        self._wake()

    def fail(self, error: Exception) -> None:
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(None)

    async def wait(self) -> None:
        """Wait until another task has the replies."""
        self._answered = asyncio.get_running_loop().create_future()
        try:
            await self._answered
        except BaseException:
            self.has_left = True
            raise

    def replies(self) -> list[Any]:
        """Raises the error passed to `fail`."""
        if self._error is not None:
            raise self._error
        return self._replies


class Lanes:
    """A queue of requests of one kind, and the lanes that send queued requests. `make` returns a new lane.

    A caller that finds a lane free makes its own exchange; if it is cancelled, the connection is closed. The requests
    that have queued in the meantime go out together from a separate task, so a cancelled caller leaves no reply behind
    and disturbs no other caller. `direct`: whether callers make exchanges; not with connections that have a
    `socket_timeout`, because redis-py may then lose a cancellation before Python 3.12.

    A task makes one exchange, and the callback at its end begins the next one. By then the tasks with replies have
    run, so that their next calls travel together, too. The callback runs even if all tasks of the loop are cancelled
    before this one has begun.
    """

    def __init__(self, make: Callable[[], Any], kind: Kind, *, direct: bool) -> None:
        self._make = make
        self._direct = direct
        self._kind = kind
        self._number = EXCHANGES[kind]  # lanes that may still be made
        self._free: list[Any] = []
        self._queue: deque[Request] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    async def send(self, request: Request) -> list[Any]:
        """The replies to a request, in one pipeline with others that queue at the same time."""
        if not self._free and self._number:
            self._free.append(self._make())
            self._number -= 1
        lane = self._free.pop() if self._free else None
        if lane is not None and self._direct:
            try:
                await lane.exchange([request])
            finally:
                self._go_on(lane)
        else:
            self._queue.append(request)
            if lane is not None:
                self._go_on(lane)
            await request.wait()
        return request.replies()

    def _go_on(self, lane: Any) -> None:
        """Use a lane for the queued requests."""
        while self._queue and self._queue[0].has_left:
            self._queue.popleft()
        if not self._queue:
            self._free.append(lane)
            return
        # Not by create_task, because a task factory may begin it immediately.
        task = asyncio.Task(self._exchange(lane), name="redis_history-exchange")
        self._tasks.add(task)
        task.add_done_callback(partial(self._finished, lane))

    async def _exchange(self, lane: Any) -> None:
        requests: list[Request] = []
        take(self._queue, requests, self._kind)
        if requests:
            await lane.exchange(requests)

    def _finished(self, lane: Any, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._go_on(lane)

    async def aclose(self) -> None:
        """Return when no exchange is under way, soon after their connections were closed."""
        if self._tasks:
            await asyncio.wait([*self._tasks], timeout=_CANCEL_SECONDS)


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
        loop, process = _running_loop(), os.getpid()
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
        """Cancel it if it still runs after `patience` seconds, and return when it has ended. Does nothing in a
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
    """Run `work` in the background, not before the caller goes on: the tasks of a loop may begin immediately
    (asyncio.eager_task_factory of Python 3.12), but this one bypasses the loop's factory."""
    task = asyncio.Task(work(), name=name)
    loop = task.get_loop()
    if loop not in _tasks:
        for closed in [other for other in [*_tasks] if other.is_closed()]:
            _tasks.pop(closed, None)  # another thread may have done it
        _tasks[loop] = set()
    _tasks[loop].add(task)
    task.add_done_callback(_tasks[loop].discard)
    return Job(task)


#: The tasks that run in each loop, because a loop has only weak references to them: the garbage collector would destroy
#: one that waits for a connection to be closed.
_tasks: dict[asyncio.AbstractEventLoop, set[asyncio.Task[None]]] = {}


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


#: Whether work can be cancelled.
CAN_CANCEL: Final = True


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
    loop = _running_loop()
    while tasks := [task for task in list(unfinished) if task.get_loop() is loop]:
        await asyncio.wait(tasks)


def is_cancelled() -> bool:
    """Whether this task was cancelled. Before Python 3.12, redis-py may lose the error, in asyncio.wait_for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


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
