# Generated from ../_async by scripts/unasync: do not edit.
"""A Redis Cluster: its nodes and the connections to them, the backend that sends each call to the right node, and
doorbells.

redis-py's cluster client is not used for calls, because it packs and repeats commands itself. A user's client only says
where its nodes are and how to connect to them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from redis import Redis, RedisCluster
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool as RedisPool
from redis.crc import REDIS_CLUSTER_HASH_SLOTS
from redis.exceptions import (
    AskError,
    ConnectionError,
    MovedError,
    NoScriptError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry

from redis_history._ids import rng
from redis_history._sync._connections import CLOSED, ConnectionPool
from redis_history._sync._doorbell import Doorbell, Topic, call_wake
from redis_history._sync._runtime import Job, Signal, is_cancelled, reset_after_fork, spawn
from redis_history._sync.redis_backend import RedisBackend
from redis_history.backends.redis.calls import Attempt, Call, raise_first
from redis_history.backends.redis.failures import is_transient
from redis_history.backends.redis.server_info import slowest_mode
from redis_history.backends.redis.slots import Address, Topology, read_slots, redirected_to, slot_of
from redis_history.backends.redis.urls import connection_settings
from redis_history.errors import ConfigurationError

_SLOTS: Final = b"*2\r\n$7\r\nCLUSTER\r\n$5\r\nSLOTS\r\n"


class Node(NamedTuple):
    address: Address
    connections: ConnectionPool

    @property
    def client(self) -> Redis:
        """For the doorbell of this event loop."""
        return Redis(connection_pool=self.connections.pool)


class ClusterNodes:
    """All nodes, and which slots they serve. `stale`: read that again before the next call."""

    database = 0
    sentinel = False

    def __init__(
        self,
        address: str,
        seeds: list[Address],
        pool: Any,
        remap: Callable[[str, int], tuple[str, int]] = lambda host, port: (host, port),
    ) -> None:
        """`pool` has the settings of connections. `remap` turns the addresses that nodes report into usable ones."""
        self.address = address
        self.stale = True
        self.remap = remap
        self._seeds = seeds
        self._settings = pool
        self._nodes: dict[Address, Node] = {}
        self._removed: list[Node] = []
        self._topology = Topology([None] * REDIS_CLUSTER_HASH_SLOTS, frozenset(), frozenset())
        self._closed = False

    @classmethod
    def of_client(cls, client: RedisCluster) -> ClusterNodes:
        """With the nodes and settings of a user's client."""
        manager = client.nodes_manager
        nodes = [*manager.nodes_cache.values(), *manager.startup_nodes.values()]
        seeds = [Address(node.host, int(node.port)) for node in nodes]
        # A synchronous node has a pool; an asynchronous node is a pool.
        pools = [getattr(getattr(node, "redis_connection", node), "connection_pool", node) for node in nodes]
        return cls("the cluster of the given client", seeds, pools[0], manager.remap_host_port)

    def connections(self) -> ClusterNodes:
        return self

    def doorbell(self, connections: Any, mode: str) -> ClusterDoorbell:
        return ClusterDoorbell(self, mode)

    def start(self) -> None:
        """Nothing to start."""

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
        """Read the slots from `first`, or else from any other node. Raises the last error."""
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
                        f"{address.host}:{address.port} is not part of a cluster; use a redis:// URL, or redis.Redis"
                    ) from caught
                if not is_transient(caught):
                    raise
                error = caught
                continue
            self._topology = topology
            self.stale = False
            self._drop_missing(topology)
            return
        raise error

    def close(self) -> None:
        self._closed = True
        nodes, self._nodes = [*self._nodes.values(), *self._removed], {}
        self._removed = []
        for node in nodes:
            node.connections.close()

    def _drop_missing(self, topology: Topology) -> None:
        # A call may still use a node that left, so its connections are closed at the next refresh.
        left = [address for address in [*self._nodes] if address not in topology.nodes]
        ended, self._removed = self._removed, [node for address in left if (node := self._nodes.pop(address, None))]
        for node in [*ended, *self._removed]:
            node.connections.close_idle()

    def _ask(self, connections: ConnectionPool) -> Any:
        connection = connections.acquire()
        try:
            connections.send(connection, _SLOTS)
            reply = connections.read(connection)
        except BaseException as error:  # an interrupt too
            connections.discard(connection)
            connections.check(error)
            raise
        connections.release(connection)
        return reply

    def _pool(self, address: Address) -> RedisPool:
        settings = connection_settings(self._settings.connection_kwargs)
        settings |= {"host": address.host, "port": address.port, "retry": Retry(NoBackoff(), 0)}
        return RedisPool(
            connection_class=self._settings.connection_class,
            max_connections=self._settings.max_connections,
            maint_notifications_config=MaintNotificationsConfig(enabled=False),
            **settings,
        )


_logger = logging.getLogger("redis_history")

#: Seconds between comparisons of doorbells and known primaries.
_COMPARE_SECONDS: Final = 1.0
#: Seconds between reading the primaries from a node.
_REFRESH_SECONDS: Final = 10.0


