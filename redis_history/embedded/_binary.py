"""A server that can be started, as a value."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

__all__ = ["Candidate", "Durability", "Kind", "Product", "ServerBinary"]

Kind = Literal["environment", "redis-stack", "valkey", "system"]
Product = Literal["Redis", "Valkey"]
Durability = Literal["everysec", "always"]


@dataclass(frozen=True, slots=True)
class ServerBinary:
    """A server binary that has been run successfully, and the modules to load into it.

    `search`: whether a module is RediSearch, judged by its file name. A running server gives a more reliable answer.
    """

    path: str
    modules: tuple[str, ...]
    kind: Kind
    product: Product
    version: str
    search: bool

    def argv(
        self,
        *,
        directory: str | os.PathLike[str],
        unix_socket: str | os.PathLike[str],
        durability: Durability = "everysec",
        databases: int = 16,
    ) -> list[str]:
        """The command that serves the data in `directory` on `unix_socket`, in the foreground.

        A relative `unix_socket` is inside `directory`. The server has no TCP port. It writes every change to the AOF
        and fsyncs it once a second, or with "always" before the reply. It never evicts keys. The store turns on
        notifications.
        """
        options: dict[str, str] = {
            "port": "0",
            "unixsocket": os.fspath(unix_socket),
            "unixsocketperm": "700",
            "dir": os.fspath(directory),
            "daemonize": "no",
            "appendonly": "yes",
            "appendfsync": durability,
            "aof-use-rdb-preamble": "yes",  # RediSearch refuses to load without it
            "save": "",
            "maxmemory-policy": "noeviction",
            "databases": str(databases),
            # Stores search documents as lists, which saves 200 bytes each. Every version knows this older option name.
            "hash-max-ziplist-value": "512",
        }
        command = [self.path]
        for name, value in options.items():
            command += [f"--{name}", value]
        for module in self.modules:
            command += ["--loadmodule", module]
        return command

    def __str__(self) -> str:
        return (
            f"{self.product} {self.version} ({self.kind}, {'with' if self.search else 'without'} search): {self.path}"
        )


@dataclass(frozen=True, slots=True)
class Candidate:
    """A place to look for a server: `binary` if it can be used, otherwise `reason` says why not."""

    kind: Kind
    path: str | None
    binary: ServerBinary | None = None
    reason: str = ""

    @property
    def usable(self) -> bool:
        return self.binary is not None

    def __str__(self) -> str:
        return str(self.binary) if self.binary else f"{self.kind}: {self.path or 'none'}: {self.reason}"
