# Generated from ../_async by scripts/unasync: do not edit.
"""Executes calls on a Redis Cluster: each at the node that has its keys, and where that node sends it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from redis.exceptions import AskError, MovedError, NoScriptError, RedisError, ResponseError, TryAgainError

from redis_history._sync._cluster import ClusterNodes, Node
from redis_history._sync.redis_backend import INFO, Packed, RedisBackend, told
from redis_history.backends.redis.attempts import Attempt
from redis_history.backends.redis.calls import Call
from redis_history.backends.redis.failures import is_transient
from redis_history.backends.redis.server_info import together
from redis_history.backends.redis.slots import redirected_to, slot_of
from redis_history.capabilities import Capabilities

_ASKING: Final = b"*1\r\n$6\r\nASKING\r\n"
#: How often a call is sent on at once, before it waits as for a server that is away.
_REDIRECTIONS: Final = 5


class ClusterBackend(RedisBackend):
    """All keys of a conversation are in one slot, so every call but a listing is one node's alone."""

    _connections: ClusterNodes

    def _prepare(self, what: None = None) -> None:
        if self._connections.stale:
            self._connections.refresh()
        if not self._usable:
            node = self._connections.node(next(iter(self._connections.primaries)))
            INFO.decode(self._exchange(INFO.pack(), connections=node.connections))

    def _reply(self, call: Call, attempt: Attempt | None = None) -> Any:
        try:
            if self._connections.stale:
                self._prepare()
            return self._follow(call, attempt)
        except (RedisError, OSError) as error:
            self._look_again_after(error)
            raise

    def _follow(self, call: Call, attempt: Attempt | None = None) -> Any:
        slot = slot_of(call)
        node, asking = self._connections.owner(slot), False
        for _ in range(_REDIRECTIONS):
            try:
                return self._send(node, call, attempt, asking)
            except AskError as error:
                address = redirected_to(error, node.address, self._connections.remap)
                asking = not isinstance(error, MovedError)
                if not asking:
                    # Others may not have heard yet of what moved; who has it now knows.
                    self._connections.refresh(address)
                node = self._connections.node(address)
        raise TryAgainError(f"the nodes of the cluster do not agree about who serves slot {slot}")

    def _send(self, node: Node, call: Call, attempt: Attempt | None, asking: bool) -> Any:
        send = self._send_packed
        if call.confirm is not None:
            self._examine(call.confirm, node.address, node.connections)
            send = self._send_confirmed
        return self._decided(call, attempt, partial(send, node, asking))

    def _send_packed(self, node: Node, asking: bool, packed: Packed, attempt: Attempt | None) -> Any:
        if not asking:
            return self._exchange(packed, connections=node.connections, attempt=attempt)
        # ASKING is for the next command only
        replies = self._exchange(partial(_asking, packed), 2, node.connections, attempt=attempt)
        if isinstance(replies[1], ResponseError):
            raise replies[1]
        return replies[1]

    def _send_confirmed(self, node: Node, asking: bool, packed: Packed, attempt: Attempt | None) -> Any:
        packed = partial(_asking, packed) if asking else packed
        return self._confirmed(packed, node.connections, int(asking), attempt)

    def _look(self, what: None = None) -> Capabilities:
        try:
            self._prepare()
            nodes = [self._connections.node(address) for address in sorted(self._connections.primaries)]
            return together([self._survey(node.connections) for node in nodes])
        except (RedisError, OSError) as error:
            self._look_again_after(error)
            raise

    def _ask(self, commands: Sequence[Sequence[bytes]]) -> list[list[Any]]:
        try:
            self._prepare()
            nodes = [self._connections.node(address) for address in sorted(self._connections.primaries)]
            return [self._answers(commands, node.connections) for node in nodes]
        except (RedisError, OSError) as error:
            self._look_again_after(error)
            raise

    def _replies(self, calls: list[Call]) -> list[Any]:
        """One round trip to each node concerned."""
        try:
            self._prepare()
            shares: dict[Node, list[int]] = {}
            for place, call in enumerate(calls):
                shares.setdefault(self._connections.owner(slot_of(call)), []).append(place)
            replies: list[Any] = [None] * len(calls)
            for node, places in shares.items():
                packed = b"".join([calls[place].pack() for place in places])
                try:
                    share = told(self._exchange(packed, len(places), node.connections))
                except AskError:  # slots are moving: each call finds its own way
                    share = [self._follow(calls[place]) for place in places]
                for place, reply in zip(places, share, strict=True):
                    unknown = isinstance(reply, NoScriptError)
                    replies[place] = self._follow(calls[place]) if unknown else reply
        except (RedisError, OSError) as error:
            self._look_again_after(error)
            raise
        return replies

    def _look_again_after(self, error: Exception) -> None:
        if is_transient(error) and not isinstance(error, TryAgainError):
            self._connections.stale = True
            self._confirming.clear()


def _asking(packed: Packed, sent: bytes | None) -> bytes:
    return _ASKING + (packed(sent=sent) if callable(packed) else packed)
