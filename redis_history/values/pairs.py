"""Which result answers which call, and which parts and messages are left out together. Pure.

This is the specification; `_trim.lua` follows it on the server. `redis_history.values.pairing` says which parts are
calls and results.

1. Messages of role system and summaries contain neither calls nor results. In all other messages the parts make calls
   and answer them in the order of the messages and of their parts. A part that does both answers first.
2. A message is *by an agent* if its participant has the kind "agent". Agents are the same if their ids are.
3. A result by an agent answers the latest earlier call of its id by this agent that still lacks a result.
4. Otherwise it answers the latest earlier call of its id, by any participant, that lacks any result.
5. The call is settled then, unless call and result are by two different agents. In that case the result may belong
   to a call that was removed, so the agent that called may still answer by rule 3, until another agent answers one
   more of its calls. Its own result then replaces the other result, which no longer answers a call, but is removed
   together with the call.
6. A result without a remaining call does not answer any, such as the second result of a call.

Why the latest: an agent that dies never answers, and its ids come back in the next run. Why the agent: several agents
number their calls alike and write at the same time.

A message may also be *pinned*. A cap removes no group with a pinned message.

*Messages of one group* are those connected by calls and results, directly or through others. When messages are removed
in whole groups, every remaining result keeps its call.

A *cap* removes the group of the oldest message, then that of the oldest of the rest, until at most the allowed number
of messages is left.

A request to a model must not contain half a pair. *Lone* parts are results without a call and calls without a result,
and all parts that are connected with such a part. Code that goes on after the newest message, because its calls
have just been answered, is not lone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from msgspec.structs import replace

from redis_history.values.approvals import asks
from redis_history.values.message import Message
from redis_history.values.pairing import in_pair, is_marked, is_result, only_results, pairing
from redis_history.values.parts import ToolResultPart, ToolUsePart, UnknownPart
from redis_history.values.reasoning_parts import has_reasoning, last_reasoning, with_reasoning, without_parts
from redis_history.values.wire import body_digest

T = TypeVar("T")
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
        """The value of the call that a result answers, or None."""
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
        # By the first message of each group: the number of its messages, and of its waiting calls.
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


class _Opened:
    """A call: its part, the part that answers it, and whether it is the part's own call or goes on with another one."""

    __slots__ = ("again", "is_own", "place", "result")

    def __init__(self, place: Place, is_own: bool, again: bool) -> None:
        self.place = place
        self.is_own = is_own
        self.again = again
        self.result: Place | None = None


class Pairs:
    """The pairs of some messages.

    `results`: for each message with calls, by index, the places of their results, in order. `call_of`: the call that a
    result answers. `answered`: the calls that have a result, and the result. `opening`: the parts that make calls.
    `lost`: the parts that should answer a call but do not. `going_on`: the messages with a part that continues a call
    of an earlier message.
    """

    def __init__(self, count: int) -> None:
        self.results: dict[int, list[Place]] = {}
        self.call_of: dict[Place, Place] = {}
        self.answered: dict[Place, Place] = {}
        self.opening: set[Place] = set()
        self.lost: set[Place] = set()
        self.going_on: set[int] = set()
        self._last = count - 1
        self._opened: list[_Opened] = []

    def _add(self, index: int, tools: list[tuple[int, ToolMark]], calls: OpenCalls[_Opened]) -> None:
        answered: str | bytes | None = None  # by the same part
        before = -1
        for number, (at, (is_call, call_id, agent)) in enumerate(tools, 1):
            place = (index, at)
            if at != before:
                answered, before = None, at
            if is_call:
                is_own = number == len(tools) or tools[number][0] != at
                opened = _Opened(place, is_own, answered == call_id)
                self._opened.append(opened)
                self.opening.add(place)
                calls.call(call_id, agent, opened)
                if answered is not None and self.call_of.get(place, place)[0] != index:
                    self.going_on.add(index)
                continue
            answered = call_id
            found = calls.answer(call_id, agent)
            if found is None:
                self.lost.add(place)
                continue
            if found.result is not None:
                del self.call_of[found.result]
                self.results[found.place[0]].remove(found.result)
                self.lost.add(found.result)
            found.result = place
            self.call_of[place] = found.place
            self.results.setdefault(found.place[0], []).append(place)
            if found.is_own:
                self.answered[found.place] = place

    def _add_apart(self, index: int, message: Message) -> None:
        for at, part in enumerate(message.parts):
            answers, opens, _ = pairing(part)
            if answers:
                self.lost.add((index, at))
            if opens:
                self.opening.add((index, at))
                self._opened.append(_Opened((index, at), True, False))

    @property
    def waits(self) -> bool:
        """Whether a call still lacks a result."""
        return any(opened.result is None for opened in self._opened)

    def lone(self, *, calls: bool = True) -> set[Place]:
        """The parts without their partner, and all that are connected with them. `calls` False: without those that are
        only connected with a call that still lacks a result."""
        waiting = [opened for opened in self._opened if opened.result is None] if calls else []
        if not waiting and not self.lost:
            return set()
        links = self._links()
        found = set(self.lost)
        for opened in waiting:
            if not (opened.again and max(_connected((opened.place,), links))[0] == self._last):
                found.add(opened.place)
        return _connected(found, links)

    def cut(self, start: int, end: int) -> set[Place]:
        """The parts in the messages from `start` to `end` (exclusive) that are connected with parts elsewhere."""
        links = self._links()
        outside = {place for place in links if not start <= place[0] < end}
        return {place for place in _connected(outside, links) if start <= place[0] < end}

    def _links(self) -> dict[Place, list[Place]]:
        links: dict[Place, list[Place]] = {}
        for opened in self._opened:
            if opened.result is not None:
                links.setdefault(opened.place, []).append(opened.result)
                links.setdefault(opened.result, []).append(opened.place)
        return links