class ClusterDoorbell:
    """A doorbell for each primary. Runs from the first `watch` until `close`.

    A node notifies only about its own keys. Every channel is subscribed to at every primary, so that moving slots and
    failovers need no change. The list of primaries is read again from time to time, because a connection does not
    report a new shard.
    """

    def __init__(self, nodes: ClusterNodes, mode: str) -> None:
        self._nodes = nodes
        self._asked = mode
        # Topics and callbacks in order, for doorbells that are added later.
        self._watched: dict[tuple[Topic, Any], None] = {}
        self._doorbells: dict[Address, Doorbell] = {}
        self._removed: list[Doorbell] = []
        self._guard = threading.Lock()  # for the three above; never held during a call to a server
        self._signal: Signal | None = None
        self._job: Job | None = None
        self._closed = False
        reset_after_fork(self)

    def forget(self) -> None:
        """Reset a forked child: threads, connections and the watchers are the parent's."""
        self._watched = {}
        self._doorbells = {}
        self._removed = []
        self._guard = threading.Lock()
        self._signal = None
        self._job = None

    @property
    def mode(self) -> str:
        """The mode of the slowest node; "poll" while a node lacks a doorbell."""
        doorbells = {**self._doorbells}
        if self._asked != "publish" and self._nodes.primaries - doorbells.keys():
            return "poll"
        return slowest_mode([doorbell.mode for doorbell in doorbells.values()])

    def watch(self, topic: Topic, wake: Any) -> None:
        with self._guard:
            self._watched[topic, wake] = None
            for doorbell in self._doorbells.values():
                doorbell.watch(topic, wake)
            if not self._closed and (self._job is None or self._job.ended):
                self._signal = Signal()
                self._job = spawn(self._run, "redis_history-doorbells")

    def unwatch(self, topic: Topic, wake: Any) -> None:
        with self._guard:
            self._watched.pop((topic, wake), None)
            for doorbell in self._doorbells.values():
                doorbell.unwatch(topic, wake)

    def close(self) -> None:
        with self._guard:
            self._closed = True
            watched = [*self._watched]
        for topic, wake in watched:  # waiting subscriptions see that the store was closed
            call_wake(topic, wake, None)
        if self._signal is not None:
            self._signal.set()
        if self._job is not None:
            self._job.stop()
        for doorbell in [*self._doorbells.values(), *self._removed]:
            doorbell.close()

    def _run(self) -> None:
        assert self._signal is not None  # noqa: S101
        asked = time.monotonic()
        while not (self._closed or is_cancelled()):
            try:
                if self._nodes.stale or time.monotonic() - asked > _REFRESH_SECONDS:
                    self._nodes.refresh()
                    asked = time.monotonic()
            except Exception as error:  # noqa: BLE001 -- the next attempt may work
                _logger.info("the doorbell cannot read the list of the cluster's nodes: %s", error)
            try:
                self._match_primaries()
            except Exception as error:
                _logger.warning("the doorbell failed and tries again", exc_info=error)
            self._signal.wait(_COMPARE_SECONDS)

    def _match_primaries(self) -> None:
        """A doorbell for each primary, and none for other nodes."""
        with self._guard:
            if self._closed:
                return
            primaries = self._nodes.primaries
            if self._asked == "publish" and primaries:
                # Every node receives published messages: one doorbell is enough, and more would wake repeatedly.
                primaries = frozenset([*self._doorbells.keys() & primaries][:1]) or frozenset([min(primaries)])
            self._removed += [self._doorbells.pop(node) for node in [*self._doorbells] if node not in primaries]
            for address in primaries:
                if address not in self._doorbells:
                    doorbell = Doorbell(self._nodes.node(address).client, self._asked)
                    for topic, wake in self._watched:
                        doorbell.watch(topic, wake)
                    self._doorbells[address] = doorbell
        while self._removed:
            self._removed[-1].close()
            self._removed.pop()


#: Redirections of a call before it waits as for an unavailable server.
_REDIRECTIONS: Final = 5


class ClusterBackend(RedisBackend):
    """The Redis backend for a cluster. All keys of a conversation are in one slot, so only listings need all nodes."""

    _connections: ClusterNodes

    def _primaries(self) -> list[ConnectionPool]:
        nodes = self._connections
        if nodes.stale:
            nodes.refresh()
        return [nodes.node(address).connections for address in sorted(nodes.primaries)]

    def _reply(self, call: Call, attempt: Attempt | None = None, connections: Any = None, asking: bool = False) -> Any:
        nodes = self._connections
        if nodes.stale:
            nodes.refresh()
        slot = slot_of(call)
        node = nodes.owner(slot)
        for _ in range(_REDIRECTIONS):
            try:
                return super()._reply(call, attempt, node.connections, asking)
            except AskError as error:
                address = redirected_to(error, node.address, nodes.remap)
                asking = not isinstance(error, MovedError)
                if not asking:
                    # Other nodes may not know yet; the slot's new node does.
                    nodes.refresh(address)
                node = nodes.node(address)
        raise TryAgainError(f"the nodes of the cluster do not agree about who serves slot {slot}")

    def _replies(self, calls: list[Call]) -> list[Any]:
        """One round trip to each node."""
        nodes = self._connections
        if nodes.stale:
            nodes.refresh()
        by_node: dict[Node, list[int]] = {}
        for index, call in enumerate(calls):
            by_node.setdefault(nodes.owner(slot_of(call)), []).append(index)
        replies: list[Any] = [None] * len(calls)
        for node, indexes in by_node.items():
            sent = [calls[index] for index in indexes]
            packed = b"".join([call.pack() for call in sent])
            try:
                found = raise_first(sent, self._exchange(node.connections, packed, len(indexes)))
            except AskError:  # slots are moving: each call finds its own way
                found = [self._reply(calls[index]) for index in indexes]
            for index, reply in zip(indexes, found, strict=True):
                unknown = isinstance(reply, NoScriptError)
                replies[index] = self._reply(calls[index]) if unknown else reply
        return replies

    def _may_retry(self, error: BaseException) -> bool:
        transient = super()._may_retry(error)
        if transient and not isinstance(error, TryAgainError):
            self._connections.stale = True
            self._confirming.clear()
        return transient
