"""Keep a list of messages within limits: count tokens, describe a reduction, choose the oldest messages. Pure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct

from redis_history.errors import InvalidInputError
from redis_history.values import Message, Part
from redis_history.values._validation import check_function, check_integer
from redis_history.values.pairs import groups
from redis_history.values.ranges import pinned_groups
from redis_history.values.sizes import TokenCounter, message_tokens
from redis_history.values.times import Instant, cutoff


class ReduceOptions(Struct, frozen=True):
    """How small a history should become. None: no limit.

    `max_tokens` and `max_entries` count all entries, including system messages. Entries older than the instant
    `older_than` should leave.
    """

    max_tokens: int | None = None
    max_entries: int | None = None
    older_than: datetime | None = None


class Reduction(Awaitable[int]):
    """The outcome of `history.reduce`: the number of removed entries. Awaiting it returns that number.

    In an event loop, `removed` is None until this is awaited.
    """

    def __init__(self, removed: int | None, work: Awaitable[tuple[int, bool]] | None = None) -> None:
        self.removed = removed
        self._work = work

    def __await__(self) -> Generator[Any, None, int]:
        if self._work is not None:
            work, self._work = self._work, None
            self.removed, _ = yield from work.__await__()
        return self.removed or 0


class TokenCounts:
    """Tokens of messages. Those of entries are remembered, because a tokenizer may be slow."""

    def __init__(self, counter: TokenCounter | None) -> None:
        check_function(counter, "token_counter", "a function from a str to an int")
        self.counter = counter
        self._known: dict[str, tuple[tuple[Part, ...], int]] = {}

    def count(self, message: Message) -> int:
        """Tokens of any message; one with the id of an entry may have other content."""
        parts, tokens = self._known.get(message.id, (None, 0))
        same = parts is message.parts or parts == message.parts
        return tokens if same else message_tokens(message, self.counter)

    def count_entry(self, entry: Message) -> int:
        tokens = self.count(entry)
        self._known[entry.id] = entry.parts, tokens
        return tokens

    def keep(self, entries: list[Message]) -> None:
        """Forget other entries, if there are many of them."""
        if len(self._known) > 2 * len(entries) + 100:
            self._known = {one.id: self._known[one.id] for one in entries if one.id in self._known}


def reduce_options(
    max_tokens: int | None = None, max_entries: int | None = None, older_than: Instant | timedelta | None = None
) -> ReduceOptions:
    """The options, checked. An age becomes an instant. Raises InvalidInputError, InvalidTimestampError."""
    for name, value in (("max_tokens", max_tokens), ("max_entries", max_entries)):
        check_integer(value, name, optional=True, error=InvalidInputError)
    return ReduceOptions(max_tokens, max_entries, None if older_than is None else cutoff(older_than))


def drop_oldest(
    messages: Sequence[Message],
    max_tokens: int | None,
    max_entries: int | None,
    tokens_of: Callable[[Message], int],
) -> list[Message]:
    """The messages without the oldest, so that the limits hold as far as possible.

    System and pinned messages and the newest message stay. A tool call and its results leave together.
    """
    if not messages:
        return []
    group = groups(messages)
    members: dict[int, list[Message]] = {}
    pins = pinned_groups(messages)
    for index, message in enumerate(messages):
        if message.role != "system" and not pins[index]:
            members.setdefault(group[index], []).append(message)
    members.pop(group[-1], None)
    count = len(messages)
    tokens = 0 if max_tokens is None else sum(map(tokens_of, messages))
    leaving: set[str] = set()
    for together in members.values():  # in the order of their oldest messages
        if (max_entries is None or count <= max_entries) and (max_tokens is None or tokens <= max_tokens):
            break
        leaving.update(message.id for message in together)
        count -= len(together)
        tokens -= 0 if max_tokens is None else sum(map(tokens_of, together))
    return [message for message in messages if message.id not in leaving]
