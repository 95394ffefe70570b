"""How many empty answers workers give in a second, what `ask` costs beside `append`, how soon an answer begins, and
what an idle worker costs the server."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import time
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.timing import TEXT, Report, Timing, in_turn
from redis_history import AsyncHistoryStore, AsyncWorker, HistoryStore, user

_TURNS = 1000
_FLEETS = (1, 4, 8)
_BEGINNINGS = 200
_IDLE_SECONDS = 15.0
_context = multiprocessing.get_context("spawn")


def bench_workers(report: Report, client: Any, store: HistoryStore, url: str, rounds: int) -> None:
    def append(number: int) -> Any:
        return store.append(f"append-{number}", user(TEXT))

    def ask(number: int) -> Any:
        return store.ask(f"ask-{number}", user(TEXT))

    bare, ours = in_turn(min(rounds, 1000), append, ask)
    for turn in store.list_turns(limit=100_000):
        store.drop_turn(turn.conversation_id)
    report.row("ask in a new conversation", "append", ours, bare, "2")
    for workers in _FLEETS:
        _bench_throughput(report, store, url, workers)
    _bench_idle(report, client, store, url)


def _bench_throughput(report: Report, store: HistoryStore, url: str, workers: int) -> None:
    """Turns that are owed already when the workers begin, each of another conversation. A worker is a process."""
    names = [f"turn-{workers}-{number}" for number in range(_TURNS)]
    for name in names:
        store.ask(name, user(TEXT))
    with _fleet(url, workers):
        while store.list_turns(limit=1):
            time.sleep(0.2)
    runs = [store.get_run(name) for name in names]
    begun = min(run.started_at.timestamp() for run in runs if run is not None)
    ended = max(run.ended_at.timestamp() for run in runs if run is not None and run.ended_at is not None)
    report.note(f"empty answers, workers: {workers}", f"{_TURNS / (ended - begun):.0f} turns a second")


def _bench_idle(report: Report, client: Any, store: HistoryStore, url: str) -> None:
    begin = Timing()
    with _fleet(url, 1) as [worker]:
        time.sleep(1.0)  # it listens
        before, began = _commands(client), time.monotonic()
        time.sleep(_IDLE_SECONDS)
        rate = (_commands(client) - before - 1) / (time.monotonic() - began)  # without the INFO
        for number in range(_BEGINNINGS):
            asked = time.monotonic()
            store.ask(f"begin-{number}", user(TEXT))
            begin.values.append((worker.recv() - asked) * 1e6)
    report.note("an idle worker", f"{rate:.2f} commands a second", "1")
    text = f"p50 {begin.p50 / 1000:.1f} ms, p99 {begin.p99 / 1000:.1f} ms"
    report.note("ask until the answer begins, an idle worker", text, "p50 50 ms")


def _commands(client: Any) -> int:
    return int(client.info("stats")["total_commands_processed"])


@contextlib.contextmanager
def _fleet(url: str, workers: int) -> Any:
    """The processes of workers, whose pipes get the times at which answers begin, of the monotonic clock."""
    processes, pipes = [], []
    for _ in range(workers):
        here, there = _context.Pipe()
        process = _context.Process(target=_work, args=(url, there), daemon=True)
        process.start()
        there.close()
        processes.append(process)
        pipes.append(here)
    for pipe in pipes:
        pipe.recv()
    for pipe in pipes:
        pipe.send("begin")
    try:
        yield pipes
    finally:
        for process in processes:
            process.kill()
            process.join()


def _work(url: str, parent: Connection) -> None:
    async def answer(run: Any) -> None:
        if run.conversation_id.startswith("begin"):
            parent.send(time.monotonic())

    async def work() -> None:
        async with AsyncHistoryStore(url, namespace="bench", search="off") as store:
            parent.send("ready")
            parent.recv()
            await AsyncWorker(store, answer).run()

    asyncio.run(work())
