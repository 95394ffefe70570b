"""docs/data-model.md against what is in a real server."""

from __future__ import annotations

import random
import re
import struct
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from redis_history import Conversation, HistoryStore, Participant, assistant, tool_result, tool_use, user
from redis_history._time import from_microseconds
from redis_history.backends.redis.calls import Call, Settings
from redis_history.backends.redis.keys import Keyspace
from redis_history.model.wire import body_digest, encode_body
from redis_history.operations import Clear, TakeLease
from tests.docs.pages import DOCS, code, rows, sections
from tests.support.servers import RealServer, wait_until
from tests.support.steps import first_call

SECTIONS = sections(DOCS / "data-model.md")


def test_the_keys(server: RealServer, namespace: str) -> None:
    found = {}
    keys = Keyspace(namespace).conversation("a b")

    def look() -> None:
        for pattern in Keyspace(namespace).patterns:
            for key in client.scan_iter(match=pattern, count=1000):
                kind = {b"zset": "sorted set"}.get(client.type(key), client.type(key).decode())
                name = key.decode().replace("a%20b", "<conversation>").replace(namespace, "<namespace>")
                name = re.sub(r":[0-9a-f]{16}:-?\d+$", ":<generation>:<sequence>", name)
                name = re.sub(r":g:[0-9a-f]{16}$", ":g:<generation>", name)
                name = re.sub(r":o:[0-9a-f]{16}$", ":o:<token>", name)
                name = re.sub(r":j[01]$", ":j<minute>", name)
                name = re.sub(r":a:\d+$", ":a:<revision>", name)
                found[re.sub(r":[0-9a-f]{2}}", ":<bucket>}", name)] = kind

    with HistoryStore(server.url, namespace=namespace) as store, server.client() as client:
        store.append("a b", user("x"))
        look()
        assert client.zrange(keys.registry, 0, -1) == [b"a%20b"]
        assert len(found) == 5
        store.compact("a b", through=store.get("a b")[0], summary="y")
        look()
        assert len(found) == 7
        assert store._backend.execute(TakeLease("a b", 30)) is not None
        look()
        assert len(found) == 8
        store.clear("a b")
        store.append_many("a b", [user("x") for _ in range(1000)])
        _send(client, first_call(Clear("a b"), Settings(Keyspace(namespace), 1000)))  # whose process ends right after
        look()
    assert found == {code(row[0]): row[1] for row in rows(SECTIONS["Keys"])}


def _send(client: Any, call: Call) -> None:
    seconds, microseconds = client.time()
    connection = client.connection_pool.get_connection()
    connection.send_packed_command([call.pack(teach=True, sent=b"%d%06d" % (seconds, microseconds))])
    connection.read_response(disable_decoding=True)
    client.connection_pool.release(connection)


def test_the_search_documents(server: RealServer, namespace: str) -> None:
    keys = Keyspace(namespace).conversation("c")
    whose = Participant("user", "a|b")
    message = user("Hello, you!", tool_use("1", "f g"), participant=whose, scope="dm", timestamp="2026-01-31")
    options: dict[str, Any] = {"embedder": lambda texts: [[1.0, 0.0]] * len(texts), "vectors": 2}
    with HistoryStore(server.url, namespace=namespace, ttl=60, **options) as store, server.client() as client:
        stored = store.append("c", message).message
        [key] = client.scan_iter(match=Keyspace(namespace).patterns[1], count=1000)
        found = client.hgetall(key)
        assert set(found) == {str(code(row[0])).encode() for row in rows(SECTIONS["Search"])}
        assert stored.position is not None
        assert found == {
            b"t": b"hello you f g",
            b"c": client.hget(keys.state, "i"),
            b"m": b"%d" % stored.position.timestamp,
            b"r": b"user",
            b"p": b"a%7Cb",
            b"s": b"dm",
            b"w": b"f%20g",
            b"v": struct.pack("<2f", 1, 0),
        }
        assert 60_000 < client.pttl(key) <= 90_000, "one and a half times the ttl"
        assert client.hget(keys.state, "y") is None
        store.append_many("c", [user("x") for _ in range(600)])
        with HistoryStore(server.url, namespace=namespace, ttl=600) as longer:
            longer.update_conversation("c", title="t")
            assert (client.hget(keys.state, "y") or b"").startswith(b"256 ")
            longer.update_conversation("c", title="u")
            longer.update_conversation("c", title="v")
        assert client.hget(keys.state, "y") is None
        assert client.pttl(key) > 600_000
        names = {name.decode() for name in client.execute_command("FT._LIST")}
        assert any(re.fullmatch(f"rh:{namespace}:\\d+:[0-9a-f]{{8}}", name) for name in names)


