"""A minimal Redis client for unix sockets: importing redis-py takes longer than starting a server."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Answer", "command", "ping"]

Answer = Literal["alive", "loading", "silent", "absent"]


def command(unix_socket: Path, *words: str, timeout: float) -> bytes:
    """The first line of the server's reply to one command, without its line end; b"" if it closes the connection.

    Raises OSError: FileNotFoundError or ConnectionRefusedError if no server listens, TimeoutError without a reply
    within `timeout` seconds.
    """
    request = b"*%d\r\n" % len(words)
    for word in words:
        request += b"$%d\r\n%s\r\n" % (len(word.encode()), word.encode())
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        connection.connect(str(unix_socket))
        connection.sendall(request)
        reply = b""
        while not reply.endswith(b"\n"):
            chunk = connection.recv(4096)
            if not chunk:
                return b""
            reply += chunk
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
    return reply.partition(b"\r\n")[0]


def ping(unix_socket: Path, timeout: float) -> Answer:
    """The state of a server, from its answer to PING within `timeout` seconds.

    Any reply but LOADING counts as alive: a server that runs a long script, or cannot write its AOF because the
    disk is full, answers PING with an error, but another server would not help.
    """
    try:
        reply = command(unix_socket, "PING", timeout=timeout)
    except (FileNotFoundError, ConnectionRefusedError):
        return "absent"
    except OSError:
        return "silent"
    if not reply:
        return "silent"
    return "loading" if reply.startswith(b"-LOADING") else "alive"
