"""A real cluster for tests: processes on loopback ports of their own, joined by commands, ended by process id."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import redis

from tests.support.servers import RealServer, free_port, replication, wait_until

SLOTS = 16384
#: Milliseconds after which a node counts as failed: a busy machine may be as slow as that.
NODE_TIMEOUT = 5000


class RealCluster:
    """Primaries that share the slots evenly; `add` brings others. `announced`: the port that clients are sent to, such
    as that of a proxy, by the port of a node; `options` are those of the nodes."""

    def __init__(
        self,
        size: int = 3,
        kind: str = "redis",
        announced: Callable[[int], int] | None = None,
        options: tuple[str, ...] = (),
    ) -> None:
        self._size = size
        self._kind = kind
        self._announced = announced
        self._options = options
        self.nodes: list[RealServer] = []

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    @property
    def binary(self) -> Any:
        return self.nodes[0].binary

    def start(self) -> RealCluster:
        for index in range(self._size):
            node = self.add()
            first, last = index * SLOTS // self._size, (index + 1) * SLOTS // self._size - 1
            self.run(node, "ADDSLOTSRANGE", first, last)
        self.wait_until_joined()
        return self

    def add(self) -> RealServer:
        """Add a node without slots to the cluster."""
        bus = free_port()
        options = {
            "cluster-enabled": "yes",
            "cluster-node-timeout": str(NODE_TIMEOUT),
            "cluster-port": str(bus),
            "repl-diskless-sync-delay": "0",
        }
        port = free_port()
        if self._announced is not None:
            options |= {"cluster-announce-ip": "127.0.0.1", "cluster-announce-bus-port": str(bus)}
            options["cluster-announce-port"] = str(self._announced(port))
        flags = [part for name, value in options.items() for part in (f"--{name}", value)]
        node = RealServer(self._kind, tcp=True, options=(*flags, *self._options))
        node.port = port
        self.nodes.append(node)
        node.start()
        self.run(node, "SET-CONFIG-EPOCH", len(self.nodes))
        if node is not self.nodes[0]:
            self.run(self.nodes[0], "MEET", "127.0.0.1", node.port, bus)
        return node

    def add_replica(self, primary: RealServer) -> RealServer:
        node = self.add()
        self.wait_until_joined()
        self.run(node, "REPLICATE", self.node_id(primary))

        wait_until(lambda: replication(node).get("master_link_status") == "up", "the replica to follow")
        return node

    def wait_until_joined(self) -> None:
        """Wait until all nodes know each other and agree on the owners of all slots. A moved slot is announced only to
        primaries. A replica that takes over before it learns this claims the slot, whose keys it lacks."""

        def joined() -> bool:
            if not all(self._sees_all(node) for node in self.nodes):
                return False
            owners = [
                {(first, last, _text(primary[2])) for first, last, primary, *_ in self._slots(node)}
                for node in self.nodes
            ]
            return all(one == owners[0] for one in owners)

        wait_until(joined, "the nodes of the cluster to know each other", 30)

    def _sees_all(self, node: RealServer) -> bool:
        with node.client() as client:
            info = client.execute_command("CLUSTER INFO")
            nodes = client.execute_command("CLUSTER NODES")
        return (
            info["cluster_state"] == "ok"
            and info["cluster_slots_ok"] == str(SLOTS)
            and len(nodes) == len(self.nodes)
            and not any("handshake" in one["flags"] for one in nodes.values())
        )

    def run(self, node: RealServer, *command: Any) -> Any:
        """A CLUSTER command on one node."""
        with node.client() as client:
            return client.execute_command("CLUSTER", *command)

    def node_id(self, node: RealServer) -> str:
        return str(_text(self.run(node, "MYID")))

    def owner(self, slot: int) -> RealServer:
        """The node that serves a slot, as it sees itself."""
        for node in self.nodes:
            for first, last, primary, *_ in self._slots(node):
                if first <= slot <= last and _text(primary[2]) == self.node_id(node):
                    return node
        raise AssertionError(f"nobody serves slot {slot}")

    def another(self, slot: int) -> RealServer:
        """A node that does not serve a slot."""
        owner = self.owner(slot)
        return next(node for node in self.nodes if node is not owner)

    def _slots(self, node: RealServer) -> Any:
        with node.client() as client:
            client.response_callbacks.clear()
            return client.execute_command("CLUSTER SLOTS")

    def begin_migration(self, slot: int, target: RealServer) -> RealServer:
        """Calls for keys that the source lacks go to `target` from now on. Returns the source."""
        source = self.owner(slot)
        self.run(target, "SETSLOT", slot, "IMPORTING", self.node_id(source))
        self.run(source, "SETSLOT", slot, "MIGRATING", self.node_id(target))
        return source

    def move_keys(
        self, slot: int, source: RealServer, target: RealServer, count: int = 100, pause: float = 0.0
    ) -> None:
        """Move all keys of a slot in batches, with a pause between them."""
        with source.client() as client:
            while keys := client.execute_command("CLUSTER", "GETKEYSINSLOT", slot, count):
                client.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
                time.sleep(pause)

    def move(self, slot: int, target: RealServer) -> None:
        """Move a slot with its keys."""
        self.move_keys(slot, self.begin_migration(slot, target), target)
        self.end_migration(slot, target)

    def end_migration(self, slot: int, target: RealServer) -> None:
        others = [node for node in self.nodes if node is not target and replication(node)["role"] == "master"]
        for node in [target, *others]:
            self.run(node, "SETSLOT", slot, "NODE", self.node_id(target))

    def client(self) -> Any:
        return redis.RedisCluster(host="127.0.0.1", port=self.nodes[0].port, socket_timeout=5)

    def close(self) -> None:
        for node in self.nodes:
            node.close()


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value
