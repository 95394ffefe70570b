"""Totals of usage, and budgets of owners. lua/_usage.lua says what the scripts of changes count."""

from __future__ import annotations

import time
from typing import Any, Final

from msgspec import Struct, field

from redis_history.errors import BudgetExceededError
from redis_history.store.memory.space import Space
from redis_history.store.memory.usage import StoredBudget
from redis_history.store.operations.base import Call, OnConversation, Op, Steps, plain
from redis_history.store.operations.record import decode_value
from redis_history.store.operations.scripts import load_script
from redis_history.store.operations.settings import Settings
from redis_history.values.ids import new_token
from redis_history.values.times import from_microseconds
from redis_history.values.usage import (
    NANO,
    NOTHING,
    Budget,
    Limits,
    Numbers,
    added,
    decode_limits,
    encode_limits,
    is_used_up,
    period_days,
    read_total,
    total_of,
)

BUDGET: Final = load_script(
    "budget",
    args="action",
    actions={"set": "id limits", "read": "", "take": "id lasts version tokens cost", "keep": "id lasts", "end": "id"},
    keys="budget",
)

#: Fields of one hash that are read together.
_SCANNED: Final = b"1000"
#: Seconds until the reservation of a killed process ends.
RESERVED_SECONDS: Final = 600.0
#: Attempts to reserve while other runs of the owner end.
_ATTEMPTS: Final = 50

#: By day since 1970 and agent ("": none).
Sums = dict[tuple[int, str], Numbers]


class ReadUsage(Struct, Op[Sums], frozen=True):
    """The sums by day and agent, of the conversations of an owner (None: of all), from the day `first` to `last`."""

    user_id: int | str | None = None
    agent_name: str | None = None
    first: int | None = None
    last: int | None = None

    def steps(self, settings: Settings) -> Steps[Sums]:
        waiting = [(key, b"0") for key in settings.keyspace.totals(self.user_id)]
        #: By key, because a scan may return a field twice.
        found: dict[tuple[bytes, bytes], Numbers] = {}
        while waiting:
            pages = yield [plain(b"HSCAN", key, at, b"COUNT", _SCANNED, decode=_page) for key, at in waiting]
            following = []
            for (key, _), (cursor, pairs) in zip(waiting, pages, strict=True):
                found.update(((key, name), numbers) for name, numbers in pairs)
                if cursor != b"0":
                    following.append((key, cursor))
            waiting = following
        return self._summed((name.decode(), numbers) for (_, name), numbers in found.items())

    def apply(self, space: Space) -> Sums:
        return self._summed(space.usage.sums(self.user_id))

    def _summed(self, found: Any) -> Sums:
        sums: Sums = {}
        for name, numbers in found:
            day_text, _, agent = name.partition(":")
            day = int(day_text)
            early, late = self.first is not None and day < self.first, self.last is not None and day > self.last
            if not (early or late) and self.agent_name in (None, agent):
                sums[day, agent] = added(sums.get((day, agent), NOTHING), numbers)
        return sums


def _page(reply: Any) -> tuple[bytes, list[tuple[bytes, Numbers]]]:
    cursor, flat = reply
    return cursor, [(name, read_total(total)) for name, total in zip(flat[::2], flat[1::2], strict=True)]


class ForgetUsage(Struct, Op[None], frozen=True):
    """Remove the totals of an owner, and the budget."""

    user_id: int | str

    def steps(self, settings: Settings) -> Steps[None]:
        keyspace = settings.keyspace
        yield [plain(b"UNLINK", key) for key in (*keyspace.totals(self.user_id), keyspace.budget(self.user_id))]

    def apply(self, space: Space) -> None:
        space.usage.forget(self.user_id)


class ReadOwner(OnConversation, Op[int | str | None], frozen=True):
    """The owner of a conversation, or None."""

    def steps(self, settings: Settings) -> Steps[int | str | None]:
        state = settings.keyspace.conversation(self.conversation_id).state
        found = yield plain(b"HGET", state, b"U")
        return None if found is None else decode_value(found)

    def apply(self, space: Space) -> int | str | None:
        conversation = space.find(self.conversation_id)
        return None if conversation is None else conversation.record.get("user_id")


