# Generated from ../_async by scripts/unasync: do not edit.
"""Runs: one agent at a time works on a conversation. A run is a lease on the server, which `run_keeper` renews."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, Unpack

from msgspec.structs import replace

from redis_history.errors import (
    BackendRefusedError,
    BudgetExceededError,
    DurabilityError,
    InvalidInputError,
    OutcomeUnknownError,
    RedisHistoryError,
    RunLostError,
    RunStopped,
)
from redis_history.store import operations as ops
from redis_history.store import refusals
from redis_history.store._sync._runtime import CAN_CANCEL, Canceller, Signal, uninterrupted, wait_for_unfinished
from redis_history.store._sync.replies import Reply
from redis_history.store._sync.run_messages import RunMessages
from redis_history.store.operations.usage import EndBudget, renewal_seconds, reserve
from redis_history.values import Message, Role, tool, tool_result
from redis_history.values._validation import check_name, check_process, check_seconds, check_text
from redis_history.values.helpers import MessageFields
from redis_history.values.ids import check_conversation_id, new_token
from redis_history.values.parts import ToolUsePart
from redis_history.values.runs import RunStatus
from redis_history.values.turns import Turn
from redis_history.values.usage import is_used_up

_logger = logging.getLogger("redis_history")

_MAX_WAIT: Final = 24 * 3600.0


class Run:
    """One agent's work on a conversation; made by `store.run`, and entered with `with`.

    At most one run of a conversation is active. `append`, `append_many`, `update_message` and `stream` are the store's
    methods with a fence: once the run has ended, expired or been taken over, they raise RunLostError and write
    nothing, however long this process was suspended. The run is renewed in the background. If this process dies or
    hangs, it expires within 10 seconds as "interrupted".

    At the end of the block its status is "completed", "stopped" (after a request to stop), "failed" (the block raised
    an error) or "interrupted" (it was cancelled). Unless it is completed, tool calls that the run left open get a
    result that reports the interruption, because providers reject a call without a result.
    """

    def __init__(self, store: Any, conversation_id: str, agent_name: str | None, wait: float, cancel: bool) -> None:
        """Raises InvalidInputError or ConfigurationError."""
        check_conversation_id(conversation_id)
        check_text(agent_name, "agent_name", optional=True, error=InvalidInputError)
        check_name(agent_name, "agent_name")
        check_seconds(wait, "wait", 0, most=_MAX_WAIT)
        self.conversation_id = conversation_id
        self.agent_name = agent_name
        self.run_id = new_token()
        self._store = store
        self._wait = wait
        self._cancel = cancel
        self._canceller: Canceller | None = None
        self._keeper: Any = None
        self._fence: ops.RunFence | None = None
        self._entered = False
        self._ended = False
        self._lost = False
        self._process = os.getpid()
        self._renewed_at = 0.0
        self._stop_requested = False
        self._stop_reason: str | None = None
        self._rung = False  # the server has woken this run
        self._signal: Signal | None = None  # set when it has, must stop or has lost the run
        self._error: RedisHistoryError | None = None  # of waiting
        self._unsettled_from: int | None = None  # the first sequence of the interrupted runs right before
        self._first = 0  # the first sequence that its messages may have
        self._messages = RunMessages(store.backend, conversation_id)
        self._unfinished: set[Any] = store._unfinished
        self._ends_of_replies: set[Any] = set()  # that are unfinished
        self._replies: list[Reply] = []  # that may not have ended
        self._budget_of: int | str | None = None  # the owner with a reservation for this run
        self._renew_budget_at = 0.0
        self._taken: ops.RunOutcome | None = None  # of a worker that took the run with a turn
        self._turn: Turn | None = None
        self._suspended = False
        self._postponed = False  # the turn, because the run could not begin
        self._given_back = False  # the turn, by a worker that ends
        self._error_name: str | None = None
        self._revision = 0  # the newest that a write of this run got

    @classmethod
    def of_turn(cls, store: Any, conversation_id: str, run_id: str, taken: ops.RunOutcome) -> Self:
        """The run that a worker has taken with a turn."""
        run = cls(store, conversation_id, taken.turn.turn.agent_name if taken.turn else None, 0.0, CAN_CANCEL)
        run.run_id, run._taken = run_id, taken
        return run

    @property
    def turn(self) -> Turn | None:
        """The turn that this run answers, if a worker began it: `turn.messages`, `turn.attempt`, `turn.interrupted`."""
        return self._turn

    def suspend_turn(self) -> None:
        """Leave the turn waiting when this run ends without an error, because a person has to decide something first.
        `store.retry_turn`, or a further question, makes it owed again."""
        self._fence_of_run()
        self._suspended = True

    @property
    def stop_requested(self) -> bool:
        """Whether `stop_run` was called for this run. If so, end the block soon."""
        return self._stop_requested

    @property
    def stop_reason(self) -> str | None:
        """The reason given to `stop_run`, or None."""
        return self._stop_reason

    def check(self) -> None:
        """Raises RunStopped after a request to stop, and RunLostError if the run is known to be lost."""
        if self._stop_requested:
            raise self._stopped()
        if self._lost:
            raise refusals.run_lost(self.conversation_id)

    def wait_stop(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds for a request to stop, and return whether it came. None: wait without a limit.
        Returns immediately once the run is lost."""
        check_seconds(timeout, "timeout", 0, optional=True)
        ends = time.monotonic() + (_MAX_WAIT if timeout is None else timeout)
        signal = self._signal_of_run()
        while not self._stop_requested and not self._lost and (left := ends - time.monotonic()) > 0:
            signal.wait(left)
            signal.clear()
        if self._stop_requested or self._lost:
            signal.set()  # for other threads that wait
        return self._stop_requested

    def append(self, message: Message, *, expected_revision: int | None = None) -> ops.Appended:
        """Like `store.append`, for the holder only. Raises RunLostError."""
        return (self.append_many([message], expected_revision=expected_revision))[0]

    def append_many(self, messages: Iterable[Message], *, expected_revision: int | None = None) -> list[ops.Appended]:
        """Like `store.append_many`, for the holder only. Raises RunLostError."""
        batch = ops.Append.batch(self.conversation_id, messages, ops.Precondition.of(expected_revision))
        if not batch.order:
            return []
        outcomes = self._write_own(batch.op)
        return [outcomes[index] for index in batch.order]

    def update_message(self, message: Message, *, expected_revision: int | None = None) -> ops.Appended:
        """Like `store.update_message`, for the holder only. Raises RunLostError."""
        op = ops.UpdateMessage.of(self.conversation_id, message, expected_revision)
        updated = self._write_own(op)
        if updated is None:
            raise refusals.message_missing(self.conversation_id, message.id)
        return updated  # type: ignore[no-any-return]

    def stream(self, *, role: Role = "assistant", interval: float = 0.05, **fields: Unpack[MessageFields]) -> Reply:
        """Like `store.stream`, for the holder only. After a request to stop, `write` and `add` of the reply raise
        RunStopped, which ends it as "stopped" with its text. Raises RunLostError."""
        reply = self._store.stream(self.conversation_id, role=role, interval=interval, **fields)
        reply._join(self, self._fence_of_run())
        self._replies = [*(one for one in self._replies if one._message is None), reply]
        return reply  # type: ignore[no-any-return]

    def messages(self) -> list[Message]:
        """The messages that others have appended since the run began, or since the last call, in the order of their
        arrival, such as messages that a user has added in the meantime. Each is returned exactly once, even if the
        change log has lost it. A streaming reply of others counts when it has ended. After a `restore` by others, the
        messages count that are later than those at the beginning and were not returned before."""
        self._fence_of_run()
        return self._messages.of_others()

    # The block

    def __enter__(self) -> Self:
        if self._entered:
            raise RunLostError("this run was entered before; call store.run again for another one")
        if self._cancel:
            self._canceller = Canceller()
        self._entered = True
        self._signal = Signal()
        try:
            self._begin()
        except BaseException as error:
            if self._is_own_cancellation(error):
                raise self._stopped() from error
            raise
        _runs_here.set((*_runs_here.get(), self))
        return self

    def _begin(self) -> None:
        if self._taken is None:
            # While this one waits, other runs may use up the budget.
            must_reserve = self._take() and self._budget_of is not None
        else:
            self._store._runs.hold(self, self._taken)
            must_reserve = True
        try:
            if must_reserve:
                self._reserve()
            self._messages.begin(0 if self._taken is None else self._first)
            self._settle_former()
            if self._taken is not None and self._taken.turn is not None:
                self._turn = self._read_turn(*self._taken.turn)
        except BaseException as error:
            uninterrupted(partial(self._abandon, error), self._unfinished)
            raise

    def _take(self) -> bool:
        """Wait for the run. Returns whether it had to wait."""
        self._reserve()
        try:
            waited: bool = self._store._runs.take(self, self._wait)
        except BaseException:
            uninterrupted(self._unreserve, self._unfinished)
            raise
        return waited

    def _reserve(self) -> None:
        """Reserve a part of the owner's budget. Raises BudgetExceededError."""
        self._renew_budget_at = time.monotonic() + renewal_seconds()
        self._budget_of = self._store.execute(reserve(self.conversation_id, self.run_id))
        if self._keeper is not None:
            self._keeper.wake()  # it renews the reservation, too

    def _unreserve(self) -> None:
        owner, self._budget_of = self._budget_of, None
        if owner is not None:
            with suppress(RedisHistoryError):  # it expires
                self._store.backend.execute(EndBudget(owner, self.run_id))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _runs_here.set(tuple(run for run in _runs_here.get() if run is not self))
        status: RunStatus = "completed"
        if self._stop_requested:
            status = "stopped"
        elif error is not None:
            status = "failed" if isinstance(error, Exception) else "interrupted"
        stopped = self._is_own_cancellation(error)
        self._error_name = None if kind is None else kind.__name__

        def end() -> None:
            self._end(status)

        uninterrupted(end, self._unfinished)
        if stopped:
            raise self._stopped() from error

    def _is_own_cancellation(self, error: BaseException | None) -> bool:
        """At the end of the block: whether this error is the cancellation by a request to stop. From now on, such
        requests do not cancel the task."""
        canceller, self._canceller = self._canceller, None
        return canceller is not None and canceller.is_own(error)

    def _stopped(self) -> RunStopped:
        reason = f": {self._stop_reason}" if self._stop_reason else ""
        return RunStopped(f"this run was asked to stop{reason}", reason=self._stop_reason)

    def _abandon(self, error: BaseException | None = None) -> None:
        """End a run that did not begin. If the budget is used up, the attempt at its turn has failed. After another
        error it is due a little later, because it would fail again now. If an interrupt, it is due now."""
        status: RunStatus = "stopped" if self._stop_requested else "interrupted"
        if isinstance(error, BudgetExceededError) and not self._stop_requested:
            status, self._error_name, self._postponed = "failed", type(error).__name__, not is_used_up(error.budget)
        else:
            self._postponed = isinstance(error, Exception)
        self._end(status)

    def _end(self, status: RunStatus) -> None:
        self._ended = True
        try:
            wait_for_unfinished(self._ends_of_replies)
            for reply in self._replies if not self._lost else ():  # of threads and tasks that go on
                reply.close()
            if not self._lost:
                self._settle_former()  # its reply may have ended only now
            if status != "completed" and not self._lost:
                self._settle_own(status)
            fence = self._fence
            if fence is None:  # a request for the run may still be under way, or have succeeded
                self._store.backend.execute(ops.LeaveRun(self.conversation_id, (self.run_id,)))
            elif not self._lost:
                op = ops.EndRun(self.conversation_id, fence, status, turn=self._end_of_turn(status))
                ended = self._store.backend.execute(op)
                if status == "completed" and self._is_stopping(ended):  # this process did not know it yet
                    self._settle_own("stopped")
                    op = replace(op, status="stopped", turn=self._end_of_turn("stopped"))
                    ended = self._store.backend.execute(op)
                self._lost = not ended.done
        except RunLostError:
            self._lost = True
        except RedisHistoryError as error:
            if self._fence is not None or not isinstance(error, BackendRefusedError):  # else it has not begun
                _logger.warning("run %s could not be ended, so it expires: %s", self.run_id, error)
        finally:
            self._unreserve()
            self._keeper.forget(self)
            self._fence = None
        if self._lost:
            _logger.info("run %s of conversation %r was lost before its end", self.run_id, self.conversation_id[:80])

    def _end_of_turn(self, status: RunStatus) -> ops.TurnEnd | None:
        """How the turn that this run answers ends."""
        if self._taken is None:
            return None
        if status == "completed" and self._suspended:
            return ops.TurnEnd("wait", agent_name=self.agent_name)
        if status in ("completed", "stopped"):
            return ops.TurnEnd("done", self._messages.taken_up, self.agent_name, self._revision)
        if self._postponed:
            return ops.TurnEnd("later", agent_name=self.agent_name)
        # What is no Exception fails, too, such as SystemExit: the same answer would raise it again and again.
        how = "back" if self._given_back or self._error_name is None else self._error_name
        return ops.TurnEnd(how, agent_name=self.agent_name)

    def _read_turn(self, turn: Turn, since: int) -> Turn:
        """The turn with the messages that asked, and the partial reply of the attempt before."""
        found = self._store.backend.execute(
            ops.ReadTogether(tuple(ops.FindMessage(self.conversation_id, one) for one in turn.message_ids))
        )
        messages = tuple(message for message in found if message is not None)
        interrupted = self._messages.interrupted_since(since, self._first) if turn.attempt > 1 else None
        return replace(turn, messages=messages, interrupted=interrupted)

    def _settle_own(self, status: RunStatus) -> None:
        self._settle(self._messages.own_open_calls(), "stopped" if status == "stopped" else "interrupted")

    def _settle_former(self) -> None:
        """Settle the calls of the interrupted runs right before."""
        if self._unsettled_from is not None:
            calls = self._messages.open_calls_between(self._unsettled_from, self._first)
            self._settle(calls, "interrupted")

    def _settle(self, found: list[tuple[Message, list[ToolUsePart]]], how: str) -> None:
        """Append results for open calls."""
        for message, calls in found:
            said = f"The call was {how} before it returned."
            results = [tool_result(call.id, said, is_error=True, name=call.name) for call in calls]
            self.append(tool(results, participant=message.participant))

    # For RunKeeper and Reply

    def _fence_of_run(self) -> ops.RunFence:
        fence = self._fence
        if fence is None:
            raise RunLostError(
                "this run has not begun or has ended; use it inside its block: with store.run(conversation_id) as run"
            )
        check_process(self._process)  # in a forked child nothing renews it, or hears of a stop
        return fence

    def _signal_of_run(self) -> Signal:
        self._fence_of_run()
        assert self._signal is not None  # noqa: S101
        return self._signal

    def _write_own(self, op: Any) -> Any:
        """Write for the holder only."""
        op = op.for_run(self._fence_of_run())
        if isinstance(op, ops.UpdateMessage):
            self._messages.note_calls(op.entry.message)
        if not isinstance(op, ops.Append | ops.Restore):
            return self._write(op)
        return self._add(op, self._write)

    def _add(self, op: Any, write: Any) -> Any:
        """Write messages, and remember that they are those of this run."""
        self._messages.trying(op.entries)
        try:
            outcome = write(op)
        except (OutcomeUnknownError, DurabilityError):
            raise  # they may be stored
        except RedisHistoryError:
            self._messages.refused(op.entries)
            raise
        self._messages.stored(outcome if isinstance(op, ops.Append) else op.entries)
        return outcome

    def _write(self, op: Any) -> Any:
        try:
            outcome = self._store._write(op)
        except RunLostError:
            if not self._is_kept():
                self._lose()
                raise
            outcome = self._store._write(replace(op, token=new_token()))
        self._note_revision(outcome)
        return outcome

    def _note_revision(self, outcome: Any) -> None:
        for one in outcome if isinstance(outcome, list) else [outcome]:
            if isinstance(one, ops.Appended):
                self._revision = max(self._revision, one.revision)

    def _is_kept(self) -> bool:
        """After a refused write: whether this run goes on. A run that could not be renewed while the server was away
        has expired, but still belongs to its holder until another caller finds the holder dead."""
        kept = ((self.conversation_id, self._fence_of_run()),)
        op = ops.KeepRuns(kept, in_time=self._keeper.is_in_time(self))
        outcomes: list[ops.RunOutcome] = self._store.backend.execute(op)
        return outcomes[0].done

    def _is_stopping(self, outcome: ops.RunOutcome) -> bool:
        """Note a request to stop, if there is one."""
        run = outcome.run
        if run is None or run.status != "stopping":
            return False
        if not self._stop_requested:
            self._stop_requested, self._stop_reason = True, run.stop_reason
            self._notify()
            if self._canceller is not None:
                self._canceller.cancel()
        return True

    def _give_back(self) -> None:
        """Give back the turn when the worker ends: it is due immediately. Later writes of the holder are refused."""
        self._given_back = True
        fence = self._fence
        if fence is None or self._ended or CAN_CANCEL:  # the end of an interrupt does it
            return
        op = ops.EndRun(
            self.conversation_id, fence, "interrupted", turn=ops.TurnEnd("back", agent_name=self.agent_name)
        )
        try:
            self._store.backend.execute(op)
        except RedisHistoryError as error:  # the run expires
            _logger.warning("a turn of conversation %r was not given back: %s", self.conversation_id[:80], error)
        self._lose()

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
        if self._keeper is not None:
            self._keeper.wake()


#: The runs whose block this task or thread is in.
_runs_here: ContextVar[tuple[Run, ...]] = ContextVar("redis_history_runs", default=())


def run_here(store: Any, conversation_id: str) -> Run:
    """The run of a conversation whose block the caller is in. Raises RunLostError."""
    for run in reversed(_runs_here.get()):  # a task may outlive the run in whose block it was created
        if run.conversation_id == conversation_id and run._store.backend is store.backend:
            return run
    raise RunLostError(
        f"this exclusive store writes to conversation {conversation_id[:80]!r} only in the block of a run, "
        "with store.run(conversation_id), and in tasks and asyncio.to_thread from there; give other threads its context"
    )
