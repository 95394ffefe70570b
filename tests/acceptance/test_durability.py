"""The `durability` option: a write is confirmed only when it is durable, whichever way the call takes."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis.crc import key_slot

from redis_history import RetryPolicy, user
from redis_history.errors import CapabilityError, DurabilityError
from redis_history.store.operations.keys import Keyspace
from tests.acceptance.test_wrong_servers import answering
from tests.support.cluster import RealCluster
from tests.support.faces import FACES, open_store
from tests.support.faults import lose_one_reply
from tests.support.histories import history_over
from tests.support.proxy import LossyProxy
from tests.support.servers import RealServer, Start, lasting, until, wait_until

ALWAYS = ("--appendfsync", "always")

#: Every kind of write, to a conversation that has a message "a".
WRITES: dict[str, Callable[[Any, str], Any]] = {
    "append": lambda store, name: store.append(name, user("new", id="new")),
    "append, one of two there": lambda store, name: store.append_many(name, [user("a", id="a"), user("new", id="new")]),
    "update": lambda store, name: store.update_message(name, user("other", id="a")),
    "restore": lambda store, name: store.restore(name, [user("new", id="new")]),
    "clear": lambda store, name: store.clear(name),
    "delete": lambda store, name: store.delete_messages(name, ["a"]),
    "record": lambda store, name: store.update_conversation(name, title="t"),
    "delete conversation": lambda store, name: store.delete_conversation(name),
}


@pytest.mark.proves("fsync")
@FACES
@pytest.mark.parametrize("write", WRITES)
async def test_a_call_repeated_after_a_lost_reply_confirms_the_first(own_server: Start, face: str, write: str) -> None:
    """WAITAOF on a new connection confirms nothing, unless the script writes again."""
    server = own_server("plain", options=ALWAYS)
    async with open_store(face, server.url, durability="fsync", durability_timeout=0.1) as store:
        for name in ("d", "c"):
            await store.append(name, user("a", id="a"))
        await WRITES[write](store, "d")  # loads the script, so that the lost reply is that of the write
        with server.client() as client:
            client.config_set("appendfsync", "no")
        # The retry checks the server again, and would refuse such a setting.
        store._backend._require_confirmation = lambda *_: asyncio.sleep(0) if face == "async" else None
        lose_one_reply(store)
        with pytest.raises(DurabilityError):
            await WRITES[write](store, "c")


@pytest.mark.proves("fsync")
@FACES
@pytest.mark.parametrize("write", [one for one in WRITES if one != "record"])
async def test_a_call_without_effect_confirms_the_change_of_another_store(
    own_server: Start, face: str, write: str
) -> None:
    server = own_server("plain", options=ALWAYS)
    async with (
        open_store(face, server.url, durability="fsync", durability_timeout=0.1) as store,
        open_store(face, server.url) as hasty,
    ):
        await store.append("c", user("a", id="a"))
        with server.client() as client:
            client.config_set("appendfsync", "no")
            await WRITES[write](hasty, "c")
            keys = lasting(client)
            with pytest.raises(DurabilityError):
                await WRITES[write](store, "c")
            assert lasting(client) == keys


@pytest.mark.proves("confirmable")
@FACES
@pytest.mark.parametrize("kind", ["plain", "valkey"])
async def test_a_server_that_confirms_before_the_fsync_is_refused(own_server: Start, face: str, kind: str) -> None:
    server = own_server(kind)
    async with open_store(face, server.url, durability="fsync") as store:
        if "fsync" in (await store.capabilities).durability:
            pytest.skip("this version confirms after the fsync")
        with pytest.raises(CapabilityError, match="everysec"):
            await store.append("c", user("x"))
        with server.client() as client:
            client.config_set("appendonly", "no")
            with pytest.raises(CapabilityError):
                await store.append("c", user("x"))
            assert client.keys("*") == []


@pytest.mark.proves("confirmable")
@FACES
@pytest.mark.full
async def test_a_server_without_the_command_is_refused_before_anything_is_written(face: str) -> None:
    info = b"# Server\r\nredis_version:7.0.15\r\n# Persistence\r\naof_enabled:1\r\n"
    seen: list[bytes] = []

    def answer(line: bytes) -> bytes:
        word = line.strip().upper()
        seen.append(word)
        if word == b"INFO":
            return b"$%d\r\n%b\r\n" % (len(info), info)
        known = {b"CLIENT": b"+OK\r\n", b"MODULE": b"*0\r\n", b"CONFIG": b"-NOPERM no\r\n"}
        return b"-ERR unknown command\r\n" if word in (b"FT.INFO", b"FT.CREATE") else known.get(word, b"")

    with answering(answer) as port:
        async with open_store(face, f"redis://127.0.0.1:{port}?protocol=2", durability="fsync") as store:
            with pytest.raises(CapabilityError, match=r"7\.2.*7\.0\.15"):
                await store.append("c", user("x"))
            assert (await store.capabilities).durability == ("server",)
    assert not any(word.startswith(b"EVAL") for word in seen)


class Pair:
    """A primary and a replica that follows it."""

    def __init__(self, own_server: Start) -> None:
        self._start = own_server
        self.primary = own_server("plain", tcp=True, options=("--repl-diskless-sync-delay", "0"))
        self.replica = self.follow()

    def follow(self) -> RealServer:
        replica = self._start("plain", tcp=True, options=("--replicaof", "127.0.0.1", str(self.primary.port)))
        with self.primary.client() as client:
            # WAIT immediately counts a new replica for a client that wrote nothing, although the replica may receive no
            # data for up to a second.
            client.set("following", "yes")
            client.delete("following")
            wait_until(lambda: client.wait(1, 100) == 1, "the replica to follow")
        return replica

    def pause(self) -> None:
        os.kill(self.replica.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.replica.pid, signal.SIGCONT)


@pytest.fixture
def pair(own_server: Start) -> Iterator[Pair]:
    pair = Pair(own_server)
    try:
        yield pair
    finally:
        if pair.replica._process is not None:
            pair.resume()


@FACES
async def test_a_stopped_replica_is_reported_in_time(pair: Pair, face: str) -> None:
    """A slow confirmation is not treated as a lost connection."""
    loop = asyncio.get_running_loop()
    url = f"{pair.primary.url}?socket_timeout=0.3"
    async with open_store(face, url, durability="replicas", durability_timeout=1.0) as store:
        assert (await store.capabilities).replicas == 1
        await store.append("c", user("1", id="1"))
        pair.pause()
        began = loop.time()
        with pytest.raises(DurabilityError, match="on a replica") as caught:
            await store.append("c", user("2", id="2"))
        assert 0.9 < loop.time() - began < 10
        assert caught.value.revision == 2
        with pytest.raises(DurabilityError):
            await store.append("c", user("2", id="2"))
        pair.resume()
        async with open_store(face, pair.primary.url, durability="replicas") as patient:
            assert (await patient.append("c", user("2", id="2"))).duplicate
            assert (await patient.append("c", user("3", id="3"))).revision == 3


@pytest.mark.proves("replicas")
@FACES
@pytest.mark.parametrize("how", ["add", "restore"])
@pytest.mark.full
async def test_flush_returns_when_everything_is_confirmed(pair: Pair, face: str, how: str) -> None:
    """The event of the change must not end `flush`: the server sends it before its replica has the change."""
    options: dict[str, Any] = {"durability": "replicas", "durability_timeout": 0.2, "poll_interval": 0.1}
    async with open_store(face, pair.primary.url, **options) as store:
        history = history_over(store)
        history.on("error", lambda: None)
        history.add_text("user", "1")
        await history.autosave("c")
        await until_flushed(history)
        pair.pause()
        change = history.add_text if how == "add" else lambda _, text: history.restore([user(text)])
        change("user", "2")
        for _ in range(2):
            with pytest.raises(DurabilityError):
                await history.flush()
            await until(lambda: [entry.position is not None for entry in history.entries][-1:] == [True], "the event")
        assert [one.text for one in history.unsaved] == (["2"] if how == "add" else [])
        with pytest.raises(DurabilityError):
            await history.flush()
        pair.resume()
        await until_flushed(history)
        assert (history.unsaved, history.entries) == ([], await store.get("c"))
        assert [one.text for one in history.entries][-1] == "2"
        await history.aclose()


async def until_flushed(history: Any) -> None:
    while True:
        with contextlib.suppress(DurabilityError):
            return await history.flush()


@pytest.mark.full
@FACES
async def test_a_late_confirmation_is_not_read_as_the_next_reply(pair: Pair, face: str) -> None:
    proxy = LossyProxy(pair.primary.port, faults={"reply_delayed": 0.3}, delay=0.3)
    url = f"redis://127.0.0.1:{proxy.port}/0?socket_timeout=0.1"
    patient = RetryPolicy(deadline=60.0, longest_wait=0.02)
    try:
        async with open_store(face, url, durability="replicas", durability_timeout=0.05, retry=patient) as store:
            for number in range(1, 21):
                with contextlib.suppress(DurabilityError):
                    assert (await store.append("c", user(str(number), id=str(number)))).revision == number
    finally:
        await asyncio.to_thread(proxy.close)


@pytest.mark.proves("replicas")
@FACES
async def test_a_promoted_replica_has_all_confirmed_writes(pair: Pair, face: str) -> None:
    async with open_store(face, pair.primary.url, durability="replicas") as store:
        done = await asyncio.gather(*(store.append("c", user(str(n), id=str(n))) for n in range(200)))
    pair.primary.kill()
    with pair.replica.client() as client:
        client.replicaof("NO", "ONE")
    async with open_store(face, pair.replica.url, durability="replicas") as store:
        stored = await store.get("c")
        assert sorted(stored, key=lambda m: int(m.id)) == [one.message for one in done]
        with pytest.raises(CapabilityError, match="needs a connected replica"):
            await store.append("c", user("x"))


@FACES
async def test_a_lost_replica_is_noticed_after_the_next_new_connection(pair: Pair, face: str) -> None:
    options: dict[str, Any] = {"durability": "replicas", "durability_timeout": 1.0}
    retry = RetryPolicy(deadline=10.0, first_wait=0.001, longest_wait=0.01)
    async with open_store(face, pair.primary.url, retry=retry, **options) as store:
        await store.append("c", user("1"))
        pair.replica.kill()
        with pytest.raises(DurabilityError):
            await store.append("c", user("2"))
        with pair.primary.client() as client:
            wait_until(lambda: client.info("replication")["connected_slaves"] == 0, "the primary to notice")
            client.client_kill_filter(_type="normal", skipme=True)
        with contextlib.suppress(DurabilityError, CapabilityError):  # the first call makes the connection
            await store.append("c", user("3", id="3"))
        with pytest.raises(CapabilityError, match="needs a connected replica"):
            await store.append("c", user("4"))
        pair.replica = pair.follow()
        assert (await store.append("c", user("3", id="3"))).revision == 3


@pytest.mark.proves("replicas")
@FACES
@pytest.mark.full
async def test_confirmation_in_a_cluster_with_moving_slots(own_cluster: RealCluster, face: str) -> None:
    for node in own_cluster.nodes:
        with node.client() as client:
            client.config_set("appendfsync", "always")
    async with open_store(face, own_cluster.url, durability="fsync", namespace="n") as store:
        assert (await store.capabilities).mode == "cluster"
        await store.append("c", user("1", id="1"))
        slot = int(key_slot(Keyspace("n").conversation("c").state))
        source = own_cluster.owner(slot)
        target = own_cluster.another(slot)
        own_cluster.begin_migration(slot, target)
        own_cluster.move_keys(slot, source, target)
        assert (await store.append("c", user("2", id="2"))).revision == 2, "redirected by ASK"
        own_cluster.end_migration(slot, target)
        assert (await store.append("c", user("3", id="3"))).revision == 3, "redirected by MOVED"
        with target.client() as client:
            client.config_set("appendfsync", "no")
        async with open_store(face, own_cluster.url, durability="fsync", namespace="n") as late:
            assert (await late.capabilities).appendfsync == "no", "the worst of its nodes"
            with pytest.raises(CapabilityError):
                await late.append("c", user("4"))


@FACES
async def test_a_server_whose_operator_says_that_it_is_durable_confirms_nothing(own_server: Start, face: str) -> None:
    options = ("--appendonly", "no", "--rename-command", "CONFIG", "", "--rename-command", "WAITAOF", "")
    server = own_server("plain", options=options)
    async with open_store(face, server.url, durability="fsync", durable_server=True) as store:
        assert (await store.append("c", user("x", id="a"))).revision == 1
        found = await store.capabilities
        assert "fsync" in found.durability
        assert not found.dangers
    async with open_store(face, server.url, durability="fsync") as store:
        with pytest.raises(CapabilityError, match="durable_server"):
            await store.append("c", user("y"))
        assert not (await store.capabilities).durability[1:]
