"""Each script declares every key that it uses, as docs/data-model.md says: see "Declared keys".

The nodes tell what they execute (MONITOR): the keys that a script declares, and those of each command in it. A server
that takes no other keys, and no Lua 5.1, executes the same work."""

import contextlib
import hashlib
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

import pytest

from redis_history import Conversation, HistoryStore, Usage, assistant, tool_use, user
from redis_history.cli.doctor import examine
from redis_history.errors import MessageNotFoundError
from redis_history.store.operations import (
    ChangeTurns,
    Claim,
    LeaveRun,
    LookForTurns,
    NoteFork,
    RingWorker,
    TakeRun,
    TakeSeat,
)
from redis_history.store.operations.keys import Keyspace
from redis_history.store.operations.scripts import SCRIPTS
from redis_history.values import beside
from tests.conftest import Servers
from tests.docs.pages import DOCS, rows, sections
from tests.support.cluster import RealCluster
from tests.support.lua54 import StrictServer
from tests.support.script_keys import keys_of
from tests.support.servers import RealServer, wait_until

#: The kind of a key, by what follows the hash tag.
KINDS: Final = {
    "registry": r"c",
    "list": r"[uvf]:\w+",
    "approvals": r"a(:[uv]\w+)?",
    "trail": r"e",
    "turns": r"[qh]|q(:[0-9a-f]{40}){1,2}",
    "seats": r"k(:[0-9a-f]{40}){2}",
    "ledger": r"[^:]+:k",
    "usage": r"p(:[0-9a-f]{40})?",
    "budget": r"b:[0-9a-f]{40}",
    "work": r"g(:\w+(\.\w+)?)?",
    "state": r"[^:]+:s",
    "messages": r"[^:]+:m",
    "log": r"[^:]+:l",
    "copy": r"[^:]+:x",
    "archive": r"[^:]+:a:\w+:\d+",
    "content": r"[^:]+:t:\w+",
    "large": r"[^:]+:(d:\w+:)?b:\w+",
    "draft": r"[^:]+:d:\w+(:[0bk])?",
}
#: Scripts that only work on search documents.
OF_THE_INDEX: Final = {"documents", "mark", "purge", "search", "fetch"}


def _kind(key: str) -> str:
    if key.startswith("rhd2:"):
        return "document"
    [kind] = [kind for kind, pattern in KINDS.items() if re.fullmatch(pattern, key.partition("}:")[2])]
    return kind


class Traced:
    """The keys that scripts declared and used, by script name."""

    def __init__(self) -> None:
        self._names = {one.sha.decode(): one.name for one in SCRIPTS.values()}
        self.declared: dict[str, list[set[str]]] = defaultdict(list)
        self.undeclared: dict[str, set[str]] = defaultdict(set)
        self._name, self._keys = "", set[str]()

    def read(self, line: str) -> None:
        where, *words = re.findall(r"\[\d+ ([^\]]+)\]|\"((?:[^\"\\]|\\.)*)\"", line)
        command, *args = [word for _, word in words]
        if command.upper() in ("EVALSHA", "EVAL"):
            source = args[0].encode().decode("unicode_escape").encode("latin-1")
            digest = (
                args[0] if command.upper() == "EVALSHA" else hashlib.sha1(source, usedforsecurity=False).hexdigest()
            )
            self._name, self._keys = self._names.get(digest, ""), set(args[2 : 2 + int(args[1])])
            if self._name:
                self.declared[self._name].append(set(map(_kind, self._keys)))
        elif where[0] == "lua" and self._name:
            for key in map(bytes.decode, keys_of([command.encode(), *map(str.encode, args)])):
                if key.endswith((":none", ":none2")):  # never made: they tell whether the slot moves
                    continue
                if key not in self._keys:
                    self.undeclared[self._name].add(_kind(key))


