"""The calls for the run of a conversation, and for the lease of a compressor: see lua/run.lua."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from redis_history.errors import CorruptDataError
from redis_history.model.runs import PLACE_SECONDS, RunInfo, RunWaiter
from redis_history.model.times import from_microseconds
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
from redis_history.operations.base import FIELDS, RUN, Call, Settings, Steps
from redis_history.operations.keys import pack_keys

_PLACE_MS: Final = b"%d" % round(1000 * PLACE_SECONDS)
#: A call that takes so many seconds counts as an outage, during which nobody could renew a lease.
_SLOW: Final = 3.0
_decode = msgspec.msgpack.Decoder().decode


def read_run(
    conversation_id: str, run: bytes, queue: bytes, now: int, *, outage: bool
) -> tuple[RunInfo | None, float | None]:
    """The newest run from the fields R and Q of the state, and the seconds until it expires; None if it is not active.
    `now`: milliseconds of the server's clock. After an `outage` nobody could renew it, so it does not expire. Raises
    CorruptDataError."""
    if not run:
        return None, None
    try:
        _, run_id, agent, status, started, expires, ended, reason, *_ = _decode(run)
        expired = status in ("active", "stopping") and expires <= now
        if expired and not outage:
            status, ended = "interrupted", expires
        waiting = [
            RunWaiter(place[0], place[1] or None, _time(place[2]))
            for place in (_decode(queue) if queue else ())
            if place[3] > now
        ]
        info = RunInfo(
            run_id, conversation_id, agent or None, status, _time(started), _time(ended) if ended else None,
            reason or None, tuple(waiting),
        )  # fmt: skip
    except (msgspec.MsgspecError, TypeError, ValueError, IndexError) as error:
        raise CorruptDataError(f"the run of conversation {conversation_id[:80]!r} is unreadable: {error}") from error
    left = 1.0 if expired else (expires - now) / 1000
    return info, left if info.is_active else None


def is_active(run: bytes) -> bool:
    """Whether the run in the field R of the state has not ended, although it may have expired."""
    with suppress(msgspec.MsgspecError, TypeError, IndexError):
        return _decode(run)[3] in ("active", "stopping")
    return False


def _time(milliseconds: int) -> Any:
    return from_microseconds(1000 * milliseconds)


class _Reply(NamedTuple):
    what: bytes
    outcome: RunOutcome
    #: The number of the lease that has expired, if `what` is b"expired".
    number: bytes


def _call(
    conversation_id: str, settings: Settings, action: bytes, *args: bytes, kind: LeaseKind = "run", keys: int = 1
) -> Call:
    """`keys`: how many of state, log and registry the action needs."""
    known = settings.keyspace.conversation(conversation_id)
    packed = pack_keys(*(known.state, known.log, known.registry)[:keys])
    return Call(RUN, packed, [action, FIELDS[kind], *args], partial(_read, conversation_id, kind, settings))


def _read(conversation_id: str, kind: LeaseKind, settings: Settings, reply: list[Any]) -> _Reply:
    what, run, queue, now, run_id = reply
    info, expires = read_run(conversation_id, run, queue, now, outage=settings.outage.is_recent)
    fence = before = None
    number, *_, former = _decode(run) if run else (0, 0)
    if what == b"taken" and info is not None:
        fence, before = RunFence(number, info.run_id, kind), _time(former) if former else None
    lost = run_id.decode() if what == b"lost" and run_id else None
    return _Reply(what, RunOutcome(what in _DONE, info, fence, lost, before, expires), b"%d" % number)


_DONE: Final = (b"taken", b"kept", b"ended", b"stopping", b"read")


def _take(op: TakeRun, settings: Settings) -> Steps[RunOutcome]:
    """Two calls if the present lease has expired: after the first one, this store knows whether there was an outage,
    in which its holder could not renew it."""
    callers = [text.encode() for run_id, agent in op.callers for text in (run_id, agent or "")]
    before = [_milliseconds(op.seconds), b"1" if op.wait else b"0", _PLACE_MS]
    name, started = settings.keyspace.conversation(op.conversation_id).name, time.monotonic()
    first = *before, b"0", name, *callers
    reply: _Reply = yield _call(op.conversation_id, settings, b"take", *first, kind=op.kind, keys=3)
    if time.monotonic() - started > _SLOW:
        settings.outage.note()
    if reply.what == b"expired" and not settings.outage.is_recent:
        second = *before, reply.number, name, *callers
        reply = yield _call(op.conversation_id, settings, b"take", *second, kind=op.kind, keys=3)
    return reply.outcome


def _keep(op: KeepRuns, settings: Settings) -> Steps[list[RunOutcome]]:
    def calls(runs: list[tuple[str, RunFence]], expired: bytes) -> list[Call]:
        args = expired, _milliseconds(op.seconds)
        return [_call(name, settings, b"keep", *_fence(fence), *args, kind=fence.kind) for name, fence in runs]

    if not op.runs:
        return []
    replies: list[_Reply] = yield calls([*op.runs], b"0")
    again = [index for index, reply in enumerate(replies) if reply.what == b"expired"]
    if again and settings.outage.is_recent:
        kept = yield calls([op.runs[index] for index in again], b"1")
        for index, reply in zip(again, kept, strict=True):
            replies[index] = reply
    return [reply.outcome for reply in replies]


def _milliseconds(seconds: float) -> bytes:
    return b"%d" % round(1000 * seconds)


def _fence(fence: RunFence) -> tuple[bytes, bytes]:
    return b"%d" % fence.fence, fence.run_id.encode()


def _end(op: EndRun, settings: Settings) -> Steps[RunOutcome]:
    name = settings.keyspace.conversation(op.conversation_id).name
    for expired in (b"0", b"1"):
        args = *_fence(op.fence), expired, op.status.encode(), name, _milliseconds(op.rest)
        reply: _Reply = yield _call(op.conversation_id, settings, b"end", *args, kind=op.fence.kind, keys=3)
        if reply.what != b"expired" or not settings.outage.is_recent:
            break
    # Asked to stop, and not ended: see EndRun.
    return msgspec.structs.replace(reply.outcome, done=reply.what == b"ended")


def _stop(op: StopRun, settings: Settings) -> Steps[RunOutcome]:
    expired = b"1" if settings.outage.is_recent else b"0"
    args = op.run_id.encode(), (op.reason or "").encode(), expired
    reply: _Reply = yield _call(op.conversation_id, settings, b"stop", *args, keys=2)
    return reply.outcome


def _leave(op: LeaveRun, settings: Settings) -> Steps[RunOutcome]:
    reply: _Reply = yield _call(op.conversation_id, settings, b"leave", *map(str.encode, op.run_ids), keys=2)
    return reply.outcome


def _read_run(op: ReadRun, settings: Settings) -> Steps[RunOutcome]:
    reply: _Reply = yield _call(op.conversation_id, settings, b"read")
    return reply.outcome


PLANS: Final[dict[type, Callable[[Any, Settings], Steps[Any]]]] = {
    EndRun: _end,
    KeepRuns: _keep,
    LeaveRun: _leave,
    ReadRun: _read_run,
    StopRun: _stop,
    TakeRun: _take,
}
