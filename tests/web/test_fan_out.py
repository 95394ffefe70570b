"""Many clients of one conversation, slow ones among them, and a server that is killed."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from redis_history import AsyncHistoryStore, user
from tests.support.servers import DEADLINE, RealServer
from tests.support.web import Stream, at, listening, serve

C = at("c", "events")
#: A process that appends messages m0, m1, … of a given size to a conversation, at a given rate.
WRITER = """
import sys, time
from redis_history import HistoryStore, user
url, namespace, count, rate, size = sys.argv[1:]
with HistoryStore(url, namespace=namespace) as store:
    began = time.monotonic()
    for number in range(int(count)):
        time.sleep(max(0.0, began + number / float(rate) - time.monotonic()))
        store.append("c", user("x" * int(size), id=f"m{number}"))
"""


@contextmanager
def appending(url: str, namespace: str, count: int, rate: float, size: int = 100) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", WRITER, url, namespace, str(count), str(rate), str(size)])
    try:
        yield
        assert process.wait(DEADLINE) == 0
    finally:
        process.kill()
        process.wait()


def numbered(count: int) -> list[str]:
    return [f"m{number}" for number in range(count)]


async def connected(port: int, count: int) -> list[Stream]:
    streams = [await Stream(port, C).connect() for _ in range(count)]
    return list(await asyncio.gather(*(stream.comment() for stream in streams)))


async def read_all(streams: list[Stream], count: int) -> None:
    found = await asyncio.gather(*(stream.messages(count, 60) for stream in streams))
    assert all(ids == numbered(count) for ids in found)


@pytest.mark.proves("fan-out")
@pytest.mark.full
async def test_two_hundred_clients_have_every_message_once(own_server: Any, namespace: str) -> None:
    server = own_server()
    clients, rate = 200, 50
    count = rate * 10
    with serve(server.url, namespace, "--max-streams-per-address", str(clients)) as view:
        streams = await connected(view.port, clients)
        with appending(server.url, namespace, count, rate):
            await read_all(streams, count)
        subscribed = [row for row in server.watcher.client_list() if int(row["sub"]) + int(row["psub"])]
        assert len(subscribed) == 1
        for stream in streams:
            stream.writer.transport.abort()
        assert view.end() == (0, view.greeting)


@pytest.mark.proves("fan-out")
@pytest.mark.full
async def test_a_client_that_does_not_read(server: RealServer, namespace: str) -> None:
    """It delays no other client, costs no memory, and continues where it was when it reads again."""
    count, size = 600, 20_000
    with serve(server.url, namespace) as view:
        slow, fast = await connected(view.port, 5), await connected(view.port, 3)
        for stream in slow:
            stream.writer.transport.pause_reading()
        before = view.memory()
        with appending(server.url, namespace, count, 1000, size):
            await read_all(fast, count)
        assert view.memory() - before < 25_000_000, f"each gets {count * size * 2:,} bytes"
        for stream in slow:
            stream.writer.transport.resume_reading()
        await read_all(slow, count)
        for stream in (*slow, *fast):
            stream.writer.transport.abort()


@pytest.mark.proves("streams")
async def test_streams_go_on_when_the_redis_was_killed(
    own_server: Callable[..., RealServer], namespace: str, make: Any
) -> None:
    server = own_server(options=("--appendonly", "yes", "--save", ""))
    async with AsyncHistoryStore(server.url, namespace=namespace, poll_interval=0.2) as store:
        await store.append("c", user("x"))
        cursor = str((await store.snapshot("c")).cursor)
        async with listening(make(store=store)) as port:
            streams = [await Stream(port, at("c", "events", after=cursor)).connect() for _ in range(3)]
            await store.append("c", user("x", id="m1"))
            assert [await stream.messages(1) for stream in streams] == [["m1"]] * 3
            server.kill()
            late = await Stream(port, at("c", "events", after=cursor)).connect()
            await late.comment()
            server.start()
            await store.append("c", user("x", id="m2"))
            assert await late.messages(2) == ["m1", "m2"]
            assert [await stream.messages(1) for stream in streams] == [["m2"]] * 3
            for stream in (*streams, late):
                stream.writer.transport.abort()
