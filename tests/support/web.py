"""The live view for tests: the command in a new process, the same in this event loop, and readers of streams."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
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
    """`redis-history serve` as a process, which may open `files` files."""

    def __init__(
        self, url: str, namespace: str, *options: str, port: int = 0, token: str = TOKEN, files: int = 4096
    ) -> None:
        argv = [sys.executable, "-m", "redis_history.cli", "--url", url, "--namespace", namespace, "serve"]
        argv += ["--port", str(port), *options]
        argv = ["sh", "-c", f'ulimit -n {files} && exec "$@"', "sh", *argv]
        environment = {**os.environ, "REDIS_HISTORY_TOKEN": token}
        self.process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
        )
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


class _Errors(logging.Handler):
    """The errors that the server logs when an application breaks the rules of ASGI."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())


@contextlib.contextmanager
def without_server_errors() -> Iterator[None]:
    errors, logger = _Errors(), logging.getLogger("uvicorn.error")
    logger.addHandler(errors)
    try:
        yield
    finally:
        logger.removeHandler(errors)
    assert errors.found == []


@contextlib.asynccontextmanager
async def listening(app: Any, **options: Any) -> AsyncIterator[int]:
    """Serve an application in this event loop. Returns its port."""
    with without_server_errors(), socket.create_server(("127.0.0.1", 0)) as listener:
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
    """Reads server-sent events on a bare connection, as a browser does. A context manager, or use `connect`."""

    def __init__(self, port: int, path: str = "v1/events", *, base: str = "", **headers: str) -> None:
        self.last_id = ""
        self._port, self._path = port, f"{base}/{path}"
        self._asked = {"Host": "localhost", "Authorization": f"Bearer {TOKEN}"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        self._rest = b""

    async def connect(self) -> Stream:
        """Send the request, and read the head of the answer: `status` and `headers`."""
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port, limit=2**24)
        asked = "".join(f"{name}: {value}\r\n" for name, value in self._asked.items())
        self.writer.write(f"GET {self._path} HTTP/1.1\r\n{asked}\r\n".encode())
        async with asyncio.timeout(DEADLINE):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        self.status = int(head[0].split()[1])
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        return self

    async def __aenter__(self) -> Stream:
        return await self.connect()

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    async def event(self, seconds: float = DEADLINE) -> tuple[str, dict[str, Any]] | None:
        """The next event, its name and data; None at the end of the stream."""
        async with asyncio.timeout(seconds):
            while (fields := await self._fields()) is not None:
                if "data" in fields:
                    self.last_id = fields.get("id", self.last_id)
                    return fields.get("event", "message"), json.loads(fields["data"])
        return None

    async def events(self, count: int) -> list[tuple[str, dict[str, Any]]]:
        found = [await self.event() for _ in range(count)]
        assert None not in found, "the stream ended"
        return found  # type: ignore[return-value]

    async def messages(self, count: int, seconds: float = DEADLINE) -> list[str]:
        """The ids of the next appended messages, fewer if the stream ends before."""
        found: list[str] = []
        while len(found) < count and (event := await self.event(seconds)):
            kind, data = event
            assert kind in ("appended", "away", "back")
            found += [message["id"] for message in data.get("messages", [])]
        return found

    async def comment(self) -> Stream:
        """Read a comment. A stream opens with one."""
        async with asyncio.timeout(DEADLINE):
            fields = await self._fields()
        assert fields is not None
        assert "data" not in fields
        return self

    async def body(self) -> dict[str, Any]:
        """The JSON of an answer that is not a stream."""
        async with asyncio.timeout(DEADLINE):
            found: dict[str, Any] = json.loads(await self.reader.readexactly(int(self.headers["content-length"])))
        return found

    async def _fields(self) -> dict[str, str] | None:
        """The fields of the next event or comment; None at the end of the stream."""
        while b"\n\n" not in self._rest:
            try:
                size = int(await self.reader.readline() or b"0", 16)
                self._rest += (await self.reader.readexactly(size + 2))[:-2]
            except (asyncio.IncompleteReadError, ConnectionError, ValueError):
                return None
            if not size:
                return None
        frame, _, self._rest = self._rest.partition(b"\n\n")
        return dict(line.split(": ", 1) for line in frame.decode().split("\n"))


def at(conversation_id: str, *what: str, **parameters: str) -> str:
    """The path of a conversation, or of something in it, with a query."""
    path = "/".join(["v1/conversations", *(quote(one, safe="") for one in (conversation_id, *what))])
    query = "&".join(f"{name}={quote(value, safe='')}" for name, value in parameters.items())
    return f"{path}?{query}" if query else path
