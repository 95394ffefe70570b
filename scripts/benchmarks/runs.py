"""How soon a request to stop is seen, and how many calls idle runs and waiters cost the server."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import time
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.timing import Report, Timing
from redis_history import AsyncHistoryStore, HistoryStore

_RUNS = 50
_STOPS = 500
_SECONDS = 15.0


def bench_runs(report: Report, client: Any, store: HistoryStore, url: str) -> None:
    _bench_stop(report, store, url)
    for runs in (1, _RUNS):
        calls = asyncio.run(_calls_of_holders(client, url, runs))
        report.note(f"{runs} idle runs of a process", f"{calls / runs:.2f} calls a second for each", "1")
    for waiters in (1, 100):
        calls, ends = asyncio.run(_calls_of_waiters(client, url, waiters))
        text = f"{calls:.2f} calls a second; {ends:.0f} when the run before ends"
        report.note(f"{waiters} waiters of a process", text)


def _bench_stop(report: Report, store: HistoryStore, url: str) -> None:
    """The holders are in another process; times of the monotonic clock, which both share."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_hold, args=(url, there), daemon=True)
    process.start()
    here.recv()
    seen = Timing()
    for number in range(_STOPS):
        begun = time.monotonic()
        store.stop_run(f"run-{number % _RUNS}")
        seen.values.append((here.recv() - begun) * 1e6)
    process.kill()
    process.join()
    text = f"p50 {seen.p50 / 1000:.1f} ms, p99 {seen.p99 / 1000:.1f} ms, longest {max(seen.values) / 1000:.1f} ms"
    report.note(f"stop_run to stop_requested, {_RUNS} runs", text, "p99 200 ms")


def _hold(url: str, parent: Connection) -> None:
    async def hold(store: AsyncHistoryStore, name: str, began: asyncio.Event) -> None:
        while True:
            async with store.run(name, wait=60) as run:
                began.set()
                await run.wait_stop()
                parent.send(time.monotonic())

    async def hold_all() -> None:
        async with AsyncHistoryStore(url, namespace="bench", search="off") as store:
            events = [asyncio.Event() for _ in range(_RUNS)]
            tasks = [asyncio.create_task(hold(store, f"run-{at}", began)) for at, began in enumerate(events)]
            await asyncio.gather(*(began.wait() for began in events))
            parent.send(None)
            await asyncio.gather(*tasks)

    asyncio.run(hold_all())


async def _calls_of_holders(client: Any, url: str, runs: int) -> float:
    async with (
        AsyncHistoryStore(url, namespace="bench", search="off") as store,
        contextlib.AsyncExitStack() as stack,
    ):
        for number in range(runs):
            await stack.enter_async_context(store.run(f"idle-{number}"))
        return await _calls(client)


async def _calls_of_waiters(client: Any, url: str, waiters: int) -> tuple[float, float]:
    """Calls a second while they wait, and calls from the end of the run until the next one has begun."""
    async with (
        AsyncHistoryStore(url, namespace="bench", search="off") as store,
        AsyncHistoryStore(url, namespace="bench", search="off") as waiting,
    ):
        began = asyncio.Event()

        async def wait() -> None:
            async with waiting.run("queue", wait=600):
                began.set()
                await asyncio.sleep(600)

        async with store.run("queue"):
            tasks = [asyncio.create_task(wait()) for _ in range(waiters)]
            while (info := await store.get_run("queue")) is None or len(info.waiting) < waiters:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            rate = await _calls(client) - 0.5  # without the renewal of the run
            before = _count(client)
        await began.wait()
        ends = _count(client) - before
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return rate, ends


async def _calls(client: Any) -> float:
    """Scripts that the server runs in a second, now."""
    before, begun = _count(client), time.monotonic()
    await asyncio.sleep(_SECONDS)
    return (_count(client) - before) / (time.monotonic() - begun)


def _count(client: Any) -> int:
    stats = client.info("commandstats")
    return sum(int(stats[name]["calls"]) for name in ("cmdstat_evalsha", "cmdstat_eval") if name in stats)
