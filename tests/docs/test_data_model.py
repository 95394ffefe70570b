"""docs/data-model.md against what is in a real server."""

from __future__ import annotations

import hashlib
import random
import re
import struct
from typing import Any

import msgspec
import pytest

from redis_history import Conversation, HistoryStore, Participant, assistant, tool_result, tool_use, user
from redis_history.model.times import from_microseconds
from redis_history.model.wire import body_digest
from redis_history.operations import Clear, TakeRun
from redis_history.operations.base import Call, Settings
from redis_history.operations.keys import Keyspace, field_of
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
                name = re.sub(r":t:[0-9a-f]{16}$", ":t:<token>", name)
                name = re.sub(r":([uv]):[0-9a-f]{40}$", r":\1:<digest>", name)
                name = re.sub(r":a:\d+$", ":a:<revision>", name)
                found[re.sub(r":[0-9a-f]{2}}", ":<bucket>}", name)] = kind

    with HistoryStore(server.url, namespace=namespace) as store, server.client() as client:
        store.append("a b", user("x"))
        look()
        assert client.zrange(keys.registry, 0, -1) == [b"a%20b"]
        assert len(found) == 5
        store.compact("a b", through=store.get("a b")[0], summary="y")
        look()
        assert len(found) == 6
        with store.stream("a b") as reply:
            reply.write("x")
            wait_until(lambda: store.get("a b")[-1].text == "x", "the reply")
            look()
        assert len(found) == 7
        store.update_conversation("a b", user_id=1, agent_name="a")
        store.clear("a b")
        store.append_many("a b", [user("x") for _ in range(1000)])
        _send(client, first_call(Clear("a b"), Settings(Keyspace(namespace), 1000)))  # whose process ends right after
        look()
    documented = {code(row[0]): row[1] for row in rows(SECTIONS["Keys"])}
    del documented["rh2:{<namespace>:<bucket>}:<conversation>:x"]  # see tests/acceptance/test_compaction.py
    assert found == documented


def _send(client: Any, call: Call) -> None:
    seconds, microseconds = client.time()
    client.execute_command(*call.words(with_source=True, sent=b"%d%06d" % (seconds, microseconds)), NEVER_DECODE=True)


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
            b"v": struct.pack("<2e", 1, 0),
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
        assert any(re.fullmatch(f"rh2:{namespace}:\\d+:[0-9a-f]{{8}}", name) for name in names)


def test_the_state(server: RealServer, namespace: str) -> None:
    message = assistant("x" * 10, tool_use("call-1", ""), tool_result("call-0"), id="m1")
    record = {"user_id": "u", "agent_name": "a", "title": "t", "auditing_id": "d", "metadata": {"m": 1}}
    with HistoryStore(server.url, namespace=namespace, ttl=60) as store, server.client() as client:
        created = store.create_conversation(Conversation("c", **record))
        stored = store.append("c", message).message
        store._backend.execute(TakeRun("c", (("1", None),), False))
        store._backend.execute(TakeRun("c", (("2", None),), True))
        store._backend.execute(TakeRun("c", (("3", None),), False, 30, "compressor"))
        keys = Keyspace(namespace).conversation("c")
        state = client.hgetall(keys.state)
        [member] = client.zrange(keys.messages, 0, -1)
        cursor = store.snapshot("c").cursor
        changed = store.get_conversation("c")
    documented = [str(code(row[0])) for row in rows(SECTIONS["State"])]
    field = field_of("m1")
    plain = {name for name in state if name != field and name[:1] not in b"jJ"}
    assert plain == {name.encode() for name in documented[:-1]} - {b"y", b"o", b"~", b"X"}
    assert documented[-1] == ":<12 bytes>"
    assert field == b":" + hashlib.sha1(b"m1", usedforsecurity=False).digest()[:12]
    place, head = state[field], state[b"x"]
    assert stored.position is not None
    assert place[:10] == stored.position.timestamp.to_bytes(7, "big") + head[7:]
    assert place[10:12] == bytes((1, 2)), "sequence and revision"
    assert place[12:] == b"u" + body_digest(b"call-1")[:4] + b"r" + body_digest(b"call-0")[:4]
    assert (int.from_bytes(member[:4], "big"), int.from_bytes(member[4:7], "big"), member[7]) == (1, 10, 1)
    stamp = b"%d" % stored.position.timestamp
    assert state[b"v"] == b"2"
    assert (state[b"e"].decode(), state[b"r"], head.hex()) == (cursor.epoch, b"2", cursor.token)
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
            *(field_of("s1"), field_of("s2"), b"^s1", b"^s2", b"#2", b"#3", b"g", b"j\0\0\0\0", b"j\0\0\0\1"),
            *(name for name in state if name.startswith(b"J")),
            *(str(code(row[0])).encode() for row in rows(SECTIONS["Compaction"]) if len(str(code(row[0]))) == 1),
        }
        assert (state[b"s"], state[b"m"], state[b"a"], state[b"h"]) == (b"s2", b"2", b"0", b"3")
        assert state[b"w"] == b"2 1000000 1000000;3 1000000 1000000;"
        assert (state[b"^s1"], state[b"^s2"]) == (b"2", b"3")
        marks = [entry[7:10].hex().encode() for entry in client.lrange(keys.log, 0, -1)]
        assert state[b"#2"].startswith(b"1 8 2 " + marks[1])
        assert state[b"#3"].startswith(b"2 9 3 " + marks[2])
        assert state[b"#3"].endswith(b" s1")
        documents = {
            key.rpartition(b":")[2]: client.hget(key, "z")
            for key in client.scan_iter(match=Keyspace(namespace).patterns[1], count=1000)
        }
        assert documents == {b"1": b"1", b"2": b"1", b"-2": None, b"3": None}


