"""Compaction among many processes, and what it costs the server."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from redis.exceptions import ConnectionError

from redis_history import HistoryStore, Message, assistant, tool, tool_result, tool_use, user
from redis_history.errors import CompactionConflictError, InvalidInputError
from redis_history.store.operations.keys import Keyspace
from tests.support.servers import RealServer, Start

KEYS = Keyspace("default").conversation("c")


def _fill(store: HistoryStore, count: int) -> list[Message]:
    for start in range(0, count, 1000):
        store.append_many("c", [user(f"old {n}", id=f"old {n}") for n in range(start, min(count, start + 1000))])
    return store.get("c")


def _summary(name: str) -> Message:
    return user("a summary", id=name, metadata={"is_summary": True})


CUTS = (9_990, 7_000, 5_000, 1_500)


def _calls(monitor: Any) -> Iterator[list[list[str]]]:
    """The calls of a server's clients until an ECHO: each with the commands of its script."""
    call: list[list[str]] = []
    while line := monitor.connection.read_response():  # redis-py's own reading joins the words, which may have blanks
        head, _, command = line.decode().partition("] ")
        words = re.findall(r'"((?:[^"\\]|\\.)*)"', command)
        if head.endswith(" lua"):
            call.append(words)
            continue
        if call:
            yield call
        if words[0] == "ECHO":
            return
        call = [words[:1] if words[0] == "EVAL" else words]  # not the words of the script


@pytest.mark.full
@pytest.mark.parametrize(("kind", "given_up"), [("plain", False), ("redis", False), ("plain", True)])
def test_no_call_holds_the_server_for_long(own_server: Start, kind: str, given_up: bool) -> None:
    """Each call of a conversation of 10,000 messages does a bounded amount of work, and takes at most 20 ms: its
    best of three rounds counts, because other processes use this machine too."""
    server = own_server(kind)
    with HistoryStore(server.url) as store, server.client() as client:
        if given_up:
            _given_up(store, 0)
        before = _fill(store, 10_000)
        client.config_set("slowlog-max-len", 10_000)
        client.config_set("slowlog-log-slower-than", 0)
        most: dict[str, int] = {}
        for cut in CUTS[-1:] if given_up else CUTS:

            def there_and_back(cut: int = cut) -> None:
                store.compact("c", through=before[cut - 1], summary=_summary("s"), seen=before[:cut])
                store.expand("c", "s")

            with client.monitor() as monitor:
                there_and_back()
                client.echo("end")
                for call in _calls(monitor):
                    name = " ".join(call[0][:2])
                    most[name] = max(most.get(name, 0), sum(map(len, call)))
                    assert len(call) <= 110, name  # 50 documents, each looked for and marked
                    assert sum(map(len, call)) <= 2_500, name  # 1,000 messages, each with its place
            best: dict[tuple[bytes, int], int] = {}  # by script or command, and how many of it came before
            for _ in range(3):
                client.slowlog_reset()
                there_and_back()
                before_it: Counter[bytes] = Counter()
                for entry in reversed(client.slowlog_get(10_000)):
                    name = b" ".join(entry["command"].split()[:2])
                    key = name, before_it[name]
                    before_it[name] += 1
                    best[key] = min(best.get(key, entry["duration"]), entry["duration"])
            assert max(best.values()) <= 20_000, (cut, best)
        assert len(most) > 5
        assert max(most.values()) > 1_000
        assert store.get("c") == before


@pytest.mark.proves("ttl")
def test_archives_end_with_a_conversation_whose_ttl_is_shortened(server: RealServer, namespace: str) -> None:
    archives = Keyspace(namespace).conversation("c").state[:-1] + b"a:*"
    with HistoryStore(server.url, namespace=namespace, ttl=3600) as store, server.client() as client:
        _fill(store, 10)
        store.compact("c", through="old 2", summary=_summary("s"))
        for ttl in (60, 3600, 60):
            with HistoryStore(server.url, namespace=namespace, ttl=ttl) as other:
                other.append("c", user("new"))
            [archive] = client.scan_iter(match=archives, count=1000)
            assert ttl * 1000 - 30_000 < client.pttl(archive) <= ttl * 1500


