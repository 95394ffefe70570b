"""Ranges at the beginning of a conversation that separate no tool call from its result. Pure.

`pairs` says which call a result answers. A call without a result waits for one, and is not removed, until its author
has written again after somebody else: then the author has given it up. A call that waits for approval is not given up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from redis_history.values.approvals import asks
from redis_history.values.message import Message
from redis_history.values.pairs import OpenCalls, groups, tool_parts


def stays(message: Message) -> bool:
    """Whether compaction leaves a message where it is."""
    return _is_apart(message) or message.is_pinned


def _is_apart(message: Message) -> bool:
    """Whether its calls and results are not looked at here."""
    return (message.role == "system" and not message.is_summary) or message.status == "streaming"


def leaving(messages: Sequence[Message]) -> list[Message]:
    """The messages that a compaction of all of them replaces: without those that stay, and without calls and results of
    pinned ones."""
    pins = pinned_groups(messages)
    return [one for one, pinned in zip(messages, pins, strict=True) if not pinned and not stays(one)]


def pinned_groups(messages: Sequence[Message]) -> list[bool]:
    """For each message whether a message of its group is pinned (see `pairs`)."""
    if not any(message.is_pinned for message in messages):
        return [False] * len(messages)
    group = groups(messages)
    pinned = {first for message, first in zip(messages, group, strict=True) if message.is_pinned}
    return [first in pinned for first in group]


@dataclass(slots=True, eq=False)
class _Call:
    """A call in the message `index`. `settled`: it has a result or was given up, so a range may end behind it. `live`:
    the message is a reply that is being written."""

    index: int
    settled: bool = False
    live: bool = False


class Ranges:
    """The messages of a conversation from the first one on, added one by one, and where a range may end.

    More messages may answer a waiting call, and change that.
    """

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self._open: OpenCalls[_Call] = OpenCalls()
        # For each message, the number of its answered calls minus that of its results.
        self._pending: list[int] = []
        # The first message that must stay together with a reply that is being written.
        self._first_kept: int | None = None
        # The newest author, its calls since somebody else wrote, and the earlier calls of each author.
        self._author: Any = None
        self._new_calls: list[_Call] = []
        self._calls: dict[Any, list[_Call]] = {}
        for message in messages:
            self.add(message)

    def add(self, message: Message) -> None:
        index = len(self._pending)
        self._pending.append(0)
        if message.status == "streaming":
            self._add_live(message, index)
        if _is_apart(message):
            return
        author = message.role, None if message.participant is None else message.participant.id
        if author != self._author:
            if self._new_calls:
                self._calls.setdefault(self._author, []).extend(self._new_calls)
                self._new_calls = []
            self._author = author
            for call in self._calls.pop(author, ()):
                call.settled = True
        for at, (is_call, call_id, agent) in tool_parts(message):
            if is_call:
                call = _Call(index)
                self._open.call(call_id, agent, call)
                if not asks(message.parts[at]):
                    self._new_calls.append(call)
            elif (answered := self._open.answer(call_id, agent)) is not None:
                if answered.live:  # the reply stays, so this result must
                    self._end_before(index)
                answered.settled = True
                self._pending[answered.index] += 1
                self._pending[index] -= 1

    def _add_live(self, message: Message, index: int) -> None:
        """A reply that is being written, with the calls and results so far. It stays where it is."""
        for _, (is_call, call_id, agent) in tool_parts(message):
            if is_call:
                self._open.call(call_id, agent, _Call(index, settled=True, live=True))
            elif (answered := self._open.answer(call_id, agent)) is not None:
                self._end_before(answered.index)

    def _end_before(self, index: int) -> None:
        self._first_kept = index if self._first_kept is None else min(self._first_kept, index)

    def waits(self, count: int) -> bool:
        """Whether a result may still answer a call in the first `count` messages, given up or not."""
        return any(call.index < count and not call.live for call in self._open)

    def is_whole(self, count: int) -> bool:
        """Whether a range may have the first `count` messages."""
        return sum(self._pending[:count]) == 0 and count <= self._first_awaited()

    def ends(self) -> list[bool]:
        """For each message whether a range may end with it."""
        first = self._first_awaited()
        return [pending == 0 and index < first for index, pending in enumerate(accumulate(self._pending))]

    def _first_awaited(self) -> int:
        first = min((call.index for call in self._open if not call.settled), default=len(self._pending))
        return first if self._first_kept is None else min(first, self._first_kept)


def good_ends(messages: Iterable[Message]) -> list[bool]:
    """For each message whether a range may end with it. Later messages must not have results for these."""
    return Ranges(messages).ends()


def tears(messages: Sequence[Message], leaving: Collection[str]) -> bool:
    """Whether a remaining message answers a call of a message with an id in `leaving`."""
    calls: OpenCalls[bool] = OpenCalls()
    for message in messages:
        leaves = message.id in leaving
        for _, (is_call, call_id, agent) in tool_parts(message):
            if is_call:
                calls.call(call_id, agent, leaves)
            elif calls.answer(call_id, agent) and not leaves:
                return True
    return False
