"""The ring of encoded events, and readers that leave and return."""

import asyncio
import random
from contextlib import aclosing
from functools import partial
from typing import Any

import pytest

from redis_history import AsyncHistoryStore, user
from redis_history.web import _hub
from redis_history.web._events import Entry, Ring
from redis_history.web._hub import Hub
from redis_history.web._rights import ReadRights


def test_a_ring_is_limited_by_count_and_bytes() -> None:
    limits: list[tuple[dict[str, int], int]] = [({"count": 3}, 3), ({"size": 100}, 10)]
    for options, left in limits:
        ring = Ring("begin", **options)
        for number in range(50):
            ring.add(Entry(str(number), "c", b"x" * 10))
        assert [one.cursor for one in ring.read(ring.start)] == [str(number) for number in range(50 - left, 50)]


@pytest.mark.proves("fan-out")
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(2, 8))])
async def test_readers_at_every_pace_see_every_change_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a ring of three, which nearly all readers fall out of again and again, and come back to."""
    monkeypatch.setattr(_hub, "Ring", partial(Ring, count=3))
    chance = random.Random(seed)
    count = 120
    async with AsyncHistoryStore("memory://") as store:
        hub = Hub(store, heartbeat=0.05, grace=0.0)
        start = str((await store.snapshot("c")).cursor)

        async def read(pace: float) -> list[int]:
            seen: list[int] = []
            cursor = start
            while len(seen) < count:
                async with aclosing(hub.follow("c", cursor, ReadRights(store, None))) as chunks:
                    async for chunk in chunks:
                        for line in chunk.split(b"\n"):
                            if line.startswith(b"id: "):
                                cursor = line[4:].decode()
                                seen.append(int(cursor.split(":")[1]))
                        if len(seen) >= count or chance.random() < 0.02:
                            break  # it leaves, and comes again
                        for _ in range(int(pace * chance.random())):
                            await asyncio.sleep(0)
            return seen

        async def write() -> None:
            for number in range(count):
                await store.append("c", user(f"{number}"))
                for _ in range(chance.choice((0, 0, 1, 30))):
                    await asyncio.sleep(0)

        async with asyncio.timeout(20):
            *seen, _ = await asyncio.gather(*(read(pace) for pace in (0, 1, 5, 30, 100, 300)), write())
        assert all(one == list(range(1, count + 1)) for one in seen)
        await hub.aclose()


async def test_a_failed_watch_is_replaced(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    async with AsyncHistoryStore("memory://") as store, asyncio.timeout(20):
        hub = Hub(store, heartbeat=5.0, grace=0.0)
        cursor = str((await store.snapshot("c")).cursor)
        await store.append("c", user("1"))
        with monkeypatch.context() as patch:
            patch.setattr(_hub, "encoded", None)
            assert [chunk async for chunk in hub.follow("c", cursor, ReadRights(store, None))] == []
        assert "clients reconnect" in caplog.text
        async with aclosing(hub.follow("c", cursor, ReadRights(store, None))) as chunks:
            assert b"event: appended" in await anext(chunks)
        await hub.aclose()
