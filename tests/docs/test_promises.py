"""Promises of docs/guarantees.md that no other test is about."""

import tracemalloc
from collections.abc import Callable

import pytest

from redis_history import Conversation, HistoryStore, user
from redis_history.store.operations.keys import Keyspace
from tests.support.servers import RealServer, Start, lasting, wait_until


def _commands(server: RealServer, work: Callable[[], object]) -> list[str]:
    """The names of the commands the server got in the meantime, without those inside of scripts."""
    seen: list[str] = []
    with server.client() as client, server.client() as other:
        other.ping()  # connects before anybody looks
        with client.monitor() as monitor:
            work()
            other.echo("that was it")
            for command in monitor.listen():
                if command["client_type"] != "lua":
                    seen.append(command["command"].split()[0])
                if seen and seen[-1] == "ECHO":
                    break
    return seen[:-1]


@pytest.mark.proves("one-change")
def test_an_append_is_one_command(own_server: Start) -> None:
    server = own_server()
    with HistoryStore(server.url) as store:
        store.append("c", user("the first call asks for the version, and teaches the script"))
        for work in (
            lambda: store.append("c", user("x")),
            lambda: store.append("c", user("x"), expected_revision=2),
            lambda: store.append_many("c", [user("x") for _ in range(100)]),
        ):
            assert _commands(server, work) == ["EVALSHA"]
        assert _commands(server, lambda: store.get("c")) == ["ZRANGE"]


@pytest.mark.proves("confirmable")
def test_what_a_durable_append_sends(own_server: Start) -> None:
    server = own_server(options=("--appendfsync", "always"))
    with HistoryStore(server.url, durability="fsync") as store:
        store.append("c", user("the first call looks at the server, and makes the index"))
        assert _commands(server, lambda: store.append("c", user("x"))) == ["EVALSHA", "WAITAOF"]
        assert _commands(server, lambda: store.get("c")) == ["ZRANGE"]


@pytest.mark.proves("deletion")
def test_a_deleted_conversation_leaves_only_the_journal(own_server: Start) -> None:
    server = own_server()
    keys = Keyspace("default").conversation("c")
    with HistoryStore(server.url) as store, server.client() as client:
        store.append("c", user("secret"))
        store.delete_conversation("c")
        assert lasting(client) == set()
        store.append("c", user("secret"))
        with store.subscribe("c"):
            channel = b"__keyspace@0__:" + keys.log
            wait_until(lambda: client.pubsub_numsub(channel)[0][1] > 0, "the subscription")
            store.delete_conversation("c")
            assert lasting(client) == {keys.log}
            assert 0 < client.pttl(keys.log) <= 60_000


@pytest.mark.proves("ttl")
def test_the_keys_of_a_conversation_end_together(server: RealServer, namespace: str) -> None:
    keys = Keyspace(namespace).conversation("c")
    with (
        HistoryStore(server.url, namespace=namespace, ttl=60) as store,
        HistoryStore(server.url, namespace=namespace) as other,
        server.client() as client,
    ):
        ends = [0]
        for work in (
            lambda: store.create_conversation(Conversation("c")),
            lambda: other.append("c", user("x", id="m1")),
            lambda: other.update_message("c", user("y", id="m1")),
            lambda: other.delete_messages("c", ["m1"]),
            lambda: store.restore("c", [user("x")]),
            lambda: other.clear("c"),
            lambda: other.append("c", user("x")),
        ):
            work()
            [found] = {client.execute_command("PEXPIRETIME", key) for key in keys[:3] if client.exists(key)}
            ends.append(found)
            assert found <= client.execute_command("PEXPIRETIME", keys.registry) <= found + 60_000
        assert ends == sorted(ends)
        assert client.exists(*keys[:4]) == 4


@pytest.mark.proves("order")
def test_a_clock_that_is_set_back_does_not_reorder(server: RealServer, namespace: str) -> None:
    state = Keyspace(namespace).conversation("c").state
    with HistoryStore(server.url, namespace=namespace) as store, server.client() as client:
        store.append("c", user("x"))
        ahead = int(client.hget(state, "t")) + 3_600_000_000
        client.hset(state, "t", ahead)  # as if the clock had been an hour ahead when it gave the last time
        store.append_many("c", [user("y"), user("z")])
        assert [message.position.timestamp - ahead for message in store.get("c")[1:] if message.position] == [1, 2]


@pytest.mark.proves("slow-subscribers")
@pytest.mark.full
def test_a_slow_subscriber_takes_little_memory(own_server: Start) -> None:
    server = own_server()
    with HistoryStore(server.url, search="off") as store, store.subscribe("c") as slow:
        store.append("c", user("the first"))
        assert slow.get(timeout=10) is not None
        tracemalloc.start()
        try:
            for number in range(300):
                store.append("c", user(f"{number} " + "x" * 100_000))
            wait_until(lambda: slow.get(timeout=0.1) is not None, "the next one")
            assert tracemalloc.get_traced_memory()[0] < 5_000_000, "of 30 MB"
        finally:
            tracemalloc.stop()
        texts = [event.messages[0].text for event in (slow.get(timeout=10) for _ in range(299)) if event]
    assert [text.partition(" ")[0] for text in texts] == [str(number) for number in range(1, 300)]
