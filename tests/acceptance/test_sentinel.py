"""A replica takes over: subscribers get a Reset if acknowledged changes were lost."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from redis_history import AsyncHistoryStore, Reset, RetryPolicy, user
from tests.support.sentinel import RealService
from tests.support.servers import wait_until_replicated

PATIENT = RetryPolicy(deadline=60.0, first_wait=0.01, longest_wait=0.1)


@pytest.fixture
def service() -> Iterator[RealService]:
    service = RealService()
    try:
        yield service.start()
    finally:
        service.close()


@pytest.mark.proves("failover", "reset")
@pytest.mark.full
async def test_changes_lost_in_a_failover_give_a_reset(service: RealService) -> None:
    """The documented loss window: acknowledged by the primary, not yet with the replica, and then the primary dies."""
    primary, replica = service.roles()
    async with (
        AsyncHistoryStore(service.url, retry=PATIENT, poll_interval=0.2) as store,
        store.subscribe("c") as subscription,
    ):
        await store.append("c", user("kept", id="kept"))
        await asyncio.to_thread(wait_until_replicated, primary, replica)
        await asyncio.to_thread(service.cut_replication)
        for number in range(3):
            await store.append("c", user("lost", id=f"lost-{number}"))
        events: list[Any] = [await subscription.get(timeout=10) for _ in range(4)]
        assert [event.revision for event in events] == [1, 2, 3, 4]
        primary.kill()
        await asyncio.to_thread(service.wait_for_primary, replica)
        # The new primary counts on from 1, past the cursor of the subscriber: only the token differs.
        for number in range(5):
            await store.append("c", user("other", id=f"other-{number}"))
        event = await subscription.get(timeout=20)
        assert isinstance(event, Reset)
        assert event.reason == "server_rewound"
        texts = [message.text for message in await store.get("c")]
        assert texts == ["kept"] + ["other"] * 5
        # Sending the same ids again stores the lost messages, once.
        again = [await store.append("c", user("lost", id=f"lost-{number}")) for number in range(3)]
        assert [item.duplicate for item in again] == [False] * 3


@pytest.mark.proves("failover")
async def test_no_call_reads_from_a_former_primary(service: RealService) -> None:
    """redis.asyncio keeps connections that were in use when its pool found the new primary."""
    former, _ = service.roles()
    after = user("after", id="after")
    ended = asyncio.Event()

    async with AsyncHistoryStore(service.url, retry=PATIENT, search="off") as store:

        async def read() -> None:
            while not ended.is_set():
                await store.get("c")

        readers = [asyncio.create_task(read()) for _ in range(20)]
        await asyncio.to_thread(service.fail_over)
        with former.client() as client:
            client.replicaof("127.0.0.1", "1")  # from now on it has old data
        await store.append("c", after)
        ended.set()
        await asyncio.gather(*readers)
        found = await asyncio.gather(*(store.get("c") for _ in range(20)))
    assert [[message.id for message in one] for one in found] == [["after"]] * 20
