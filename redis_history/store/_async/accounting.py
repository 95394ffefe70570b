"""The methods of a store for usage and budgets."""

from __future__ import annotations

from datetime import date
from typing import Any, get_args

from redis_history.errors import InvalidInputError
from redis_history.store._async.executing import AsyncExecuting
from redis_history.store.operations import usage as ops
from redis_history.values._validation import check_choice, check_name, check_owner, refuse
from redis_history.values.times import Instant
from redis_history.values.usage import (
    Budget,
    Numbers,
    Period,
    Usage,
    UsageGroup,
    date_of,
    day_bound,
    limits_of,
    sum_of,
    total_of,
)


class AsyncAccounting(AsyncExecuting):
    async def usage(
        self,
        *,
        user_id: int | str | None = None,
        agent_name: str | None = None,
        since: Instant | date | None = None,
        until: Instant | date | None = None,
    ) -> Usage:
        """The sum of the usage of all conversations: of the owner `user_id` and of the agent `agent_name`, if given,
        from the day `since` to the day `until`, both included.

        Each message id of a conversation counts once, with the `usage` that it was last stored with, on the day of its
        time in UTC, for the owner and the agent that the conversation has, or had at its end. Messages and
        conversations that were removed still count; `erase_user` removes the totals of the owner. A message that a
        fork has copied counts where it comes from. `conversation.usage` is the total of one conversation.

        `since` and `until` are dates, or times, of which the day in UTC counts.
        """
        found = await self._sums(user_id, agent_name, since, until)
        return sum_of(dict(enumerate(found.values()))) or Usage()

    async def usage_by(
        self,
        group: UsageGroup,
        *,
        user_id: int | str | None = None,
        agent_name: str | None = None,
        since: Instant | date | None = None,
        until: Instant | date | None = None,
    ) -> dict[str, Usage]:
        """Like `usage`, for each day ("2026-01-31"), ascending, or for each agent by name ("": conversations without
        one). Days and agents without usage are left out."""
        check_choice(group, "group", get_args(UsageGroup), InvalidInputError)
        groups: dict[str, list[Numbers]] = {}
        for (day, agent), numbers in (await self._sums(user_id, agent_name, since, until)).items():
            groups.setdefault(date_of(day).isoformat() if group == "day" else agent, []).append(numbers)
        return {name: total_of(map(sum, zip(*groups[name], strict=True))) for name in sorted(groups)}

    async def _sums(self, user_id: Any, agent_name: Any, since: Any, until: Any) -> ops.Sums:
        check_owner(user_id, "user_id")
        check_name(agent_name, "agent_name")
        days = day_bound(since, "since"), day_bound(until, "until")
        return await self._backend.execute(ops.ReadUsage(user_id, agent_name, *days))

    async def set_budget(
        self,
        user_id: int | str,
        *,
        tokens: int | None = None,
        cost: float | None = None,
        period: Period = "month",
        reserve: float = 0.1,
    ) -> None:
        """Limit what the conversations of an owner may take in a `period`: "day" or "month" of the calendar in UTC, or
        "total". Once the limit of `tokens` (input and output together) or of `cost` is reached, `run` raises
        BudgetExceededError. Without both, the owner has no budget.

        Each active run reserves a share of the limits, `reserve`, from 0 to 1, so that several runs do not begin
        with the same remainder: with 0.1 at most ten runs of an owner are active, fewer as the budget is used. Choose
        it about as large as the most expensive run. The last run may exceed the limit. A reservation ends with its
        run, or 10 minutes after its process was killed.
        """
        _check_user(user_id)
        limits = limits_of(tokens, cost, period, reserve)
        await self._backend.execute(ops.SetBudget(user_id, None if tokens is None and cost is None else limits))

    async def get_budget(self, user_id: int | str) -> Budget | None:
        """The budget of an owner and what is used of it, or None."""
        _check_user(user_id)
        return await self.execute(ops.read_budget(user_id))


def _check_user(user_id: object) -> None:
    check_owner(user_id, "user_id")
    if user_id is None:
        refuse(user_id, "user_id", "an int or a str", InvalidInputError)