@contextlib.contextmanager
def traced(server: RealCluster | RealServer) -> Iterator[Traced]:
    found = Traced()
    with contextlib.ExitStack() as stack:
        nodes = server.nodes if isinstance(server, RealCluster) else [server]
        clients = [stack.enter_context(node.client()) for node in nodes]
        monitors = [stack.enter_context(client.monitor()) for client in clients]
        yield found
        for client, monitor in zip(clients, monitors, strict=True):
            client.echo("the end")
            while True:
                line = monitor.connection.read_response(disable_decoding=True)
                text = line.decode("latin-1")
                if '"ECHO" "the end"' in text:
                    break
                found.read(text)


def _messages(count: int, start: int = 0) -> list[Any]:
    return [user(f"word {number}", id=f"m{number}") for number in range(start, start + count)]


def _work(server: RealCluster | RealServer, namespace: str, url: str | None = None) -> None:
    """All operations, in their different situations. `url`: of a proxy in front of the server."""
    url, state = url or server.url, Keyspace(namespace).conversation("c").state
    with (
        server.client() as client,
        HistoryStore(url, namespace=namespace) as store,
        HistoryStore(url, namespace=namespace, max_messages=5) as capped,
        HistoryStore(url, namespace=namespace, ttl=3600, audit=60) as brief,
    ):
        store.create_conversation(Conversation("c", user_id="u", agent_name="a"))
        first = store.snapshot("c").cursor
        store.append_many("c", _messages(20))
        store.append("c", user("word 3", id="m3"))
        store.update_message("c", user("other", id="m1"))
        store.delete_messages("c", ["m2", "unknown"])
        for through, name in (("m5", "s1"), ("m7", "s2")):
            store.compact("c", through=through, summary=user("so far", id=name, metadata={"is_summary": True}))
        with HistoryStore(url, namespace=namespace) as other:  # which does not know the archives yet
            other.get_message("c", "m4")
        with HistoryStore(url, namespace=namespace) as other, other.subscribe("c", after=first) as changes:
            for _ in range(5):
                assert changes.get(timeout=10)
        store.get("c", include_archived=True)
        store.get_message("c", "m4")
        cursor = store.snapshot("c").cursor
        store.update_conversation("c", user_id="v", title="t")
        store.merge_metadata("c", {"k": 1})
        store.append("c", assistant(tool_use("call", "pay", needs_approval=True), id="asks"))
        store.update_conversation("c", user_id="w", title="t")
        store.fork("c", "fork")
        store.decide("c", "call", True)
        store.append("fork", user("x"))
        with store.subscribe("c", after=cursor) as changes:
            assert changes.get(timeout=10)
        with store.subscribe_all() as every:
            assert every.get(timeout=0) is None
        with store.stream("c", id="live") as reply:
            reply.write("text")
            wait_until(lambda: (found := store.get_message("c", "live")) and found.text, "the text")
            brief.append("c", user("y"))  # renews the content and the archives
            brief.update_conversation("c", title="t")  # these, too
            brief.compact("c", through="m8", summary=user("so far", id="s3", metadata={"is_summary": True}))
            brief.expand("c", "s3")
            lease = client.hget(state, "~")
            wait_until(lambda: client.hget(state, "~") != lease, "the writer to renew its lease")
            store.snapshot("c")
            store.get("c")
            with store.subscribe("c") as changes:
                reply.write("more")
                assert changes.get(timeout=10)
            store.list_conversations(user_id="w")
        store.search("c", "word")
        store.search("c", "word", context=1, archived=True)
        store.search_all("word")
        store.erase("c", ["m4"])
        summary = store.compact("c", through="m8", summary="again").summary
        store.expand("c", summary.id)
        store.compact("c", through="m8", summary="again")
        last = store.compact("c", through="m9", summary="and again").summary
        store.delete_messages("c", [last.id])
        store.erase("c", ["m8"])  # and the summary before, which is removed after the change
        store.backend.execute(NoteFork("c", new_id="never", token="0" * 16, begins=True))
        store.clear("c")
        capped.append_many("c", _messages(4, 100))
        with capped.stream("c", id="cut") as reply:
            reply.write("text")
            wait_until(lambda: (found := store.get_message("c", "cut")) and found.text, "the text")
            capped.append_many("c", _messages(4, 200))
            with contextlib.suppress(MessageNotFoundError):  # the cap has removed it
                reply.finish()
        store.restore("c", [*_messages(120), assistant(tool_use("call", "pay", needs_approval=True))])
        capped.append("c", user("z"))
        store.delete_conversation("c")
        with store.run("c") as run:
            run.append(user("x"))
        for start in range(0, 2100, 700):
            store.append_many("c", _messages(700, start))
        summary = store.compact("c", through="m1049", summary="so far").summary
        store.expand("c", summary.id)
        store.clear("c")
        with HistoryStore(url, namespace=namespace, ttl=1) as brief:
            for conversation_id, one in (("gone", brief), (_neighbor("gone"), store)):
                one.append(conversation_id, assistant(tool_use("call", "pay", needs_approval=True)))
            wait_until(lambda: store.get_conversation("gone") is None, "the conversation to expire")
            brief.ask("gone", user("x"))
            wait_until(lambda: store.get_conversation("gone") is None, "the conversation to expire")
            assert not store.list_turns()
        _work_on_turns(store)
        _use_tokens(store)
        store.snapshot("gone")
        store.list_conversations()
        store.list_approvals()


