"""Whether anything listens at the address of a server. Imports little, so that a terminal gets the answer at once."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from urllib.parse import unquote, urlsplit

from redis_history.backends.redis.urls import CLUSTER, SENTINEL, parse_several, parse_url
from redis_history.errors import BackendUnavailableError

_SECONDS = 0.3  # for a connection; what takes longer is left to the store


def check_listening(url: str) -> None:
    """At a terminal, raises BackendUnavailableError if the addresses of the URL refuse connections. Elsewhere a server
    gets time to start. Raises ConfigurationError for an invalid URL."""
    target = parse_url(url)
    if sys.stderr is None or not sys.stderr.isatty() or target.scheme in ("embedded", "memory"):
        return
    if target.scheme == "unix":
        refusals = [_refusal(unquote(urlsplit(target.url).path))]
    elif target.scheme in CLUSTER + SENTINEL:
        refusals = [_refusal(host) for host in parse_several(target.url).hosts]
    else:
        parts = urlsplit(target.url)
        refusals = [_refusal((parts.hostname or "localhost", parts.port or 6379))]
    if all(refusals):
        raise BackendUnavailableError(f"nothing listens at {target.address} ({refusals[0]})")


def _refusal(address: str | tuple[str, int]) -> str | None:
    try:
        if isinstance(address, tuple):
            socket.create_connection(address, _SECONDS).close()
        else:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(_SECONDS)
                connection.connect(address)
    except (ConnectionRefusedError, FileNotFoundError) as error:
        return error.strerror
    except OSError:
        pass
    return None


def url_of(words: Sequence[str]) -> str | None:
    """The value of --url among the words after the name of a command."""
    for at, word in enumerate(words):
        if word == "--":
            break
        if word.startswith("--url="):
            return word.removeprefix("--url=")
        if word == "--url" and at + 1 < len(words):
            return words[at + 1]
    return None
