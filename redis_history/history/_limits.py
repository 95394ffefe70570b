"""Keep a list of messages within limits: count tokens, describe a reduction, choose the oldest messages. Pure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct

from redis_history._time import Instant, cutoff
from redis_history._validation import check_function, check_integer
from redis_history.errors import CompactionConflictError, InvalidInputError
from redis_history.model import Message, Part
from redis_history.model.pairs import groups
from redis_history.model.ranges import tears
from redis_history.tokens import TokenCounter, message_tokens


class ReduceOptions(Struct, frozen=True):
    """How small a history should become; None: this does not matter.

    `max_tokens` and `max_entries` count all entries, system messages too. `older_than` is an instant: what is older
    should leave.
    """

    max_tokens: int | None = None
    max_entries: int | None = None
    older_than: datetime | None = None


class Reduction(Awaitable[int]):
    """The outcome of `history.reduce`: how many entries left. Awaiting it returns that number.

    In an event loop, `removed` is None until this is awaited.
    """

    def __init__(self, removed: int | None, rest: Awaitable[tuple[int, bool]] | None = None) -> None:
        self.removed = removed
        self._rest = rest

    def __await__(self) -> Generator[Any, None, int]:
        if self._rest is not None:
            rest, self._rest = self._rest, None
            self.removed, _ = yield from rest.__await__()
        return self.removed or 0


class Tokens:
    """Tokens of messages, each counted once, because a tokenizer may be slow."""

    def __init__(self, counter: TokenCounter | None) -> None:
        check_function(counter, "token_counter", "a function from a str to an int")
        self.counter = counter
        self._known: dict[str, tuple[tuple[Part, ...], int]] = {}

    def of(self, message: Message) -> int:
        known = self._known.get(message.id)
        if known is not None and (known[0] is message.parts or known[0] == message.parts):
            return known[1]
        tokens = message_tokens(message, self.counter)
        self._known[message.id] = (message.parts, tokens)
        return tokens

    def shown(self, message: Message) -> int:
        """Tokens of a message that may have the id of an entry and other content: not remembered."""
        known = self._known.get(message.id)
        if known is not None and known[0] is message.parts:
            return known[1]
        return message_tokens(message, self.counter)

    def keep(self, messages: list[Message]) -> None:
        """Forget all others, if they have become many."""
        if len(self._known) > 2 * len(messages) + 100:
            self._known = {one.id: self._known[one.id] for one in messages if one.id in self._known}


def reduce_options(
    max_tokens: int | None, max_entries: int | None, older_than: Instant | timedelta | None
) -> ReduceOptions:
    """The options, checked; an age becomes an instant. Raises InvalidInputError, InvalidTimestampError."""
    for name, value in (("max_tokens", max_tokens), ("max_entries", max_entries)):
        check_integer(value, name, optional=True, error=InvalidInputError)
    return ReduceOptions(max_tokens, max_entries, None if older_than is None else cutoff(older_than))


def drop_oldest(
    messages: Sequence[Message],
    max_tokens: int | None,
    max_entries: int | None,
    tokens_of: Callable[[Message], int],
) -> list[Message]:
    """Remove the oldest messages until the limits hold, or until no more may leave.

    System messages and the newest message stay. A tool call and its results leave together.
    """
    if not messages:
        return []
    group = groups(messages)
    members: dict[int, list[int]] = {}
    for index, message in enumerate(messages):
        if message.role != "system":
            members.setdefault(group[index], []).append(index)
    members.pop(group[-1], None)
    count = len(messages)
    tokens = sum(map(tokens_of, messages)) if max_tokens is not None else 0
    gone: set[int] = set()
    for indices in members.values():  # in the order of their oldest messages
        if (max_entries is None or count <= max_entries) and (max_tokens is None or tokens <= max_tokens):
            break
        gone.update(indices)
        count -= len(indices)
        if max_tokens is not None:
            tokens -= sum(tokens_of(messages[index]) for index in indices)
    return [message for index, message in enumerate(messages) if index not in gone]


def check_late(before: Sequence[Message], left: Sequence[Message], late: Sequence[Message]) -> None:
    """Raises CompactionConflictError if a `late` message has the result of a call that leaves."""
    if late:
        gone = {entry.id for entry in before} - {entry.id for entry in left}
        if tears([*before, *late], gone) and not tears(before, gone):
            raise CompactionConflictError(
                "the history was not reduced: a tool call that was to leave got its result meanwhile; reduce it again"
            )
