"""From an operation to a call of the server, and from its reply to the outcome. Pure: no I/O here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from redis_history.backends.redis import reading, writing
from redis_history.backends.redis.calls import Call, Settings, confirmed
from redis_history.backends.redis.keys import pack_keys
from redis_history.backends.redis.scripts import LEASE
from redis_history.operations import KeepLease, Lease, Op, TakeLease, Write

__all__ = ["plan"]

T = TypeVar("T")


def _take_lease(op: TakeLease, settings: Settings) -> Call:
    def taken(fence: int) -> Lease | None:
        return Lease(op.conversation_id, fence, op.claim) if fence else None

    return _lease(op.conversation_id, op.claim, op.seconds, settings, taken)


def _keep_lease(op: KeepLease, settings: Settings) -> Call:
    return _lease(op.conversation_id, op.lease.value, op.seconds, settings, bool)


def _lease(conversation_id: str, who: str, seconds: float, settings: Settings, decode: Callable[[int], object]) -> Call:
    keys = settings.keyspace.conversation(conversation_id)
    args = [who.encode(), b"%d" % round(1000 * seconds)]
    return Call(LEASE, pack_keys(keys.state, keys.lease), args, decode)


_PLANS: Final[dict[type, Callable[[Any, Settings], Call]]] = {
    **reading.PLANS,
    **writing.PLANS,
    KeepLease: _keep_lease,
    TakeLease: _take_lease,
}


def plan(op: Op[T], settings: Settings) -> Call:
    """The call that carries out `op`; its `decode` gives the outcome of `op`."""
    call = _PLANS[type(op)](op, settings)
    return confirmed(call, op, settings) if isinstance(op, Write) else call
