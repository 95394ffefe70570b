"""The twin of what belongs to an event loop: threads may share everything. Written by hand, like that in _async."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet


class Home:
    """Where something belongs to: any thread will do."""

    here = True
    ended = False
    stopped = False

    def run(self, work: Callable[[], None]) -> None:
        """Do `work`."""
        work()


class Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=Closable)


class PerLoop(Generic[C]):
    """One thing, made when it is first asked for."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        self._thing: C | None = None
        self._lock = threading.Lock()
        _everywhere.add(self)

    def here(self) -> C:
        """The one there is."""
        if self._thing is None:
            with self._lock:
                if self._thing is None:
                    self._thing = self._make()
        return self._thing

    def every(self) -> list[tuple[Home, C]]:
        """The one there is, if it was asked for."""
        return [] if self._thing is None else [(Home(), self._thing)]

    def close(self) -> None:
        """Close it."""
        if self._thing is not None:
            self._thing.close()

    def forget(self) -> None:
        """In a forked child: a thread of the parent may have held the lock."""
        self._lock = threading.Lock()


_everywhere: WeakSet[PerLoop[Any]] = WeakSet()


def _in_child() -> None:
    for thing in list(_everywhere):
        thing.forget()


os.register_at_fork(after_in_child=_in_child)
