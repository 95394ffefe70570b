"""The command group, the shared options, and the exit status of errors."""

from __future__ import annotations

import contextlib
import difflib
import errno
import io
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import click

from redis_history._version import __version__
from redis_history.cli._text import json_line
from redis_history.errors import RedisHistoryError

__all__ = ["DEFAULT_URL", "FAILED", "Command", "Context", "cli", "define", "discard_output", "given_behind"]

DONE, FAILED, WRONG, NO_SERVER, INTERRUPTED, NO_READER, TERMINATED = 0, 1, 2, 3, 130, 141, 143
DEFAULT_URL = "redis://localhost:6379/0"

#: Each command and the first line of its help. The command's module is imported when it runs, not to list commands.
_COMMANDS = {
    "demo": "Watch agents write at once, a subscriber follow, and a compressor keep the conversations short.",
    "ls": "List conversations, the last changed first.",
    "show": "Show a conversation.",
    "tail": "Show the newest messages of a conversation, and follow changes.",
    "search": "Search messages by their text, best matches first.",
    "import": "Import conversations from files.",
    "export": "Export conversations, or a whole namespace, to a file.",
    "compress": "Replace the older part of long conversations with summaries.",
    "serve": "Show conversations in a browser, live.",
    "mcp": "Serve conversations to agents over the Model Context Protocol.",
    "reindex": "Rebuild the search index of a namespace.",
    "doctor": "Check the server and this machine, and suggest fixes.",
    "embedded": "Manage the private server of this user.",
    "completion": "Print the completion script of a shell.",
}


@dataclass(frozen=True)
class Context:
    """The shared options. `given_url`: None if not given. `json`: print JSON, one value a line, instead of text."""

    given_url: str | None
    namespace: str
    json: bool

    @property
    def url(self) -> str:
        return DEFAULT_URL if self.given_url is None else self.given_url

    def say(self, text: str, /, **fields: Any) -> None:
        """Print a line to standard output: the text, or the fields with --json."""
        if self.json:
            self.emit(fields)
        else:
            click.echo(text)

    @staticmethod
    def emit(fields: dict[str, Any]) -> None:
        """Print a line of JSON."""
        click.echo(json_line(fields))


def _set(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value is None or value is False:  # not given; the command itself rejects an empty value
        return
    ctx.meta[f"{__name__}.{param.name}"] = value  # for completion, which runs no command
    if isinstance(ctx.obj, Context):
        ctx.obj = replace(ctx.obj, **{"given_url" if param.name == "url" else str(param.name): value})


def given_behind(ctx: click.Context, name: str) -> Any:
    """The value of a shared option after the name of the command, during completion; None if not given."""
    return ctx.meta.get(f"{__name__}.{name}")


def _shared(name: str, help: str, **more: Any) -> click.Option:
    return click.Option([f"--{name}"], help=help, callback=_set, expose_value=False, **more)


#: The options of `cli` for use after the name of a command.
_SHARED = {
    "url": _shared("url", "The URL of the server.", metavar="URL"),
    "namespace": _shared("namespace", "The namespace of the conversations.", metavar="NAME"),
    "json": _shared("json", "Answer in JSON, one value a line.", is_flag=True),
}


class Command(click.Command):
    """A command that also accepts the shared options after its name. `shared`: those that apply to it."""

    def __init__(self, *args: Any, shared: Sequence[str] = tuple(_SHARED), **options: Any) -> None:
        super().__init__(*args, **options)
        self._shared = shared

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        *own, help_option = super().get_params(ctx)
        return [*own, *(_SHARED[name] for name in self._shared), help_option]


def define(name: str, *, shared: Sequence[str] = tuple(_SHARED)) -> Callable[[Callable[..., Any]], Command]:
    """Like `click.command`, with class `Command`."""
    settings = {"help_option_names": ["-h", "--help"]}
    return click.command(name=name, cls=Command, context_settings=settings, shared=shared)


class _Commands(click.Group):
    """Imports a command when it is needed, and turns errors into a message and an exit status."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        name = "import_" if cmd_name == "import" else cmd_name  # `import` cannot be the name of a module
        module: Any = import_module(f"redis_history.cli.{name}")
        found: click.Command = module.command
        return found

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            close = difflib.get_close_matches(args[0], _COMMANDS, n=1, cutoff=0.5)
            if not close:
                raise
            raise click.UsageError(f"{error.message} Did you mean {close[0]!r}?", ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        found = [CompletionItem(name, help=text) for name, text in _COMMANDS.items() if name.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def invoke(self, ctx: click.Context) -> Any:
        from redis_history.cli._failures import tell, warnings_to_stderr

        try:
            with warnings_to_stderr():
                outcome = super().invoke(ctx)
                if sys.stdout is not None:  # as after >&-
                    sys.stdout.flush()
                return outcome
        except RedisHistoryError as error:
            ctx.exit(tell(error))
        except KeyboardInterrupt:
            click.echo("redis-history: interrupted", err=True)
            ctx.exit(INTERRUPTED)
        except OSError as error:
            ctx.exit(_unwritten(error))

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        try:
            return super().make_context(*args, **options)
        except OSError as error:  # from --help and --version, which print here
            raise click.exceptions.Exit(_unwritten(error)) from error


def _unwritten(error: OSError) -> int:
    """Report that the output cannot be written, and return the exit status. Reraises other errors."""
    if error.errno not in (errno.EPIPE, errno.ENOSPC, errno.EDQUOT):
        raise error
    discard_output()
    if error.errno == errno.EPIPE:
        return NO_READER
    with contextlib.suppress(OSError):  # standard error may have the same problem
        click.echo(f"redis-history: the output cannot be written: {error.strerror}", err=True)
    return FAILED


def discard_output() -> None:
    """Discard the rest of standard output."""
    if sys.stdout is not None:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--url",
    envvar="REDIS_HISTORY_URL",
    show_default=DEFAULT_URL,
    show_envvar=True,
    metavar="URL",
    help="The URL of the server: redis://, rediss://, unix://, redis+cluster://, redis+sentinel://, embedded://.",
)
@click.option(
    "--namespace",
    envvar="REDIS_HISTORY_NAMESPACE",
    default="default",
    show_default=True,
    show_envvar=True,
    metavar="NAME",
    help="The namespace of the conversations.",
)
@click.option("--json", is_flag=True, help="Answer in JSON, one value a line.")
@click.version_option(__version__, package_name="redis_history")
@click.pass_context
def cli(ctx: click.Context, url: str | None, namespace: str, json: bool) -> None:
    """Conversations of LLM agents in Redis.

    The options may stand before or after the name of the command.

    Exit status: 0 done, 1 something failed or was not found, 2 wrong arguments, 3 no server, 130 interrupted,
    141 the reader of the output closed it, 143 ended by SIGTERM.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    ctx.obj = Context(url, namespace, json)
