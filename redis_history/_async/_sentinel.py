"""A client of whichever server is the primary of a service that Sentinels watch."""

from __future__ import annotations

from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig

from redis_history.backends.redis.urls import Several, connection_settings

#: Seconds for a Sentinel to answer, until the next one is asked.
_ANSWER_WITHIN: Final = 2.0


class _Asked:
    """Sentinels that are asked rarely, from any event loop: so no connection to them is kept."""

    def __init__(self, sentinels: Any) -> None:
        self._sentinels = sentinels

    async def discover_master(self, service: str) -> Any:
        try:
            return await self._sentinels.discover_master(service)
        finally:
            for sentinel in self._sentinels.sentinels:
                await sentinel.connection_pool.disconnect(inuse_connections=False)


def client_of_service(several: Several, pool: Any) -> Redis:
    """`pool` shows how to connect to the servers. Each new connection asks the Sentinels who is the primary."""
    settings = connection_settings(pool.connection_kwargs)
    encryption = {name: value for name, value in settings.items() if name.startswith("ssl_")}
    if several.url.startswith("rediss:"):
        encryption["ssl"] = settings["ssl"] = True
    sentinel_settings = {
        **encryption,
        **{name.removeprefix("sentinel_"): value for name, value in several.options.items()},
        "socket_timeout": _ANSWER_WITHIN,
        "socket_connect_timeout": _ANSWER_WITHIN,
        "retry": Retry(NoBackoff(), 0),
    }
    asked = _Asked(Sentinel(several.hosts, sentinel_kwargs=sentinel_settings))
    return Redis.from_pool(
        SentinelConnectionPool(
            several.service,
            asked,
            max_connections=pool.max_connections,
            maint_notifications_config=MaintNotificationsConfig(enabled=False),
            **settings,
        )
    )
