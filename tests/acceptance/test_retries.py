"""Each temporary or lasting error of a server, by name, from a real server, with both kinds of stores."""

import asyncio
import inspect
import logging
import os
import signal
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import redis

from redis_history import (
    Conversation,
    ConversationDeleted,
    HistoryCleared,
    MessagesAppended,
    MessagesDeleted,
    RetryPolicy,
    user,
)
from redis_history.errors import BackendRefusedError, BackendUnavailableError
from redis_history.store.lanes import EXCHANGES
from redis_history.store.operations.keys import Keyspace
from redis_history.types import RetryDetails
from tests.support.faces import FACES, open_store
from tests.support.servers import RealServer, Start, free_port, lasting, until

pytestmark = FACES


class Retries:
    """The retries of a store. `mend` is called once, at the first retry whose cause contains `when`."""

    def __init__(self, when: str = "", mend: Callable[[], object] = lambda: None, deadline: float = 30.0) -> None:
        self.seen: list[RetryDetails] = []
        self._when = when
        self._mend: Callable[[], object] | None = mend
        self.policy = RetryPolicy(deadline=deadline, first_wait=0.01, longest_wait=0.05, on_retry=self._note)

    @property
    def causes(self) -> str:
        return "\n".join(str(details.caused_by) for details in self.seen)

    def _note(self, details: RetryDetails) -> None:
        self.seen.append(details)
        if self._mend is not None and self._when and self._when in str(details.caused_by):
            mend, self._mend = self._mend, None
            mend()


def picture(server: RealServer) -> dict[bytes, bytes]:
    """The stored bytes of each key."""
    with server.client() as client:
        return {key: client.dump(key) for key in client.keys("*")}


#: Every operation that writes, each on a conversation "c" that has a message "kept".
WRITES: dict[str, Callable[[Any], Any]] = {
    "append": lambda store: store.append("c", user("x")),
    "append to a new one": lambda store: store.append("new", user("x")),
    "append_many": lambda store: store.append_many("c", [user("x") for _ in range(50)]),
    "update_message": lambda store: store.update_message("c", user("y", id="kept")),
    "restore": lambda store: store.restore("c", [user("z")]),
    "create_conversation": lambda store: store.create_conversation(Conversation("new", title="t")),
    "update_conversation": lambda store: store.update_conversation("c", title="t"),
    "merge_metadata": lambda store: store.merge_metadata("c", {"k": 1}),
}
#: Operations that only remove.
REMOVALS: dict[str, Callable[[Any], Any]] = {
    "delete_messages": lambda store: store.delete_messages("c", ["kept"]),
    "clear": lambda store: store.clear("c"),
    "delete_conversation": lambda store: store.delete_conversation("c"),
}


@pytest.mark.proves("retries")
async def test_readonly(own_server: Start, face: str) -> None:
    """A replica is promoted during the retries of a call: the call is executed once."""
    primary = own_server(tcp=True)
    replica = own_server(tcp=True, options=("--replicaof", "127.0.0.1", str(primary.port)))

    def promote() -> None:
        with replica.client() as client:
            client.replicaof("NO", "ONE")

    retries = Retries("read only replica", promote)
    async with open_store(face, replica.url, retry=retries.policy) as store:
        appended = await store.append("c", user("x"))
        assert not appended.duplicate
        assert await store.get("c") == [appended.message]
        assert retries.seen
        assert all(isinstance(details.caused_by, redis.ReadOnlyError) for details in retries.seen)


@pytest.mark.proves("retries")
async def test_loading(own_server: Start, face: str) -> None:
    """A server that loads its data until a client has received LOADING."""
    server = own_server(options=("--appendfsync", "always", "--loading-process-events-interval-bytes", "1024"))

    def hurry() -> None:
        with server.client() as client:
            client.config_set("key-load-delay", 0)

    retries = Retries("loading the dataset", hurry)
    async with open_store(face, server.url, retry=retries.policy) as store:
        await store.append("c", user("before"))
        with server.client() as client, client.pipeline() as pipe:
            for number in range(2000):
                pipe.set(f"other {number}", os.urandom(100))
            pipe.execute()
            client.bgrewriteaof()  # loads one file, with a delay for each key
            await until(lambda: client.info("persistence")["aof_base_size"] > 100_000)
        server.kill()
        server.options += ("--key-load-delay", "10000")
        starting = asyncio.create_task(asyncio.to_thread(server.start))
        appended = await store.append("c", user("during"))
        await starting
        assert "loading the dataset" in retries.causes
        assert not appended.duplicate
        assert [message.text for message in await store.get("c")] == ["before", "during"]


async def test_a_pipeline_takes_longer_than_a_reply_may(own_server: Start, face: str) -> None:
    """`socket_timeout` limits the wait for each reply: how many calls share a pipeline is not the user's choice."""
    async with open_store(face, f"{own_server().url}?socket_timeout=0.6", search="off") as store:
        await store.get("c")
        replies = store._backend._server.node.pipeline([[b"BLPOP", b"nothing", b"0.25"]] * 5)
        assert [await replies if inspect.isawaitable(replies) else replies] == [[None] * 5]


