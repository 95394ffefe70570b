"""How subscribers learn of changes: by notifications, published messages and polling."""

from __future__ import annotations

import asyncio
import inspect
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Any

import pytest
import redis
import redis.asyncio

from redis_history import AsyncHistoryStore, ConversationDeleted, HistoryStore, user
from tests.support.cluster import RealCluster
from tests.support.faces import FACES, Awaitable, open_store
from tests.support.servers import RealServer, Start, wait_until

#: Longer than any test: changes arrive in time only through the doorbell.
NEVER = 600.0
SOON = 10.0


def _listeners(server: RealServer) -> int:
    with server.client() as client:
        return sum(line["sub"] != "0" or line["psub"] != "0" for line in client.client_list())


def _without_config(server: RealServer, *more: str, name: str = "app") -> str:
    """A URL of a user without permission for CONFIG."""
    rights = ("~*", "&*", "+@all", "-config", *more)
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", name, "reset", "on", ">secret", *rights)
    return f"unix://{name}:secret@{server.socket}"


async def _until(condition: Callable[[], object]) -> None:
    await asyncio.to_thread(wait_until, condition, "the doorbell")


@pytest.mark.proves("notifications")
@pytest.mark.parametrize("reading", ["notifications", "publish"])
@pytest.mark.parametrize("writing", ["notifications", "publish"])
@pytest.mark.parametrize("kind", ["plain", *(pytest.param(one, marks=pytest.mark.full) for one in ("redis", "valkey"))])
async def test_a_doorbell_rings_at_once(own_server: Start, kind: str, writing: str, reading: str) -> None:
    """Also between users who may and may not see the server's setting, which is that of another program at first."""
    server = own_server(kind, options=("--notify-keyspace-events", "Ex"))
    urls = {"notifications": server.url, "publish": _without_config(server)}
    with HistoryStore(urls[writing]) as writer:
        async with (
            AsyncHistoryStore(urls[reading], poll_interval=NEVER) as reader,
            reader.subscribe("c") as one,
            reader.subscribe_all() as every,
        ):
            for number in range(20):
                if number == 10:
                    _kill_pubsub(server)
                    await _until(lambda: _listeners(server) == 1)
                await asyncio.to_thread(writer.append, "c", user(str(number)))
                for subscription in (one, every):
                    event = await subscription.get(timeout=SOON)
                    assert event.revision == number + 1
            assert _listeners(server) == 1, "one connection for all subscriptions"
            assert reader._backend.doorbell_mode == (await reader.capabilities).doorbell == reading
            await asyncio.to_thread(writer.delete_conversation, "c")
            for subscription in (one, every):
                assert isinstance(await subscription.get(timeout=SOON), ConversationDeleted)
    with server.client() as client:
        flags = set(client.config_get("notify-keyspace-events")["notify-keyspace-events"])
    assert flags == {"E", "x"} | ({"K", "l"} if "notifications" in (reading, writing) else set())


def test_only_users_without_permission_for_the_setting_publish(own_server: Start) -> None:
    server = own_server()
    with server.client() as client:
        for url, published in ((server.url, 0), (_without_config(server), 1)):
            with HistoryStore(url) as store:
                store.append("c", user("x"))
                client.config_resetstat()
                store.append("c", user("x"))
                assert client.info("commandstats").get("cmdstat_publish", {"calls": 0})["calls"] == published


@pytest.mark.proves("broken-connections")
@FACES
async def test_without_notifications_changes_arrive_by_polling(own_server: Start, face: str) -> None:
    """The writer may neither see the setting nor publish, and one reader may not subscribe."""
    server, interval = own_server(), 0.5
    async with AsyncExitStack() as stack:
        readers: list[Any] = []
        for rights in ((), ("-subscribe", "-psubscribe"), ("resetchannels",)):
            url = _without_config(server, *rights, name=f"reader{len(readers)}")
            store = open_store(face, url, poll_interval=interval)
            await stack.enter_async_context(store)
            readers += [store.subscribe("c3"), store.subscribe_all()]
        await asyncio.gather(*(one.open() for one in readers))
        async with AsyncHistoryStore(_without_config(server, "resetchannels")) as writer:
            for number in range(4):
                waiting = asyncio.gather(*(one.get(timeout=SOON) for one in readers))
                await writer.append("c3", user(str(number)))
                assert [getattr(event, "revision", None) for event in await waiting] == [number + 1] * len(readers)
            await writer.update_conversation("c3", title="all calls that publish")
            async with writer.stream("c3") as reply:
                await reply.write("text")
            assert await writer.delete_conversation("c3")


