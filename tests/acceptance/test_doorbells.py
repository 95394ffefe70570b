"""How subscribers hear of changes: each mode of the doorbell, and none at all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from redis_history import AsyncHistoryStore, ConversationDeleted, HistoryStore, user
from redis_history.errors import ConfigurationError
from tests.support.cluster import RealCluster
from tests.support.servers import RealServer, wait_until

#: Longer than any test: only the doorbell can bring changes in time.
NEVER = 600.0
SOON = 10.0


def _listeners(server: RealServer) -> int:
    with server.client() as client:
        return sum(line["sub"] != "0" or line["psub"] != "0" for line in client.client_list())


def _without_config(server: RealServer, *more: str) -> str:
    """A URL of a user who may neither read nor write the server's settings."""
    with server.client() as client:
        rights = ("~*", "&*", "+@all", "-config", *more)
        client.execute_command("ACL", "SETUSER", "app", "reset", "on", ">secret", *rights)
    return f"unix://app:secret@{server.socket}"


async def _until(condition: Callable[[], object]) -> None:
    await asyncio.to_thread(wait_until, condition, "the doorbell")


@pytest.mark.parametrize("doorbell", ["auto", "keyspace", "publish"])
@pytest.mark.parametrize("kind", ["plain", "redis", "valkey"])
async def test_a_doorbell_rings_at_once(own_server: Callable[..., RealServer], kind: str, doorbell: Any) -> None:
    server = own_server(kind)
    with HistoryStore(server.url, doorbell=doorbell) as writer:
        async with (
            AsyncHistoryStore(server.url, doorbell=doorbell, poll_interval=NEVER) as reader,
            reader.subscribe("c") as one,
            reader.subscribe_all() as every,
        ):
            for number in range(20):
                await asyncio.to_thread(writer.append, "c", user(str(number)))
                for subscription in (one, every):
                    event = await subscription.get(timeout=SOON)
                    assert event is not None
                    assert event.revision == number + 1
            assert _listeners(server) == 1, "one connection for all subscriptions"
            assert reader._backend.doorbell_mode == ("publish" if doorbell == "publish" else "keyspace")  # type: ignore[attr-defined]
            await asyncio.to_thread(writer.delete_conversation, "c")
            for subscription in (one, every):
                assert isinstance(await subscription.get(timeout=SOON), ConversationDeleted)
    with server.client() as client:
        flags = set(client.config_get("notify-keyspace-events")["notify-keyspace-events"])
    assert flags == (set() if doorbell == "publish" else {"K", "t"})


def test_only_those_who_publish_publish(own_server: Callable[..., RealServer]) -> None:
    server = own_server()
    with server.client() as client:
        for doorbell, published in (("auto", 0), ("poll", 0), ("publish", 1)):
            with HistoryStore(server.url, doorbell=doorbell) as store:
                store.append(doorbell, user("x"))
                before = client.info("commandstats").get("cmdstat_publish", {"calls": 0})["calls"]
                store.append(doorbell, user("x"))
                after = client.info("commandstats").get("cmdstat_publish", {"calls": 0})["calls"]
                assert after - before == published


@pytest.mark.parametrize("face", ["sync", "async"])
async def test_without_a_doorbell_changes_arrive_by_looking(own_server: Callable[..., RealServer], face: str) -> None:
    """All notifications are lost: every change arrives within the poll interval and one second."""
    server, interval = own_server(), 1.0
    async with contextlib.AsyncExitStack() as stack:
        readers: list[Any] = []
        # One has no doorbell; the others' rings nothing, because the server makes no notifications.
        for url, doorbell in ((server.url, "poll"), (_without_config(server), "auto"), (server.url, "publish")):
            if face == "sync":
                store = stack.enter_context(HistoryStore(url, doorbell=doorbell, poll_interval=interval))  # type: ignore[arg-type]
                readers += [store.subscribe("c3"), store.subscribe_all()]
            else:
                async_store = AsyncHistoryStore(url, doorbell=doorbell, poll_interval=interval)  # type: ignore[arg-type]
                await stack.enter_async_context(async_store)
                readers += [await async_store.subscribe("c3"), await async_store.subscribe_all()]
        async with AsyncHistoryStore(server.url) as writer:
            for number in range(4):
                waiting = [
                    asyncio.to_thread(one.get, timeout=interval + 1.0) if face == "sync" else one.get(interval + 1.0)
                    for one in readers
                ]
                told = asyncio.gather(*waiting)
                await writer.append("c3", user(str(number)))
                assert [getattr(event, "revision", None) for event in await told] == [number + 1] * len(readers)


