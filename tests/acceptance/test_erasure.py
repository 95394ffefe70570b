"""Deleted, edited, erased and expired content is nowhere on the server."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from redis_history import Conversation, HistoryStore, user
from redis_history.errors import BackendRefusedError, MessageNotFoundError
from tests.support.servers import RealServer, Start, wait_until

SECRET = "swordfish-7391"


def _values(client: Any) -> Iterator[tuple[bytes, Any]]:
    read: dict[bytes, Callable[[bytes], Any]] = {
        b"string": client.get,
        b"hash": client.hgetall,
        b"zset": lambda key: client.zrange(key, 0, -1),
        b"list": lambda key: client.lrange(key, 0, -1),
    }
    for key in client.scan_iter(count=1000):
        yield key, read[client.type(key)](key)


def _where(client: Any) -> list[bytes]:
    return sorted(key for key, value in _values(client) if SECRET in str(value) or SECRET in key.decode())


def _erased(client: Any, namespace: str) -> bool:
    return not [key for key in _where(client) if namespace.encode() in key]


def _summary(text: str, **fields: Any) -> Any:
    return user(text, metadata={"is_summary": True}, **fields)


CHANGES: dict[str, Callable[[HistoryStore], object]] = {
    "delete": lambda store: store.delete_messages("c", ["1"]),
    "update": lambda store: store.update_message("c", user("mended", id="1")),
    "clear": lambda store: store.clear("c"),
    "restore": lambda store: store.restore("c", [user("other")]),
    "delete the conversation": lambda store: store.delete_conversation("c"),
    "erase": lambda store: store.erase("c", ["1", "unknown"]),
    "erase all": lambda store: store.erase("c"),
}


@pytest.mark.proves("deletion")
@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("codec", [None, "zstd"])
def test_no_content_is_left_on_the_server(server: RealServer, namespace: str, what: str, codec: Any) -> None:
    if codec:
        pytest.importorskip("zstandard")
    with HistoryStore(server.url, namespace=namespace, codec=codec) as store, server.client() as client:
        store.create_conversation(Conversation("c"))
        with store.subscribe("c"):  # so that the log of a deleted conversation stays
            store.append_many("c", [user(f"the password is {SECRET}", id="1"), user("hello", id="2")])
            store.append("c", user(f"the password is {SECRET}", id="1"))
            assert not _erased(client, namespace)
            CHANGES[what](store)
            assert _erased(client, namespace)


def test_erasing_reaches_archives_and_summaries(server: RealServer, namespace: str) -> None:
    with HistoryStore(server.url, namespace=namespace) as store, server.client() as client:
        store.append_many("c", [user(SECRET if n == 2 else str(n), id=str(n)) for n in range(8)])
        store.compact("c", through="3", summary=_summary(f"the password is {SECRET}"))
        store.compact("c", through="5", summary=_summary(f"still {SECRET}"))
        store.erase("c", ["2"])
        assert _erased(client, namespace)
        assert [message.id for message in store.get("c", include_archived=True)] == ["0", "1", "3", "4", "5", "6", "7"]
        store.compact("c", through="5", summary=_summary("now without it"))
        store.erase("c", ["6"])
        kept = [message.text for message in store.get("c")]
        assert kept == ["now without it", "7"], "a summary that cannot have its content stays"


def test_erasing_works_on_a_full_server(own_server: Start) -> None:
    server = own_server()
    with HistoryStore(server.url) as store, server.client() as client:
        store.append_many("c", [user(SECRET if n == 0 else str(n), id=str(n)) for n in range(6)])
        store.compact("c", through="1", summary=f"The user said {SECRET}")
        store.compact("c", through="3", summary=f"Still {SECRET}")
        client.config_set("maxmemory", 1)
        with pytest.raises(BackendRefusedError):
            store.append("c", user("more"))
        assert store.erase("c", ["0", "5"]) == 2
        client.config_set("maxmemory", 0)
        assert _where(client) == []
        assert [message.id for message in store.get("c", include_archived=True)] == ["1", "2", "3", "4"]
        assert store.erase("c") == 4


@pytest.mark.proves("ttl")
@pytest.mark.full
def test_an_expired_conversation_leaves_nothing_even_without_clients(own_server: Start) -> None:
    server = own_server()
    with HistoryStore(server.url, ttl=3) as store:
        for number in range(40):
            store.append_many(f"c{number}", [user(str(index)) for index in range(5)])
    with server.client() as client:
        keys = {what: len(list(client.scan_iter(match=what, count=1000))) for what in ("rh2:*}:c", "rhd2:*")}
        assert keys["rhd2:*"] == 40 * 5, "a search document of each message"
        assert client.dbsize() == 40 * 3 + sum(keys.values())
        # The server deletes automatically, without being asked for the keys.
        lists = keys["rh2:*}:c"]  # they live for two minutes, as copies of calls may come so late
        wait_until(lambda: client.dbsize() == lists, "the server to have only lists")
        assert all(0 < client.pttl(key) <= 120_000 for key in client.scan_iter())


@pytest.mark.proves("erase-user")
def test_nothing_of_an_erased_user_is_left(server: RealServer, namespace: str) -> None:
    """Not in archives, forks, records, search documents, live replies, drafts, logs and journals."""
    owner = f"user of {SECRET}"
    with HistoryStore(server.url, namespace=namespace) as store, server.client() as client:
        for name in ("c", "e"):
            store.create_conversation(Conversation(name, user_id=owner, title=SECRET, metadata={SECRET: SECRET}))
            store.append_many(name, [user(f"{SECRET} {n}", id=f"{SECRET}{n}") for n in range(600)])
            store.compact(name, through=f"{SECRET}9", summary=_summary(f"still {SECRET}"))
            store.delete_messages(name, [f"{SECRET}20"])
        store.fork("c", "d")
        store.create_conversation(Conversation("other", user_id="other"))
        store.append("other", user("stays"))
        reply = store.stream("c", interval=0)
        with store.run("d", agent_name=SECRET), suppress(MessageNotFoundError), reply:
            reply.write(SECRET)
            erased = []
            assert store.erase_user(owner, on_progress=lambda one: erased.append(one.conversation_id)) == 3
            assert sorted(erased) == ["c", "d", "e"]
        assert _erased(client, namespace)
        assert [message.text for message in store.get("other")] == ["stays"]
        assert store.erase_user(owner) == 0
