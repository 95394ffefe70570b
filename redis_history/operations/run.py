"""Runs: which agent works on a conversation; and the lease of its compressor."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import msgspec
from msgspec import Struct

from redis_history.errors import CorruptDataError
from redis_history.model.runs import MAX_WAITING, PLACE_SECONDS, RUN_SECONDS, RunInfo, RunStatus, RunWaiter
from redis_history.model.times import from_microseconds
from redis_history.operations.base import FIELDS, UNREADABLE, Call, LeaseKind, OnConversation, Op, RunFence, Steps
from redis_history.operations.scripts import load_script
from redis_history.operations.settings import Outage, Settings

if TYPE_CHECKING:
    from redis_history.engine.space import Runs, Space

RUN: Final = load_script("run", "_grace")

_PLACE_MS: Final = b"%d" % round(1000 * PLACE_SECONDS)
#: A call that takes this many seconds counts as an outage, during which nobody could renew a lease.
_SLOW: Final = 3.0
_DONE: Final = (b"taken", b"kept", b"ended", b"stopping", b"read")
_decode = msgspec.msgpack.Decoder().decode


class RunOutcome(Struct, frozen=True):
    """The outcome of an operation on the run of a conversation: whether it was `done`, and the newest run.

    `fence`: for TakeRun, the right to write of the caller that has the run now; `lost`: the run id of a caller whose
    run has ended, or that left the queue. `unsettled_from`: the first sequence of the interrupted runs right before
    it. `expires`: seconds until the present run expires; None without one.
    """

    done: bool
    run: RunInfo | None = None
    fence: RunFence | None = None
    lost: str | None = None
    unsettled_from: int | None = None
    expires: float | None = None


class TakeRun(OnConversation, Op[RunOutcome], frozen=True):
    """Take the run for the first caller in the queue, if it is among `callers` and no run is active. `callers` are the
    run id and agent name of each, oldest first. With `wait`, the others get or keep a place in the queue;
    without it they leave the queue. It expires after `seconds`, unless it is renewed. Done: `fence` names the holder.
    A compressor takes its lease only if the conversation exists."""

    callers: tuple[tuple[str, str | None], ...]
    wait: bool
    seconds: float = RUN_SECONDS
    kind: LeaseKind = "run"

    def steps(self, settings: Settings) -> Steps[RunOutcome]:
        """Two calls if the present lease has expired: after the first one, this store knows whether there was an
        outage, in which its holder could not renew it."""
        callers = [text.encode() for run_id, agent in self.callers for text in (run_id, agent or "")]
        before = [_milliseconds(self.seconds), b"1" if self.wait else b"0", _PLACE_MS]
        started = time.monotonic()
        first = *before, b"0", *callers
        reply: _Reply = yield _call(self.conversation_id, settings, b"take", *first, kind=self.kind, keys=2)
        if time.monotonic() - started > _SLOW:
            settings.outage.note()
        if reply.what == b"expired" and not settings.outage.spares((self.conversation_id, reply.number), reply.left):
            second = *before, reply.number, *callers
            reply = yield _call(self.conversation_id, settings, b"take", *second, kind=self.kind, keys=2)
        return reply.outcome

    def apply(self, space: Space) -> RunOutcome:
        name = self.conversation_id
        runs = space.runs_of(name, self.kind)
        rests = runs.run is not None and runs.active is None and runs.run.expires > time.time()
        if self.kind == "compressor" and (rests or space.find(name) is None):
            return _outcome(name, runs, False)
        ends = time.time() + PLACE_SECONDS
        own = {run_id for run_id, _ in self.callers}
        for run_id, agent in self.callers:
            run = runs.run
            if run is not None and run.fence.run_id == run_id and run.is_active:
                return _outcome(name, runs, True, fence=run.fence, unsettled_from=run.unsettled_from)
            if run_id in runs.last_ids:
                return _outcome(name, runs, False, lost=run_id)
            at = next((index for index, (waiter, _) in enumerate(runs.queue) if waiter.run_id == run_id), None)
            if at is not None:
                runs.queue[at] = (runs.queue[at][0], ends)
            elif self.wait or (runs.active is None and not runs.queue):
                if len(runs.queue) >= MAX_WAITING:
                    break
                runs.queue.append((RunWaiter(run_id, agent, datetime.now(UTC)), ends))
                space.announce_run(name, self.kind)
        if runs.active is None and runs.queue:
            first = runs.queue[0][0]
            if first.run_id in own:
                del runs.queue[0]
                conversation = space.find(name)
                newest = conversation.sequence if conversation is not None else 0
                run = runs.begin(first, self.kind, self.seconds, newest)
                space.announce_run(name, self.kind)
                return _outcome(name, runs, True, fence=run.fence, unsettled_from=run.unsettled_from)
            space.ring(name, first.run_id)
        if not self.wait and any(waiter.run_id in own for waiter, _ in runs.queue):
            runs.queue = [place for place in runs.queue if place[0].run_id not in own]
            space.announce_run(name, self.kind)
        return _outcome(name, runs, False)


class KeepRuns(Struct, Op[list[RunOutcome]], frozen=True):
    """Renew leases, by conversation: they expire in `seconds`. Done for each that its holder still has."""

    runs: tuple[tuple[str, RunFence], ...]
    seconds: float = RUN_SECONDS

    def steps(self, settings: Settings) -> Steps[list[RunOutcome]]:
        def calls(runs: list[tuple[str, RunFence]], expired: bytes) -> list[Call]:
            args = expired, _milliseconds(self.seconds)
            return [_call(name, settings, b"keep", *_fence(fence), *args, kind=fence.kind) for name, fence in runs]

        if not self.runs:
            return []
        replies: list[_Reply] = yield calls([*self.runs], b"0")
        again = [index for index, reply in enumerate(replies) if reply.what == b"expired"]
        if again and settings.outage.is_recent:
            kept = yield calls([self.runs[index] for index in again], b"1")
            for index, reply in zip(again, kept, strict=True):
                replies[index] = reply
        return [reply.outcome for reply in replies]

    def apply(self, space: Space) -> list[RunOutcome]:
        outcomes = []
        for name, fence in self.runs:
            runs = space.runs_of(name, fence.kind)
            kept = space.holds(name, fence)
            if kept and runs.run is not None:
                runs.run.expires = time.time() + self.seconds
            outcomes.append(_outcome(name, runs, kept))
        return outcomes


class EndRun(OnConversation, Op[RunOutcome], frozen=True):
    """End a run with this status. Done unless its holder had lost it. A run that was asked to stop does not end as
    "completed": it is not done, and its status is "stopping". Compressors can take their lease after `rest` seconds."""

    fence: RunFence
    status: str
    rest: float = 0.0

    def steps(self, settings: Settings) -> Steps[RunOutcome]:
        for expired in (b"0", b"1"):
            args = *_fence(self.fence), expired, self.status.encode(), _milliseconds(self.rest)
            reply: _Reply = yield _call(self.conversation_id, settings, b"end", *args, kind=self.fence.kind, keys=2)
            if reply.what != b"expired" or not settings.outage.is_recent:
                break
        # Asked to stop, and not ended: see EndRun.
        return msgspec.structs.replace(reply.outcome, done=reply.what == b"ended")

    def apply(self, space: Space) -> RunOutcome:
        name, runs = self.conversation_id, space.runs_of(self.conversation_id, self.fence.kind)
        run = runs.run
        if run is None or run.fence != self.fence:
            return _outcome(name, runs, False)
        if not run.is_active:
            return _outcome(name, runs, run.status == self.status)
        if run.status == "stopping" and self.status == "completed":
            return _outcome(name, runs, False)
        run.status, run.ended_at = cast(RunStatus, self.status), datetime.now(UTC)
        run.expires = time.time() + self.rest
        space.announce_run(name, self.fence.kind)
        if runs.queue:
            space.ring(name, runs.queue[0][0].run_id)
        return _outcome(name, runs, True)


class StopRun(OnConversation, Op[RunOutcome], frozen=True):
    """Ask the holder of this run to end it; done if the run is active."""

    run_id: str
    reason: str | None

    def steps(self, settings: Settings) -> Steps[RunOutcome]:
        expired = b"1" if settings.outage.is_recent else b"0"
        args = self.run_id.encode(), (self.reason or "").encode(), expired
        reply: _Reply = yield _call(self.conversation_id, settings, b"stop", *args, keys=2)
        return reply.outcome

    def apply(self, space: Space) -> RunOutcome:
        name, runs = self.conversation_id, space.runs_of(self.conversation_id)
        run = runs.active
        if run is None or run.fence.run_id != self.run_id:
            return _outcome(name, runs, False)
        if run.status == "active":
            run.status, run.reason = "stopping", self.reason
            space.announce(name)
        space.ring(name, self.run_id)
        return _outcome(name, runs, True)


class LeaveRun(OnConversation, Op[RunOutcome], frozen=True):
    """Give up places in the queue, and end the run of a caller that was cancelled before it knew that it has it. Late
    copies of the callers' requests begin no run."""

    run_ids: tuple[str, ...]

    def steps(self, settings: Settings) -> Steps[RunOutcome]:
        reply: _Reply = yield _call(self.conversation_id, settings, b"leave", *map(str.encode, self.run_ids), keys=2)
        return reply.outcome

    def apply(self, space: Space) -> RunOutcome:
        name, runs = self.conversation_id, space.runs_of(self.conversation_id)
        runs.last_ids.extend(run_id for run_id in self.run_ids if run_id not in runs.last_ids)
        rest = [place for place in runs.queue if place[0].run_id not in self.run_ids]
        run, left = runs.active, len(rest) != len(runs.queue)
        if run is not None and run.fence.run_id in self.run_ids:
            run.status, run.ended_at, run.expires, left = "interrupted", datetime.now(UTC), time.time(), True
        runs.queue = rest
        if left:
            space.announce(name)
        if runs.active is None and runs.queue:
            space.ring(name, runs.queue[0][0].run_id)
        return _outcome(name, runs, False)


