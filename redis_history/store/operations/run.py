"""Runs: which agent works on a conversation; and the lease of its compressor."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from redis_history.errors import CorruptDataError, RedisHistoryError
from redis_history.store.claims import Claim, Taken, TurnEnd
from redis_history.store.leases import PROMISE, Contact, Lease
from redis_history.store.operations.base import (
    UNREADABLE,
    Call,
    OnConversation,
    Op,
    Pause,
    Steps,
    decoded,
    with_extra_keys,
    with_turn_keys,
)
from redis_history.store.operations.keys import Keyspace
from redis_history.store.operations.scripts import load_script
from redis_history.store.operations.settings import Settings
from redis_history.store.operations.turn import read_taken
from redis_history.store.writes import FIELDS, LeaseKind, RunFence
from redis_history.values.runs import (
    ANSWER_SECONDS,
    MAX_WAITING,
    PLACE_SECONDS,
    RUN_SECONDS,
    RunInfo,
    RunStatus,
    RunWaiter,
)
from redis_history.values.times import from_microseconds

if TYPE_CHECKING:
    from redis_history.store.memory.space import Runs, Space

RUN: Final = load_script(
    "run",
    "_declared",
    "_publish",
    args="action lease",
    actions={
        "take": "lasts how place_lasts patience dead *callers",
        "keep": "fence run_id in_time renewed_for",
        "end": "fence run_id status rest turn? revision? *taken",
        "stop": "stopped reason expired_too",
        "bury": "fence",
        "leave": "*leaving",
        "read": "",
    },
    keys="state log",
)
_logger = logging.getLogger("redis_history")

_PLACE_MS: Final = b"%d" % round(1000 * PLACE_SECONDS)
_ANSWER_MS: Final = b"%d" % round(1000 * ANSWER_SECONDS)
#: Seconds until a waiter checks again whether the silent waiters before it have left.
_LOOK_AGAIN: Final = 0.3
_DONE: Final = (b"taken", b"kept", b"ended", b"stopping", b"read")


class RunOutcome(Struct, frozen=True):
    """The outcome of an operation on the run of a conversation: whether it was `done`, and the newest run.

    `fence`: for TakeRun, the right to write of the caller that has the run now; `lost`: the run id of a caller whose
    run has ended, or that left the queue. `unsettled_from`: the first sequence of the interrupted runs right before
    it. `look_in`: seconds until the present run expires, or until a waiter may be passed over; None if neither is
    pending. `turn`: the turn that a worker has taken with the run.
    """

    done: bool
    run: RunInfo | None = None
    fence: RunFence | None = None
    lost: str | None = None
    unsettled_from: int | None = None
    look_in: float | None = None
    turn: Taken | None = None


class TakeRun(OnConversation, Op[RunOutcome], frozen=True):
    """Take the run for the first caller in the queue, if it is among `callers` and no run is active. `callers` are the
    run id and agent name of each, oldest first. With `wait`, the others get or keep a place in the queue;
    without it they leave the queue. It expires after `seconds`, unless it is renewed. Done: `fence` names the holder.
    A compressor takes its lease only if the conversation exists; a worker (`claim`) takes the run only if there is a
    turn of its agent that is due."""

    callers: tuple[tuple[str, str | None], ...]
    wait: bool
    seconds: float = RUN_SECONDS
    kind: LeaseKind = "run"
    claim: Claim | None = None

    def steps(self, settings: Settings) -> Steps[RunOutcome]:
        """Make two calls if the present lease has expired and its holder is dead. A waiter in the queue asks again;
        other callers wait here until that is certain, see `leases`."""
        callers = [text.encode() for run_id, agent in self.callers for text in (run_id, agent or "")]
        how = b"1" if self.wait else b"0" if self.claim is None else self.claim.packed
        places = {"place_lasts": _PLACE_MS, "patience": _ANSWER_MS}
        lasts = _milliseconds(self.seconds)

        def take(dead: bytes) -> Call:
            args = {"lasts": lasts, "how": how, **places, "dead": dead}
            call = _call(self.conversation_id, settings, "take", self.kind, **args, callers=callers)
            if self.claim is None:
                return call
            call = with_turn_keys(call, self.conversation_id, self.claim.agent_name, settings)
            if not self.claim.queue:
                return call
            index = settings.keyspace.turn_index(self.claim.agent_name, Keyspace.bucket_of(self.conversation_id))
            return replace(call, keys=(*call.keys, b"%b:%b" % (index, self.claim.queue.encode())))

        reply: _Reply = yield from _with_turns(take(b"0"), settings)
        if reply.what != b"expired":
            return reply.outcome
        contact = _contact(self.conversation_id, settings)
        pause = 0.0 if self.wait else contact.pause(reply.lease, reply.over, self._doubted_for)
        if pause:
            yield Pause(pause)
        if pause or not contact.spares(reply.lease, reply.over):
            reply = yield from _with_turns(take(reply.number), settings)
        return reply.outcome

    @property
    def _doubted_for(self) -> float:
        """Compressors always wait the full time, because no caller waits for them."""
        return PROMISE if self.kind == "compressor" else self.seconds

    def apply(self, space: Space) -> RunOutcome:
        name = self.conversation_id
        runs = space.runs_of(name, self.kind)
        rests = runs.run is not None and runs.active is None and runs.run.expires > time.time()
        if self.kind == "compressor" and (rests or space.find(name) is None):
            return _outcome(name, runs, False)
        if self.claim is not None:
            return self._take_turn(space, runs, self.claim)
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
            elif self.wait or (runs.active is None and runs.turn() is None):
                if len(runs.queue) >= MAX_WAITING:
                    break
                runs.queue.append((RunWaiter(run_id, agent, datetime.now(UTC)), ends))
                space.announce_run(name, self.kind)
        turn = runs.turn() if runs.active is None else None
        if turn is not None:
            first = runs.queue[turn][0]
            if first.run_id in own:
                del runs.queue[turn]
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

    def _take_turn(self, space: Space, runs: Runs, claim: Claim) -> RunOutcome:
        name, (run_id, agent) = self.conversation_id, self.callers[0]
        run = runs.active
        if run is not None and run.fence.run_id == run_id:
            turn = space.turns.taken(name, run)
            return _outcome(name, runs, True, fence=run.fence, unsettled_from=run.unsettled_from, turn=turn)
        if run_id in runs.last_ids:
            return _outcome(name, runs, False, lost=run_id)
        state = space.turns.to_take(space, name, claim)
        if state is None:
            return _outcome(name, runs, False)
        if run is not None or runs.turn() is not None:
            space.turns.busy(state, run)
            return _outcome(name, runs, False)
        conversation = space.find(name)
        newest = conversation.sequence if conversation is not None else 0
        run = runs.begin(RunWaiter(run_id, agent, datetime.now(UTC)), self.kind, self.seconds, newest)
        space.turns.begin(space, name, state, run, claim)
        space.announce_run(name, self.kind)
        turn = space.turns.taken(name, run)
        return _outcome(name, runs, True, fence=run.fence, unsettled_from=run.unsettled_from, turn=turn)


class KeepRuns(Struct, Op[list[RunOutcome]], frozen=True):
    """Renew leases, by conversation: they expire in `seconds`. Done for each that its holder still has. `in_time`: it
    tried to renew them before they expired, so they are renewed although the server got that later."""

    runs: tuple[tuple[str, RunFence], ...]
    seconds: float = RUN_SECONDS
    in_time: bool = False

    def steps(self, settings: Settings) -> Steps[list[RunOutcome]]:
        if not self.runs:
            return []
        args = {"in_time": b"1" if self.in_time else b"0", "renewed_for": _milliseconds(self.seconds)}
        replies: list[_Reply] = yield [
            _call(name, settings, "keep", fence.kind, **_fence(fence), **args) for name, fence in self.runs
        ]
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
    "completed": it is not done, and its status is "stopping". Compressors can take their lease after `rest` seconds.
    `turn`: what becomes of the turn that it answers."""

    fence: RunFence
    status: str
    rest: float = 0.0
    turn: TurnEnd | None = None

    def steps(self, settings: Settings) -> Steps[RunOutcome]:
        args: dict[str, bytes] = {
            **_fence(self.fence),
            "status": self.status.encode(),
            "rest": _milliseconds(self.rest),
        }
        taken: list[bytes] = []
        if self.turn is not None:
            args["turn"], args["revision"] = self.turn.how.encode(), b"%d" % self.turn.revision
            taken += map(str.encode, self.turn.taken)
        call = _call(self.conversation_id, settings, "end", self.fence.kind, **args, taken=taken)
        if self.turn is not None:
            call = with_turn_keys(call, self.conversation_id, self.turn.agent_name, settings)
        reply: _Reply = yield from _with_turns(call, settings)
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
        run.expires, runs.freed = time.time() + self.rest, time.time()
        if self.fence.kind == "run":
            space.turns.settle(space, name, self.fence.fence, self.turn or TurnEnd("back"))
        space.announce_run(name, self.fence.kind)
        space.ring_first(name, runs)
        return _outcome(name, runs, True)


