"""The latency of changes for subscribers."""

from __future__ import annotations

import asyncio
import threading
import time
from functools import partial
from typing import Any

import redis.asyncio

from benchmarks.timing import TEXT, Report, Timing, append_to
from redis_history import AsyncHistoryStore, HistoryStore, user


def bench_doorbell(report: Report, client: Any, store: HistoryStore, url: str, rounds: int) -> None:
    """From the start or end of the write to the arrival at the subscriber, compared with PUBLISH."""
    heard: dict[str, float] = {}
    rang = threading.Event()
    pubsub: Any = client.pubsub()
    pubsub.subscribe("bare-bell")

    def listen() -> None:
        for message in pubsub.listen():
            if message["data"] == b"end":
                return
            if message["type"] == "message":
                heard["at"] = time.perf_counter()
                rang.set()

    def callback(event: Any) -> None:
        heard["at"] = time.perf_counter()
        rang.set()

    thread = threading.Thread(target=listen)
    thread.start()
    for what in ("callback", "callback for all conversations"):
        bare, ours, since_return = Timing(), Timing(), Timing()
        with HistoryStore(url, namespace="bench", search="off") as reader:
            if what == "callback":
                reader.on_change("bell", callback)
            else:
                reader.on_change_all(callback)
            store.append("bell", user("first"))
            rang.wait(10)
            for _ in range(rounds // 5):
                bell = partial(client.publish, "bare-bell", b"x")
                for timing, ring in ((bare, bell), (ours, append_to(store, "bell"))):
                    rang.clear()
                    start = time.perf_counter()
                    ring()
                    returned = time.perf_counter()
                    rang.wait(10)
                    timing.values.append((heard["at"] - start) * 1e6)
                    if timing is ours:
                        since_return.values.append((heard["at"] - returned) * 1e6)
        report.row(f"append returned to {what}", "PUBLISH to callback", since_return, bare, "2")
        report.row(f"append begun to {what}", "PUBLISH to callback", ours, bare)
        report.note(f"append to {what}, p99", f"{ours.p99:.0f} µs beside {bare.p99:.0f} µs of PUBLISH")
    client.publish("bare-bell", b"end")
    thread.join()
    pubsub.close()


async def bench_async_doorbell(report: Report, url: str, rounds: int) -> None:
    client = redis.asyncio.Redis.from_url(url)
    pubsub: Any = client.pubsub()
    await pubsub.subscribe("bare-bell")
    heard: dict[str, float] = {}
    rang = asyncio.Event()

    def callback(event: Any) -> None:
        heard["at"] = time.perf_counter()
        rang.set()

    async def listen() -> None:
        async for message in pubsub.listen():
            if message["type"] == "message":
                callback(message)

    listening = asyncio.create_task(listen())
    bare, ours, since_return = Timing(), Timing(), Timing()
    async with AsyncHistoryStore(url, namespace="bench") as store, AsyncHistoryStore(url, namespace="bench") as reader:
        await reader.on_change("async-bell", callback)
        await store.append("async-bell", user("first"))
        await rang.wait()
        for _ in range(rounds // 5):
            for timing in (bare, ours):
                rang.clear()
                start = time.perf_counter()
                if timing is bare:
                    await client.publish("bare-bell", b"x")
                else:
                    await store.append("async-bell", user(TEXT))
                returned = time.perf_counter()
                await rang.wait()
                timing.values.append((heard["at"] - start) * 1e6)
                if timing is ours:
                    since_return.values.append((heard["at"] - returned) * 1e6)
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    await pubsub.aclose()
    await client.aclose()
    report.row("append returned to callback (asyncio)", "PUBLISH to callback", since_return, bare, "2")
    report.row("append begun to callback (asyncio)", "PUBLISH to callback", ours, bare)
    report.note("append to callback (asyncio), p99", f"{ours.p99:.0f} µs beside {bare.p99:.0f} µs of PUBLISH")
