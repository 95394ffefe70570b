"""Age as a bound of a compressor: what is young costs nothing, and what gets old or long is found."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from redis_history import CompressionProgress, system, user
from redis_history.operations import ListConversations, ReadPage, ScanConversations, TakeLease
from tests.conformance.test_compressor import LOTS, compressor_of, inner, summarize
from tests.support.servers import until

WEEK = timedelta(days=7)
OLD = [
    user(f"Old message {number}, which is long enough.", id=f"o{number}", timestamp="2020-01-01") for number in range(6)
]


@pytest.mark.parametrize("first", [LOTS[:1], OLD[:1]], ids=["fresh", "old"])
async def test_growth_is_noticed_at_once(store: Any, stores: Any, first: Any) -> None:
    await store.append_many("c", first)
    compressor = compressor_of(store, summarize, older_than=WEEK, look_interval=0.05, sweep_interval=3600)
    work = asyncio.create_task(compressor.run())
    await until(lambda: inner(compressor).stats.sweeps == 1 and inner(compressor)._work.idle)
    await stores().append_many("c", LOTS[1:])
    await until(lambda: inner(compressor).stats.compressed == 1)
    inner(compressor).stop()
    stats = await work
    assert (stats.sweeps, stats.nothing) == (1, first[0].id == "o0")


async def test_a_sweep_is_counted_after_its_reads(store: Any) -> None:
    await store.append_many("c", LOTS)
    compressor = compressor_of(store, summarize, max_messages=None, older_than=WEEK)
    counted: list[int] = []
    done = _operations(inner(compressor), lambda: counted.append(inner(compressor).stats.sweeps))
    assert (await compressor.run_once()).sweeps == 1
    assert dict(zip(done, counted, strict=True)) == {ListConversations: 0, ScanConversations: 0, ReadPage: 0}


async def test_young_conversations_are_read_once_and_not_reported(store: Any) -> None:
    for number in range(5):
        await store.append_many(f"c{number}", LOTS[:3])
    told: list[CompressionProgress] = []
    compressor = compressor_of(store, summarize, told, max_messages=None, older_than=WEEK)
    done = _operations(inner(compressor))
    for _ in range(3):
        stats = await compressor.run_once()
    assert not told
    assert (stats.sweeps, stats.nothing, stats.compressed) == (3, 0, 0)
    assert done.count(TakeLease) == 0
    assert done.count(ReadPage) == 5


async def test_old_messages_that_must_stay_are_reported_once(store: Any) -> None:
    await store.append_many("c", OLD[:1])  # a turn in progress
    told: list[CompressionProgress] = []
    compressor = compressor_of(store, summarize, told, max_messages=None, older_than=WEEK, keep_recent=6)
    for _ in range(3):
        stats = await compressor.run_once()
    assert stats.nothing == 1
    assert [progress.kind for progress in told] == ["nothing"]
    await store.append_many("c", LOTS[:6])
    assert (await compressor.run_once()).compressed == 1


async def test_messages_are_compressed_when_they_become_old(store: Any) -> None:
    await store.append_many("c", LOTS)
    told: list[CompressionProgress] = []
    compressor = compressor_of(store, summarize, told, max_messages=None, older_than=1.0, sweep_interval=0.05)
    work = asyncio.create_task(compressor.run())
    await until(lambda: inner(compressor).stats.compressed == 1)
    inner(compressor).stop()
    await work
    assert [progress.kind for progress in told][:2] == ["started", "compressed"]


async def test_old_messages_are_found_behind_many_system_messages(store: Any) -> None:
    await store.append_many("c", [system(f"Rule {number}", timestamp="2019-01-01") for number in range(200)])
    await store.append_many("c", [*OLD, *LOTS[:6]])
    stats = await compressor_of(store, summarize, max_messages=None, older_than=WEEK).run_once()
    assert (stats.compressed, stats.messages) == (1, 6)


def _operations(compressor: Any, at_each: Callable[[], object] = lambda: None) -> list[type]:
    """The kinds of operations that it sends from now on."""
    done: list[type] = []
    execute = compressor._store._backend.execute

    def noted(operation: Any) -> Any:
        done.append(type(operation))
        at_each()
        return execute(operation)

    compressor._store._backend.execute = noted
    return done
