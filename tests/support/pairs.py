"""Small conversations of agents that number their calls alike, and what must hold of calls and results in them.

This module does not use `redis_history.model.pairs`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from redis_history import Message, Participant, assistant, tool, tool_result, tool_use

__all__ = ["conversations", "counted", "interleavings", "naive_groups", "naive_pairs", "true_calls"]

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


def interleavings(scripts: Sequence[Sequence[str]]) -> Iterator[list[tuple[int, int, str]]]:
    """Every order in which agents can take their steps: agent, number of its step, step."""

    def following(taken: tuple[int, ...]) -> Iterator[list[tuple[int, int, str]]]:
        if all(done == len(script) for done, script in zip(taken, scripts, strict=True)):
            yield []
        for agent, done in enumerate(taken):
            if done < len(scripts[agent]):
                rest = (*taken[:agent], done + 1, *taken[agent + 1 :])
                for later in following(rest):
                    yield [(agent, done, scripts[agent][done]), *later]

    return following((0,) * len(scripts))


def conversations(*, named: bool) -> Iterator[list[Message]]:
    """All interleavings of all scripts. The id of a message says who wrote it and as which step. `named`: messages have
    their agents as participants."""
    for scripts in SCRIPTS:
        for steps in interleavings(scripts):
            yield [_message(agent, number, step, named=named) for agent, number, step in steps]


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
    """Message ids of each call and its result, where agents answer their own latest call: what an observer knows who
    sees everything that was ever said. By the ids of the messages, not by their participants."""
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
    """The results that have a call if nobody knows agents, by message and id of the call: those that come when there
    were more calls of their id than results with a call."""
    waiting: Counter[str] = Counter()
    found: Counter[tuple[str, str]] = Counter()
    for message in messages:
        for use in message.tool_uses:
            waiting[use.id] += 1
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
    own_result: set[tuple[int, int]] = set()
    lent: dict[str | None, list[tuple[int, int]]] = {}
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
                own = [
                    place
                    for place in same
                    if agent is not None and callers[place][1] == agent and place not in own_result
                ]
                free = [place for place in same if not results[place]]
                if own or free:
                    call = max(own or free)
                    results[call].append(agent)
                    caller = callers[call][1]
                    if agent is None or caller in (None, agent):
                        own_result.add(call)
                    else:  # the one before that another agent has answered waits no longer
                        own_result.update(lent.get(caller, ()))
                        lent[caller] = [call]
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
