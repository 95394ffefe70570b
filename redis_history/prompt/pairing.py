"""Which tool result answers which tool call, also if many agents write at once. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from redis_history.model import Message, ToolResultPart, ToolUsePart

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
    """A result answers the nearest earlier call of its id that has no result yet: one by its own participant, if there
    is one, for agents that number their calls alike."""
    pairs = Pairs()
    calls: dict[str, list[Place]] = {}  # without a result yet
    for index, message in enumerate(messages):
        if message.is_summary:  # it stands for others, and calls nothing itself
            continue
        for at, part in enumerate(message.parts):
            if type(part) is ToolUsePart:
                calls.setdefault(part.id, []).append((index, at))
            elif type(part) is ToolResultPart and (waiting := calls.get(part.tool_use_id)):
                call = _of_the_same(messages, waiting, message) or waiting[-1]
                waiting.remove(call)
                pairs.answered.add(call)
                pairs.call_of[index, at] = call
                pairs.results.setdefault(call[0], []).append((index, at))
    return pairs


def _of_the_same(messages: Sequence[Message], waiting: list[Place], result: Message) -> Place | None:
    if result.participant is None:
        return None
    for place in reversed(waiting):
        caller = messages[place[0]].participant
        if caller is not None and caller.id == result.participant.id and caller.kind == result.participant.kind:
            return place
    return None