class BudgetState(Struct, frozen=True):
    """What happened (see budget.lua), the limits (None: there is no budget), the version of what counts as used, how
    many runs hold a reservation, and the server's time in seconds since 1970."""

    what: str
    limits: Limits | None
    version: int
    running: int
    now: float


class _OnBudget(Struct, Op[BudgetState], frozen=True):
    user_id: int | str

    def _call(self, settings: Settings, action: str, **values: bytes) -> Call:
        args = BUDGET.args(action, **values)
        return Call(BUDGET, (settings.keyspace.budget(self.user_id),), args, _decode, renews=True)

    def _state(self, what: str, budget: StoredBudget, now: float) -> BudgetState:
        return BudgetState(what, budget.limits, budget.version, len(budget.running), now)


def renewal_seconds() -> float:
    """How often a process renews its reservations, so that they outlast an outage of minutes."""
    return RESERVED_SECONDS / 10


def _lasts() -> bytes:
    return b"%d" % round(1000 * RESERVED_SECONDS)


def _decode(reply: list[Any]) -> BudgetState:
    what, limits, version, running, now = reply
    return BudgetState(what.decode(), decode_limits(limits) if limits else None, version, running, now / 1000)


class SetBudget(_OnBudget, frozen=True):
    """Set the limits of an owner; None: no budget. A late copy changes nothing."""

    limits: Limits | None
    token: str = field(default_factory=new_token)

    def steps(self, settings: Settings) -> Steps[BudgetState]:
        limits = b"" if self.limits is None else encode_limits(self.limits)
        return (yield self._call(settings, "set", id=self.token.encode(), limits=limits))  # type: ignore[no-any-return]

    def apply(self, space: Space) -> BudgetState:
        now = time.time()
        budget = space.usage.budget(self.user_id, now)
        budget.limits, budget.version = self.limits, budget.version + 1
        space.usage.keep(self.user_id, budget)
        return self._state("set", budget, now)


class ReadBudget(_OnBudget, frozen=True):
    """The present limits and reservations."""

    def steps(self, settings: Settings) -> Steps[BudgetState]:
        return (yield self._call(settings, "read"))  # type: ignore[no-any-return]

    def apply(self, space: Space) -> BudgetState:
        now = time.time()
        return self._state("read", space.usage.budget(self.user_id, now), now)


class TakeBudget(_OnBudget, frozen=True):
    """Reserve a part of the budget for a run, if the usage that was read at this `version` leaves something."""

    run_id: str
    version: int
    used: Numbers

    def steps(self, settings: Settings) -> Steps[BudgetState]:
        numbers = {"version": self.version, "tokens": self.used[0] + self.used[1], "cost": self.used[3]}
        values = {name: b"%d" % number for name, number in numbers.items()}
        values |= {"id": self.run_id.encode(), "lasts": _lasts()}
        return (yield self._call(settings, "take", **values))  # type: ignore[no-any-return]

    def apply(self, space: Space) -> BudgetState:
        now = time.time()
        budget = space.usage.budget(self.user_id, now)
        if budget.limits is None:
            return self._state("none", budget, now)
        if budget.version != self.version:
            return self._state("stale", budget, now)
        own = self.run_id in budget.running
        exceeded = budget.limits.exceeded(self.used, len(budget.running) - own)
        if exceeded and own:
            del budget.running[self.run_id]
            budget.version += 1
        elif not exceeded:
            budget.running[self.run_id] = now + RESERVED_SECONDS
        space.usage.keep(self.user_id, budget)
        return self._state("exceeded" if exceeded else "taken", budget, now)


class KeepBudget(_OnBudget, frozen=True):
    """Renew the reservation of a run, unless it has ended."""

    run_id: str

    def steps(self, settings: Settings) -> Steps[BudgetState]:
        values = {"id": self.run_id.encode(), "lasts": _lasts()}
        return (yield self._call(settings, "keep", **values))  # type: ignore[no-any-return]

    def apply(self, space: Space) -> BudgetState:
        now = time.time()
        budget = space.usage.budget(self.user_id, now)
        if self.run_id in budget.running:
            budget.running[self.run_id] = now + RESERVED_SECONDS
            space.usage.keep(self.user_id, budget)
        return self._state("kept", budget, now)


