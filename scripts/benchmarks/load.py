"""Many tasks and threads at a time, and a network that takes half a millisecond."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import redis.asyncio

from benchmarks.timing import STAMP, TEXT, Report, async_in_turn, in_turn, members, messages, processor_time
from redis_history import AsyncHistoryStore, HistoryStore, user

#: Tasks or threads at a time, and what they may cost beside the same ZADDs: processor time of the client and of the
#: server.
_TASKS: Final = {1: "client 2.0", 8: "", 64: "client 0.9, server 2.2", 256: ""}
_THREADS: Final = {1: "client 2.0", 8: "", 64: "client 0.5", 256: ""}
_TURNS: Final = 3
#: Seconds for a round trip.
_ROUND_TRIP: Final = 0.0005


def over_tcp(client: Any) -> str:
    """Open a loopback port of the private server; a network is what many callers share."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    client.config_set("port", port)
    return f"redis://127.0.0.1:{port}"


class _Cost:
    """Microseconds for each call: processor time of the client and of the server, and time that passed."""

    def __init__(self, watcher: Any) -> None:
        self._watcher = watcher
        self.values: list[tuple[float, ...]] = []

    def _now(self) -> tuple[float, ...]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime, processor_time(self._watcher), time.perf_counter()

    @contextlib.contextmanager
    def of(self, calls: int) -> Iterator[None]:
        before = self._now()
        yield
        self.values.append(tuple(1e6 * (b - a) / calls for a, b in zip(before, self._now(), strict=True)))

    def __getitem__(self, place: int) -> float:
        return statistics.median(value[place] for value in self.values)


def _report(report: Report, name: str, bare: _Cost, ours: _Cost, goal: str) -> None:
    client, server, passed = (ours[place] / bare[place] for place in range(3))
    text = f"ZADDs: client CPU {client:.2f} ({ours[0]:.0f} µs), server CPU {server:.2f} ({ours[1]:.0f} µs), "
    report.note(name, f"{text}throughput {1 / passed:.2f}", goal)


async def bench_tasks(report: Report, watcher: Any, url: str, rounds: int, search: str) -> None:
    """Appends of many tasks beside ZADDs of as many, in turn."""
    member = members(messages(1))[0]
    for count, goal in _TASKS.items():
        each = max(2, rounds // count)
        bare, ours = _Cost(watcher), _Cost(watcher)

        async def all_at_once(call: Callable[[int, int], Awaitable[Any]], count: int = count, each: int = each) -> None:
            async def work(number: int) -> None:
                for index in range(each):
                    await call(number, index)

            await asyncio.gather(*(work(number) for number in range(count)))

        client: Any = redis.asyncio.Redis.from_url(url, max_connections=count)  # the default is 100
        async with client, AsyncHistoryStore(url, namespace="bench", search=search) as store:  # type: ignore[arg-type]

            def zadd(number: int, index: int, client: Any = client) -> Awaitable[Any]:
                return client.zadd(f"bare-{number}", {b"%d" % index + member: STAMP + index})  # type: ignore[no-any-return]

            def append(number: int, index: int, store: AsyncHistoryStore = store) -> Awaitable[Any]:
                return store.append(f"task-{number}", user(TEXT))

            for turn in range(_TURNS + 1):
                for cost, call in ((bare, zadd), (ours, append)):
                    with cost.of(count * each):
                        await all_at_once(call)
                if not turn:  # to warm up
                    bare.values.clear()
                    ours.values.clear()
        if search == "off":
            _report(report, f"append, {count} tasks", bare, ours, goal)
        else:
            goal = "client 1.2, server 4.5" if count == 64 else ""
            _report(report, f"append with an index, {count} tasks", bare, ours, goal)


def bench_threads(report: Report, watcher: Any, url: str, rounds: int) -> None:
    """Appends of many threads beside ZADDs of as many, in turn."""
    member = members(messages(1))[0]
    for count, goal in _THREADS.items():
        each = max(2, rounds // count)
        bare, ours = _Cost(watcher), _Cost(watcher)

        def all_at_once(call: Callable[[int, int], Any], count: int = count, each: int = each) -> None:
            def work(number: int) -> None:
                begin.wait()
                for index in range(each):
                    call(number, index)

            begin = threading.Barrier(count)
            threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        with (
            redis.Redis.from_url(url, max_connections=count) as client,
            HistoryStore(url, namespace="bench", search="off") as store,
        ):

            def zadd(number: int, index: int, client: Any = client) -> Any:
                return client.zadd(f"bare-{number}", {b"%d" % index + member: STAMP + index})

            def append(number: int, index: int, store: HistoryStore = store) -> Any:
                return store.append(f"thread-{number}", user(TEXT))

            for turn in range(_TURNS + 1):
                for cost, call in ((bare, zadd), (ours, append)):
                    with cost.of(count * each):
                        all_at_once(call)
                if not turn:
                    bare.values.clear()
                    ours.values.clear()
        _report(report, f"append, {count} threads", bare, ours, goal)


def bench_network(report: Report, watcher: Any, rounds: int) -> None:
    """Single appends over a network."""
    settings = watcher.connection_pool.connection_kwargs
    target = settings.get("path") or f"{settings['host']}:{settings['port']}"
    scripts = Path(__file__).parents[1]
    proxy = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.load", target], cwd=scripts, stdout=subprocess.PIPE, text=True
    )
    try:
        assert proxy.stdout is not None
        url = f"redis://127.0.0.1:{int(proxy.stdout.readline())}"
        few = rounds // 6
        sent, name = messages(few + few // 10), "append, round trip of 0.5 ms"
        stored = members(sent)
        with redis.Redis.from_url(url) as client, HistoryStore(url, namespace="bench", search="off") as store:
            bare, ours = in_turn(
                few,
                lambda i: client.zadd("bare", {stored[i]: STAMP + i}),
                lambda i: store.append("far", sent[i]),
            )
        report.row(name, "ZADD", ours, bare, "1.15")

        async def over_asyncio() -> Any:
            client: Any = redis.asyncio.Redis.from_url(url)
            async with client, AsyncHistoryStore(url, namespace="bench", search="off") as store:
                return await async_in_turn(
                    few,
                    lambda i: client.zadd("bare", {stored[i]: STAMP + i}),
                    lambda i: store.append("far too", sent[i]),
                )

        bare, ours = asyncio.run(over_asyncio())
        report.row(f"{name} (asyncio)", "ZADD", ours, bare, "1.15")
    finally:
        proxy.kill()
        proxy.wait(10)


def _forward(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(65536):
            time.sleep(_ROUND_TRIP / 2)
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)


def _serve(address: str) -> None:
    """Forward the connections to a port of this machine, which is printed, and delay what they carry."""
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    while True:
        near, _ = listener.accept()
        if address.startswith("/"):
            far = socket.socket(socket.AF_UNIX)
            far.connect(address)
        else:
            host, _, port = address.rpartition(":")
            far = socket.create_connection((host, int(port)))
            far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for ends in ((near, far), (far, near)):
            threading.Thread(target=_forward, args=ends, daemon=True).start()


if __name__ == "__main__":
    _serve(sys.argv[1])