def _work_on_turns(store: HistoryStore) -> None:
    """All operations on turns, of a conversation with an owner and of another one."""
    store.create_conversation(Conversation("t", user_id="u"))
    for name in ("t", "t2"):
        for agent in ("a", None):
            store.ask(name, user("x"), agent_name=agent)
        with store.run(name):
            store.ask(name, user("y"))
        store.backend.execute(ChangeTurns(name, "wait", "a", False))
        store.retry_turn(name, agent_name="a")
    assert not store.list_turns(status="parked")
    look = store.backend.execute(LookForTurns(None))
    assert {one.conversation_id for one in look.candidates} >= {"t", "t2"}
    for one in look.candidates:
        op = TakeRun(one.conversation_id, (("0" * 16, None),), False, claim=Claim(None, 2, 0, 0, one.queue))
        run = store.backend.execute(op)
        store.backend.execute(RingWorker(one.conversation_id, "a"))
        if run.fence is not None:
            store.backend.execute(LeaveRun(one.conversation_id, ("0" * 16,)))
    store.backend.execute(TakeSeat(None, "u", "1", 1, 60.0))
    assert store.drop_turn("t2")
    store.clear("t")
    assert not store.list_turns()
    store.ask("t", user("z"))
    store.delete_conversation("t")


def _use_tokens(store: HistoryStore) -> None:
    """All operations on usage: of messages with usage, and of an owner with a budget."""
    store.set_budget("u", tokens=10_000)
    store.create_conversation(Conversation("used", user_id="u"))
    with store.run("used") as run:
        run.append(assistant("x", id="a", usage=Usage(7, 3)))
    with store.stream("used", id="b") as reply:
        reply.write("y")
        reply.finish(usage=Usage(1, 2))
    store.update_message("used", assistant("z", id="a", usage=Usage(9, 3)))
    assert store.usage(user_id="u").input_tokens == 10
    store.fork("used", "used again")
    store.compact("used", through="a", summary="so far")
    store.update_conversation("used", user_id="v")
    store.delete_messages("used", ["b"])
    store.clear("used")
    store.delete_conversation("used")


def _neighbor(conversation_id: str) -> str:
    """Another conversation in the same bucket."""
    bucket = Keyspace.bucket_of(conversation_id)
    return next(name for number in itertools.count() if Keyspace.bucket_of(name := str(number)) == bucket)


