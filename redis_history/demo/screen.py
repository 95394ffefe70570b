"""What one sees of a run: a live bar and the last messages on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol

from redis_history.model import Message

__all__ = ["Row", "Screen", "open_screen", "printable"]

_PLAIN_SECONDS = 1.0
_LAST = 5
_WIDTH = 72

#: Name, value, and whether it is as it must be (None: nothing to check).
Row = tuple[str, str, bool | None]


class Screen(AbstractContextManager["Screen"], Protocol):
    """Shows a run. Each method may be called at any time and any number of times."""

    def stored(self, stored: int, ignored: int) -> None: ...

    def delivered(self, messages: int, last: Sequence[tuple[str, Message]]) -> None: ...

    def note(self, text: str) -> None: ...

    def refresh(self) -> None: ...

    def table(self, title: str, rows: Sequence[Row]) -> None: ...


def open_screen(total: int) -> Screen:
    """The screen that suits the output; `total` is the number of messages to come."""
    if sys.stdout.isatty():
        try:
            from redis_history.demo.rich_screen import RichScreen
        except ImportError:  # rich is an extra
            pass
        else:
            return RichScreen(total)
    return PlainScreen(total)


def printable(text: str, width: int = _WIDTH) -> str:
    """One line of text that cannot steer a terminal."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * width]).split())
    return line if len(line) <= width else line[: width - 1] + "…"


def describe(message: Message) -> tuple[str, str]:
    """Who, and what in short."""
    who = message.role if message.participant is None else message.participant.display_name or message.participant.id
    calls = ", ".join(f"{use.name}()" for use in message.tool_uses)
    return printable(who, 16), printable(" · ".join(filter(None, (message.text, calls and f"→ {calls}"))) or "(empty)")


class PlainScreen:
    """Lines, about one a second."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._stored = self._ignored = self._delivered = 0
        self._last: tuple[str, Message] | None = None
        self._shown = time.monotonic()

    def stored(self, stored: int, ignored: int) -> None:
        self._stored, self._ignored = stored, ignored

    def delivered(self, messages: int, last: Sequence[tuple[str, Message]]) -> None:
        self._delivered = messages
        self._last = last[-1] if last else self._last

    def note(self, text: str) -> None:
        print(f"! {text}", flush=True)

    def refresh(self) -> None:
        if time.monotonic() - self._shown < _PLAIN_SECONDS:
            return
        self._shown = time.monotonic()
        last = ""
        if self._last is not None:
            who, what = describe(self._last[1])
            last = f"  {who}: {printable(what, 48)}"
        print(
            f"  {self._stored:,} of {self._total:,} stored, {self._ignored:,} retries ignored, "
            f"{self._delivered:,} delivered{last}",
            flush=True,
        )

    def table(self, title: str, rows: Sequence[Row]) -> None:
        width = max(len(name) for name, _, _ in rows)
        print(f"\n{title}")
        for name, value, good in rows:
            print(f"  {name:<{width}}  {value}{'' if good is not False else '   <-- WRONG'}", flush=True)

    def __enter__(self) -> PlainScreen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


def last_messages(seen: list[tuple[str, Message]], new: Sequence[tuple[str, Message]]) -> list[tuple[str, Message]]:
    """The newest few of them."""
    return [*seen, *new][-_LAST:]
