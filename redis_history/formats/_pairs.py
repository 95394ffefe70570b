"""Tool calls and results as the APIs of providers want them: each result right behind its call, and none alone."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from redis_history.formats._loss import Losses, OnLoss
from redis_history.model import Message, ToolResultPart, ToolUsePart
from redis_history.model.calls import OpenCalls

__all__ = ["paired"]


def paired(messages: Iterable[Message], *, on_loss: OnLoss | None = None) -> list[Message]:
    """The messages with each tool result behind its call, before what others said in between; without calls that have
    no result, and results that have no call.

    An API refuses anything else, and a conversation that many write may have it: an agent dies between call and
    result, or a result comes when its call has left. `on_loss` is called for what is left out; without it a warning is
    logged.
    """
    messages = list(messages)
    calls: OpenCalls[tuple[int, int]] = OpenCalls()
    answered: set[tuple[int, int]] = set()
    call_of: dict[tuple[int, int], int] = {}  # of each result, where its call is
    for index, message in enumerate(messages):
        for at, part in enumerate(message.parts):
            if type(part) is ToolUsePart:
                calls.call(part.id, message.participant, (index, at))
            elif type(part) is ToolResultPart and (call := calls.answer(part.tool_use_id, message.participant)):
                answered.add(call)
                call_of[index, at] = call[0]
    return _ordered(messages, answered, call_of, Losses("a request", on_loss))


def _ordered(
    messages: list[Message], answered: set[tuple[int, int]], call_of: dict[tuple[int, int], int], losses: Losses
) -> list[Message]:
    staying: list[list[Message]] = []
    behind: dict[int, list[Message]] = {}
    for index, message in enumerate(messages):
        rest: list[int] = []
        results: dict[int, list[int]] = {}  # by where their calls are
        for at, part in enumerate(message.parts):
            if type(part) is ToolResultPart and call_of.get((index, at)) != index:
                if (call := call_of.get((index, at))) is None:
                    losses.add(message.id, at, "a tool result whose call is not there")
                else:
                    results.setdefault(call, []).append(at)
            elif type(part) is ToolUsePart and (index, at) not in answered:
                losses.add(message.id, at, "a tool call without a result")
            else:
                rest.append(at)
        if len(results) == 1 and not any(type(message.parts[at]) is ToolUsePart for at in rest):
            ((call, places),) = results.items()  # what is beside them goes with them
            results, rest = {call: sorted(places + rest)}, []
        staying.append([_with(message, rest)] if rest or not message.parts else [])
        for call, places in results.items():
            behind.setdefault(call, []).append(_with(message, places))
    losses.close()
    return [message for index, its in enumerate(staying) for message in (*its, *behind.get(index, ()))]


def _with(message: Message, places: list[int]) -> Message:
    if len(places) == len(message.parts):
        return message
    return replace(message, parts=tuple(message.parts[at] for at in places))
