"""The abilities and settings of a store's backend."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, structs

__all__ = ["Capabilities"]


class Capabilities(Struct, frozen=True):
    """A backend, its abilities and settings, as first read. None: unknown.

    `str` gives it line by line, for people.
    """

    #: "redis" (and what does not say otherwise), "valkey", "memory", or "custom".
    backend: str
    version: str | None = None
    mode: Literal["standalone", "cluster", "sentinel"] | None = None
    #: How this store searches: by an index of the server, or in the client, which reads and ranks one conversation.
    search: Literal["server", "client"] = "client"
    #: Name and version of the server's search module; None also if there is none.
    search_module: str | None = None
    #: Whether the server's settings notify of changes. Subscriptions add missing flags, if they may.
    notifications: bool | None = None
    #: How subscriptions hear of changes: notifications, publishing writers, polling, or the backend itself. None:
    #: found out when there is one.
    doorbell: Literal["notifications", "publish", "poll", "direct"] | None = None
    #: The append-only file, its `appendfsync`, and snapshots.
    aof: bool | None = None
    appendfsync: str | None = None
    snapshots: bool | None = None
    #: The eviction policy for a full memory.
    eviction: str | None = None
    #: Replicas that are connected; of a cluster's primaries, of the one with the fewest.
    replicas: int | None = None
    #: The values of a store's option `durability` that can be kept as it is set, "replicas" with `replicas` of them.
    durability: tuple[Literal["server", "fsync", "replicas"], ...] = ("server",)

    @property
    def dangers(self) -> tuple[str, ...]:
        """Risks to stored conversations, as sentences. Unknown settings are left out."""
        found = []
        if self.eviction not in (None, "noeviction"):
            found.append(f"the server evicts keys when its memory is full ({self.eviction}): set noeviction")
        if self.aof is False:
            lost = "all since the last snapshot" if self.snapshots else "everything"
            found.append(f"there is no append-only file: a restart loses {lost}")
        elif self.appendfsync == "no":
            found.append("appendfsync is no: a loss of power loses all that the system has not written by itself")
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
