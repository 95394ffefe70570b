"""Output of commands: text that cannot control a terminal, JSON, errors, and progress."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import click
import orjson
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from redis_history.cli.commands import FAILED, NO_SERVER, WRONG, Context
from redis_history.errors import (
    BackendError,
    BackendRefusedError,
    BackendUnavailableError,
    CapabilityError,
    InvalidInputError,
    MissingExtraError,
    RedisHistoryError,
    StoreClosedError,
)

# Characters that change the direction of the text around them, hide text (tags), or break lines in other ways than
# \n; and the C1 control characters, which include one-byte forms of ESC [. Not joiners: emoji and many scripts need
# them.
_BEYOND_ASCII: Final = (
    "\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f"
)
_CONTROLS: Final = re.compile(f"[\x00-\x08\x0b-\x1f{_BEYOND_ASCII}]")
_CONTROLS_AND_BREAKS: Final = re.compile(f"[\x00-\x1f{_BEYOND_ASCII}]")
_CONTROLS_IN_JSON: Final = re.compile(f"[{_BEYOND_ASCII}]")  # JSON escapes the others

#: Seconds between plain lines of progress.
LINE_SECONDS = 5.0
_REPEATED = 60.0  # seconds after which the same warning is shown again

_NO_ANSWER = """\
Does the server run, and is this its address? Start a server with `docker compose up -d` or `redis-server`, name another
with --url or REDIS_HISTORY_URL, or use your private server: --url embedded://"""
_HINTS = {
    "credentials": "Put the user name and password into the URL: redis://user:password@host:6379/0",
    "certificate": "Name the certificates in the URL: rediss://host:6379/0?ssl_ca_certs=/path/ca.pem",
    "out_of_memory": "`redis-history compress` and `delete` free memory",
    "permission": "`redis-history doctor` says which rights are missing, and how to grant them",
}

_WRONG_CREDENTIALS = (
    "The user name or the password in the URL is wrong, or the server's administrator has disabled the user"
)

#: Shows the number of items that are done, their total if known, and a text.
Update = Callable[[int, int | None, str], None]


def visible(text: str) -> str:
    """The text with its line breaks, and with visible signs for other control characters: ␛ for ESC."""
    return _CONTROLS.sub(_sign, text.replace("\r\n", "\n").expandtabs(4))


def name(text: str) -> str:
    """Like `visible`, for an id or another name: on one line, with all its blanks."""
    return _CONTROLS_AND_BREAKS.sub(_sign, text)


def one_line(text: str, width: int | None = None) -> str:
    """The text on one line, each run of whitespace as one blank, cut to `width` characters."""
    if width is None:
        return name(" ".join(text.split()))
    line = name(" ".join(text[: 4 * width].split()))
    return line if len(line) <= width and len(text) <= 4 * width else line[: width - 1].rstrip() + "…"


def counted(count: int, noun: str) -> str:
    """1 message, 2 messages."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def json_line(value: Any) -> bytes:
    """JSON in UTF-8, on one line."""
    return _CONTROLS_IN_JSON.sub(_escaped, orjson.dumps(value, default=str).decode()).encode()


def _sign(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _escaped(found: re.Match[str]) -> str:
    return "".join(f"\\u{unit:04x}" for unit in memoryview(found[0].encode("utf-16-le")).cast("H"))


class _Console(Console):
    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError(32, "the reader of the output closed it")


def console(*, stderr: bool = False) -> Console:
    """A console that interprets no markup. Does not wrap lines unless it is a terminal."""
    made = _Console(stderr=stderr, markup=False, highlight=False, emoji=False)
    made.soft_wrap = not made.is_terminal
    return made


def put(screen: Console, text: Text, indent: int = 0) -> None:
    """Print an indented text; on a terminal, wrapped."""
    if screen.is_terminal:
        screen.print(Padding(text, (0, 0, 0, indent)))
        return
    for line in text.split("\n", allow_blank=True):
        screen.print(Text(" " * indent) + line if line.plain else "")


def complain(text: str, hint: str | None = None) -> None:
    """Print an error and a hint to standard error."""
    click.echo(f"redis-history: {visible(text)}", err=True)
    for line in (hint or "").splitlines():
        click.echo(f"  {visible(line)}", err=True)


def report(error: RedisHistoryError) -> int:
    """Print an error that ended a command, and return the exit status."""
    complain(str(error), hint(error))
    if isinstance(error, InvalidInputError | CapabilityError | MissingExtraError):
        return WRONG
    return NO_SERVER if isinstance(error, BackendError) and not isinstance(error, StoreClosedError) else FAILED


def hint(error: RedisHistoryError) -> str | None:
    """How to fix an error; None if unknown."""
    if isinstance(error, BackendUnavailableError):
        return _NO_ANSWER
    if not isinstance(error, BackendRefusedError):
        return None
    if error.reason == "credentials" and "Authentication required" not in str(error):
        return _WRONG_CREDENTIALS
    return _HINTS.get(error.reason or "")


class _ToStderr(logging.Handler):
    """Prints warnings of the library, each at most once a minute."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._printed: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        now = time.monotonic()
        if now - self._printed.get(record.msg, -_REPEATED) >= _REPEATED:
            self._printed[record.msg] = now
            complain(record.getMessage())


@contextmanager
def warnings_to_stderr() -> Iterator[None]:
    logger, handler = logging.getLogger("redis_history"), _ToStderr()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


@contextmanager
def progress(doing: str, context: Context, *, quiet: bool = False) -> Iterator[Update]:
    """Shows progress on standard error: a bar on a terminal; elsewhere, without JSON, a line from time to time."""
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[count]}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(elapsed_when_finished=False),
        console=console(stderr=True),
        transient=True,
        disable=quiet or not sys.stderr.isatty(),
    )
    task = bar.add_task(doing, total=None, count="")
    lines, printed = bar.disable and not quiet and not context.json, time.monotonic()

    def update(done: int, total: int | None, text: str) -> None:
        nonlocal printed
        count = f"{done:,}{'' if total is None else f' of {total:,}'}, {text}"
        bar.update(task, completed=done, total=total, count=count)
        if lines and time.monotonic() - printed >= LINE_SECONDS:
            printed = time.monotonic()
            click.echo(f"{doing}: {count}", err=True)

    with bar:
        yield update
