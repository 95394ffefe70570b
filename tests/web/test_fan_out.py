"""Many clients of one conversation, slow ones among them, and a server that is killed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from signal import SIGKILL, SIGTERM
from typing import Any

import pytest

from redis_history import AsyncHistoryStore, user
from tests.support.servers import DEADLINE, RealServer, free_port
from tests.support.web import Lean, Serve, at, listening, serve

MB = 1_000_000


@contextmanager
def appending(url: str, namespace: str, count: int, rate: float, size: int = 100) -> Iterator[None]:
    argv = [sys.executable, "-m", "tests.web.paced", url, namespace, "c", str(count), str(rate), str(size)]
    process = subprocess.Popen(argv)
    try:
        yield
        assert process.wait(DEADLINE) == 0
    finally:
        process.kill()
        process.wait()


def numbered(count: int) -> list[str]:
    return [f"m{number}" for number in range(count)]


@pytest.mark.proves("fan-out")
async def test_two_hundred_clients_have_every_message_once(own_server: Any, namespace: str, full: bool) -> None:
    server = own_server()
    clients, rate = 200, 50
    count = rate * (10 if full else 2)
    with serve(server.url, namespace, "--max-streams-per-address", str(clients)) as view:
        readers = [await Lean.connect(view.port, at("c", "events")) for _ in range(clients)]
        await asyncio.gather(*(asyncio.wait_for(reader.opened.wait(), DEADLINE) for reader in readers))
        with appending(server.url, namespace, count, rate):
            await asyncio.gather(*(reader.until(count, count / rate + DEADLINE) for reader in readers))
        assert all(reader.seen == numbered(count) for reader in readers)
        with server.client() as client:
            subscribed = [row for row in client.client_list() if int(row["sub"]) + int(row["psub"])]
        assert len(subscribed) == 1
        for reader in readers:
            reader.transport.abort()
        assert view.end() == (0, view.greeting)


@pytest.mark.proves("fan-out")
async def test_a_client_that_does_not_read(server: RealServer, namespace: str, full: bool) -> None:
    """It holds back nobody, costs no memory, and goes on where it was when it reads again."""
    count, size = (600 if full else 300), 20_000
    with serve(server.url, namespace) as view:
        slow = [await Lean.connect(view.port, at("c", "events")) for _ in range(5)]
        fast = [await Lean.connect(view.port, at("c", "events")) for _ in range(3)]
        for reader in (*slow, *fast):
            await asyncio.wait_for(reader.opened.wait(), DEADLINE)
        for reader in slow:
            reader.transport.pause_reading()
        before = view.memory()
        with appending(server.url, namespace, count, 1000, size):
            for reader in fast:
                await reader.until(count, 60)
        assert all(reader.seen == numbered(count) for reader in fast)
        assert all(len(reader.seen) < count for reader in slow)
        assert view.memory() - before < 25 * MB, f"{count * size * 2 // MB} MB were sent to each"
        for reader in slow:
            reader.transport.resume_reading()
        for reader in slow:
            await reader.until(count, 60)
        assert all(reader.seen == numbered(count) for reader in slow)
        for reader in (*slow, *fast):
            reader.transport.abort()


@pytest.mark.proves("streams")
@pytest.mark.full
async def test_streams_go_on_after_a_restart(server: RealServer, namespace: str, full: bool) -> None:
    """A browser comes again with the id of the last event that it saw."""
    port, restarts = free_port(), 6 if full else 2
    count = 100 * (restarts + 1)
    view = Serve(server.url, namespace, port=port)
    try:
        async with AsyncHistoryStore(server.url, namespace=namespace) as store:
            start = str((await store.snapshot("c")).cursor)
        seen: list[list[str]] = [[] for _ in range(10)]

        async def follow(mine: list[str]) -> None:
            last = start
            while len(mine) < count:
                try:
                    reader = await Lean.connect(port, at("c", "events", after=last))
                except OSError:
                    await asyncio.sleep(0.01)
                    continue
                await reader.until(count - len(mine), 60)
                mine += reader.seen
                last = reader.last_id or last
                reader.transport.abort()

        following = [asyncio.create_task(follow(mine)) for mine in seen]
        with appending(server.url, namespace, count, 100):
            for restart in range(restarts):
                async with asyncio.timeout(60):
                    while min(map(len, seen)) < 40 + 100 * restart:
                        await asyncio.sleep(0.005)
                view.end(SIGTERM if restart % 2 else SIGKILL)
                view = await asyncio.to_thread(Serve, server.url, namespace, port=port)
            async with asyncio.timeout(60):
                await asyncio.gather(*following)
        assert all(mine == numbered(count) for mine in seen)
    finally:
        view.end(SIGKILL)


@pytest.mark.proves("streams")
async def test_streams_go_on_when_the_redis_was_killed(
    own_server: Callable[..., RealServer], namespace: str, make: Any
) -> None:
    server = own_server(options=("--appendonly", "yes", "--save", ""))
    async with AsyncHistoryStore(server.url, namespace=namespace, poll_interval=0.2) as store:
        await store.append("c", user("x", id="m0"))
        cursor = str((await store.snapshot("c")).cursor)
        async with listening(make(store=store)) as port:
            readers = [await Lean.connect(port, at("c", "events", after=cursor)) for _ in range(3)]
            await store.append("c", user("x", id="m1"))
            for reader in readers:
                await reader.until(1)
            server.kill()
            late = await Lean.connect(port, at("c", "events", after=cursor))
            await asyncio.wait_for(late.opened.wait(), DEADLINE)
            server.start()
            await store.append("c", user("x", id="m2"))
            for reader in readers:
                await reader.until(2)
                assert reader.seen == ["m1", "m2"]
            await late.until(2)
            assert late.seen == ["m1", "m2"]
            for reader in (*readers, late):
                reader.transport.abort()
