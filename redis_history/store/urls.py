"""Store URLs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from redis_history.errors import ConfigurationError

if TYPE_CHECKING:
    from redis_history.embedded import EmbeddedServer

CLUSTER: Final = ("redis+cluster", "rediss+cluster")
SENTINEL: Final = ("redis+sentinel", "rediss+sentinel")
SCHEMES: Final = ("redis", "rediss", "unix", *CLUSTER, *SENTINEL, "memory", "embedded")

_AUTHORITY: Final = re.compile(r"[^/?#]*")


class Target(NamedTuple):
    """A parsed URL. `address`: for people and logs, without user name and password."""

    scheme: str
    url: str
    address: str
    path: str


def parse_url(url: str | None) -> Target:
    """Raises ConfigurationError unless it is a URL with a scheme of SCHEMES."""
    if not isinstance(url, str):
        raise ConfigurationError(f"a store needs a URL such as redis://localhost:6379/0 or embedded://, not {url!r}")
    # Any part of a URL may be a secret, so errors show the scheme only, and no message of the standard library.
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.lower() not in SCHEMES:
        shown = repr(scheme[:20]) if separator and scheme.replace("+", "").isalnum() else "this URL"
        raise ConfigurationError(f"{shown} does not begin with one of {', '.join(f'{s}://' for s in SCHEMES)}")
    url = f"{scheme.lower()}://{rest}"
    several = scheme.lower() in CLUSTER + SENTINEL
    if several:
        parse_several(url)
    try:
        parts = urlsplit(url)
        _ = several or parts.port
    except ValueError:
        raise ConfigurationError(
            f"this {scheme.lower()}:// URL has no valid host or port; percent-encode special characters of the password"
        ) from None
    if parts.scheme in ("redis", "rediss") and not (parts.path.strip("/") or "0").isdecimal():
        raise ConfigurationError("the path of a Redis URL is the number of a database; / in a password is written %2F")
    host = parts.netloc.rsplit("@", 1)[-1]
    return Target(parts.scheme, url, f"{parts.scheme}://{host}{parts.path}", unquote(host + parts.path))


class Several(NamedTuple):
    """The parts of a URL with several hosts. `url`: for redis-py, with the first host and the settings of all;
    `service` and `options`: for Sentinel."""

    hosts: tuple[tuple[str, int], ...]
    url: str
    service: str
    options: dict[str, str]


def parse_several(url: str) -> Several:
    """Raises ConfigurationError for an incomplete URL of a cluster or of Sentinels."""
    scheme, _, rest = url.partition("://")
    authority = _AUTHORITY.match(rest)[0]  # type: ignore[index]
    user, at, names = authority.rpartition("@")
    kind = scheme.partition("+")[2]
    hosts = []
    try:
        if "@" in user:  # a user name before a later host
            raise ValueError
        for name in names.split(","):
            host = urlsplit(f"redis://{name}")
            if not host.hostname or host.netloc != name:
                raise ValueError
            hosts.append((host.hostname, host.port or (26379 if kind == "sentinel" else 6379)))
        tail = urlsplit(f"redis://{rest[len(authority) :]}")
    except ValueError:
        raise ConfigurationError(
            f"this {scheme}:// URL is invalid: write {scheme}://user:password@host:port,host:port; percent-encode "
            "special characters of the password"
        ) from None
    service, _, database = tail.path.strip("/").partition("/")
    if kind == "cluster" and service not in ("", "0"):
        raise ConfigurationError("a cluster has one database only: leave the path of its URL empty")
    if kind == "sentinel" and (not service or not (database or "0").isdecimal()):
        raise ConfigurationError(f"name the service that the Sentinels watch: {scheme}://host:port/service-name[/db]")
    query = parse_qsl(tail.query, keep_blank_values=True)
    options = {name: value for name, value in query if name in ("sentinel_username", "sentinel_password")}
    rest_of_query = urlencode([(name, value) for name, value in query if name not in options])
    first = f"[{hosts[0][0]}]" if ":" in hosts[0][0] else hosts[0][0]
    one = f"{scheme.partition('+')[0]}://{user}{at}{first}:{hosts[0][1]}/{database or 0}?{rest_of_query}"
    return Several(tuple(hosts), one, unquote(service) if kind == "sentinel" else "", options)


def embedded_server(target: Target) -> EmbeddedServer:
    """The private server of a URL, not started. `embedded://`: the default folder; `embedded:///path`: this one."""
    from redis_history.embedded import EmbeddedServer  # imported only when a server is needed

    if target.path and not target.path.startswith("/"):
        raise ConfigurationError(f"write embedded:///absolute/path or embedded://, not embedded://{target.path}")
    return EmbeddedServer(target.path or None)


#: Settings that redis-py's pools and cluster clients add.
_INTERNAL: Final = ("maint_", "oss_cluster_", "orig_", "himport_", "event_dispatcher", "response_callbacks", "cache")


def connection_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a pool's connections, without host and port."""
    return {
        name: value
        for name, value in settings.items()
        if name not in ("host", "port") and not name.startswith(_INTERNAL)
    }
