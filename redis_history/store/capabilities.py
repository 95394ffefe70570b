"""The abilities and settings of a store's backend."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, structs

__all__ = ["Capabilities"]


class Capabilities(Struct, frozen=True):
    """A backend, its abilities and settings. None: unknown.

    `str` shows one value per line. In a cluster: abilities of all primaries, and their least durable settings.

    - `backend`: "redis" (or unknown and compatible), "valkey", "kvrocks", "dragonfly", "garnet", "keydb", "upstash",
      "memory" or "custom". `version`: of the server itself, not of the Redis that it is compatible with.
    - `mode`: "standalone", "cluster" or "sentinel".
    - `search`: "server" (its index) or "client" (the store reads and ranks one conversation). `search_module`: name and
      version of the server's search module.
    - `notifications`: whether the server's settings announce changes. Subscriptions add missing flags if they can.
    - `doorbell`: how subscriptions learn of changes: "notifications", "publish", "poll" or "direct" (the backend
      itself). `doorbell_all`: the same for `subscribe_all` and compressors, which need patterns of channels.
    - `aof`: whether there is an append-only file. `appendfsync`, `snapshots`: the server's settings.
    - `eviction`: the policy for a full memory. `replicas`: connected ones; in a cluster, the lowest number.
    - `durability`: the possible values of a store's option `durability`.
    """

    backend: str
    version: str | None = None
    mode: Literal["standalone", "cluster", "sentinel"] | None = None
    search: Literal["server", "client"] = "client"
    search_module: str | None = None
    notifications: bool | None = None
    doorbell: Literal["notifications", "publish", "poll", "direct"] | None = None
    doorbell_all: Literal["notifications", "publish", "poll", "direct"] | None = None
    aof: bool | None = None
    appendfsync: str | None = None
    snapshots: bool | None = None
    eviction: str | None = None
    replicas: int | None = None
    durability: tuple[Literal["server", "fsync", "replicas"], ...] = ("server",)

    @property
    def dangers(self) -> tuple[str, ...]:
        """Risks to stored conversations, as sentences. Unknown settings do not count as risks."""
        found = []
        if self.eviction not in (None, "noeviction"):
            which = "keys that expire" if self.eviction.startswith("volatile") else "keys"
            found.append(f"the server evicts {which} when its memory is full ({self.eviction}): set noeviction")
        if self.aof is False:
            lost = "all since the last snapshot" if self.snapshots else "everything"
            found.append(f"there is no append-only file: a restart loses {lost}")
        elif self.appendfsync == "no":
            found.append("appendfsync is no: a power failure loses what the system has not written to disk")
        return tuple(found)

    def __str__(self) -> str:
        lines = [f"{name}: {_text(value)}" for name, value in structs.asdict(self).items()]
        return "\n".join([*lines, *(f"danger: {danger}" for danger in self.dangers)])


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "unknown" if value is None else str(value)
