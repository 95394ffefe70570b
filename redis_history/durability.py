"""Confirmation of writes: the command, and which servers confirm truthfully."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from redis_history.capabilities import Capabilities
from redis_history.errors import CapabilityError

__all__ = ["Confirmation", "tiers", "why_not"]

#: From here on there is WAITAOF.
_WAITAOF_SINCE: Final = {"redis": (7, 2), "valkey": (7, 2)}
#: In these, with appendfsync everysec, WAITAOF confirms what was not fsynced yet (redis/redis#12622, mended in #13793):
#: of 30 confirmations of Valkey 9.1.2, one after the other, 26 came without any fsync since the one before.
_HASTY: Final = {"redis": (((7, 4), (7, 4, 3)), ((7, 9), (8, 0))), "valkey": (((8, 0), None),)}


class Confirmation(Struct, frozen=True):
    """`needed` copies within `timeout` seconds: "fsync", on this server's disk; "replicas", in memory of others."""

    tier: Literal["fsync", "replicas"]
    needed: int
    timeout: float

    @property
    def command(self) -> bytes:
        """The command that follows a write, packed (RESP)."""
        milliseconds = b"%d" % max(1, round(self.timeout * 1000))
        needed = b"%d" % self.needed
        words = [b"WAITAOF", needed, b"0"] if self.tier == "fsync" else [b"WAIT", needed]
        words.append(milliseconds)
        return b"*%d\r\n%b" % (len(words), b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words]))

    def check(self, server: Capabilities) -> None:
        """Raises CapabilityError if this server cannot confirm it."""
        why = why_not(self.tier, self.needed, server)
        if why is not None:
            raise CapabilityError(f"durability={self.tier!r} cannot be kept: {why}")

    def reached(self, reply: object) -> int:
        """The number of copies, by the reply to the command; 0 if that was an error."""
        if isinstance(reply, list) and reply:
            reply = reply[0]
        return reply if isinstance(reply, int) else 0


def tiers(server: Capabilities) -> tuple[Literal["server", "fsync", "replicas"], ...]:
    """The values of `durability` that a server can confirm."""
    asked: tuple[Literal["fsync", "replicas"], ...] = ("fsync", "replicas")
    return ("server", *(tier for tier in asked if why_not(tier, 1, server) is None))


def why_not(tier: str, needed: int, server: Capabilities) -> str | None:
    """Why a server cannot confirm `needed` copies; None if it can."""
    if tier == "replicas":
        there = server.replicas or 0
        return None if there >= needed else f"it needs {needed} connected replicas, and there are {there}"
    if server.version is None:
        return "the server does not tell its version; allow this user INFO"
    name = f"{server.backend} {server.version}"
    version = tuple(int(number) for number in server.version.split("."))
    if version < _WAITAOF_SINCE.get(server.backend, (7, 2)):
        return f"it needs WAITAOF, which came with version 7.2, and this is {name}"
    if not server.aof:
        return "the server has no append-only file; set appendonly to yes"
    if server.appendfsync == "no":
        return "the server never fsyncs its append-only file; set appendfsync to everysec or always"
    hasty = any(first <= version and (end is None or version < end) for first, end in _HASTY.get(server.backend, ()))
    if hasty and server.appendfsync != "always":
        setting = server.appendfsync or "a setting that CONFIG GET does not tell"
        return (
            f"{name} confirms before it has fsynced, unless appendfsync is always, and here it is {setting}; "
            "set it, or use Redis 7.4.3, 8.0 or newer"
        )
    return None
