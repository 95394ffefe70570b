"""Prints the time of each operation relative to a bare redis-py command on {id, role, content} of the same messages.

Ratios, because absolute times depend mostly on the machine. The calls of the two columns of a row alternate, in one
process and on one server.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import redis
from benchmarks.calls import (
    bench_append,
    bench_append_on_server,
    bench_async,
    bench_batch,
    bench_capture,
    bench_listing,
    bench_prompts,
    bench_read,
    bench_reply,
    bench_ttl,
)
from benchmarks.chat import bench_chat
from benchmarks.contents import bench_contents
from benchmarks.doorbells import bench_doorbell
from benchmarks.durability import bench_durability, followed
from benchmarks.growth import bench_compaction, bench_growth, bench_memory
from benchmarks.load import bench_network, bench_tasks, bench_threads, over_tcp
from benchmarks.runs import bench_runs
from benchmarks.search import bench_search, bench_search_memory, bench_search_writes
from benchmarks.timing import Report, in_turn
from rich.console import Console

from redis_history import HistoryStore
from redis_history.embedded import EmbeddedServer


def clear(client: Any) -> None:
    """Delete the keys and indexes of the benchmark."""
    for pattern in ("rh2:{bench*", "rhd2:{bench*", "bare*"):
        for key in client.scan_iter(match=pattern, count=1000):
            client.unlink(key)
    with suppress(redis.ResponseError):  # a server without search
        for index in client.execute_command("FT._LIST"):
            if index.startswith(b"rh2:bench"):
                client.execute_command("FT.DROPINDEX", index)


def bench_import(report: Report) -> None:
    """Fresh processes."""

    def run(code: str) -> Any:
        return lambda _: subprocess.run([sys.executable, "-c", code], check=True)

    for code in ("import redis_history", "from redis_history import HistoryStore"):
        bare, ours = in_turn(20, run("import redis"), run(code))
        report.row(code, "import redis", ours, bare, "2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3000, help="calls of each kind (default 3000)")
    parser.add_argument("--url", help="a server to use instead of a private one; keys of namespace bench are written")
    options = parser.parse_args()
    gc.freeze()
    with tempfile.TemporaryDirectory() as folder:
        server = EmbeddedServer(folder)
        if not options.url:
            server.start()
        url = options.url or server.url
        client = redis.Redis.from_url(url)
        report = Report()
        bench_import(report)
        with HistoryStore(url, namespace="bench", search="off") as store:
            bench_append(report, client, store, options.rounds)
            bench_append_on_server(report, client, store, options.rounds)
            bench_read(report, client, store, options.rounds)
            asyncio.run(bench_async(report, url, options.rounds))
            tcp = options.url or over_tcp(client)
            asyncio.run(bench_tasks(report, client, tcp, 2 * options.rounds, "off"))
            bench_threads(report, client, tcp, 2 * options.rounds)
            bench_network(report, client, options.rounds)
            bench_reply(report, client, store, options.rounds)
            bench_prompts(report, store, options.rounds)
            bench_capture(report, store, options.rounds)
            bench_batch(report, client, store, options.rounds)
            bench_doorbell(report, client, store, url, options.rounds)
            bench_growth(report, client, store, options.rounds)
            bench_ttl(report, url, store, options.rounds)
            bench_listing(report, client, store, options.rounds)
            bench_memory(report, client, store)
            bench_contents(report, client, store)
            bench_compaction(report, client, url, "off")
            bench_runs(report, client, store, url)
            bench_chat(report, url, int(client.info("server")["process_id"]))
            searches = store.capabilities.search_module is not None
        if searches:
            bench_search_memory(report, client, url)  # first: the server frees deleted documents of others at any time
            bench_compaction(report, client, url, "auto")
            bench_search_writes(report, client, url, options.rounds)
            asyncio.run(bench_tasks(report, client, tcp, options.rounds, "require"))
            bench_search(report, client, url, options.rounds)
            clear(client)
        if options.url:
            bench_durability(report, client, url, options.rounds, private=False)
        else:
            with followed(client, Path(folder) / "replica"):
                bench_durability(report, client, url, options.rounds, private=True)
        clear(client)
        client.close()
        server.close(wait=10)
    Console(width=140).print(report.table)


if __name__ == "__main__":
    main()
