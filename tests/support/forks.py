"""Processes that start in milliseconds: forked from a process that has already imported the package."""

import itertools
import multiprocessing
import random
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any

from redis_history import HistoryStore, user

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["redis_history.store._sync._connect", "redis_history.store._async._connect"])


class Forked:
    """A process that runs a function of a module."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._answer, answer = _context.Pipe(duplex=False)
        self._process = _context.Process(target=_run, args=(answer, function, arguments), daemon=True)
        self._process.start()
        answer.close()

    @property
    def running(self) -> bool:
        return self._process.is_alive()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._close()

    def result(self, seconds: float = 200) -> Any:
        """The return value. Fails if the process ended with an error."""
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


def write_messages(url: str, name: str, count: int) -> None:
    """Append messages to "c" one by one, some of them again, until all are there or the process is killed."""
    chance = random.Random(name)
    with HistoryStore(url) as store:
        for number in range(count):
            message = user(f"{name}-{number}", id=f"{name}-{number}")
            store.append("c", message)
            while chance.random() < 0.1:
                assert store.append("c", message).duplicate


def write_replies(url: str, name: str) -> None:
    """Write numbers to a reply until the process is killed."""
    with HistoryStore(url, search="off") as store, store.stream(name, interval=0.02) as reply:
        for number in itertools.count():
            reply.write(f"{number} ")
            time.sleep(0.001)


def copy_conversations(url: str, name: str) -> None:
    """Fork "c" to <name>-0, <name>-1 … until the process is killed."""
    with HistoryStore(url, search="off") as store:
        for number in itertools.count():
            store.fork("c", f"{name}-{number}")


def barrier(parties: int) -> Barrier:
    """A barrier for such processes."""
    return _context.Barrier(parties)


def _run(answer: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    answer.send(function(*arguments))