class ReadRun(OnConversation, Op[RunOutcome], frozen=True):
    """The newest run of a conversation; `run` is None if there never was one, or the conversation was deleted."""

    def steps(self, settings: Settings) -> Steps[RunOutcome]:
        reply: _Reply = yield _call(self.conversation_id, settings, b"read")
        return reply.outcome

    def apply(self, space: Space) -> RunOutcome:
        return _outcome(self.conversation_id, space.runs_of(self.conversation_id), True)


class _Reply(NamedTuple):
    what: bytes
    outcome: RunOutcome
    #: The number of the lease that has expired, if `what` is b"expired".
    number: bytes
    #: Seconds until it expires, below 0 since it has.
    left: float


def _call(
    conversation_id: str, settings: Settings, action: bytes, *args: bytes, kind: LeaseKind = "run", keys: int = 1
) -> Call:
    """`keys`: 2 if the action needs the log besides the state."""
    known = settings.keyspace.conversation(conversation_id)
    declared = (known.state, known.log)[:keys]
    return Call(RUN, declared, [action, FIELDS[kind], *args], partial(_read, conversation_id, kind, settings))


def _read(conversation_id: str, kind: LeaseKind, settings: Settings, reply: list[Any]) -> _Reply:
    what, run, queue, now, run_id = reply
    info, expires = read_run(conversation_id, run, queue, now, outage=settings.outage)
    fence = before = None
    packed = _decode(run) if run else [0] * 10
    number, ends = packed[0], packed[5]
    if what == b"taken" and info is not None:
        fence, before = RunFence(number, info.run_id, kind), packed[9] or None
    lost = run_id.decode() if what == b"lost" and run_id else None
    return _Reply(
        what, RunOutcome(what in _DONE, info, fence, lost, before, expires), b"%d" % number, (ends - now) / 1000
    )


