"""Small conversations of agents that number their calls alike, and the rules for calls and results in them.

This module does not use `redis_history.values.pairs`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import permutations

from redis_history import Message, Participant, assistant, tool, tool_result, tool_use

#: The steps of agents: `u` is a call, `r` its result, both with an id; `t` is a text.
SCRIPTS = [
    [["u1", "r1"], ["u1", "r1", "u1", "r1"]],
    [["u1", "r1", "u1", "r1"], ["u1", "t", "r1"]],
    [["u1", "u2", "r2", "r1"], ["u1", "r1", "u2"]],
    [["u1+u2", "r1", "r2"], ["u1", "u2", "r1+r2"]],
    [["u1", "u1", "r1"], ["u1", "r1", "t"]],
    [["u1", "r1"], ["u1", "r1"], ["u1", "r1"]],
    [["u1", "r1"], ["t", "u1"], ["u1", "r1"]],
]


def conversations(*, named: bool) -> Iterator[list[Message]]:
    """All interleavings of all scripts. The id of a message says who wrote it and as which step. `named`: messages have
    their agents as participants."""
    for scripts in SCRIPTS:
        turns = [agent for agent, script in enumerate(scripts) for _ in script]
        for order in sorted(set(permutations(turns))):
            steps = [enumerate(script) for script in scripts]
            yield [_message(agent, *next(steps[agent]), named=named) for agent in order]


def _message(agent: int, number: int, step: str, *, named: bool) -> Message:
    who = Participant("agent", f"agent {agent}") if named else None
    name = f"{agent}.{number}"
    if step == "t":
        return assistant("x", id=name, participant=who)
    ids = [one[1:] for one in step.split("+")]
    if step[0] == "u":
        return assistant(*(tool_use(one, "f") for one in ids), id=name, participant=who)
    return tool(*(tool_result(one, "x") for one in ids), id=name, participant=who)


def true_calls(messages: Iterable[Message]) -> set[tuple[str, str]]:
    """Message ids of each call and its result, where agents answer their own latest call, known by message ids."""
    open_calls: dict[tuple[str, str], list[str]] = {}
    found = set()
    for message in messages:
        agent = message.id.partition(".")[0]
        for use in message.tool_uses:
            open_calls.setdefault((agent, use.id), []).append(message.id)
        for result in message.tool_results:
            if calls := open_calls.get((agent, result.tool_use_id)):
                found.add((calls.pop(), message.id))
    return found


def counted(messages: Iterable[Message]) -> Counter[tuple[str, str]]:
    """The results that have a call if agents are unknown, by message and id of the call."""
    waiting: Counter[str] = Counter()
    found: Counter[tuple[str, str]] = Counter()
    for message in messages:
        waiting.update(use.id for use in message.tool_uses)
        for result in message.tool_results:
            if waiting[result.tool_use_id]:
                waiting[result.tool_use_id] -= 1
                found[message.id, result.tool_use_id] += 1
    return found


def naive_pairs(messages: Sequence[Message]) -> list[tuple[int, int, int, int]]:
    """The pairs by the definition, by reading everything again for each result: message and part of the call, and of
    the result. If a call has two results, the later one is its own."""
    results: dict[tuple[int, int], list[str | None]] = {}
    callers: dict[tuple[int, int], tuple[str, str | None]] = {}
    settled: set[tuple[int, int]] = set()
    answered_by_other: dict[str | None, tuple[int, int]] = {}
    found = []
    for index, message in enumerate(messages):
        if message.role == "system" or message.is_summary:
            continue
        who = message.participant
        agent = who.id if who is not None and who.kind == "agent" else None
        for at, part in enumerate(message.parts):
            if part in message.tool_uses:
                callers[index, at] = part.id, agent  # type: ignore[union-attr]
                results[index, at] = []
            elif part in message.tool_results:
                same = [place for place, (one, _) in callers.items() if one == part.tool_use_id]  # type: ignore[union-attr]
                own = [one for one in same if agent is not None and callers[one][1] == agent and one not in settled]
                free = [place for place in same if not results[place]]
                if own or free:
                    call = max(own or free)
                    results[call].append(agent)
                    caller = callers[call][1]
                    if agent is None or caller in (None, agent):
                        settled.add(call)
                    else:  # the caller's earlier call that another agent answered does not wait any longer
                        settled |= {answered_by_other[caller]} if caller in answered_by_other else set()
                        answered_by_other[caller] = call
                    found.append((*call, index, at))
    return found


def naive_groups(messages: Sequence[Message]) -> list[set[int]]:
    """The messages connected by pairs, the group of the oldest first."""
    found = [{index} for index in range(len(messages))]
    for call, _, result, _ in naive_pairs(messages):
        one = next(group for group in found if call in group)
        other = next(group for group in found if result in group)
        if one is not other:
            found.remove(other)
            one |= other
    return sorted(found, key=min)
