"""From what a user passes to a store to the backend it works on."""

from __future__ import annotations

from typing import Any

from redis_history._async._connect import ConnectedCluster, connect
from redis_history._async.cluster_backend import AsyncClusterBackend
from redis_history._async.redis_backend import AsyncRedisBackend
from redis_history.backends.base import AsyncBackend
from redis_history.backends.memory import AsyncMemoryBackend
from redis_history.backends.redis.calls import SearchIndex, Searching, Settings
from redis_history.backends.redis.keys import Keyspace
from redis_history.backends.redis.urls import parse_url
from redis_history.durability import Confirmation
from redis_history.requests.options import Options
from redis_history.retry import RetryPolicy


def open_backend(url: str | None, client: Any, namespace: str, options: Options, retry: RetryPolicy) -> AsyncBackend:
    """Raises ConfigurationError for what cannot be used; connects to nothing yet."""
    if client is None and parse_url(url).scheme == "memory":
        options.check_without_server()
        return AsyncMemoryBackend(**options.for_memory())
    connected = connect(url, client)
    cluster, index = isinstance(connected, ConnectedCluster), None
    if cluster:
        options.check_without_server()  # the modules of cluster nodes know of their own documents only
    elif options.search != "off":
        index = SearchIndex(Searching(options.language, options.vectors, options.search == "require"))
    confirmation = None
    if options.durability != "server":
        confirmation = Confirmation(options.durability, options.replicas or 1, options.durability_timeout)
    settings = Settings(
        Keyspace(namespace),
        options.log_length,
        connected.database,
        options.ttl,
        options.for_redis(),
        confirmation,
        index,
        options.doorbell,
    )
    return (AsyncClusterBackend if cluster else AsyncRedisBackend)(connected, settings, retry)
