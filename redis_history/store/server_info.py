"""Supported servers, and the facts that a server reports about itself. Refused commands leave values unknown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from msgspec import structs
from redis.exceptions import ResponseError

from redis_history.errors import UnsupportedServerError
from redis_history.store.capabilities import Capabilities
from redis_history.store.durability import tiers
from redis_history.store.operations.base import as_map
from redis_history.store.operations.failures import is_transient

#: The first versions with all commands that are needed, by the release notes; of the last five not tested.
_MINIMUM: Final[dict[str, tuple[int, ...]]] = {
    "redis": (6, 2), "valkey": (7, 2), "kvrocks": (2, 8), "dragonfly": (1, 0), "garnet": (1, 0), "upstash": (1, 0),
    "keydb": (6, 3),
}  # fmt: skip
#: Where scripts may use declared keys only: always, or unless the server is configured otherwise. Search documents are
#: not declared, so the index is not used there.
DECLARED_ONLY: Final = frozenset({"dragonfly", "upstash", "kvrocks"})


class Server(NamedTuple):
    """`product`: "redis", also for unknown compatible servers, or another name of `_MINIMUM`. `version`: its own."""

    product: str
    version: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.product} {'.'.join(map(str, self.version))}"


def product_of(info: Mapping[str, str]) -> str:
    """The server by what INFO says. Others also report a version of Redis, which they are compatible with."""
    for name in _MINIMUM:
        if name != "redis" and f"{name}_version" in info:
            return name
    return "keydb" if "mvcc_depth" in info else "redis"


def read_info(reply: object) -> Server:
    """The server of an INFO reply. Raises UnsupportedServerError if it is too old, or not Redis."""
    if isinstance(reply, bytes):
        reply = reply.decode(errors="replace")
    if not isinstance(reply, str):
        raise UnsupportedServerError(f"INFO returned {type(reply).__name__} instead of text, so this is not Redis")
    info = dict(line.split(":", 1) for line in reply.splitlines() if ":" in line)
    product = product_of(info)
    text = info.get(f"{product}_version") or info.get("redis_version", "")
    try:  # Dragonfly and Garnet have letters before and behind the numbers
        version = tuple(int(number) for number in re.sub(r"^(?:df-)?v|-\w*$", "", text).split(".")[:3])
    except ValueError as error:
        raise UnsupportedServerError(f"the server reports no valid version: {text[:40]!r}") from error
    if version < _MINIMUM[product]:
        needed = ".".join(map(str, _MINIMUM[product]))
        raise UnsupportedServerError(f"this is {product} {text}; redis_history needs {product} {needed} or newer")
    return Server(product, version)


#: K: channels named by key. l: commands on lists, such as the change log.
_NEEDED: Final = "Kl"
#: The flags that A includes.
_ALL: Final = "g$lshzxetd"


def merged_flags(setting: str | bytes | None) -> str | None:
    """notify-keyspace-events with the needed flags added; None if it has them."""
    flags = setting.decode() if isinstance(setting, bytes) else setting or ""
    present = set(flags) | (set(_ALL) if "A" in flags else set())
    missing = "".join(flag for flag in _NEEDED if flag not in present)
    return flags + missing if missing else None


#: The server's setting for keyspace notifications.
NOTIFICATIONS: Final = b"notify-keyspace-events"
_SETTINGS: Final = (NOTIFICATIONS, b"appendfsync", b"save")
_MODES: Final[dict[str, Literal["standalone", "cluster"]]] = {"0": "standalone", "1": "cluster"}
#: The commands for `read_survey`, for one round trip.
QUESTIONS: Final = ([b"INFO"], [b"MODULE", b"LIST"], *([b"CONFIG", b"GET", name] for name in _SETTINGS))


def read_survey(replies: Sequence[Any], *, sentinel: bool) -> Capabilities:
    """Reads the replies to QUESTIONS. Raises UnsupportedServerError."""
    info_reply, modules, *configured = replies
    if isinstance(info_reply, ResponseError) and not is_transient(info_reply):
        product, version, info = "redis", None, {}
    elif isinstance(info_reply, Exception):
        raise info_reply
    else:
        product, numbers = read_info(info_reply)
        version = ".".join(map(str, numbers))
        info = _pairs(line.partition(":")[::2] for line in _text(info_reply).splitlines())
    flags, appendfsync, save = (_setting(name, reply) for name, reply in zip(_SETTINGS, configured, strict=True))
    notifying = None if flags is None else merged_flags(flags) is None
    module = _search_module(modules)
    found = Capabilities(
        backend=product,
        version=version,
        mode="sentinel" if sentinel else _MODES.get(info.get("cluster_enabled", "")),
        search_module=f"search {module // 10000}.{module // 100 % 100}.{module % 100}" if module else None,
        notifications=notifying,
        aof=None if "aof_enabled" not in info else info["aof_enabled"] == "1",
        appendfsync=appendfsync,
        snapshots=None if save is None else save != "",
        eviction=info.get("maxmemory_policy"),
        replicas=int(info["connected_slaves"]) if info.get("connected_slaves", "").isdigit() else None,
    )
    return structs.replace(found, durability=tiers(found))


def combined(nodes: Sequence[Capabilities]) -> Capabilities:
    """Several nodes as one: the abilities that all have, and the least safe value of each setting."""
    one = nodes[0]
    return structs.replace(
        one,
        version=min(nodes, key=lambda node: [int(number) for number in (node.version or "0").split(".")]).version,
        search_module=one.search_module if all(node.search_module for node in nodes) else None,
        notifications=_all(node.notifications for node in nodes),
        aof=_all(node.aof for node in nodes),
        appendfsync=_worst([node.appendfsync for node in nodes], ("no", "everysec", "always")),
        snapshots=_all(node.snapshots for node in nodes),
        eviction=next((node.eviction for node in nodes if node.eviction != "noeviction"), one.eviction),
        replicas=None if any(node.replicas is None for node in nodes) else min(node.replicas or 0 for node in nodes),
        durability=tuple(tier for tier in one.durability if all(tier in node.durability for node in nodes)),
    )


def _all(answers: Any) -> bool | None:
    known = list(answers)
    return False if False in known else None if None in known else True


def _worst(values: list[str | None], order: tuple[str, ...]) -> str | None:
    if None in values:
        return None
    return min((value for value in values if value is not None), key=lambda value: (*order, value).index(value))


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _pairs(pairs: Any) -> dict[str, str]:
    return {_text(name): _text(value) for name, value in pairs}


def _setting(name: bytes, reply: Any) -> str | None:
    return None if isinstance(reply, Exception) else _pairs(as_map(reply).items()).get(name.decode())


def _search_module(reply: Any) -> int:
    """The version, as 20102 for 2.1.2; 0 without the module."""
    if isinstance(reply, Exception):
        return 0
    for one in reply:
        module = {_text(name): value for name, value in as_map(one).items()}
        if _text(module.get("name")) == "search":
            return int(module.get("ver") or 0)
    return 0