@pytest.mark.proves("cluster")
def test_scripts_use_the_keys_that_they_declare(
    server_of: Servers, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = server_of("cluster")
    monkeypatch.setattr(beside, "LARGE_BYTES", 7)  # "word 10" and later ones
    monkeypatch.setattr(beside, "BEGINNING_BYTES", 2)
    with traced(cluster) as found:
        _work(cluster, namespace)
    table = {
        name: [set(filter(None, cell.split(", "))) for cell in cells]
        for script, *cells in rows(sections(DOCS / "data-model.md")["Declared keys"])
        for name in re.findall(r"`(\w+)`", script)
    }
    assert found.declared.keys() == table.keys(), "all scripts were executed, and have a row"
    for name, (always, needed, undeclared) in table.items():
        assert always <= set.intersection(*found.declared[name]), name
        assert set.union(*found.declared[name]) <= always | needed, name
        assert found.undeclared[name] <= undeclared, name


@pytest.mark.parametrize("kind", ["plain", "redis"])
@pytest.mark.full
def test_scripts_declare_their_keys_on_one_server(kind: str, server_of: Servers, namespace: str) -> None:
    server = server_of(kind)
    with traced(server) as found:
        _work(server, namespace)
    undeclared = set().union(*found.undeclared.values())
    assert undeclared <= ({"document", "work"} if kind == "redis" else set())
    assert found.declared.keys() | OF_THE_INDEX == {*SCRIPTS}


@pytest.mark.parametrize("product", ["dragonfly", "upstash"])
@pytest.mark.full
def test_scripts_run_on_lua_54_with_declared_keys_only(product: str, server_of: Servers, namespace: str) -> None:
    server = server_of("plain")
    versions = {"dragonfly": {"redis_version": "7.4.0", "dragonfly_version": "df-v1.36.0"}}
    info = versions.get(product, {"redis_version": "7.0.0", "upstash_version": "1.12.1"})
    strict = StrictServer(str(server.socket), info=info, locks=product == "upstash")
    try:
        _work(server, namespace, strict.url)
        assert not strict.faults
        assert strict.most_arguments <= 3500
        assert strict.with_flag == {product == "upstash"}
        with HistoryStore(strict.url, namespace=namespace) as store:
            found = {one.check: one for one in examine(store, strict.url)}
        assert {name: one.detail for name, one in found.items() if one.state == "problem"} == {}
        assert "declared keys only" in found["search"].detail
        assert not strict.faults
    finally:
        strict.close()


@pytest.mark.proves("cluster")
@pytest.mark.full
def test_writes_to_a_conversation_with_an_owner_take_one_round_trip(server_of: Servers, namespace: str) -> None:
    cluster = server_of("cluster")
    with HistoryStore(cluster.url, namespace=namespace) as store:
        store.create_conversation(Conversation("c", user_id="u"))
        store.append("c", user("x"))
        with traced(cluster) as found:
            for _ in range(3):
                store.append("c", user("x"))
        assert found.declared["append"] == 3 * [{"state", "messages", "log", "registry", "list"}]
        store.update_conversation("c", user_id="v", agent_name="a")
        store.append("c", user("x"))
        with traced(cluster) as found:
            store.append("c", user("x"))
        assert len(found.declared["append"]) == 1
        assert [one.conversation_id for one in store.list_conversations(user_id="v")] == ["c"]
        assert not store.list_conversations(user_id="u")


def test_repeated_calls_on_one_server_take_one_round_trip(server_of: Servers, namespace: str) -> None:
    server = server_of("plain")
    with HistoryStore(server.url, namespace=namespace) as store:
        store.create_conversation(Conversation("c", user_id="u"))
        store.append_many("c", _messages(5))
        store.compact("c", through="m2", summary="so far")
        store.get("c", include_archived=True)
        with store.stream("c", id="live") as reply:
            reply.write("text")
            wait_until(lambda: (found := store.get_message("c", "live")) and found.text, "the text")
            store.snapshot("c")
            with traced(server) as found:
                for _ in range(3):
                    store.append("c", user("x"))
                    store.snapshot("c")
                    store.get("c", include_archived=True)
            assert found.declared["append"] == 3 * [{"state", "messages", "log", "registry", "list"}]
            assert found.declared["head"] == 3 * [{"state", "messages", "log", "registry", "content", "archive"}]
            assert len(found.declared["page_archived"]) == 3
        with traced(server) as found, store.stream("c") as reply:
            reply.write("text")
        assert len(found.declared["append"]) == 1, "the writer declares the content itself"
        assert len(found.declared["update"]) == 1
