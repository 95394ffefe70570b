"""A cluster changes under a store: slots move, shards join, replicas take over."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from redis_history import AsyncHistoryStore, HistoryStore, MessagesAppended, ReplyEnded, RetryPolicy, errors, user
from redis_history.cli.doctor.rights import acl_line
from redis_history.store.operations import GrowReply
from redis_history.store.operations.append import Append
from redis_history.store.operations.keys import Keyspace
from redis_history.values import TextPart
from redis_history.values.replies import LEASE_SECONDS, record_of
from tests.conftest import Servers
from tests.support.cluster import RealCluster
from tests.support.faces import FACES, open_store
from tests.support.servers import RealServer, until, wait_until, wait_until_replicated

#: Changes of a conversation of which a moving slot must make no half.
ACTS = (
    "clear", "restore", "delete_conversation", "expand", "expand a longer archive", "compact", "update", "delete",
)  # fmt: skip
SUMMARY = user("s", id="s", metadata={"is_summary": True})
PATIENT = RetryPolicy(deadline=30.0, first_wait=0.005, longest_wait=0.05)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RealCluster]:
    """A cluster that the tests of this file may rearrange."""
    cluster = RealCluster()
    try:
        yield cluster.start()
    finally:
        cluster.close()


def _slot(namespace: str, conversation_id: str) -> int:
    return int(key_slot(Keyspace(namespace).conversation(conversation_id).state))


def _store(face: str, cluster: RealCluster, namespace: str, **options: Any) -> Any:
    return open_store(face, cluster.url, **{"namespace": namespace, "retry": PATIENT, **options})


@pytest.mark.proves("cluster", "runs")
@FACES
async def test_a_slot_moves_during_a_run(cluster: RealCluster, namespace: str, face: str) -> None:
    """Its holder writes and is stopped on the new node, and the next in the queue begins there."""
    slot = _slot(namespace, "c")
    async with _store(face, cluster, namespace) as store, _store(face, cluster, namespace) as other:

        async def wait() -> str:
            async with other.run("c", wait=30) as following:
                return str(following.run_id)

        async with store.run("c") as run:
            await run.append(user("one"))
            waiting = asyncio.create_task(wait())
            await until(lambda: _waiters(store, 1), "it to wait")
            for to in (cluster.another(slot), cluster.owner(slot)):
                await asyncio.to_thread(cluster.move, slot, to)
                await run.append(user("moved"))
                assert (await other.get_run("c")).run_id == run.run_id
            assert await other.stop_run("c")
            assert await run.wait_stop(10)
        assert await waiting == (await store.get_run("c")).run_id
        assert [message.text for message in await store.get("c")] == ["one", "moved", "moved"]
        await store.delete_conversation("c")


@pytest.mark.proves("runs")
@pytest.mark.full
async def test_a_node_that_hangs_ends_no_run_on_another_node(namespace: str) -> None:
    cluster = RealCluster(kind="plain", options=("--cluster-require-full-coverage", "no"))
    try:
        cluster.start()
        names = {cluster.owner(_slot(namespace, name)).port: name for name in map(str, range(50))}
        hanging, other = (names[node.port] for node in cluster.nodes[:2])
        async with (
            AsyncHistoryStore(cluster.url, namespace=namespace) as store,
            AsyncHistoryStore(cluster.url, namespace=namespace) as waiting,
            store.run(other) as run,
        ):
            with contextlib.suppress(errors.RunLostError, errors.BackendUnavailableError):
                async with store.run(hanging):
                    waiter = asyncio.create_task(waiting.run(other, wait=12).__aenter__())
                    await until(lambda: _waiters(store, 1, other), "it to wait")
                    os.kill(cluster.nodes[0].pid, signal.SIGSTOP)
                    with pytest.raises(errors.RunBusyError):
                        await waiter
                    await run.append(user("It goes on."))
                    os.kill(cluster.nodes[0].pid, signal.SIGCONT)
            assert [message.text for message in await waiting.get(other)] == ["It goes on."]
    finally:
        os.kill(cluster.nodes[0].pid, signal.SIGCONT)
        cluster.close()


async def _waiters(store: Any, count: int, name: str = "c") -> bool:
    return len((await store.get_run(name)).waiting) == count


@pytest.mark.proves("cluster")
async def test_a_new_conversation_waits_for_a_moving_slot(cluster: RealCluster, namespace: str) -> None:
    """Its bucket's list is on one side, its own keys on neither: the nodes say TRYAGAIN until the slot has moved."""
    slot = _slot(namespace, "c")
    target = cluster.another(slot)
    same_slot = next(name for number in range(10_000) if _slot(namespace, name := f"n{number}") == slot)
    async with AsyncHistoryStore(cluster.url, namespace=namespace, retry=PATIENT) as store:
        await store.append("c", user("x"))
        source = cluster.begin_migration(slot, target)
        waiting = asyncio.create_task(store.append(same_slot, user("y")))
        listing = await store.list_conversations()
        assert [conversation.conversation_id for conversation in listing] == ["c"]
        assert not waiting.done()
        await asyncio.to_thread(cluster.move_keys, slot, source, target)
        assert [message.text for message in await store.get("c")] == ["x"]  # ASK
        assert [one.conversation_id for one in await store.list_conversations()] == ["c"]
        await asyncio.to_thread(cluster.end_migration, slot, target)
        assert (await waiting).revision == 1
        assert {one.conversation_id for one in await store.list_conversations()} == {"c", same_slot}
        for name in ("c", same_slot):
            await store.delete_conversation(name)


