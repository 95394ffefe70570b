# Generated from ../_async by scripts/unasync: do not edit.
"""From what a user passes to a store to the backend it works on."""

from __future__ import annotations

from typing import Any

from redis_history._sync._connect import ConnectedCluster, connect
from redis_history._sync.cluster_backend import ClusterBackend
from redis_history._sync.redis_backend import RedisBackend
from redis_history.backends.base import Backend
from redis_history.backends.memory import MemoryBackend
from redis_history.backends.redis.calls import SearchIndex, Searching, Settings
from redis_history.backends.redis.keys import Keyspace
from redis_history.backends.redis.urls import parse_url
from redis_history.durability import Confirmation
from redis_history.requests.options import Options
from redis_history.retry import RetryPolicy


def open_backend(url: str | None, client: Any, namespace: str, options: Options, retry: RetryPolicy) -> Backend:
    """Raises ConfigurationError for what cannot be used; connects to nothing yet."""
    if client is None and parse_url(url).scheme == "memory":
        options.check_without_server()
        return MemoryBackend(**options.for_memory())
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
    return (ClusterBackend if cluster else RedisBackend)(connected, settings, retry)
