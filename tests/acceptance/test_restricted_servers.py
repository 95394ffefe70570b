"""Servers that refuse commands: what still rings, what polls, how many connections and commands that takes."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from redis_history import AsyncHistoryStore, ConversationDeleted, HistoryStore, user
from redis_history.store.operations.keys import Keyspace
from tests.support.cluster import RealCluster
from tests.support.faces import FACES, open_store
from tests.support.restricted import ForgetfulServer, ServerlessCluster, renamed
from tests.support.servers import RealServer, Start, until, wait_until

#: Longer than any test: changes arrive in time only through the doorbell.
NEVER = 600.0
SOON = 10.0
#: A short poll interval.
OFTEN = 0.05
PATTERNS = ("-psubscribe", "-punsubscribe")


def _url(server: RealServer, *rights: str) -> str:
    """A URL of a user with these rights."""
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "app", "reset", "on", ">secret", "~*", "&*", "+@all", *rights)
    return f"unix://app:secret@{server.socket}"


def _calls(*servers: RealServer) -> Counter[str]:
    """How often each command was called, within scripts, too."""
    counts: Counter[str] = Counter()
    for server in servers:
        for name, one in server.watcher.info("commandstats").items():
            counts[name.removeprefix("cmdstat_")] += one["calls"]
    return counts


def _connections(server: RealServer) -> int:
    count: int = server.watcher.info("stats")["total_connections_received"]
    return count


@contextmanager
def _quick(monkeypatch: pytest.MonkeyPatch, face: str, **values: float) -> Iterator[None]:
    """With other times of the doorbell."""
    with monkeypatch.context() as patched:
        for name, value in values.items():
            patched.setattr(f"redis_history.store._{face}._doorbell.{name}", value)
        yield


@pytest.mark.proves("notifications")
@pytest.mark.parametrize("refusal", ["forbidden", "unknown"])
@FACES
async def test_without_patterns_the_channels_ring_and_subscribe_all_polls(
    own_server: Start, face: str, refusal: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On one connection, which stays. The store says so."""
    server = own_server("plain", options=renamed(("PSUBSCRIBE",)) if refusal == "unknown" else ())
    url = server.url if refusal == "unknown" else _url(server, *PATTERNS)
    with _quick(monkeypatch, face, _QUIET=0.05, _LONGEST_QUIET=0.05), caplog.at_level(logging.INFO, "redis_history"):
        async with (
            open_store(face, url, poll_interval=NEVER) as store,
            open_store(face, url, poll_interval=OFTEN) as poller,
        ):
            found = await store.capabilities
            assert (found.doorbell, found.doorbell_all) == ("notifications", "poll")
            one, every, polling = store.subscribe("c"), store.subscribe_all(), poller.subscribe_all()
            for subscription in (one, every, polling):
                await subscription.open()
            await until(lambda: store.backend.doorbell_mode == "notifications")
            await until(lambda: poller.backend.doorbell_mode == "notifications")
            await store.append("c", user("0"))
            assert (await one.get(timeout=SOON)).revision == 1
            before, pings = _connections(server), _calls(server)["ping"]
            for number in range(1, 5):
                await store.append("c", user(str(number)))
                assert (await one.get(timeout=SOON)).revision == number + 1
            for number in range(5):
                assert (await polling.get(timeout=SOON)).revision == number + 1
            await until(lambda: _calls(server)["ping"] > pings + 5, "pings")
            assert _connections(server) == before
            assert store.backend.doorbell_mode == "notifications"
            for subscription in (one, every, polling):
                await subscription.aclose()
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 2, "one for each store"
    assert all("subscribe_all will poll" in text for text in warnings)


