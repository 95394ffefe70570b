"""Which messages stand or fall together: tool calls and their results. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from redis_history.model import Message, ToolResultPart, ToolUsePart

__all__ = ["groups", "results"]


def groups(messages: Sequence[Message]) -> list[int]:
    """For each message, the index of the first one of its group; a message without tools is a group of its own.

    A result belongs to the nearest earlier call of its id, because ids repeat in real conversations.
    """
    first = list(range(len(messages)))
    calls: dict[str, int] = {}

    def root(index: int) -> int:
        while first[index] != index:
            first[index] = first[first[index]]
            index = first[index]
        return index

    for index, message in enumerate(messages):
        for part in message.parts:
            if type(part) is ToolUsePart:
                calls[part.id] = index
            elif type(part) is ToolResultPart and part.tool_use_id in calls:
                one, other = root(calls[part.tool_use_id]), root(index)
                first[max(one, other)] = min(one, other)
    return [root(index) for index in range(len(messages))]


def results(messages: Sequence[Message]) -> Iterator[tuple[int, int, ToolResultPart, ToolUsePart | None, int]]:
    """Every tool result, oldest first: index of its message, index of its part, itself, its call, and which of the
    results of this id it is, from 1."""
    calls: dict[str, ToolUsePart] = {}
    seen: dict[str, int] = {}
    for index, message in enumerate(messages):
        for place, part in enumerate(message.parts):
            if type(part) is ToolUsePart:
                calls[part.id] = part
            elif type(part) is ToolResultPart:
                seen[part.tool_use_id] = seen.get(part.tool_use_id, 0) + 1
                yield index, place, part, calls.get(part.tool_use_id), seen[part.tool_use_id]
