# Generated from ../_async by scripts/unasync: do not edit.
"""A Redis Cluster: its nodes, the backend that sends each call to the right node, and doorbells.

redis-py's cluster client knows which node serves a slot. Calls go through a client for each node, so that a write and
its confirmation share a connection, and a redirected call its connection with ASKING.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

from redis import Redis, RedisCluster
from redis import exceptions as redis_errors
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.crc import key_slot
from redis.retry import Retry

from redis_history.errors import ConfigurationError
from redis_history.store._sync._doorbell import Doorbell, Topic, Way, call_wake
from redis_history.store._sync._node import CLOSED, PROTOCOL, Node, client_of
from redis_history.store._sync._runtime import (
    Job,
    Lock,
    Signal,
    close_cluster,
    is_cancelled,
    open_cluster,
    resolve,
    spawn,
    uninterrupted,
    wait_for_unfinished,
)
from redis_history.store._sync.redis_backend import RedisBackend, announce
from redis_history.store.leases import Contact
from redis_history.store.operations.base import Call
from redis_history.store.operations.failures import Attempt, raise_first
from redis_history.store.operations.settings import Settings
from redis_history.store.urls import connection_settings


class Address(NamedTuple):
    host: str
    port: int


class ClusterNodes:
    """All nodes and the slots they serve. `stale`: the slots must be read again before a call is repeated."""

    database = 0
    sentinel = False

    def __init__(
        self,
        address: str,
        pool: Any,
        make: Callable[[], RedisCluster],
        *,
        owned: bool,
    ) -> None:
        """`pool` has the settings of connections. `make` returns redis-py's client of the cluster."""
        self.address = address
        self.stale = True
        self._settings = pool
        self._make = make
        self._owned = owned
        self._cluster: RedisCluster | None = None
        self._opening = Lock()
        self._former: list[RedisCluster] = []
        self._nodes: dict[Address, Node] = {}
        self._removed: list[Node] = []
        self._unfinished: set[Any] = set()
        self._closed = False

    @classmethod
    def of_url(cls, address: str, url: str, seeds: Sequence[tuple[str, int]], pool: Any) -> ClusterNodes:
        """Make the nodes from the `url` of one node, which has the settings of all."""

        def make() -> RedisCluster:
            return RedisCluster.from_url(
                url,
                startup_nodes=[ClusterNode(*seed) for seed in seeds],
                require_full_coverage=False,
                socket_timeout=pool.connection_kwargs["socket_timeout"],
                socket_connect_timeout=pool.connection_kwargs["socket_connect_timeout"],
                retry=Retry(NoBackoff(), 0),
                protocol=PROTOCOL,
            )

        return cls(address, pool, make, owned=True)

    @classmethod
    def of_client(cls, client: RedisCluster) -> ClusterNodes:
        """Make the nodes from a user's client, with its settings."""
        manager = client.nodes_manager
        nodes = [*manager.nodes_cache.values(), *manager.startup_nodes.values()]
        # A synchronous node has a client with a pool, and an asynchronous node is a pool.
        pools = [getattr(getattr(node, "redis_connection", node), "connection_pool", node) for node in nodes]
        return cls("the cluster of the given client", pools[0], lambda: client, owned=False)

    def start(self) -> None:
        """Do nothing: no task is needed."""

    @property
    def primaries(self) -> frozenset[Address]:
        cluster = self._cluster
        return frozenset() if cluster is None else frozenset(_address(node) for node in cluster.get_primaries())

    def owner(self, key: bytes) -> Address:
        """The node that serves a key. Raises ClusterDownError."""
        cluster: Any = self._cluster
        try:
            return _address(cluster.get_node_from_key(key))
        except (redis_errors.SlotNotCoveredError, IndexError) as error:
            raise redis_errors.ClusterDownError(f"no node of the cluster serves the slot of {key!r}") from error

    def owner_now(self, key: bytes) -> Address | None:
        """The node that serves a key, if there is one now."""
        with suppress(redis_errors.ClusterDownError):
            return self.owner(key)
        return None

    def contact(self, key: bytes) -> Contact:
        try:
            return self.node(self.owner(key)).contact
        except redis_errors.RedisError:  # no node serves it now
            return Contact()

    def node(self, address: Address) -> Node:
        node = self._nodes.get(address)
        if node is None:
            timeout = self._settings.connection_kwargs.get("socket_timeout")
            node = Node(make=partial(self._client, address), timeout=timeout)
            node = self._nodes.setdefault(address, node)  # another thread may have been faster
        if self._closed:
            raise redis_errors.ConnectionError(CLOSED)
        return node

    def open(self) -> None:
        """Read the slots unless they are known. Raises the last error."""
        if self._cluster is None:
            self.refresh()

    def refresh(self) -> None:
        """Read the slots from any node. Raises the last error."""
        # In a separate task, because redis-py may lose a cancellation before Python 3.12.
        uninterrupted(self._refresh, self._unfinished)

    def _refresh(self) -> None:
        self.stale = True
        before = self.primaries
        failure: BaseException | None = None
        try:
            self._read_slots()
        except redis_errors.RedisClusterException as error:
            failure = error
            while isinstance(failure, redis_errors.RedisClusterException):
                failure = failure.__cause__ or failure.__context__
            # redis-py says so after any refusal of CLUSTER SLOTS.
            if "Cluster mode is not enabled" in str(error) and not isinstance(failure, redis_errors.NoPermissionError):
                raise ConfigurationError(
                    f"{self.address} is not a cluster ({failure}); use a redis:// URL, or redis.Redis"
                ) from error
            if not isinstance(failure, redis_errors.RedisError | OSError):
                raise redis_errors.ConnectionError(str(error)) from error
        except IndexError as error:  # no node has a slot
            raise redis_errors.ClusterDownError("no node of the cluster serves a slot") from error
        if self._closed:  # in the meantime, so the connections of this call are new
            self._close_client()
            raise redis_errors.ConnectionError(CLOSED)
        if failure is not None:
            raise failure  # the error that redis-py wraps
        self.stale = False
        self._note_failover(before)
        self._drop_missing()

    def _read_slots(self) -> None:
        known = self._cluster
        if known is not None:
            try:
                resolve(known.nodes_manager.initialize())
                return
            except Exception:
                if self._closed or not self._owned:
                    raise
        # The first time, or no known node answers: a new client asks the nodes of the URL. (redis-py never closes its
        # connections to `additional_startup_nodes_info`.)
        with self._opening:
            if self._cluster is known:
                cluster = self._make()
                open_cluster(cluster)
                self._cluster = cluster
                if known is not None:
                    self._former.append(known)
                    close_cluster(known)

    def moved(self, error: redis_errors.MovedError, asked: Address) -> Address:
        """Follow a redirection, and return the node that serves the slot now."""
        assert self._cluster is not None  # noqa: S101
        before = self.primaries
        address = self.redirected(error, asked)
        error.host, error.port = address
        resolve(self._cluster.nodes_manager.move_slot(error))
        self.stale = True  # other slots may have moved, too
        self._note_failover(before)
        return address

    def _note_failover(self, before: frozenset[Address]) -> None:
        for address in self.primaries - before if before else ():
            self.node(address).contact.taken_over()

    def redirected(self, error: redis_errors.AskError, asked: Address) -> Address:
        """The node that MOVED or ASK names. Without a host, it is on the host of the node that was asked."""
        assert self._cluster is not None  # noqa: S101
        if not error.host:
            return Address(asked.host, error.port)
        return Address(*self._cluster.nodes_manager.remap_host_port(error.host, error.port))

    def close(self) -> None:
        self._closed = True
        nodes, self._nodes = [*self._nodes.values(), *self._removed], {}
        self._removed = []
        for node in nodes:
            node.close()
        self._close_client()
        wait_for_unfinished(self._unfinished)

    def _close_client(self) -> None:
        # Calls that were reading the slots of a former client may have connected it again.
        for cluster in (self._cluster, *self._former) if self._owned else ():
            if cluster is not None:
                close_cluster(cluster)

    def _drop_missing(self) -> None:
        # A call may still use a node that left, so its connections are closed at the next refresh.
        assert self._cluster is not None  # noqa: S101
        known = {_address(node) for node in self._cluster.get_nodes()}
        left = [address for address in [*self._nodes] if address not in known]
        ended, self._removed = self._removed, [node for address in left if (node := self._nodes.pop(address, None))]
        for node in [*ended, *self._removed]:
            node.disconnect()

    def _client(self, address: Address, connected: Any) -> Redis:
        settings = connection_settings(self._settings.connection_kwargs)
        protocol = settings.get("protocol") or PROTOCOL  # a user's client may leave it out
        settings |= {"host": address.host, "port": address.port, "protocol": protocol, "retry": Retry(NoBackoff(), 0)}
        return client_of(self._settings, settings, connected)