async def test_a_user_without_permission_for_published_messages_uses_notifications(
    own_server: Start,
) -> None:
    server = own_server(options=("--notify-keyspace-events", "Kl"))
    url = _without_config(server, "resetchannels", "&__keyspace@0__:rh2:{default:*", "&rh2:doorbell")
    async with AsyncHistoryStore(url, poll_interval=NEVER) as store, store.subscribe("c") as one:
        with server.client() as client:
            await _until(lambda: client.pubsub_channels("__keyspace*"))
        await store.append("c", user("x"))
        assert await one.get(timeout=SOON) is not None


@pytest.mark.full
async def test_doorbells_in_a_cluster(own_cluster: RealCluster) -> None:
    """Each node sends notifications about its own keys, so there is a connection to each."""
    names = [f"c{number}" for number in range(6)]
    for node in own_cluster.nodes:
        _without_config(node)
    # The first turns nothing on, so the second must.
    for url, mode in (
        (own_cluster.url.replace("://", "://app:secret@"), "publish"),
        (own_cluster.url, "notifications"),
    ):
        async with (
            AsyncHistoryStore(url, namespace=mode, poll_interval=NEVER) as reader,
            reader.subscribe_all() as every,
        ):
            subscriptions = {name: reader.subscribe(name) for name in names}
            for revision in (1, 2):
                for name, subscription in subscriptions.items():
                    await reader.append(name, user("x"))
                    assert await subscription.get(timeout=SOON) is not None
                events = [await every.get(timeout=SOON) for _ in names]
                assert {(one.conversation_id, one.revision) for one in events if one} == {(n, revision) for n in names}
                await _until(lambda: sum(map(_listeners, own_cluster.nodes)) == 3)
                assert reader._backend.doorbell_mode == mode
                _kill_pubsub(*own_cluster.nodes)
                await _until(lambda: sum(map(_listeners, own_cluster.nodes)) == 3)


def _kill_pubsub(*servers: RealServer) -> int:
    killed = 0
    for server in servers:
        with server.client() as client:
            killed += client.client_kill_filter(_type="pubsub")
    return killed


def _channels(*servers: RealServer) -> list[Any]:
    """The channels and patterns that any client listens to."""
    found: list[Any] = []
    for server in servers:
        with server.client() as client:
            found += client.pubsub_channels()
            found += ["a pattern"] * client.pubsub_numpat()
    return found


@pytest.fixture(params=["redis", pytest.param("valkey", marks=pytest.mark.full), "cluster"])
def nodes(request: pytest.FixtureRequest, own_server: Start) -> tuple[str, list[RealServer]]:
    """The URL of a server or cluster of this test, and its nodes."""
    if request.param == "cluster":
        cluster = request.getfixturevalue("own_cluster")
        return cluster.url, cluster.nodes
    server = own_server(request.param)
    return server.url, [server]


@pytest.mark.proves("broken-connections")
@pytest.mark.full
def test_threads_subscribe_while_connections_are_killed(nodes: tuple[str, list[RealServer]], full: bool) -> None:
    """No error reaches them. Afterwards the doorbell works, and the server has dropped their subscriptions."""
    url, servers = nodes
    died: list[Any] = []
    before, threading.excepthook = threading.excepthook, died.append
    try:
        with HistoryStore(url, search="off", poll_interval=NEVER) as store, _Rounds(servers, full) as rounds:
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
            asyncio.run(_check_that_the_doorbell_works(Awaitable(store), Awaitable(kept), servers))
        wait_until(lambda: _channels(*servers) == [], "the doorbell's end")
    finally:
        threading.excepthook = before
    assert died == []


async def _check_that_the_doorbell_works(store: Any, kept: Any, servers: list[RealServer]) -> None:
    """For an old subscription and a new one. After they are closed, the server holds neither subscription."""
    await _until(lambda: store._backend.doorbell_mode == "notifications")
    async with store.subscribe("fresh") as fresh:
        for number in range(5):
            for name, subscription in (("c", kept), ("fresh", fresh)):
                await store.append(name, user(str(number)))
                event = await subscription.get(timeout=SOON)
                assert event.revision == number + (2 if name == "c" else 1)
    await kept.aclose()
    await _until(lambda: set(_channels(*servers)) == {b"rh2:doorbell"})


