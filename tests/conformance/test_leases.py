"""Leases of compressors: one holder at a time, for a time. They have the operations of runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redis_history import user
from redis_history.model.ids import new_token
from redis_history.operations import EndRun, KeepRuns, RunFence, TakeRun
from tests.conformance.conftest import Stores
from tests.support.faces import Awaitable
from tests.support.servers import until


async def execute(store: Any, op: Any) -> Any:
    if isinstance(store, Awaitable):
        return await asyncio.to_thread(store._target._backend.execute, op)
    return await store._backend.execute(op)


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


@pytest.mark.smoke
async def test_one_of_8_workers_gets_the_lease(stores: Stores) -> None:
    every = [stores() for _ in range(8)]
    await every[0].append("c", user("x"))
    found = await asyncio.gather(*(take(store, "c", 30) for store in every))
    (lease,) = [one for one in found if one is not None]
    assert lease.fence == 1
    assert await take(every[1], "c", 30) is None
    assert await end(every[1], "c", RunFence(lease.fence, "0" * 16, "compressor")) is False
    assert await end(every[1], "c", lease) is True


async def test_each_lease_has_a_greater_number_also_after_a_rewrite(store: Any) -> None:
    await store.append("c", user("x"))
    for fence in range(1, 7):
        lease = await take(store, "c", 30)
        assert lease.fence == fence
        assert await end(store, "c", lease) is True
        assert await keep(store, "c", lease, 30) is False  # it is over
        await (store.clear("c") if fence % 2 else store.restore("c", [user("y")]))


async def test_a_lease_ends_unless_it_is_renewed(store: Any) -> None:
    await store.append("c", user("x"))
    first = await take(store, "c", 0.05)
    second = await until(lambda: take(store, "c", 30))
    assert second.fence == first.fence + 1
    assert await keep(store, "c", first, 30) is False
    assert await keep(store, "c", second, 30) is True


async def test_a_renewed_lease_outlives_its_first_time(store: Any) -> None:
    for number in range(100):
        name = f"c{number}"
        await store.append(name, user("x"))
        lease = await take(store, name, 0.2)
        if await keep(store, name, lease, 30):
            break  # otherwise this machine was so busy that the lease had ended
    await store.append("d", user("x"))
    await take(store, "d", 0.2)
    await until(lambda: take(store, "d", 30))
    assert await take(store, name, 30) is None
    assert await end(store, name, lease) is True


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
