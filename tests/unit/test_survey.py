"""The answers of servers about themselves, and what each can confirm."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs
from redis.exceptions import NoPermissionError, ResponseError

from redis_history import Capabilities
from redis_history.backends.redis.server_info import QUESTIONS, combined, read_survey
from redis_history.durability import Confirmation, tiers
from redis_history.errors import CapabilityError, UnsupportedServerError

REFUSED = NoPermissionError("this user has no permissions")
FSYNC = Confirmation("fsync", 1, 5.0)
SOUND = Capabilities("redis", "8.0.3", aof=True, appendfsync="everysec", replicas=1, eviction="noeviction")


def info(**fields: object) -> bytes:
    return "\r\n".join(["# Server", *(f"{name}:{value}" for name, value in fields.items()), ""]).encode()


def survey(said: Any, modules: Any = REFUSED, *settings: Any, sentinel: bool = False) -> Capabilities:
    replies = [said, modules, *(settings or [REFUSED] * 3)]
    assert len(replies) == len(QUESTIONS)
    return read_survey(replies, sentinel=sentinel)


def test_both_forms_of_a_map_are_read_alike() -> None:
    said = info(
        redis_version="7.4.3", cluster_enabled=0, aof_enabled=1, maxmemory_policy="noeviction", connected_slaves=2
    )
    flags = (b"notify-keyspace-events", b"Kt"), (b"appendfsync", b"always"), (b"save", b"3600 1")
    old = survey(said, [[b"name", b"search", b"ver", 80205]], *([name, value] for name, value in flags))
    new = survey(said.decode(), [{b"name": b"search", b"ver": 80205}], *({name: value} for name, value in flags))
    assert old == new
    assert old == Capabilities(
        "redis", "7.4.3", "standalone", "client", "search 8.2.5", True, "notifications", True, "always", True,
        "noeviction", 2, ("server", "fsync", "replicas"),
    )  # fmt: skip


def test_what_is_refused_is_unknown() -> None:
    assert survey(REFUSED) == Capabilities("redis", search="client")
    assert survey(REFUSED, sentinel=True).mode == "sentinel"
    with pytest.raises(UnsupportedServerError):
        survey(info(redis_version="5.0.0"))
    with pytest.raises(ResponseError):
        survey(ResponseError("LOADING"))


def test_a_search_module_of_another_kind_is_not_taken_for_ours() -> None:
    found = survey(info(redis_version="7.2.4", valkey_version="8.1.1"), [[b"name", b"search", b"ver", 10000]])
    assert (found.backend, found.search, found.search_module) == ("valkey", "client", "search 1.0.0")


@pytest.mark.parametrize(
    ("backend", "version", "everysec", "always"),
    [
        ("redis", "6.2.0", False, False),
        ("redis", "7.0.15", False, False),
        ("redis", "7.2.0", True, True),
        ("redis", "7.4.0", False, True),
        ("redis", "7.4.2", False, True),
        ("redis", "7.4.3", True, True),
        ("redis", "7.9.224", False, True),
        ("redis", "8.0.0", True, True),
        ("valkey", "7.2.9", True, True),
        ("valkey", "8.0.0", False, True),
        ("valkey", "9.1.2", False, True),
    ],
)
def test_which_servers_confirm_an_fsync(backend: str, version: str, everysec: bool, always: bool) -> None:
    for setting, able in (("everysec", everysec), ("always", always), ("no", False)):
        server = structs.replace(SOUND, backend=backend, version=version, appendfsync=setting)
        assert ("fsync" in tiers(server)) == able, setting
        if not able:
            with pytest.raises(CapabilityError, match="fsync"):
                FSYNC.check(server)
    assert "fsync" not in tiers(structs.replace(SOUND, aof=False))
    assert "fsync" not in tiers(structs.replace(SOUND, version=None))


def test_a_setting_that_is_not_told_is_trusted_only_of_servers_that_are() -> None:
    FSYNC.check(structs.replace(SOUND, appendfsync=None))
    with pytest.raises(CapabilityError):
        FSYNC.check(structs.replace(SOUND, version="7.4.1", appendfsync=None))


def test_replicas_are_counted() -> None:
    Confirmation("replicas", 1, 5.0).check(SOUND)
    with pytest.raises(CapabilityError, match=r"2.*1"):
        Confirmation("replicas", 2, 5.0).check(SOUND)


def test_the_commands() -> None:
    assert FSYNC.command == b"*4\r\n$7\r\nWAITAOF\r\n$1\r\n1\r\n$1\r\n0\r\n$4\r\n5000\r\n"
    assert Confirmation("replicas", 2, 0.0001).command == b"*3\r\n$4\r\nWAIT\r\n$1\r\n2\r\n$1\r\n1\r\n", (
        "never 0: for ever"
    )
    assert [FSYNC.reached(reply) for reply in ([1, 0], [0, 0], 2, ResponseError("no"), None)] == [1, 0, 2, 0, 0]


def test_nodes_are_as_good_as_the_worst_of_them() -> None:
    worse = structs.replace(
        SOUND, version="8.0.1", aof=False, appendfsync="no", replicas=0, eviction="allkeys-lru", durability=("server",)
    )
    best = structs.replace(SOUND, durability=("server", "fsync"))
    for nodes in ([best, worse], [worse, best]):
        found = combined(nodes)
        assert (found.version, found.aof, found.appendfsync, found.replicas) == ("8.0.1", False, "no", 0)
        assert (found.eviction, found.durability) == ("allkeys-lru", ("server",))
    unknown = structs.replace(SOUND, appendfsync=None, replicas=None, aof=None)
    found = combined([SOUND, unknown])
    assert (found.appendfsync, found.replicas, found.aof) == (None, None, None)
