"""From a URL, or the user's own client, to a connected backend."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from redis import DriverInfo
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.connection import ConnectionPool as RedisPool
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.backoff import NoBackoff

from redis_history._async._cluster import ClusterNodes
from redis_history._async._cluster_doorbell import AsyncClusterDoorbell
from redis_history._async._connections import ConnectionPool
from redis_history._async._doorbell import AsyncDoorbell
from redis_history._async._runtime import in_thread
from redis_history._async._sentinel import client_of_service
from redis_history._version import __version__
from redis_history.backends.redis.slots import Address
from redis_history.backends.redis.urls import CLUSTER, SENTINEL, embedded_server, parse_several, parse_url
from redis_history.errors import ConfigurationError

#: Seconds for a reply, and for a connection to be made. A call may take longer: it is repeated until its deadline.
SOCKET_TIMEOUT = 5.0
#: Far more than the server likes; a process that needs as many calls at once has another problem.
MAX_CONNECTIONS = 10_000


class Connected:
    """A client, where it leads, and what must be given back at the end.

    Of a client of our own, `make`, each event loop has one: redis-py's pools are for a single loop.
    """

    def __init__(
        self,
        address: str,
        *,
        make: Callable[[], Redis] | None = None,
        client: Redis | None = None,
        embedded: Any = None,
    ) -> None:
        self.address = address
        self._make = make
        self.client: Any = make() if make is not None else client
        self._embedded = embedded

    @property
    def sentinel(self) -> bool:
        """Whether Sentinels say which server it is."""
        return isinstance(self.client.connection_pool, SentinelConnectionPool)

    async def start(self) -> None:
        """Start a private server that does not run (yet, or any more); other servers are not ours to start."""
        if self._embedded is not None:
            await in_thread(self._embedded.start)

    @property
    def database(self) -> int:
        return int(self.client.connection_pool.connection_kwargs.get("db") or 0)

    def connections(self) -> Any:
        """What calls go over."""
        make = self._make
        if make is None:
            return ConnectionPool(lambda: self.client.connection_pool, keep=False)
        return ConnectionPool(lambda: make().connection_pool, keep=True)

    def doorbell(self, connections: Any, mode: str) -> Any:
        """What hears of changes, for this event loop, in one of `DOORBELLS`."""
        return AsyncDoorbell(self.client if self._make is None else Redis(connection_pool=connections.pool), mode)

    async def aclose(self) -> None:
        if self._embedded is not None:
            await in_thread(self._embedded.close)


class ConnectedCluster(Connected):
    """Lines to the nodes of a cluster, and what must be given back at the end."""

    def __init__(self, connections: ClusterNodes, address: str) -> None:
        self.address = address
        self._connections = connections

    @property
    def sentinel(self) -> bool:
        return False

    async def start(self) -> None:
        pass

    @property
    def database(self) -> int:
        return 0

    def connections(self) -> ClusterNodes:
        return self._connections

    def doorbell(self, connections: Any, mode: str) -> AsyncClusterDoorbell:
        return AsyncClusterDoorbell(self._connections, mode)

    async def aclose(self) -> None:
        pass


def connect(url: str | None, client: Any) -> Connected:
    """Raises ConfigurationError for a URL or a client that cannot be used; connects to nothing and starts nothing."""
    if client is not None:
        if url is not None:
            raise ConfigurationError("give a URL or a client, not both")
        if isinstance(client, RedisCluster):
            return ConnectedCluster(ClusterNodes.of_client(client), "the cluster of the given client")
        if not isinstance(client, Redis):
            raise ConfigurationError(
                f"{type(client).__module__}.{type(client).__name__} is not a {Redis.__module__}.{Redis.__name__} or "
                f"{RedisCluster.__module__}.{RedisCluster.__name__}; "
                "asynchronous stores take redis.asyncio clients, the others redis.Redis and redis.RedisCluster"
            )
        return Connected("the server of the given client", client=client)
    target = parse_url(url)
    if target.scheme == "embedded":
        server = embedded_server(target)
        return Connected("the embedded server", make=lambda: _client(server.url), embedded=server)
    if target.scheme in CLUSTER:
        several = parse_several(target.url)
        seeds = [Address(*host) for host in several.hosts]
        return ConnectedCluster(ClusterNodes(seeds, _client(several.url).connection_pool), target.address)
    if target.scheme in SENTINEL:
        several = parse_several(target.url)
        return Connected(target.address, make=lambda: client_of_service(several, _client(several.url).connection_pool))
    return Connected(target.address, make=lambda: _client(target.url))


@functools.cache
def _driver() -> DriverInfo:
    """What connections call themselves; redis-py reads its own version from disk for each of these."""
    return DriverInfo().add_upstream_driver("redis_history", __version__)


def _client(url: str) -> Redis:
    try:
        pool = RedisPool.from_url(
            url,
            socket_timeout=SOCKET_TIMEOUT,
            socket_connect_timeout=SOCKET_TIMEOUT,
            retry=Retry(NoBackoff(), 0),
            max_connections=MAX_CONNECTIONS,
            driver_info=_driver(),
        )
        pool.connection_class(**pool.connection_kwargs)  # connects to nothing, but knows its own options
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"{_without_secrets(url)} is not a Redis URL: {error}") from error
    for name in ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile"):
        path = pool.connection_kwargs.get(name)
        if path and not Path(path).exists():
            raise ConfigurationError(f"{name} of {_without_secrets(url)} is not there: {path}")
    return Redis(connection_pool=pool)


def _without_secrets(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rsplit("@", 1)[-1], query="", fragment="").geturl()