@pytest.mark.proves("cluster")
@pytest.mark.full
@pytest.mark.parametrize("first", ["content", "others"])
async def test_no_text_of_a_reply_is_lost_while_its_slot_moves(
    cluster: RealCluster, namespace: str, first: str
) -> None:
    """The slot is stuck with the content of the reply on one node and all else on the other, until its writer is dead.
    Readers do not take it for empty: they wait until the slot has moved."""
    slot = _slot(namespace, "c")
    target = cluster.another(slot)
    async with (
        AsyncHistoryStore(cluster.url, namespace=namespace, retry=PATIENT) as store,
        AsyncHistoryStore(cluster.url, namespace=namespace, retry=PATIENT, poll_interval=0.5) as reader,
        reader.subscribe("c") as subscription,
    ):
        begun = Append.of_reply("c", "assistant", {"id": "r"})
        await store.backend.execute(begun)
        await store.backend.execute(GrowReply("c", begun.token, 0, record_of(TextPart("half of it")), False))
        assert isinstance(await subscription.get(timeout=10), MessagesAppended)
        assert (await subscription.get(timeout=10)).delta == "half of it"
        source = cluster.begin_migration(slot, target)
        with source.client() as client:
            keys = client.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100)
            [content] = [key for key in keys if begun.token.encode() in key]
            some = [content] if first == "content" else [key for key in keys if key != content]
            client.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *some)
        reading = [asyncio.create_task(store.get("c")), asyncio.create_task(store.get_message("c", "r"))]
        died = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() < died + LEASE_SECONDS + 1:
            event = await subscription.get(timeout=0.5)
            assert event is None, event
        await asyncio.to_thread(cluster.move_keys, slot, source, target)
        await asyncio.to_thread(cluster.end_migration, slot, target)
        for found in await asyncio.gather(*reading):
            assert (found[0] if isinstance(found, list) else found).text == "half of it"
        ended = await subscription.get(timeout=30)
        assert isinstance(ended, ReplyEnded), ended
        assert (ended.offset, ended.delta, ended.message.text) == (10, "", "half of it")
        await store.delete_conversation("c")


@pytest.mark.proves("cluster")
def test_a_slot_that_is_stuck_stops_no_change_of_a_conversation(cluster: RealCluster, namespace: str) -> None:
    """All keys have moved, but the slot has not: what is not there was never there, and is not needed."""
    slot = _slot(namespace, "c")
    target = cluster.another(slot)
    impatient = RetryPolicy(deadline=5.0, longest_wait=0.05)
    with HistoryStore(cluster.url, namespace=namespace, retry=impatient, search="off") as store:
        store.append_many("c", [user(str(number), id=f"m{number}") for number in range(5)])
        store.update_conversation("c", user_id="u")
        store.append("c", user("5", id="m5"))
        source = cluster.begin_migration(slot, target)
        try:
            cluster.move_keys(slot, source, target)
            store.update_message("c", user("edited", id="m0"))
            store.append_many("c", [user("6", id="m6"), user("5", id="m5")])
            assert store.delete_messages("c", ["m6"]) == 1
            store.erase("c", ["m5"])
            with store.stream("c", id="live") as reply:
                reply.write("text")
            store.restore("c", store.get("c"))
            store.update_conversation("c", title="t")
            assert store.get("c")[0].text == "edited"
            cluster.move_keys(slot, source, target)  # raises BUSYKEY if a call has made a key that was to come
        finally:
            cluster.end_migration(slot, target)
        assert [one.id for one in store.get("c")] == ["m0", "m1", "m2", "m3", "m4", "live"]
        store.delete_conversation("c")


