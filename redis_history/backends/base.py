"""What a backend is: something that executes operations and rings when a conversation changes.

Two protocols of the same shape. A store validates and retries nothing by itself: an operation that arrives here is
valid, and an error that leaves here is of `redis_history.errors`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec

from redis_history.operations import Op

__all__ = ["AsyncBackend", "Backend", "Capabilities", "Wake"]

T = TypeVar("T")

#: Called, from any thread, when a watched conversation may have changed. Must not block or raise.
Wake = Callable[[], None]


class Capabilities(msgspec.Struct, frozen=True):
    """What the backend in use can do; found when it is first used.

    `doorbell`: how changes are noticed: "local" (same process), "keyspace" (notifications of the server) or "poll".
    """

    backend: str
    server: str
    server_version: str
    doorbell: str
    durable: bool


class AsyncBackend(Protocol):
    async def execute(self, op: Op[T]) -> T:
        """The outcome of `op`; raises errors of `redis_history.errors` only."""
        ...

    async def watch(self, conversation_id: str, wake: Wake) -> Callable[[], None]:
        """From the moment this returns, call `wake` after each change (also when changes may have been missed);
        until the returned function is called, which may be done more than once."""
        ...

    async def capabilities(self) -> Capabilities: ...

    async def aclose(self) -> None:
        """Give back what the backend holds; any later call raises StoreClosedError."""
        ...


class Backend(Protocol):
    def execute(self, op: Op[T]) -> T: ...

    def watch(self, conversation_id: str, wake: Wake) -> Callable[[], None]: ...

    def capabilities(self) -> Capabilities: ...

    def close(self) -> None: ...
