"""Records the turns of an agent. Nothing that goes wrong here reaches the agent."""

from __future__ import annotations

import inspect
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Protocol

from redis_history._async._runtime import (
    Job,
    Lock,
    Signal,
    finish,
    place,
    reset_after_fork,
    settle,
    sleep,
    spawn,
    uninterrupted,
)
from redis_history.capturing.mapping import answering
from redis_history.capturing.settings import Settings
from redis_history.capturing.wrapping import AsyncWrapping
from redis_history.errors import BackendUnavailableError, RedisHistoryError, StoreClosedError
from redis_history.model import Message

__all__ = ["AsyncAppends", "AsyncCapture", "AsyncTurn"]

_logger = logging.getLogger("redis_history")

#: Seconds between two tries of the background, beside those that the store itself waits.
_PAUSE = 0.1


class AsyncAppends(Protocol):
    """What a capture needs of a store."""

    async def append(self, conversation_id: str, message: Message) -> Any: ...

    async def append_many(self, conversation_id: str, messages: Sequence[Message]) -> Any: ...


class _Line:
    """Who waits to write to one conversation."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.waiting = 0


class AsyncCapture(AsyncWrapping):
    """What `capture` gives: a decorator for agents, and a context manager that is closed at its end.

    `recorded` and `failed` count messages; `last_error` is why the last one failed. All its methods may be called from
    many at once; messages of one conversation are written in the order in which they came.
    """

    def __init__(self, store: AsyncAppends, settings: Settings) -> None:
        self.recorded = 0
        self.failed = 0
        self.last_error: Exception | None = None
        self._store = store
        self._settings = settings
        self._mutex = threading.Lock()
        self._lines: dict[tuple[int, str], _Line] = {}
        self._unfinished: set[Any] = set()
        self._queue: deque[tuple[str, list[Message]]] = deque()
        self._pending = 0
        self._ring: Signal | None = None
        self._empty: Signal | None = None
        self._worker: Job | None = None
        self._closed = False
        reset_after_fork(self)

    @property
    def pending(self) -> int:
        """Messages that wait to be recorded in the background."""
        return self._pending

    def turn(self, message: Any = None, *, conversation_id: str | None = None) -> AsyncTurn:
        """One turn, to use with `with`: entering it records `message`. `conversation_id` is that of this turn, if it is
        not fixed for the whole capture. What cannot be read as a message is reported, not raised."""
        try:
            found, inbound = self._settings.read_turn(message, conversation_id)
        except Exception as error:  # noqa: BLE001 -- of the caller's functions, too; it is reported
            return AsyncTurn(self, None, [], error)
        return AsyncTurn(self, found, inbound, None)

    def _turn_of(self, signature: inspect.Signature | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AsyncTurn:
        """The turn that is a call of an agent with these arguments."""
        try:
            conversation_id, inbound = self._settings.read_call(signature, args, kwargs)
        except Exception as error:  # noqa: BLE001 -- of the caller's functions, too; it is reported
            return AsyncTurn(self, None, [], error)
        return AsyncTurn(self, conversation_id, inbound, None)

    async def _record(self, conversation_id: str, messages: list[Message]) -> None:
        """Write messages as one change, after all that came before for this conversation. Raises nothing."""
        if not messages:
            return
        try:
            if self._settings.background:
                await self._enqueue(conversation_id, messages)
            else:
                await uninterrupted(lambda: self._in_line(conversation_id, messages), self._unfinished)
        except Exception as error:  # noqa: BLE001 -- such as a system that gives no more threads
            await self._report(error, conversation_id, messages)

    async def _report(self, error: Exception, conversation_id: str | None, messages: list[Message]) -> None:
        """Count, keep and tell what was not recorded."""
        with self._mutex:
            self.failed += max(len(messages), 1)
            self.last_error = error
        on_error = self._settings.on_error
        if on_error is None:
            where = "" if conversation_id is None else f" of conversation {conversation_id[:80]!r}"
            # An outage fails many appends, all in the same way: there the text says all.
            trace = None if isinstance(error, RedisHistoryError) else error
            _logger.warning("a turn%s is not recorded: %s", where, error, exc_info=trace)
            return
        try:
            await finish(on_error(error, conversation_id, messages))
        except Exception:
            _logger.exception("the on_error of a capture failed")

    async def flush(self) -> None:
        """Return when all that came before is recorded, or reported."""
        await settle(self._unfinished)
        while self._pending and self._empty is not None:
            await self._empty.wait(_PAUSE)

    async def aclose(self) -> None:
        """Record what is pending, and end. If the backend is away, what is pending is reported instead. The store stays
        open."""
        await settle(self._unfinished)
        self._closed = True
        worker, self._worker = self._worker, None
        if worker is not None and self._ring is not None:
            self._ring.set()
            while self._pending and self._empty is not None:
                await self._empty.wait(_PAUSE)
            await worker.stop()

    async def __aenter__(self) -> AsyncCapture:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def forget(self) -> None:
        """In a forked child: what is pending is the parent's to write."""
        self._mutex = threading.Lock()
        self._lines = {}
        self._queue.clear()
        self._pending = 0
        self._ring = self._empty = self._worker = None

    async def _in_line(self, conversation_id: str, messages: list[Message]) -> None:
        where = (place(), conversation_id)  # a lock is of one event loop
        with self._mutex:
            line = self._lines.setdefault(where, _Line())
            line.waiting += 1
        try:
            async with line.lock:
                error = await self._append(conversation_id, messages)
        finally:
            with self._mutex:
                line.waiting -= 1
                if not line.waiting:
                    self._lines.pop(where, None)
        if error is not None:
            await self._report(error, conversation_id, messages)

    async def _append(self, conversation_id: str, messages: list[Message]) -> Exception | None:
        try:
            if len(messages) == 1:
                await self._store.append(conversation_id, messages[0])
            else:
                await self._store.append_many(conversation_id, messages)
        except Exception as error:  # noqa: BLE001 -- whatever a store raises must not reach the agent
            return error
        with self._mutex:
            self.recorded += len(messages)
        return None

    async def _enqueue(self, conversation_id: str, messages: list[Message]) -> None:
        error: Exception | None = None
        with self._mutex:
            if self._closed:
                error = StoreClosedError("the capture was closed")
            elif self._pending + len(messages) > self._settings.max_pending:
                error = BackendUnavailableError(
                    f"{self._pending:,} messages wait already to be recorded, which is all that max_pending allows"
                )
            else:
                self._pending += len(messages)
                self._queue.append((conversation_id, messages))
                if self._worker is None:
                    self._ring, self._empty = Signal(), Signal()
                    self._worker = spawn(self._work, "redis_history-capture")
                if self._ring is not None and self._empty is not None:
                    self._empty.clear()
                    self._ring.set()
        if error is not None:
            await self._report(error, conversation_id, messages)

    async def _work(self) -> None:
        ring, empty = self._ring, self._empty
        while ring is not None and empty is not None:
            if not self._queue:
                empty.set()
                if self._closed:
                    return
                await ring.wait(60)
                ring.clear()
                continue
            empty.clear()
            conversation_id, messages = self._queue[0]
            error = await self._append(conversation_id, messages)
            if isinstance(error, BackendUnavailableError) and not self._closed:
                await sleep(_PAUSE)  # then the same messages, with the same ids
                continue
            await self._done(error)

    async def _done(self, error: Exception | None) -> None:
        """The first of the queue is recorded, or given up; when closing, all others with it if the backend is away."""
        given_up = len(self._queue) if self._closed and isinstance(error, BackendUnavailableError) else 1
        for _ in range(given_up):
            conversation_id, messages = self._queue.popleft()
            if error is not None:
                await self._report(error, conversation_id, messages)
            with self._mutex:
                self._pending -= len(messages)


