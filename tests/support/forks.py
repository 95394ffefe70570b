"""Processes that begin in milliseconds: forked from one that imported the package beforehand."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["redis_history._names"])


class Forked:
    """A process of a function at the top of a module; what it returns is its result."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._answer, answer = _context.Pipe(duplex=False)
        self._process = _context.Process(target=_run, args=(answer, function, arguments), daemon=True)
        self._process.start()
        answer.close()

    @property
    def running(self) -> bool:
        return self._process.is_alive()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._close()

    def result(self, seconds: float = 200) -> Any:
        """Waits for its end; fails if that was none in order."""
        try:
            answer = self._answer.recv() if self._answer.poll(seconds) else None
        except EOFError:
            answer = None
        self._process.join(seconds)
        status = self._process.exitcode
        self._close()
        assert status == 0, f"a process ended with {status}"
        return answer

    def _close(self) -> None:
        self._answer.close()
        self._process.close()


def barrier(parties: int) -> Barrier:
    """One on which such processes wait for each other."""
    return _context.Barrier(parties)


def _run(answer: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    answer.send(function(*arguments))