def test_nothing_is_left_of_what_was_cleared(own_server: Start, monkeypatch: Any) -> None:
    """Also when there are many documents: those of archived messages are removed in small steps."""
    server = own_server()
    with HistoryStore(server.url) as store, server.client() as client:
        for take_away in (store.clear, store.delete_conversation, lambda name: store.restore(name, [user("x")])):
            before = _fill(store, 2000)
            store.compact("c", through=before[699], summary=_summary("s1"))
            store.compact("c", through=before[1399], summary=_summary("s2"))
            assert len(list(client.scan_iter(match="rhd2:*", count=1000))) == 2001
            take_away("c")
            left = len(store.get("c"))
            assert len(list(client.scan_iter(match="rhd2:*", count=1000))) == left
            assert client.keys("*:a:*") == client.keys("*:g*") == []
            store.delete_conversation("c")


def _just_before(store: HistoryStore, script: str, act: Callable[[], Any], time: int = 1) -> None:
    """Call `act` once, right before the store sends a script for the first (second, ...) time."""
    backend: Any = store._backend
    carry_out, sent = backend.carry_out, []

    def carrying(work: Any, **options: Any) -> Any:
        first = work[0] if type(work) is list else work
        if first.script is not None and first.script.name == script:
            sent.append(first)
            if len(sent) == time:
                act()
        return carry_out(work, **options)

    backend.carry_out = carrying


@contextmanager
def _two_stores(server: RealServer, namespace: str, **options: Any) -> Iterator[tuple[HistoryStore, HistoryStore]]:
    with (
        HistoryStore(server.url, namespace=namespace, **options) as one,
        HistoryStore(server.url, namespace=namespace, **options) as other,
    ):
        yield one, other


@contextmanager
def _archived(server: RealServer, namespace: str) -> Iterator[tuple[HistoryStore, HistoryStore, list[Message]]]:
    """Two stores, and 2,600 messages of which the first half is archived."""
    with _two_stores(server, namespace) as (store, other):
        before = _fill(store, 2600)
        store.compact("c", through=before[1299], summary=_summary("s"))
        yield store, other, before


ACTS: dict[str, Callable[[HistoryStore], Any]] = {
    "edit": lambda other: other.update_message("c", user("other", id="old 1")),
    "delete": lambda other: other.delete_messages("c", ["old 1"]),
    "insert": lambda other: other.append("c", user("old", id="x", timestamp="2001-01-01")),
    "delete and insert": lambda other: (ACTS["delete"](other), ACTS["insert"](other)),
    "compact": lambda other: other.compact("c", through="old 3", summary=_summary("theirs")),
    "clear": lambda other: other.clear("c"),
    "begin anew": lambda other: (other.delete_conversation("c"), _fill(other, 20)),
}


@pytest.mark.parametrize(
    ("seen", "act"),
    [*((True, act) for act in (*ACTS, "append")), *((False, act) for act in (*list(ACTS)[:5], "append"))],
)
def test_changes_right_before_the_commit(server: RealServer, namespace: str, seen: bool, act: str) -> None:
    """With `seen`, a change of the range is a conflict. Without, the compaction begins again."""
    acts = {**ACTS, "append": lambda other: other.append("c", user("new", id="x"))}
    with _two_stores(server, namespace) as (store, other):
        before = _fill(store, 20)[:10]
        _just_before(store, "compact", lambda: acts[act](other))
        if seen and act != "append":
            with pytest.raises(CompactionConflictError):
                store.compact("c", through=before[-1], summary=_summary("s"), seen=before)
            assert store.get("c", include_archived=True) == other.get("c", include_archived=True)
            assert store.get_message("c", "s") is None
            return
        done = store.compact("c", through=before[-1], summary=_summary("s"), seen=before if seen else None)
        everything = store.get("c", include_archived=True)
        replaced = sum(one.position <= before[-1].position for one in everything if one.id != "s")
        assert replaced == done.count + (4 if act == "compact" else 0)
        rest = [f"old {number}" for number in range(10, 20)] + ["x"] * (act == "append")
        assert [one.id for one in store.get("c")] == ["s", *rest]
        totals = store.get_conversation("c")
        assert totals.characters == sum(len(one.text) for one in store.get("c"))


@pytest.mark.proves("at-most-once")
def test_a_compaction_whose_reply_was_lost_does_not_undo_an_expansion(server: RealServer, namespace: str) -> None:
    with _two_stores(server, namespace) as (store, other):
        before = _fill(store, 20)
        backend: Any = store._backend
        node = backend._server.node
        pipeline = node.pipeline

        def lose(commands: Any, **options: Any) -> Any:
            replies = pipeline(commands, **options)
            if other.get_message("c", "s") is not None:
                node.pipeline = pipeline
                other.expand("c", "s")
                raise ConnectionError("the reply was lost")
            return replies

        node.pipeline = lose
        assert store.compact("c", through=before[9], summary=_summary("s")).count == 10
        assert store.get("c") == before


