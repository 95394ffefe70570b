"""The latency of changes for subscribers: from the start or the return of a write to the callback, beside PUBLISH."""

from __future__ import annotations

import asyncio
import threading
import time
from functools import partial
from typing import Any

import redis.asyncio

from benchmarks.timing import TEXT, Report, Timing, append_to
from redis_history import AsyncHistoryStore, HistoryStore, user


class _Latency:
    """Times of the callbacks of one row of the report."""

    def __init__(self) -> None:
        self.arrived = 0.0
        self.bare, self.since_start, self.since_return = Timing(), Timing(), Timing()

    def add(self, start: float, returned: float, *, bare: bool) -> None:
        (self.bare if bare else self.since_start).values.append((self.arrived - start) * 1e6)
        if not bare:
            self.since_return.values.append((self.arrived - returned) * 1e6)

    def report(self, report: Report, name: str) -> None:
        report.row(f"append returned to {name}", "PUBLISH to callback", self.since_return, self.bare, "2")
        report.row(f"append begun to {name}", "PUBLISH to callback", self.since_start, self.bare)
        text = f"{self.since_start.p99:.0f} µs beside {self.bare.p99:.0f} µs of PUBLISH"
        report.note(f"append to {name}, p99", text)


def bench_doorbell(report: Report, client: Any, store: HistoryStore, url: str, rounds: int) -> None:
    rang, latency = threading.Event(), _Latency()

    def callback(event: Any) -> None:
        latency.arrived = time.perf_counter()
        rang.set()

    pubsub: Any = client.pubsub(ignore_subscribe_messages=True)
    pubsub.subscribe(**{"bare-bell": callback})
    listener = pubsub.run_in_thread(sleep_time=None)
    with HistoryStore(url, namespace="bench", search="off") as reader:
        reader.on_change("bell", callback)
        store.append("bell", user("first"))
        rang.wait(10)
        for _ in range(rounds // 5):
            for bare, ring in ((True, partial(client.publish, "bare-bell", b"x")), (False, append_to(store, "bell"))):
                rang.clear()
                start = time.perf_counter()
                ring()
                returned = time.perf_counter()
                rang.wait(10)
                latency.add(start, returned, bare=bare)
    listener.stop()
    client.publish("bare-bell", b"end")
    listener.join()
    latency.report(report, "callback")


async def bench_async_doorbell(report: Report, url: str, rounds: int) -> None:
    rang, latency = asyncio.Event(), _Latency()

    def callback(event: Any) -> None:
        latency.arrived = time.perf_counter()
        rang.set()

    async with (
        redis.asyncio.Redis.from_url(url) as client,
        client.pubsub(ignore_subscribe_messages=True) as pubsub,
        AsyncHistoryStore(url, namespace="bench") as store,
        AsyncHistoryStore(url, namespace="bench") as reader,
    ):
        await pubsub.subscribe(**{"bare-bell": callback})
        listening = asyncio.create_task(pubsub.run())
        await reader.on_change("async-bell", callback)
        await store.append("async-bell", user("first"))
        await rang.wait()
        for _ in range(rounds // 5):
            for bare in (True, False):
                rang.clear()
                start = time.perf_counter()
                await (client.publish("bare-bell", b"x") if bare else store.append("async-bell", user(TEXT)))
                returned = time.perf_counter()
                await rang.wait()
                latency.add(start, returned, bare=bare)
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
    latency.report(report, "callback (asyncio)")