def read_run(
    conversation_id: str, run: bytes, queue: bytes, now: int, *, outage: Outage
) -> tuple[RunInfo | None, float | None]:
    """The newest run from the fields R and Q of the state, and the seconds until it expires; None if it is not active.
    `now`: milliseconds of the server's clock. In an outage nobody can renew it, so it does not expire. Raises
    CorruptDataError."""
    if not run:
        return None, None
    try:
        packed = _decode(run)
        status, expires = packed[3], packed[5]
        expired = status in ("active", "stopping") and expires <= now
        if expired and not outage.excuses((expires - now) / 1000):
            packed[3], packed[6] = "interrupted", expires
        waiting = [
            RunWaiter(place[0], place[1] or None, _time(place[2]))
            for place in (_decode(queue) if queue else ())
            if place[3] > now
        ]
        former = tuple(_info(conversation_id, one) for one in packed[10])
        info = _info(conversation_id, packed, tuple(waiting), former)
    except UNREADABLE as error:
        raise CorruptDataError(f"the run of conversation {conversation_id[:80]!r} is unreadable: {error}") from error
    left = 1.0 if expired else (expires - now) / 1000
    return info, left if info.is_active else None


def _info(
    conversation_id: str, packed: list[Any], waiting: tuple[RunWaiter, ...] = (), former: tuple[RunInfo, ...] = ()
) -> RunInfo:
    _, run_id, agent, status, started, _, ended, reason, first = packed[:9]
    return RunInfo(
        run_id, conversation_id, agent or None, status, _time(started), _time(ended) if ended else None,
        reason or None, waiting, first, former,
    )  # fmt: skip


def is_active(run: bytes) -> bool:
    """Whether the run in the field R of the state has not ended, although it may have expired."""
    with suppress(*UNREADABLE):
        return _decode(run)[3] in ("active", "stopping")
    return False


def _time(milliseconds: float) -> Any:
    return from_microseconds(round(1000 * milliseconds))


def _milliseconds(seconds: float) -> bytes:
    return b"%d" % round(1000 * seconds)


def _fence(fence: RunFence) -> tuple[bytes, bytes]:
    return b"%d" % fence.fence, fence.run_id.encode()


def _outcome(conversation_id: str, runs: Runs, done: bool, **fields: Any) -> RunOutcome:
    return RunOutcome(done, runs.info(conversation_id), expires=runs.expires, **fields)
