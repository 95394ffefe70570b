"""Leases on conversations: one holder at a time, for a time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redis_history import user
from redis_history.operations import KeepLease, Lease, TakeLease
from tests.conformance.conftest import Stores
from tests.support.faces import Awaitable
from tests.support.servers import until


async def execute(store: Any, op: Any) -> Any:
    if isinstance(store, Awaitable):
        return await asyncio.to_thread(store._target._backend.execute, op)
    return await store._backend.execute(op)


@pytest.mark.smoke
async def test_one_of_8_workers_gets_the_lease(stores: Stores) -> None:
    every = [stores() for _ in range(8)]
    await every[0].append("c", user("x"))
    found = await asyncio.gather(*(execute(store, TakeLease("c", 30)) for store in every))
    (lease,) = [one for one in found if one is not None]
    assert lease.fence == 1
    assert await execute(every[1], TakeLease("c", 30)) is None
    assert await execute(every[1], KeepLease(Lease("c", lease.fence, "0" * 16), 0)) is False
    assert await execute(every[1], KeepLease(lease, 0)) is True


async def test_each_lease_has_a_greater_number_also_after_a_rewrite(store: Any) -> None:
    await store.append("c", user("x"))
    for fence in range(1, 7):
        lease = await execute(store, TakeLease("c", 30))
        assert lease.fence == fence
        assert await execute(store, KeepLease(lease, 0)) is True
        assert await execute(store, KeepLease(lease, 30)) is False  # it is over
        await (store.clear("c") if fence % 2 else store.restore("c", [user("y")]))


async def test_a_lease_ends_unless_it_is_renewed(store: Any) -> None:
    await store.append("c", user("x"))
    first = await execute(store, TakeLease("c", 0.05))
    second = await until(lambda: execute(store, TakeLease("c", 30)))
    assert second.fence == first.fence + 1
    assert await execute(store, KeepLease(first, 30)) is False
    assert await execute(store, KeepLease(second, 30)) is True


async def test_a_renewed_lease_outlives_its_first_time(store: Any) -> None:
    for number in range(100):
        name = f"c{number}"
        await store.append(name, user("x"))
        lease = await execute(store, TakeLease(name, 0.2))
        if await execute(store, KeepLease(lease, 30)):
            break  # otherwise this machine was so busy that the lease had ended
    await store.append("d", user("x"))
    await execute(store, TakeLease("d", 0.2))
    await until(lambda: execute(store, TakeLease("d", 30)))
    assert await execute(store, TakeLease(name, 30)) is None
    assert await execute(store, KeepLease(lease, 0)) is True


async def test_a_lease_changes_no_record_and_a_repeated_claim_gets_the_same(store: Any) -> None:
    assert await execute(store, TakeLease("c", 30)) is None
    assert await store.get_conversation("c") is None
    await store.append("c", user("x"))
    before = await store.get_conversation("c")
    op = TakeLease("c", 30)
    lease = await execute(store, op)
    assert await execute(store, op) == lease
    assert await store.get_conversation("c") == before
    assert await execute(store, KeepLease(lease, 0))