class AsyncTurn:
    """One call of an agent: what it was given is recorded on entering, what it gives back by `reply`; what it streams,
    collected by `add`, on leaving, marked as incomplete if an error leaves."""

    def __init__(
        self, capture: AsyncCapture, conversation_id: str | None, inbound: list[Message], error: Exception | None
    ) -> None:
        self.conversation_id = conversation_id
        self.inbound = inbound
        self._capture = capture
        self._error = error
        self._chunks: list[Any] = []

    async def reply(self, result: Any) -> None:
        """Record what the agent gives back."""
        await self._answer(lambda settings: settings.read_result(result), incomplete=False)

    def add(self, chunk: Any) -> None:
        """A piece of what the agent streams."""
        self._chunks.append(chunk)

    async def __aenter__(self) -> AsyncTurn:
        if self._error is not None:
            await self._capture._report(self._error, None, [])
        elif self.conversation_id is not None:
            await self._capture._record(self.conversation_id, self.inbound)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._chunks:
            chunks, self._chunks = self._chunks, []
            await self._answer(lambda settings: settings.read_chunks(chunks), incomplete=error is not None)

    async def _answer(self, read: Callable[[Settings], list[Message]], *, incomplete: bool) -> None:
        if self.conversation_id is None:
            return
        capture = self._capture
        settings = capture._settings
        try:
            inbound = self.inbound[-1] if self.inbound else None
            messages = answering(read(settings), inbound, settings.agent, incomplete=incomplete)
        except Exception as error:  # noqa: BLE001 -- of the caller's functions, too; it is reported
            await capture._report(error, self.conversation_id, [])
            return
        await capture._record(self.conversation_id, messages)
