"""A replica takes over: writers go on, and subscribers get a Reset if acknowledged changes were lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from redis_history import AsyncHistoryStore, HistoryStore, MessagesAppended, Reset, RetryPolicy, user
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


async def test_a_failover_during_appends(service: RealService) -> None:
    """Replication is asynchronous. In the end sequences are contiguous, and all readers see the same."""
    over = asyncio.Event()
    picture: list[str] = []
    resets: list[Reset] = []

    async def watch(store: AsyncHistoryStore, last: asyncio.Future[str]) -> None:
        after = None
        while True:
            async with store.subscribe("c", after=after) as subscription:
                async for event in subscription:
                    if isinstance(event, Reset):
                        resets.append(event)
                        break
                    assert isinstance(event, MessagesAppended)
                    picture.extend(message.id for message in event.messages)
                    if last.done() and last.result() in picture:
                        return
            snapshot = await store.snapshot("c", limit=100_000)
            picture[:] = [message.id for message in snapshot.messages]
            after = snapshot.cursor
            if last.done() and last.result() in picture:
                return

    async def write(store: Any, face: str) -> str:
        number = 0
        while True:
            message = user("x", id=f"{face}-{number}")
            ended = over.is_set()
            if face == "sync":
                await asyncio.to_thread(store.append, "c", message)
            else:
                await store.append("c", message)
            if ended:
                return message.id
            number += 1

    with HistoryStore(service.url, retry=PATIENT) as sync_store:
        async with (
            AsyncHistoryStore(service.url, retry=PATIENT) as store,
            AsyncHistoryStore(service.url, retry=PATIENT, poll_interval=0.2) as reader,
        ):
            await store.append("c", user("x", id="first"))
            await asyncio.to_thread(wait_until_replicated, *service.roles())  # else it may be another conversation
            last: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            watching = asyncio.create_task(watch(reader, last))
            writing = [asyncio.create_task(write(sync_store, "sync")), asyncio.create_task(write(store, "async"))]
            await asyncio.to_thread(service.fail_over)
            over.set()
            await asyncio.gather(*writing)
            final = await store.append("c", user("x", id="last"))
            last.set_result("last")
            async with asyncio.timeout(20):
                await watching
            stored = await reader.get("c")
            assert [message.sequence for message in stored] == list(range(1, len(stored) + 1))
            assert final.message.sequence == len(stored)
            assert len({message.id for message in stored}) == len(stored)
            if not resets:  # it may have joined after the first message
                assert picture == [message.id for message in stored][len(stored) - len(picture) :]
            else:
                assert picture == [message.id for message in stored]
                assert {reset.reason for reset in resets} == {"server_rewound"}


@pytest.mark.proves("failover", "reset")
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
