"""Store URLs: which scheme means what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from redis_history.errors import ConfigurationError

if TYPE_CHECKING:
    from redis_history.embedded import EmbeddedServer

__all__ = ["SCHEMES", "Target", "embedded_server", "parse_url"]

SCHEMES: Final = ("redis", "rediss", "unix", "memory", "embedded")


class Target(NamedTuple):
    """Where a URL leads. `address` is for people and logs: without user name and password."""

    scheme: str
    url: str
    address: str
    path: str


def parse_url(url: str | None) -> Target:
    """Raises ConfigurationError for anything but a URL of one of SCHEMES."""
    if not isinstance(url, str):
        raise ConfigurationError(f"a store needs a URL such as redis://localhost:6379/0 or embedded://, not {url!r}")
    # Whatever is wrong with a URL, no part of it is shown that could be a secret: so neither the reason as the
    # standard library puts it, nor anything but the scheme and a host that could be told from the rest.
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.lower() not in SCHEMES:
        shown = scheme[:20] if separator and scheme.isalnum() else "this"
        raise ConfigurationError(f"{shown!r} does not begin with one of {', '.join(f'{s}://' for s in SCHEMES)}")
    url = f"{scheme.lower()}://{rest}"
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ConfigurationError(
            f"this {scheme.lower()}:// URL is not a URL: its host or port cannot be read; "
            "percent-encode special characters of the password"
        ) from None
    if parts.scheme in ("redis", "rediss") and not (parts.path.strip("/") or "0").isdecimal():
        raise ConfigurationError("the path of a Redis URL is the number of a database; / in a password is written %2F")
    host = parts.netloc.rsplit("@", 1)[-1]
    return Target(parts.scheme, url, f"{parts.scheme}://{host}{parts.path}", unquote(host + parts.path))


def embedded_server(target: Target) -> EmbeddedServer:
    """The private server of a URL, not started: `embedded://` the user's default one, `embedded:///path` a folder's."""
    from redis_history.embedded import EmbeddedServer  # only who asks for a server here needs to know how to run one

    if target.path and not target.path.startswith("/"):
        raise ConfigurationError(f"write embedded:///absolute/path or embedded://, not embedded://{target.path}")
    return EmbeddedServer(target.path or None)