def test_the_change_log(server: RealServer, namespace: str) -> None:
    keys = Keyspace(namespace).conversation("c")
    with HistoryStore(server.url, namespace=namespace, max_messages=1) as store, server.client() as client:
        store.append("c", user("x", id="m0"))
        store.append("c", user("x", id="m1"))
        store.delete_messages("c", ["m1"])
        store.restore("c", [user("x", id="m1")])
        store.update_message("c", user("y", id="m1"))
        store.expand("c", store.compact("c", through="m1", summary="y").summary.id)
        store.clear("c")
        store.update_conversation("c", title="t")
        with store.subscribe("c"):
            channel = b"__keyspace@0__:" + keys.log
            wait_until(lambda: client.pubsub_numsub(channel)[0][1] > 0, "the subscription")
            store.delete_conversation("c")
            entries = client.lrange(keys.log, 0, -1)
            store.append("c", user("x", id="m1"))
            assert client.llen(keys.log) == 1
            assert client.hget(keys.state, "o") == b"log"
    table = "".join(row[0] + "," for row in rows(SECTIONS["Change log"]))
    kinds = {name: number for number, name in re.findall(r"(\d+) ?(\w*)", table)}
    made = ["", "append", "delete", "restore", "update", "compact", "expand", "clear", "record", "end"]
    assert [str(entry[0] >> 4) for entry in entries] == [kinds[name] for name in made]
    assert int.from_bytes(entries[0][10:], "big") == 1, "its sequence"
    assert msgspec.msgpack.decode(entries[1][10:])[2:] == [["m0"], [1]], "what the cap removed"
    assert msgspec.msgpack.decode(entries[2][10:]) == [["m1"], [2]]
    times = [int.from_bytes(entry[:7], "big") & (1 << 52) - 1 for entry in entries]
    assert times == sorted(times)


@pytest.mark.parametrize("count", [1, 100, 1000, pytest.param(10_000, marks=pytest.mark.full)])
def test_the_memory(server: RealServer, namespace: str, count: int) -> None:
    """A quarter more or less, for other versions and allocators."""
    [row] = [row for row in rows(SECTIONS["What a conversation costs"]) if row[0] == f"{count:,}"]
    letters = random.Random(count)
    with HistoryStore(server.url, namespace=namespace) as store, server.client() as client:
        for _ in range(count):
            store.append("c", user("".join(letters.choices("abcdefgh ijklmn", k=226))))
        keys = Keyspace(namespace).conversation("c")
        measured = [client.memory_usage(key, samples=0) / count for key in keys[:3]]
    told = [float(cell.replace(",", "")) for cell in row[1:]]
    assert sum(told[:3]) == pytest.approx(told[3], rel=0.01)
    assert measured == pytest.approx(told[:3], rel=0.25)
