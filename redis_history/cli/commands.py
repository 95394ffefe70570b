"""The command group, the shared options, and the exit status of errors."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import socket
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import click

from redis_history._version import __version__
from redis_history.errors import RedisHistoryError

DONE, FAILED, WRONG, NO_SERVER, INTERRUPTED, NO_READER, TERMINATED = 0, 1, 2, 3, 130, 141, 143
DEFAULT_URL = "redis://localhost:6379/0"
PRIVATE_URL = "embedded://"
SETTINGS = {"help_option_names": ["-h", "--help"], "show_default": True}

#: Each command with its module and the first line of its help. The module is imported when the command runs.
_COMMANDS = {
    "demo": ("demo", "Watch agents write concurrently, a subscriber follow, and a compressor keep them short."),
    "ls": ("browse", "List conversations, the last changed first."),
    "namespaces": ("browse", "List the namespaces of the server."),
    "show": ("browse", "Show a conversation."),
    "log": ("browse", "Show what changed in a conversation, and when."),
    "tail": ("tail", "Show the newest messages of a conversation, and follow changes."),
    "search": ("browse", "Search messages by their text, best matches first."),
    "say": ("edit", "Append a message to a conversation."),
    "turns": ("work", "List the answers that conversations are owed, the oldest question first."),
    "stop": ("edit", "Stop the agent that works on a conversation."),
    "approvals": ("approvals", "List the tool calls that wait for the consent of a person, the oldest first."),
    "approve": ("approvals", "Approve a tool call that waits for it."),
    "deny": ("approvals", "Deny a tool call that waits for approval."),
    "usage": ("usage", "Show how many tokens were used, what they cost, and what budgets are left."),
    "rename": ("edit", "Set the title of a conversation."),
    "fork": ("edit", "Copy a conversation, up to a message if wanted."),
    "delete": ("edit", "Delete conversations with all their messages, including archived ones."),
    "erase": ("edit", "Delete everything that a user owns."),
    "import": ("exchange", "Import conversations from files, or from the keys of an agent framework."),
    "export": ("exchange", "Export conversations, or a whole namespace, to a file."),
    "compress": ("maintain", "Replace the older part of long conversations with summaries."),
    "work": ("work", "Answer the turns that conversations are owed, with a function of yours."),
    "serve": ("serve", "Show conversations in a browser, live."),
    "mcp": ("serve", "Serve conversations to agents over the Model Context Protocol."),
    "reindex": ("maintain", "Rebuild the search index of a namespace."),
    "doctor": ("servers", "Check the server and this machine, and suggest fixes."),
    "embedded": ("servers", "Manage the private server of this user."),
}
#: What `--help` shows at its end, without `redis-history`.
_EXAMPLES = {
    "demo": ("demo --serve",),
    "ls": ("ls --user 1 --all", "--json ls | jq -r .title"),
    "show": ("show order-42 --since 2h --no-tools",),
    "tail": ("tail order-42 --follow", "--json tail --all --follow >> changes.jsonl"),
    "search": ("search 'green suitcase'", "search '\"green suitcase\"' --conversation order-42 --context 2"),
    "say": ("say order-42 'It has arrived.' --role assistant --as desk",),
    "approvals": ("approvals --user 1", "deny order-42 call-7 --reason 'too much'"),
    "turns": ("turns --status parked", "turns --retry order-42"),
    "usage": ("usage --user 1 --since 7d", "--json usage --by agent"),
    "fork": ("fork order-42 order-42-again",),
    "erase": ("erase --user 1",),
    "import": ("import --dry-run chats.jsonl", "import --from langchain redis://localhost:6379/0"),
    "export": ("export --output backup.jsonl.gz", "export order-42 | redis-history --namespace copy import -"),
    "compress": ("compress --max-tokens 8000", "compress --max-messages 500 --once --dry-run"),
    "work": ("work support:answer --concurrency 20",),
    "serve": ("serve --open", "serve --allow-writes --port 0"),
    "mcp": ("mcp --user 1",),
    "doctor": ("doctor", "--namespace support doctor --acl reader"),
    "embedded": ("embedded start", "embedded status"),
}


class Context(NamedTuple):
    """The shared options. `given_url`: None if not given. `json`: print JSON, one value a line, instead of text."""

    given_url: str | None
    namespace: str
    json: bool

    @classmethod
    def of(cls, ctx: click.Context) -> Context:
        """The options before the name of the command and those after it, which prevail."""
        return cls(ctx.meta.get("url"), ctx.meta.get("namespace", "default"), ctx.meta.get("json", False))

    @property
    def url(self) -> str:
        return default_url() if self.given_url is None else self.given_url

    def say(self, text: str, **fields: Any) -> None:
        """Print a line to standard output: the text, or the fields with --json."""
        if self.json:
            self.emit(fields)
        else:
            click.echo(text)

    @staticmethod
    def emit(fields: Any) -> None:
        """Print a line of JSON."""
        from redis_history.cli._output import json_line

        click.echo(json_line(fields))


@functools.cache
def default_url() -> str:
    """The server of all commands without --url: one on the port of Redis, otherwise the private server."""
    with contextlib.suppress(OSError), socket.create_connection(("localhost", 6379), timeout=0.4):
        return DEFAULT_URL
    return PRIVATE_URL


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value is not None and value is not False:  # given. The command itself rejects an empty value
        ctx.meta[str(param.name)] = value


def _shared(name: str, **more: Any) -> click.Option:
    return click.Option([f"--{name}"], callback=_keep, expose_value=False, **more)


_SHARED: dict[str, dict[str, Any]] = {
    "url": {"help": "The URL of the server.", "metavar": "URL"},
    "namespace": {"help": "The namespace of the conversations.", "metavar": "NAME"},
    "json": {"help": "Answer in JSON, one value a line.", "is_flag": True},
}


def define(name: str, *, shared: Sequence[str] = tuple(_SHARED)) -> Callable[[Callable[..., Any]], click.Command]:
    """Like `click.command`, for a function of a Context. The shared options may also follow the command's name."""

    def decorate(function: Callable[..., Any]) -> click.Command:
        @functools.wraps(function)
        def run(**values: Any) -> Any:
            return function(Context.of(click.get_current_context()), **values)

        command = click.command(name, context_settings=SETTINGS)(run)
        command.params += [_shared(one, **_SHARED[one]) for one in shared]
        return command

    return decorate


