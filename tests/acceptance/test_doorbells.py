"""How subscribers hear of changes: each mode of the doorbell, and none at all."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
import redis.asyncio

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
    assert caplog.text.count("CONFIG SET notify-keyspace-events") == 1


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


def _kill_pubsub(*servers: RealServer) -> int:
    killed = 0
    for server in servers:
        with server.client() as client:
            killed += client.client_kill_filter(_type="pubsub")
    return killed


def _channels(*servers: RealServer) -> list[Any]:
    """What anybody listens to, patterns last."""
    found: list[Any] = []
    for server in servers:
        with server.client() as client:
            found += client.pubsub_channels()
            found += ["a pattern"] * client.pubsub_numpat()
    return found


KILLS = 100


@pytest.mark.parametrize("kind", ["redis", "valkey", "cluster"])
def test_threads_subscribe_while_connections_are_killed(
    own_server: Callable[..., RealServer], request: pytest.FixtureRequest, kind: str
) -> None:
    """No error reaches them; afterwards the doorbell works, and the server has no subscription left over."""
    where: Any = request.getfixturevalue("own_cluster") if kind == "cluster" else own_server(kind)
    servers = where.nodes if kind == "cluster" else [where]
    died: list[Any] = []
    before, threading.excepthook = threading.excepthook, died.append
    try:
        with HistoryStore(where.url, search="off", poll_interval=NEVER) as store, _Rounds(servers) as rounds:
            store.append("c", user("x"))
            kept = store.subscribe("c")

            def churn(number: int) -> int:
                done, chance = 0, random.Random(number)
                while not rounds.enough.is_set():
                    one = store.subscribe(f"{number}-{chance.randrange(20)}")
                    every = store.subscribe_all() if chance.random() < 0.2 else None
                    if chance.random() < 0.2:
                        store.on_change("c", lambda _: None)()
                    one.close()
                    if every is not None:
                        every.close()
                    done += 1
                return done

            with ThreadPoolExecutor(6) as pool:
                assert all(done.result() for done in [pool.submit(churn, number) for number in range(6)])
            rounds.close()
            backend: Any = store._backend
            wait_until(lambda: backend.doorbell_mode == "keyspace", "the doorbell")
            with store.subscribe("fresh") as fresh:
                for number in range(5):
                    for name, subscription in (("c", kept), ("fresh", fresh)):
                        store.append(name, user(str(number)))
                        event = subscription.get(timeout=SOON)
                        assert event is not None
                        assert event.revision == number + (2 if name == "c" else 1)
            kept.close()
            wait_until(lambda: set(_channels(*servers)) == {b"rh:doorbell"}, "all else to be unsubscribed from")
        wait_until(lambda: _channels(*servers) == [], "the doorbell's end")
    finally:
        threading.excepthook = before
    assert died == []


@pytest.mark.parametrize("kind", ["redis", "valkey", "cluster"])
async def test_tasks_subscribe_while_connections_are_killed(
    own_server: Callable[..., RealServer], request: pytest.FixtureRequest, kind: str
) -> None:
    where: Any = request.getfixturevalue("own_cluster") if kind == "cluster" else own_server(kind)
    servers = where.nodes if kind == "cluster" else [where]
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    async with AsyncHistoryStore(where.url, search="off", poll_interval=NEVER) as store:
        await store.append("c", user("x"))
        kept = await store.subscribe("c")
        with _Rounds(servers) as rounds:

            async def churn(number: int) -> int:
                done, chance = 0, random.Random(number)
                while not rounds.enough.is_set():
                    one = store.subscribe(f"{number}-{chance.randrange(20)}")
                    opening = asyncio.create_task(one.open())
                    await asyncio.wait([opening], timeout=chance.uniform(0, 0.002))
                    if chance.random() < 0.2:
                        opening.cancel()
                    if chance.random() < 0.2:
                        await (await store.on_change("c", lambda _: None))()
                    if chance.random() < 0.2:
                        async with store.subscribe_all():
                            pass
                    await one.aclose()
                    await asyncio.wait([opening])
                    if not opening.cancelled():
                        opening.result()
                    done += 1
                return done

            assert all(await asyncio.gather(*map(churn, range(8))))
            await asyncio.to_thread(rounds.close)
        backend: Any = store._backend
        await _until(lambda: backend.doorbell_mode == "keyspace")
        async with store.subscribe("fresh") as fresh:
            for number in range(5):
                for name, subscription in (("c", kept), ("fresh", fresh)):
                    await store.append(name, user(str(number)))
                    event = await subscription.get(timeout=SOON)
                    assert event is not None
                    assert event.revision == number + (2 if name == "c" else 1)
        await kept.aclose()
        await _until(lambda: set(_channels(*servers)) == {b"rh:doorbell"})
    await _until(lambda: _channels(*servers) == [])
    assert reported == []


class _Rounds:
    """Kills the connections of subscribers again and again; `enough` is set when `KILLS` were killed."""

    def __init__(self, servers: list[RealServer]) -> None:
        self.enough = threading.Event()
        self._end = threading.Event()
        self._servers = servers
        self._thread = threading.Thread(target=self._work)

    def _work(self) -> None:
        killed = 0
        while not self._end.wait(0.04):
            killed += _kill_pubsub(*self._servers)
            if killed >= KILLS:
                self.enough.set()

    def close(self) -> None:
        self._end.set()
        self._thread.join()

    def __enter__(self) -> _Rounds:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@pytest.mark.parametrize("face", ["sync", "async"])
async def test_the_mode_tells_of_an_outage(own_server: Callable[..., RealServer], face: str) -> None:
    server = own_server()
    async with AsyncHistoryStore(server.url, poll_interval=NEVER) as async_store:
        with HistoryStore(server.url, poll_interval=NEVER) as sync_store:
            store: Any = sync_store if face == "sync" else async_store
            bell: Any = store._backend
            assert bell.doorbell_mode == "poll", "nobody listens yet"
            one = store.subscribe("c")
            if face == "async":
                await one.open()
            await _until(lambda: bell.doorbell_mode == "keyspace")
            for _ in range(2):
                server.kill()
                await _until(lambda: bell.doorbell_mode == "poll")
                await asyncio.to_thread(server.start)
                await _until(lambda: bell.doorbell_mode == "keyspace")
            await (asyncio.to_thread(one.close) if face == "sync" else one.aclose())


@pytest.mark.parametrize("face", ["sync", "async"])
async def test_the_mode_tells_of_a_server_that_hangs(
    own_server: Callable[..., RealServer], face: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connections stay, and nothing comes over them."""
    for package in ("_sync", "_async"):
        for name in ("_CHECK", "_QUIET", "_ANSWER"):
            monkeypatch.setattr(f"redis_history.{package}._doorbell.{name}", 0.3)
    server = own_server()
    async with AsyncHistoryStore(server.url, poll_interval=NEVER) as async_store:
        with HistoryStore(server.url, poll_interval=NEVER) as sync_store:
            store: Any = sync_store if face == "sync" else async_store
            bell: Any = store._backend
            one = store.subscribe("c")
            if face == "async":
                await one.open()
            await _until(lambda: bell.doorbell_mode == "keyspace")
            with server.client() as client:
                before = client.client_list()
                await asyncio.sleep(1.0)  # several signs of life are asked for and given
                after = client.client_list()
                ids = [line["id"] for line in before if line["sub"] != "0"]
                assert ids == [line["id"] for line in after if line["sub"] != "0"], "it stayed connected"
            os.kill(server.pid, signal.SIGSTOP)
            try:
                await _until(lambda: bell.doorbell_mode == "poll")
            finally:
                os.kill(server.pid, signal.SIGCONT)
            await _until(lambda: bell.doorbell_mode == "keyspace")
            await (asyncio.to_thread(one.close) if face == "sync" else one.aclose())


