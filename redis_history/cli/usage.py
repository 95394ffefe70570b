"""`redis-history usage`."""

from __future__ import annotations

from datetime import UTC, date
from typing import Any, get_args

import click

from redis_history.cli import _options
from redis_history.cli._output import name
from redis_history.cli._stores import check_owner, open_store, owner_in
from redis_history.cli.commands import Context, define
from redis_history.formats.json_form import to_json
from redis_history.values import Usage
from redis_history.values.usage import Budget, UsageGroup


def _day(text: str) -> date:
    """A day in UTC, such as 2026-01-31, or the day of an age such as 7d."""
    try:
        return date.fromisoformat(text.strip())
    except ValueError:
        return _options.time(text).astimezone(UTC).date()


@define("usage")
@_options.owners
@click.option("--since", metavar="DAY", type=_day, help="From this day on, in UTC, such as 2026-01-31 or 7d.")
@click.option("--until", metavar="DAY", type=_day, help="Up to this day.")
@click.option(
    "--by", type=click.Choice(get_args(UsageGroup)), default="day", help="A line for each day, or each agent."
)
def usage_command(context: Context, by: UsageGroup, user_id: int | str | None, **chosen: Any) -> None:
    """Show how many tokens were used, what they cost, and what budgets are left.

    Prints a line for each day or agent and one for the total, with tabs between the name, the tokens of the input, the
    cached ones among them, the tokens of the output, and the cost. With --user, the budget of this owner follows. Costs
    are those that messages were stored with; Python sets budgets: see docs/how-to/usage.md. Exit status 1 for an
    unknown owner.
    """
    with open_store(context, searches=None) as store:
        owner = owner_in(store, user_id)
        groups = store.usage_by(by, user_id=owner, **chosen)
        budget = None if owner is None else store.get_budget(owner)
        if not groups and budget is None and not store.usage_by(by, user_id=owner):  # not even on other days
            check_owner(store, user_id, owner)
    total = sum(groups.values(), Usage())
    if context.json:
        for one, used in groups.items():
            context.emit({by: one, **_numbers(used)})
        context.emit({by: None, **_numbers(total)})
        if budget is not None:
            context.emit({"budget": to_json(budget)})
        return
    for label, used in (*groups.items(), ("total", total)):
        click.echo("\t".join((name(label), *map(str, list(_numbers(used).values())[:3]), f"{used.cost:.10g}")))
    if budget is not None:
        click.echo(_line(budget))


def _numbers(used: Usage) -> dict[str, Any]:
    return {
        "input_tokens": used.input_tokens,
        "cached_tokens": used.cached_tokens,
        "output_tokens": used.output_tokens,
        "cost": used.cost,
    }


def _line(budget: Budget) -> str:
    """The budget of an owner, in words."""
    limits = []
    if budget.tokens is not None:
        limits.append(f"{budget.used.total_tokens:,} of {budget.tokens:,} tokens")
    if budget.cost is not None:
        limits.append(f"{budget.used.cost:.10g} of {budget.cost:.10g} cost")
    begins = f", begins anew {budget.resets_at:%Y-%m-%d %H:%M} UTC" if budget.resets_at else ""
    state = "exhausted" if budget.exhausted else "used"
    return f"budget ({budget.period}): {', '.join(limits)} {state}{begins}"
