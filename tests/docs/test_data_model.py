"""docs/data-model.md against what is in a real server."""

import random
import re
import struct
from typing import Any

import pytest
from msgspec.structs import replace

from redis_history import Conversation, HistoryStore, Participant, Usage, assistant, tool_use, user
from redis_history.store.operations import ChangeTurns, Clear, TakeRun, TakeSeat
from redis_history.store.operations.base import Call, Settings
from redis_history.store.operations.keys import Keyspace
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
                name = re.sub(r":a:[0-9a-f]{16}:\d+$", ":a:<token>:<revision>", name)
                name = re.sub(r":[0-9a-f]{16}:-?\d+$", ":<generation>:<sequence>", name)
                name = re.sub(r":g:[0-9a-f]{16}$", ":g:<generation>", name)
                name = re.sub(r":t:[0-9a-f]{16}$", ":t:<token>", name)
                name = re.sub(r":([uvpb]):[0-9a-f]{40}$", r":\1:<digest>", name)
                name = re.sub(r":([qk])((?::[0-9a-f]{40})+)$", _digests, name)
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
        store.append("a b", assistant("x", usage=Usage(1)))
        store.set_budget(1, tokens=7)
        store.ask("a b", user("x"))  # a turn of an owner; another agent's waits
        store.ask("a b", user("x"), agent_name="b")
        store.backend.execute(ChangeTurns("a b", "wait", "b", False))
        store.backend.execute(TakeSeat("a", "u", "run", 1, 60.0))
        look()
        store.drop_turn("a b")
        store.clear("a b")
        store.append_many("a b", [user("x") for _ in range(1000)])
        _send(client, first_call(Clear("a b"), Settings(Keyspace(namespace), 1000)))  # whose process ends right after
        look()
    documented = {code(row[0]): row[1] for row in rows(SECTIONS["Keys"])}
    del documented["rh2:{<namespace>:<bucket>}:<conversation>:x"]  # see tests/acceptance/test_compaction.py
    assert found == documented


def _digests(found: re.Match[str]) -> str:
    return f":{found[1]}{':<digest>' * (len(found[2]) // 41)}"


def _send(client: Any, call: Call) -> None:
    seconds, microseconds = client.time()
    sent = b"%d%06d" % (seconds, microseconds)
    reply = client.execute_command(*call.words(with_source=True, sent=sent), NEVER_DECODE=True)
    if reply[0] == b"keys":
        _send(client, replace(call, keys=(*call.keys, *reply[1:])))


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
        for _ in range(9):
            store.append_many("c", [user("x") for _ in range(500)])
        with HistoryStore(server.url, namespace=namespace, ttl=600) as longer:
            longer.update_conversation("c", title="t")
            assert (client.hget(keys.state, "y") or b"").startswith(b"4096 ")
            longer.update_conversation("c", title="u")
            longer.update_conversation("c", title="v")
        assert client.hget(keys.state, "y") is None
        assert client.pttl(key) > 600_000
        names = {name.decode() for name in client.execute_command("FT._LIST")}
        assert any(re.fullmatch(f"rh2:{namespace}:\\d+:[0-9a-f]{{8}}", name) for name in names)


def test_the_fields_of_the_state(server: RealServer, namespace: str) -> None:
    record = {"user_id": "u", "agent_name": "a", "title": "t", "auditing_id": "d", "metadata": {"m": 1}}
    with HistoryStore(server.url, namespace=namespace, ttl=60) as store, server.client() as client:
        store.create_conversation(Conversation("c", **record))
        store.append_many("c", [user("x", id=name, usage=Usage(1)) for name in "abc"])
        store.retry_turn("c")
        store._backend.execute(TakeRun("c", (("1", None),), False))
        store._backend.execute(TakeRun("c", (("2", None),), True))
        store._backend.execute(TakeRun("c", (("3", None),), False, 30, "compressor"))
        for name, through in (("s1", "a"), ("s2", "b")):
            store.compact("c", through=through, summary=user("y", id=name, metadata={"is_summary": True}))
        state = set(client.hgetall(Keyspace(namespace).conversation("c").state))
    documented = {str(code(row[0])) for section in ("State", "Compaction") for row in rows(SECTIONS[section])}
    several = {name[:1] for name in documented if len(name) > 1}  # fields of each message, summary and compaction
    assert several == {":", "^", "w"}
    absent = {"y", "o", "~", "X", "N", "E"}
    expected = {name[:1].encode() for name in documented - absent} | {b"J", b"j"}  # of the journal
    assert {name[:1] for name in state} == expected
    assert {name[:1] for name in state if len(name) > 1} == {*(one.encode() for one in several), b"J", b"j"}


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
