"""docs/how-to/security.md, against a real server."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any

import pytest
import redis

from redis_history import HistoryStore, user
from redis_history.backends.redis.keys import Keyspace
from redis_history.backends.redis.rights import RIGHTS, patterns
from redis_history.errors import BackendError, BackendRefusedError, CapabilityError
from redis_history.importers import export_messages
from tests.conftest import drop_indexes
from tests.docs.pages import DOCS, blocks, prose
from tests.support.servers import RealServer, wait_until

KEYS = Keyspace("support")
KEYS_OF_C = KEYS.conversation("c")
ACL, OPERATOR, READER = (
    block.content.split() for block in blocks(DOCS / "how-to" / "security.md") if block.language == "acl"
)


def _user(server: RealServer, rules: list[str]) -> str:
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "support", "reset", *rules)
        client.execute_command("ACL", "LOG", "RESET")
        client.script_flush()
        client.flushall()
        drop_indexes(client, "support")
    return f"unix://support:change-me@{server.socket}"


def _denied(server: RealServer) -> set[str]:
    """What was refused, but for the settings and the published messages, which a store can do without."""
    with server.client() as client:
        found = {entry["object"].lower() for entry in client.acl_log()}
    return {one for one in found if one != "config|get" and not one.startswith("rh2:{support:")}


def _everything(server: RealServer, url: str, listening: bool) -> None:
    """All that a store does; subscriptions first, so that deletions find somebody who listens."""
    channel = b"__keyspace@0__:" + KEYS_OF_C.log

    def heard(count: int) -> bool:
        with server.client() as client:
            return not listening or client.pubsub_numsub(channel)[0][1] == client.pubsub_numpat() == count

    same = next(name for name in map(str, range(10_000)) if KEYS.conversation(name).registry == KEYS_OF_C.registry)
    with HistoryStore(url, namespace="support") as store, HistoryStore(url, namespace="support", ttl=0.05) as mortal:
        with store.subscribe("c") as subscription, store.subscribe_all() as every:
            wait_until(lambda: heard(1) or _denied(server), "the subscription")
            store.append_many("c", [user(str(n), id=str(n), timestamp="2026-01-31") for n in range(5)])
            assert subscription.get(timeout=10) is not None
            assert every.get(timeout=10) is not None
            messages = store.get("c")
            assert store.get("c", since="2026-01-01", before=messages[3].position) == messages[:3]
            assert store.get_message("c", "2") == messages[2]
            assert store.delete_messages("c", ["1", "3"]) == 2
            assert store.snapshot("c").message_count == 3
            store.update_conversation("c", title="t")
            store.update_message("c", user("new", id="2"))
            for through in ("0", "2"):
                store.compact("c", through=through, summary=user(id=f"s{through}", metadata={"is_summary": True}))
            assert len(store.get("c", include_archived=True)) == 5
            for through in ("2", "0"):
                store.expand("c", f"s{through}")
            store.restore("c", store.get("c")[:2])
            with store.stream("c", id="reply") as reply:
                reply.write("a word")
                wait_until(lambda: store.get("c")[-1].text == "a word" or _denied(server), "what is written")
            store.clear("c")
            mortal.append(same, user("its name stays until somebody lists"))
            wait_until(lambda: mortal.get(same) == [], "the end of a conversation")
            assert [conversation.conversation_id for conversation in store.list_conversations()] == ["c"]
            assert store.delete_conversation("c")
        wait_until(lambda: heard(0) or _denied(server), "the end of the subscription")
        _search(server, url, store)
        assert store.capabilities.backend == "redis"
    with HistoryStore(url, namespace="support", durability="replicas") as durable:
        durable.append("c", user("x"))
        durable.delete_conversation("c")


def _search(server: RealServer, url: str, store: HistoryStore) -> None:
    """With an index, also over long conversations, and through a change of its form."""
    with HistoryStore(url, namespace="support", search="require") as searching:
        searching.append_many("c", [user("word", id=str(n)) for n in range(1000)])
        searching.append("c", user("rare", id="one over what is removed at once"))
        for hits in (searching.search("c", "rare", context=1), searching.search_all("rare")):
            assert [hit.message.text for hit in hits] == ["rare"]
        assert searching.reindex().documents == 1001
    with HistoryStore(url, namespace="support", language="german") as german, server.client() as client:
        [former] = client.execute_command("FT._LIST")

        def moved() -> bool:
            german.search_all("rare")
            return former not in client.execute_command("FT._LIST") or bool(_denied(server))

        wait_until(moved, "the index of another form")
    assert store.clear("c") > 0


@pytest.mark.proves("acl")
@pytest.mark.full
def test_the_access_rights_are_enough_and_none_too_many(own_server: Callable[..., RealServer]) -> None:
    server = own_server(
        tcp=True,
        options=("--notify-keyspace-events", "Kl", "--appendfsync", "always", "--repl-diskless-sync-delay", "0"),
    )
    own_server(options=("--replicaof", "127.0.0.1", str(server.port)))
    with server.client() as client:
        wait_until(lambda: client.wait(1, 100) == 1, "the replica to follow")
    assert OPERATOR[:2] == ["user", "operator"]
    rules = [rule.replace("change-me-three", "change-me") for rule in OPERATOR[2:]]
    _everything(server, _user(server, rules), listening=True)
    assert _denied(server) == set()

    # This server would have to show its setting appendfsync before a store relies on WAITAOF.
    allowed = [rule for rule in rules if rule.startswith("+") and rule != "+waitaof"]
    assert len(allowed) > 20
    for rule in allowed:
        url = _user(server, [other for other in rules if other != rule])
        with contextlib.suppress(BackendError, CapabilityError):
            _everything(server, url, listening=not rule.endswith("subscribe"))
        wait_until(lambda: _denied(server), f"anything that needs {rule}")
        assert _denied(server) == {rule.removeprefix("+")}


def test_the_doctor_looks_for_these_rights() -> None:
    """For those that the test above has shown to be needed; the others are of a cluster."""
    looked_for = {command.split()[0] for purpose, commands in RIGHTS.items() for command in commands}
    allowed = {rule.removeprefix("+") for rule in OPERATOR if rule.startswith("+")}
    indexing = {f"+{command.split()[0]}" for command in RIGHTS["indexing"]}
    assert set(OPERATOR[4:]) - set(ACL[4:]) == indexing
    assert looked_for - {command.split()[0] for command in RIGHTS["clustering"]} == allowed
    named = prose(DOCS / "how-to" / "cluster.md")
    assert all(f"`+{command.split()[0]}`" in named for command in RIGHTS["clustering"])
    assert set(patterns(KEYS, 0)) == {rule for rule in ACL if rule[0] in "~&"}


@pytest.mark.proves("acl")
def test_the_access_rights_end_at_the_namespace(own_server: Callable[..., RealServer]) -> None:
    server = own_server()
    url = _user(server, ACL[2:])
    for namespace in ("support2", "other", "support:x"):
        with HistoryStore(server.url, namespace=namespace) as others:
            others.append("c", user("x"))
        with redis.Redis.from_url(url) as client, pytest.raises(redis.ResponseError, match=r"(?i)permission"):
            client.execute_command("FT.SEARCH", Keyspace(namespace).index, "*")
        with HistoryStore(url, namespace=namespace) as store:
            with pytest.raises(BackendRefusedError):
                store.append("c", user("x"))
            with pytest.raises(BackendRefusedError):
                store.get("c")


@pytest.mark.proves("acl")
@pytest.mark.parametrize("line", [ACL, OPERATOR, READER], ids=["tenant", "operator", "reader"])
def test_no_user_sees_passwords_or_other_namespaces(own_server: Callable[..., RealServer], line: list[str]) -> None:
    server = own_server()
    rules = [re.sub(r"^>.*", ">change-me", rule) for rule in line[2:]]
    url = _user(server, rules)
    with HistoryStore(server.url, namespace="other", search="require") as others:
        others.append("c", user("a secret of others"))
    keys = Keyspace("other")
    with redis.Redis.from_url(url) as client:
        refused: list[tuple[Any, ...]] = [
            ("CONFIG", "GET", "requirepass"),
            ("CONFIG", "GET", "masterauth"),
            ("ACL", "LIST"),
            ("KEYS", "*"),
            ("GET", "anything"),
            ("ZRANGE", keys.conversation("c").messages, 0, -1),
            ("FT.SEARCH", keys.index, "*"),
        ]
        if line is not OPERATOR:
            refused += [
                ("FT.CREATE", KEYS.index + b":mine", "PREFIX", 1, keys.documents, "SCHEMA", "t", "TEXT"),
                ("FT.ALIASADD", KEYS.index + b":mine", keys.index),
                ("FT.DROPINDEX", KEYS.index),
                ("SCAN", 0),
            ]
        for command in refused:
            with pytest.raises(redis.ResponseError, match=r"(?i)permission"):
                client.execute_command(*command)


def test_a_tenant_uses_the_index_that_an_operator_made(own_server: Callable[..., RealServer]) -> None:
    server = own_server(options=("--notify-keyspace-events", "Kl"))
    url = _user(server, ACL[2:])
    with HistoryStore(url, namespace="support") as tenant:
        tenant.append_many("c", [user("a word"), user("another one")])
        assert tenant.capabilities.search == "client"
        assert [hit.message.text for hit in tenant.search("c", "word")] == ["a word"]
    operator = [rule.replace("change-me-three", "change-me") for rule in OPERATOR[2:]]
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "operator", "reset", *operator)
    with HistoryStore(url.replace("support:", "operator:"), namespace="support") as store:
        assert store.reindex().documents == 2
    with HistoryStore(url, namespace="support") as tenant:
        tenant.append("d", user("the same word"))
        assert tenant.capabilities.search == "server"
        assert len(tenant.search_all("word")) == 2
    assert _denied(server) <= {"ft.create"}


def _read_all(server: RealServer, url: str) -> None:
    """All that one does who only reads, while others write."""

    def heard(count: int) -> bool:
        with server.client() as client:
            listens = client.pubsub_numsub(b"__keyspace@0__:" + KEYS_OF_C.log)[0][1]
            return listens == client.pubsub_numpat() == count or bool(_denied(server))

    options: dict[str, Any] = {"namespace": "support", "search": "off", "poll_interval": 0.1}
    with HistoryStore(server.url, namespace="support") as others, HistoryStore(url, **options) as store:
        others.append_many("c", [user(f"word {n}", id=str(n), timestamp="2026-01-31") for n in range(5)])
        others.compact("c", through="1", summary="two words")
        messages = store.get("c")
        assert store.get("c", since="2026-01-01", before=messages[3].position) == messages[:3]
        assert len(store.get("c", include_archived=True)) == 6
        assert store.get_message("c", "1") is not None
        assert list(store.iter("c")) == store.snapshot("c").messages == messages
        assert [hit.message.id for hit in store.search("c", '"word 4"')] == ["4"]
        assert [one.conversation_id for one in store.list_conversations()] == ["c"]
        assert store.get_conversation("c") == others.get_conversation("c")
        assert export_messages(store, server.folder / "exported").messages == 4
        with store.subscribe("c") as subscription, store.subscribe_all() as every:
            wait_until(lambda: heard(1), "the subscriptions")
            others.append("c", user("live"))
            assert subscription.get(timeout=10) is not None
            assert every.get(timeout=10) is not None
            with others.stream("c") as reply:
                reply.write("a word")
                wait_until(lambda: store.get("c")[-1].text == "a word" or _denied(server), "what is written")
        wait_until(lambda: heard(0), "the end of the subscriptions")


@pytest.mark.proves("acl")
def test_the_rights_of_a_user_that_only_reads(own_server: Callable[..., RealServer]) -> None:
    server = own_server(options=("--notify-keyspace-events", "Kl"))
    assert READER[:2] == ["user", "viewer"]
    rules = [rule.replace("change-me-too", "change-me") for rule in READER[2:]]
    url = _user(server, rules)
    _read_all(server, url)
    assert _denied(server) == set()

    with HistoryStore(url, namespace="support", search="off") as store, server.client() as client:
        before = {key: client.dump(key) for key in client.keys("*")}
        for write in (
            lambda: store.append("c", user("x")),
            lambda: store.append("new", user("x")),
            lambda: store.update_message("c", user("x", id="4")),
            lambda: store.update_conversation("c", title="t"),
            lambda: store.delete_messages("c", ["4"]),
            lambda: store.restore("c", [user("x")]),
            lambda: store.compact("c", through="3", summary="x"),
            lambda: store.expand("c", store.get("c")[0].id),
            lambda: store.clear("c"),
            lambda: store.delete_conversation("c"),
        ):
            with pytest.raises(BackendRefusedError):
                write()
            assert {key: client.dump(key) for key in client.keys("*")} == before

    for rule in (rule for rule in rules if rule.startswith("+")):
        url = _user(server, [other for other in rules if other != rule])
        with contextlib.suppress(BackendError, AssertionError):
            _read_all(server, url)
        assert rule.removeprefix("+") in _denied(server), f"nothing needs {rule}"


def test_slow_commands_show_pieces_of_messages(own_server: Callable[..., RealServer]) -> None:
    server = own_server(options=("--slowlog-log-slower-than", "0"))
    with HistoryStore(server.url, namespace="support") as store, server.client() as client:
        store.append("c", user("secret " + "x" * 1000))
        logged = b" ".join(entry["command"] for entry in client.slowlog_get(100))
        assert b"secret xxx" in logged
        assert b"x" * 129 not in logged
