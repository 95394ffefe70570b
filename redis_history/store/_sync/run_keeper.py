# Generated from ../_async by scripts/unasync: do not edit.
"""Renewals and wake-ups for the runs of a store, in the background.

One job per store renews all its runs and keeps the places of waiting callers, so its cost does not grow with their
number. Another one renews the reservations of budgets, which may be on a server that hangs. The server wakes a holder
that is asked to stop, and the first in the queue when a run ends. The renewals notice both, too.
"""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from redis_history.errors import RedisHistoryError, RunBusyError, StoreClosedError
from redis_history.store import refusals
from redis_history.store._sync._runtime import Job, Signal, spawn, uninterrupted
from redis_history.store.operations import EndRun, KeepRuns, LeaveRun, RunOutcome, TakeRun
from redis_history.store.operations.usage import KeepBudget, renewal_seconds
from redis_history.values.runs import POLL_SECONDS, RENEW_SECONDS, RUN_SECONDS, RunInfo

if TYPE_CHECKING:
    from redis_history.store._sync.runs import Run

_logger = logging.getLogger("redis_history")

#: Seconds until a call of the job is repeated after an error.
_WAIT_AFTER_ERROR: Final = 0.5


class RunKeepers:
    """A keeper for each server, so that a server that hangs does not delay the renewals on others."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._keepers: dict[Any, RunKeeper] = {}

    def take(self, run: Run, wait: float) -> bool:
        """Return when `run` has the run, and whether it waited. Raises RunBusyError after `wait` seconds."""
        return (self._keeper_of(run)).take(run, wait)

    def hold(self, run: Run, outcome: RunOutcome) -> None:
        """Renew a run that a worker has taken with a turn."""
        (self._keeper_of(run))._hold(run, outcome)

    def _keeper_of(self, run: Run) -> RunKeeper:
        server = self._backend.watch_run(run.conversation_id, run.run_id, run._ring)
        run._keeper = keeper = self._keepers.setdefault(server, RunKeeper(self._backend))
        return keeper

    def close(self) -> None:
        """End the jobs. Runs expire."""
        for keeper in [*self._keepers.values()]:
            keeper.close()


class RunKeeper:
    """The runs on one server: takes them, renews them, and keeps the places of waiting callers."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._guard = threading.Lock()  # for the fields below; never held during a call
        self._held: dict[str, Run] = {}
        self._waiting: dict[str, list[Run]] = {}  # by conversation, in the order of arrival
        self._poll_at: dict[str, float] = {}
        self._renew_at = 0.0
        self._trying_since: float | None = None  # since when renewals have been under way or failing
        self._closed = False
        self._signal: Signal | None = None
        self._job: Job | None = None
        self._budget_job: Job | None = None

    def take(self, run: Run, wait: float) -> bool:
        ends = time.monotonic() + wait
        try:
            outcome = self._ask(run.conversation_id, [run], wait > 0)
            waits = run._fence is None
            if waits and wait > 0:
                self._add_waiting(run)
                signal = run._signal
                assert signal is not None  # noqa: S101
                while run._fence is None and run._error is None and (left := ends - time.monotonic()) > 0:
                    signal.wait(left)
                    signal.clear()
                self._remove_waiting(run)
                if run._fence is None and run._error is None:  # leave the queue, or take it if it is free now
                    outcome = self._ask(run.conversation_id, [run], False)
            if run._error is not None:
                raise run._error
            if run._fence is None:
                raise _busy(run, outcome.run)
            return waits
        except BaseException:
            self._remove_waiting(run)
            uninterrupted(run._abandon, run._unfinished)
            raise

    def forget(self, run: Run) -> None:
        """Forget a run that has ended or no longer waits."""
        with self._guard:
            self._held.pop(run.run_id, None)
        self.wake()  # the job may be finished
        self._backend.unwatch_run(run.conversation_id, run.run_id, run._ring)

    def wake(self) -> None:
        """Ask the server soon about the runs that it has woken. From any thread."""
        signal = self._signal
        if signal is not None:
            signal.set()

    def close(self) -> None:
        """End the job. Runs expire."""
        with self._guard:
            self._closed = True
            jobs = [job for job in (self._job, self._budget_job) if job is not None]
            runs = [*self._held.values(), *(run for waiting in self._waiting.values() for run in waiting)]
        self.wake()
        for run in runs:
            if not run._ended:  # else its end may be under way, after a cancellation
                run._fail(StoreClosedError("the store was closed"))
        for job in jobs:
            job.stop()

    def _add_waiting(self, run: Run) -> None:
        with self._guard:
            self._waiting.setdefault(run.conversation_id, []).append(run)
            self._poll_at.setdefault(run.conversation_id, time.monotonic() + POLL_SECONDS)
            self._start_job()
        if run._rung:
            self.wake()

    def _remove_waiting(self, run: Run) -> None:
        with self._guard:
            waiting = self._waiting.get(run.conversation_id, [])
            if run in waiting:
                waiting.remove(run)
            if not waiting:
                self._waiting.pop(run.conversation_id, None)
                self._poll_at.pop(run.conversation_id, None)

    def _hold(self, run: Run, outcome: RunOutcome) -> None:
        with self._guard:
            if not self._held:
                self._trying_since = None
                self._renew_at = time.monotonic() + RENEW_SECONDS
            self._held[run.run_id] = run
            run._fence = outcome.fence
            run._unsettled_from = outcome.unsettled_from
            run._renewed_at = time.monotonic()
            run._first = outcome.run.first_sequence if outcome.run is not None else 0
            self._start_job()
        run._is_stopping(outcome)
        run._notify()

    def _start_job(self) -> None:
        if self._job is None or self._job.ended:
            self._signal = Signal()
            self._job = spawn(self._run, "redis_history-runs")
        self.wake()

    def _ask(self, conversation_id: str, runs: list[Run], wait: bool) -> RunOutcome:
        """Ask for the run on behalf of these callers."""
        callers = tuple((run.run_id, run.agent_name) for run in runs)
        outcome: RunOutcome = self._backend.execute(TakeRun(conversation_id, callers, wait))
        fence = outcome.fence
        for run in runs:
            taken = fence is not None and run.run_id == fence.run_id
            if taken and not run._ended:
                self._hold(run, outcome)
            elif taken and fence is not None:  # its caller stopped waiting while this call was under way
                self._backend.execute(EndRun(conversation_id, fence, "interrupted"))
            elif run._ended:
                self._backend.execute(LeaveRun(conversation_id, (run.run_id,)))
            elif run.run_id == outcome.lost:
                run._fail(refusals.run_lost(conversation_id))
        return outcome

    # The job

    def _run(self) -> None:
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
            self._renew_budgets()
            try:
                if held:
                    if due:
                        self._renew_at = now + RENEW_SECONDS
                    self._renew(held)
                for name, runs in asking.items():
                    self._poll(name, runs)
            except StoreClosedError:
                return
            except RedisHistoryError as error:
                _logger.warning("runs could not be renewed, and will be again: %s", error)
                signal.wait(_WAIT_AFTER_ERROR)
                continue
            with self._guard:
                waits = [*self._poll_at.values(), *([self._renew_at] if self._held else [])]
                waits += [run._renew_budget_at for run, _ in self._reserving()]
            signal.wait(max(0.0, min(waits, default=0.0) - time.monotonic()))

    def _renew(self, runs: list[Run]) -> None:
        held = {run: run._fence for run in runs if run._fence is not None}
        if self._trying_since is None:
            self._trying_since = time.monotonic()
        for run in held:
            run._rung = False
        for in_time in (True, False):
            some = {run: fence for run, fence in held.items() if fence and self.is_in_time(run) is in_time}
            op = KeepRuns(tuple((run.conversation_id, fence) for run, fence in some.items()), in_time=in_time)
            for run, outcome in zip(some, self._backend.execute(op), strict=True):
                if outcome.done:
                    run._renewed_at = time.monotonic()
                    run._is_stopping(outcome)
                else:
                    run._lose()
        self._trying_since = None

    def is_in_time(self, run: Run) -> bool:
        """Whether this process has been trying to renew the run since before it expired. If not, it hung."""
        trying = self._trying_since
        return (time.monotonic() if trying is None else trying) - run._renewed_at < RUN_SECONDS

    def _reserving(self) -> list[tuple[Run, int | str]]:
        """The runs that hold a part of their owner's budget, and the owners."""
        return [(run, owner) for run in self._held.values() if (owner := run._budget_of) is not None and not run._lost]

    def _renew_budgets(self) -> None:
        """Begin to renew the reservations for which it is time."""
        now, owners = time.monotonic(), dict[str, int | str]()
        with self._guard:
            for run, owner in self._reserving():
                if now >= run._renew_budget_at:
                    owners[run.run_id], run._renew_budget_at = owner, now + renewal_seconds()
            if owners and not self._closed and (self._budget_job is None or self._budget_job.ended):
                self._budget_job = spawn(partial(self._keep_budgets, owners), "redis_history-budgets")

    def _keep_budgets(self, owners: dict[str, int | str]) -> None:
        for run_id, owner in owners.items():
            try:
                self._backend.execute(KeepBudget(owner, run_id))
            except StoreClosedError:
                return
            except RedisHistoryError as error:
                _logger.warning("the reservation of run %s could not be renewed, and will be again: %s", run_id, error)

    def _poll(self, conversation_id: str, runs: list[Run]) -> None:
        for run in runs:
            run._rung = False
        outcome = self._ask(conversation_id, runs, True)
        wait = POLL_SECONDS
        if outcome.look_in is not None:  # when the run of a dead holder expires, or a dead waiter is passed over
            wait = min(wait, outcome.look_in + 0.05)
        for run in runs:
            if run._fence is not None or run._error is not None:
                self._remove_waiting(run)
        with self._guard:
            if conversation_id in self._waiting:
                self._poll_at[conversation_id] = time.monotonic() + wait


def _busy(run: Run, holder: RunInfo | None) -> RunBusyError:
    who = f"another run of conversation {run.conversation_id[:80]!r} is active"
    if holder is None or not holder.is_active:
        who, holder = f"others wait for a run of conversation {run.conversation_id[:80]!r}", None
    elif holder.agent_name is not None:
        who += f", of agent {holder.agent_name[:80]!r}"
    since = "" if holder is None else f" since {holder.started_at:%H:%M:%S} UTC"
    return RunBusyError(f"{who}{since}; wait longer with wait=, or stop it with store.stop_run", holder=holder)
