"""The calls for the run of a conversation: see lua/run.lua."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from redis_history._time import from_microseconds
from redis_history.backends.redis.calls import RUN, Call, Settings, Steps
from redis_history.backends.redis.keys import pack_keys
from redis_history.errors import CorruptDataError
from redis_history.model.runs import PLACE_SECONDS, RUN_SECONDS, RunInfo, RunWaiter
from redis_history.operations import EndRun, KeepRuns, LeaveRun, ReadRun, RunFence, RunOutcome, StopRun, TakeRun

_RUN_MS: Final = b"%d" % round(1000 * RUN_SECONDS)
_PLACE_MS: Final = b"%d" % round(1000 * PLACE_SECONDS)
_decode = msgspec.msgpack.Decoder().decode


def read_run(conversation_id: str, run: bytes, queue: bytes, now: int) -> tuple[RunInfo | None, float | None]:
    """The newest run from the fields R and Q of the state, and the seconds until it expires; None if it is not active.
    `now`: milliseconds of the server's clock. Raises CorruptDataError."""
    if not run:
        return None, None
    try:
        _, run_id, agent, status, started, expires, ended, reason, *_ = _decode(run)
        if status in ("active", "stopping") and expires <= now:
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
    return info, (expires - now) / 1000 if info.is_active else None


def _time(milliseconds: int) -> Any:
    return from_microseconds(1000 * milliseconds)


def _call(conversation_id: str, settings: Settings, *args: bytes) -> Call:
    keys = settings.keyspace.conversation(conversation_id)
    return Call(RUN, pack_keys(keys.state, keys.log), [*args], partial(_outcome, conversation_id))


def _outcome(conversation_id: str, reply: list[Any]) -> RunOutcome:
    what, run, queue, now, run_id = reply
    info, expires = read_run(conversation_id, run, queue, now)
    fence = before = None
    if what == b"taken" and info is not None:
        number, *_, former = _decode(run)
        fence, before = RunFence(number, info.run_id), _time(former) if former else None
    lost = run_id.decode() if what == b"lost" and run_id else None
    return RunOutcome(what in _DONE, info, fence, lost, before, expires)


_DONE: Final = (b"taken", b"kept", b"ended", b"stopping", b"read")


def _take(op: TakeRun, settings: Settings) -> Call:
    callers = [text.encode() for run_id, agent in op.callers for text in (run_id, agent or "")]
    return _call(op.conversation_id, settings, b"take", _RUN_MS, b"1" if op.wait else b"0", _PLACE_MS, *callers)


def _keep(op: KeepRuns, settings: Settings) -> Steps[list[RunOutcome]]:
    if not op.runs:
        return []
    outcomes: list[RunOutcome] = yield [
        _call(conversation_id, settings, b"keep", *_fence(fence), _RUN_MS) for conversation_id, fence in op.runs
    ]
    return outcomes


def _fence(fence: RunFence) -> tuple[bytes, bytes]:
    return b"%d" % fence.fence, fence.run_id.encode()


def _end(op: EndRun, settings: Settings) -> Call:
    return _call(op.conversation_id, settings, b"end", *_fence(op.fence), op.status.encode())


def _stop(op: StopRun, settings: Settings) -> Call:
    return _call(op.conversation_id, settings, b"stop", op.run_id.encode(), (op.reason or "").encode())


def _leave(op: LeaveRun, settings: Settings) -> Call:
    return _call(op.conversation_id, settings, b"leave", *map(str.encode, op.run_ids))


def _read(op: ReadRun, settings: Settings) -> Call:
    return _call(op.conversation_id, settings, b"read")


CALLS: Final[dict[type, Callable[[Any, Settings], Call]]] = {
    EndRun: _end,
    LeaveRun: _leave,
    ReadRun: _read,
    StopRun: _stop,
    TakeRun: _take,
}
PLANS: Final[dict[type, Callable[[Any, Settings], Steps[Any]]]] = {KeepRuns: _keep}
