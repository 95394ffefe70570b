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

#: Seconds between plain lines of progress.
LINE_SECONDS = 5.0


class _Console(Console):
    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError(32, "the reader of the output closed it")


def console(*, stderr: bool = False) -> Console:
    """A console that interprets no markup. Does not wrap lines unless it is a terminal."""
    made = _Console(stderr=stderr, markup=False, highlight=False, emoji=False)
    if not made.is_terminal:
        made.soft_wrap = True
    return made


def put(screen: Console, text: Text, indent: int = 0) -> None:
    """Print an indented text; on a terminal, wrapped."""
    if screen.is_terminal:
        screen.print(Padding(text, (0, 0, 0, indent)))
        return
    for line in text.split("\n", allow_blank=True):
        screen.print(Text(" " * indent) + line if line.plain else "")


class Working(AbstractContextManager["Working"]):
    """Shows progress on standard error."""

    def update(self, done: int, total: int | None = None, more: str = "") -> None:
        """Show that `done` items are done, of `total` if known, and `more` text."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


def working(what: str, context: Context, *, quiet: bool = False) -> Working:
    """A progress bar on a terminal; elsewhere lines from time to time. Nothing if `quiet`, or with JSON elsewhere."""
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