class StopRun(OnConversation, Op[RunOutcome], frozen=True):
    """Ask the holder of this run to end it; done if the run is active."""

    run_id: str
    reason: str | None

    def steps(self, settings: Settings) -> Steps[RunOutcome]:
        def stop(expired: bytes) -> Call:
            given = {"stopped": self.run_id.encode(), "reason": (self.reason or "").encode()}
            return _call(self.conversation_id, settings, "stop", **given, expired_too=expired)

        reply: _Reply = yield stop(b"0")
        if reply.what == b"expired" and _contact(self.conversation_id, settings).spares(reply.lease, reply.over):
            reply = yield stop(b"1")  # its holder may come back
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
        call = _call(self.conversation_id, settings, "leave", leaving=map(str.encode, self.run_ids))
        reply: _Reply = yield from _with_turns(call, settings)
        return reply.outcome

    def apply(self, space: Space) -> RunOutcome:
        name, runs = self.conversation_id, space.runs_of(self.conversation_id)
        runs.last_ids.extend(run_id for run_id in self.run_ids if run_id not in runs.last_ids)
        rest = [place for place in runs.queue if place[0].run_id not in self.run_ids]
        run, left = runs.active, len(rest) != len(runs.queue)
        if run is not None and run.fence.run_id in self.run_ids:
            run.status, run.ended_at, run.expires, left = "interrupted", datetime.now(UTC), time.time(), True
            runs.freed = run.expires
            space.turns.settle(space, name, run.fence.fence, TurnEnd("back"))
        runs.queue = rest
        if left:
            space.announce(name)
        if runs.active is None:
            space.ring_first(name, runs)
        return _outcome(name, runs, False)