class _Commands(click.Group):
    """Imports a command when it is needed, and turns errors into a message and an exit status."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = import_module(f"redis_history.cli.{_COMMANDS[cmd_name][0]}")
        found: click.Command = getattr(module, f"{cmd_name}_command")
        if cmd_name in _EXAMPLES:
            lines = (f"  redis-history {example}" for example in _EXAMPLES[cmd_name])
            found.epilog = "\n".join(("\b", "Examples:", *lines))
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        from redis_history.cli._output import report, warnings_to_stderr

        try:
            with warnings_to_stderr():
                outcome = super().invoke(ctx)
                sys.stdout.flush()
                return outcome
        except RedisHistoryError as error:
            ctx.exit(report(error))
        except KeyboardInterrupt:
            click.echo("redis-history: interrupted", err=True)
            ctx.exit(INTERRUPTED)
        except OSError as error:
            ctx.exit(_output_failed(error))

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        try:
            return super().make_context(*args, **options)
        except OSError as error:  # from --help and --version, which print here
            raise click.exceptions.Exit(_output_failed(error)) from error


def _output_failed(error: OSError) -> int:
    """Report that the output cannot be written, and return the exit status. Reraises other errors."""
    if error.errno not in (errno.EPIPE, errno.ENOSPC, errno.EDQUOT):
        raise error
    with contextlib.suppress(OSError, ValueError):  # discard the rest
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if error.errno == errno.EPIPE:
        return NO_READER
    with contextlib.suppress(OSError):  # standard error may have the same problem
        click.echo(f"redis-history: the output cannot be written: {error.strerror}", err=True)
    return FAILED


@click.group(
    cls=_Commands,
    context_settings=SETTINGS,
    params=[
        _shared(
            "url",
            help="The URL of the server: redis://, rediss://, unix://, redis+cluster://, redis+sentinel://, "
            "embedded://.",
            metavar="URL",
            envvar="REDIS_HISTORY_URL",
            show_envvar=True,
            show_default=f"{DEFAULT_URL} if a server listens there, otherwise {PRIVATE_URL}",
        ),
        _shared("namespace", **_SHARED["namespace"], envvar="REDIS_HISTORY_NAMESPACE", show_envvar=True,
                default="default"),
        _shared("json", **_SHARED["json"]),
    ],
)  # fmt: skip
@click.version_option(__version__)
def cli() -> None:
    """Conversations of LLM agents in Redis.

    The options may stand before or after the name of the command.

    Exit status: 0 done, 1 something failed or was not found, 2 wrong arguments, 3 no server, 130 interrupted,
    141 the reader of the output closed it, 143 ended by SIGTERM.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


cli.commands = dict.fromkeys(_COMMANDS, cli)  # click suggests these names for an unknown command
