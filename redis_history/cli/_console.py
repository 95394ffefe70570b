"""Consoles and progress: rich on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from redis_history.cli.commands import Context

__all__ = ["Working", "console", "put", "working"]

#: Seconds between plain lines of a work that goes on.
LINE_SECONDS = 5.0


class _Console(Console):
    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError(32, "who reads the output has gone away")


def console(*, stderr: bool = False) -> Console:
    """Takes nothing in a text for markup. Where there is no terminal, lines stay as long as they are."""
    made = _Console(stderr=stderr, markup=False, highlight=False, emoji=False)
    if not made.is_terminal:
        made.soft_wrap = True
    return made


def put(screen: Console, text: Text, indent: int = 0) -> None:
    """Print a text; on a terminal wrapped, elsewhere line by line as it is, indented in any case."""
    if screen.is_terminal:
        screen.print(Padding(text, (0, 0, 0, indent)))
        return
    for line in text.split("\n", allow_blank=True):
        screen.print(Text(" " * indent) + line if line.plain else "")


class Working(AbstractContextManager["Working"]):
    """Shows how far a work is, on standard error."""

    def update(self, done: int, total: int | None = None, more: str = "") -> None:
        """So many are done, of a total if it is known."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


def working(what: str, context: Context, *, quiet: bool = False) -> Working:
    """A bar on a terminal; a line now and then elsewhere, and none with JSON; nothing if `quiet`."""
    if quiet:
        return Working()
    if sys.stderr.isatty():
        return _Bar(what)
    return Working() if context.json else _Lines(what)


class _Lines(Working):
    def __init__(self, what: str) -> None:
        self._what = what
        self._told = time.monotonic()

    def update(self, done: int, total: int | None = None, more: str = "") -> None:
        if time.monotonic() - self._told >= LINE_SECONDS:
            self._told = time.monotonic()
            of = "" if total is None else f" of {total:,}"
            click.echo(f"{self._what}: {done:,}{of}{more and f', {more}'}", err=True)


class _Bar(Working):
    def __init__(self, what: str) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[count]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(elapsed_when_finished=False),
            console=console(stderr=True),
            transient=True,
        )
        self._task: Any = self._progress.add_task(what, total=None, count="")

    def update(self, done: int, total: int | None = None, more: str = "") -> None:
        of = "" if total is None else f" of {total:,}"
        self._progress.update(self._task, completed=done, total=total, count=f"{done:,}{of}{more and f', {more}'}")

    def __enter__(self) -> Working:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
