"""The frame of all commands: where the conversations are, how to answer, and what errors look like."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import click
import orjson

from redis_history._version import __version__
from redis_history.errors import BackendError, CapabilityError, InvalidInputError, RedisHistoryError, StoreClosedError

__all__ = ["Context", "cli"]

FAILED, WRONG, NO_SERVER, INTERRUPTED = 1, 2, 3, 130
_COMMANDS = {
    "compress": "redis_history.cli.compress",
    "reindex": "redis_history.cli.reindex",
    "serve": "redis_history.cli.serve",
}


@dataclass(frozen=True)
class Context:
    """What is the same for all commands. `json`: one JSON value a line instead of text for people."""

    url: str
    namespace: str
    json: bool

    def say(self, text: str, **fields: Any) -> None:
        """A line on standard output: the text, or the fields."""
        line = orjson.dumps(fields, default=str).decode() if self.json else text
        click.echo(line)


class _Commands(click.Group):
    """Loads a command when it is asked for, and gives errors of ours an exit status and a line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module: Any = __import__(_COMMANDS[cmd_name], fromlist=["command"])
        command: click.Command = module.command
        return command

    def main(self, args: Sequence[str] | None = None, **options: Any) -> Any:  # type: ignore[override]
        try:
            return super().main(args, **options)
        except RedisHistoryError as error:
            _fail(error)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("redis-history: interrupted", err=True)
            sys.exit(INTERRUPTED)


def _fail(error: RedisHistoryError) -> NoReturn:
    click.echo(f"redis-history: {error}", err=True)
    if isinstance(error, InvalidInputError | CapabilityError):
        sys.exit(WRONG)
    sys.exit(NO_SERVER if isinstance(error, BackendError) and not isinstance(error, StoreClosedError) else FAILED)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--url",
    envvar="REDIS_HISTORY_URL",
    default="redis://localhost:6379/0",
    show_default=True,
    show_envvar=True,
    metavar="URL",
    help="Where the conversations are: redis://, rediss://, unix://, redis+cluster://, redis+sentinel://, embedded://.",
)
@click.option(
    "--namespace",
    envvar="REDIS_HISTORY_NAMESPACE",
    default="default",
    show_default=True,
    show_envvar=True,
    metavar="NAME",
    help="The namespace of the store.",
)
@click.option("--json", is_flag=True, help="Answer in JSON, one value a line.")
@click.version_option(__version__, package_name="redis_history")
@click.pass_context
def cli(ctx: click.Context, url: str, namespace: str, json: bool) -> None:
    """Conversations of LLM agents in Redis.

    Exit status: 0 done, 1 something failed, 2 wrong arguments, 3 no server, 130 interrupted.
    """
    ctx.obj = Context(url, namespace, json)
