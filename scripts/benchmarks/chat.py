"""How many streams one web process serves: chats whose answers have ten readers each, some of which read nothing."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette

from benchmarks.timing import Report
from redis_history import AsyncHistoryStore
from redis_history.web import ChatEndpoints, allow_all

_READERS = 10
_TOKENS = 200
_PER_SECOND = 20
_TICKS = os.sysconf("SC_CLK_TCK")


def application() -> Starlette:
    """Answers whose tokens are the times at which they were written."""
    store = AsyncHistoryStore(os.environ["REDIS_HISTORY_URL"], namespace="bench")

    async def answer(run: Any) -> None:
        async with run.stream() as reply:
            for _ in range(_TOKENS):
                await reply.write(f"{time.time_ns()} ")
                await asyncio.sleep(1 / _PER_SECOND)

    chat = ChatEndpoints(store, answer, authorize=allow_all)
    return Starlette(routes=[chat.mount("/chat")], lifespan=chat.lifespan)


def bench_chat(report: Report, url: str, redis_pid: int | None, replies: int = 100) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    for slow in (0, 1):
        with _served(url) as (pid, port):
            report.note(*asyncio.run(_load(port, pid, redis_pid, replies, slow)))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def _served(url: str) -> Any:
    argv = [sys.executable, "-m", "uvicorn", "--factory", "benchmarks.chat:application", "--port", "0"]
    env = {**os.environ, "REDIS_HISTORY_URL": url, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([*argv, "--no-access-log"], env=env, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        line = next(line for line in process.stderr if "running on" in line)
        yield process.pid, int(line.split("127.0.0.1:")[1].split()[0])
    finally:
        process.kill()
        process.wait()


async def _load(port: int, pid: int, redis_pid: int | None, replies: int, slow: int) -> tuple[str, str, str]:
    """`slow`: how many of the ten readers of each answer read nothing."""
    delays: list[float] = []
    chats = [f"c{time.time_ns()}-{number}" for number in range(replies)]
    streams = await asyncio.gather(*(_connect(port, f"/{chat}/stream", chat) for chat in chats))
    began = time.monotonic(), _cpu(pid), _cpu(redis_pid)
    others = [await asyncio.gather(*(_connect(port, f"/{chat}/stream") for chat in chats)) for _ in range(_READERS - 1)]
    reading = [streams, *others[: _READERS - 1 - slow]]
    counts = await asyncio.gather(
        *(_read(reader, delays if at % 10 == 0 else None) for some in reading for at, (reader, _) in enumerate(some))
    )
    took = time.monotonic() - began[0]
    web, redis = (100 * (_cpu(of) - before) / took for of, before in ((pid, began[1]), (redis_pid, began[2])))
    for _, writer in [one for some in (streams, *others) for one in some]:
        writer.close()
    lost = sum(count != _TOKENS for count in counts)
    p50, p95 = (statistics.quantiles(delays, n=100)[at] for at in (49, 94))
    name = f"chat: {replies * _READERS} streams of {replies} answers"
    if slow:
        name += f", {replies * slow} read nothing"
    text = (
        f"web {web:.0f} % CPU, {_memory(pid):.0f} MB; Redis {redis:.0f} %; "
        f"token to client {p50:.0f} ms, p95 {p95:.0f}; "
        f"{len(counts) - lost} of {len(counts)} whole"
    )
    return name, text, ""


async def _connect(port: int, path: str, asks: str | None = None) -> Any:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**16)
    body = b""
    if asks is not None:
        message = {"id": asks, "role": "user", "parts": [{"type": "text", "text": "Go."}]}
        body = json.dumps({"id": asks, "messages": [message], "trigger": "submit-message"}).encode()
    head = f"{'GET' if asks is None else 'POST'} /chat{path if asks is None else ''} HTTP/1.1\r\nHost: localhost\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
    return reader, writer


async def _read(reader: asyncio.StreamReader, delays: list[float] | None) -> int:
    """The number of tokens of a stream."""
    count, rest = 0, b""
    while b"[DONE]" not in rest:
        data = await reader.read(65_536)
        if not data:
            break
        now = time.time_ns()
        rest = rest[-64:].rpartition(b" ")[2] + data
        tokens = re.findall(rb"\d{19}(?= )", rest)
        count += len(tokens)
        if delays is not None and len(tokens) < _PER_SECOND:  # not those of a reader that comes later
            delays += [(now - int(token)) / 1e6 for token in tokens]
    return count


def _cpu(pid: int | None) -> float:
    """Seconds of the processor."""
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _memory(pid: int) -> float:
    """Resident megabytes."""
    return int(re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[0]) / 1024