def _address(node: Any) -> Address:
    return Address(node.host, int(node.port))


_logger = logging.getLogger("redis_history")

#: Seconds between comparisons of doorbells and known primaries.
_COMPARE_SECONDS: Final = 1.0
#: Seconds between reading the primaries from a node.
_REFRESH_SECONDS: Final = 10.0


class ClusterDoorbell:
    """A doorbell for each primary. Runs from the first `watch` until `close`.

    A node notifies only about its own keys. Every channel is subscribed to at every primary, so that moving slots and
    failovers need no change. Scripts publish to sharded channels, which belong to the node of their slot, and before
    Redis 7 to all nodes, so one doorbell listens to that. The list of primaries and their slots is read again from time
    to time, because a connection does not report a new shard.
    """

    def __init__(
        self,
        nodes: ClusterNodes,
        settings: Settings,
        announce: Callable[[Node], object],
        *,
        warns: bool = True,
    ) -> None:
        self._nodes = nodes
        self._prefix = settings.notifications
        self._registries = settings.keyspace.registries()
        self._poll_interval = settings.poll_interval
        self._announce = announce
        self._warns = warns
        # Topics and callbacks in order, for doorbells that are added later.
        self._watched: dict[tuple[Topic, Any], None] = {}
        self._doorbells: dict[Address, Doorbell] = {}
        self._removed: list[Doorbell] = []
        self._owners: list[Address | None] = []
        self._guard = threading.Lock()  # for the three above; never held during a call to a server
        self._signal: Signal | None = None
        self._job: Job | None = None
        self._closed = self._abandoned = False

    @property
    def works(self) -> bool:
        """Whether there is a doorbell with a connection at each primary."""
        doorbells = {**self._doorbells}
        return not self._nodes.primaries - doorbells.keys() and all(bell.works for bell in doorbells.values())

    def ways(self, *, is_pattern: bool) -> set[Way]:
        """The ways of all primaries: see `Doorbell.ways`."""
        if not self.works:
            return set()
        ways: set[Way] = {"notifications", "publish"}
        return ways.intersection(*(bell.ways(is_pattern=is_pattern) for bell in [*self._doorbells.values()]))

    def _shards(self, address: Address, topic: Topic) -> list[bytes]:
        """The sharded channels for a topic at this node: that of the key, or those of all registries."""
        names = self._registries if topic.is_pattern else [topic.name]
        return [name for name in names if self._nodes.owner_now(name) == address]

    def _note_move(self) -> None:
        self._nodes.stale, self._owners = True, []

    def _compare_shards(self) -> None:
        """Have the doorbells compare their sharded channels if a slot of the namespace has moved."""
        owners = [self._nodes.owner_now(registry) for registry in self._registries]
        if owners != self._owners:
            self._owners = owners
            for doorbell in [*self._doorbells.values()]:
                doorbell.compare()

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

    def abandon(self) -> None:
        """See `Doorbell.abandon`."""
        self._closed = self._abandoned = True
        if self._signal is not None:
            self._signal.set()
        for doorbell in [*self._doorbells.values()]:
            doorbell.abandon()

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
                if self._nodes.stale or time.monotonic() - asked > max(_REFRESH_SECONDS, self._poll_interval):
                    self._nodes.refresh()
                    asked = time.monotonic()
                    self._compare_shards()
            except Exception as error:  # noqa: BLE001 -- the next attempt may work
                _logger.info("the doorbell cannot read the list of the cluster's nodes: %s", error)
            try:
                self._match_primaries()
            except Exception as error:
                _logger.warning("the doorbell failed and tries again", exc_info=error)
            self._signal.wait(_COMPARE_SECONDS)
        if self._abandoned:
            for doorbell in [*self._doorbells.values(), *self._removed]:
                doorbell.abandon()  # it may have begun since the others were
            self._nodes.close()

    def _match_primaries(self) -> None:
        """Keep a doorbell for each primary, and remove those of other nodes."""
        with self._guard:
            if self._closed:
                return
            primaries = self._nodes.primaries
            self._removed += [self._doorbells.pop(node) for node in [*self._doorbells] if node not in primaries]
            for address in primaries - self._doorbells.keys():
                node = self._nodes.node(address)
                doorbell = Doorbell(
                    node,
                    self._prefix,
                    self._announce,
                    poll_interval=self._poll_interval,
                    hears_published=False,
                    warns=self._warns,
                    shards=partial(self._shards, address),
                    moved=self._note_move,
                )
                self._doorbells[address] = doorbell
                for topic, wake in self._watched:
                    doorbell.watch(topic, wake)
            bells = [*self._doorbells.values()]
            if bells and not any(doorbell.hears_published for doorbell in bells):
                bells[0].hear_published()
        while self._removed:
            self._removed[-1].close()
            self._removed.pop()


