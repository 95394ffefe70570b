"""The live view for tests: the command in a new process, the same in this event loop, and readers of streams."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import uvicorn

from tests.support.servers import DEADLINE

TOKEN = "a-token-of-the-tests"


class Serve:
    """`redis-history serve` as a process."""

    def __init__(self, url: str, namespace: str, *options: str, port: int = 0, token: str = TOKEN) -> None:
        argv = [sys.executable, "-m", "redis_history.cli", "--url", url, "--namespace", namespace, "serve"]
        argv += ["--port", str(port), *options]
        environment = {**os.environ, "REDIS_HISTORY_TOKEN": token}
        self.process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert self.url.startswith("http://"), self.process.communicate(timeout=DEADLINE)[1]
        self.base, _, self.token = self.url.partition("?token=")
        self.port = int(self.base.rstrip("/").rpartition(":")[2])
        self.greeting = f"namespace {namespace!r}, read-only; ends with Ctrl-C\n"

    def memory(self) -> int:
        """Resident bytes of the process."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])

    def end(self, how: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Its exit status, and what it wrote as errors."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        errors = self.process.communicate(timeout=DEADLINE)[1]
        return self.process.returncode, errors


@contextlib.contextmanager
def serve(url: str, namespace: str, *options: str, **more: Any) -> Iterator[Serve]:
    server = Serve(url, namespace, *options, **more)
    try:
        yield server
    finally:
        server.end(signal.SIGKILL)


class _Here(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def listening(app: Any, **options: Any) -> AsyncIterator[int]:
    """Any application in this event loop; its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        settings: dict[str, Any] = {"access_log": False, "lifespan": "off", "ws": "none", **options}
        config = uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1, **settings)
        server = _Here(config)
        running = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await running


def client(app: Any, **options: Any) -> httpx.AsyncClient:
    """Asks an application without a network. Not for streams."""
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    options = {"base_url": "http://localhost/", "headers": {"Authorization": f"Bearer {TOKEN}"}, **options}
    return httpx.AsyncClient(transport=transport, **options)


class Stream:
    """A reader of server-sent events, on a bare connection; as a browser reads them."""

    def __init__(self, port: int, path: str = "v1/events", *, base: str = "", **headers: str) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.comments = 0
        self.last_id: str | None = None
        self._where = (port, f"{base}/{path}")
        self._asked = {"Host": "localhost", "Authorization": f"Bearer {TOKEN}"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        self._rest = b""
        self._lines: list[str] = []
        self._ended = False

    async def __aenter__(self) -> Stream:
        port, path = self._where
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
        asked = "".join(f"{name}: {value}\r\n" for name, value in self._asked.items())
        self._writer.write(f"GET {path} HTTP/1.1\r\n{asked}\r\n".encode())
        async with asyncio.timeout(DEADLINE):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        self.status = int(head[0].split()[1])
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def event(self, seconds: float = DEADLINE) -> tuple[str, dict[str, Any]] | None:
        """The next event, its name and data; None at the end of the stream."""
        async with asyncio.timeout(seconds):
            while True:
                found = self._take()
                if found is not None:
                    return found
                if self._ended:
                    return None
                await self._more()

    async def events(self, count: int, seconds: float = DEADLINE) -> list[tuple[str, dict[str, Any]]]:
        found = []
        for _ in range(count):
            event = await self.event(seconds)
            assert event is not None, f"the stream ended after {found}"
            found.append(event)
        return found

    async def opened(self) -> Stream:
        """Return when the stream has said that it is open."""
        async with asyncio.timeout(DEADLINE):
            while not self.comments and not self._ended:
                self._take()
                if not self.comments:
                    await self._more()
        return self

    async def comment(self) -> None:
        """Return when the next comment has come."""
        before = self.comments
        async with asyncio.timeout(DEADLINE):
            while self.comments == before:
                assert self._take() is None
                if self.comments == before:
                    await self._more()

    async def body(self) -> dict[str, Any]:
        """The JSON of an answer that is not a stream."""
        async with asyncio.timeout(DEADLINE):
            found: dict[str, Any] = json.loads(await self._reader.readexactly(int(self.headers["content-length"])))
        return found

    async def _more(self) -> None:
        try:
            size = int(await self._reader.readline() or b"0", 16)
            chunk = await self._reader.readexactly(size + 2)
        except (asyncio.IncompleteReadError, ConnectionError, ValueError):
            self._ended = True
            return
        self._ended = not size
        *lines, self._rest = (self._rest + chunk[:-2]).split(b"\n")
        self._lines += [line.decode() for line in lines]

    def _take(self) -> tuple[str, dict[str, Any]] | None:
        while "" in self._lines:
            blank = self._lines.index("")
            lines, self._lines = self._lines[:blank], self._lines[blank + 1 :]
            self.comments += sum(line.startswith(":") for line in lines)
            fields = dict(line.split(": ", 1) for line in lines if not line.startswith(":"))
            if "data" in fields:
                self.last_id = fields.get("id", self.last_id)
                return fields.get("event", "message"), json.loads(fields["data"])
        return None


def at(conversation_id: str, *what: str, **parameters: str) -> str:
    """The path of a conversation, or of something in it, with a query."""
    path = "/".join(["v1/conversations", *(quote(one, safe="") for one in (conversation_id, *what))])
    query = "&".join(f"{name}={quote(value, safe='')}" for name, value in parameters.items())
    return f"{path}?{query}" if query else path


class Lean(asyncio.Protocol):
    """A reader that only keeps which messages came, in order: so that hundreds fit into one process."""

    def __init__(self, asked: bytes) -> None:
        self.seen: list[str] = []
        self.last_id = ""
        self.opened = asyncio.Event()
        self.closed = asyncio.Event()
        self._asked, self._rest, self._changed = asked, b"", asyncio.Event()

    @classmethod
    async def connect(cls, port: int, path: str) -> Lean:
        head = f"GET /{path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        loop = asyncio.get_running_loop()
        _, reader = await loop.create_connection(lambda: cls(head.encode()), "127.0.0.1", port)
        return reader

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(self._asked)

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data: "):
                at = line.index(b'"messages":[{"id":"') + 19
                self.seen.append(line[at : line.index(b'"', at)].decode())
            elif line.startswith(b"id: "):
                self.last_id = line[4:].decode()
            elif line == b": open":
                self.opened.set()
        self._changed.set()

    def connection_lost(self, _: Exception | None) -> None:
        self.closed.set()
        self._changed.set()

    async def until(self, count: int, seconds: float = DEADLINE) -> None:
        """Return when it has so many messages, or has lost the connection."""
        async with asyncio.timeout(seconds):
            while len(self.seen) < count and not self.closed.is_set():
                self._changed.clear()
                await self._changed.wait()
