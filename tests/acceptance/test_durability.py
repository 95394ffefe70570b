"""What `durability` waits for: nothing is confirmed that is not so, whatever way a call takes."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.crc import key_slot
from redis.exceptions import ConnectionError

from redis_history import AsyncHistoryStore, HistoryStore, RetryPolicy, user
from redis_history.backends.redis.keys import Keyspace
from redis_history.errors import BackendRefusedError, CapabilityError, ConfigurationError, DurabilityError
from tests.acceptance.test_wrong_servers import answering
from tests.support.cluster import RealCluster
from tests.support.faults import flaky
from tests.support.proxy import LossyProxy
from tests.support.servers import RealServer, lasting, wait_until

ALWAYS = ("--appendfsync", "always")
FACES = pytest.mark.parametrize("face", ["sync", "async"])
KINDS = pytest.mark.parametrize("kind", ["plain", "valkey"])


class Face:
    """Either kind of store, called alike."""

    def __init__(self, face: str, url: str, **options: Any) -> None:
        self.store: Any = (HistoryStore if face == "sync" else AsyncHistoryStore)(url, **options)
        self._sync = face == "sync"

    async def __call__(self, name: str, *args: Any, **options: Any) -> Any:
        method = getattr(self.store, name)
        return await (asyncio.to_thread(method, *args, **options) if self._sync else method(*args, **options))

    async def capabilities(self) -> Any:
        return await (asyncio.to_thread(getattr, self.store, "capabilities") if self._sync else self.store.capabilities)

    def lose_one_reply(self) -> None:
        """The next call's: the server has done its work, and the connection breaks."""
        pool = self.store._backend._connections
        acquire = pool.acquire

        def spoil(connection: Any) -> Any:
            read = connection.read_response

            async def lost_async(*args: Any, **options: Any) -> Any:
                del connection.read_response
                await read(*args, **options)
                raise ConnectionError("the reply was lost")

            def lost(*args: Any, **options: Any) -> Any:
                del connection.read_response
                read(*args, **options)
                raise ConnectionError("the reply was lost")

            connection.read_response = lost if self._sync else lost_async
            pool.acquire = acquire
            return connection

        async def acquire_async() -> Any:
            return spoil(await acquire())

        pool.acquire = (lambda: spoil(acquire())) if self._sync else acquire_async


@asynccontextmanager
async def opened(face: str, url: str, **options: Any) -> Any:
    one = Face(face, url, **options)
    try:
        yield one
    finally:
        await one("close" if face == "sync" else "aclose")


#: Every kind of write, and what must be there before it.
WRITES: dict[str, tuple[Any, ...]] = {
    "append": ("append", "c", user("new", id="new")),
    "append, one of two there": ("append_many", "c", [user("a", id="a"), user("new", id="new")]),
    "update": ("update_message", "c", user("other", id="a")),
    "restore": ("restore", "c", [user("new", id="new")]),
    "clear": ("clear", "c"),
    "delete": ("delete_messages", "c", ["a"]),
    "record": ("update_conversation", "c"),
    "delete conversation": ("delete_conversation", "c"),
}


@FACES
@pytest.mark.parametrize("write", WRITES)
async def test_a_call_repeated_after_a_lost_reply_confirms_the_first(
    own_server: Callable[..., RealServer], face: str, write: str
) -> None:
    """On its new connection there is nothing to wait for, unless the script writes again."""
    server = own_server("plain", options=ALWAYS)
    name, *args = WRITES[write]
    options = {"title": "t"} if write == "record" else {}
    async with opened(face, server.url, durability="fsync", durability_timeout=0.1) as store:
        for conversation_id in ("d", "c"):
            await store("append", conversation_id, user("a", id="a"))
        await store(name, "d", *args[1:], **options)  # the server knows the script: the reply that is lost is its own
        with server.client() as client:
            client.config_set("appendfsync", "no")
            # The retry looks at the server anew, and would refuse such a setting.
            store.store._backend._examine = lambda *_: _nothing() if face == "async" else None
            store.lose_one_reply()
            with pytest.raises(DurabilityError):
                await store(name, *args, **options)