@pytest.mark.proves("cluster", "one-change")
@pytest.mark.parametrize(
    ("act", "where"),
    [
        *[(act, "leaving") for act in ACTS],
        *[pytest.param(act, "arriving", marks=() if "longer" in act else pytest.mark.full) for act in ACTS],
    ],
)
@pytest.mark.full
def test_a_slot_that_begins_to_leave_or_has_nearly_arrived_makes_no_half_change(
    cluster: RealCluster, namespace: str, act: str, where: str
) -> None:
    """No key has moved, or all keys. The former node cannot make keys again that a script has removed, and the new one
    refuses commands on two keys of which one is missing; so calls that need that wait."""
    slot = _slot(namespace, "c")
    target = cluster.another(slot)
    impatient = RetryPolicy(deadline=0.3, longest_wait=0.05)
    with (
        HistoryStore(cluster.url, namespace=namespace, retry=impatient, search="off", ttl=600) as store,
        HistoryStore(cluster.url, namespace=namespace, retry=PATIENT, search="off") as reader,
    ):
        count = 1 if act in ("update", "delete") else 5
        store.append_many("c", [user(str(number), id=f"m{number}") for number in range(count)])
        if act.startswith("expand"):
            store.compact("c", through="m1" if act == "expand" else "m3", summary=SUMMARY)
        acts: dict[str, Any] = {
            "clear": lambda: store.clear("c"),
            "restore": lambda: store.restore("c", [user("new", id="new")]),
            "delete_conversation": lambda: store.delete_conversation("c"),
            "expand": lambda: store.expand("c", "s"),
            "expand a longer archive": lambda: store.expand("c", "s"),
            "compact": lambda: store.compact("c", through="m3", summary="s"),
            "update": lambda: store.update_message("c", user("edited", id="m0")),
            "delete": lambda: store.delete_messages("c", ["m0"]),
        }
        before = reader.snapshot("c"), reader.get("c", include_archived=True), list(reader.log("c"))
        source = cluster.begin_migration(slot, target)
        try:
            if where == "arriving":
                cluster.move_keys(slot, source, target)
            done, outcome = True, None
            try:
                outcome = acts[act]()
            except (errors.BackendUnavailableError, errors.OutcomeUnknownError):
                done = False
            assert done == (act in ("update", "delete") or (where == "arriving" and act != "compact"))
            if not done or act not in (
                "clear",
                "delete",
                "delete_conversation",
            ):  # after these, reads lack a key and wait
                now = reader.snapshot("c"), reader.get("c", include_archived=True), list(reader.log("c"))
                assert done or now == before
                assert now[0].message_count == len(now[0].messages)
        finally:
            if where == "leaving":
                cluster.move_keys(slot, source, target)
            cluster.end_migration(slot, target)
        if not done:
            outcome = acts[act]()
        assert act != "delete" or outcome == 1
        log, revision = list(reader.log("c")), reader.snapshot("c").cursor.revision
        assert [event.revision for event in log] == [*range(1, revision + 1)]
        reader.delete_conversation("c")


@pytest.mark.full
def test_changes_of_a_new_shard_arrive(cluster: RealCluster, namespace: str) -> None:
    new = cluster.add()
    cluster.wait_until_joined()
    with HistoryStore(cluster.url.rsplit(",", 1)[0], namespace=namespace, poll_interval=600, retry=PATIENT) as store:
        store.append("c", user("before"))
        seen: list[int] = []
        store.on_change("c", lambda event: seen.append(event.revision))
        slot = _slot(namespace, "c")
        cluster.move(slot, new)
        store.append("c", user("after"))  # MOVED: the store learns of the new node
        wait_until(lambda: seen[-1:] == [2] and _listeners(new) == 1, "the change, and a listener on the new node")
        store.append("c", user("again"))
        wait_until(lambda: seen == [2, 3], "the change")
        store.delete_conversation("c")


async def _use(store: Any) -> None:
    """One call of each kind that needs its own permissions or connections."""
    async with store.subscribe("c") as subscription:
        await store.append("c", user("x"))
        assert await subscription.get(timeout=10) is not None
        assert len(await store.list_conversations()) == 1