@pytest.mark.proves("retries")
@pytest.mark.parametrize("ends", [True, False], ids=["ends", "does not end"])
async def test_busy(own_server: Start, face: str, ends: bool) -> None:
    """The server answers BUSY while a script of another client runs, until that is killed."""
    server = own_server(options=("--lua-time-limit", "20"))

    def kill() -> None:
        with server.client() as client:
            client.script_kill()

    def run_for_ever() -> None:
        with server.client() as client, pytest.raises(redis.ResponseError, match="killed"):
            client.eval("while true do end", 0)

    retries = Retries("BUSY", kill) if ends else Retries(deadline=1.0)
    async with open_store(face, server.url, retry=retries.policy) as store:
        await store.append("c", user("before"))
        other = threading.Thread(target=run_for_ever)
        other.start()
        with server.client() as client:
            await until(lambda: _is_busy(client))
        if ends:
            assert not (await store.append("c", user("during"))).duplicate
        else:
            with pytest.raises(BackendUnavailableError, match="BUSY"):
                await store.append("c", user("during"))
            kill()
        await asyncio.to_thread(other.join)
        assert "BUSY" in retries.causes
        assert [message.text for message in await store.get("c")] == ["before", "during"][: 1 + ends]


async def test_noscript(own_server: Start, face: str) -> None:
    """A server that loses its scripts receives them again within the call, without a retry."""
    server = own_server()
    retries = Retries()
    calls = {**WRITES, **REMOVALS}
    async with open_store(face, server.url, retry=retries.policy) as store:
        for name, call in calls.items():
            await store.restore("c", [user("kept", id="kept")])
            await store.delete_conversation("new")
            with server.client() as client:
                client.script_flush()
                await call(store)
                assert sum(client.info("commandstats")["cmdstat_eval"].values()) > 0, name
                client.config_resetstat()
        await store.append("c", user("x", id="x"))
        for read in (store.get, store.get_conversation, store.snapshot):
            before = await read("c")
            with server.client() as client:
                client.script_flush()
            assert await read("c") == before
        async with store.subscribe("c") as subscription:
            for number in range(3):
                with server.client() as client:
                    client.script_flush()
                appended = await store.append("c", user(str(number)))
                event = await subscription.get(timeout=10)
                assert isinstance(event, MessagesAppended)
                assert event.messages == (appended.message,)
    assert retries.seen == []


class Refusals:
    """Make a server refuse writes, or accept them again."""

    @staticmethod
    async def oom(server: RealServer, refuse: bool) -> None:
        with server.client() as client:
            client.config_set("maxmemory", "1mb" if refuse else "0")

    @staticmethod
    async def noreplicas(server: RealServer, refuse: bool) -> None:
        with server.client() as client:
            client.config_set("min-replicas-to-write", int(refuse))

    @staticmethod
    async def misconf(server: RealServer, refuse: bool) -> None:
        """The server cannot save to its disk."""
        in_the_way = server.folder / "dump.rdb"
        (in_the_way.mkdir if refuse else in_the_way.rmdir)()
        with server.client() as client:
            client.bgsave()
            await until(lambda: not client.info("persistence")["rdb_bgsave_in_progress"])
            assert client.info("persistence")["rdb_last_bgsave_status"] == ("err" if refuse else "ok")


@pytest.mark.proves("full-server")
@pytest.mark.parametrize(
    ("kind", "says", "calls"),
    [
        ("oom", "maxmemory", WRITES),
        ("noreplicas", "replicas", WRITES | REMOVALS),
        ("misconf", "disk", WRITES | REMOVALS),
    ],
)
async def test_a_server_that_refuses_writes(
    own_server: Start, face: str, kind: str, says: str, calls: dict[str, Callable[[Any], Any]]
) -> None:
    """Each call is refused immediately, without a retry, and changes nothing. Reads work; later writes do too."""
    server = own_server(options=("--save", "3600 1"))
    retries = Retries()
    async with open_store(face, server.url, retry=retries.policy) as store:
        await store.append("c", user("kept", id="kept"))
        await getattr(Refusals, kind)(server, True)
        before = picture(server)
        for name, call in calls.items():
            with pytest.raises(BackendRefusedError, match=says):
                await call(store)
            assert picture(server) == before, name
        assert [message.text for message in await store.get("c")] == ["kept"]
        await getattr(Refusals, kind)(server, False)
        for call in [*WRITES.values(), *list(REMOVALS.values())[1:]]:
            await call(store)
            await store.delete_conversation("new")
    assert retries.seen == []


