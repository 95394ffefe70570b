"""Findings from the answers of servers that tests cannot start."""

from typing import Any

import pytest
from msgspec import structs
from redis.exceptions import NoPermissionError

from redis_history.cli.doctor.checks import Answers, Finding, Where, check_search, check_server, where_is
from redis_history.cli.doctor.examination import lacking_settings, read_answers
from redis_history.store.capabilities import Capabilities
from redis_history.store.operations.index import IndexState
from redis_history.store.operations.keys import Keyspace
from redis_history.store.operations.settings import Searching

WHERE = where_is("redis://ann:secret@db.example:6380/0?socket_timeout=1", 0)
PRIVATE = where_is("embedded:///tmp/x", 0)
GOOD = Capabilities(
    "redis", "8.4.0", "standalone", search_module="search 8.4.0", notifications=True, aof=True, appendfsync="everysec",
    snapshots=True, eviction="noeviction", replicas=0, durability=("server", "fsync"),
)  # fmt: skip
ANSWERS = Answers(info=[{"role": "master", "used_memory": "5"}], settable=True, refusal=None, missing={})


def findings(where: Where = WHERE, answers: dict[str, Any] | None = None, **changes: Any) -> dict[str, Finding]:
    found, said = structs.replace(GOOD, **changes), structs.replace(ANSWERS, **(answers or {}))
    return {one.check: one for one in check_server(found, said, where)}


def test_a_server_without_a_fault() -> None:
    assert [(one.state, one.fix) for one in findings().values()] == [("ok", None)] * 6


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
        ({"aof": None}, {}, "persistence", "limited"),
        ({"appendfsync": "no"}, {}, "persistence", "problem"),
        ({"appendfsync": "always"}, {}, "persistence", "ok"),
        ({}, {"refusal": "NOPERM"}, "rights", "problem"),
        ({}, {"missing": None}, "rights", "ok"),
        ({}, {"missing": {"writing": ["rpush"]}}, "rights", "problem"),
        ({}, {"missing": {"searching": ["ft.search"]}}, "rights", "limited"),
        ({}, {"missing": {"searching": ["hset"]}}, "rights", "problem"),  # it writes search documents, and may not
        ({"search_module": None}, {"missing": {"searching": ["hscan"]}}, "rights", "ok"),
        ({}, {"missing": {"describing": ["module|list"]}}, "rights", "ok"),
        ({"notifications": None}, {}, "notifications", "limited"),
        ({"notifications": None, "doorbell": "publish"}, {}, "notifications", "ok"),
        ({"notifications": None, "doorbell": "publish"}, {"missing": {"compacting": ["publish"]}}, "notifications",
         "limited"),
        ({"notifications": False}, {}, "notifications", "ok"),
        ({"doorbell": "poll", "doorbell_all": "poll"}, {}, "notifications", "limited"),
        ({"doorbell": "publish", "notifications": None, "doorbell_all": "poll"}, {}, "notifications", "limited"),
        ({"notifications": False}, {"settable": False}, "notifications", "limited"),
    ],
)  # fmt: skip
def test_the_state_of_each_check(changes: dict[str, Any], answers: dict[str, Any], check: str, state: str) -> None:
    assert findings(answers=answers, **changes)[check].state == state


@pytest.mark.parametrize(
    ("product", "version", "fix"),
    [
        ("redis", "6.2.19", "6.2.20 or newer"), ("redis", "6.2.20", None), ("redis", "7.0.15", "got no fix"),
        ("redis", "7.2.10", "7.2.11 or newer"), ("redis", "7.2.11", None), ("redis", "7.4.0", "7.4.6 or newer"),
        ("redis", "7.4.5", "7.4.6 or newer"), ("redis", "7.4.6", None), ("redis", "7.4.11", None),
        ("redis", "8.0.3", "8.0.4 or newer"), ("redis", "8.0.4", None), ("redis", "8.2.1", "8.2.2 or newer"),
        ("redis", "8.2.2", None), ("redis", "8.4.0", None), ("redis", "8.10.2", None), ("redis", "9.0", None),
        ("redis", "7.1.0", None), ("valkey", "7.2.10", "7.2.11 or newer"), ("valkey", "7.2.11", None),
        ("valkey", "8.0.5", "8.0.6 or newer"), ("valkey", "8.1.3", "8.1.4 or newer"), ("valkey", "8.1.4", None),
        ("valkey", "9.0.0", None), ("valkey", "9.1.2", None), ("custom", "7.4.1", None),
    ],
)  # fmt: skip
def test_versions_with_a_hole_in_the_sandbox_of_scripts(product: str, version: str, fix: str | None) -> None:
    found = findings(backend=product, version=version)["version"]
    assert (found.state, "CVE-2025-49844" in found.detail) == (("limited", True) if fix else ("ok", False))
    assert fix is None or fix in (found.fix or "")
    assert findings(where=PRIVATE, backend=product, version=version)["version"].state == "ok", (
        "only its user reaches it"
    )


