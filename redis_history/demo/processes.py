"""Child processes and their pipes: started unharmed by Ctrl-C, ended with the run, whatever happens."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Final

__all__ = ["Child", "Children"]

_END_SECONDS = 5.0
_MODULES: Final = [f"redis_history.demo.{name}" for name in ("agent", "compressing", "watcher")]


def _prepared() -> ForkServerContext | SpawnContext:
    """Where the operating system can, processes are forked from one that has imported all: they are there at once."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_MODULES)
    return context


class Child:
    """A process and our end of its pipe. A pipe for each: a queue they shared would break when one is killed."""

    def __init__(self, process: BaseProcess, pipe: Connection, name: str) -> None:
        self.process = process
        self.pipe = pipe
        self.name = name

    def send(self, word: Any) -> None:
        """A word to the process; nothing happens if it has ended."""
        with contextlib.suppress(OSError):
            self.pipe.send(word)

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self.process.kill()
        self.process.join()

    @property
    def ending(self) -> str:
        """How the process ended, in words."""
        code = self.process.exitcode
        if code is None:
            return "still runs"
        return f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"


class Children:
    """The processes of a run; a context manager that leaves none behind."""

    def __init__(self) -> None:
        self._context = _prepared()
        self._children: list[Child] = []

    def start(self, name: str, target: Callable[[Any, Connection], None], job: Any) -> Child:
        """Start `target(job, pipe)` in a new process."""
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=target, args=(job, theirs), name=name, daemon=True)
        # Ctrl-C goes to the whole group: held back here, and by inheritance until the child has said it ignores it.
        resource_tracker.ensure_running()  # or its start, inside the next, would undo that
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()  # so that the end of the process is the end of the pipe
        child = Child(process, ours, name)
        self._children.append(child)
        return child

    def hear(self, timeout: float) -> Iterator[tuple[Child, Any]]:
        """What the processes sent within `timeout` seconds; None for one whose pipe has ended."""
        pipes = {child.pipe: child for child in self._children if not child.pipe.closed}
        for pipe in wait(list(pipes), timeout):
            child = pipes[pipe]  # type: ignore[index]
            try:
                yield child, child.pipe.recv()
            except (EOFError, OSError):
                child.pipe.close()
                yield child, None

    def drop(self, child: Child) -> list[Any]:
        """Forget a process that has ended; what it had still sent."""
        left = []
        with contextlib.suppress(EOFError, OSError):
            while not child.pipe.closed and child.pipe.poll():
                left.append(child.pipe.recv())
        child.pipe.close()
        self._children.remove(child)
        return left

    def __enter__(self) -> Children:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self._children:
            child.pipe.close()
            if error is not None:
                child.process.kill()
        for child in self._children:
            child.process.join(_END_SECONDS)
            if child.process.is_alive():
                child.kill()
            child.process.close()
