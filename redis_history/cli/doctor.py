"""`redis-history doctor`: checks the server and this machine, and suggests fixes."""

from __future__ import annotations

from collections.abc import Iterator

import click
from msgspec import structs
from rich.table import Table
from rich.text import Text

from redis_history._sync.store import HistoryStore
from redis_history.cli._console import console
from redis_history.cli._failures import hint
from redis_history.cli._stores import PATIENCE, check_url, open_store
from redis_history.cli._text import counted, name, visible
from redis_history.cli.commands import FAILED, Context, define
from redis_history.doctor import Finding, examine, examine_here, try_out
from redis_history.doctor.here import GET_SERVER
from redis_history.errors import BackendError, EmbeddedServerError

__all__ = ["command"]

_LASTING = (
    "Changes by CONFIG SET and ACL SETUSER last until the server restarts. To keep them, run CONFIG REWRITE and ACL "
    "SAVE, or edit the server's configuration."
)
_STYLES = {"ok": "green", "limited": "yellow", "problem": "bold red"}


@define("doctor")
@click.option("--write", is_flag=True, help="Also append, follow and search in a temporary conversation.")
@click.pass_obj
def command(context: Context, /, write: bool) -> None:
    """Check the server and this machine, and suggest fixes.

    Each line is ok, limited (works in part, or may stop working) or problem (conversations may be lost, or nothing
    works). For limits and problems, the fix follows, as a command if possible. Without --write, the doctor changes
    nothing. Exit status 1 if there is a problem.
    """
    check_url(context)
    found = []
    for finding in _findings(context, write):
        found.append(finding)
        if context.json:
            context.emit(structs.asdict(finding))
    if not context.json:
        _show(found)
    if any(finding.state == "problem" for finding in found):
        raise SystemExit(FAILED)


def _findings(context: Context, write: bool) -> Iterator[Finding]:
    try:
        with HistoryStore(context.url, namespace=context.namespace, retry=PATIENCE, search="off") as store:
            yield from examine(store, context.url)
        if write:
            with open_store(context, searches=None) as store:
                yield from try_out(store)
    except BackendError as error:
        if isinstance(error, EmbeddedServerError) and error.looked_at:  # `embedded status` shows these places too
            yield Finding("server", "problem", error.summary, GET_SERVER)
        else:
            yield Finding("server", "problem", str(error), hint(error))
    yield from examine_here()


def _show(found: list[Finding]) -> None:
    screen = console()
    if screen.is_terminal:
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for one in found:
            table.add_row(Text(one.check), Text(one.state, style=_STYLES[one.state]), Text(visible(one.detail)))
        screen.print(table)
    else:
        for one in found:
            click.echo(f"{one.check}\t{one.state}\t{name(one.detail)}")
    for heading, states in (("Fixes", ("problem", "limited")), ("Optional", ("ok",))):
        fixes = [one for one in found if one.fix and one.state in states]
        if not fixes:
            continue
        screen.print(Text(f"\n{heading}:", style="bold"))
        for one in fixes:
            # Not in the table, which would wrap commands: these could not be copied.
            screen.print(Text(f"  {one.check}", style=_STYLES[one.state]))
            for line in visible(one.fix or "").splitlines():
                screen.print(Text(f"    {line}"), soft_wrap=True)
    if any(word in (one.fix or "") for one in found for word in (" CONFIG SET ", " ACL SETUSER ")):
        screen.print(Text(f"\n{_LASTING}", style="dim"))
    counts = {state: sum(one.state == state for one in found) for state in ("problem", "limited")}
    told = [counted(counts["problem"], "problem")] if counts["problem"] else []
    told += [f"{counts['limited']} limited"] if counts["limited"] else []
    screen.print(Text(f"\n{', '.join(told) or 'All is well.'}"))
