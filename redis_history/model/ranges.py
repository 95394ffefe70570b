"""Which messages may leave together: ranges at the beginning of a conversation that tear no tool call from its result.

A result belongs to the nearest earlier call of its id. A call without a result still waits for it, and so must stay,
until whoever made it has spoken again after hearing something else: then it was given up. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from redis_history.model.message import Message
from redis_history.model.parts import ToolResultPart, ToolUsePart

__all__ = ["good_ends", "stays", "touched_calls", "unanswered"]


def stays(message: Message) -> bool:
    """Whether compaction leaves a message where it is."""
    return message.role == "system" and not message.is_summary


def unanswered(messages: Iterable[Message]) -> set[str]:
    """Ids of the calls that have no result (yet)."""
    waiting: set[str] = set()
    for message in messages:
        for part in () if stays(message) else message.parts:
            if type(part) is ToolUsePart:
                waiting.add(part.id)
            elif type(part) is ToolResultPart:
                waiting.discard(part.tool_use_id)
    return waiting


def touched_calls(message: Message) -> set[str]:
    """Ids of the calls that a message makes or answers: after it, none of them is the same any more."""
    if stays(message):
        return set()
    uses = {part.id for part in message.tool_uses}
    return uses | {part.tool_use_id for part in message.tool_results}


class _Call:
    """A call without a result: where it was made, by whom, and whether somebody else has spoken since, and its maker
    again."""

    __slots__ = ("at", "given_up", "heard", "speaker")

    def __init__(self, at: int, speaker: Any) -> None:
        self.at = at
        self.speaker = speaker
        self.heard = self.given_up = False


def good_ends(messages: Sequence[Message]) -> list[bool]:
    """For each message whether a range from the first one to it tears nothing; `messages` reach to where all calls are
    answered, or to the end of the conversation."""
    whole = [True] * len(messages)
    waiting: dict[str, _Call] = {}
    for index, message in enumerate(messages):
        if stays(message):
            continue
        speaker = _speaker(message)
        for call in waiting.values():
            if speaker != call.speaker:
                call.heard = True
            elif call.heard:
                call.given_up = True
        for part in message.parts:
            if type(part) is ToolUsePart:
                waiting[part.id] = _Call(index, speaker)
            elif type(part) is ToolResultPart and (answered := waiting.pop(part.tool_use_id, None)) is not None:
                whole[answered.at : index] = [False] * (index - answered.at)
    first = min((call.at for call in waiting.values() if not call.given_up), default=len(messages))
    whole[first:] = [False] * (len(messages) - first)
    return whole


def _speaker(message: Message) -> Any:
    return message.role, None if message.participant is None else message.participant.id