def test_a_server_that_does_not_take_a_command() -> None:
    where = WHERE._replace(lacks=frozenset({"CONFIG", "ACL"}))
    answers = {"missing": {"writing": ["rpush", "hset"]}, "user": "bob", "lacking": ["~rh2:{n:*"], "settable": False}
    found = findings(where, answers, aof=False, eviction="volatile-lru", notifications=None)
    service = "in the settings of the service that runs this server, which does not take"
    assert {name: one.fix for name, one in found.items() if one.fix} == {
        "memory": f"{service} CONFIG: maxmemory-policy = noeviction",
        "persistence": f"{service} CONFIG: appendonly = yes",
        "rights": f"{service} ACL: the user bob ~rh2:{{n:* +rpush +hset",
        "notifications": f"{service} CONFIG: notify-keyspace-events = Kl",
    }


@pytest.mark.parametrize(
    ("answers", "command"),
    [
        ({"user": "bob", "lacking": ["~rh2:{n:*"]}, "bob '~rh2:{n:*' +rpush +hset"),
        ({"user": "bob"}, "bob +rpush +hset"),
        ({}, "ann +rpush +hset"),  # the user of the URL, where the server does not say
        ({"refusal": "NOPERM"}, "ann +eval +evalsha"),
    ],
)
def test_the_command_that_grants_rights(answers: dict[str, Any], command: str) -> None:
    answers = {"missing": {"writing": ["rpush", "hset"], "searching": ["hset"]}, **answers}
    cli = "redis-cli -h db.example -p 6380 --user AN-ADMIN --askpass ACL SETUSER"
    assert findings(answers=answers)["rights"].fix == f"{cli} {command}"


def index(documents: int, share: float = 1.0) -> IndexState:
    return IndexState(b"i", documents, share, complete=share == 1)


@pytest.mark.parametrize(
    ("module", "answers", "stored", "state", "detail"),
    [
        (None, {}, True, "limited", "no search module"),
        (None, {"unsearchable": True}, True, "limited", "may not use the index"),
        ("search 8.4.0", {"unsearchable": True}, True, "limited", "may not use the index"),
        ("search 8.0.0", {}, False, "limited", "sometimes returns no results"),
        ("search 8.4.0", {}, False, "ok", "the first call of a store creates the index"),
        ("search 8.4.0", {}, True, "limited", "no index: searches find nothing"),
        ("search 8.4.0", {"missing": {"indexing": ["ft.create"]}}, True, "limited", "this user may not make one"),
        ("search 8.4.0", {"index": index(5, 0.5)}, True, "limited", "being built: 50 %"),
        ("search 8.4.0", {"index": index(0)}, True, "limited", "though there are conversations"),
        ("search 8.4.0", {"index": index(5), "failures": 3}, True, "limited", "3 could not be indexed"),
        ("search 8.4.0", {"index": index(5)}, True, "ok", "5 messages in the index (of another version)"),
        (None, {"index": index(5), "form": Searching("german")}, True, "ok", "5 messages in the index (german)"),
    ],
)
def test_search(module: str | None, answers: dict[str, Any], stored: bool, state: str, detail: str) -> None:
    said = structs.replace(ANSWERS, **answers)
    found = check_search(structs.replace(GOOD, search_module=module), said, WHERE, stored=stored)
    assert (found.state, detail in found.detail) == (state, True), found


def test_search_on_another_database() -> None:
    assert "database 3" in check_search(GOOD, ANSWERS, WHERE._replace(database=3), stored=False).detail