class _Rounds:
    """Kills the connections of subscribers again and again; sets `enough` after 100 of them, or 30 in a short run."""

    def __init__(self, servers: list[RealServer], full: bool) -> None:
        self._wanted = 100 if full else 30
        self.enough = threading.Event()
        self._end = threading.Event()
        self._servers = servers
        self._thread = threading.Thread(target=self._work)

    def _work(self) -> None:
        killed = 0
        while not self._end.wait(0.04):
            killed += _kill_pubsub(*self._servers)
            if killed >= self._wanted:
                self.enough.set()

    def close(self) -> None:
        self._end.set()
        self._thread.join()

    def __enter__(self) -> _Rounds:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@FACES
async def test_a_new_subscription_interrupts_the_wait_for_messages(own_server: Start, face: str) -> None:
    began = time.monotonic()
    async with open_store(face, own_server().url, poll_interval=NEVER) as store:
        for number in range(4):  # an idle doorbell waits for 5 seconds
            changes = store.subscribe(f"c{number}")
            assert await changes.get(timeout=0) is None
            await store.append(f"c{number}", user("Hello"))
            assert await changes.get(timeout=SOON)
    assert time.monotonic() - began < SOON


@pytest.mark.proves("get-in-time")
@FACES
async def test_the_mode_is_poll_during_outages(own_server: Start, face: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that hangs keeps its connections, but sends nothing. Then it is killed and started again, twice."""
    for name in ("_QUIET", "_LONGEST_QUIET", "_ANSWER"):
        monkeypatch.setattr(f"redis_history.store._{face}._doorbell.{name}", 0.3)
    server = own_server()
    async with open_store(face, server.url, poll_interval=NEVER) as store:
        bell = store._backend
        assert bell.doorbell_mode == "poll", "no subscription yet"
        one = store.subscribe("c")
        await one.open()
        await _until(lambda: bell.doorbell_mode == "notifications")
        with server.client() as client:
            before = client.client_list()
            await asyncio.sleep(1.0)  # the doorbell checks the connection several times
            after = client.client_list()
            ids = [line["id"] for line in before if line["sub"] != "0"]
            assert ids == [line["id"] for line in after if line["sub"] != "0"], "it stayed connected"
        os.kill(server.pid, signal.SIGSTOP)
        try:
            await _until(lambda: bell.doorbell_mode == "poll")
        finally:
            os.kill(server.pid, signal.SIGCONT)
        await _until(lambda: bell.doorbell_mode == "notifications")
        for _ in range(2):
            server.kill()
            await _until(lambda: bell.doorbell_mode == "poll")
            await asyncio.to_thread(server.start)
            await _until(lambda: bell.doorbell_mode == "notifications")
        await one.aclose()


@pytest.mark.full
async def test_the_mode_is_poll_while_a_node_of_a_cluster_is_down(own_cluster: RealCluster) -> None:
    """After the restart the doorbell works again: this store does not poll."""
    async with (
        AsyncHistoryStore(own_cluster.url, search="off", poll_interval=NEVER) as store,
        store.subscribe("c") as changes,
    ):
        bell: Any = store._backend
        await _until(lambda: bell.doorbell_mode == "notifications")
        for nodes in (own_cluster.nodes[1:2], own_cluster.nodes):
            for node in nodes:
                node.kill()
            await _until(lambda: bell.doorbell_mode == "poll")
            for node in nodes:
                await asyncio.to_thread(node.start)
            await _until(lambda: bell.doorbell_mode == "notifications")
        await store.append("c", user("x"))
        assert await changes.get(timeout=SOON) is not None


@FACES
async def test_a_doorbell_reconnects_after_the_user_closes_the_connections(own_server: Start, face: str) -> None:
    """The doorbell reconnects after any error."""
    server = own_server()
    client: Any = (redis if face == "sync" else redis.asyncio).Redis(unix_socket_path=str(server.socket))

    async def call(method: Callable[[], Any]) -> None:
        result = method()
        if inspect.isawaitable(result):
            await result

    async with open_store(face, client=client, poll_interval=NEVER) as store, store.subscribe("c") as one:
        for number in range(5):
            await store.append("c", user(str(number)))
            assert await one.get(timeout=SOON) is not None
            await call(client.connection_pool.disconnect)
    await call(client.close if face == "sync" else client.aclose)
