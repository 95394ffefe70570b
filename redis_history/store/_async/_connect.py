"""From a URL, or the user's own client, to a connected backend."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, Final

from redis import DriverInfo
from redis.asyncio import ConnectionPool, Redis, RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff

from redis_history._version import __version__
from redis_history.errors import ConfigurationError
from redis_history.store import urls
from redis_history.store._async._node import PROTOCOL, AsyncNode, client_of
from redis_history.store._async._runtime import in_thread, socket_timeout
from redis_history.store._async.cluster_backend import AsyncClusterBackend, ClusterNodes
from redis_history.store._async.redis_backend import AsyncRedisBackend
from redis_history.store.durability import Confirmation
from redis_history.store.leases import Contact
from redis_history.store.memory.backend import AsyncMemoryBackend
from redis_history.store.operations.backend import AsyncBackend
from redis_history.store.operations.keys import Keyspace
from redis_history.store.operations.options import Options
from redis_history.store.operations.settings import SearchIndex, Searching, Settings
from redis_history.store.retry import RetryPolicy

#: Seconds for a reply, and for connecting. A call may take longer, because it is retried until its deadline.
SOCKET_TIMEOUT = 5.0
MAX_CONNECTIONS = 10_000


class Server:
    """One server, or the primary behind Sentinels."""

    def __init__(self, address: str, node: AsyncNode, *, embedded: Any = None, sentinels: Any = None) -> None:
        self.address = address
        self.node = node
        self._embedded = embedded
        pool = node.client.connection_pool
        self.sentinel = node.contact.moves = isinstance(pool, SentinelConnectionPool)
        #: Clients of the Sentinels, which redis-py does not close together with the pool.
        self._sentinels: list[Redis] = [] if sentinels is None else sentinels.sentinels
        self.database = node.database

    def contact(self, key: bytes) -> Contact:
        return self.node.contact

    async def start(self) -> None:
        if self._embedded is not None:
            await in_thread(self._embedded.start)

    async def aclose(self) -> None:
        await self.node.aclose()
        for sentinel in self._sentinels:
            await sentinel.aclose()
        if self._embedded is not None:
            await in_thread(self._embedded.close)


def open_backend(url: str | None, client: Any, namespace: str, options: Options, retry: RetryPolicy) -> AsyncBackend:
    """Raises ConfigurationError for unusable arguments. Does not connect."""
    keyspace = Keyspace(namespace)
    if client is None and urls.parse_url(url).scheme == "memory":
        return AsyncMemoryBackend(**options.for_memory())
    confirmation = None
    if options.durability != "server" and not options.durable_server:
        confirmation = Confirmation(options.durability, options.durability_timeout)
    server = connect(url, client, patience=0.0 if confirmation is None else confirmation.timeout)
    cluster, index = isinstance(server, ClusterNodes), None
    if options.search != "off":
        searching = Searching(options.language, options.vectors, options.search == "require")
        index = SearchIndex(searching, keyspace, cluster=cluster)
    settings = Settings(
        keyspace,
        options.log_length,
        server.database,
        options.ttl,
        options.for_redis(),
        confirmation,
        index,
        options.codec is not None,
        cluster=cluster,
        audit=options.audit,
        poll_interval=options.poll_interval,
        durable=options.durable_server,
    )
    return (AsyncClusterBackend if cluster else AsyncRedisBackend)(server, settings, retry)


def connect(url: str | None, client: Any, *, patience: float = 0.0) -> Server | ClusterNodes:
    """Make the node or nodes of a URL or client, without connecting or starting anything. Raises ConfigurationError
    for an unusable URL or client. `patience`:
    seconds that a reply may take longer than usual, because it waits for a confirmation."""
    if client is not None:
        if url is not None:
            raise ConfigurationError("give a URL or a client, not both")
        if isinstance(client, RedisCluster):
            return ClusterNodes.of_client(client)
        if not isinstance(client, Redis):
            raise ConfigurationError(
                f"{type(client).__module__}.{type(client).__name__} is not a {Redis.__module__}.{Redis.__name__} or "
                f"{RedisCluster.__module__}.{RedisCluster.__name__}; "
                "asynchronous stores take redis.asyncio clients, the others redis.Redis and redis.RedisCluster"
            )
        return Server("the server of the given client", AsyncNode(client=client))
    target = urls.parse_url(url)
    if target.scheme == "embedded":
        server = urls.embedded_server(target)
        return Server("the embedded server", _node(_pool(server.url, patience)), embedded=server)
    if target.scheme in urls.CLUSTER:
        several = urls.parse_several(target.url)
        pool = _pool(several.url, patience)
        return ClusterNodes.of_url(target.address, several.url, several.hosts, pool)
    if target.scheme in urls.SENTINEL:
        several = urls.parse_several(target.url)
        pool = _pool(several.url, patience)
        sentinels = _sentinels(several, pool)

        def make(connected: Any) -> Redis:
            return client_of_service(several, pool, sentinels, connected)

        node = AsyncNode(make=make, timeout=pool.connection_kwargs["socket_timeout"])
        return Server(target.address, node, sentinels=sentinels)
    return Server(target.address, _node(_pool(target.url, patience)))


@functools.cache
def _driver() -> DriverInfo:
    """The client name of connections. Cached, because redis-py reads its version from disk each time."""
    return DriverInfo().add_upstream_driver("redis_history", __version__)


def _node(pool: ConnectionPool) -> AsyncNode:
    """A server with connections as this pool would make."""

    def make(connected: Any) -> Redis:
        settings = urls.connection_settings(pool.connection_kwargs)
        settings |= {name: pool.connection_kwargs[name] for name in ("host", "port") if name in pool.connection_kwargs}
        return client_of(pool, settings, connected)

    return AsyncNode(make=make, timeout=pool.connection_kwargs["socket_timeout"])


def _pool(url: str, patience: float) -> ConnectionPool:
    """The settings of connections. This pool itself is never used to connect."""
    try:
        pool = ConnectionPool.from_url(
            url,
            socket_timeout=SOCKET_TIMEOUT,
            socket_connect_timeout=SOCKET_TIMEOUT,
            retry=Retry(NoBackoff(), 0),
            max_connections=MAX_CONNECTIONS,
            protocol=PROTOCOL,
            driver_info=_driver(),
        )
        pool.connection_class(**pool.connection_kwargs)  # does not connect; checks its options
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"{urls.parse_url(url).address} is not a Redis URL: {error}") from error
    for name in ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile"):
        path = pool.connection_kwargs.get(name)
        if path and not Path(path).exists():
            raise ConfigurationError(f"{name} of {urls.parse_url(url).address} does not exist: {path}")
    if patience and pool.connection_kwargs.get("socket_timeout"):
        pool.connection_kwargs["socket_timeout"] += patience
    return pool


#: Seconds for a Sentinel to answer before the next one is asked.
_SENTINEL_SECONDS: Final = 2.0


def _security(several: urls.Several, pool: ConnectionPool) -> dict[str, Any]:
    """The settings of TLS."""
    settings = urls.connection_settings(pool.connection_kwargs)
    security = {name: value for name, value in settings.items() if name.startswith("ssl_")}
    return {**security, "ssl": True} if several.url.startswith("rediss:") else security


def _sentinels(several: urls.Several, pool: ConnectionPool) -> Sentinel:
    settings = {
        **_security(several, pool),
        **{name.removeprefix("sentinel_"): value for name, value in several.options.items()},
        "socket_timeout": _SENTINEL_SECONDS,
        "socket_connect_timeout": _SENTINEL_SECONDS,
        "retry": Retry(NoBackoff(), 0),
    }
    return Sentinel(several.hosts, sentinel_kwargs=settings)


def client_of_service(several: urls.Several, pool: ConnectionPool, sentinels: Sentinel, connected: Any) -> Redis:
    """A client of a primary behind Sentinels. Each new connection asks them for its address. `pool`: the settings."""
    settings = urls.connection_settings(pool.connection_kwargs) | _security(several, pool)
    settings |= {
        "max_connections": pool.max_connections,
        "redis_connect_func": connected,
        "socket_timeout": socket_timeout(pool.connection_kwargs["socket_timeout"]),
    }
    return Redis(connection_pool=SentinelConnectionPool(several.service, sentinels, **settings))
