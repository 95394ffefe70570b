"""From messages to turns: what stays or goes as a whole, a tool call together with its results. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from redis_history.model import Message, Part, ToolResultPart, ToolUsePart
from redis_history.prompt.pairing import Pairs, has_tools, pair_tools
from redis_history.prompt.projection import Voice, voice_of, with_parts
from redis_history.prompt.report import LeftOut, LeftOutReason

__all__ = ["Turn", "turns_of"]


class Turn(Struct, gc=False):
    """`first` and `last`: where it begins and ends. `sources`: its messages as they are stored; `indices`: where, if
    there are several. `shown`: what a prompt would show of them, in order, before it is projected; results stand
    right behind their call. `leading`: of the system, and before all that others said."""

    first: int
    last: int
    voice: Voice
    sources: tuple[Message, ...]
    shown: tuple[Message, ...]
    indices: tuple[int, ...] = ()
    leading: bool = False

    def add(self, index: int, message: Message, shown: Message) -> None:
        """One of its results."""
        self.indices = (*(self.indices or (self.first,)), index)
        self.sources = (*self.sources, message)
        self.shown = (*self.shown, shown)
        self.last = max(self.last, index)


def turns_of(messages: Sequence[Message], own_ids: frozenset[str], left_out: dict[int, LeftOut]) -> list[Turn]:
    """The turns, by their first message. What cannot be shown is put into `left_out`, by index."""
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
                tooled = pair_tools(messages)
            found = _tool_turn(messages, index, voice, tooled, left_out, own_ids)
            if found is None:
                continue
            turn = found
        elif message.role == "tool":  # a result without a result
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
    """The turn that begins with a message that has tool calls, results or both; None: there is none of its own."""
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
            elif call[0] == index:  # a tool that the provider ran itself
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
        # What is beside the results goes with the last of them, unless the message calls tools itself.
        last = max(at for at in range(len(message.parts)) if (index, at) in pairs.call_of) in places
        rest = last and not any((index, at) in pairs.answered for at in range(len(message.parts)))
        parts = [
            part
            for at, part in enumerate(message.parts)
            if at in places or (rest and type(part) is not ToolResultPart and type(part) is not ToolUsePart)
        ]
        turn.add(index, message, message if len(parts) == len(message.parts) else with_parts(message, parts))
