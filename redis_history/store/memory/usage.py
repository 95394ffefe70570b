"""Totals of usage in the memory backend: see lua/_usage.lua."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from redis_history.values.ids import digest_of
from redis_history.values.usage import NOTHING, Limits, Numbers, added, day_of, usage_numbers

if TYPE_CHECKING:
    from redis_history.store.memory.space import ConversationState
    from redis_history.store.writes import Entry

#: The owner and the agent of a conversation.
Owner = tuple[int | str | None, str | None]


def owner_of(record: Mapping[str, Any]) -> Owner:
    return record.get("user_id"), record.get("agent_name")


class OwnerTotals(msgspec.Struct):
    """The sums by day and agent ("": none), of the conversations of an owner, or of all."""

    sums: dict[str, Numbers] = {}


class StoredBudget(msgspec.Struct):
    """The limits of an owner (None: none), and until when each run holds its reservation. `version` counts the ends of
    reservations."""

    limits: Limits | None = None
    running: dict[str, float] = {}
    version: int = 0


@dataclass(slots=True)
class Totals:
    """The totals of all owners, by digest ("": of all conversations), and their budgets."""

    owners: MutableMapping[str, OwnerTotals] = field(default_factory=dict)
    budgets: MutableMapping[str, StoredBudget] = field(default_factory=dict)

    def count(self, conversation: ConversationState, entry: Entry, timestamp: int) -> None:
        """Count the usage of a message that is stored, once for each id."""
        if not entry.usage:
            return
        message_id, numbers = entry.message.id, usage_numbers(entry.usage)
        day, before = conversation.ledger.get(message_id, (day_of(timestamp), NOTHING)) or (0, None)
        if before is None or (message_id in conversation.ledger and before == numbers):
            return
        conversation.ledger[message_id] = day, numbers
        a, b, c, d = (new - old for new, old in zip(numbers, before, strict=True))
        conversation.spent[day] = added(conversation.spent.get(day, NOTHING), (a, b, c, d))
        self._add(owner_of(conversation.record), {day: (a, b, c, d)}, 1)

    def move(self, days: Mapping[int, Numbers], before: Owner | None, after: Owner) -> None:
        """Move the sums of a conversation to another owner and agent. `before`: None for a new conversation."""
        if before != after:
            if before is not None:
                self._add(before, days, -1)
            self._add(after, days, 1)

    def _add(self, owner: Owner, days: Mapping[int, Numbers], sign: int) -> None:
        user_id, agent = owner
        for name in {"", _name(user_id)}:
            totals = self.owners.get(name) or OwnerTotals()
            for day, numbers in days.items():
                field_name = f"{day}:{agent or ''}"
                total = added(totals.sums.get(field_name, NOTHING), numbers, sign)
                if total == NOTHING:
                    totals.sums.pop(field_name, None)
                else:
                    totals.sums[field_name] = total
            if totals.sums:
                self.owners[name] = totals
            else:
                self.owners.pop(name, None)

    def sums(self, user_id: int | str | None) -> Iterable[tuple[str, Numbers]]:
        """Each day and agent with its sums."""
        totals = self.owners.get(_name(user_id))
        return () if totals is None else list(totals.sums.items())

    def forget(self, user_id: int | str) -> None:
        self.owners.pop(_name(user_id), None)
        self.budgets.pop(_name(user_id), None)

    def budget(self, user_id: int | str, now: float) -> StoredBudget:
        """The budget of an owner, without reservations that have expired. Store it after a change."""
        found = self.budgets.get(_name(user_id)) or StoredBudget()
        present = {run_id: ends for run_id, ends in found.running.items() if ends > now}
        if len(present) != len(found.running):
            found.running, found.version = present, found.version + 1
            self.budgets[_name(user_id)] = found
        return found

    def keep(self, user_id: int | str, budget: StoredBudget) -> None:
        self.budgets[_name(user_id)] = budget


def _name(user_id: int | str | None) -> str:
    return "" if user_id is None else digest_of(user_id).decode()
