"""`redis-history migrate`, with the keys that version 0.1.0 wrote."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from redis_history import HistoryStore, Message, user
from redis_history.backends.redis.form1 import read_v1
from redis_history.backends.redis.keys import Keyspace
from redis_history.errors import MessageConflictError
from tests.support.commands import Done, run
from tests.support.servers import RealServer

NAMESPACE = "team a"
KEYS = json.loads((Path(__file__).parent.parent / "golden" / "form_1_keys.json").read_text())


@pytest.fixture
def old(server: RealServer) -> Iterator[Any]:
    """A server with the keys."""
    with server.client() as client:
        for key, content in KEYS.items():
            for kind, value in content.items():
                if kind == "hash":
                    client.hset(key, mapping={bytes.fromhex(a): bytes.fromhex(b) for a, b in value.items()})
                elif kind == "zset":
                    client.zadd(key, {bytes.fromhex(member): score for member, score in value})
                else:
                    client.xadd(key, {"k": "append"})
        yield client
        for pattern in ("rh:*", *Keyspace(NAMESPACE).patterns):
            for key in client.keys(pattern):
                client.delete(key)


@pytest.fixture
def store(server: RealServer) -> Iterator[HistoryStore]:
    with HistoryStore(server.url, namespace=NAMESPACE) as store:
        yield store


def migrate(server: RealServer, *options: str) -> Done:
    return run("--url", server.url, "--namespace", NAMESPACE, "migrate", "--json", *options)


def former(*suffixes: str) -> dict[str, Message]:
    """The messages in the old keys of the conversation "room 1", by id."""
    found = {}
    for suffix in suffixes:
        for member, _ in KEYS[f"rh:{{team%20a:0b}}:room%201:{suffix}"]["zset"]:
            message = read_v1(bytes.fromhex(member))
            found[message.id] = message
    return found


def test_a_namespace_is_migrated(server: RealServer, old: Any, store: HistoryStore) -> None:
    old.pexpire("rh:{team%20a:04}:empty:s", 60_000)
    (done,) = migrate(server).lines
    assert done == {"migrated": 2, "messages": 12, "known": 0, "other": 0, "gone": 0, "unreadable": 0}
    live, every = former("m"), former("m", "a:4", "a:7")
    assert {one.id: one for one in store.get("room 1")} == live
    assert {one.id: one for one in store.get("room 1", include_archived=True)} == every
    assert [store.get_message("room 1", one) for one in every] == [*every.values()]
    record = store.get_conversation("room 1")
    assert record is not None
    assert (record.user_id, record.title, record.metadata, record.auditing_id) == (7, "Flüge", {"a": [1]}, "x")
    assert (record.message_count, record.characters, record.tokens, record.revision) == (6, 85, 23, 8)
    state = KEYS["rh:{team%20a:0b}:room%201:s"]["hash"]
    times = [int(bytes.fromhex(state[name.encode().hex()])) for name in "bu"]
    found = (record.created_at, record.updated_at)
    assert [one and round(one.timestamp() * 1e6) for one in found] == times
    assert [one.conversation_id for one in store.list_conversations()] == ["empty", "room 1"]
    keys = {key: old.pttl(key) for key in old.keys(Keyspace(NAMESPACE).patterns[0])}
    assert {bool(ttl > 0) for key, ttl in keys.items() if b"empty" in key} == {True}
    assert {ttl for key, ttl in keys.items() if b"room" in key} == {-1}

    # It is like any other conversation.
    appended = store.append_many("room 1", every.values())
    assert all(one.duplicate for one in appended)
    with pytest.raises(MessageConflictError):
        store.append("room 1", user("other", id="m-1"))
    with store.subscribe("room 1") as events:
        assert store.append("room 1", user("new", id="new")).revision == 9
        assert events.get(timeout=10).revision == 9
    for summary in ("sum-2", "sum-1"):
        store.expand("room 1", summary)
    assert [one.id for one in store.get("room 1")] == [
        *(one.id for one in sorted(every.values(), key=lambda one: one.position or (0, 0)) if not one.is_summary),
        "new",
    ]


def test_a_migration_can_be_repeated(server: RealServer, old: Any, store: HistoryStore) -> None:
    """Old data is only removed when the new has all of it."""
    old.hset("rh:{team%20a:0b}:room%201:s", "i", "abc")
    old.hset("rhd:{team%20a:0b}:room%201:abc:1", "t", "x")
    assert migrate(server).returncode == 0
    store.append("room 1", user("new"))
    (again,) = migrate(server).lines
    assert (again["migrated"], again["known"]) == (0, 2)
    old.hset("rh:{team%20a:04}:empty:s", "x", "0123456789abcdef")  # version 0.1 has changed it
    done = migrate(server, "--delete-old")
    assert (done.returncode, done.lines[0]["known"], done.lines[0]["other"]) == (1, 1, 1)
    assert "empty" in done.stderr
    assert {key.decode() for key in old.keys("rh*") if key.startswith((b"rh:", b"rhd:"))} == {
        key for key in KEYS if ":04}" in key
    }


def test_unreadable_messages_stay(server: RealServer, old: Any, store: HistoryStore) -> None:
    key = "rh:{team%20a:0b}:room%201:m"
    old.zadd(key, {b"junk": 5})
    store.append("empty", user("another conversation"))
    done = migrate(server, "--delete-old")
    assert (done.returncode, done.lines[0]["unreadable"], done.lines[0]["other"]) == (1, 1, 1)
    assert len(store.get("room 1")) == 6
    assert old.exists(key)
