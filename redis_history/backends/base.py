"""What a backend is: something that executes operations and rings when a conversation changes.

Two protocols of the same shape. A store validates and retries nothing by itself: an operation that arrives here is
valid, and an error that leaves here is of `redis_history.errors`.

A backend may have a method `capabilities`, without arguments, that gives a `Capabilities`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from redis_history.operations import Op

__all__ = ["AsyncBackend", "Backend", "Wake"]

T = TypeVar("T")

#: Called, from any thread, when a watched conversation may have changed. Must not block or raise.
Wake = Callable[[], None]


class AsyncBackend(Protocol):
    async def execute(self, op: Op[T]) -> T:
        """The outcome of `op`; raises errors of `redis_history.errors` only."""
        ...

    async def watch(self, conversation_id: str, wake: Wake) -> None:
        """Call `wake` soon after each change of the conversation, and whenever changes may have been missed.

        It is a hint, not a promise: subscribers look by themselves every few seconds.
        """
        ...

    async def unwatch(self, conversation_id: str, wake: Wake) -> None:
        """End what `watch` began with the same arguments; more than once does no harm."""
        ...

    async def aclose(self) -> None:
        """Give back what the backend holds; any later call raises StoreClosedError."""
        ...


class Backend(Protocol):
    def execute(self, op: Op[T]) -> T: ...

    def watch(self, conversation_id: str, wake: Wake) -> None: ...

    def unwatch(self, conversation_id: str, wake: Wake) -> None: ...

    def close(self) -> None: ...
