"""How the parts of a URL with several hosts reach the connections, without connecting."""

from typing import Any

import pytest
import redis
import redis.sentinel
from redis.connection import SSLConnection

from redis_history import AsyncHistoryStore, HistoryStore
from redis_history.errors import ConfigurationError
from redis_history.store._sync.cluster_backend import Address

FACES = pytest.mark.parametrize("kind", [HistoryStore, AsyncHistoryStore])


@FACES
async def test_connections_to_a_node_have_the_settings_of_the_url(kind: Any) -> None:
    store = kind("rediss+cluster://app:s%2Fcret@a:7000,b:7001/?socket_timeout=2&client_name=x&max_connections=7")
    node = store._backend._server.node(Address("c", 7002))
    pool = node.client.connection_pool
    assert pool.max_connections == 7
    assert issubclass(pool.connection_class, redis.asyncio.SSLConnection | SSLConnection)
    wanted = {"host": "c", "port": 7002, "username": "app", "password": "s/cret"}
    assert wanted.items() <= pool.connection_kwargs.items()
    assert node.timeout == 2.0
    connection = pool.connection_class(**pool.connection_kwargs)
    assert (connection.host, connection.port, connection.client_name) == ("c", 7002, "x")
    assert connection.retry.get_retries() == 0


@FACES
def test_servers_and_sentinels_have_separate_passwords(kind: Any) -> None:
    url = "redis+sentinel://app:secret@a,b:7/chat/3?sentinel_username=s&sentinel_password=other&client_name=x"
    store = kind(url)
    server = store._backend._server
    pool = server.node.client.connection_pool
    assert (server.database, server.address, pool.service_name) == (3, "redis+sentinel://a,b:7/chat/3", "chat")
    assert {"username": "app", "password": "secret", "db": 3}.items() <= pool.connection_kwargs.items()
    assert pool.connection_class(**pool.connection_kwargs).retry.get_retries() == 0
    sentinels = [one.connection_pool.connection_kwargs for one in pool.sentinel_manager.sentinels]
    assert [(one["host"], one["port"]) for one in sentinels] == [("a", 26379), ("b", 7)]
    assert all((one["username"], one["password"]) == ("s", "other") for one in sentinels)


@FACES
def test_rediss_encrypts_connections_to_servers_and_sentinels(kind: Any) -> None:
    pool = kind("rediss+sentinel://a/chat?ssl_cert_reqs=none")._backend._server.node.client.connection_pool
    secure = (redis.sentinel.SentinelManagedSSLConnection, redis.asyncio.sentinel.SentinelManagedSSLConnection)
    assert issubclass(pool.connection_class, secure)
    assert pool.connection_kwargs["ssl_cert_reqs"] == "none"
    [sentinel] = pool.sentinel_manager.sentinels
    assert issubclass(sentinel.connection_pool.connection_class, redis.asyncio.SSLConnection | SSLConnection)
    assert sentinel.connection_pool.connection_kwargs["ssl_cert_reqs"] == "none"


@FACES
@pytest.mark.parametrize(
    "url",
    [
        "redis+cluster://u:secret@a?nonsense=1",
        "redis+sentinel://u:secret@a/s?nonsense=1",
        "redis://localhost/0?password=secret&nonsense=1",
    ],
)
def test_errors_about_unknown_options_hide_secrets(kind: Any, url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        kind(url)
    assert "secret" not in str(caught.value)


@FACES
@pytest.mark.parametrize("url", ["memory://", "redis://localhost", "redis+cluster://localhost"])
@pytest.mark.parametrize("namespace", ["", 5, None, "x" * 129, "\ud800"])
def test_a_namespace_is_refused_for_every_url(kind: Any, url: str, namespace: Any) -> None:
    with pytest.raises(ConfigurationError, match="namespace"):
        kind(url, namespace=namespace)
