"""The answers of servers about themselves, and what each can confirm."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from redis.exceptions import NoPermissionError, ResponseError

from redis_history import Capabilities
from redis_history.backends.redis.server_info import QUESTIONS, Server, combined, merged_flags, read_info, read_survey
from redis_history.durability import Confirmation, tiers
from redis_history.errors import CapabilityError, UnsupportedServerError

REFUSED = NoPermissionError("this user has no permissions")
FSYNC = Confirmation("fsync", 1, 5.0)
SOUND = Capabilities("redis", "8.0.3", aof=True, appendfsync="everysec", replicas=1, eviction="noeviction")


def info(**fields: object) -> bytes:
    lines = ["# Server", *(f"{name}:{value}" for name, value in fields.items()), "executable:/opt/x:y", "", "# Clients"]
    return "\r\n".join(lines).encode()


def survey(said: Any, modules: Any = REFUSED, *settings: Any, sentinel: bool = False) -> Capabilities:
    replies = [said, modules, *(settings or [REFUSED] * 3)]
    assert len(replies) == len(QUESTIONS)
    return read_survey(replies, sentinel=sentinel)


def test_resp2_and_resp3_give_the_same() -> None:
    said = info(
        redis_version="7.4.3", cluster_enabled=0, aof_enabled=1, maxmemory_policy="noeviction", connected_slaves=2
    )
    flags = (b"notify-keyspace-events", b"Kl"), (b"appendfsync", b"always"), (b"save", b"3600 1")
    old = survey(said, [[b"name", b"search", b"ver", 80205]], *([name, value] for name, value in flags))
    new = survey(said.decode(), [{b"name": b"search", b"ver": 80205}], *({name: value} for name, value in flags))
    assert old == new
    assert old == Capabilities(
        "redis", "7.4.3", "standalone", "client", "search 8.2.5", True, "notifications", True, "always", True,
        "noeviction", 2, ("server", "fsync", "replicas"),
    )  # fmt: skip


def test_refused_answers_are_unknown() -> None:
    assert survey(REFUSED) == Capabilities("redis", search="client")
    assert survey(REFUSED, sentinel=True).mode == "sentinel"
    with pytest.raises(UnsupportedServerError):
        survey(info(redis_version="5.0.0"))
    with pytest.raises(ResponseError):
        survey(ResponseError("LOADING"))


def test_the_search_module_of_valkey_is_not_used() -> None:
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
            with pytest.raises(CapabilityError):
                FSYNC.check(server)
    assert "fsync" not in tiers(structs.replace(SOUND, aof=False))
    assert "fsync" not in tiers(structs.replace(SOUND, version=None))


def test_an_unknown_appendfsync_is_trusted_on_truthful_servers_only() -> None:
    FSYNC.check(structs.replace(SOUND, appendfsync=None))
    with pytest.raises(CapabilityError):
        FSYNC.check(structs.replace(SOUND, version="7.4.1", appendfsync=None))


def test_replicas_are_counted() -> None:
    Confirmation("replicas", 1, 5.0).check(SOUND)
    with pytest.raises(CapabilityError):
        Confirmation("replicas", 2, 5.0).check(SOUND)


def test_confirming_commands() -> None:
    assert FSYNC.command == b"*4\r\n$7\r\nWAITAOF\r\n$1\r\n1\r\n$1\r\n0\r\n$4\r\n5000\r\n"
    assert Confirmation("replicas", 2, 0.0001).command == b"*3\r\n$4\r\nWAIT\r\n$1\r\n2\r\n$1\r\n1\r\n", (
        "never 0: for ever"
    )
    assert [FSYNC.reached(reply) for reply in ([1, 0], [0, 0], 2, ResponseError("no"), None)] == [1, 0, 2, 0, 0]


def test_a_cluster_is_as_safe_as_its_worst_node() -> None:
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


@pytest.mark.parametrize(
    ("fields", "server"),
    [
        ({"redis_version": "6.2.0"}, Server("redis", (6, 2, 0))),
        ({"redis_version": "7.4.1"}, Server("redis", (7, 4, 1))),
        ({"redis_version": "8.10.2"}, Server("redis", (8, 10, 2))),
        ({"redis_version": "255.255.255"}, Server("redis", (255, 255, 255))),
        ({"redis_version": "7.9.240.1"}, Server("redis", (7, 9, 240))),
        ({"redis_version": "7.2.4", "server_name": "valkey", "valkey_version": "7.2.4"}, Server("valkey", (7, 2, 4))),
        ({"redis_version": "7.2.4", "valkey_version": "9.1.0"}, Server("valkey", (9, 1, 0))),
    ],
    ids=str,
)
def test_supported_servers(fields: dict[str, str], server: Server) -> None:
    assert read_info(info(**fields)) == read_info(info(**fields).decode()) == server
    assert read_info(info(**fields).replace(b"\r\n", b"\n")) == server


@pytest.mark.parametrize(
    "reply",
    [
        *(info(redis_version=version) for version in ("2.8.9", "6.0.20", "6.1.240")),
        info(redis_version="7.2.4", valkey_version="7.1.9"),
        *(info(redis_version=version) for version in ("", "unknown", "7.x.1", "9" * 5000, ".")),
        *(b"", b"\xff\xfe", b"HTTP/1.1 400 Bad Request\r\n\r\n", "# Server", b":::\r\n:"),
        *(None, 5, [], [b"redis_version:7.2.0"]),
    ],
    ids=lambda reply: str(reply)[:30],
)
def test_old_and_unknown_servers_are_refused(reply: Any) -> None:
    with pytest.raises(UnsupportedServerError) as caught:
        read_info(reply)
    assert len(str(caught.value)) < 150


@given(st.binary(max_size=200) | st.text(max_size=100).map(lambda text: f"redis_version:{text}"))
def test_any_reply_is_a_server_or_refused(reply: bytes | str) -> None:
    try:
        server = read_info(reply)
    except UnsupportedServerError:
        return
    assert server.version >= (6, 2)


ALL = set("g$lshzxetd")
settings = st.lists(st.sampled_from("KEg$lshzxetdmnoA"), unique=True, max_size=16).map("".join)


def meant(setting: str) -> set[str]:
    """The flags that a setting turns on: A stands for many."""
    return set(setting) - {"A"} | (ALL if "A" in setting else set())


@pytest.mark.proves("notifications")
@given(settings)
def test_no_flag_is_ever_removed(setting: str) -> None:
    merged = merged_flags(setting)
    now = setting if merged is None else merged
    assert meant(now) == meant(setting) | {"K", "l"}, "what was there, and what a change log needs: no more"


@given(settings)
def test_merging_is_done_once(setting: str) -> None:
    merged = merged_flags(setting)
    assert merged_flags(setting if merged is None else merged) is None
    assert merged_flags(setting.encode()) == merged


@pytest.mark.parametrize(
    ("setting", "merged"),
    [
        ("", "Kl"),
        (None, "Kl"),
        (b"", "Kl"),
        ("Kl", None),
        ("KEA", None),
        ("AK", None),
        ("A", "AK"),
        ("K", "Kl"),
        ("Eg", "EgKl"),
    ],
)
def test_flags_are_added(setting: str | bytes | None, merged: str | None) -> None:
    found = merged_flags(setting)
    assert (found and sorted(found)) == (merged and sorted(merged))