def _connected(places: Iterable[Place], links: Mapping[Place, Sequence[Place]]) -> set[Place]:
    """These places, and all that are linked with them, directly or through others."""
    found, todo = set(places), list(places)
    while todo:
        new = [place for place in links.get(todo.pop(), ()) if place not in found]
        found.update(new)
        todo += new
    return found


def _is_apart(message: Message) -> bool:
    """Whether a message counts as free of calls and results, regardless of its parts."""
    return message.role == "system" or message.is_summary


def agent_of(message: Message) -> str | None:
    """The id of the agent that wrote a message, or None."""
    who = message.participant
    return who.id if who is not None and who.kind == "agent" else None


def has_tools(message: Message) -> bool:
    """Whether a part opens or answers a pair."""
    for part in message.parts:  # not any(), which takes twice as long: this runs for every message of a prompt
        kind = type(part)
        if kind is ToolUsePart or kind is ToolResultPart or (kind is UnknownPart and in_pair(part)):
            return True
    return False


def tool_parts(message: Message) -> list[tuple[int, ToolMark]]:
    """The calls and results of a message, each with the index of its part."""
    return _marks_of(message) if has_tools(message) and not _is_apart(message) else []


def _marks_of(message: Message) -> list[tuple[int, ToolMark]]:
    agent = agent_of(message)
    found = []
    for at, part in enumerate(message.parts):
        if type(part) is ToolUsePart and not is_marked(part):  # most calls and results, in a fraction of the time
            found.append((at, ToolMark(True, part.id, agent)))
        elif type(part) is ToolResultPart and not is_marked(part):
            found.append((at, ToolMark(False, part.tool_use_id, agent)))
        else:
            answers, opens, _ = pairing(part)
            found += [(at, ToolMark(False, one, agent)) for one in answers]
            found += [(at, ToolMark(True, one, agent)) for one in opens]
    return found


def pairs_of(messages: Sequence[Message]) -> Pairs:
    """Which result answers which call."""
    pairs = Pairs(len(messages))
    calls: OpenCalls[_Opened] = OpenCalls()
    for index, message in enumerate(messages):
        if not has_tools(message):
            continue
        if _is_apart(message):
            pairs._add_apart(index, message)
        else:
            pairs._add(index, _marks_of(message), calls)
    return pairs


def open_calls(messages: Sequence[Message]) -> list[tuple[Message, list[ToolUsePart]]]:
    """Return the messages with unanswered calls that a tool result can answer, and these calls. Opaque calls have
    their own kind of results, and the provider answers the calls of its tools."""
    answered = pairs_of(messages).answered
    found = []
    for index, message in enumerate(messages):
        if _is_apart(message):
            continue
        calls = [
            part
            for at, part in enumerate(message.parts)
            if type(part) is ToolUsePart and (index, at) not in answered and not pairing(part).hosted
        ]
        if calls:
            found.append((message, calls))
    return found


def groups(messages: Iterable[Message]) -> list[int]:
    """For each message, the index of the first message of its group."""
    found = _Groups()
    for message in messages:
        found.add(mark for _, mark in tool_parts(message))
    return [found.first(index) for index in range(len(found.size))]