@pytest.mark.proves("full-server")
@pytest.mark.parametrize("watched", [False, True], ids=["alone", "watched"])
async def test_deleting_works_on_a_full_server(own_server: Start, face: str, watched: bool) -> None:
    server = own_server()
    async with open_store(face, server.url) as store, store.subscribe("c") as subscription:
        if not watched:
            await subscription.aclose()
        await store.append_many("c", [user("x", id=str(number)) for number in range(10)])
        channel = b"__keyspace@0__:" + Keyspace("default").conversation("c").log
        with server.client() as client:
            await until(lambda: (client.pubsub_numsub(channel)[0][1] > 0) is watched)
            client.config_set("maxmemory", "1mb")
        assert await store.delete_messages("c", ["0", "1"]) == 2
        assert await store.clear("c") == 3
        assert await store.delete_conversation("c")
        assert await store.list_conversations() == []
        with server.client() as client:
            assert watched or lasting(client) == set()
        if watched:
            events = [await subscription.get(timeout=10) for _ in range(4)]
            assert [type(event) for event in events] == [
                MessagesAppended,
                MessagesDeleted,
                HistoryCleared,
                ConversationDeleted,
            ]


async def test_connections_that_the_server_closes_while_idle_cost_no_retry(own_server: Start, face: str) -> None:
    server, retries = own_server(), Retries()
    most = sum(EXCHANGES.values())

    async def call_at_once(store: Any) -> int:
        """As many calls as tasks or threads; returns how many connections are kept."""
        await asyncio.gather(*(store.append(str(number), user("x")) for number in range(8)))
        with server.client() as client:
            return sum(one["lib-name"].startswith("redis-py(redis_history") for one in client.client_list())

    async with open_store(face, server.url, retry=retries.policy) as store:
        assert await call_at_once(store) <= most
        for _ in range(3):
            # In a thread, so that the loop sees the ends of the connections before the next calls.
            await asyncio.to_thread(server.watcher.client_kill_filter, _type="normal", skipme=True)
            await asyncio.to_thread(server.watcher.ping)
            assert await call_at_once(store) <= most
        assert [len(await store.get(str(number))) for number in range(8)] == [4] * 8
    assert retries.seen == []


async def test_on_retry_gets_the_time_out_of_redis_py(own_server: Start, face: str) -> None:
    server = own_server()
    retries = Retries("Timeout reading", lambda: os.kill(server.pid, signal.SIGCONT))
    async with open_store(face, f"{server.url}?socket_timeout=1", retry=retries.policy) as store:
        await store.append("c", user("x"))
        os.kill(server.pid, signal.SIGSTOP)
        appended = await store.append("c", user("y"))
        assert isinstance(retries.seen[0].caused_by, redis.TimeoutError)
        assert [message.id for message in await store.get("c")][1:] == [appended.message.id]


@pytest.mark.proves("retries")
async def test_on_retry_is_called_before_each_retry(own_server: Start, face: str) -> None:
    server = own_server()
    server.kill()
    retries = Retries(deadline=1.0)
    async with open_store(face, server.url, retry=retries.policy) as store:
        with pytest.raises(BackendUnavailableError):
            await store.append("c", user("x"))
    seen = retries.seen
    assert len(seen) > 2
    assert [details.retry_num for details in seen] == list(range(1, len(seen) + 1))
    assert {details.server for details in seen} == {f"unix://{server.socket}"}
    assert all(isinstance(details.caused_by, redis.ConnectionError) for details in seen)
    assert (seen[0].wait_for, seen[0].waited_so_far) == (0.0, 0.0), "the first repetition comes at once"
    assert all(0 < details.wait_for <= 0.05 for details in seen[2:])
    assert len({details.wait_for for details in seen}) > 2, "the waits are random"
    for earlier, later in pairwise(seen):
        assert later.waited_so_far == pytest.approx(earlier.waited_so_far + earlier.wait_for)


async def test_errors_of_on_retry_do_not_fail_a_write(
    own_server: Start, face: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = own_server(options=("--replicaof", "127.0.0.1", str(free_port())))

    def fail(details: RetryDetails) -> None:
        if details.retry_num == 3:
            with server.client() as client:
                client.replicaof("NO", "ONE")
        raise ValueError("the hook is broken")

    retry = RetryPolicy(deadline=30, longest_wait=0.05, on_retry=fail)
    async with open_store(face, server.url, retry=retry) as store:
        with caplog.at_level(logging.ERROR, "redis_history"):
            await store.append("c", user("x"))
        assert [message.text for message in await store.get("c")] == ["x"]
    assert len(caplog.records) == 3
    assert "the hook is broken" in caplog.text

    class Exit(BaseException):
        pass

    def stop(details: RetryDetails) -> None:
        raise Exit

    server.kill()
    async with open_store(face, server.url, retry=RetryPolicy(on_retry=stop)) as store:
        with pytest.raises(Exit):
            await store.append("c", user("x"))


def _is_busy(client: Any) -> bool:
    try:
        client.ping()
    except redis.ResponseError as error:
        return "BUSY" in str(error)
    return False
