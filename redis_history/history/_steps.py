"""What was done to a history here and not yet seen in the store, in order. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from redis_history._ids import new_token
from redis_history.errors import InvalidInputError
from redis_history.model import Message
from redis_history.model.ranges import stays

__all__ = ["Add", "Compaction", "Rewrite", "Step", "stamped", "summary_and_replaced"]


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
    """Other entries in place of all: only if the store is at revision `seen`.

    `token` names the change in the change log, however often it is sent. `uncertain` says that an attempt ended without
    an answer.
    """

    uncertain = False

    def __init__(self, seen: int, target: Sequence[Message]) -> None:
        self.seen = seen
        self.target = stamped(target)
        self.token = new_token()

    def over(self, entries: list[Message]) -> list[Message]:
        return list(self.target)


class Compaction(Rewrite):
    """A summary in place of the oldest entries: only if the store has exactly these; later entries do not matter."""

    def __init__(self, seen: int, summary: Message, replaced: Sequence[Message]) -> None:
        super().__init__(seen, ())
        self.summary = summary
        self.replaced = tuple(replaced)
        self.removed = tuple(message.id for message in replaced)
        self.stored: Message | None = None  # the summary, as the store has placed it

    def over(self, entries: list[Message]) -> list[Message]:
        gone = set(self.removed)
        places = [index for index, entry in enumerate(entries) if entry.id in gone]
        if not places:
            return entries
        last = places[-1]
        before = [entry for entry in entries[:last] if entry.id not in gone]
        return [*before, self.summary, *entries[last + 1 :]]


def summary_and_replaced(before: Sequence[Message], after: Sequence[Message]) -> tuple[Message | None, list[Message]]:
    """The one new entry of a reduction from `before` to `after`, and the entries it replaces; None and [] without one.

    All other missing entries were left out. Raises InvalidInputError for any other change.
    """
    known = {entry.id: entry for entry in before}
    left = {entry.id for entry in after}
    new = [entry for entry in after if entry.id not in known]
    kept = [entry for entry in before if entry.id in left]
    same = [entry for entry in after if entry.id in known] == kept
    if same and not new:
        return None, []
    if same and len(new) == 1 and new[0].role != "system" and not (new[0].tool_uses or new[0].tool_results):
        place = after.index(new[0])
        end = before.index(after[place + 1]) if place + 1 < len(after) else len(before)
        replaced = [entry for entry in before[:end] if entry.id not in left and not stays(entry)]
        if replaced and all(map(stays, after[:place])):
            return new[0], replaced
    raise InvalidInputError(
        "reduce: a plugin of a stored history may leave entries out and put one new entry, not of role system, in "
        "place of the oldest; this one made other changes. To change what readers see, use `transform`; to rewrite the "
        "conversation, `restore`"
    )


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
