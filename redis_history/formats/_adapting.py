"""Adapt a conversation to a provider that cannot have some of its items, because another provider made them.

- A call that another provider ran itself is a call like any other here. With the parts before it, it becomes a message
  of its own, which its result follows; other calls of its message come after that.
- An opaque item of another provider cannot be sent. So the other half of its pair is left out, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from redis_history.formats._losses import Losses
from redis_history.formats._pairing import Piece, whole, with_parts
from redis_history.values import Message, Part, ToolResultPart, ToolUsePart, UnknownPart
from redis_history.values.pairing import in_pair, is_marked, is_result, pairing
from redis_history.values.pairs import Pairs, Place, pairs_of
from redis_history.values.reasoning_parts import with_reasoning


def adapted(messages: Iterable[Message], is_own: Callable[[Part], bool], losses: Losses) -> Iterable[Piece]:
    """The messages for a provider, each with the places of its parts in the message that they come from. `is_own`:
    whether a part is an item of this provider."""
    given = list(messages)
    hosted, opaque = set[Place](), set[Place]()
    for index, message in enumerate(given):
        for at, part in enumerate(message.parts):
            kind = type(part)
            if kind is UnknownPart and in_pair(part) and not is_own(part):
                opaque.add((index, at))
            elif kind is not ToolUsePart or message.role != "assistant" or not is_marked(part):
                continue
            elif pairing(part).hosted and not is_own(part):
                hosted.add((index, at))
    if not hosted and not opaque:
        return map(whole, given)
    pairs = pairs_of(given)
    halves, results = _halves(given, pairs, opaque), _results(given, pairs, hosted)
    moved = set(results.values())
    out: list[Piece] = []
    for index, message in enumerate(given):
        gone = with_reasoning(message, halves.get(index, ()))
        for at in sorted(gone):
            losses.add(message.id, at, "the other half of an opaque part of another provider")
        rest = [at for at in range(len(message.parts)) if at not in gone and (index, at) not in moved]
        calls = [at for at in rest if (index, at) in results]
        now: list[int] = []
        later: list[int] = []
        for at in rest:
            is_before = calls and at < calls[-1] and at not in calls and type(message.parts[at]) is ToolUsePart
            (later if is_before else now).append(at)
            if at in calls:
                where, place = results[index, at]
                out.append((with_parts(message, now), now))
                out.append((with_parts(given[where], (place,), "tool"), (place,)))
                now = []
        if now or later or not message.parts:
            out.append((with_parts(message, now + later), now + later))
    return out


def _halves(messages: Sequence[Message], pairs: Pairs, opaque: Collection[Place]) -> dict[int, set[int]]:
    """The calls with an opaque result, and the results of opaque calls, by message."""
    found: dict[int, set[int]] = {}
    for call, result in pairs.answered.items():
        if (call in opaque) != (result in opaque) and is_result(messages[result[0]].parts[result[1]]):
            index, at = call if result in opaque else result
            found.setdefault(index, set()).add(at)
    return found


def _results(messages: Sequence[Message], pairs: Pairs, hosted: Collection[Place]) -> dict[Place, Place]:
    """The results of these calls of assistants, also those that come after other calls that the code of a call made."""
    found: dict[Place, Place] = {}
    for (index, at), opened in pairs.call_of.items() if hosted else ():
        result, call = messages[index].parts[at], messages[opened[0]].parts[opened[1]]
        answers = pairing(result).answers[-1:]
        while is_result(result) and pairing(call).opens[-1:] != answers and opened in pairs.call_of:
            opened = pairs.call_of[opened]  # the code of this call made the other one
            call = messages[opened[0]].parts[opened[1]]
        if opened in hosted and type(result) is ToolResultPart and pairing(call).opens[-1:] == answers:
            found[opened] = (index, at)
    return found