def _given_up(store: HistoryStore, count: int) -> None:
    """A call without a result, whose agent went on without it."""
    store.append_many("c", [assistant(tool_use("1", "f"), id="call"), user("?"), assistant("I go on")])
    _fill(store, count)


def _result(**fields: Any) -> Message:
    return tool(tool_result("1", "r"), id="result", **fields)


LATE: dict[str, Callable[[HistoryStore], Any]] = {
    "result": lambda other: other.append("c", _result()),
    "result among others": lambda other: other.append_many("c", [user("x"), _result(), user("y")]),
    "result of another time": lambda other: other.append("c", _result(timestamp=other.get("c")[-2].timestamp)),
    "result, and all of the log": lambda other: (LATE["result"](other), LATE["all of the log"](other)),
    "append": lambda other: other.append("c", user("x")),
    "append of another time": lambda other: other.append("c", user("x", timestamp=other.get("c")[-2].timestamp)),
    "all of the log": lambda other: [other.append("c", user("x")) for _ in range(200)],
    "record": lambda other: (other.update_conversation("c", title="t"), LATE["append"](other)),
    "record and edit": lambda other: (LATE["record"](other), other.update_message("c", user("new", id="old 15"))),
    "a call of the same id": lambda other: other.append_many("c", [assistant(tool_use("1", "f")), _result()]),
}  # fmt: skip


@pytest.mark.parametrize("act", LATE)
@pytest.mark.parametrize("time", [1, 2])
def test_a_result_at_the_last_moment_keeps_its_call(server: RealServer, namespace: str, act: str, time: int) -> None:
    """Concurrent appends of other messages do not prevent the compaction."""
    with _two_stores(server, namespace, log_length=10) as (store, other):
        _given_up(store, 20)
        if time == 2:
            _just_before(store, "compact", lambda: LATE["append"](other))
        _just_before(store, "compact", lambda: LATE[act](other), time)
        if act.startswith("result"):
            with pytest.raises(InvalidInputError):
                store.compact("c", through="old 9", summary=_summary("s"))
            assert "call" in [message.id for message in store.get("c")]
        else:
            assert store.compact("c", through="old 9", summary=_summary("s")).count == 13
            assert store.get("c")[0].id == "s"


def test_after_each_append_only_new_messages_are_read_again(server: RealServer, namespace: str) -> None:
    with _two_stores(server, namespace) as (store, other):
        _given_up(store, 3000)
        pages: list[None] = []
        for time in range(1, 20):
            _just_before(store, "compact", lambda: LATE["append"](other), time)
            _just_before(store, "page", lambda: pages.append(None), time)
        assert store.compact("c", through="old 9", summary=_summary("s")).count == 13
        assert len(pages) == 4  # the range, and three more to the end


@pytest.mark.parametrize("act", ["append", "insert", "delete", "delete archived", "many"])
@pytest.mark.parametrize(
    ("script", "time"),
    [("copy", 6), ("expand", 2), ("copy", 1), ("expand", 1)],
)
@pytest.mark.full
def test_what_changes_while_an_expansion_is_prepared(
    server: RealServer, namespace: str, script: str, time: int, act: str
) -> None:
    acts: dict[str, Callable[[HistoryStore], Any]] = {
        **ACTS,
        "append": lambda other: other.append("c", user("new", id="x")),
        "delete": lambda other: other.delete_messages("c", ["old 2000"]),
        "delete archived": lambda other: other.delete_messages("c", ["old 5"]),
        "many": lambda other: [other.append_many("c", [user("new") for _ in range(600)]) for _ in range(2)],
    }
    with _archived(server, namespace) as (store, other, before):
        _just_before(store, script, lambda: acts[act](other), time)
        store.expand("c", "s")
        after = store.get("c")
        gone = {"delete": "old 2000", "delete archived": "old 5"}.get(act)
        assert [one for one in after if one.id.startswith("old ")] == [one for one in before if one.id != gone]
        assert len(after) == 2600 + {"append": 1, "insert": 1, "many": 1200}.get(act, -1)
        assert after == sorted(after, key=lambda one: one.position or one)
        assert store.snapshot("c", limit=1).message_count == len(after)
        with server.client() as client:
            pattern = Keyspace(namespace).patterns[0] + b":a:*"
            assert list(client.scan_iter(match=pattern, count=1000)) == []


def _copy_of(client: Any, namespace: str) -> bytes:
    copy = Keyspace(namespace).conversation("c").copy
    assert client.exists(copy)
    return copy


