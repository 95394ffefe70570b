"""Order tool calls and results as the APIs of providers require: each result directly after its call."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from redis_history.formats._losses import Losses, OnLoss
from redis_history.model import Message, ToolResultPart, ToolUsePart
from redis_history.model.pairs import pairs_of


def paired(messages: Iterable[Message], *, on_loss: OnLoss | None = None) -> list[Message]:
    """Move each tool result directly after its call, and leave out calls without a result and results without a call.

    APIs reject any other order. It occurs when several agents write to a conversation, when an agent dies between call
    and result, or when a result arrives after its call was removed. `on_loss` is called for each part that is left
    out; without it a warning is logged.
    """
    messages = list(messages)
    pairs = pairs_of(messages)
    out: list[list[Message]] = [[] for _ in messages]
    moved: list[tuple[int, Message]] = []  # behind the message with this index
    with Losses("a request", on_loss) as losses:
        for index, message in enumerate(messages):
            rest: list[int] = []
            results: dict[int, list[int]] = {}  # by the index of the message with their calls
            for at, part in enumerate(message.parts):
                call = pairs.call_of.get((index, at))
                if type(part) is ToolUsePart and (index, at) not in pairs.answered:
                    losses.add(message.id, at, "a tool call without a result")
                elif type(part) is not ToolResultPart or (call is not None and call[0] == index):
                    rest.append(at)
                elif call is None:
                    losses.add(message.id, at, "a tool result without its call")
                else:
                    results.setdefault(call[0], []).append(at)
            if len(results) == 1 and not any(type(message.parts[at]) is ToolUsePart for at in rest):
                ((target, places),) = results.items()  # the message moves as a whole, with its other parts
                results, rest = {target: sorted(places + rest)}, []
            if rest or not message.parts:
                out[index].append(_with_parts(message, rest))
            moved += [(target, _with_parts(message, places)) for target, places in results.items()]
    for target, message in moved:
        out[target].append(message)
    return [message for group in out for message in group]


def _with_parts(message: Message, places: list[int]) -> Message:
    if len(places) == len(message.parts):
        return message
    return replace(message, parts=tuple(message.parts[at] for at in places))
