# Generated from ../_async by scripts/unasync: do not edit.
"""From what a user passes to a store to the backend it works on."""

from __future__ import annotations

from typing import Any

from redis_history._sync._connect import ConnectedCluster, connect
from redis_history._sync.cluster_backend import ClusterBackend
from redis_history._sync.redis_backend import RedisBackend
from redis_history.backends.base import Backend
from redis_history.backends.memory import MemoryBackend
from redis_history.backends.redis.calls import Settings
from redis_history.backends.redis.failures import RetryPolicy
from redis_history.backends.redis.keys import Keyspace
from redis_history.backends.redis.searching import Searching
from redis_history.backends.redis.urls import parse_url
from redis_history.requests import Options

__all__ = ["open_backend"]


def open_backend(url: str | None, client: Any, namespace: str, options: Options, retry: RetryPolicy) -> Backend:
    """Raises ConfigurationError for what cannot be used; connects to nothing yet."""
    if client is None and parse_url(url).scheme == "memory":
        options.check_without_server()
        return MemoryBackend(**options.for_memory())
    connected = connect(url, client)
    caps, confirm = options.for_redis(), options.confirmation()
    settings = Settings(
        Keyspace(namespace),
        options.log_length,
        connected.database,
        options.ttl,
        caps,
        confirm,
        doorbell=options.doorbell,
    )
    if isinstance(connected, ConnectedCluster):
        options.check_without_server()  # the modules of cluster nodes know of their own documents only
        return ClusterBackend(connected, settings, retry)
    searching = None
    if options.search != "off":
        searching = Searching(options.language, options.vectors, options.search == "require")
    return RedisBackend(connected, settings, retry, searching)