async def test_the_mode_of_a_cluster_tells_of_one_node_that_is_away(own_cluster: RealCluster) -> None:
    async with AsyncHistoryStore(own_cluster.url, search="off", poll_interval=NEVER) as store, store.subscribe("c"):
        bell: Any = store._backend
        await _until(lambda: bell.doorbell_mode == "keyspace")
        node = own_cluster.nodes[1]
        node.kill()
        await _until(lambda: bell.doorbell_mode == "poll")
        await asyncio.to_thread(node.start)
        await _until(lambda: bell.doorbell_mode == "keyspace")


async def test_the_mode_with_several_event_loops(own_server: Callable[..., RealServer]) -> None:
    server = own_server()
    async with AsyncHistoryStore(server.url, poll_interval=NEVER) as store:
        bell: Any = store._backend
        ready, leave = threading.Event(), threading.Event()

        async def elsewhere() -> None:
            async with store.subscribe("c"):
                await _until(lambda: bell.doorbell_mode == "keyspace")
                ready.set()
                await asyncio.to_thread(leave.wait, 20)

        other = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(elsewhere())))
        assert await asyncio.to_thread(ready.wait, 20)
        async with store.subscribe("c"):
            await _until(lambda: bell.doorbell_mode == "keyspace")
            leave.set()
            await other
            assert bell.doorbell_mode == "keyspace", "the other loop has ended: only this one counts"
            server.kill()
            await _until(lambda: bell.doorbell_mode == "poll")
            await asyncio.to_thread(server.start)
            await _until(lambda: bell.doorbell_mode == "keyspace")


def test_the_mode_in_a_forked_child(own_server: Callable[..., RealServer]) -> None:
    server = own_server()
    with HistoryStore(server.url, poll_interval=NEVER) as store, store.subscribe("c") as kept:
        bell: Any = store._backend
        wait_until(lambda: bell.doorbell_mode == "keyspace", "the doorbell")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                assert bell.doorbell_mode == "poll"
                with store.subscribe("c") as own:
                    wait_until(lambda: bell.doorbell_mode == "keyspace", "the doorbell of the child")
                    store.append("c", user("of the child"))
                    assert own.get(timeout=SOON) is not None
                kept.close()  # the parent's: must not end what the parent listens to
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert status == 0
        assert bell.doorbell_mode == "keyspace"
        assert kept.get(timeout=SOON) is not None
        store.append("c", user("of the parent"))
        assert kept.get(timeout=SOON) is not None


@pytest.mark.parametrize("face", ["sync", "async"])
async def test_a_client_whose_connections_are_closed_by_its_owner(
    own_server: Callable[..., RealServer], face: str
) -> None:
    """Whatever that makes a read or a write raise, the doorbell connects again."""
    server = own_server()
    if face == "sync":
        client = redis.Redis(unix_socket_path=str(server.socket))
        with HistoryStore(client=client, poll_interval=NEVER) as store, store.subscribe("c") as one:
            for number in range(5):
                store.append("c", user(str(number)))
                assert await asyncio.to_thread(one.get, timeout=SOON) is not None
                client.connection_pool.disconnect()
        client.close()
        return
    async_client = redis.asyncio.Redis(unix_socket_path=str(server.socket))
    async with (
        AsyncHistoryStore(client=async_client, poll_interval=NEVER) as async_store,
        async_store.subscribe("c") as subscription,
    ):
        for number in range(5):
            await async_store.append("c", user(str(number)))
            assert await subscription.get(timeout=SOON) is not None
            await async_client.connection_pool.disconnect()
    await async_client.aclose()


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