@pytest.mark.proves("deletion")
@pytest.mark.parametrize("act", ["delete_conversation", "clear", "delete", "erase", "update"])
@pytest.mark.full
def test_an_expansion_that_was_killed_leaves_no_copy_of_what_is_removed(
    server: RealServer, namespace: str, act: str
) -> None:
    acts: dict[str, Callable[[HistoryStore], Any]] = {
        "delete_conversation": lambda other: other.delete_conversation("c"),
        "clear": lambda other: other.clear("c"),
        "delete": lambda other: other.delete_messages("c", ["old 2000"]),
        "erase": lambda other: other.erase("c", ["old 5"]),  # which expands the summary before
        "update": lambda other: other.update_message("c", user("redacted", id="old 2000")),
    }

    def die() -> None:
        raise KeyboardInterrupt

    with _archived(server, namespace) as (store, other, _), server.client() as client:
        _just_before(store, "copy", die, 4)
        with pytest.raises(KeyboardInterrupt):
            store.expand("c", "s")
        copy = _copy_of(client, namespace)
        acts[act](other)
        assert not client.exists(copy)


LOSSES: dict[str, Callable[[Any, bytes], Any]] = {
    "removed": lambda client, copy: client.unlink(copy),
    "expired": lambda client, copy: client.pexpire(copy, 0),
    "without its last page": lambda client, copy: client.zremrangebyrank(copy, -300, -1),
    "without one member": lambda client, copy: client.zpopmin(copy),
}


@pytest.mark.proves("archive")
@pytest.mark.parametrize(
    ("kind", "script", "time"),
    [
        *(("plain", "copy", page) for page in range(2, 7)),
        ("plain", "expand", 3),  # the first call of `expand` learns which archive it has to declare
        *(
            pytest.param(kind, script, time, marks=pytest.mark.full)
            for kind in ("valkey", "cluster")
            for script, time in (("copy", 4), ("expand", 3))
        ),
    ],
)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.full
def test_an_expansion_that_loses_its_copy_keeps_all_messages(
    server_of: Any, namespace: str, script: str, time: int, loss: str, kind: str
) -> None:
    """The copy has six pages: three of what comes back, three of what is live."""
    server = server_of(kind)
    with _archived(server, namespace) as (store, _, before), server.client() as client:
        lost: list[bytes] = []

        def lose() -> None:
            lost.append(_copy_of(client, namespace))
            LOSSES[loss](client, lost[0])

        _just_before(store, script, lose, time)
        store.expand("c", "s")
        assert lost
        assert store.get("c") == before
        assert store.snapshot("c", limit=1).message_count == 2600
        assert list(client.scan_iter(match=Keyspace(namespace).patterns[0] + b":a:*", count=1000)) == []


@pytest.mark.parametrize("page", [0, 2, 5, *(pytest.param(page, marks=pytest.mark.full) for page in (1, 3, 4))])
def test_a_page_that_arrives_again_harms_no_expansion(server: RealServer, namespace: str, page: int) -> None:
    """A repeated page is recognized. A repeated first page starts the copy again, which is then not used."""
    with _archived(server, namespace) as (store, other, before):
        sent: list[Any] = []
        backend: Any = store._backend
        carry_out = backend.carry_out

        def carrying(work: Any, **options: Any) -> Any:
            first = work[0] if type(work) is list else work
            name = first.script.name if first.script is not None else ""
            if name == "copy":
                sent.append(work)
            elif len(sent) == 6 and name == "expand":
                other._backend.carry_out(sent[page])
            return carry_out(work, **options)

        backend.carry_out = carrying
        store.expand("c", "s")
        assert len(sent) == (12 if page == 0 else 6)
        assert store.get("c") == before
        for work in sent:  # late
            other._backend.carry_out(work)
        assert store.get("c") == before


def test_what_cannot_be_read_moves_along(own_server: Start) -> None:
    server = own_server("plain")
    with HistoryStore(server.url) as store, server.client() as client:
        _fill(store, 20)
        for rank in (3, 9):
            [(member, score)] = client.zrange(KEYS.messages, rank, rank, withscores=True)
            client.zrem(KEYS.messages, member)
            client.zadd(KEYS.messages, {member[:19] + b"\xc1": score})
        before = client.zrange(KEYS.messages, 0, -1, withscores=True)
        assert store.compact("c", through="old 8", summary=_summary("s")).count == 8
        assert [message.id for message in store.get("c")] == ["s", *(f"old {number}" for number in range(10, 20))]
        store.expand("c", "s")
        assert client.zrange(KEYS.messages, 0, -1, withscores=True) == before
