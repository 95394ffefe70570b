"""Compressors that share their work: leases, lost and kept, and what a stop gives back."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from redis_history import Message, user
from redis_history.store.operations import EndRun, KeepRuns, RunFence, TakeRun
from redis_history.store.operations.base import Call, as_is
from redis_history.types import CompressionProgress
from redis_history.values.ids import new_token
from tests.conformance.conftest import Awaitable, Stores
from tests.conformance.test_compressor import LOTS, Held, compressor_of, inner
from tests.conformance.test_stream import execute
from tests.support.servers import until


async def take(store: Any, name: str, seconds: float, claim: str | None = None) -> RunFence | None:
    callers = ((claim or new_token(), None),)
    return (await execute(store, TakeRun(name, callers, False, seconds, "compressor"))).fence


async def keep(store: Any, name: str, lease: RunFence | None, seconds: float = 30) -> bool:
    assert lease is not None
    [outcome] = await execute(store, KeepRuns(((name, lease),), seconds))
    return outcome.done


async def end(store: Any, name: str, lease: RunFence | None) -> bool:
    assert lease is not None
    return (await execute(store, EndRun(name, lease, "completed"))).done


@pytest.mark.proves("compressors")
async def test_four_workers_summarize_each_conversation_once(stores: Stores) -> None:
    every = [stores() for _ in range(4)]
    for number in range(12):
        await every[0].append_many(f"c{number}", LOTS)
    calls: list[int] = []

    async def count(messages: Sequence[Message], previous: str | None) -> str:
        calls.append(len(messages))
        await asyncio.sleep(0)
        return "A summary."

    workers = [compressor_of(store, count, concurrency=2) for store in every]
    found = await asyncio.gather(*(worker.run_once() for worker in workers))
    assert sum(stats.compressed for stats in found) == len(calls) == 12
    for number in range(12):
        assert [message.is_summary for message in await every[0].get(f"c{number}")].count(True) == 1


async def test_a_lost_lease_prevents_the_change(store: Any) -> None:
    """As if this process had stood still: the lease is over, and another worker holds it."""
    await store.append_many("c", LOTS)
    before = await store.get("c")
    held = Held()
    progress: list[CompressionProgress] = []
    compressor = compressor_of(store, held, progress, lease=3600.0)  # it is not renewed
    work = asyncio.create_task(compressor.run_once())
    await held.until_called()
    lease = await _present(store)
    assert await end(store, "c", lease)
    other = await take(store, "c", 30)
    held.go.set()
    stats = await work
    assert (stats.compressed, stats.leases_lost) == (0, 1)
    assert progress[-1].kind == "lease_lost"
    assert await store.get("c") == before
    assert await end(store, "c", other)  # the other's is untouched


async def test_a_lost_lease_is_noticed_while_the_summarizer_thinks(store: Any) -> None:
    await store.append_many("c", LOTS)
    held = Held()
    compressor = compressor_of(store, held, lease=2.0)
    work = asyncio.create_task(compressor.run_once())
    await held.until_called()
    assert await end(store, "c", await _present(store))
    stats = await work
    assert (stats.compressed, stats.leases_lost) == (0, 1)
    held.go.set()


@pytest.mark.full
async def test_the_lease_is_kept_while_the_summarizer_thinks(store: Any) -> None:
    await store.append_many("c", LOTS)
    await store.append("other", user("x"))
    held = Held()
    work = asyncio.create_task(compressor_of(store, held, lease=2.0).run_once())
    await held.until_called()
    other = await take(store, "other", 2.5)
    async with asyncio.timeout(20):  # a lease that is taken now and not kept ends before this one would have
        while await take(store, "other", 2.0) is None:
            assert await take(store, "c", 2.0) is None
            await asyncio.sleep(0.02)
    assert other is not None
    held.go.set()
    assert (await work).compressed == 1
    assert await take(store, "c", 0.1) is not None  # given back


@pytest.mark.parametrize("finishes", [True, False])
async def test_stop_finishes_or_releases_the_current_work(store: Any, finishes: bool) -> None:
    await store.append_many("c", LOTS)
    await store.append_many("d", LOTS)
    held = Held()
    compressor = compressor_of(store, held, concurrency=1, grace=20 if finishes else 0)
    work = asyncio.create_task(compressor.run())
    await held.until_called()
    inner(compressor).stop()
    if finishes:
        held.go.set()
    stats = await work
    held.go.set()
    assert (stats.compressed, stats.waiting, stats.working) == (int(finishes), 0, 0)
    for name in "cd":
        assert await take(store, name, 0.1) is not None


async def _present(store: Any) -> Any:
    """The present lease on "c": of memory, or as the server has it."""
    backend = store._target._backend if isinstance(store, Awaitable) else store._backend
    memory = getattr(backend, "_memory", backend)
    if hasattr(memory, "_space"):
        return memory._space.runs["c", "compressor"].run.fence
    key = backend._settings.keyspace.conversation("c").state
    reply = backend.carry_out(Call(None, b"", [b"HGET", key, b"W"], as_is))
    fence, run_id, *_ = msgspec.msgpack.decode(await reply if asyncio.iscoroutine(reply) else reply)
    return RunFence(fence, run_id, "compressor")


# Leases, which have the operations of runs


async def test_each_lease_has_a_greater_number_also_after_a_rewrite(store: Any) -> None:
    await store.append("c", user("x"))
    for fence in range(1, 7):
        lease = await take(store, "c", 30)
        assert lease.fence == fence
        assert await end(store, "c", lease) is True
        assert await keep(store, "c", lease, 30) is False  # it is over
        await (store.clear("c") if fence % 2 else store.restore("c", [user("y")]))


@pytest.mark.full
async def test_a_lease_ends_unless_it_is_renewed(store: Any) -> None:
    await store.append("c", user("x"))
    first = await take(store, "c", 0.05)
    second = await until(lambda: take(store, "c", 30))
    assert second.fence == first.fence + 1
    assert await keep(store, "c", first, 30) is False
    assert await keep(store, "c", second, 30) is True


async def test_a_lease_changes_no_record_and_a_repeated_claim_gets_the_same(store: Any) -> None:
    assert await take(store, "c", 30) is None
    assert await store.get_conversation("c") is None
    await store.append("c", user("x"))
    before = await store.get_conversation("c")
    claim = new_token()
    lease = await take(store, "c", 30, claim)
    assert await take(store, "c", 30, claim) == lease
    assert await store.get_conversation("c") == before
    assert await end(store, "c", lease)
