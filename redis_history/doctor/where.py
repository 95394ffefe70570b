"""The address of a server, and the commands that change its settings."""

from __future__ import annotations

import shlex
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from redis_history.backends.redis.urls import CLUSTER, SENTINEL, embedded_server, parse_several, parse_url
from redis_history.embedded import status

__all__ = ["Where", "where_is"]


class Where(NamedTuple):
    """`call`: the beginning of a redis-cli command that reaches the server, without secrets. `private`: a private
    server with its data in `folder` (None: the default folder); `kept`: a process keeps it up. `several`: a cluster,
    whose nodes are configured one by one. `user`: the user in the URL; `password`: whether the URL has one."""

    address: str
    call: tuple[str, ...]
    database: int = 0
    private: bool = False
    several: bool = False
    user: str | None = None
    password: bool = False
    folder: str | None = None
    kept: bool = False

    def redis_cli(self, *words: str, admin: bool = False) -> str:
        """The command to type. `admin`: run it as an administrator, if the URL names a user or a password."""
        asked: tuple[str, ...] = ()
        if self.password or self.user:  # --askpass asks for the password
            asked = ("--user", "AN-ADMIN" if admin else self.user or "default", "--askpass")
        return shlex.join((*self.call, *asked, *words)) + ("  (on each node)" if self.several else "")

    def config(self, name: str, value: str, *, admin: bool = False) -> str:
        """The command that changes a setting."""
        return self.redis_cli("CONFIG", "SET", name, value, admin=admin)

    def always(self) -> str:
        """The command that makes the server write every change to disk before it replies."""
        if not self.private:
            return self.config("appendfsync", "always")
        folder = [self.folder] if self.folder else []
        start = shlex.join(["redis-history", "embedded", "start", *folder, "--durability", "always"])
        stop = shlex.join(["redis-history", "embedded", "stop", *folder])
        return f"{stop} && {start}" if self.kept else start


def where_is(url: str, database: int) -> Where:
    """The address of the server in a store's URL. Raises ConfigurationError for an invalid URL."""
    target = parse_url(url)
    chosen = ("-n", str(database)) if database else ()
    tls = ("--tls",) if target.scheme.startswith("rediss") else ()
    if target.scheme == "embedded":
        server = embedded_server(target)
        kept = status(server.path).keeper is not None
        call = ("redis-cli", "-s", server.unix_socket)
        return Where(f"embedded://{server.path}", call, private=True, folder=target.path or None, kept=kept)
    parts = urlsplit(parse_several(target.url).url if target.scheme in SENTINEL + CLUSTER else target.url)
    options = dict(parse_qsl(parts.query))
    user = unquote(parts.username or "") or options.get("username")
    who: Any = {"user": user, "password": bool(parts.password or options.get("password"))}
    if target.scheme == "unix":
        return Where(target.address, ("redis-cli", "-s", target.path, *chosen), database, **who)
    if target.scheme in SENTINEL:
        return Where(target.address, ("redis-cli", "-h", "THE-PRIMARY", *tls, *chosen), database, **who)
    call = ("redis-cli", "-h", parts.hostname or "localhost", "-p", str(parts.port or 6379), *tls, *chosen)
    return Where(target.address, call, database, several=target.scheme in CLUSTER, **who)
