"""Tools for tests of the embedded server: process states and worker processes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import redis

from redis_history.embedded import EmbeddedServer
from redis_history.embedded._locks import is_held
from tests.support.commands import environment

REPOSITORY = Path(__file__).parents[2]
WORKER = Path(__file__).with_name("embedded_worker.py")


def gone(pid: int) -> bool:
    """Whether the process has ended, also if it is a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return False


def supervisor_of(path: str | os.PathLike[str]) -> int:
    return int(Path(path, "supervisor.lock").read_text())


def stopped(path: str | os.PathLike[str]) -> bool:
    return not is_held(Path(path, "supervisor.lock")) and not is_held(Path(path, "server.lock"))


def client(server: EmbeddedServer | str) -> redis.Redis:
    url = server if isinstance(server, str) else server.url
    return redis.Redis.from_url(url, decode_responses=True)


class Worker:
    """A process with one EmbeddedServer, which does what it is sent line by line; see embedded_worker.py."""

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        self.children: list[int] = []
        self.process = subprocess.Popen(
            [sys.executable, WORKER, str(path), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )

    def send(self, *words: str) -> None:
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        line = self.process.stdout.readline()
        assert line, f"the worker ended with status {self.process.wait()}"
        reply = json.loads(line)
        if "error" in reply:
            raise RuntimeError(reply["error"])
        if isinstance(reply["result"], dict):
            self.children.append(reply["result"]["pid"])
        return reply["result"]

    def ask(self, *words: str) -> Any:
        self.send(*words)
        return self.answer()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        for child in self.children:
            if not gone(child):
                os.kill(child, signal.SIGKILL)
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]