@FACES
async def test_a_user_that_may_not_subscribe_polls_on_one_connection(
    own_server: Start, face: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even PING. When it gets the rights, the doorbell rings."""
    server = own_server("plain")
    url = _url(server, *PATTERNS, "-subscribe", "-ping", "-publish", "-info", "-client", "-config", "-pubsub")
    times = {"_QUIET": 0.05, "_LONGEST_QUIET": 0.05, "_TRY_AGAIN": 0.1}
    with _quick(monkeypatch, face, **times):
        async with open_store(face, url, poll_interval=OFTEN) as store:
            found = await store.capabilities
            assert (found.doorbell, found.doorbell_all, found.version) == ("poll", "poll", None)
            one, every = store.subscribe("c"), store.subscribe_all()
            await one.open()
            await every.open()
            for number in range(3):
                await store.append("c", user(str(number)))
                for subscription in (one, every):
                    assert (await subscription.get(timeout=SOON)).revision == number + 1
            # All connections for reads, because the announcements may come at the same time as a poll.
            await asyncio.gather(*(store.get("c") for _ in range(100)))
            before, refused = _connections(server), _calls(server)["evalsha"]
            while _calls(server)["evalsha"] <= refused + 10:
                assert await every.get(timeout=OFTEN) is None
                assert await one.get(timeout=OFTEN) is None
            assert _connections(server) == before
            assert store.backend.doorbell_mode == "poll"
            async with store.run("c"):  # whose script cannot publish
                assert (await store.get_run("c")).is_active
            with server.client() as client:
                client.execute_command("ACL", "SETUSER", "app", "+@all")
            await until(lambda: store.backend.doorbell_mode == "publish")
            assert await store.delete_conversation("c")
            for subscription in (one, every):
                while not isinstance(await subscription.get(timeout=SOON), ConversationDeleted):
                    pass
                await subscription.aclose()


@FACES
async def test_notifications_that_another_program_turns_off_are_turned_on_again(
    own_server: Start, face: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the same connection, and without removing its flags."""
    server = own_server("plain")
    times = {"_QUIET": 0.05, "_LONGEST_QUIET": 0.05, "_TRY_AGAIN": 0.1}
    with _quick(monkeypatch, face, **times):
        async with open_store(face, server.url, poll_interval=NEVER) as store, store.subscribe("c") as one:
            await store.append("c", user("0"))
            assert (await one.get(timeout=SOON)).revision == 1
            before = _connections(server)
            with server.client() as client:
                client.config_set("notify-keyspace-events", "Ex")
                await until(lambda: {*"ExKl"} == {*client.config_get()["notify-keyspace-events"]})
            await store.append("c", user("1"))
            assert (await one.get(timeout=SOON)).revision == 2
            assert _connections(server) == before + 1, "that of this test"


@FACES
async def test_a_setting_that_is_accepted_without_effect_is_not_trusted(own_server: Start, face: str) -> None:
    """The scripts publish instead."""
    server = ForgetfulServer()
    server.start()
    try:
        async with open_store(face, server.url, poll_interval=NEVER) as store:
            one = store.subscribe("c")
            await one.open()
            await until(lambda: store.backend.doorbell_mode == "publish")
            await store.append("c", user("x"))
            assert (await one.get(timeout=SOON)).revision == 1
            await one.aclose()
    finally:
        await asyncio.to_thread(server.close)


@pytest.mark.proves("notifications")
@FACES
@pytest.mark.full
async def test_in_a_cluster_published_changes_stay_in_one_shard(own_cluster: RealCluster, face: str) -> None:
    """Also when slots move: subscriptions follow them, and no change waits for a poll."""
    for node in own_cluster.nodes:
        _url(node, "-config", *PATTERNS)
    url = own_cluster.url.replace("://", "://app:secret@")
    slots = {Keyspace("default").bucket_of(name): name for name in (f"c{number}" for number in range(30))}
    names = [*slots.values()][:6]
    async with open_store(face, url, poll_interval=NEVER, search="off") as store:
        found = await store.capabilities
        assert (found.doorbell, found.doorbell_all) == ("publish", "publish")
        subscriptions = {name: store.subscribe(name) for name in names}
        every = store.subscribe_all()
        await every.open()
        for one in subscriptions.values():
            await one.open()
        await until(lambda: store.backend.doorbell_mode == "publish")
        revisions = dict.fromkeys(names, 0)

        async def all_ring() -> None:
            for name in names:
                await store.append(name, user("x"))
                revisions[name] += 1
                assert (await subscriptions[name].get(timeout=SOON)).revision == revisions[name]
            events = [await every.get(timeout=SOON) for _ in names]
            assert {(event.conversation_id, event.revision) for event in events} == {*revisions.items()}

        for node in own_cluster.nodes:
            with node.client() as client:
                client.config_resetstat()
        await all_ring()
        calls = await asyncio.to_thread(_calls, *own_cluster.nodes)
        assert (calls["publish"], calls["spublish"]) == (0, 2 * len(names))
        for name in names[:2]:
            slot = await asyncio.to_thread(_slot, own_cluster, name)
            await asyncio.to_thread(own_cluster.move, slot, own_cluster.another(slot))
        # The subscriptions of a moved slot are confirmed by its new node, which wakes them.
        channels = [Keyspace("default").conversation(name).log for name in names]
        await until(lambda: asyncio.to_thread(_all_heard, own_cluster, channels), "the subscriptions to follow")
        await all_ring()
        async with store.run(names[0]) as run:
            await store.stop_run(names[0])
            await run.wait_stop()
        for subscription in (*subscriptions.values(), every):
            await subscription.aclose()


def _slot(cluster: RealCluster, conversation_id: str) -> int:
    key = Keyspace("default").conversation(conversation_id).log
    slot: int = cluster.run(cluster.nodes[0], "KEYSLOT", key)
    return slot


def _all_heard(cluster: RealCluster, channels: list[bytes]) -> bool:
    """Whether each sharded channel, and that of its registry, has a subscriber at the node that serves it."""
    for channel in channels:
        node = cluster.owner(cluster.run(cluster.nodes[0], "KEYSLOT", channel))
        for name in (channel, channel.partition(b"}:")[0] + b"}:c"):
            with node.client() as client:
                if not dict(client.pubsub_shardnumsub(name)).get(name):
                    return False
    return True


@pytest.mark.parametrize("kind", ["plain", "cluster"])
@pytest.mark.full
async def test_an_idle_poll_is_one_small_read(own_server: Start, own_cluster: RealCluster, kind: str) -> None:
    """In a cluster one for each bucket, because the keys of a script are in one slot."""
    server: Any = own_server("plain") if kind == "plain" else own_cluster
    nodes = getattr(server, "nodes", [server])
    async with (
        AsyncHistoryStore(server.url, search="off", poll_interval=OFTEN) as store,
        store.subscribe_all() as every,
    ):
        for number in range(300):
            await store.append(f"c{number}", user("x"))
        for _ in range(300):
            assert await every.get(timeout=SOON)
        assert await every.get(timeout=4 * OFTEN) is None
        before = await asyncio.to_thread(_calls, *nodes)
        assert await every.get(timeout=20 * OFTEN) is None
        after = await asyncio.to_thread(_calls, *nodes)
    polls = (after["evalsha"] - before["evalsha"]) / (1 if kind == "plain" else 64)
    assert 2 <= polls <= 21
    for command in ("zrangebyscore", "zrange", "eval", "exists"):
        assert after[command] == before[command], command
    assert after["zcard"] - before["zcard"] == 64 * polls, "only within the script"
    assert after["hmget"] - before["hmget"] <= 200 * polls, "only within the script"


def test_an_idle_store_sends_nothing_and_pings_as_rarely_as_it_polls(own_server: Start) -> None:
    server = own_server("plain")
    with HistoryStore(server.url, poll_interval=NEVER) as store:
        store.append("c", user("x"))
        backend: Any = store.backend
        assert backend.doorbell_mode == "poll"
        with store.subscribe("c") as one:
            wait_until(lambda: backend.doorbell_mode == "notifications", "the doorbell")
            assert backend._doorbell._quiet == 60.0
            assert one.get(timeout=0) is None
        store.delete_conversation("c")


@pytest.mark.full
def test_commands_that_the_serverless_cluster_lacks(caplog: pytest.LogCaptureFixture) -> None:
    """Everything rings, although there are neither patterns nor notifications."""
    cluster = ServerlessCluster()
    cluster.start()
    try:
        with (
            caplog.at_level(logging.WARNING, "redis_history"),
            HistoryStore(cluster.url, poll_interval=NEVER) as store,
            store.subscribe_all() as every,
        ):
            store.append("c", user("x"))
            event = every.get(timeout=SOON)
            assert event is not None
            backend: Any = store.backend
            wait_until(lambda: backend.doorbell_mode == "publish", "the doorbell")
            found = store.capabilities
            assert (found.doorbell, found.doorbell_all, found.version) == ("publish", "publish", None)
        assert not caplog.records
    finally:
        cluster.close()
