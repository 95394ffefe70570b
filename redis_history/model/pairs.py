"""Which tool result answers which tool call, and which messages stay or leave together. Pure.

This is the specification; `_trim.lua` follows it on the server.

1. A message of role system and a summary neither call nor answer: they stay, or stand for others. In all other messages
   each tool use is a call and each tool result is a result, in the order of the messages and of their parts.
2. A message is *by an agent* if its participant has the kind "agent". Agents are the same if their ids are.
3. A result by an agent answers the latest earlier call of its id by this agent that has no result of its own yet.
4. Otherwise it answers the latest earlier call of its id, by anybody, that has no result at all.
5. The call is settled then, unless call and result are by two different agents. In that case the result may belong
   to a call that is gone, so the agent that called may still answer by rule 3, until another agent
   answers one more of its calls. Its result then takes the place of the other, which answers nothing any more, but
   stays or leaves with the call.
6. A result for which no call is left answers nothing, so the second result of a call answers nothing.
   A call that no result answers has none: it leaves alone.

Why the latest: an agent that dies never answers, and its ids come back in the next run. Why the agent: several agents
number their calls alike and write at once.

*Messages of one group* are those connected by calls and results, directly or through others. When messages leave in
whole groups, every result that stays keeps its call.

A *cap* takes the group of the oldest message, then that of the oldest of the rest, until no more messages are there
than allowed. So nothing leaves that is not among the excess oldest messages, or in a group with one of them, and no
group leaves once the cap holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from msgspec.structs import replace

from redis_history.model.message import Message
from redis_history.model.parts import ToolResultPart, ToolUsePart
from redis_history.model.wire import body_digest

T = TypeVar("T")
_TOOLS = (ToolUsePart, ToolResultPart)
_DIGEST = 4

#: A part of a message: the index of the message, and that of the part in it.
Place = tuple[int, int]


class ToolMark(NamedTuple):
    """A call or a result: its id and the agent that wrote it (or None), each as text or as digest."""

    is_call: bool
    call_id: str | bytes
    agent: str | bytes | None


class _Call(Generic[T]):
    """`answered`: it has a result. `waits`: a result may come that answers it."""

    __slots__ = ("agent", "answered", "waits", "what")

    def __init__(self, agent: str | bytes | None, what: T) -> None:
        self.agent, self.what = agent, what
        self.answered, self.waits = False, True


class OpenCalls(Generic[T]):
    """The calls that a result may still answer, each with a value `what`. Iteration yields these values.

    Add calls and results in the order of the conversation. `closed` is called for each call that no further result can
    answer.
    """

    def __init__(self, closed: Callable[[T], None] | None = None) -> None:
        self._closed = closed
        self._waiting: dict[_Call[T], None] = {}
        self._unanswered: dict[str | bytes, list[_Call[T]]] = {}
        self._own: dict[tuple[str | bytes, str | bytes], list[_Call[T]]] = {}
        # For each agent, its latest call that another agent has answered.
        self._lent: dict[str | bytes, _Call[T]] = {}

    def __iter__(self) -> Iterator[T]:
        for call in self._waiting:
            yield call.what

    def call(self, call_id: str | bytes, agent: str | bytes | None, what: T) -> None:
        call = _Call(agent, what)
        self._waiting[call] = None
        self._unanswered.setdefault(call_id, []).append(call)
        if agent is not None:
            self._own.setdefault((call_id, agent), []).append(call)

    def answer(self, call_id: str | bytes, agent: str | bytes | None) -> T | None:
        """The `what` of the call that a result answers; None if it answers none."""
        found = None
        own = () if agent is None else self._own.get((call_id, agent), ())
        while own and found is None:
            last = own.pop()
            found = last if last.waits else None
        unanswered = self._unanswered.get(call_id, ())
        while unanswered and found is None:
            last = unanswered.pop()
            found = None if last.answered else last
        if found is None:
            return None
        found.answered = True
        if agent is None or found.agent is None or found.agent == agent:
            self._close(found)
        else:
            if (other := self._lent.get(found.agent)) is not None and other.waits:
                self._close(other)
            self._lent[found.agent] = found
        return found.what

    def _close(self, call: _Call[T]) -> None:
        call.waits = False
        del self._waiting[call]
        if self._closed is not None:
            self._closed(call.what)


class _Groups:
    """The groups of messages that are added one after the other, by index."""

    def __init__(self) -> None:
        self._calls: OpenCalls[int] = OpenCalls(self._close)
        self._parent: list[int] = []
        #: For the first message of each group: how many messages it has, and how many of its calls wait.
        self.size: list[int] = []
        self.waiting: list[int] = []

    def first(self, index: int) -> int:
        """The first message of the group."""
        parent = self._parent
        while parent[index] != index:
            parent[index] = index = parent[parent[index]]
        return index

    def _close(self, index: int) -> None:
        self.waiting[self.first(index)] -= 1

    def add(self, found: Iterable[ToolMark]) -> None:
        index = len(self._parent)
        self._parent.append(index)
        self.size.append(1)
        self.waiting.append(0)
        for is_call, call_id, agent in found:
            if is_call:
                self._calls.call(call_id, agent, index)
                self.waiting[self.first(index)] += 1
            elif (call := self._calls.answer(call_id, agent)) is not None:
                one, other = sorted((self.first(call), self.first(index)))
                if one != other:
                    self._parent[other] = one
                    self.size[one] += self.size[other]
                    self.waiting[one] += self.waiting[other]


class Pairs:
    """`results`: for each message with calls, by index, the places of their results, in order. `call_of`: the call that
    a result answers. `answered`: the calls that have a result."""

    def __init__(self) -> None:
        self.results: dict[int, list[Place]] = {}
        self.call_of: dict[Place, Place] = {}
        self.answered: dict[Place, Place] = {}

    def _add(self, call: Place, result: Place) -> None:
        if (other := self.answered.get(call)) is not None:
            del self.call_of[other]
            self.results[call[0]].remove(other)
        self.answered[call] = result
        self.call_of[result] = call
        self.results.setdefault(call[0], []).append(result)


def agent_of(message: Message) -> str | None:
    """The id of the agent that wrote a message, or None."""
    who = message.participant
    return who.id if who is not None and who.kind == "agent" else None


def has_tools(message: Message) -> bool:
    for part in message.parts:  # noqa: SIM110 -- half the time of any(), and this runs for every message of a prompt
        if type(part) in _TOOLS:
            return True
    return False


def tool_parts(message: Message) -> list[tuple[int, ToolMark]]:
    """The calls and results of a message, each with the index of its part."""
    if not has_tools(message) or message.role == "system" or message.is_summary:
        return []
    agent = agent_of(message)
    found = []
    for at, part in enumerate(message.parts):
        if type(part) is ToolUsePart:
            found.append((at, ToolMark(True, part.id, agent)))
        elif type(part) is ToolResultPart:
            found.append((at, ToolMark(False, part.tool_use_id, agent)))
    return found


def pairs_of(messages: Iterable[Message]) -> Pairs:
    """Which result answers which call."""
    pairs = Pairs()
    calls: OpenCalls[Place] = OpenCalls()
    for index, message in enumerate(messages):
        for at, (is_call, call_id, agent) in tool_parts(message):
            if is_call:
                calls.call(call_id, agent, (index, at))
            elif (call := calls.answer(call_id, agent)) is not None:
                pairs._add(call, (index, at))
    return pairs


def groups(messages: Iterable[Message]) -> list[int]:
    """For each message, the index of the first message of its group. A message without tools is a group by itself."""
    found = _Groups()
    for message in messages:
        found.add(mark for _, mark in tool_parts(message))
    return [found.first(index) for index in range(len(found.size))]


def without_cut_results(messages: Sequence[Message], start: int) -> list[Message]:
    """The messages from an index on, without the results of calls before it."""
    pairs = pairs_of(messages)
    cut = {result for result, call in pairs.call_of.items() if call[0] < start <= result[0]}
    return _without(messages, start, cut)


def without_lone_results(messages: Sequence[Message]) -> list[Message]:
    """The messages without the results that answer no call among them. For a model, after a read with a `limit`."""
    pairs = pairs_of(messages)
    lone = {
        (index, at)
        for index, message in enumerate(messages)
        for at, part in enumerate(message.parts)
        if type(part) is ToolResultPart and (index, at) not in pairs.call_of
    }
    return _without(messages, 0, lone)


def _without(messages: Sequence[Message], start: int, places: set[Place]) -> list[Message]:
    """The messages from `start` on without these parts, and without messages that had nothing else."""
    changed = {index for index, _ in places}
    found = []
    for index in range(start, len(messages)):
        message = messages[index]
        if index in changed:
            rest = tuple(part for at, part in enumerate(message.parts) if (index, at) not in places)
            if not rest:
                continue
            message = replace(message, parts=rest)
        found.append(message)
    return found


def marks(message: Message) -> bytes:
    """The calls and results of a message in the form of the stored state, from which the server pairs them.

    For each of them `u` (call) or `r` (result) and 4 bytes of a digest of its id; if an agent wrote it, `U` or `R` and
    4 more bytes, of a digest of the agent's id.
    """
    found = b""
    for _, (is_call, call_id, agent) in tool_parts(message):
        kind, one = b"u" if is_call else b"r", _digest(call_id)
        found += kind + one if agent is None else kind.upper() + one + _digest(agent)
    return found


def oldest_with_results(tools: Iterable[bytes], excess: int) -> list[int]:
    """The indices of the messages that a cap takes, ascending: whole groups, the oldest first, until there are `excess`
    or more. `tools` are the marks of all messages, oldest first; only as many are read as it takes."""
    rest = iter(tools)
    found = _Groups()
    count = index = 0
    taken: set[int] = set()
    while excess > 0:
        while count <= index or found.waiting[found.first(index)]:
            if (one := next(rest, None)) is None:
                break
            found.add(_read(one))
            count += 1
        if index >= count:
            break
        if (first := found.first(index)) not in taken:
            taken.add(first)
            excess -= found.size[first]
        index += 1
    return [index for index in range(count) if found.first(index) in taken]


def _digest(text: str | bytes) -> bytes:
    return body_digest(str(text).encode())[:_DIGEST]


def _read(tools: bytes) -> Iterator[ToolMark]:
    at = 0
    while at < len(tools):
        kind, at = tools[at : at + 1], at + 1
        call_id, at = tools[at : at + _DIGEST], at + _DIGEST
        agent = None
        if kind in b"UR":
            agent, at = tools[at : at + _DIGEST], at + _DIGEST
        yield ToolMark(kind in b"uU", call_id, agent)
