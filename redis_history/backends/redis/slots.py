"""Slots of a cluster: which node serves a key."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NamedTuple

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import AskError, ClusterDownError

from redis_history.backends.redis.calls import Call

_slot_of_tag: Final = lru_cache(maxsize=4096)(key_slot)


class Address(NamedTuple):
    host: str
    port: int


class Topology:
    """A node's view of its cluster. `primaries` serve slots; `nodes` include their replicas."""

    def __init__(self, owners: list[Address | None], primaries: frozenset[Address], nodes: frozenset[Address]) -> None:
        self._owners = owners
        self.primaries = primaries
        self.nodes = nodes

    def owner(self, slot: int) -> Address:
        """The primary that serves a slot. Raises ClusterDownError if none does now."""
        address = self._owners[slot]
        if address is None:
            raise ClusterDownError(f"no node of the cluster serves slot {slot}")
        return address


def read_slots(reply: list[Any], asked: Address, remap: Callable[[str, int], tuple[str, int]]) -> Topology:
    """The reply of node `asked` to CLUSTER SLOTS. `remap` turns the addresses that nodes report into usable ones."""
    owners: list[Address | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
    primaries, nodes = set(), set()
    for first, last, *parts in reply:
        addresses = [_address(part[0], part[1], asked, remap) for part in parts]
        owners[first : last + 1] = [addresses[0]] * (last + 1 - first)
        primaries.add(addresses[0])
        nodes.update(addresses)
    return Topology(owners, frozenset(primaries), frozenset(nodes))


def _address(host: Any, port: int, asked: Address, remap: Callable[[str, int], tuple[str, int]]) -> Address:
    if isinstance(host, bytes):
        host = host.decode()
    if not host:  # the node does not know its own address
        return Address(asked.host, port)
    return Address(*remap(host, port))


def redirected_to(error: AskError, asked: Address, remap: Callable[[str, int], tuple[str, int]]) -> Address:
    """The node that MOVED or ASK names."""
    return _address(error.host, error.port, asked, remap)


def slot_of(call: Call) -> int:
    """The slot of a call's keys, which have one hash tag."""
    keys = call.keys or call.args[1]
    start = keys.index(b"{") + 1
    return _slot_of_tag(keys[start : keys.index(b"}", start)])
