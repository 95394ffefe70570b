"""Where a server is, and the commands by which it is set."""

from __future__ import annotations

import shlex
from typing import NamedTuple
from urllib.parse import urlsplit

from redis_history.backends.redis.urls import CLUSTER, SENTINEL, embedded_server, parse_several, parse_url

__all__ = ["Where", "where_is"]


class Where(NamedTuple):
    """`call`: the beginning of a redis-cli command that reaches it, without secrets. `private`: open to one user of
    this machine alone. `several`: a cluster, each node of which is set by itself."""

    address: str
    call: tuple[str, ...]
    database: int = 0
    private: bool = False
    several: bool = False

    def redis_cli(self, *words: str) -> str:
        """The command to type."""
        return shlex.join((*self.call, *words)) + ("  (on each node)" if self.several else "")

    def config(self, name: str, value: str) -> str:
        """The command that sets this."""
        return self.redis_cli("CONFIG", "SET", name, value)


def where_is(url: str, database: int) -> Where:
    """Of the URL of a store. Raises ConfigurationError for what is none."""
    target = parse_url(url)
    chosen = ("-n", str(database)) if database else ()
    tls = ("--tls",) if target.scheme.startswith("rediss") else ()
    if target.scheme == "embedded":
        server = embedded_server(target)
        return Where(f"embedded://{server.path}", ("redis-cli", "-s", server.unix_socket), private=True)
    if target.scheme == "unix":
        return Where(target.address, ("redis-cli", "-s", target.path, *chosen), database)
    if target.scheme in SENTINEL:
        return Where(target.address, ("redis-cli", "-h", "THE-PRIMARY", *tls, *chosen), database)
    if target.scheme in CLUSTER:
        host, port = parse_several(target.url).hosts[0]
    else:
        parts = urlsplit(target.url)
        host, port = parts.hostname or "localhost", parts.port or 6379
    call = ("redis-cli", "-h", host, "-p", str(port), *tls, *chosen)
    return Where(target.address, call, database, several=target.scheme in CLUSTER)
