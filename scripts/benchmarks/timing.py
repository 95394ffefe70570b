"""Times two operations alternately, prints the table of results, and makes the messages."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
from rich.table import Table

from redis_history import HistoryStore, Message, user

TEXT = "I would like to change my flight to the one on May 20, in economy if there is still a seat. " * 2
STAMP = 1_700_000_000_000_000


def messages(count: int) -> list[Message]:
    return [user(TEXT) for _ in range(count)]


def members(of: list[Message]) -> list[bytes]:
    """What a program with redis-py alone would store."""
    return [msgspec.msgpack.encode({"id": one.id, "role": one.role, "content": one.text}) for one in of]


class Timing:
    """Times of one operation, in microseconds."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def of(self, work: Callable[[], Any]) -> None:
        start = time.perf_counter()
        work()
        self.values.append((time.perf_counter() - start) * 1e6)

    @property
    def p50(self) -> float:
        return statistics.median(self.values)

    @property
    def p99(self) -> float:
        return statistics.quantiles(self.values, n=100)[98]


class Report:
    def __init__(self) -> None:
        self.table = Table("operation", "beside", "x p50", "p50 µs", "beside µs", "goal")

    def row(self, name: str, beside: str, ours: Timing, bare: Timing, goal: str = "") -> None:
        ratio = f"{ours.p50 / bare.p50:.2f}"
        self.table.add_row(name, beside, ratio, f"{ours.p50:.0f}", f"{bare.p50:.0f}", goal)

    def note(self, name: str, text: str, goal: str = "") -> None:
        self.table.add_row(name, text, "", "", "", goal)


def in_turn(count: int, bare: Callable[[int], Any], ours: Callable[[int], Any]) -> tuple[Timing, Timing]:
    timings = Timing(), Timing()
    for index in range(count + count // 10):
        if index == count // 10:  # the first tenth warms up
            timings = Timing(), Timing()
        timings[0].of(partial(bare, index))
        timings[1].of(partial(ours, index))
    return timings


async def async_in_turn(
    count: int, bare: Callable[[int], Awaitable[Any]], ours: Callable[[int], Awaitable[Any]]
) -> tuple[Timing, Timing]:
    timings = Timing(), Timing()
    for index in range(count):
        for timing, work in zip(timings, (bare, ours), strict=True):
            start = time.perf_counter()
            await work(index)
            timing.values.append((time.perf_counter() - start) * 1e6)
    return timings


def append_to(store: HistoryStore, conversation_id: str) -> Callable[[], Any]:
    return lambda: store.append(conversation_id, user(TEXT))


def processor_time(client: Any) -> float:
    """The server's processor time in seconds."""
    used = client.info("cpu")
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])
