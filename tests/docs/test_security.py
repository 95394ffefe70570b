"""docs/how-to/security.md, against a real server."""

from __future__ import annotations

import contextlib
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
ACL, READER = (block.content.split() for block in blocks(DOCS / "how-to" / "security.md") if block.language == "acl")


def _user(server: RealServer, rules: list[str]) -> str:
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "support", "reset", *rules)
        client.execute_command("ACL", "LOG", "RESET")
        client.script_flush()
        client.flushall()
        drop_indexes(client, "support")
    return f"unix://support:change-me@{server.socket}"


def _denied(server: RealServer) -> set[str]:
    with server.client() as client:
        return {entry["object"].lower() for entry in client.acl_log()}


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
    for durability in ("fsync", "replicas"):
        with HistoryStore(url, namespace="support", durability=durability) as durable:  # type: ignore[arg-type]
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
    assert ACL[:2] == ["user", "support"]
    rules = ACL[2:]
    _everything(server, _user(server, rules), listening=True)
    assert _denied(server) == set()

    allowed = [rule for rule in rules if rule.startswith("+")]
    assert len(allowed) > 20
    for rule in allowed:
        url = _user(server, [other for other in rules if other != rule])
        with contextlib.suppress(BackendError, CapabilityError):
            _everything(server, url, listening=not rule.endswith("subscribe"))
        wait_until(lambda: _denied(server), f"anything that needs {rule}")
        # A user who cannot see whether notifications are on also listens to published messages.
        tried = "rh2:{support:" if rule == "+config|get" else "no channel"
        assert {one for one in _denied(server) if not one.startswith(tried)} == {rule.removeprefix("+")}


def test_the_doctor_looks_for_these_rights() -> None:
    """For those that the test above has shown to be needed; the others are of a cluster."""
    looked_for = {command.split()[0] for purpose, commands in RIGHTS.items() for command in commands}
    allowed = {rule.removeprefix("+") for rule in ACL if rule.startswith("+")}
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
