"""Asking a server on a unix socket, in a few lines: whether to start one is known before redis-py is needed."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Answer", "command", "ping"]

Answer = Literal["alive", "loading", "silent", "absent"]


def command(unix_socket: Path, *words: str, timeout: float) -> bytes:
    """The first line of the server's reply to one command, without its line end; b"" if it hung up.

    Raises OSError: nobody listens (FileNotFoundError, ConnectionRefusedError), or no reply within
    `timeout` seconds (TimeoutError).
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
    """Whether a server answers there within `timeout` seconds.

    Any reply but LOADING counts as alive: a server that is busy with a script, or cannot write its AOF
    because the disk is full, answers PING with an error, and starting another would not help.
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
