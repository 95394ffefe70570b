"""`redis-history ls`: lists the conversations of a namespace."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import click
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from redis_history.cli._console import console
from redis_history.cli._stores import open_store
from redis_history.cli._text import name, one_line
from redis_history.cli.commands import Context, define
from redis_history.json_form import to_json
from redis_history.model import Conversation
from redis_history.requests import owner_of, owner_text

__all__ = ["command"]

_ALL = 1_000_000
_WIDE = 36  # characters of an id before it is folded
#: Columns in the order in which a narrow terminal drops them, and their minimum widths.
_YIELDING = ("AGENT", "USER", "TOKENS", "MESSAGES", "TITLE", "CHANGED")
_LEAST = {"ID": 12, "TITLE": 12, "USER": 8, "AGENT": 8}
_STEPS = ((60, "s", 1), (3600, "min", 60), (86_400, "h", 3600), (7 * 86_400, "d", 86_400))


@define("ls")
@click.option("--limit", "-n", type=click.IntRange(1), default=50, show_default=True, metavar="N",
              help="Show at most N conversations.")  # fmt: skip
@click.option("--offset", type=click.IntRange(0), default=0, metavar="N", help="Skip the first N.")
@click.option("--all", "every", is_flag=True, help="Show all conversations.")
@click.option("--user", metavar="ID", help="Only conversations of this owner: 1 is the number, '\"1\"' the text.")
@click.option("--agent", metavar="NAME", help="Only conversations of this agent.")
@click.pass_obj
def command(context: Context, /, limit: int, offset: int, every: bool, user: str | None, agent: str | None) -> None:
    """List conversations, the last changed first.

    Prints a table on a terminal. Elsewhere, prints a line for each conversation, with tabs between id, title, number of
    messages, number of tokens (estimated), time of the last change, owner and agent.
    """
    wanted = _ALL if every else limit
    owner = None if user is None else owner_of(user)
    with open_store(context) as store:
        found = store.list_conversations(user_id=owner, agent_name=agent, limit=wanted + 1, offset=offset)
    shown = found[:wanted]
    screen = console()
    if context.json:
        for one in shown:
            context.emit(to_json(one))
    elif screen.is_terminal and shown:
        screen.print(_table(shown, datetime.now(UTC), screen.width))
    else:
        for one in shown:
            click.echo("\t".join(_line(one)))
    if len(found) > wanted:
        click.echo(f"There are more: --offset {offset + wanted}, or --all", err=True)
    elif not shown and not context.json:
        whose = "such conversations" if user or agent or offset else "conversations"
        click.echo(f"There are no {whose} in the namespace '{name(context.namespace)}'.", err=True)


def _line(one: Conversation) -> list[str]:
    updated = "" if one.updated_at is None else one.updated_at.isoformat(timespec="seconds")
    counts = [str(one.message_count), str(one.tokens)]
    return [
        name(one.conversation_id),
        one_line(one.title or ""),
        *counts,
        updated,
        _owner(one),
        name(one.agent_name or ""),
    ]


def _owner(one: Conversation) -> str:
    return "" if one.user_id is None else name(owner_text(one.user_id))


def _table(found: Sequence[Conversation], now: datetime, width: int) -> Table:
    """A table that fits `width`: shortens titles first, then drops columns, then folds ids."""
    columns: dict[str, list[str]] = {
        "ID": [name(one.conversation_id) for one in found],
        "TITLE": [one_line(one.title or "", 200) for one in found],
        "MESSAGES": [f"{one.message_count:,}" for one in found],
        "TOKENS": [f"{one.tokens:,}" for one in found],
        "CHANGED": [_age(one.updated_at, now) for one in found],
        "USER": [_owner(one) for one in found],
        "AGENT": [name(one.agent_name or "") for one in found],
    }
    columns = {heading: cells for heading, cells in columns.items() if any(cells) or heading == "ID"}
    widths = {heading: max(map(cell_len, (heading, *cells))) for heading, cells in columns.items()}
    for heading in _YIELDING:
        if sum(min(wide, _LEAST.get(heading, wide)) + 2 for heading, wide in widths.items()) - 2 <= width:
            break
        widths.pop(heading, None)
    room = width - sum(min(wide, _WIDE) + 2 for heading, wide in widths.items() if heading != "TITLE")
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading, wide in widths.items():
        if heading == "TITLE":
            table.add_column(heading, overflow="ellipsis", no_wrap=True, max_width=max(12, room))
        elif heading in ("MESSAGES", "TOKENS", "CHANGED"):
            table.add_column(heading, justify="right", no_wrap=True, style="dim" if heading == "CHANGED" else "")
        else:
            least = min(wide, _WIDE, width)
            table.add_column(heading, overflow="fold", min_width=least, style="cyan" * (heading == "ID"))
    for row in zip(*(columns[heading] for heading in widths), strict=True):
        table.add_row(*map(Text, row))
    return table


def _age(time: datetime | None, now: datetime) -> str:
    """The age of a time, or its date."""
    if time is None:
        return ""
    seconds = max(0.0, (now - time).total_seconds())
    for bound, unit, size in _STEPS:
        if seconds < bound:
            return f"{int(seconds / size)} {unit}"
    return time.astimezone().strftime("%Y-%m-%d")