async def test_no_connection_listens_where_one_only_looks(own_server: Callable[..., RealServer]) -> None:
    server = own_server()
    async with (
        AsyncHistoryStore(server.url, doorbell="poll", poll_interval=0.1) as store,
        store.subscribe("c") as one,
        store.subscribe_all() as every,
    ):
        await store.append("c", user("x"))
        assert await one.get(timeout=SOON) is not None
        assert await every.get(timeout=SOON) is not None
        assert _listeners(server) == 0
        assert store._backend.doorbell_mode == "poll"  # type: ignore[attr-defined]
        await store.delete_conversation("c")
        for subscription in (one, every):
            assert isinstance(await subscription.get(timeout=SOON), ConversationDeleted)
        with server.client() as client:
            assert client.config_get("notify-keyspace-events") == {"notify-keyspace-events": ""}


async def test_a_server_without_notifications_is_told_of_once_and_writers_may_publish(
    own_server: Callable[..., RealServer], caplog: pytest.LogCaptureFixture
) -> None:
    """In the mode "auto" a subscriber hears of those writers that publish, though it was told nothing of them."""
    server = own_server()
    async with (
        AsyncHistoryStore(_without_config(server), poll_interval=NEVER) as reader,
        reader.subscribe("c") as one,
        reader.subscribe_all() as every,
    ):
        bell: Any = reader._backend
        await _until(lambda: bell.doorbell_mode == "poll")
        with server.client() as client:
            await _until(lambda: client.pubsub_numpat() == 2)
            await _until(lambda: len(client.pubsub_channels("*:c:l")) == 2)
        async with AsyncHistoryStore(server.url, doorbell="publish") as writer:
            for number in range(5):
                await writer.append("c", user(str(number)))
                for subscription in (one, every):
                    event = await subscription.get(timeout=SOON)
                    assert event is not None
                    assert event.revision == number + 1
        assert bell.doorbell_mode == "publish"
        with server.client() as client:  # cut off, it listens to both again
            client.client_kill_filter(_type="pubsub")
            await _until(lambda: client.pubsub_numpat() == 2)
            await _until(lambda: len(client.pubsub_channels("*:c:l")) == 2)
            # Somebody else turns notifications on: they are heard as well.
            client.config_set("notify-keyspace-events", "Kt")
        async with AsyncHistoryStore(server.url) as writer, asyncio.timeout(20):
            while bell.doorbell_mode != "keyspace":  # the first may be found because the connection is a new one
                await writer.append("c", user("x"))
                for subscription in (one, every):
                    assert await subscription.get(timeout=SOON) is not None
    assert caplog.text.count("does not let us turn on keyspace notifications") == 1


async def test_who_may_not_listen_to_what_is_published_goes_on(own_server: Callable[..., RealServer]) -> None:
    server = own_server(options=("--notify-keyspace-events", "Kt"))
    url = _without_config(server, "resetchannels", "&__keyspace@0__:rh:{default:*", "&rh:doorbell")
    async with AsyncHistoryStore(url, poll_interval=NEVER) as store, store.subscribe("c") as one:
        with server.client() as client:
            await _until(lambda: client.pubsub_channels("__keyspace*"))
        await store.append("c", user("x"))
        assert await one.get(timeout=SOON) is not None


async def test_what_rings_in_a_cluster(own_cluster: RealCluster) -> None:
    """Published on one node, heard on all: one connection is enough. Notifications are a node's own."""
    for doorbell in ("publish", "keyspace"):
        async with (
            AsyncHistoryStore(own_cluster.url, doorbell=doorbell, namespace=doorbell, poll_interval=NEVER) as reader,  # type: ignore[arg-type]
            reader.subscribe_all() as every,
        ):
            subscriptions = [reader.subscribe(f"c{number}") for number in range(6)]
            for number, subscription in enumerate(subscriptions):
                await reader.append(f"c{number}", user("x"))
                assert await subscription.get(timeout=SOON) is not None
            told = [await every.get(timeout=SOON) for _ in range(6)]
            assert {event.conversation_id for event in told if event} == {f"c{number}" for number in range(6)}
            await _until(lambda: sum(map(_listeners, own_cluster.nodes)) == (1 if reader.namespace == "publish" else 3))
            assert reader._backend.doorbell_mode == doorbell  # type: ignore[attr-defined]
            for node in own_cluster.nodes:
                with node.client() as client:
                    client.client_kill_filter(_type="pubsub")
            await _until(lambda: sum(map(_listeners, own_cluster.nodes)) == (1 if reader.namespace == "publish" else 3))
            for number, subscription in enumerate(subscriptions):
                await reader.append(f"c{number}", user("y"))
                assert await subscription.get(timeout=SOON) is not None
            told = [await every.get(timeout=SOON) for _ in range(6)]
            assert all(event is not None and event.revision == 2 for event in told)


@pytest.fixture
def own_cluster() -> Any:
    cluster = RealCluster()
    try:
        yield cluster.start()
    finally:
        cluster.close()


@pytest.mark.parametrize("options", [{"doorbell": "loud"}, {"url": "memory://", "doorbell": "poll"}])
def test_modes_that_make_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="doorbell"):
        HistoryStore(**{"url": "redis://localhost", **options})
