"""Connections are cut, servers killed and rewound: a subscriber has every change in order, or a Reset."""

import asyncio
import os
import signal
import threading
import time
from typing import Any

import pytest
import redis

from redis_history import AsyncHistoryStore, HistoryStore, MessagesAppended, Reset, RetryPolicy, user
from redis_history.errors import BackendRefusedError
from redis_history.store._sync._runtime import _idle
from tests.support.faces import FACES, open_store
from tests.support.servers import RealServer, Start, until, wait_until

QUICK = RetryPolicy(deadline=20.0, longest_wait=0.05)


@pytest.mark.proves("reset")
async def test_a_flushed_server_gives_a_reset(own_server: Start) -> None:
    server = own_server()
    async with AsyncHistoryStore(server.url, poll_interval=0.2) as store, store.subscribe("c") as subscription:
        await store.append("c", user("x"))
        assert isinstance(await subscription.get(timeout=10), MessagesAppended)
        with server.client() as client:
            client.flushall()
        event = await subscription.get(timeout=10)
        assert isinstance(event, Reset)
        assert (event.reason, event.revision) == ("conversation_missing", 0)
        await store.append("c", user("again"))
        event = await subscription.get(timeout=10)
        assert isinstance(event, MessagesAppended)
        assert event.revision == 1


@pytest.mark.proves("get-in-time")
@pytest.mark.parametrize("every", [False, True], ids=["one", "all"])
@pytest.mark.parametrize("outage", ["hangs", "away"])
@FACES
@pytest.mark.full
async def test_get_returns_in_time_during_an_outage(own_server: Start, face: str, outage: str, every: bool) -> None:
    """It does not wait for the deadline of retries. Afterwards it returns all events, once and in order."""
    server = own_server(options=("--appendfsync", "always"))
    patient = RetryPolicy(deadline=60.0, longest_wait=0.05)
    async with open_store(face, server.url, poll_interval=0.05, retry=patient) as store:
        subscription = store.subscribe_all() if every else store.subscribe("c")
        await subscription.open()
        assert await subscription.get(timeout=0) is None
        unopened = store.subscribe("d")
        if outage == "hangs":
            os.kill(server.pid, signal.SIGSTOP)
        else:
            server.kill()
        for one in (subscription, unopened):
            for timeout in (0.2, 0, 0.001):
                before = time.monotonic()
                assert await one.get(timeout=timeout) is None
                assert time.monotonic() - before < 10
        if outage == "hangs":
            os.kill(server.pid, signal.SIGCONT)
        else:
            await asyncio.to_thread(server.start)
        for number in range(3):
            await store.append("c", user(str(number)))
        events = [await subscription.get(timeout=20) for _ in range(3)]
        assert [event.revision for event in events] == [1, 2, 3]
        assert await subscription.get(timeout=0.1) is None
        await subscription.aclose()
        await unopened.aclose()


@pytest.mark.proves("ends-at-once")
@pytest.mark.parametrize("timeout", [None, 60.0])
@pytest.mark.parametrize("face", ["sync", "async"])
async def test_closing_ends_a_get_while_the_server_hangs(own_server: Start, face: str, timeout: float | None) -> None:
    def reading() -> bool:
        threads = sum(thread.name == "redis_history-read" for thread in threading.enumerate())
        return threads > len(_idle) or any(task.get_name() == "redis_history-read" for task in asyncio.all_tasks())

    server = own_server()
    async with open_store(face, server.url, poll_interval=0.01, retry=QUICK) as store:
        one = store.subscribe("c")
        assert await one.get(timeout=0) is None
        os.kill(server.pid, signal.SIGSTOP)
        try:
            waiting = asyncio.create_task(one.get(timeout=timeout))
            await until(reading, "a read that hangs")
            before = time.monotonic()
            await one.aclose()
            assert await waiting is None
            assert time.monotonic() - before < 4, "before the read ends by itself: a reply may take five seconds"
        finally:
            os.kill(server.pid, signal.SIGCONT)


@pytest.mark.proves("slow-subscribers")
def test_one_connection_serves_all_subscriptions(own_server: Start) -> None:
    server = own_server()
    with HistoryStore(server.url) as store:
        subscriptions = [store.subscribe(f"c{number}") for number in range(50)]
        for number in range(50):
            store.append(f"c{number}", user("x"))
        for subscription in subscriptions:
            assert subscription.get(timeout=10) is not None
        with server.client() as client:
            assert sum(line["sub"] != "0" for line in client.client_list()) == 1
            channels = wait_until(lambda: len(client.pubsub_channels("__keyspace*")) == 50, "the channels")
            assert channels
            for subscription in subscriptions:
                subscription.close()
            wait_until(lambda: client.pubsub_channels("__keyspace*") == [], "the channels to be given up")


async def test_a_subscriber_continues_after_a_change_larger_than_one_read(server: RealServer, namespace: str) -> None:
    async with AsyncHistoryStore(server.url, namespace=namespace) as store, store.subscribe("c") as subscription:
        for number in range(3):
            await store.append("c", user(f"{number}" * 1_500_000))
            event = await subscription.get(timeout=10)
            assert (type(event), event.revision) == (MessagesAppended, number + 1)


def test_a_callback_continues_after_reading_was_refused(own_server: Start) -> None:
    server = own_server()
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all")
    seen: list[int] = []
    errors: list[Exception] = []

    def on_error(error: Exception, event: Any) -> None:
        errors.append(error)
        raise ValueError("reporting fails as well")

    url = f"unix://app:secret@{server.socket}"
    with HistoryStore(url, poll_interval=0.05) as reader, HistoryStore(server.url) as writer:
        reader.on_change("c", lambda event: seen.append(event.revision), on_error=on_error)
        writer.append("c", user("0"))
        wait_until(lambda: seen == [1], "the first change")
        with server.client() as client:
            client.execute_command("ACL", "SETUSER", "app", "-evalsha", "-eval")
            writer.append("c", user("1"))
            wait_until(lambda: errors, "the refusal")
            client.execute_command("ACL", "SETUSER", "app", "+evalsha", "+eval")
        wait_until(lambda: seen == [1, 2], "the change after it")
    assert isinstance(errors[0], BackendRefusedError)


def test_the_flag_is_set_again_after_a_silent_reconnect(own_server: Start) -> None:
    """redis-py reconnects a user's client automatically, but a restarted server has lost the setting."""
    server = own_server(options=("--appendfsync", "always"))
    client: Any = redis.Redis(unix_socket_path=str(server.socket))
    retry = RetryPolicy(deadline=20)
    with HistoryStore(client=client, poll_interval=1.0, retry=retry) as store, store.subscribe("c") as subscription:
        store.append("c", user("0"))
        assert subscription.get(timeout=10) is not None
        server.kill()
        server.start()
        store.append("c", user("1"))
        assert subscription.get(timeout=10) is not None

        def flag() -> bool:
            with server.client() as other:
                return "K" in other.config_get("notify-keyspace-events")["notify-keyspace-events"]

        wait_until(flag, "the flag")
    client.close()
