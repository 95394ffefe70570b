"""Takes the steps of an operation one by one."""

from typing import Any

from redis_history.store.operations import Op
from redis_history.store.operations.base import Call, Upkeep
from redis_history.store.operations.settings import Settings


def first_call(op: Op[Any], settings: Settings, *reads: Any) -> Call:
    """The first call of an operation, after those with these outcomes."""
    steps = op.steps(settings)
    call = next(steps)
    for outcome in reads:
        call = steps.send(outcome)
    assert type(call) is Call
    return call


def outcome(op: Op[Any], settings: Settings, reply: Any) -> Any:
    """The outcome of an operation with a single call, from its reply. Upkeep after it is left out."""
    steps = op.steps(settings)
    step = next(steps)
    try:
        step = steps.send(step.decode(reply))
        assert type(step) is Upkeep
        steps.send(True)
    except StopIteration as end:
        return end.value
    raise AssertionError("it takes another call")
