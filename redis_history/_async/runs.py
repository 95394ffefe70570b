"""Runs: one agent at a time works on a conversation.

A run is a lease on the server. One job per store renews all its runs and keeps the places of those that wait, so its
cost does not grow with their number. The server wakes a holder that is asked to stop, and the first in the queue when a
run ends; the renewals notice both, too.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from contextvars import ContextVar
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self, Unpack

from msgspec.structs import replace

from redis_history import requests
from redis_history._async._runtime import Canceller, Job, Signal, spawn, uninterrupted
from redis_history._async.replies import AsyncReply
from redis_history._validation import check_name, check_seconds, check_text
from redis_history.errors import (
    CapabilityError,
    InvalidInputError,
    RedisHistoryError,
    RunBusyError,
    RunLostError,
    RunStopped,
    StoreClosedError,
)
from redis_history.events import Cursor, HistoryRestored, MessagesAppended, ReplyEnded, Reset
from redis_history.model import Message, Role, tool, tool_result
from redis_history.model.helpers import MessageFields
from redis_history.model.ids import check_conversation_id, new_token
from redis_history.model.pairs import open_calls
from redis_history.model.runs import POLL_SECONDS, RENEW_SECONDS, RunInfo, RunStatus
from redis_history.operations import (
    Append,
    Appended,
    EndRun,
    KeepRuns,
    LeaveRun,
    ReadChanges,
    ReadHead,
    ReadPage,
    Restore,
    RunFence,
    RunOutcome,
    TakeRun,
    rules,
)
from redis_history.operations.backend import features

_logger = logging.getLogger("redis_history")

#: How many of the newest messages are searched for tool calls that were left open.
_LOOKED_AT: Final = 500
#: Seconds until a call of the job is repeated after an error.
_WAIT_AFTER_ERROR: Final = 0.5
_MAX_WAIT: Final = 24 * 3600.0


class AsyncRun:
    """One agent's work on a conversation; made by `store.run`, and entered with `async with`.

    At most one run of a conversation is active. `append`, `append_many`, `update_message` and `stream` are those of the
    store with a fence: once the run has ended, expired or been taken over, they raise RunLostError and write nothing,
    however long this process was suspended. The run is renewed in the background. If this process dies or hangs, it
    expires within 10 seconds as "interrupted".

    At the end of the block its status is "completed", "stopped" (after a request to stop), "failed" (the block raised
    an error) or "interrupted" (it was cancelled). Unless it is completed, tool calls that the run left open get a
    result that says so, because providers reject a call without a result.
    """

    def __init__(self, store: Any, conversation_id: str, agent_name: str | None, wait: float, cancel: bool) -> None:
        self.conversation_id = conversation_id
        self.agent_name = agent_name
        self.run_id = new_token()
        self._store = store
        self._wait = wait
        self._cancel = cancel
        self._canceller: Canceller | None = None
        self._fence: RunFence | None = None
        self._entered = False
        self._ended = False
        self._lost = False
        self._stop_requested = False
        self._stop_reason: str | None = None
        self._rung = False  # the server has woken this run
        self._signal: Signal | None = None  # is set when it has the run, is asked to stop, or has lost it
        self._error: RedisHistoryError | None = None  # of waiting
        self._interrupted_since: datetime | None = None  # when the run before began, if it was interrupted
        self._cursor: Cursor | None = None  # up to which `messages` has read
        self._newest = 0  # the sequence of the newest message when the run began
        self._own: set[str] = set()  # ids of the messages that the run has written
        self._unfinished: set[Any] = set()

    @property
    def stop_requested(self) -> bool:
        """Whether somebody called `stop_run` for this run. End the block soon."""
        return self._stop_requested

    @property
    def stop_reason(self) -> str | None:
        """The reason given to `stop_run`, or None."""
        return self._stop_reason

    def check(self) -> None:
        """Raises RunStopped after a request to stop, and RunLostError if the run is known to be lost."""
        if self._stop_requested:
            reason = f": {self._stop_reason}" if self._stop_reason else ""
            raise RunStopped(f"this run was asked to stop{reason}", reason=self._stop_reason)
        if self._lost:
            raise rules.run_lost(self.conversation_id)

    async def wait_stop(self, timeout: float | None = None) -> bool:
        """Wait for a request to stop, and return whether there was one within `timeout` seconds. None: wait without a
        limit. Returns immediately once the run is lost."""
        check_seconds(timeout, "timeout", 0, optional=True)
        ends = time.monotonic() + (_MAX_WAIT if timeout is None else timeout)
        signal = self._signal_of_run()
        while not self._stop_requested and not self._lost and (left := ends - time.monotonic()) > 0:
            await signal.wait(left)
            signal.clear()
        return self._stop_requested

    async def append(self, message: Message, *, expected_revision: int | None = None) -> Appended:
        """Like `store.append`, for the holder only. Raises RunLostError."""
        return (await self.append_many([message], expected_revision=expected_revision))[0]

    async def append_many(self, messages: Iterable[Message], *, expected_revision: int | None = None) -> list[Appended]:
        """Like `store.append_many`, for the holder only. Raises RunLostError."""
        batch = requests.append(self.conversation_id, messages, expected_revision)
        if not batch.order:
            return []
        outcomes = await self._write_own(batch.op)
        return [outcomes[index] for index in batch.order]

    async def update_message(self, message: Message, *, expected_revision: int | None = None) -> Appended:
        """Like `store.update_message`, for the holder only. Raises RunLostError."""
        op = requests.update_message(self.conversation_id, message, expected_revision)
        updated = await self._write_own(op)
        if updated is None:
            raise rules.message_missing(self.conversation_id, message.id)
        return updated  # type: ignore[no-any-return]

    def stream(
        self, *, role: Role = "assistant", interval: float = 0.05, **fields: Unpack[MessageFields]
    ) -> AsyncReply:
        """Like `store.stream`, for the holder only. After a request to stop, `write` and `add` of the reply raise
        RunStopped, which ends it as "stopped" with its text. Raises RunLostError."""
        reply = self._store.stream(self.conversation_id, role=role, interval=interval, **fields)
        reply._join(self, self._fence_of_run())
        self._own.add(reply.message.id)
        return reply  # type: ignore[no-any-return]

    async def messages(self) -> list[Message]:
        """The messages that others have appended since the run began, or since the last call, in the order of their
        arrival: what a user added meanwhile, for example. A reply of others counts when it has ended."""
        self._fence_of_run()
        assert self._cursor is not None  # noqa: S101
        found: dict[str, Message] = {}
        while True:
            changes = await self._store.backend.execute(ReadChanges(self.conversation_id, self._cursor))
            for event in changes.events:
                if isinstance(event, Reset):
                    page = await self._store.backend.execute(ReadPage(self.conversation_id, _LOOKED_AT, newest=True))
                    messages = tuple(one for one in page.messages if (one.sequence or 0) > self._newest)
                elif isinstance(event, MessagesAppended | HistoryRestored):
                    messages = event.messages
                elif isinstance(event, ReplyEnded) and event.message is not None:
                    messages = (event.message,)
                else:
                    messages = ()
                for message in messages:
                    self._newest = max(self._newest, message.sequence or 0)
                    if message.id not in self._own and message.status != "streaming":
                        found[message.id] = message
                self._cursor = event.cursor
            if not changes.more:
                return list(found.values())

    # The block

    async def __aenter__(self) -> Self:
        if self._entered:
            raise RunLostError("this run was entered before; call store.run again for another one")
        if self._cancel:
            self._canceller = Canceller()
        self._entered = True
        self._signal = Signal()
        runs: AsyncRuns = self._store._runs
        await runs.take(self, self._wait)
        try:
            head = await self._store.backend.execute(ReadHead(self.conversation_id, 1))
            self._cursor = head.cursor
            self._newest = max((message.sequence or 0 for message in head.newest.messages), default=0)
            if self._interrupted_since is not None:
                await self._settle("interrupted", since=self._interrupted_since)
        except BaseException:
            await uninterrupted(self._abandon, self._unfinished)
            raise
        _runs_here.set((*_runs_here.get(), self))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _runs_here.set(tuple(run for run in _runs_here.get() if run is not self))
        status: RunStatus = "completed"
        if self._stop_requested:
            status = "stopped"
        elif error is not None:
            status = "failed" if isinstance(error, Exception) else "interrupted"

        async def end() -> None:
            await self._end(status)

        await uninterrupted(end, self._unfinished)
        if self._canceller is not None and self._canceller.is_own(error) and self._stop_requested:
            reason = f": {self._stop_reason}" if self._stop_reason else ""
            raise RunStopped(f"this run was asked to stop{reason}", reason=self._stop_reason) from error

    async def _abandon(self) -> None:
        """End a run that did not begin."""
        await self._end("interrupted")

    async def _end(self, status: RunStatus) -> None:
        self._ended = True
        runs: AsyncRuns = self._store._runs
        try:
            if not self._lost and self._interrupted_since is not None:  # its reply may have ended only now
                await self._settle("interrupted", since=self._interrupted_since)
            if status != "completed" and self._own and not self._lost:
                await self._settle(status)
            fence = self._fence
            if fence is None:
                await self._store.backend.execute(LeaveRun(self.conversation_id, (self.run_id,)))
            elif not self._lost:
                ended = await self._store.backend.execute(EndRun(self.conversation_id, fence, status))
                if status == "completed" and (stopping := _stopping(ended)) is not None:
                    # It was asked to stop, and this process did not know it yet.
                    self._stop_requested, self._stop_reason = True, stopping.stop_reason
                    await self._settle("stopped")
                    ended = await self._store.backend.execute(EndRun(self.conversation_id, fence, "stopped"))
                self._lost = not ended.done
        except RunLostError:
            self._lost = True
        except RedisHistoryError as error:
            _logger.warning("run %s could not be ended, so it expires: %s", self.run_id, error)
        finally:
            await runs.forget(self)
            self._fence = None
        if self._lost:
            _logger.info("run %s of conversation %r was lost before its end", self.run_id, self.conversation_id[:80])

    async def _settle(self, status: RunStatus, since: datetime | None = None) -> None:
        """Append results for the tool calls that this run, or an interrupted run that began at `since`, left open."""
        page = await self._store.backend.execute(ReadPage(self.conversation_id, _LOOKED_AT, newest=True))
        for message, calls in open_calls(page.messages):
            if message.status == "streaming":
                continue
            if since is None and message.id not in self._own:
                continue
            if since is not None and (
                message.timestamp is None or message.timestamp < since or message.id in self._own
            ):
                continue
            said = f"The call was {'stopped' if status == 'stopped' else 'interrupted'} before it returned."
            results = [tool_result(call.id, said, is_error=True, name=call.name) for call in calls]
            await self.append(tool(results, participant=message.participant))

    # For AsyncRuns and AsyncReply

    def _fence_of_run(self) -> RunFence:
        fence = self._fence
        if fence is None:
            raise RunLostError(
                "this run has not begun or has ended; use it inside its block: with store.run(conversation_id) as run"
            )
        return fence

    def _signal_of_run(self) -> Signal:
        self._fence_of_run()
        assert self._signal is not None  # noqa: S101
        return self._signal

    async def _write_own(self, op: Any) -> Any:
        """Write for the holder only."""
        op = requests.with_run(op, self._fence_of_run())
        if isinstance(op, Append | Restore):
            self._own.update(entry.message.id for entry in op.entries)
        return await self._write(op)

    async def _write(self, op: Any) -> Any:
        try:
            return await self._store._write(op)
        except RunLostError:
            if await self._is_kept():
                return await self._store._write(replace(op, token=new_token()))
            self._lose()
            raise

    async def _is_kept(self) -> bool:
        """After a refused write: whether this run goes on. While the server was out of reach nobody could renew it, so
        it has expired, but is still that of its holder until another one takes it."""
        outcomes: list[RunOutcome] = await self._store.backend.execute(
            KeepRuns(((self.conversation_id, self._fence_of_run()),))
        )
        return outcomes[0].done

    def _request_stop(self, reason: str | None) -> None:
        if self._stop_requested:
            return
        self._stop_requested, self._stop_reason = True, reason
        self._notify()
        if self._canceller is not None:
            self._canceller.cancel()

    def _lose(self) -> None:
        self._lost = True
        self._notify()

    def _fail(self, error: RedisHistoryError) -> None:
        self._error = error
        self._lose()

    def _notify(self) -> None:
        if self._signal is not None:
            self._signal.set()

    def _ring(self) -> None:
        """The server has woken this run. From any thread."""
        self._rung = True
        self._store._runs.wake()


class AsyncRuns:
    """The runs of a store: takes them, renews them, and keeps the places of those that wait."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._guard = threading.Lock()  # for the fields below; never held during a call
        self._held: dict[str, AsyncRun] = {}
        self._waiting: dict[str, list[AsyncRun]] = {}  # by conversation, in the order of arrival
        self._poll_at: dict[str, float] = {}
        self._renew_at = 0.0
        self._closed = False
        self._signal: Signal | None = None
        self._job: Job | None = None

    async def take(self, run: AsyncRun, wait: float) -> None:
        """Return when `run` has the run. Raises RunBusyError after `wait` seconds."""
        ends = time.monotonic() + wait
        await self._store.backend.watch_run(run.conversation_id, run.run_id, run._ring)
        try:
            outcome = await self._ask(run.conversation_id, [run], wait > 0)
            if run._fence is None and wait > 0:
                self._add_waiting(run)
                signal = run._signal
                assert signal is not None  # noqa: S101
                while run._fence is None and run._error is None and (left := ends - time.monotonic()) > 0:
                    await signal.wait(left)
                    signal.clear()
                self._remove_waiting(run)
                if run._fence is None and run._error is None:  # leave the queue, or take it if it is free now
                    outcome = await self._ask(run.conversation_id, [run], False)
            if run._error is not None:
                raise run._error
            if run._fence is None:
                raise _busy(run, outcome.run)
        except BaseException:
            self._remove_waiting(run)
            await uninterrupted(run._abandon, run._unfinished)
            raise

    async def forget(self, run: AsyncRun) -> None:
        """The run has ended, or does not wait any more."""
        with self._guard:
            self._held.pop(run.run_id, None)
        self.wake()  # the job may have nothing more to do
        await self._store.backend.unwatch_run(run.conversation_id, run.run_id, run._ring)

    def wake(self) -> None:
        """Ask the server soon about the runs that it has woken. From any thread."""
        signal = self._signal
        if signal is not None:
            signal.set()

    async def aclose(self) -> None:
        """End the job. Runs expire."""
        with self._guard:
            self._closed = True
            job, runs = (
                self._job,
                [*self._held.values(), *(one for waiting in self._waiting.values() for one in waiting)],
            )
        self.wake()
        for run in runs:
            run._fail(StoreClosedError("the store was closed"))
        if job is not None:
            await job.stop()

    def _add_waiting(self, run: AsyncRun) -> None:
        with self._guard:
            self._waiting.setdefault(run.conversation_id, []).append(run)
            self._poll_at.setdefault(run.conversation_id, time.monotonic() + POLL_SECONDS)
            self._start_job()
        if run._rung:
            self.wake()

    def _remove_waiting(self, run: AsyncRun) -> None:
        with self._guard:
            waiting = self._waiting.get(run.conversation_id, [])
            if run in waiting:
                waiting.remove(run)
            if not waiting:
                self._waiting.pop(run.conversation_id, None)
                self._poll_at.pop(run.conversation_id, None)

    def _hold(self, run: AsyncRun, outcome: RunOutcome) -> None:
        with self._guard:
            if not self._held:
                self._renew_at = time.monotonic() + RENEW_SECONDS
            self._held[run.run_id] = run
            run._fence = outcome.fence
            run._interrupted_since = outcome.interrupted_since
            self._start_job()
        if (stopping := _stopping(outcome)) is not None:
            run._request_stop(stopping.stop_reason)
        run._notify()

    def _start_job(self) -> None:
        if self._job is None or self._job.ended:
            self._signal = Signal()
            self._job = spawn(self._run, "redis_history-runs")
        self.wake()

    async def _ask(self, conversation_id: str, runs: list[AsyncRun], wait: bool) -> RunOutcome:
        """Ask for the run on behalf of these callers."""
        callers = tuple((run.run_id, run.agent_name) for run in runs)
        outcome: RunOutcome = await self._store.backend.execute(TakeRun(conversation_id, callers, wait))
        fence = outcome.fence
        for run in runs:
            taken = fence is not None and run.run_id == fence.run_id
            if taken and not run._ended:
                self._hold(run, outcome)
            elif taken and fence is not None:  # its caller stopped waiting while this call was under way
                await self._store.backend.execute(EndRun(conversation_id, fence, "interrupted"))
            elif run._ended:
                await self._store.backend.execute(LeaveRun(conversation_id, (run.run_id,)))
            elif run.run_id == outcome.lost:
                run._fail(rules.run_lost(conversation_id))
        return outcome

    # The job

    async def _run(self) -> None:
        signal = self._signal
        assert signal is not None  # noqa: S101
        while True:
            signal.clear()
            now = time.monotonic()
            with self._guard:
                if self._closed or not (self._held or self._waiting):
                    self._job = None
                    return
                due = now >= self._renew_at
                held = [run for run in self._held.values() if due or run._rung]
                asking = {
                    name: [*runs]
                    for name, runs in self._waiting.items()
                    if now >= self._poll_at[name] or any(run._rung for run in runs)
                }
            try:
                if held:
                    if due:
                        self._renew_at = now + RENEW_SECONDS
                    await self._renew(held)
                for name, runs in asking.items():
                    await self._poll(name, runs)
            except StoreClosedError:
                return
            except RedisHistoryError as error:
                _logger.warning("runs could not be renewed, and will be again: %s", error)
                await signal.wait(_WAIT_AFTER_ERROR)
                continue
            with self._guard:
                waits = [*self._poll_at.values(), *([self._renew_at] if self._held else [])]
            await signal.wait(max(0.0, min(waits, default=0.0) - time.monotonic()))

    async def _renew(self, runs: list[AsyncRun]) -> None:
        for run in runs:
            run._rung = False
        held = [(run, run._fence) for run in runs]
        op = KeepRuns(tuple((run.conversation_id, fence) for run, fence in held if fence is not None))
        outcomes = await self._store.backend.execute(op)
        for (run, _), outcome in zip([one for one in held if one[1] is not None], outcomes, strict=True):
            if not outcome.done:
                run._lose()
            elif (stopping := _stopping(outcome)) is not None:
                run._request_stop(stopping.stop_reason)

    async def _poll(self, conversation_id: str, runs: list[AsyncRun]) -> None:
        for run in runs:
            run._rung = False
        outcome = await self._ask(conversation_id, runs, True)
        wait = POLL_SECONDS
        if outcome.expires is not None:  # look when the run of a dead holder expires
            wait = min(wait, outcome.expires + 0.05)
        with self._guard:
            waiting = self._waiting.get(conversation_id, [])
            for run in runs:
                if run in waiting and (run._fence is not None or run._error is not None):
                    waiting.remove(run)
            if waiting:
                self._poll_at[conversation_id] = time.monotonic() + wait
            else:
                self._waiting.pop(conversation_id, None)
                self._poll_at.pop(conversation_id, None)