@FACES
async def test_the_users_own_client(server_of: Servers, namespace: str, face: str) -> None:
    port = server_of("cluster").nodes[0].port
    if face == "sync":
        client: Any = redis.RedisCluster(host="127.0.0.1", port=port)
    else:
        client = redis.asyncio.RedisCluster(host="127.0.0.1", port=port, decode_responses=True)
    async with open_store(face, client=client, namespace=namespace) as store:
        await _use(store)
    pong = client.ping()
    assert pong if face == "sync" else await pong
    await (asyncio.to_thread(client.close) if face == "sync" else client.aclose())


def test_an_unavailable_cluster_is_reported_in_time(server_of: Servers) -> None:
    with (
        HistoryStore("redis+cluster://127.0.0.1:1,127.0.0.1:2", retry=RetryPolicy(deadline=0.2)) as store,
        pytest.raises(errors.BackendUnavailableError, match=r"redis\+cluster://127.0.0.1:1,127.0.0.1:2"),
    ):
        store.append("c", user("x"))
    port = server_of("cluster").nodes[-1].port
    with HistoryStore(f"redis+cluster://127.0.0.1:1,127.0.0.1:{port}") as store:  # one node is enough
        assert store.get("c") == []


def test_a_wrong_url_scheme_for_or_against_a_cluster_is_refused(
    server_of: Servers, own_server: Any, namespace: str
) -> None:
    wrong = server_of("cluster").another(_slot(namespace, "c"))
    with (
        HistoryStore(wrong.url, namespace=namespace) as store,
        pytest.raises(errors.UnsupportedServerError, match="cluster"),
    ):
        store.append("c", user("x"))
    alone = own_server("plain", tcp=True)
    with (
        HistoryStore(f"redis+cluster://127.0.0.1:{alone.port}") as store,
        pytest.raises(errors.ConfigurationError, match="cluster"),
    ):
        store.append("c", user("x"))


def test_a_user_that_may_not_see_the_slots_is_told_so(cluster: RealCluster) -> None:
    """Not that the server is no cluster."""
    for node in cluster.nodes:
        with node.client() as client:
            client.execute_command("ACL", "SETUSER", "blind", "on", ">secret", "~*", "&*", "+@all", "-cluster")
    with (
        HistoryStore(cluster.url.replace("://", "://blind:secret@")) as store,
        pytest.raises(errors.BackendRefusedError, match="'cluster"),
    ):
        store.append("c", user("x"))


def _listeners(node: RealServer) -> int:
    with node.client() as client:
        return sum(line["sub"] != "0" for line in client.client_list())


@pytest.mark.proves("cluster")
@FACES
@pytest.mark.full
async def test_a_replica_takes_over(own_cluster: RealCluster, face: str, namespace: str) -> None:
    primary = own_cluster.owner(_slot(namespace, "c"))
    known = _store(face, own_cluster, namespace, poll_interval=600)  # not of the replica
    replica = await asyncio.to_thread(own_cluster.add_replica, primary)
    seen: list[int] = []
    async with known as store:
        await store.on_change("c", lambda event: seen.append(event.revision))
        await store.append("c", user("before"))
        await until(lambda: seen == [1])
        await asyncio.to_thread(wait_until_replicated, primary, replica)
        primary.kill()
        waiting = asyncio.create_task(store.append("c", user("after")))
        own_cluster.run(replica, "FAILOVER", "TAKEOVER")
        assert (await waiting).revision == 2
        await until(lambda: seen == [1, 2] and _listeners(replica) == 1)
        assert [message.text for message in await store.get("c")] == ["before", "after"]
        assert await store.list_conversations()


@FACES
async def test_a_user_with_the_documented_permissions_only(server_of: Servers, namespace: str, face: str) -> None:
    cluster: RealCluster = server_of("cluster")
    name = f"user-{namespace}"
    rights = acl_line(Keyspace(namespace), 0, "writer", cluster=True).partition("writer ")[2]
    for node in cluster.nodes:
        with node.client() as client:
            client.execute_command("ACL", "SETUSER", name, *rights.split())
    hosts = cluster.url.partition("://")[2]
    url = f"redis+cluster://{name}:change-me@{hosts}/"
    try:
        async with open_store(face, url, namespace=namespace, search="off") as store:
            await _use(store)
        with (
            HistoryStore(url.replace("change-me", "wrong"), namespace=namespace) as store,
            pytest.raises(errors.BackendRefusedError, match="password"),
        ):
            store.append("c", user("x"))
    finally:
        for node in cluster.nodes:
            with node.client() as client:
                client.execute_command("ACL", "DELUSER", name)
