"""The live view for terminals; needs rich (extra `cli`)."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from redis_history.demo.screen import Row, describe, last_messages, printable
from redis_history.model import Message

__all__ = ["RichScreen"]


class RichScreen:
    """Two bars (stored, delivered) above the last messages."""

    def __init__(self, total: int) -> None:
        self._console = Console()
        self._progress = Progress(
            TextColumn("{task.description:>9}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[more]}"),
            TimeElapsedColumn(),
            console=self._console,
        )
        self._stored = self._progress.add_task("stored", total=total, more="")
        self._told = self._progress.add_task("delivered", total=total, more="")
        self._last: list[tuple[str, Message]] = []
        self._live = Live(self._view(), console=self._console, refresh_per_second=10)

    def stored(self, stored: int, ignored: int) -> None:
        self._progress.update(self._stored, completed=stored, more=f"{ignored:,} retries ignored")

    def delivered(self, messages: int, last: Sequence[tuple[str, Message]]) -> None:
        self._progress.update(self._told, completed=messages)
        self._last = last_messages(self._last, last)

    def note(self, text: str) -> None:
        self._console.print(Text(f"! {text}", style="yellow"))

    def refresh(self) -> None:
        self._live.update(self._view())

    def table(self, title: str, rows: Sequence[Row]) -> None:
        self._live.stop()
        table = Table(title=title, title_justify="left", show_header=False)
        for name, value, good in rows:
            table.add_row(name, Text(value, style={True: "green", False: "bold red", None: ""}[good]))
        self._console.print(table)

    def _view(self) -> Group:
        lines = Table.grid(padding=(0, 1))
        for conversation, message in self._last:
            who, what = describe(message)
            lines.add_row(Text(printable(conversation[-24:], 24), style="dim"), Text(who, style="cyan"), Text(what))
        return Group(self._progress, lines)

    def __enter__(self) -> RichScreen:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
