"""Group messages into turns, which are kept or left out as a whole: a tool call with its results. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from redis_history.model import Message, Part, ToolResultPart, ToolUsePart
from redis_history.model.pairs import Pairs, has_tools, pairs_of
from redis_history.prompt.projection import Voice, voice_of, with_parts
from redis_history.prompt.report import LeftOut, LeftOutReason

__all__ = ["Turn", "turns_of"]


class Turn(Struct, gc=False):
    """Messages that stay together in a prompt.

    `first`, `last`: indices of the first and last message. `sources`: its messages as stored; `indices`: their indices
    if there are several. `shown`: the messages for the prompt before projection, with results directly after their
    call. `leading`: a system message before all other messages.
    """

    first: int
    last: int
    voice: Voice
    sources: tuple[Message, ...]
    shown: tuple[Message, ...]
    indices: tuple[int, ...] = ()
    leading: bool = False

    def add(self, index: int, message: Message, shown: Message) -> None:
        """Add a result to the turn."""
        self.indices = (*(self.indices or (self.first,)), index)
        self.sources = (*self.sources, message)
        self.shown = (*self.shown, shown)
        self.last = max(self.last, index)


def turns_of(messages: Sequence[Message], own_ids: frozenset[str], left_out: dict[int, LeftOut]) -> list[Turn]:
    """The turns, ordered by their first message. Adds messages that cannot be shown to `left_out`, by index."""
    turns: list[Turn] = []
    tooled: Pairs | None = None
    leading = True
    for index, message in enumerate(messages):
        voice = voice_of(message, own_ids)
        if message.metadata and message.is_summary:
            told = [part for part in message.parts if not isinstance(part, ToolUsePart | ToolResultPart)]
            shown = message if len(told) == len(message.parts) else with_parts(message, told)
            turn = Turn(index, index, voice, (message,), (shown,))
        elif has_tools(message):
            if tooled is None:
                tooled = pairs_of(messages)
            found = _tool_turn(messages, index, voice, tooled, left_out, own_ids)
            if found is None:
                continue
            turn = found
        elif message.role == "tool":  # a tool message without a result
            left_out[index] = LeftOut(message.id, "pair")
            continue
        else:
            one = (message,)
            turn = Turn(index, index, voice, one, one)
        if voice is not Voice.SYSTEM:
            leading = leading and message.is_summary
        turn.leading = leading and voice is Voice.SYSTEM
        turns.append(turn)
    return turns


def _tool_turn(
    messages: Sequence[Message],
    index: int,
    voice: Voice,
    pairs: Pairs,
    left_out: dict[int, LeftOut],
    own_ids: frozenset[str],
) -> Turn | None:
    """The turn that begins with a message with tool calls or results; None if the message does not begin a turn."""
    message = messages[index]
    kept: list[Part] = []
    reason: LeftOutReason | None = None
    calls = carried = False
    for at, part in enumerate(message.parts):
        if type(part) is ToolUsePart:
            if voice is Voice.SELF and (index, at) in pairs.answered:
                calls = True
                kept.append(part)
            else:
                reason = "pair" if voice is Voice.SELF else "other_agent_tools"
        elif type(part) is ToolResultPart:
            call = pairs.call_of.get((index, at))
            if call is None:
                reason = "pair"
            elif voice_of(messages[call[0]], own_ids) is not Voice.SELF:
                reason = "other_agent_tools"
            elif call[0] == index:  # the provider ran the tool itself
                kept.append(part)
            else:
                carried = True
        else:
            kept.append(part)
    own = calls or (bool(kept) and not carried and message.role != "tool")
    if reason is not None:
        left_out[index] = LeftOut(message.id, reason, partial=own or carried)
    if not own:
        return None
    shown = message if len(kept) == len(message.parts) else with_parts(message, kept)
    turn = Turn(index, index, voice, (message,), (shown,))
    if calls:
        _add_results(turn, messages, index, pairs)
    return turn


def _add_results(turn: Turn, messages: Sequence[Message], call: int, pairs: Pairs) -> None:
    by_message: dict[int, set[int]] = {}
    for index, at in pairs.results[call]:
        if index != call:
            by_message.setdefault(index, set()).add(at)
    for index, places in by_message.items():
        message = messages[index]
        # Other parts of the message go with its last result, unless the message also calls tools.
        last = max(at for at in range(len(message.parts)) if (index, at) in pairs.call_of) in places
        rest = last and not any((index, at) in pairs.answered for at in range(len(message.parts)))
        parts = [
            part
            for at, part in enumerate(message.parts)
            if at in places or (rest and type(part) is not ToolResultPart and type(part) is not ToolUsePart)
        ]
        turn.add(index, message, message if len(parts) == len(message.parts) else with_parts(message, parts))
