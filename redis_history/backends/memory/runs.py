"""Runs in memory: the same rules as lua/run.lua."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, cast

from redis_history.model.runs import MAX_WAITING, PLACE_SECONDS, RunInfo, RunStatus, RunWaiter
from redis_history.operations import (
    EndRun,
    KeepRuns,
    LeaseKind,
    LeaveRun,
    ReadRun,
    RunFence,
    RunOutcome,
    StopRun,
    TakeRun,
)

if TYPE_CHECKING:
    from redis_history.engine.space import Space


@dataclass(slots=True)
class _Run:
    fence: RunFence
    agent_name: str | None
    status: RunStatus
    started_at: datetime
    #: On the monotonic clock.
    expires: float
    ended_at: datetime | None = None
    reason: str | None = None
    #: When the run before it began, if that was interrupted.
    interrupted_since: datetime | None = None

    @property
    def is_active(self) -> bool:
        return self.status in ("active", "stopping")


@dataclass(slots=True)
class Runs:
    """The runs of one conversation: the newest one, who waits with the end of each place, and the last ids."""

    run: _Run | None = None
    queue: list[tuple[RunWaiter, float]] = field(default_factory=list)
    fence: int = 0
    last_ids: deque[str] = field(default_factory=lambda: deque(maxlen=32))

    def refresh(self) -> bool:
        """Note what has expired. Returns whether waiters have left."""
        now = time.monotonic()
        run = self.run
        if run is not None and run.is_active and run.expires <= now:
            self.run = replace(run, status="interrupted", ended_at=datetime.now(UTC))
        present = [place for place in self.queue if place[1] > now]
        left, self.queue = len(present) != len(self.queue), present
        return left

    @property
    def active(self) -> _Run | None:
        return self.run if self.run is not None and self.run.is_active else None

    @property
    def expires(self) -> float | None:
        """Seconds until the active run expires."""
        return None if self.active is None else self.active.expires - time.monotonic()

    def info(self, conversation_id: str) -> RunInfo | None:
        run = self.run
        if run is None:
            return None
        return RunInfo(
            run.fence.run_id, conversation_id, run.agent_name, run.status, run.started_at, run.ended_at, run.reason,
            tuple(waiter for waiter, _ in self.queue),
        )  # fmt: skip


def of_conversation(space: Space, conversation_id: str, kind: LeaseKind = "run") -> Runs:
    runs = space.runs.setdefault((conversation_id, kind), Runs())
    if runs.refresh():
        space.announce(conversation_id)
    return runs


def run_now(space: Space, conversation_id: str) -> tuple[RunInfo | None, float | None]:
    """The newest run, and the seconds until it expires."""
    if (conversation_id, "run") not in space.runs:
        return None, None
    runs = of_conversation(space, conversation_id)
    return runs.info(conversation_id), runs.expires


def _announce(space: Space, conversation_id: str, kind: LeaseKind) -> None:
    if kind == "run":
        space.announce(conversation_id)


def _outcome(conversation_id: str, runs: Runs, done: bool, **fields: Any) -> RunOutcome:
    return RunOutcome(done, runs.info(conversation_id), expires=runs.expires, **fields)


def _take(space: Space, op: TakeRun) -> RunOutcome:
    name = op.conversation_id
    runs = of_conversation(space, name, op.kind)
    rests = runs.run is not None and runs.active is None and runs.run.expires > time.monotonic()
    if op.kind == "compressor" and (rests or space.find(name) is None):
        return _outcome(name, runs, False)
    ends = time.monotonic() + PLACE_SECONDS
    own = {run_id for run_id, _ in op.callers}
    for run_id, agent in op.callers:
        run = runs.run
        if run is not None and run.fence.run_id == run_id and run.is_active:
            return _outcome(name, runs, True, fence=run.fence, interrupted_since=run.interrupted_since)
        if run_id in runs.last_ids:
            return _outcome(name, runs, False, lost=run_id)
        at = next((index for index, (waiter, _) in enumerate(runs.queue) if waiter.run_id == run_id), None)
        if at is not None:
            runs.queue[at] = (runs.queue[at][0], ends)
        elif op.wait or (runs.active is None and not runs.queue):
            if len(runs.queue) >= MAX_WAITING:
                break
            runs.queue.append((RunWaiter(run_id, agent, datetime.now(UTC)), ends))
            _announce(space, name, op.kind)
    if runs.active is None and runs.queue:
        first = runs.queue[0][0]
        if first.run_id in own:
            del runs.queue[0]
            runs.fence += 1
            fence = RunFence(runs.fence, first.run_id, op.kind)
            expires = time.monotonic() + op.seconds
            former = runs.run
            before = former.started_at if former is not None and former.status == "interrupted" else None
            runs.run = _Run(fence, first.agent_name, "active", datetime.now(UTC), expires, interrupted_since=before)
            runs.last_ids.append(first.run_id)
            _announce(space, name, op.kind)
            return _outcome(name, runs, True, fence=fence, interrupted_since=before)
        space.ring(name, first.run_id)
    if not op.wait and any(waiter.run_id in own for waiter, _ in runs.queue):
        runs.queue = [place for place in runs.queue if place[0].run_id not in own]
        _announce(space, name, op.kind)
    return _outcome(name, runs, False)


def _keep(space: Space, op: KeepRuns) -> list[RunOutcome]:
    outcomes = []
    for name, fence in op.runs:
        runs = of_conversation(space, name, fence.kind)
        kept = holds(space, name, fence)
        if kept and runs.run is not None:
            runs.run.expires = time.monotonic() + op.seconds
        outcomes.append(_outcome(name, runs, kept))
    return outcomes


def holds(space: Space, conversation_id: str, fence: RunFence) -> bool:
    active = of_conversation(space, conversation_id, fence.kind).active
    return active is not None and active.fence == fence


def _end(space: Space, op: EndRun) -> RunOutcome:
    name, runs = op.conversation_id, of_conversation(space, op.conversation_id, op.fence.kind)
    run = runs.run
    if run is None or run.fence != op.fence:
        return _outcome(name, runs, False)
    if not run.is_active:
        return _outcome(name, runs, run.status == op.status)
    if run.status == "stopping" and op.status == "completed":
        return _outcome(name, runs, False)
    runs.run = replace(
        run, status=cast(RunStatus, op.status), ended_at=datetime.now(UTC), expires=time.monotonic() + op.rest
    )
    _announce(space, name, op.fence.kind)
    if runs.queue:
        space.ring(name, runs.queue[0][0].run_id)
    return _outcome(name, runs, True)


def _stop(space: Space, op: StopRun) -> RunOutcome:
    name, runs = op.conversation_id, of_conversation(space, op.conversation_id)
    run = runs.active
    if run is None or run.fence.run_id != op.run_id:
        return _outcome(name, runs, False)
    if run.status == "active":
        run.status, run.reason = "stopping", op.reason
        space.announce(name)
    space.ring(name, op.run_id)
    return _outcome(name, runs, True)


def _leave(space: Space, op: LeaveRun) -> RunOutcome:
    name, runs = op.conversation_id, of_conversation(space, op.conversation_id)
    rest = [place for place in runs.queue if place[0].run_id not in op.run_ids]
    if len(rest) != len(runs.queue):
        runs.queue = rest
        space.announce(name)
    if runs.active is None and runs.queue:
        space.ring(name, runs.queue[0][0].run_id)
    return _outcome(name, runs, False)


def _read(space: Space, op: ReadRun) -> RunOutcome:
    return _outcome(op.conversation_id, of_conversation(space, op.conversation_id), True)


RUNS: Final[dict[type, Callable[[Space, Any], Any]]] = {
    EndRun: _end,
    KeepRuns: _keep,
    LeaveRun: _leave,
    ReadRun: _read,
    StopRun: _stop,
    TakeRun: _take,
}
