"""Confirmation of writes by fsync or replicas, and which servers confirm correctly."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from redis_history.errors import CapabilityError
from redis_history.store.capabilities import Capabilities

_WAITAOF_SINCE: Final = {"redis": (7, 2), "valkey": (7, 2)}
#: With appendfsync everysec, these versions confirm before the fsync (redis/redis#12622, fixed in #13793): of 30
#: successive confirmations of Valkey 9.1.2, 26 came without a new fsync.
_TOO_EARLY: Final = {"redis": (((7, 4), (7, 4, 3)), ((7, 9), (8, 0))), "valkey": (((8, 0), None),)}


class Confirmation(Struct, frozen=True):
    """A copy on the server's disk ("fsync") or in the memory of a replica ("replicas"), within `timeout` seconds."""

    tier: Literal["fsync", "replicas"]
    timeout: float

    @property
    def command(self) -> list[bytes]:
        """The command after a write."""
        words = [b"WAITAOF", b"1", b"0"] if self.tier == "fsync" else [b"WAIT", b"1"]
        return [*words, b"%d" % max(1, round(self.timeout * 1000))]

    def check(self, server: Capabilities) -> None:
        """Raises CapabilityError if this server cannot confirm it."""
        why = why_not(self.tier, server)
        if why is not None:
            raise CapabilityError(f"durability={self.tier!r} is not possible: {why}")

    def reached(self, reply: object) -> int:
        """The number of copies in the command's reply, or 0 for an error."""
        if isinstance(reply, list) and reply:
            reply = reply[0]
        return reply if isinstance(reply, int) else 0


def tiers(server: Capabilities) -> tuple[Literal["server", "fsync", "replicas"], ...]:
    """The values of `durability` that a server can confirm."""
    asked: tuple[Literal["fsync", "replicas"], ...] = ("fsync", "replicas")
    return ("server", *(tier for tier in asked if why_not(tier, server) is None))


def why_not(tier: str, server: Capabilities) -> str | None:
    """The reason why a server cannot confirm writes, or None if it can."""
    if tier == "replicas":
        return None if server.replicas else "it needs a connected replica, and there is none"
    if server.version is None:
        return "the server does not report its version; allow this user INFO"
    name = f"{server.backend} {server.version}"
    since = _WAITAOF_SINCE.get(server.backend)
    if since is None:
        return f"{name} has no WAITAOF. If it acknowledges only durable writes, say so: durable_server=True"
    version = tuple(int(number) for number in server.version.split("."))
    if version < since:
        return f"it needs WAITAOF, which came with version 7.2, and this is {name}"
    if not server.aof:
        return (
            "the server has no append-only file; set appendonly to yes, or durable_server=True if it acknowledges only "
            "durable writes in another way, as MemoryDB does"
        )
    if server.appendfsync == "no":
        return "the server never fsyncs its append-only file; set appendfsync to everysec or always"
    ranges = _TOO_EARLY.get(server.backend, ())
    too_early = any(first <= version and (end is None or version < end) for first, end in ranges)
    if too_early and server.appendfsync != "always":
        setting = server.appendfsync or "unknown"
        return (
            f"{name} confirms before the fsync, unless appendfsync is always, and here it is {setting}; "
            "set it, or use Redis 7.4.3, 8.0 or newer. Where it cannot be read and is always: durable_server=True"
        )
    return None
