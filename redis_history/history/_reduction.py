"""Making a list of messages smaller: what is asked for, and which of the oldest leave. Pure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct

from redis_history._time import Instant, cutoff
from redis_history._validation import check_integer
from redis_history.errors import CompactionConflictError, InvalidInputError
from redis_history.model import Message
from redis_history.model.pairs import groups
from redis_history.model.ranges import tears

__all__ = [
    "ReduceOptions",
    "Reduction",
    "check_late",
    "drop_oldest",
    "reduce_options",
]


class ReduceOptions(Struct, frozen=True):
    """How small a history shall become; None: this does not matter.

    `max_tokens` and `max_entries` count all entries, system messages too. `older_than` is an instant: what is older
    shall leave.
    """

    max_tokens: int | None = None
    max_entries: int | None = None
    older_than: datetime | None = None


class Reduction(Awaitable[int]):
    """The outcome of `history.reduce`: how many entries left. Awaiting it gives that number.

    `removed` is None as long as a plugin is at work, which is only so in an event loop, until this is awaited.
    """

    def __init__(self, removed: int | None, rest: Awaitable[tuple[int, bool]] | None = None) -> None:
        self.removed = removed
        self._rest = rest

    def __await__(self) -> Generator[Any, None, int]:
        if self._rest is not None:
            rest, self._rest = self._rest, None
            self.removed, _ = yield from rest.__await__()
        return self.removed or 0


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
    """What is left when the oldest messages leave until the bounds hold, or nothing more may leave.

    System messages stay, and so does the newest message. A tool call and its results leave together.
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
    """Raises CompactionConflictError if one of the `late` messages has the result of a call that leaves."""
    if late:
        gone = {entry.id for entry in before} - {entry.id for entry in left}
        if tears([*before, *late], gone) and not tears(before, gone):
            raise CompactionConflictError(
                "the history was not reduced: a tool call that was to leave got its result meanwhile; reduce it again"
            )
