# Generated from ../_async by scripts/unasync: do not edit.
"""Connections to the nodes of a cluster, and who serves what at the moment.

redis-py's cluster client is not used for calls: it packs and repeats commands by itself. Of one that is the user's we
take where its nodes are and how to connect to them; the connections are our own, and so are their number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from redis import Redis, RedisCluster
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool as RedisPool
from redis.crc import REDIS_CLUSTER_HASH_SLOTS
from redis.exceptions import ConnectionError, RedisError, ResponseError
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry

from redis_history._ids import rng
from redis_history._sync._connections import CLOSED, ConnectionPool
from redis_history.backends.redis.failures import is_transient
from redis_history.backends.redis.slots import Address, Topology, read_slots
from redis_history.backends.redis.urls import connection_settings
from redis_history.errors import ConfigurationError

_SLOTS: Final = b"*2\r\n$7\r\nCLUSTER\r\n$5\r\nSLOTS\r\n"


class Node(NamedTuple):
    """One node: calls go over its connections."""

    address: Address
    connections: ConnectionPool

    @property
    def client(self) -> Redis:
        """For the doorbell of this event loop."""
        return Redis(connection_pool=self.connections.pool)


class ClusterNodes:
    """ConnectionPool to every node. `stale`: what is known of the cluster is to be read anew before the next call."""

    def __init__(
        self,
        seeds: list[Address],
        pool: Any,
        remap: Callable[[str, int], tuple[str, int]] = lambda host, port: (host, port),
    ) -> None:
        """`pool` shows how to connect: `connection_class`, `connection_kwargs`, `max_connections`."""
        self.stale = True
        self.remap = remap
        self._seeds = seeds
        self._how = pool
        self._nodes: dict[Address, Node] = {}
        self._left: list[Node] = []
        self._topology = Topology([None] * REDIS_CLUSTER_HASH_SLOTS, frozenset(), frozenset())
        self._closed = False

    @classmethod
    def of_client(cls, client: RedisCluster) -> ClusterNodes:
        """With the settings of a user's client."""
        manager = client.nodes_manager
        nodes = [*manager.nodes_cache.values(), *manager.startup_nodes.values()]
        seeds = [Address(node.host, int(node.port)) for node in nodes]
        # A node of the synchronous client has a pool, one of the asynchronous client is its own.
        pools = [getattr(getattr(node, "redis_connection", node), "connection_pool", node) for node in nodes]
        return cls(seeds, pools[0], manager.remap_host_port)

    @property
    def primaries(self) -> frozenset[Address]:
        return self._topology.primaries

    def owner(self, slot: int) -> Node:
        """The node that serves a slot. Raises ClusterDownError."""
        return self.node(self._topology.owner(slot))

    def node(self, address: Address) -> Node:
        node = self._nodes.get(address)
        if node is None:
            node = Node(address, ConnectionPool(lambda: self._pool(address), keep=True))
            node = self._nodes.setdefault(address, node)  # another thread may have been faster
        if self._closed:
            raise ConnectionError(CLOSED)
        return node

    def refresh(self, first: Address | None = None) -> None:
        """Read who serves what, from `first` or else from any node that answers. Raises what the last one did."""
        self.stale = True
        known = [*self._topology.nodes]
        rng.shuffle(known)
        error: Exception = ConnectionError("no node of the cluster is known")
        for address in dict.fromkeys([*([first] if first else []), *known, *self._seeds]):
            try:
                topology = read_slots(self._ask(self.node(address).connections), address, self.remap)
            except (RedisError, OSError) as caught:
                if isinstance(caught, ResponseError) and "cluster support disabled" in str(caught):
                    raise ConfigurationError(
                        f"{address.host}:{address.port} is no node of a cluster; use a redis:// URL, or redis.Redis"
                    ) from caught
                if not is_transient(caught):
                    raise
                error = caught
                continue
            self._topology = topology
            self.stale = False
            self._forget(topology)
            return
        raise error

    def close(self) -> None:
        self._closed = True
        nodes, self._nodes = [*self._nodes.values(), *self._left], {}
        self._left = []
        for node in nodes:
            node.connections.close()

    def _forget(self, topology: Topology) -> None:
        """Let go of nodes that have left, so that a cluster whose addresses change does not fill a table here."""
        # Calls to a node that left may be under way: what they use is closed when the nodes are next looked at.
        left = [address for address in [*self._nodes] if address not in topology.nodes]
        ended, self._left = self._left, [node for address in left if (node := self._nodes.pop(address, None))]
        for node in [*ended, *self._left]:
            node.connections.close_idle()

    def _ask(self, connections: ConnectionPool) -> Any:
        connection = connections.acquire()
        try:
            connections.send(connection, _SLOTS)
            reply = connection.read_response(disable_decoding=True)
        except BaseException as error:  # a cancelled task too
            connections.discard(connection)
            connections.check(error)
            raise
        connections.release(connection)
        return reply

    def _pool(self, address: Address) -> RedisPool:
        settings = connection_settings(self._how.connection_kwargs)
        settings |= {"host": address.host, "port": address.port, "retry": Retry(NoBackoff(), 0)}
        return RedisPool(
            connection_class=self._how.connection_class,
            max_connections=self._how.max_connections,
            maint_notifications_config=MaintNotificationsConfig(enabled=False),
            **settings,
        )
