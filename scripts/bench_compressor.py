"""Measures the cost of compression, and the load of an idle compressor on the server.

Compression is compared with appending the same messages one by one, in the same process and on the same server. The
load is the processor time that the server reports for a number of seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Sequence
from typing import Any

import redis
from benchmarks.timing import TEXT, processor_time
from rich.console import Console
from rich.table import Table

from redis_history import AsyncCompressor, AsyncHistoryStore, Message, extractive_summarizer, user
from redis_history.embedded import EmbeddedServer

MANY = 10_000


def instant(messages: Sequence[Message], previous: str | None) -> str:
    """A summarizer without a model, to measure everything else."""
    return "They spoke of flights."


async def measured(client: Any, work: Awaitable[Any]) -> tuple[Any, float, float]:
    """The result of `work`, its seconds, and the server's processor time."""
    before, start = processor_time(client), time.perf_counter()
    result = await work
    return result, time.perf_counter() - start, processor_time(client) - before


async def cost(table: Table, url: str, client: Any, search: Any) -> None:
    client.config_set("slowlog-log-slower-than", 1000)
    async with AsyncHistoryStore(url, namespace=f"bench-compress-{search}", search=search) as store:
        for count in (100, 1_000, 10_000):
            names = [f"{count}-{number}" for number in range(max(1, 2_000 // count))]
            start = time.perf_counter()
            for name in names:
                for first in range(0, count, 100):
                    await store.append_many(name, [user(f"{first + n} {TEXT}") for n in range(min(100, count))])
            appended = time.perf_counter() - start
            client.slowlog_reset()
            compressor = AsyncCompressor(store, instant, max_messages=count // 2, keep_recent=10, concurrency=1)
            stats, took, server = await measured(client, compressor.run_once())
            assert stats.compressed == len(names), stats
            longest = max((entry["duration"] for entry in client.slowlog_get(1000)), default=0)
            table.add_row(
                f"compress {stats.messages // len(names):,} of {count:,} messages"
                f"{', index' if search == 'auto' else ''}",
                f"{1e6 * took / stats.messages:.0f} µs a message; appended in batches of 100: "
                f"{1e6 * appended / count / len(names):.0f}",
                f"{1e6 * server / stats.messages:.0f} µs a message",
                f"{longest / 1000:.1f} ms",
            )
            for name in names:
                await store.delete_conversation(name)


def extract(table: Table) -> None:
    summarize = extractive_summarizer()
    for count in (50, 500):
        messages = [user(f"Traveller {n % 7} wants flight {n} to change. {TEXT}") for n in range(count)]
        start = time.perf_counter()
        summarize(messages, None)
        took = time.perf_counter() - start
        table.add_row(f"extractive summary of {count} messages", f"{1e6 * took / count:.0f} µs a message", "", "")


async def idle(table: Table, url: str, client: Any, seconds: float) -> None:
    async with AsyncHistoryStore(url, namespace="bench-idle", search="off") as store:
        waiting = iter(range(MANY))

        async def fill() -> None:
            for number in waiting:
                await store.append_many(f"c{number}", [user(TEXT), user(TEXT)])

        await asyncio.gather(*(fill() for _ in range(16)))
        sweep = AsyncCompressor(store, instant, max_messages=100)
        sweeps = [await measured(client, sweep.run_once()) for _ in range(3)]
        table.add_row(
            f"look at all of {MANY:,} conversations",
            f"{1000 * min(took for _, took, _ in sweeps):.0f} ms",
            f"{1000 * min(server for _, _, server in sweeps):.0f} ms",
            "",
        )
        _, _, alone = await measured(client, asyncio.sleep(seconds))
        compressor = AsyncCompressor(store, instant, max_messages=100)
        work = asyncio.create_task(compressor.run())
        while not compressor.stats.sweeps:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        client.config_resetstat()
        own = time.process_time()
        _, _, together = await measured(client, asyncio.sleep(seconds))
        own = time.process_time() - own
        commands = client.info("commandstats")
        busy = sum(one["usec"] for one in commands.values()) / 1e6
        compressor.stop()
        await work
        table.add_row(
            f"idle, {MANY:,} conversations, {seconds:.0f} s",
            f"{100 * own / seconds:.2f} % of a core in the worker, {compressor.stats.looks} looks",
            f"{100 * busy / seconds:.3f} % of a core in commands, {100 * together / seconds:.2f} % in all, and "
            f"{100 * alone / seconds:.2f} % without a worker",
            "",
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30, help="to be idle for (default 30)")
    options = parser.parse_args()
    table = Table("what", "the worker", "the server", "longest call")
    with tempfile.TemporaryDirectory() as folder:
        server = EmbeddedServer(folder)
        server.start()
        with redis.Redis.from_url(server.url) as client:
            for search in ("off", "auto"):
                asyncio.run(cost(table, server.url, client, search))
            extract(table)
            asyncio.run(idle(table, server.url, client, options.seconds))
        server.close(wait=10)
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
