# Generated from ../_async by scripts/unasync: do not edit.
"""Executes calls on a Redis Cluster: each at the node that has its keys, and where that node sends it."""

from __future__ import annotations

from typing import Any, Final

from redis.exceptions import AskError, MovedError, NoScriptError, TryAgainError

from redis_history._sync._cluster import ClusterNodes, Node
from redis_history._sync._connections import ConnectionPool
from redis_history._sync.redis_backend import RedisBackend, checked
from redis_history.backends.redis.attempts import Attempt
from redis_history.backends.redis.calls import Call
from redis_history.backends.redis.slots import redirected_to, slot_of

#: How often a call is redirected at once, before it waits as for a server that is away.
_REDIRECTIONS: Final = 5


class ClusterBackend(RedisBackend):
    """All keys of a conversation are in one slot, so every call but a listing needs one node."""

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
                    # Others may not have heard yet of what moved; the node that has it now knows.
                    nodes.refresh(address)
                node = nodes.node(address)
        raise TryAgainError(f"the nodes of the cluster do not agree about who serves slot {slot}")

    def _replies(self, calls: list[Call]) -> list[Any]:
        """One round trip to each node concerned."""
        nodes = self._connections
        if nodes.stale:
            nodes.refresh()
        shares: dict[Node, list[int]] = {}
        for place, call in enumerate(calls):
            shares.setdefault(nodes.owner(slot_of(call)), []).append(place)
        replies: list[Any] = [None] * len(calls)
        for node, places in shares.items():
            asked = [calls[place] for place in places]
            packed = b"".join([call.pack() for call in asked])
            try:
                share = checked(asked, self._exchange(node.connections, packed, len(places)))
            except AskError:  # slots are moving: each call finds its own way
                share = [self._reply(calls[place]) for place in places]
            for place, reply in zip(places, share, strict=True):
                unknown = isinstance(reply, NoScriptError)
                replies[place] = self._reply(calls[place]) if unknown else reply
        return replies

    def _passes(self, error: BaseException) -> bool:
        passes = super()._passes(error)
        if passes and not isinstance(error, TryAgainError):
            self._connections.stale = True
            self._confirming.clear()
        return passes
