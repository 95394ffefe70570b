"""The frame of all commands: where the conversations are, how to answer, and what errors look like."""

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
from redis_history.cli._text import to_json
from redis_history.errors import RedisHistoryError

__all__ = ["DEFAULT_URL", "FAILED", "Command", "Context", "cli", "define", "discard_output", "given_behind"]

DONE, FAILED, WRONG, NO_SERVER, INTERRUPTED, NO_READER, TERMINATED = 0, 1, 2, 3, 130, 141, 143
DEFAULT_URL = "redis://localhost:6379/0"

#: Each in a module of its name, which is imported when it is asked for; and the first line of its help, so that the
#: list of commands imports none of them.
_COMMANDS = {
    "demo": "Watch many agents write at once, and check what became of it.",
    "ls": "List conversations, the one that changed last first.",
    "show": "Show a conversation.",
    "tail": "Show the end of a conversation, and what is added to it.",
    "search": "Find messages by what is said in them, the best first.",
    "import": "Store the conversations of files.",
    "export": "Write conversations to a file: these, or all of the namespace.",
    "compress": "Replace the older part of long conversations by summaries.",
    "serve": "Show conversations in a browser, live.",
    "reindex": "Write the search index of a namespace anew.",
    "doctor": "Check what works here, and say how to mend the rest.",
    "embedded": "Manage the private server of this user.",
    "completion": "Print the script that completes commands in a shell.",
}


@dataclass(frozen=True)
class Context:
    """What is the same for all commands. `given_url`: None if there was none. `json`: one JSON value a line instead of
    text for people."""

    given_url: str | None
    namespace: str
    json: bool

    @property
    def url(self) -> str:
        return DEFAULT_URL if self.given_url is None else self.given_url

    def say(self, text: str, /, **fields: Any) -> None:
        """A line on standard output: the text, or the fields."""
        if self.json:
            self.emit(fields)
        else:
            click.echo(text)

    @staticmethod
    def emit(fields: dict[str, Any]) -> None:
        """A line of JSON."""
        click.echo(to_json(fields))


def _set(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value is None or value is False:  # not given; what is given but empty is for the command to refuse
        return
    ctx.meta[f"{__name__}.{param.name}"] = value  # where completion finds it: no command runs then
    if isinstance(ctx.obj, Context):
        ctx.obj = replace(ctx.obj, **{"given_url" if param.name == "url" else str(param.name): value})


def given_behind(ctx: click.Context, name: str) -> Any:
    """The value of such an option behind the name of the command, where that command does not run; None without."""
    return ctx.meta.get(f"{__name__}.{name}")


def _shared(name: str, help: str, **more: Any) -> click.Option:
    return click.Option([f"--{name}"], help=help, callback=_set, expose_value=False, **more)


#: The options of `cli` once more, behind the name of a command.
_SHARED = {
    "url": _shared("url", "Where the conversations are.", metavar="URL"),
    "namespace": _shared("namespace", "The namespace of the conversations.", metavar="NAME"),
    "json": _shared("json", "Answer in JSON, one value a line.", is_flag=True),
}


class Command(click.Command):
    """A command that takes the options of all commands behind its name, too; `shared` are those that mean something to
    it."""

    def __init__(self, *args: Any, shared: Sequence[str] = tuple(_SHARED), **options: Any) -> None:
        super().__init__(*args, **options)
        self._shared = shared

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        *own, help_option = super().get_params(ctx)
        return [*own, *(_SHARED[name] for name in self._shared), help_option]


def define(name: str, *, shared: Sequence[str] = tuple(_SHARED)) -> Callable[[Callable[..., Any]], Command]:
    """`click.command` for commands of ours."""
    settings = {"help_option_names": ["-h", "--help"]}
    return click.command(name=name, cls=Command, context_settings=settings, shared=shared)


class _Commands(click.Group):
    """Loads a command when it is asked for, and gives errors an exit status and a line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        name = "import_" if cmd_name == "import" else cmd_name  # a module of that name could not be imported
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
        except OSError as error:  # of --help and --version, which are written here
            raise click.exceptions.Exit(_unwritten(error)) from error


def _unwritten(error: OSError) -> int:
    """Tell that the output cannot be written; the exit status. Raises what is something else."""
    if error.errno not in (errno.EPIPE, errno.ENOSPC, errno.EDQUOT):
        raise error
    discard_output()
    if error.errno == errno.EPIPE:
        return NO_READER
    with contextlib.suppress(OSError):  # it may lead to the same place
        click.echo(f"redis-history: the output cannot be written: {error.strerror}", err=True)
    return FAILED


def discard_output() -> None:
    """What is still to be written to standard output goes nowhere."""
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
    help="Where the conversations are: redis://, rediss://, unix://, redis+cluster://, redis+sentinel://, embedded://.",
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

    Exit status: 0 done, 1 something failed or is not there, 2 wrong arguments, 3 no server, 130 interrupted,
    141 who reads the output has gone away, 143 ended by SIGTERM.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    ctx.obj = Context(url, namespace, json)