async def _nothing() -> None:
    return None


@FACES
@pytest.mark.parametrize("write", [one for one in WRITES if one != "record"])
async def test_a_call_that_finds_its_work_done_by_another_confirms_it(
    own_server: Callable[..., RealServer], face: str, write: str
) -> None:
    server = own_server("plain", options=ALWAYS)
    name, *args = WRITES[write]
    async with (
        opened(face, server.url, durability="fsync", durability_timeout=0.1) as store,
        opened(face, server.url) as hasty,
    ):
        await store("append", "c", user("a", id="a"))
        with server.client() as client:
            client.config_set("appendfsync", "no")
            await hasty(name, *args)
            keys = lasting(client)
            with pytest.raises(DurabilityError):
                await store(name, *args)
            assert lasting(client) == keys


def test_replies_are_lost_and_each_message_is_stored_once(own_server: Callable[..., RealServer]) -> None:
    server = own_server("plain", options=ALWAYS)
    with HistoryStore(server.url, durability="fsync") as plain:
        store = flaky(plain, 7)
        appended = [store.append("c", user(str(number))) for number in range(200)]
        assert not any(one.duplicate for one in appended)
        with store.reliable():
            assert store.get("c") == [one.message for one in appended]


@FACES
@KINDS
async def test_a_server_that_confirms_before_it_has_fsynced_is_refused(
    own_server: Callable[..., RealServer], face: str, kind: str
) -> None:
    server = own_server(kind)
    async with opened(face, server.url, durability="fsync") as store:
        assert "fsync" not in (await store.capabilities()).durability
        with pytest.raises(CapabilityError, match="everysec"):
            await store("append", "c", user("x"))
        assert await store("get", "c") == []
        with server.client() as client:
            client.config_set("appendonly", "no")
            with pytest.raises(CapabilityError):
                await store("append", "c", user("x"))
            assert client.keys("*") == []


@FACES
async def test_an_append_only_file_that_is_turned_off_later(own_server: Callable[..., RealServer], face: str) -> None:
    server = own_server("plain", options=ALWAYS)
    async with opened(face, server.url, durability="fsync") as store:
        await store("append", "c", user("1"))
        with server.client() as client:
            client.config_set("appendonly", "no")
        with pytest.raises(DurabilityError, match="appendonly") as caught:
            await store("append", "c", user("2"))
        assert caught.value.revision == 2
        assert caught.value.__cause__ is not None
        assert len(await store("get", "c")) == 2
        assert (await store("append_many", "c", [])) == []


@FACES
async def test_a_server_without_the_command_is_refused_before_anything_is_written(face: str) -> None:
    info = b"# Server\r\nredis_version:7.0.15\r\n# Persistence\r\naof_enabled:1\r\n"
    seen: list[bytes] = []

    def answer(line: bytes) -> bytes:
        word = line.strip().upper()
        seen.append(word)
        if word == b"INFO":
            return b"$%d\r\n%b\r\n" % (len(info), info)
        known = {b"CLIENT": b"+OK\r\n", b"MODULE": b"*0\r\n", b"CONFIG": b"-NOPERM no\r\n"}
        return {**known, b"FT.CREATE": b"-ERR unknown command\r\n"}.get(word, b"")

    with answering(answer) as port:
        async with opened(face, f"redis://127.0.0.1:{port}?protocol=2", durability="fsync") as store:
            with pytest.raises(CapabilityError, match=r"7\.2.*7\.0\.15"):
                await store("append", "c", user("x"))
            assert (await store.capabilities()).durability == ("server",)
    assert not any(word.startswith(b"EVAL") for word in seen)