class ReadRun(OnConversation, Op[RunOutcome], frozen=True):
    """The newest run of a conversation; `run` is None if there never was one, or the conversation was deleted."""

    def steps(self, settings: Settings) -> Steps[RunOutcome]:
        call = _call(self.conversation_id, settings, "read")
        reply: _Reply = yield call
        pause = 0.0
        if reply.over > 0:
            pause = _contact(self.conversation_id, settings).pause(reply.lease, reply.over, RUN_SECONDS)
        if pause:
            yield Pause(pause)
            reply = yield call
        if reply.dead is not None:
            yield from bury_run(self.conversation_id, reply.dead, settings)
        return reply.outcome

    def apply(self, space: Space) -> RunOutcome:
        return _outcome(self.conversation_id, space.runs_of(self.conversation_id), True)


class _Reply(NamedTuple):
    what: bytes
    outcome: RunOutcome
    #: The fence of the newest lease.
    number: bytes
    #: Since when it has been over without an end, in seconds; 0 or less: it has not expired, or has ended.
    over: float
    #: Its name for `Contact`.
    lease: Lease
    #: Its fence, if its holder is dead and this is not recorded yet.
    dead: int | None


class _Stored(Struct, array_like=True):
    """A lease as in the fields R and W of the state, see run.lua; times are milliseconds. `former`: leases without the
    last two fields."""

    fence: int
    run_id: str
    agent_name: str
    status: str
    started: float
    expires: float
    ended: float
    reason: str
    first_sequence: int
    unsettled_from: int
    former: Any = ()
    freed: float = 0


class _Place(Struct, array_like=True):
    """A place in the queue, see run.lua."""

    run_id: str
    agent_name: str
    since: float
    expires: float


_decode_lease: Final = msgspec.msgpack.Decoder(_Stored).decode
_decode_queue: Final = msgspec.msgpack.Decoder(list[_Place]).decode
_NO_LEASE: Final = _Stored(0, "", "", "", 0, 0, 0, "", 0, 0)


class Present(NamedTuple):
    """The newest run, and how many seconds until it expires, or until it is certain that its holder is dead; None if
    it is not active. `dead`: the fence of a run whose holder is dead, if this is not recorded yet."""

    info: RunInfo | None
    look_in: float | None = None
    dead: int | None = None


def _call(
    conversation_id: str,
    settings: Settings,
    action: str,
    kind: LeaseKind = "run",
    /,
    **values: bytes | Iterable[bytes],
) -> Call:
    """Make a call of run.lua."""
    known = settings.keyspace.conversation(conversation_id)
    declared = (known.state,) if action in ("keep", "read") else (known.state, known.log)
    args = RUN.args(action, lease=FIELDS[kind] + settings.publish_command, **values)
    decode = partial(_read, conversation_id, kind, settings)
    return Call(RUN, declared, args, decode, renews=True)