#: Maximum redirections of a call before it waits as for an unavailable server.
_REDIRECTIONS: Final = 5


class ClusterBackend(RedisBackend):
    """The Redis backend for a cluster. All keys of a conversation are in one slot, so only listings need all nodes."""

    _server: ClusterNodes

    def _primaries(self) -> list[Node]:
        nodes = self._server
        if nodes.stale:
            nodes.refresh()
        return [nodes.node(address) for address in sorted(nodes.primaries)]

    def _make_doorbell(self, *, warns: bool = True) -> Any:
        return ClusterDoorbell(self._server, self._settings, partial(announce, self._settings), warns=warns)

    def watch_run(self, conversation_id: str, run_id: str, wake: Any) -> Any:
        self._make_usable()
        super().watch_run(conversation_id, run_id, wake)
        return self._server.owner_now(self._settings.keyspace.conversation(conversation_id).state)

    def _reply(self, call: Call, attempt: Attempt | None = None, node: Node | None = None, asking: bool = False) -> Any:
        nodes = self._server
        nodes.open()
        address = nodes.owner(call.key)
        for _ in range(_REDIRECTIONS):
            try:
                return super()._reply(call, attempt, nodes.node(address), asking)
            except redis_errors.MovedError as error:
                address, asking = nodes.moved(error, address), False
            except redis_errors.AskError as error:
                address, asking = nodes.redirected(error, address), True
        raise redis_errors.TryAgainError(f"the nodes of the cluster do not agree about who serves {call.key!r}")

    def _replies(self, calls: list[Call]) -> list[Any]:
        """One round trip to each node."""
        nodes = self._server
        nodes.open()
        by_node: dict[Address, list[int]] = {}
        for index, call in enumerate(calls):
            by_node.setdefault(nodes.owner(call.key), []).append(index)
        replies: list[Any] = [None] * len(calls)
        for address, indexes in by_node.items():
            sent = [calls[index] for index in indexes]
            try:
                urgent = all(call.is_urgent for call in sent)
                words = [call.words() for call in sent]
                answers = raise_first(sent, nodes.node(address).pipeline(words, writes=urgent))
            except redis_errors.AskError:  # slots are moving: each call finds its own way
                answers = [self._reply_or_error(calls[index]) for index in indexes]
            for index, reply in zip(indexes, answers, strict=True):
                unknown = isinstance(reply, redis_errors.NoScriptError)
                replies[index] = self._reply(calls[index]) if unknown else reply
                if isinstance(reply, redis_errors.MovedError):
                    nodes.moved(reply, address)
        return replies

    def _reply_or_error(self, call: Call) -> Any:
        try:
            return self._reply(call)
        except redis_errors.TryAgainError as error:
            if not call.errors:
                raise
            return error

    def _by_node(self, keys: list[bytes]) -> list[list[bytes]]:
        nodes = self._server
        if nodes.stale:
            nodes.refresh()
        by_node: dict[Address, list[bytes]] = {}
        for key in sorted(keys, key=key_slot, reverse=True):
            by_node.setdefault(nodes.owner(key), []).append(key)
        return [by_node[address] for address in sorted(by_node)]

    def _retry_call(self, method: Any, arguments: tuple[Any, ...], error: Exception) -> Any:
        def again(*arguments: Any) -> Any:
            # Only now, so that calls to other nodes do not wait for a node that may hang to report the slots.
            if self._server.stale:
                self._server.refresh()
            return method(*arguments)

        return super()._retry_call(again, arguments, error)

    def _may_retry(self, error: BaseException) -> bool:
        transient = super()._may_retry(error)
        if transient and not isinstance(error, redis_errors.TryAgainError):
            self._server.stale = True
        return transient