def test_the_state(server: RealServer, namespace: str) -> None:
    message = assistant("x" * 10, tool_use("call-1", ""), tool_result("call-0"), id="m1")
    record = {"user_id": "u", "agent_name": "a", "title": "t", "auditing_id": "d", "metadata": {"m": 1}}
    with HistoryStore(server.url, namespace=namespace, ttl=60) as store, server.client() as client:
        created = store.create_conversation(Conversation("c", **record))
        stored = store.append("c", message).message
        store._backend.execute(TakeLease("c", 30))
        keys = Keyspace(namespace).conversation("c")
        state = client.hgetall(keys.state)
        [member] = client.zrange(keys.messages, 0, -1)
        cursor = store.snapshot("c").cursor
        epoch = client.xrange(keys.log)[0][1][b"t"]
        changed = store.get_conversation("c")
    documented = [str(code(row[0])) for row in rows(SECTIONS["State"])]
    assert {name.decode() for name in state} == {*documented[:-1], ":m1"} - {"y"}
    assert documented[-1] == ":<message id>"
    place = state[b":m1"]
    assert len(place) == 51 + 2 * 5
    assert "51 bytes" in SECTIONS["State"]
    assert "5 bytes for each tool call and result" in SECTIONS["State"]
    assert place[:19] == member[:19]
    assert (int.from_bytes(place[19:24], "big"), *struct.unpack(">II", place[27:35])) == (2, 10, 3)
    assert place[24:27] == bytes.fromhex(state[b"x"].decode())[:3]
    assert place[35:51] == body_digest(encode_body(message))
    assert place[51:] == b"u" + body_digest(b"call-1")[:4] + b"r" + body_digest(b"call-0")[:4]
    assert stored.position is not None
    stamp = b"%d" % stored.position.timestamp
    assert state[b"v"] == b"1"
    assert (state[b"e"], state[b"r"], state[b"x"]) == (epoch, b"2", cursor.token.encode())
    assert cursor.epoch.encode() == epoch
    assert [state[name] for name in (b"q", b"t", b"n", b"c", b"k", b"u", b"l")] == [
        *(b"1", stamp, b"1", b"10", b"3"),
        *(stamp, b"60000"),
    ]
    assert created.created_at is not None
    assert from_microseconds(int(state[b"b"])) == created.created_at
    assert changed is not None
    assert from_microseconds(int(state[b"u"])) == changed.updated_at
    meanings = {code(row[0]): row[1] for row in rows(SECTIONS["State"])}
    for field, name in {"U": "user_id", "A": "agent_name", "T": "title", "D": "auditing_id", "M": "metadata"}.items():
        assert msgspec.msgpack.decode(state[field.encode()]) == record[name]
        assert f"`{name}`" in meanings[field]


