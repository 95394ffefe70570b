"""docs/data-model.md against what is in a real server."""

from __future__ import annotations

import random
import re
import struct

import pytest

from redis_history import HistoryStore, user
from redis_history.backends.redis.keys import Keyspace
from redis_history.model.wire import body_digest, encode_body
from tests.docs.pages import DOCS, code, rows, sections
from tests.support.servers import RealServer, wait_until

SECTIONS = sections(DOCS / "data-model.md")


def test_the_keys(server: RealServer, namespace: str) -> None:
    found = {}
    with HistoryStore(server.url, namespace=namespace) as store, server.client() as client:
        store.append("a b", user("x"))
        keys = Keyspace(namespace).conversation("a b")
        for key in client.scan_iter(match=Keyspace(namespace).pattern):
            kind = {b"zset": "sorted set"}.get(client.type(key), client.type(key).decode())
            name = key.decode().replace("a%20b", "<conversation>").replace(namespace, "<namespace>")
            found[re.sub(r":[0-9a-f]{2}}", ":<bucket>}", name)] = kind
        assert client.zrange(keys.registry, 0, -1) == [b"a%20b"]
    assert found == {code(row[0]): row[1] for row in rows(SECTIONS["Keys"])}


def test_the_state(server: RealServer, namespace: str) -> None:
    message = user("x" * 10, id="m1")
    with HistoryStore(server.url, namespace=namespace) as store, server.client() as client:
        stored = store.append("c", message).message
        keys = Keyspace(namespace).conversation("c")
        state = client.hgetall(keys.state)
        [member] = client.zrange(keys.messages, 0, -1)
        cursor = store.snapshot("c").cursor
    documented = [str(code(row[0])) for row in rows(SECTIONS["State"])]
    assert {name.decode() for name in state} == {*documented[:-1], ":m1"}
    assert documented[-1] == ":<message id>"
    place = state[b":m1"]
    assert len(place) == 51
    assert "51 bytes" in SECTIONS["State"]
    assert place[:19] == member[:19]
    assert struct.unpack(">QII", place[19:35]) == (1, 10, 3)
    assert place[35:] == body_digest(encode_body(message))
    assert stored.position is not None
    stamp = b"%d" % stored.position.timestamp
    assert state[b"v"] == b"1"
    assert (state[b"e"], state[b"r"], state[b"x"]) == (cursor.epoch.encode(), b"1", cursor.token.encode())
    assert [state[name] for name in (b"q", b"t", b"n", b"c", b"k", b"b", b"u")] == [
        *(b"1", stamp, b"1", b"10", b"3"),
        *(stamp, stamp),
    ]


def test_the_change_log(server: RealServer, namespace: str) -> None:
    keys = Keyspace(namespace).conversation("c")
    fields: set[str] = set()
    kinds: set[str] = set()
    with HistoryStore(server.url, namespace=namespace) as store, server.client() as client:
        store.append("c", user("x", id="m1"))
        store.delete_messages("c", ["m1"])
        with store.subscribe("c") as subscription:
            channel = b"__keyspace@0__:" + keys.log
            wait_until(lambda: client.pubsub_numsub(channel)[0][1] > 0, "the subscription")
            store.delete_conversation("c")
            before = client.xrange(keys.log)
            store.append("c", user("x", id="m1"))
            after = client.xrange(keys.log)
            assert subscription.cursor is not None
    assert [entry_id for entry_id, _ in before] == [b"1-0", b"2-0", b"3-0"]
    for _, entry in before + after:
        fields |= {name.decode() for name in entry}
        kinds.add(entry[b"k"].decode())
        assert re.fullmatch(rb"[0-9a-f]{16}", entry[b"t"])
    assert [b"o" in entry for _, entry in before + after] == [False, False, False, True]
    assert fields == {code(row[0]) for row in rows(SECTIONS["Change log"])}
    [meaning] = [row[1] for row in rows(SECTIONS["Change log"]) if row[0] == "`k`"]
    assert kinds == set(re.findall(r"`(\w+)`", meaning))


@pytest.mark.parametrize("count", [1, 100, 1000, 10_000])
def test_the_memory(server: RealServer, namespace: str, count: int) -> None:
    """A quarter more or less, for other versions and allocators."""
    [row] = [row for row in rows(SECTIONS["What a conversation costs"]) if row[0] == f"{count:,}"]
    letters = random.Random(count)
    with HistoryStore(server.url, namespace=namespace) as store, server.client() as client:
        assert "303 bytes as stored" in re.sub(r"\s+", " ", SECTIONS["What a conversation costs"])
        for _ in range(count):
            message = user("".join(letters.choices("abcdefgh ijklmn", k=226)))
            assert len(encode_body(message)) == 303
            store.append("c", message)
        keys = Keyspace(namespace).conversation("c")
        measured = [client.memory_usage(key, samples=0) / count for key in keys[:3]]
    told = [float(cell.replace(",", "")) for cell in row[1:]]
    assert sum(told[:3]) == pytest.approx(told[3], rel=0.01)
    assert measured == pytest.approx(told[:3], rel=0.25)
