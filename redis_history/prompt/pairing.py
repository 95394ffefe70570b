"""Where the tool calls and results of a prompt are. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from redis_history.model import Message, ToolResultPart, ToolUsePart
from redis_history.model.calls import OpenCalls

__all__ = ["Pairs", "has_tools", "pair_tools"]

_TOOLS = (ToolUsePart, ToolResultPart)

#: A part of a message: the index of the message, and that of the part in it.
Place = tuple[int, int]


class Pairs:
    """`results`: for each message that calls tools, by index, the places of the results, in order. `call_of`: the
    call that a result answers. `answered`: the calls that have one."""

    def __init__(self) -> None:
        self.results: dict[int, list[Place]] = {}
        self.call_of: dict[Place, Place] = {}
        self.answered: set[Place] = set()


def has_tools(message: Message) -> bool:
    for part in message.parts:  # noqa: SIM110 -- half the time of any(), and this runs for every message of a prompt
        if type(part) in _TOOLS:
            return True
    return False


def pair_tools(messages: Sequence[Message]) -> Pairs:
    """Which result answers which call, by the rule of `OpenCalls`."""
    pairs = Pairs()
    calls: OpenCalls[Place] = OpenCalls()
    for index, message in enumerate(messages):
        if message.is_summary:  # it stands for others, and calls nothing itself
            continue
        for at, part in enumerate(message.parts):
            if type(part) is ToolUsePart:
                calls.call(part.id, message.participant, (index, at))
            elif type(part) is ToolResultPart:
                call = calls.answer(part.tool_use_id, message.participant)
                if call is not None:
                    pairs.answered.add(call)
                    pairs.call_of[index, at] = call
                    pairs.results.setdefault(call[0], []).append((index, at))
    return pairs