@FACES
async def test_what_a_server_may_not_tell_is_unknown(own_server: Callable[..., RealServer], face: str) -> None:
    server = own_server()
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "u", "on", ">p", "~*", "+@all", "-config", "-module")
        client.execute_command("ACL", "SETUSER", "v", "on", ">p", "~*", "+@all", "-config", "-module", "-info")
    async with opened(face, f"unix://u:p@{server.socket}") as store:
        found = await store.capabilities()
        assert (found.version, found.aof, found.eviction, found.replicas) == ("7.4.1", True, "noeviction", 0)
        unknown = (found.search_module, found.notifications, found.doorbell, found.appendfsync, found.snapshots)
        assert unknown == (None,) * 5
        assert "appendfsync: unknown\n" in str(found)
    async with opened(face, f"unix://v:p@{server.socket}", durability="fsync") as store:
        found = await store.capabilities()
        assert (found.version, found.mode, found.aof, found.durability) == (None, None, None, ("server",))
        with pytest.raises(BackendRefusedError):
            await store("append", "c", user("x"))


@FACES
async def test_dangers_are_told(own_server: Callable[..., RealServer], face: str) -> None:
    options = ("--maxmemory-policy", "allkeys-lru", "--appendonly", "no", "--notify-keyspace-events", "KEA")
    server = own_server(options=options)
    async with opened(face, server.url) as store:
        found = await store.capabilities()
        assert (found.eviction, found.aof, found.notifications) == ("allkeys-lru", False, True)
        assert [danger.split(":")[0] for danger in found.dangers] == [
            "the server evicts keys when its memory is full (allkeys-lru)",
            "there is no append-only file",
        ]
        assert "danger: the server evicts" in str(found)
        with server.client() as client:
            client.config_set("maxmemory-policy", "noeviction")
        assert await store.capabilities() is found, "as it was when first asked"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"durability": "disk"}, "durability"),
        ({"durability": None}, "durability"),
        ({"replicas": 1}, "replicas"),
        ({"durability": "fsync", "replicas": 1}, "replicas"),
        ({"durability": "replicas", "replicas": 0}, "replicas"),
        ({"durability_timeout": 0}, "durability_timeout"),
        ({"durability_timeout": float("inf")}, "durability_timeout"),
        ({"durability_timeout": "5"}, "durability_timeout"),
        ({"url": "memory://", "durability": "fsync"}, "durability"),
    ],
)
@pytest.mark.parametrize("kind", [HistoryStore, AsyncHistoryStore])
def test_wrong_options(kind: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        kind(**{"url": "redis://localhost", **options})


class Pair:
    """A primary and a replica that follows it."""

    def __init__(self, own_server: Callable[..., RealServer]) -> None:
        self._start = own_server
        self.primary = own_server("plain", tcp=True, options=("--repl-diskless-sync-delay", "0"))
        self.replica = self.follow()

    def follow(self) -> RealServer:
        replica = self._start("plain", tcp=True, options=("--replicaof", "127.0.0.1", str(self.primary.port)))
        with self.primary.client() as client:
            wait_until(lambda: client.wait(1, 100) == 1, "the replica to follow")
        return replica

    def pause(self) -> None:
        import os

        os.kill(self.replica.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        import os

        os.kill(self.replica.pid, signal.SIGCONT)


@pytest.fixture
def pair(own_server: Callable[..., RealServer]) -> Iterator[Pair]:
    pair = Pair(own_server)
    try:
        yield pair
    finally:
        if pair.replica._process is not None:
            pair.go_on()


@FACES
async def test_a_replica_that_stands_still_is_told_in_time(pair: Pair, face: str) -> None:
    loop = asyncio.get_running_loop()
    async with opened(face, pair.primary.url, durability="replicas", durability_timeout=2.0) as store:
        assert (await store.capabilities()).replicas == 1
        await store("append", "c", user("1", id="1"))
        pair.pause()
        began = loop.time()
        with pytest.raises(DurabilityError, match="0 of 1") as caught:
            await store("append", "c", user("2", id="2"))
        assert 1.9 < loop.time() - began < 10
        assert caught.value.revision == 2
        with pytest.raises(DurabilityError):
            await store("append", "c", user("2", id="2"))
        pair.go_on()
        wait_until(lambda: True, "nothing")
        async with opened(face, pair.primary.url, durability="replicas") as patient:
            assert (await patient("append", "c", user("2", id="2"))).duplicate
        assert (await store("append", "c", user("3", id="3"))).revision == 3


@FACES
async def test_longer_than_the_time_for_a_reply(pair: Pair, face: str) -> None:
    """The confirmation may take longer than any other reply, and is not taken for a lost connection."""
    url = f"{pair.primary.url}?socket_timeout=0.3"
    async with opened(face, url, durability="replicas", durability_timeout=2.0) as store:
        await store("append", "c", user("1"))
        pair.pause()
        with pytest.raises(DurabilityError, match="2 s"):
            await store("append", "c", user("2"))


@FACES
async def test_a_late_confirmation_is_not_taken_for_the_next_reply(pair: Pair, face: str) -> None:
    proxy = LossyProxy(pair.primary.port, faults={"reply_delayed": 0.3}, delay=0.3)
    url = f"redis://127.0.0.1:{proxy.port}/0?socket_timeout=0.1"
    patient = RetryPolicy(deadline=60.0, longest_wait=0.02)
    try:
        async with opened(face, url, durability="replicas", durability_timeout=0.05, retry=patient) as store:
            for number in range(1, 21):
                with contextlib.suppress(DurabilityError):
                    assert (await store("append", "c", user(str(number), id=str(number)))).revision == number
    finally:
        await asyncio.to_thread(proxy.close)


@FACES
async def test_a_promoted_replica_has_what_was_confirmed(pair: Pair, face: str) -> None:
    async with opened(face, pair.primary.url, durability="replicas") as store:
        done = await asyncio.gather(*(store("append", "c", user(str(n), id=str(n))) for n in range(200)))
    pair.primary.kill()
    with pair.replica.client() as client:
        client.replicaof("NO", "ONE")
    async with opened(face, pair.replica.url, durability="replicas") as store:
        stored = await store("get", "c")
        assert sorted(stored, key=lambda m: int(m.id)) == [one.message for one in done]
        with pytest.raises(CapabilityError, match=r"1.*0"):
            await store("append", "c", user("x"))


@FACES
async def test_a_replica_that_is_gone_is_seen_after_the_next_new_connection(pair: Pair, face: str) -> None:
    options: dict[str, Any] = {"durability": "replicas", "durability_timeout": 2.0}
    retry = RetryPolicy(deadline=10.0, first_wait=0.001, longest_wait=0.01)
    async with opened(face, pair.primary.url, retry=retry, **options) as store:
        await store("append", "c", user("1"))
        pair.replica.kill()
        with pytest.raises(DurabilityError):
            await store("append", "c", user("2"))
        with pair.primary.client() as client:
            wait_until(lambda: client.info("replication")["connected_slaves"] == 0, "the primary to notice")
            client.client_kill_filter(_type="normal", skipme=True)
        with pytest.raises(CapabilityError, match="0"):
            await store("append", "c", user("3"))
        assert len(await store("get", "c")) == 2
        pair.replica = pair.follow()
        assert (await store("append", "c", user("3"))).revision == 3


@FACES
async def test_in_a_cluster_also_while_slots_move(face: str) -> None:
    cluster = RealCluster()
    try:
        cluster.start()
        for node in cluster.nodes:
            with node.client() as client:
                client.config_set("appendfsync", "always")
        async with opened(face, cluster.url, durability="fsync", namespace="n") as store:
            assert (await store.capabilities()).mode == "cluster"
            await store("append", "c", user("1", id="1"))
            slot = int(key_slot(Keyspace("n").conversation("c").state))
            source = cluster.owner(slot)
            target = next(node for node in cluster.nodes if node is not source)
            cluster.begin_migration(slot, target)
            while cluster.move_keys(slot, source, target):
                pass
            assert (await store("append", "c", user("2", id="2"))).revision == 2, "sent on by ASK"
            cluster.end_migration(slot, target)
            assert (await store("append", "c", user("3", id="3"))).revision == 3, "sent on by MOVED"
            with target.client() as client:
                client.config_set("appendfsync", "no")
            async with opened(face, cluster.url, durability="fsync", namespace="n") as late:
                assert (await late.capabilities()).appendfsync == "no", "the worst of its nodes"
                with pytest.raises(CapabilityError):
                    await late("append", "c", user("4"))
    finally:
        cluster.close()
