"""Findings from the answers of servers that tests cannot start."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs
from redis.exceptions import NoPermissionError

from redis_history.backends.redis.calls import Searching
from redis_history.backends.redis.keys import Keyspace
from redis_history.backends.redis.search_index import IndexState
from redis_history.capabilities import Capabilities
from redis_history.doctor.checks import Answers, Finding, Where, check_search, check_server, where_is
from redis_history.doctor.examination import read_answers
from redis_history.errors import ConfigurationError

KEYS = Keyspace("n")
WHERE = where_is("redis://ann:secret@db.example:6380/0?socket_timeout=1", 0)
GOOD = Capabilities(
    "redis", "8.4.0", "standalone", search_module="search 8.4.0", notifications=True, aof=True, appendfsync="everysec",
    snapshots=True, eviction="noeviction", replicas=0, durability=("server", "fsync"),
)  # fmt: skip
ANSWERS = Answers(info=[{"role": "master", "used_memory": "5"}], settable=True, clock=[0.0], refusal=None, missing={})


def findings(where: Where = WHERE, answers: dict[str, Any] | None = None, **changes: Any) -> dict[str, Finding]:
    said = structs.replace(ANSWERS, **(answers or {}))
    return {one.check: one for one in check_server(structs.replace(GOOD, **changes), said, where)}


def test_a_server_without_a_fault() -> None:
    assert {one.state for one in findings().values()} == {"ok"}
    assert [one.fix for one in findings().values()] == [None] * 7


def test_a_file_that_was_not_rewritten_since_the_start_is_to_be_rewritten_if_it_was_truncated() -> None:
    def fix(where: Where = WHERE, rewritten: str = "-1", **changes: Any) -> str:
        found = findings(where, {"info": [{"aof_last_rewrite_time_sec": rewritten}]}, **changes)["persistence"]
        assert found.state == "ok"
        return found.fix or ""

    assert fix().endswith("BGREWRITEAOF")
    assert fix(rewritten="0") == ""
    assert fix(backend="valkey", version="9.1.0") == ""
    assert fix(WHERE._replace(private=True)) == ""


@pytest.mark.parametrize(
    ("backend", "version", "first"),
    [
        ("redis", "6.2.19", "6.2.20"), ("redis", "7.0.15", "7.2.11"), ("redis", "7.2.10", "7.2.11"),
        ("redis", "7.4.5", "7.4.6"), ("redis", "8.0.3", "8.0.4"), ("redis", "8.2.1", "8.2.2"),
        ("valkey", "7.2.10", "7.2.11"), ("valkey", "8.0.5", "8.0.6"), ("valkey", "8.1.3", "8.1.4"),
        ("redis", "6.2.20", None), ("redis", "7.4.6", None), ("redis", "8.4.0", None), ("valkey", "9.0.0", None),
    ],
)  # fmt: skip
def test_versions_with_the_hole(backend: str, version: str, first: str | None) -> None:
    found = findings(backend=backend, version=version)["version"]
    if first is None:
        assert found == Finding("version", "ok", f"{backend.capitalize()} {version}")
    else:
        assert (found.state, found.fix) == ("limited", f"upgrade to {backend.capitalize()} {first} or newer")
        private = findings(WHERE._replace(private=True), backend=backend, version=version)["version"]
        assert private.state == "ok"


@pytest.mark.parametrize(
    ("changes", "answers", "check", "state"),
    [
        ({"version": None}, {}, "version", "limited"),
        ({"mode": "sentinel"}, {}, "servers", "limited"),
        ({"mode": "sentinel", "replicas": 2}, {}, "servers", "ok"),
        ({}, {"info": [{"role": "slave"}]}, "servers", "problem"),
        ({"eviction": "volatile-lru"}, {}, "memory", "problem"),
        ({}, {"info": [{"used_memory": "95", "maxmemory": "100"}]}, "memory", "limited"),
        ({}, {"info": [{"used_memory": "5", "maxmemory": "100"}]}, "memory", "ok"),
        ({}, {"info": [{"aof_last_write_status": "err"}]}, "disk", "problem"),
        ({"aof": False}, {}, "persistence", "problem"),
        ({"aof": False, "snapshots": False}, {}, "persistence", "problem"),
        ({"aof": None}, {}, "persistence", "limited"),
        ({"appendfsync": "no"}, {}, "persistence", "problem"),
        ({"appendfsync": "always"}, {}, "persistence", "ok"),
        ({"version": "7.0.0"}, {}, "durability", "limited"),
        ({"backend": "valkey", "version": "9.1.2"}, {}, "durability", "limited"),
        ({}, {"refusal": "NOPERM"}, "rights", "problem"),
        ({}, {"missing": None}, "rights", "ok"),
        ({}, {"missing": {"storing": ["rpush"]}}, "rights", "problem"),
        ({}, {"missing": {"searching": ["ft.search"]}}, "rights", "limited"),
        ({}, {"missing": {"describing": ["module|list"]}}, "rights", "ok"),
        ({"notifications": None}, {}, "notifications", "limited"),
        ({"notifications": False}, {}, "notifications", "ok"),
        ({"notifications": False}, {"settable": False}, "notifications", "limited"),
    ],
)  # fmt: skip
def test_the_state_of_each_check(changes: dict[str, Any], answers: dict[str, Any], check: str, state: str) -> None:
    assert findings(answers=answers, **changes)[check].state == state


def test_the_command_that_grants_rights() -> None:
    missing = {"storing": ["rpush", "hset"], "searching": ["hset"]}
    cli = "redis-cli -h db.example -p 6380 --user AN-ADMIN --askpass ACL SETUSER"
    for user, lacking, words in (
        ("bob", ["~rh2:{n:*"], "bob '~rh2:{n:*' +rpush +hset"),
        ("bob", [], "bob +rpush +hset"),
        (None, [], "ann +rpush +hset"),  # who the URL says, where the server does not
    ):
        answers = {"missing": missing, "user": user, "lacking": lacking}
        assert findings(answers=answers)["rights"].fix == f"{cli} {words}"
    refused = findings(answers={"refusal": "NOPERM"})["rights"]
    assert refused.fix == f"{cli} ann +eval +evalsha"
    assert findings(where_is("redis://h", 0), {"refusal": "NOPERM"})["rights"].fix == (
        "redis-cli -h h -p 6379 ACL SETUSER default +eval +evalsha"
    )


def test_search_that_this_user_may_not_use() -> None:
    answers = structs.replace(ANSWERS, unsearchable=True)
    for module in (None, "search 8.4.0"):
        found = check_search(structs.replace(GOOD, search_module=module), answers, WHERE, stored=True)
        assert (found.state, found.fix) == ("limited", "see rights")


@pytest.mark.parametrize(
    ("module", "index", "stored", "state", "said"),
    [
        (None, None, True, "limited", "no search module"),
        ("search 8.0.0", None, False, "limited", "sometimes returns no results"),
        ("search 8.4.0", None, False, "ok", "the first message that is stored creates the index"),
        ("search 8.4.0", None, True, "limited", "no index: searches find nothing"),
        ("search 8.4.0", IndexState(b"i", 5, 0.5, complete=False), True, "limited", "being built: 50 %"),
        ("search 8.4.0", IndexState(b"i", 0, 1.0, complete=True), True, "limited", "though there are conversations"),
        ("search 8.4.0", IndexState(b"i", 5, 1.0, complete=True), True, "ok", "5 messages in the index (german)"),
        (None, IndexState(b"i", 5, 1.0, complete=True), True, "ok", "5 messages in the index"),
    ],
)
def test_search(module: str | None, index: IndexState | None, stored: bool, state: str, said: str) -> None:
    answers = structs.replace(ANSWERS, index=index, form=Searching("german") if index else None)
    found = check_search(structs.replace(GOOD, search_module=module), answers, WHERE, stored=stored)
    assert (found.state, said in found.detail) == (state, True), found
    if module and index:
        failed = check_search(GOOD, structs.replace(answers, failures=3), WHERE, stored=stored)
        assert failed.state == "limited"


def test_search_on_another_database() -> None:
    assert "database 3" in check_search(GOOD, ANSWERS, WHERE._replace(database=3), stored=False).detail


@pytest.mark.parametrize(
    ("url", "database", "command"),
    [
        ("redis://u:secret@h:1/2", 2, "redis-cli -h h -p 1 -n 2 --user u --askpass CONFIG SET a b"),
        ("redis://:secret@h:1", 0, "redis-cli -h h -p 1 --user default --askpass CONFIG SET a b"),
        ("unix://a%20b:secret@/s", 0, "redis-cli -s /s --user 'a b' --askpass CONFIG SET a b"),
        ("redis+cluster://u:secret@h:1", 0, "redis-cli -h h -p 1 --user u --askpass CONFIG SET a b  (on each node)"),
        ("rediss://h", 0, "redis-cli -h h -p 6379 --tls CONFIG SET a b"),
        ("unix:///tmp/a b/s?db=1", 1, "redis-cli -s '/tmp/a b/s' -n 1 CONFIG SET a b"),
        ("redis+cluster://h:1,i:2", 0, "redis-cli -h h -p 1 CONFIG SET a b  (on each node)"),
        ("redis+sentinel://h:1/main/0", 0, "redis-cli -h THE-PRIMARY CONFIG SET a b"),
        ("embedded:///tmp/x", 0, "redis-cli -s /tmp/x/redis.sock CONFIG SET a b"),
    ],
)
def test_commands_that_can_be_typed(url: str, database: int, command: str) -> None:
    where = where_is(url, database)
    assert where.config("a", "b") == command
    assert "secret" not in repr(where)


def test_the_private_server_is_set_by_its_own_command() -> None:
    start = "redis-history embedded start /tmp/x --durability always"
    private = where_is("embedded:///tmp/x", 0)
    assert findings(private, version="7.4.1", appendfsync="everysec")["durability"].fix == start
    assert private.fsync_always() == start
    assert private._replace(kept=True).fsync_always() == f"redis-history embedded stop /tmp/x && {start}"
    assert private._replace(folder=None).fsync_always() == "redis-history embedded start --durability always"
    assert findings(private, notifications=False)["notifications"].fix is None


def test_valkey_has_its_own_program_and_module() -> None:
    where = where_is("redis://h", 0, "valkey")
    found = findings(where, backend="valkey", aof=False)
    assert str(found["persistence"].fix).startswith("valkey-cli -h h -p 6379 CONFIG SET appendonly yes")
    assert "append" not in found["durability"].detail, "each thing once"
    search = check_search(structs.replace(GOOD, backend="valkey", search_module=None), ANSWERS, where, stored=False)
    assert "valkey-search" in str(search.fix)


def test_a_url_that_is_none() -> None:
    with pytest.raises(ConfigurationError):
        where_is("http://x", 0)


def test_answers_that_are_refusals() -> None:
    refused = NoPermissionError("this user has no permissions to run the command")
    found = read_answers(KEYS, 0, [[refused] * 6], cluster=False)
    assert found == Answers([{}], settable=False, clock=[], refusal=str(refused), missing=None, unsearchable=True)
    wrong = RuntimeError("CONFIG SET failed - Invalid event class character. Use 'Ag$lshzxeKEtmdn'.")
    assert read_answers(KEYS, 0, [[refused, wrong, *[refused] * 4]], cluster=False).settable
