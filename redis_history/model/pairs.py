"""Which tool result answers which tool call, and which messages are removed together. Pure.

This is the specification; `_trim.lua` follows it on the server.

1. Messages of role system and summaries have no calls and no results. In all other messages each tool use is a call
   and each tool result is a result, in the order of the messages and of their parts.
2. A message is *by an agent* if its participant has the kind "agent". Agents are the same if their ids are.
3. A result by an agent answers the latest earlier call of its id by this agent that has no result yet.
4. Otherwise it answers the latest earlier call of its id, by anybody, that has no result at all.
5. The call is settled then, unless call and result are by two different agents. In that case the result may belong
   to a call that was removed, so the agent that called may still answer by rule 3, until another agent answers one
   more of its calls. Its own result then replaces the other result, which answers nothing any more, but is removed
   together with the call.
6. A result for which no call is left answers nothing, such as the second result of a call.

Why the latest: an agent that dies never answers, and its ids come back in the next run. Why the agent: several agents
number their calls alike and write at the same time.

A message may also be *pinned*. A cap removes no group with a pinned message.

*Messages of one group* are those connected by calls and results, directly or through others. When messages are removed
in whole groups, every remaining result keeps its call.

A *cap* removes the group of the oldest message, then that of the oldest of the rest, until at most the allowed number
of messages is left.
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

    __slots__ = ("agent", "answered", "value", "waits")

    def __init__(self, agent: str | bytes | None, value: T) -> None:
        self.agent, self.value = agent, value
        self.answered, self.waits = False, True


class OpenCalls(Generic[T]):
    """The calls that a result may still answer, each with a value. Iteration yields these values.

    Add calls and results in the order of the conversation. `on_settled` is called for each call that no further result
    can answer.
    """

    def __init__(self, on_settled: Callable[[T], None] | None = None) -> None:
        self._on_settled = on_settled
        self._waiting: dict[_Call[T], None] = {}
        self._unanswered: dict[str | bytes, list[_Call[T]]] = {}
        self._by_agent: dict[tuple[str | bytes, str | bytes], list[_Call[T]]] = {}
        # For each agent, its latest call that another agent has answered.
        self._answered_by_other: dict[str | bytes, _Call[T]] = {}

    def __iter__(self) -> Iterator[T]:
        for call in self._waiting:
            yield call.value

    def call(self, call_id: str | bytes, agent: str | bytes | None, value: T) -> None:
        call = _Call(agent, value)
        self._waiting[call] = None
        self._unanswered.setdefault(call_id, []).append(call)
        if agent is not None:
            self._by_agent.setdefault((call_id, agent), []).append(call)

    def answer(self, call_id: str | bytes, agent: str | bytes | None) -> T | None:
        """The value of the call that a result answers; None if it answers none."""
        found = None
        own = () if agent is None else self._by_agent.get((call_id, agent), ())
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
            self._settle(found)
        else:
            other = self._answered_by_other.get(found.agent)
            if other is not None and other.waits:
                self._settle(other)
            self._answered_by_other[found.agent] = found
        return found.value

    def _settle(self, call: _Call[T]) -> None:
        call.waits = False
        del self._waiting[call]
        if self._on_settled is not None:
            self._on_settled(call.value)


class _Groups:
    """The groups of messages that are added one by one."""

    def __init__(self) -> None:
        self._calls: OpenCalls[int] = OpenCalls(self._settle)
        self._parent: list[int] = []
        # For the first message of each group: how many messages it has, and how many of its calls wait.
        self.size: list[int] = []
        self.waiting: list[int] = []

    def first(self, index: int) -> int:
        """The index of the first message of the group of a message."""
        parent = self._parent
        while parent[index] != index:
            parent[index] = index = parent[parent[index]]
        return index

    def _settle(self, index: int) -> None:
        self.waiting[self.first(index)] -= 1

    def add(self, tools: Iterable[ToolMark]) -> None:
        index = len(self._parent)
        self._parent.append(index)
        self.size.append(1)
        self.waiting.append(0)
        for is_call, call_id, agent in tools:
            if is_call:
                self._calls.call(call_id, agent, index)
                self.waiting[self.first(index)] += 1
            elif (call := self._calls.answer(call_id, agent)) is not None:
                one, other = sorted((self.first(call), self.first(index)))
                if one != other:
                    self._parent[other] = one
                    self.size[one] += self.size[other]
                    self.waiting[one] += self.waiting[other]


class Pairs(NamedTuple):
    """`results`: for each message with calls, by index, the places of their results, in order. `call_of`: the call that
    a result answers. `answered`: the calls that have a result, and the result."""

    results: dict[int, list[Place]]
    call_of: dict[Place, Place]
    answered: dict[Place, Place]


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
    results, call_of, answered = pairs = Pairs({}, {}, {})
    calls: OpenCalls[Place] = OpenCalls()
    for index, message in enumerate(messages):
        for at, (is_call, call_id, agent) in tool_parts(message):
            result = (index, at)
            if is_call:
                calls.call(call_id, agent, result)
            elif (call := calls.answer(call_id, agent)) is not None:
                if (replaced := answered.get(call)) is not None:
                    del call_of[replaced]
                    results[call[0]].remove(replaced)
                answered[call] = result
                call_of[result] = call
                results.setdefault(call[0], []).append(result)
    return pairs


def open_calls(messages: Sequence[Message]) -> list[tuple[Message, list[ToolUsePart]]]:
    """The messages with calls that have no result, and these calls."""
    answered = pairs_of(messages).answered
    found = []
    for index, message in enumerate(messages):
        calls = [
            part
            for at, part in enumerate(message.parts)
            if type(part) is ToolUsePart and (index, at) not in answered and message.role != "system"
        ]
        if calls and not message.is_summary:
            found.append((message, calls))
    return found


def groups(messages: Iterable[Message]) -> list[int]:
    """For each message, the index of the first message of its group."""
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
    out = []
    for index, message in enumerate(messages[start:], start):
        if index in changed:
            parts = tuple(part for at, part in enumerate(message.parts) if (index, at) not in places)
            out += [replace(message, parts=parts)] if parts else []
        else:
            out.append(message)
    return out


def marks(message: Message) -> bytes:
    """The calls and results of a message in the form of the stored state, from which the server pairs them.

    For each of them `u` (call) or `r` (result) and 4 bytes of a digest of its id; if an agent wrote it, `U` or `R` and
    4 more bytes, of a digest of the agent's id. `p`: the message is pinned.
    """
    found = b"p" if message.is_pinned else b""
    for _, (is_call, call_id, agent) in tool_parts(message):
        kind, one = b"u" if is_call else b"r", _digest(call_id)
        found += kind + one if agent is None else kind.upper() + one + _digest(agent)
    return found


def oldest_with_results(tools: Iterable[bytes], excess: int) -> list[int]:
    """The indices of the messages that a cap removes, ascending: whole groups, the oldest first, until there are
    `excess` or more. `tools` are the marks of all messages, oldest first; only as many are read as needed."""
    rest = iter(tools)
    found = _Groups()
    index = 0
    removed: set[int] = set()  # the first messages of groups
    pinned: list[int] = []
    while excess > 0:
        while len(found.size) <= index or found.waiting[found.first(index)]:
            if (one := next(rest, None)) is None:
                break
            if one[:1] == b"p":
                pinned.append(len(found.size))
            found.add(_read_marks(one.removeprefix(b"p")))
        if index >= len(found.size):
            break
        first = found.first(index)
        if first not in removed and first not in map(found.first, pinned):
            removed.add(first)
            excess -= found.size[first]
        index += 1
    return [index for index in range(len(found.size)) if found.first(index) in removed]


def _digest(text: str | bytes) -> bytes:
    return body_digest(str(text).encode())[:_DIGEST]


def _read_marks(data: bytes) -> Iterator[ToolMark]:
    at = 0
    while at < len(data):
        kind, at = data[at : at + 1], at + 1
        call_id, at = data[at : at + _DIGEST], at + _DIGEST
        agent = None
        if kind in b"UR":
            agent, at = data[at : at + _DIGEST], at + _DIGEST
        yield ToolMark(kind in b"uU", call_id, agent)