def test_the_state_after_a_compaction(server: RealServer, namespace: str) -> None:
    keys = Keyspace(namespace).conversation("c")
    with HistoryStore(server.url, namespace=namespace) as store, server.client() as client:
        store.append_many("c", [user("x" * 8, id=name, timestamp=1) for name in "abc"])
        before = set(client.hgetall(keys.state))
        for name, through in (("s1", "a"), ("s2", "b")):
            store.compact("c", through=through, summary=user("y", id=name, metadata={"is_summary": True}))
        state = client.hgetall(keys.state)
        assert set(client.hgetall(keys.state)) - before == {
            *(b":s1", b":s2", b"^s1", b"^s2", b"#2", b"#3", b"g"),
            *(str(code(row[0])).encode() for row in rows(SECTIONS["Compaction"]) if len(str(code(row[0]))) == 1),
        }
        assert (state[b"s"], state[b"m"], state[b"a"], state[b"h"]) == (b"s2", b"2", b"0", b"3")
        assert state[b"w"] == b"2 1000000 1000000;3 1000000 1000000;"
        assert (state[b"^s1"], state[b"^s2"]) == (b"2", b"3")
        tokens = [fields[b"t"] for _, fields in client.xrange(keys.log)]
        assert state[b"#2"] == b"1 8 2 " + tokens[1]
        assert state[b"#3"] == b"2 9 3 " + tokens[2] + b" s1"
        documents = {
            key.rpartition(b":")[2]: client.hget(key, "z")
            for key in client.scan_iter(match=Keyspace(namespace).patterns[1], count=1000)
        }
        assert documents == {b"1": b"1", b"2": b"1", b"-2": None, b"3": None}


def test_the_change_log(server: RealServer, namespace: str) -> None:
    keys = Keyspace(namespace).conversation("c")
    fields: set[str] = set()
    kinds: set[str] = set()
    with HistoryStore(server.url, namespace=namespace, max_messages=1) as store, server.client() as client:
        store.append("c", user("x", id="m0"))
        store.append("c", user("x", id="m1"))
        store.delete_messages("c", ["m1"])
        store.restore("c", [user("x", id="m1")])
        store.update_message("c", user("y", id="m1"))
        store.expand("c", store.compact("c", through="m1", summary="y").summary.id)
        store.clear("c")
        store.update_conversation("c", title="t")
        with store.subscribe("c") as subscription:
            channel = b"__keyspace@0__:" + keys.log
            wait_until(lambda: client.pubsub_numsub(channel)[0][1] > 0, "the subscription")
            store.delete_conversation("c")
            before = client.xrange(keys.log)
            store.append("c", user("x", id="m1"))
            after = client.xrange(keys.log)
            assert subscription.cursor is not None
    assert [entry_id for entry_id, _ in before] == [b"%d-0" % revision for revision in range(1, 11)]
    assert [msgspec.msgpack.decode(entry[b"g"]) for _, entry in before if b"g" in entry] == [["m0"]]
    for _, entry in before + after:
        fields |= {name.decode() for name in entry}
        kinds.add(entry[b"k"].decode())
        assert re.fullmatch(rb"[0-9a-f]{16}", entry[b"t"])
    assert [b"o" in entry for _, entry in before + after] == [False] * 10 + [True]
    assert fields == {code(row[0]) for row in rows(SECTIONS["Change log"])}
    [meaning] = [row[1] for row in rows(SECTIONS["Change log"]) if row[0] == "`k`"]
    assert kinds == set(re.findall(r"`(\w+)`", meaning))


@pytest.mark.parametrize("count", [1, 100, 1000, pytest.param(10_000, marks=pytest.mark.full)])
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


def test_the_picture_shows_all_keys() -> None:
    """By what follows the conversation, or the bucket, in a key."""
    picture = "".join(ElementTree.parse(DOCS / "images" / "data-model.svg").getroot().itertext())
    example = {"conversation": "order%2042", "generation": "1b7…", "token": "6db…", "minute": "0"}
    for row in rows(SECTIONS["Keys"]):
        key = str(code(row[0])).replace("rh:{<namespace>:<bucket>}:", "…:").replace("{<namespace>:<bucket>}", "…")
        shown = re.sub(r"<(\w+)>", lambda name: example.get(name[1], "4"), key)
        assert shown in picture, key