class EndBudget(_OnBudget, frozen=True):
    """End the reservation of a run."""

    run_id: str

    def steps(self, settings: Settings) -> Steps[BudgetState]:
        return (yield self._call(settings, "end", id=self.run_id.encode()))  # type: ignore[no-any-return]

    def apply(self, space: Space) -> BudgetState:
        now = time.time()
        budget = space.usage.budget(self.user_id, now)
        if budget.running.pop(self.run_id, None) is not None:
            budget.version += 1
            space.usage.keep(self.user_id, budget)
        return self._state("ended", budget, now)


# Steps of several operations, for a store


def read_budget(user_id: int | str) -> Steps[Budget | None]:
    """The budget of an owner and what is used of it."""
    state: BudgetState = yield ReadBudget(user_id)
    return None if state.limits is None else (yield from _budget(user_id, state))


def check_budget(user_id: int | str | None) -> Steps[None]:
    """Raises BudgetExceededError if the budget of the owner is used up. Reserves nothing, and ignores what others have
    reserved: for calls that ask for a run, which reserves, and waits for the end of other reservations."""
    budget = None if user_id is None else (yield from read_budget(user_id))
    if budget is not None and is_used_up(budget):
        raise _exceeded(budget)


def check_budget_of(conversation_id: str) -> Steps[None]:
    """The same for the owner of a conversation."""
    yield from check_budget((yield ReadOwner(conversation_id)))


def reserve(conversation_id: str, run_id: str) -> Steps[int | str | None]:
    """Reserve a part of the budget of the conversation's owner for a run. Returns the owner, if there is something to
    end with EndBudget. Raises BudgetExceededError."""
    user_id: int | str | None = yield ReadOwner(conversation_id)
    if user_id is None:
        return None
    for _ in range(_ATTEMPTS):
        state: BudgetState = yield ReadBudget(user_id)
        if state.limits is None:
            return None
        used = yield from _used(user_id, state)
        taken: BudgetState = yield TakeBudget(user_id, run_id, state.version, used)
        if taken.what == "taken":
            return user_id
        if taken.what == "exceeded":
            raise _exceeded((yield from _budget(user_id, taken, used)))
    # The runs of the owner end faster than their usage can be read: reserve nothing, and decide by what was read.
    budget = yield from read_budget(user_id)
    if budget is not None and budget.exhausted:
        raise _exceeded(budget)
    return None


def _used(user_id: int | str, state: BudgetState) -> Steps[Numbers]:
    assert state.limits is not None  # noqa: S101
    first, _ = period_days(state.limits.period, from_microseconds(round(state.now * 1e6)))
    sums: Sums = yield ReadUsage(user_id, first=first)
    used = NOTHING
    for numbers in sums.values():
        used = added(used, numbers)
    return used


def _budget(user_id: int | str, state: BudgetState, used: Numbers | None = None) -> Steps[Budget]:
    limits = state.limits
    assert limits is not None  # noqa: S101
    if used is None:
        used = yield from _used(user_id, state)
    _, resets_at = period_days(limits.period, from_microseconds(round(state.now * 1e6)))
    cost = None if limits.cost is None else limits.cost / NANO
    exhausted = limits.exceeded(used, state.running)
    return Budget(user_id, limits.tokens, cost, limits.period, total_of(used), state.running, resets_at, exhausted)


def _exceeded(budget: Budget) -> BudgetExceededError:
    used, limits = budget.used, []
    if budget.tokens is not None:
        limits.append(f"{used.total_tokens:,} of {budget.tokens:,} tokens")
    if budget.cost is not None:
        limits.append(f"a cost of {used.cost:g} of {budget.cost:g}")
    whole = "in all" if budget.period == "total" else f"of this {budget.period}"
    of_whom, what = f"the budget of user {str(budget.user_id)[:64]!r}", f"{' and '.join(limits)} {whole}"
    if is_used_up(budget):
        when = "" if budget.resets_at is None else f" until {budget.resets_at:%Y-%m-%d %H:%M} UTC"
        text = f"{of_whom} is used up{when}: {what}; raise it with store.set_budget"
    else:
        text = (
            f"active runs ({budget.running}) have reserved the rest of {of_whom}: {what} are used; "
            "try again when one has ended, or set a smaller reserve= with store.set_budget"
        )
    return BudgetExceededError(text, budget=budget)