def without_cut_parts(messages: Sequence[Message], start: int, end: int) -> list[Message]:
    """The messages from `start` to `end` (exclusive), without parts whose partner is in another message."""
    gone = _by_message(pairs_of(messages).cut(start, end))
    return [one for index in range(start, end) for one in _without(messages[index], gone.get(index, ()))]


def without_lone_results(messages: Sequence[Message]) -> list[Message]:
    """The messages without the results that answer no call among them. For a model, after a read with a `limit`."""
    gone = _by_message(pairs_of(messages).lone(calls=False))
    return [one for index, message in enumerate(messages) for one in _without(message, gone.get(index, ()))]


def with_results_at_calls(messages: Sequence[Message]) -> list[Message]:
    """The messages in the order that models require: each message with results directly after that with their calls,
    also if messages of others came in between. The agent's own order stays where it went on before the result. No
    message is changed or left out."""
    pairs = pairs_of(messages)
    calling = {place[0] for place in pairs.opening}
    went_on: dict[str | None, int] = {}  # the last message of each agent that makes no call
    moved: dict[int, list[int]] = {}
    for index, message in enumerate(messages):
        if message.role == "assistant" and index not in calling and not only_results(message):
            went_on[agent_of(message)] = index
        results = [(index, at) for at, part in enumerate(message.parts) if is_result(part)]
        calls = {pairs.call_of[place][0] for place in results if place in pairs.call_of} - {index}
        if len(calls) == 1 and index not in calling and (message.role != "assistant" or only_results(message)):
            [call] = calls
            if went_on.get(agent_of(messages[call]), -1) < call:
                moved.setdefault(call, []).append(index)
    gone = {index for found in moved.values() for index in found}
    order = [at for index in range(len(messages)) if index not in gone for at in (index, *moved.get(index, ()))]
    return [messages[index] for index in order]


def unfit(messages: Sequence[Message], pairs: Pairs) -> dict[int, set[int]]:
    """The parts that a request to a model must not have, by message and part: lone ones, and reasoning without the item
    that it belongs to."""
    gone = _by_message(pairs.lone())
    if not any(map(has_reasoning, messages)):
        return gone
    is_followed, next_agent = False, None  # whether a message of the assistant follows, and its agent
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        own = gone.get(index, set())
        if not _is_apart(message):
            own = with_reasoning(message, own)
            if not (is_followed and next_agent == agent_of(message)):
                own |= last_reasoning(message, own)
            if own:
                gone[index] = own
        rest = [part for at, part in enumerate(message.parts) if at not in own]
        if rest and not all(map(is_result, rest)):
            is_followed, next_agent = message.role == "assistant", agent_of(message)
    return gone


def _by_message(places: Iterable[Place]) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for index, at in places:
        found.setdefault(index, set()).add(at)
    return found


def _without(message: Message, gone: Collection[int]) -> list[Message]:
    """The message without these parts and their reasoning, or an empty list if it would be empty."""
    if not gone:
        return [message]
    parts = without_parts(message, with_reasoning(message, gone))
    return [replace(message, parts=parts)] if parts else []


def marks(message: Message) -> bytes:
    """The calls and results of a message in the form of the stored state, from which the server pairs them.

    For each of them `u` (call), `w` (call that waits for approval) or `r` (result) and 4 bytes of a digest of its id;
    if an agent wrote it, the letter is a capital, and 4 more bytes are of a digest of the agent's id. `p`: the message
    is pinned.
    """
    found = b"p" if message.is_pinned else b""
    for at, (is_call, call_id, agent) in tool_parts(message):
        kind, one = b"u" if is_call else b"r", digest_of_call(call_id)
        if is_call and asks(part := message.parts[at]) and call_id == pairing(part).opens[-1]:
            kind = b"w"
        found += kind + one if agent is None else kind.upper() + one + digest_of_call(agent)
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


def digest_of_call(text: str | bytes) -> bytes:
    """The digest of the id of a call or an agent in the marks of a message."""
    return body_digest(str(text).encode())[:_DIGEST]


def _read_marks(data: bytes) -> Iterator[ToolMark]:
    at = 0
    while at < len(data):
        kind, at = data[at : at + 1], at + 1
        call_id, at = data[at : at + _DIGEST], at + _DIGEST
        agent = None
        if kind in b"UWR":
            agent, at = data[at : at + _DIGEST], at + _DIGEST
        yield ToolMark(kind not in b"rR", call_id, agent)