def _with_turns(call: Call, settings: Settings) -> Steps[Any]:
    """The outcome of a call that may change turns, for whose keys the script asks."""
    return decoded(call, (yield from with_extra_keys(call, None, settings.turn_keys)))


def _contact(conversation_id: str, settings: Settings) -> Contact:
    return settings.contact_of(settings.keyspace.conversation(conversation_id).state)


def _read(conversation_id: str, kind: LeaseKind, settings: Settings, reply: list[Any]) -> _Reply:
    what, run, queue, now, run_id = reply[:5]
    present = read_run(conversation_id, settings, run, queue, now, kind=kind)
    fence = before = None
    stored = _decode_lease(run) if run else _NO_LEASE
    active = stored.status in ("active", "stopping")
    if what == b"taken" and present.info is not None:
        fence, before = RunFence(stored.fence, present.info.run_id, kind), stored.unsettled_from or None
    lost = run_id.decode() if what == b"lost" and run_id else None
    look_in = present.look_in
    if what == b"busy" and run and not active:  # it is another waiter's turn
        look_in = (stored.freed - now) / 1000 + ANSWER_SECONDS
        look_in = look_in if look_in > 0 else _LOOK_AGAIN
    turn = read_taken(conversation_id, reply[5]) if len(reply) > 5 and reply[5] else None
    outcome = RunOutcome(what in _DONE, present.info, fence, lost, before, look_in, turn)
    over = (now - stored.expires) / 1000 if active else 0.0
    lease = (conversation_id, f"{kind} {stored.fence}")
    return _Reply(what, outcome, b"%d" % stored.fence, over, lease, present.dead)


def read_run(
    conversation_id: str, settings: Settings, run: bytes, queue: bytes, now: int, *, kind: LeaseKind = "run"
) -> Present:
    """The newest run from the fields R and Q of the state. `now`: milliseconds of the server's clock. Raises
    CorruptDataError."""
    if not run:
        return Present(None)
    dead, left = None, 0.0
    try:
        stored = _decode_lease(run)
        if stored.status in ("active", "stopping"):
            left = (stored.expires - now) / 1000
            if left <= 0:
                contact = _contact(conversation_id, settings)
                left = contact.spares((conversation_id, f"{kind} {stored.fence}"), -left)
                if not left:
                    dead, stored.status, stored.ended = stored.fence, "interrupted", stored.expires
        waiting = [
            RunWaiter(place.run_id, place.agent_name or None, _time(place.since))
            for place in (_decode_queue(queue) if queue else ())
            if place.expires > now
        ]
        former = tuple(_info(conversation_id, msgspec.convert(one, _Stored)) for one in stored.former)
        info = _info(conversation_id, stored, tuple(waiting), former)
    except UNREADABLE as error:
        raise CorruptDataError(f"the run of conversation {conversation_id[:80]!r} is unreadable: {error}") from error
    return Present(info, left if info.is_active else None, dead)


def bury_run(conversation_id: str, dead: int, settings: Settings) -> Steps[None]:
    """Note that the holder of an expired run is dead, so that it does not come back when others have seen its end."""
    try:
        yield from _with_turns(_call(conversation_id, settings, "bury", fence=b"%d" % dead), settings)
    except RedisHistoryError as error:
        _logger.info("the run of conversation %r could not be ended: %s", conversation_id[:80], error)


def _info(
    conversation_id: str, stored: _Stored, waiting: tuple[RunWaiter, ...] = (), former: tuple[RunInfo, ...] = ()
) -> RunInfo:
    return RunInfo(
        stored.run_id,
        conversation_id,
        stored.agent_name or None,
        cast(RunStatus, stored.status),
        _time(stored.started),
        _time(stored.ended) if stored.ended else None,
        stored.reason or None,
        waiting,
        stored.first_sequence,
        former,
    )


def is_active(run: bytes) -> bool:
    """Whether the run in the field R of the state has not ended, although it may have expired."""
    with suppress(*UNREADABLE):
        return _decode_lease(run).status in ("active", "stopping")
    return False


def _time(milliseconds: float) -> Any:
    return from_microseconds(round(1000 * milliseconds))


def _milliseconds(seconds: float) -> bytes:
    return b"%d" % round(1000 * seconds)


def _fence(fence: RunFence) -> dict[str, bytes]:
    return {"fence": b"%d" % fence.fence, "run_id": fence.run_id.encode()}


def _outcome(conversation_id: str, runs: Runs, done: bool, **fields: Any) -> RunOutcome:
    return RunOutcome(done, runs.info(conversation_id), look_in=runs.look_in, **fields)