def _stopping(outcome: RunOutcome) -> RunInfo | None:
    """The run, if it was asked to stop."""
    return outcome.run if outcome.run is not None and outcome.run.status == "stopping" else None


def _busy(run: AsyncRun, holder: RunInfo | None) -> RunBusyError:
    who = f"another run of conversation {run.conversation_id[:80]!r} is active"
    if holder is None or not holder.is_active:
        who, holder = f"others wait for a run of conversation {run.conversation_id[:80]!r}", None
    elif holder.agent_name is not None:
        who += f", of agent {holder.agent_name[:80]!r}"
    since = "" if holder is None else f" since {holder.started_at:%H:%M:%S} UTC"
    return RunBusyError(f"{who}{since}; wait longer with wait=, or stop it with store.stop_run", holder=holder)


#: The runs whose block this task or thread is in.
_runs_here: ContextVar[tuple[AsyncRun, ...]] = ContextVar("redis_history_runs", default=())


def run_here(store: Any, conversation_id: str) -> AsyncRun:
    """The run of a conversation whose block the caller is in. Raises RunLostError."""
    for run in _runs_here.get():
        if run.conversation_id == conversation_id and run._store.backend is store.backend:
            return run
    raise RunLostError(
        f"this exclusive store writes to conversation {conversation_id[:80]!r} only in the block of a run: "
        "with store.run(conversation_id)"
    )


def check_can_run(store: Any) -> None:
    """Raises CapabilityError if the store's backend has no runs."""
    if not features(store.backend).runs:
        raise CapabilityError("this backend has no runs: see Features in redis_history.operations.backend")


def make_run(store: Any, conversation_id: str, agent_name: str | None, wait: float, cancel: bool) -> AsyncRun:
    """A run that has not begun yet. Raises InvalidInputError, ConfigurationError or CapabilityError."""
    check_conversation_id(conversation_id)
    check_text(agent_name, "agent_name", optional=True, error=InvalidInputError)
    check_name(agent_name, "agent_name")
    check_seconds(wait, "wait", 0, most=_MAX_WAIT)
    check_can_run(store)
    return AsyncRun(store, conversation_id, agent_name, wait, cancel)
