"""A power loss leaves only the fsynced part of the append-only file. A tracer of system calls measures it.

Killing a server proves nothing about its disk, because the system keeps its writes. So the test traces each fsync. At
the moment of an acknowledgement, a power loss would leave only writes from before the last finished fsync began. The
test checks this for every acknowledgement; at the end it cuts the file there, and starts a server on it.
"""

import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from redis_history import HistoryStore, user
from tests.support.servers import RealServer, Start, wait_until

STRACE = shutil.which("strace")
pytestmark = pytest.mark.skipif(STRACE is None, reason="strace, which sees what is fsynced, is not installed")
_LINE = re.compile(r"(\d+)\s+(\d+\.\d+) (.*)")
_DONE = re.compile(r"= (\d+) <([\d.]+)>$")
_CALL = re.compile(r"(write|fdatasync|fsync)\((\d+)(?:<([^>]*)>)?")


@dataclass
class Trace:
    """The fsyncs of an append-only file: when each had ended, and how much was written before it."""

    fsynced: list[tuple[float, int]] = field(default_factory=list)

    def left_at(self, moment: float) -> int:
        """Bytes of the file that survive a power loss at this moment."""
        return max((size for ended, size in self.fsynced if ended <= moment), default=0)


class Tracer:
    def __init__(self, server: RealServer) -> None:
        self._out = server.folder / "trace"
        [self.file] = (server.folder / "appendonlydir").glob("*.incr.aof")
        self._before = self.file.stat().st_size
        command = [str(STRACE), "-f", "-ttt", "-T", "-y", "-s", "0", "-e", "trace=write,fdatasync,fsync"]
        self._process = subprocess.Popen(
            [*command, "-o", str(self._out), "-p", str(server.pid)], stderr=subprocess.PIPE, start_new_session=True
        )

        def attached() -> bool:
            if self._process.poll() is not None:
                pytest.skip(f"this system lets nobody trace: {self._process.stderr.read().decode()[:200]}")
            status = Path(f"/proc/{server.pid}/status").read_text()
            return f"TracerPid:\t{self._process.pid}" in status

        wait_until(attached, "strace to attach")

    def end(self) -> Trace:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(20)
        self._process.stderr.close()
        size, begun, trace = self._before, {}, Trace()
        for line in self._out.read_text().splitlines():
            thread, at, what = _LINE.match(line).groups()
            if "resumed" in what:
                name, started = begun.pop(thread, ("", 0))
                if name == "write":
                    size += int(_DONE.search(what)[1])
                elif name:
                    trace.fsynced.append((float(at), started))
                continue
            call = _CALL.match(what)
            if call is None or call[3] != str(self.file):
                continue
            if "unfinished" in what:
                begun[thread] = (call[1], size)
                continue
            result, took = _DONE.search(what).groups()
            if call[1] == "write":
                size += int(result)
            else:
                trace.fsynced.append((float(at) + float(took), size))
        return trace


def _acknowledged(server: RealServer, count: int, work: Callable[[Any, int], Any], **options: Any) -> list[Any]:
    """When each message was acknowledged."""
    found = []
    with HistoryStore(server.url, **options) as store:
        for number in range(count):
            work(store, number)
            found.append((f"message-{number:04d}", time.time()))
    return found


def _append(store: Any, number: int) -> None:
    store.append("c", user("x", id=f"message-{number:04d}"))


def _lost(file: Path, trace: Trace, acknowledged: list[Any]) -> int:
    """The number of messages that were acknowledged before a power loss would have kept them."""
    stored = file.read_bytes()
    return sum(name.encode() not in stored[: trace.left_at(at)] for name, at in acknowledged)


@pytest.mark.proves("fsync")
@pytest.mark.parametrize(
    ("kind", "policy"),
    [("plain", "always"), ("valkey", "always"), pytest.param("redis8", "everysec", marks=pytest.mark.full)],
)
def test_writes_confirmed_by_fsync_survive_a_power_loss(own_server: Start, kind: str, policy: str) -> None:
    server = own_server(kind, options=("--appendfsync", policy))
    tracer = Tracer(server)
    acknowledged = _acknowledged(server, 200 if policy == "always" else 20, _append, durability="fsync")
    server.kill()
    trace = tracer.end()
    assert _lost(tracer.file, trace, acknowledged) == 0
    with tracer.file.open("r+b") as file:
        file.truncate(trace.left_at(acknowledged[-1][1]))
    server.start()
    with HistoryStore(server.url) as store:
        assert [message.id for message in store.get("c")] == [name for name, _ in acknowledged]


@pytest.mark.parametrize("kind", ["plain", "valkey"])
def test_unconfirmed_writes_may_be_lost(own_server: Start, kind: str) -> None:
    """Shows that the test above can fail."""
    server = own_server(kind)
    tracer = Tracer(server)
    acknowledged = _acknowledged(server, 50, _append)
    server.kill()
    assert _lost(tracer.file, tracer.end(), acknowledged) >= 25
