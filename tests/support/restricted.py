"""Real servers that lack commands, as managed services and compatible servers do: for the conformance suite.

docs/how-to/managed-servers.md says which services refuse what; these are not tested here.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tests.support.cluster import RealCluster
from tests.support.proxy import accepted
from tests.support.servers import RealServer

#: Commands that many services refuse, also within scripts if the server does not know the command at all.
REFUSED: Final = (
    "CONFIG",
    "INFO",
    "PSUBSCRIBE",
    "CLIENT",
    "MODULE",
    "WAIT",
    "WAITAOF",
    "ACL",
    "COMMAND",
    "MONITOR",
    "DEBUG",
)
_DEBIAN: Final = Path(sys.prefix) / "debian-redis"


def renamed(commands: tuple[str, ...]) -> tuple[str, ...]:
    """The options of a server that does not know these commands."""
    return tuple(word for command in commands for word in ("--rename-command", command, ""))


class RenamedServer(RealServer):
    """A server without these commands: that of Debian, if scripts/test has unpacked it, else Redis 7.4."""

    def __init__(self) -> None:
        super().__init__("plain", options=renamed(tuple(one for one in REFUSED if one != "WAITAOF")))
        if (_DEBIAN / "usr/bin/redis-server").exists():
            self.binary = replace(self.binary, path=str(_DEBIAN / "usr/bin/redis-server"))
            libraries = [str(one) for one in (_DEBIAN / "usr/lib").iterdir()]
            self.environment = {"LD_LIBRARY_PATH": ":".join(libraries)}


class DeniedServer(RealServer):
    """Redis with search, whose user may not use these commands."""

    def __init__(self) -> None:
        super().__init__("redis")
        self.url = f"unix://app:secret@{self.socket}"

    def start(self) -> RealServer:
        super().start()
        with self.client() as client:
            denied = [f"-{command.lower()}" for command in REFUSED]
            client.execute_command("ACL", "SETUSER", "app", "reset", "on", ">secret", "~*", "&*", "+@all", *denied)
        return self


class ServerlessCluster(RealCluster):
    """A cluster of one node, without these commands, except COMMAND, which redis-py's client of a cluster needs."""

    def __init__(self) -> None:
        super().__init__(1, "redis8", options=renamed(tuple(one for one in REFUSED if one != "COMMAND")))


class ReplacingServer(RealServer):
    """A server behind a proxy that replaces commands, so that they have other answers."""

    def __init__(self) -> None:
        super().__init__("plain")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []

    def start(self) -> RealServer:
        super().start()
        self._run(self._accept)
        return self

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in [*self._sockets]:
            _shut(one)
        for thread in self._threads:
            thread.join()
        super().close()

    def _run(self, work: Any, *arguments: Any) -> None:
        # The name is that of threads that may outlive a test, as this server does: see no_leaked_threads.
        thread = threading.Thread(target=work, args=arguments, daemon=True, name="asyncio_kvrocks")
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        for client in accepted(self._listener):
            upstream = socket.socket(socket.AF_UNIX)
            upstream.connect(str(self.socket))
            self._sockets |= {client, upstream}
            self._run(self._forward, upstream, client)
            self._run(self._replace, client, upstream)

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        _shut(source, target)
        self._sockets -= {source, target}
        source.close()
        target.close()

    def _replace(self, client: socket.socket, upstream: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), client.makefile("rb") as requests:
            while line := requests.readline():
                words = []
                for _ in range(int(line[1:])):
                    size = int(requests.readline()[1:])
                    words.append(requests.read(size + 2)[:-2])
                upstream.sendall(_packed(self.replaced(words)))
        _shut(client, upstream)

    def replaced(self, words: list[bytes]) -> list[bytes]:
        """The command to send instead of a client's."""
        raise NotImplementedError


class ForgetfulServer(ReplacingServer):
    """A server that accepts settings without effect."""

    def replaced(self, words: list[bytes]) -> list[bytes]:
        return [b"ECHO", b"OK"] if [one.upper() for one in words[:2]] == [b"CONFIG", b"SET"] else words


_INFO: Final = b"# Server\\r\\nversion:2.12.1\\r\\nkvrocks_version:2.12.1\\r\\nredis_version:4.0.0\\r\\n"


class KvrocksServer(ReplacingServer):
    """A server that answers as Kvrocks does."""

    def replaced(self, words: list[bytes]) -> list[bytes]:
        name, *rest = (word.upper() for word in words)
        if name == b"INFO":
            return [b"EVAL", b"return '%b'" % _INFO, b"0"]
        if name == b"CONFIG" and rest[0] == b"GET":
            return [b"EVAL", b"return {}", b"0"]
        unknown = name in (b"CONFIG", b"MODULE", b"WAIT", b"WAITAOF") or (name, *rest[:1]) == (b"CLIENT", b"SETINFO")
        return [b"kvrocks_lacks_" + name] if unknown or name.startswith(b"FT.") else words


def _packed(words: list[bytes]) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def _shut(*sockets: socket.socket) -> None:
    for one in sockets:
        with contextlib.suppress(OSError):  # it is closed
            one.shutdown(socket.SHUT_RDWR)


RESTRICTED: Final[dict[str, Any]] = {
    "renamed": RenamedServer,
    "denied": DeniedServer,
    "serverless": ServerlessCluster,
    "kvrocks": KvrocksServer,
}
#: The backend of which a restricted server has the abilities, and the face to test it with.
LIKE: Final = {"renamed": "plain", "denied": "redis", "serverless": "cluster", "kvrocks": "plain"}
#: How subscriptions and `subscribe_all` learn of changes there.
DOORBELLS: Final = {
    "renamed": ("publish", "poll"),
    "denied": ("publish", "poll"),
    "serverless": ("publish", "publish"),
    "kvrocks": ("publish", "publish"),
}
FACE: Final = {"renamed": "async", "denied": "sync", "serverless": "async", "kvrocks": "sync"}
