"""The answers of servers about themselves, and what each can confirm."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from redis.exceptions import NoPermissionError, ResponseError

from redis_history import Capabilities
from redis_history.errors import CapabilityError, UnsupportedServerError
from redis_history.store.durability import Confirmation, tiers
from redis_history.store.server_info import QUESTIONS, Server, combined, merged_flags, read_info, read_survey

REFUSED = NoPermissionError("this user has no permissions")
FSYNC = Confirmation("fsync", 5.0)
SOUND = Capabilities("redis", "8.0.3", aof=True, appendfsync="everysec", replicas=1, eviction="noeviction")


def info(**fields: object) -> bytes:
    lines = ["# Server", *(f"{name}:{value}" for name, value in fields.items()), "executable:/opt/x:y", "", "# Clients"]
    return "\r\n".join(lines).encode()


def survey(info: Any, modules: Any = REFUSED, *settings: Any, sentinel: bool = False) -> Capabilities:
    replies = [info, modules, *(settings or [REFUSED] * 3)]
    assert len(replies) == len(QUESTIONS)
    return read_survey(replies, sentinel=sentinel)


def test_resp2_and_resp3_give_the_same() -> None:
    reply = info(
        redis_version="7.4.3", cluster_enabled=0, aof_enabled=1, maxmemory_policy="noeviction", connected_slaves=2
    )
    flags = (b"notify-keyspace-events", b"Kl"), (b"appendfsync", b"always"), (b"save", b"3600 1")
    old = survey(reply, [[b"name", b"search", b"ver", 80205]], *([name, value] for name, value in flags))
    new = survey(reply.decode(), [{b"name": b"search", b"ver": 80205}], *({name: value} for name, value in flags))
    assert old == new
    assert old == Capabilities(
        "redis", "7.4.3", "standalone", "client", "search 8.2.5", True, None, None, True, "always", True,
        "noeviction", 2, ("server", "fsync", "replicas"),
    )  # fmt: skip


def test_refused_answers_are_unknown() -> None:
    for refused in (REFUSED, ResponseError("unknown command 'INFO'")):
        assert survey(refused) == Capabilities("redis", search="client")
    assert survey(REFUSED, sentinel=True).mode == "sentinel"
    with pytest.raises(UnsupportedServerError):
        survey(info(redis_version="5.0.0"))
    with pytest.raises(ResponseError):
        survey(ResponseError("LOADING"))


@pytest.mark.parametrize(
    ("backend", "version", "everysec", "always"),
    [
        ("redis", "7.0.15", False, False), ("redis", "7.2.0", True, True), ("redis", "7.4.0", False, True),
        ("redis", "7.4.2", False, True), ("redis", "7.4.3", True, True), ("redis", "7.9.224", False, True),
        ("redis", "8.0.0", True, True), ("valkey", "7.2.9", True, True), ("valkey", "8.0.0", False, True),
        ("valkey", "9.1.2", False, True),
    ],
)  # fmt: skip
def test_which_servers_confirm_an_fsync(backend: str, version: str, everysec: bool, always: bool) -> None:
    server = structs.replace(SOUND, backend=backend, version=version)
    for setting, able in (("everysec", everysec), (None, everysec), ("always", always), ("no", False)):
        chosen = structs.replace(server, appendfsync=setting)
        assert ("fsync" in tiers(chosen)) == able, setting
        if not able:
            with pytest.raises(CapabilityError):
                FSYNC.check(chosen)
    assert "fsync" not in tiers(structs.replace(server, aof=False))
    assert "fsync" not in tiers(structs.replace(server, version=None))


@pytest.mark.parametrize("backend", ["kvrocks", "dragonfly", "garnet", "keydb", "upstash"])
def test_other_servers_have_no_command_for_an_fsync(backend: str) -> None:
    server = structs.replace(SOUND, backend=backend, version="9.0.0")
    assert tiers(server) == ("server", "replicas")
    with pytest.raises(CapabilityError, match="durable_server"):
        FSYNC.check(server)


def test_a_server_without_replicas_confirms_no_replica() -> None:
    Confirmation("replicas", 5.0).check(SOUND)
    with pytest.raises(CapabilityError):
        Confirmation("replicas", 5.0).check(structs.replace(SOUND, replicas=0))


def test_confirming_commands() -> None:
    assert FSYNC.command == [b"WAITAOF", b"1", b"0", b"5000"]
    shortest = Confirmation("replicas", 0.0001).command
    assert shortest == [b"WAIT", b"1", b"1"], "never 0, which waits for ever"
    assert [FSYNC.reached(reply) for reply in ([1, 0], [0, 0], 2, ResponseError("no"), None)] == [1, 0, 2, 0, 0]


def test_a_cluster_is_as_safe_as_its_worst_node() -> None:
    unsafe: Any = {"version": "8.0.1", "aof": False, "appendfsync": "no", "replicas": 0, "eviction": "allkeys-lru"}
    worst = structs.replace(SOUND, **unsafe, durability=("server",))
    best = structs.replace(SOUND, durability=("server", "fsync"))
    assert combined([best, worst]) == combined([worst, best]) == worst
    unknown = structs.replace(SOUND, appendfsync=None, replicas=None, aof=None)
    assert combined([SOUND, unknown]) == unknown


@pytest.mark.parametrize(
    ("fields", "server"),
    [
        ({"redis_version": "6.2.0"}, Server("redis", (6, 2, 0))),
        ({"redis_version": "8.10.2"}, Server("redis", (8, 10, 2))),
        ({"redis_version": "7.9.240.1"}, Server("redis", (7, 9, 240))),
        ({"redis_version": "7.2.4", "server_name": "valkey", "valkey_version": "7.2.4"}, Server("valkey", (7, 2, 4))),
        ({"redis_version": "7.2.4", "valkey_version": "9.1.0"}, Server("valkey", (9, 1, 0))),
        ({"redis_version": "4.0.0", "kvrocks_version": "2.12.1"}, Server("kvrocks", (2, 12, 1))),
        ({"redis_version": "7.4.0", "dragonfly_version": "df-v1.36.0"}, Server("dragonfly", (1, 36, 0))),
        ({"redis_version": "7.4.3", "garnet_version": "1.0.84-beta"}, Server("garnet", (1, 0, 84))),
        ({"redis_version": "6.2.6", "upstash_version": "1.12.1"}, Server("upstash", (1, 12, 1))),
        ({"redis_version": "6.3.4", "mvcc_depth": "0"}, Server("keydb", (6, 3, 4))),
    ],
    ids=str,
)
def test_supported_servers(fields: dict[str, str], server: Server) -> None:
    reply = info(**fields)
    assert read_info(reply) == read_info(reply.decode()) == read_info(reply.replace(b"\r\n", b"\n")) == server


@pytest.mark.parametrize(
    "reply",
    [
        *(info(redis_version=version) for version in ("6.0.20", "6.1.240", "", "unknown", "7.x.1", "9" * 5000, ".")),
        info(redis_version="7.2.4", valkey_version="7.1.9"),
        info(redis_version="7.2.4", kvrocks_version="2.7.0"),
        info(redis_version="6.2.0", mvcc_depth=0),
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


def flags(setting: str) -> set[str]:
    """The flags that a setting turns on: A stands for many."""
    return set(setting) - {"A"} | (set("g$lshzxetd") if "A" in setting else set())


@pytest.mark.proves("notifications")
@given(st.lists(st.sampled_from("KEg$lshzxetdmnoA"), unique=True, max_size=16).map("".join))
def test_flags_are_added_once_and_none_is_removed(setting: str) -> None:
    merged = merged_flags(setting)
    now = setting if merged is None else merged
    assert flags(now) == flags(setting) | {"K", "l"}
    assert (merged is None) == ({"K", "l"} <= flags(setting))
    assert merged_flags(now) is None
    assert merged_flags(setting.encode()) == merged


def test_flags_of_an_unknown_setting() -> None:
    assert merged_flags(None) == merged_flags("") == "Kl"


def test_settings_that_may_lose_conversations_are_dangers() -> None:
    assert SOUND.dangers == ()
    found = structs.replace(SOUND, aof=False, snapshots=True, eviction="allkeys-lru")
    assert ["allkeys-lru" in found.dangers[0], "last snapshot" in found.dangers[1]] == [True, True]
    assert str(found).count("danger: ") == len(found.dangers) == 2
    assert "appendfsync" in structs.replace(SOUND, appendfsync="no").dangers[0]
