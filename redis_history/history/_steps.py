"""What was done to a history here and not yet seen in the store, in order. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from redis_history.model import Message

__all__ = ["Add", "Rewrite", "Step", "stamped"]


class Step:
    """`revision` is the change that stored it; None: the store has not acknowledged it. `size` is in bytes."""

    revision: int | None = None
    size = 0

    def over(self, entries: list[Message]) -> list[Message]:
        """The entries with this done to them."""
        raise NotImplementedError


class Add(Step):
    """A message more."""

    def __init__(self, message: Message, size: int) -> None:
        self.message = message
        self.size = size

    def over(self, entries: list[Message]) -> list[Message]:
        if all(entry.id != self.message.id for entry in entries):
            entries.append(self.message)
        return entries


class Rewrite(Step):
    """Other entries in place of all (`target`), or without some (`removed`): if the store is at `seen` and no further.

    `uncertain` says that an attempt ended without an answer.
    """

    uncertain = False

    def __init__(self, seen: int, *, target: Sequence[Message] | None = None, removed: Iterable[str] = ()) -> None:
        self.seen = seen
        self.target = None if target is None else stamped(target)
        self.removed = tuple(removed)

    def over(self, entries: list[Message]) -> list[Message]:
        if self.target is not None:
            return list(self.target)
        gone = set(self.removed)
        return [entry for entry in entries if entry.id not in gone]

    def is_done_in(self, stored: Iterable[Message]) -> bool:
        """Whether the stored messages are what this wanted."""
        ids = [message.id for message in stored]
        if self.target is None:
            return not set(self.removed) & set(ids)
        return ids == [message.id for message in self.target]


def stamped(messages: Sequence[Message]) -> list[Message]:
    """The messages, those without a time before others with the time of the next: so the store keeps this order.

    Messages at the end have none, and get the server's.
    """
    found: list[Message] = []
    following = None
    for message in reversed(messages):
        if message.timestamp is None and following is not None:
            message = replace(message, timestamp=following)
        following = message.timestamp
        found.append(message)
    return found[::-1]