@pytest.mark.parametrize(
    ("url", "database", "command"),
    [
        ("redis://u:secret@h:1/2", 2, "redis-cli -h h -p 1 -n 2 --user u --askpass CONFIG SET a b"),
        ("redis://:secret@h:1", 0, "redis-cli -h h -p 1 --user default --askpass CONFIG SET a b"),
        ("unix://a%20b:secret@/s", 0, "redis-cli -s /s --user 'a b' --askpass CONFIG SET a b"),
        ("redis+cluster://u:secret@h:1,i:2", 0,
         "redis-cli -h h -p 1 --user u --askpass CONFIG SET a b  (on each node)"),
        ("rediss://h", 0, "redis-cli -h h -p 6379 --tls CONFIG SET a b"),
        ("unix:///tmp/a b/s?db=1", 1, "redis-cli -s '/tmp/a b/s' -n 1 CONFIG SET a b"),
        ("redis+sentinel://h:1/main/0", 0, "redis-cli -h THE-PRIMARY CONFIG SET a b"),
        ("embedded:///tmp/x", 0, "redis-cli -s /tmp/x/redis.sock CONFIG SET a b"),
    ],
)  # fmt: skip
def test_commands_that_can_be_typed(url: str, database: int, command: str) -> None:
    where = where_is(url, database)
    assert where.config("a", "b") == command
    assert "secret" not in repr(where)


def test_missing_patterns_are_named() -> None:
    found = findings(doorbell="notifications", doorbell_all="poll")["notifications"]
    assert "PSUBSCRIBE" in found.detail
    assert found.fix is None
    refused = {"missing": {"following": ["psubscribe"]}}
    assert findings(answers=refused, doorbell_all="poll")["notifications"].fix == "see rights"


def test_a_server_without_info_gets_no_advice_to_allow_it() -> None:
    assert findings(version=None)["version"].fix is not None
    assert findings(WHERE._replace(lacks=frozenset({"INFO"})), version=None)["version"].fix is None


def test_a_private_server_needs_no_command_for_notifications() -> None:
    assert findings(PRIVATE, notifications=False)["notifications"].fix is None


def test_valkey_has_its_own_program_and_module() -> None:
    where = where_is("redis://h", 0, "valkey")
    persistence = findings(where, backend="valkey", aof=False)["persistence"]
    assert persistence.fix == "valkey-cli -h h -p 6379 CONFIG SET appendonly yes"
    search = check_search(structs.replace(GOOD, backend="valkey", search_module=None), ANSWERS, where, stored=False)
    assert "Redis 8" in str(search.fix)


@pytest.mark.parametrize("product", ["kvrocks", "dragonfly", "garnet", "keydb", "upstash"])
def test_compatible_servers_are_named_and_have_no_redis_version_to_upgrade(product: str) -> None:
    found = findings(backend=product, version="7.0.0")["version"]
    assert (found.state, found.fix) == ("ok", None)
    assert found.detail.lower().startswith(f"{product} 7.0.0")
    assert "not tested" in found.detail


@pytest.mark.parametrize(
    ("policy", "which"), [("volatile-lru", "conversations with a ttl"), ("allkeys-lfu", "any keys")]
)
def test_eviction_policies_that_break_conversations(policy: str, which: str) -> None:
    found = findings(eviction=policy)["memory"]
    assert which in found.detail
    assert found.fix == "redis-cli -h db.example -p 6380 --user ann --askpass CONFIG SET maxmemory-policy noeviction"
    where = WHERE._replace(lacks=frozenset({"maxmemory-policy"}))
    assert "redis-cli" not in str(findings(where, eviction=policy)["memory"].fix)


def test_settings_that_a_service_does_not_have() -> None:
    known, unknown = {b"appendonly": b"yes"}, NoPermissionError("no")
    assert lacking_settings([[known, {}, [], unknown, unknown]]) == {"maxmemory-policy", "maxmemory"}
    assert not lacking_settings([[known] * 5])


def test_why_a_search_module_is_not_used() -> None:
    module = structs.replace(GOOD, backend="valkey", search_module="search 1.2.0")
    answers = structs.replace(ANSWERS, incapable="Unexpected argument NOHL")
    found = check_search(module, answers, WHERE, stored=True)
    assert found.state == "limited"
    assert "NOHL" in found.detail
    declared = structs.replace(ANSWERS, unusable="scripts of dragonfly 1.36.0 may use declared keys only")
    assert "declared keys" in check_search(GOOD, declared, WHERE, stored=True).detail


def test_answers_that_are_refusals() -> None:
    refused = NoPermissionError("this user has no permissions to run the command")
    found = read_answers(Keyspace("n"), 0, [[refused] * 5], cluster=False)
    assert found == Answers([{}], settable=False, refusal=str(refused), missing=None, unsearchable=True)
    wrong = RuntimeError("CONFIG SET failed - Invalid event class character. Use 'Ag$lshzxeKEtmdn'.")
    assert read_answers(Keyspace("n"), 0, [[refused, wrong, *[refused] * 3]], cluster=False).settable
