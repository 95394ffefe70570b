"""The protocols of backends, asynchronous and synchronous. A backend executes operations and wakes subscriptions.

Operations are validated before. A backend retries automatically, and raises errors of `redis_history.errors`. It
executes all operations of `redis_history.store.operations`, but operations of searches only if its `search_mode` is
"server".
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Literal, Protocol, TypeVar, runtime_checkable
from weakref import WeakMethod

from msgspec import Struct

from redis_history.store.capabilities import Capabilities
from redis_history.store.operations import Op
from redis_history.values.events import Cursor

__all__ = [
    "AsyncBackend",
    "Backend",
    "ChangeQuery",
    "ChangedHeads",
    "PendingWakeups",
    "SearchedBy",
    "Wake",
    "WakeAll",
]

T = TypeVar("T")

#: Called from any thread when a watched conversation may have changed. Does not block or raise.
Wake = Callable[[], None]
#: The same for all conversations: with the id of the changed one, or None if any may have changed.
WakeAll = Callable[[str | None], None]


class ChangeQuery(Struct, frozen=True):
    """Asks which conversations have changed.

    `known`: the newest known change of each conversation; do not modify it. `position`: from the last answer, None at
    first. `news`: ids that entered or left `known` since then. `doubted`: ids whose change log was replaced; if a
    server has lost changes, other conversations may be affected. A backend that compares all of `known` each time needs
    only that. `user_id`: asks for the conversations of this owner only; others may be in the answer, too.
    """

    known: Mapping[str, Cursor]
    position: Any = None
    news: Collection[str] = ()
    doubted: Collection[str] = ()
    user_id: int | str | None = None


class ChangedHeads(Struct, frozen=True):
    """The conversations whose newest change differs from `ChangeQuery.known`, with that change; maybe also others, such
    as those with an active run. A deleted conversation has revision 0. `position`: for the next query."""

    heads: dict[str, Cursor]
    position: Any = None


#: "server": the backend searches, with the operations of the modules `search`, `fetch`, `index` and `documents` of
#: redis_history.store.operations.
#: "unknown": known after the first operation. "client": the store reads a conversation and ranks its messages.
#: "memory": the same, and the store may read all conversations.
SearchedBy = Literal["server", "unknown", "client", "memory"]


@runtime_checkable
class AsyncBackend(Protocol):
    """Executes operations, and wakes subscriptions and runs. Lost wake-ups only delay: subscribers and runs also poll
    every few seconds."""

    @property
    def search_mode(self) -> SearchedBy:
        """Whether the server or the client searches."""
        ...

    async def execute(self, op: Op[T]) -> T:
        """The outcome of `op`. Raises only errors of `redis_history.errors`."""
        ...

    async def capabilities(self) -> Capabilities:
        """The abilities and settings of the backend, for `store.capabilities`."""
        ...

    async def watch(self, conversation_id: str, wake: Wake) -> None:
        """Call `wake` soon after each change of the conversation, and whenever changes may have been missed."""
        ...

    async def unwatch(self, conversation_id: str, wake: Wake) -> None:
        """End a `watch` with the same arguments, if there is one."""
        ...

    async def watch_all(self, wake: WakeAll) -> None:
        """Call `wake` soon after each change of any conversation, and with None whenever changes may have been
        missed."""
        ...

    async def unwatch_all(self, wake: WakeAll) -> None:
        """End a `watch_all` with the same argument, if there is one."""
        ...

    async def watch_run(self, conversation_id: str, run_id: str, wake: Wake) -> Any:
        """Like `watch`, for one holder of a run or one waiter. Returns what names the server of the run, if there are
        several."""
        ...

    async def unwatch_run(self, conversation_id: str, run_id: str, wake: Wake) -> None:
        """End a `watch_run` with the same arguments, if there is one."""
        ...

    async def watch_turns(self, agent_name: str | None, number: int, wake: WakeAll) -> None:
        """Call `wake` soon after a turn of the agent has become due, with its conversation, and with None whenever that
        may have been missed. If several watch, it is enough to wake one; `number` (0 to 31) tells them apart."""
        ...

    async def unwatch_turns(self, agent_name: str | None, number: int, wake: WakeAll) -> None:
        """End a `watch_turns` with the same arguments, if there is one."""
        ...

    async def poll_changes(self, query: ChangeQuery) -> ChangedHeads:
        """The conversations that have changed since the last query, and possibly others."""
        ...

    async def aclose(self) -> None:
        """Release all resources; later calls raise StoreClosedError."""
        ...


@runtime_checkable
class Backend(Protocol):
    """The same methods as `AsyncBackend`, not awaited."""

    @property
    def search_mode(self) -> SearchedBy: ...

    def execute(self, op: Op[T]) -> T: ...

    def capabilities(self) -> Capabilities: ...

    def watch(self, conversation_id: str, wake: Wake) -> None: ...

    def unwatch(self, conversation_id: str, wake: Wake) -> None: ...

    def watch_all(self, wake: WakeAll) -> None: ...

    def unwatch_all(self, wake: WakeAll) -> None: ...

    def watch_run(self, conversation_id: str, run_id: str, wake: Wake) -> Any: ...

    def unwatch_run(self, conversation_id: str, run_id: str, wake: Wake) -> None: ...

    def watch_turns(self, agent_name: str | None, number: int, wake: WakeAll) -> None: ...

    def unwatch_turns(self, agent_name: str | None, number: int, wake: WakeAll) -> None: ...

    def poll_changes(self, query: ChangeQuery) -> ChangedHeads: ...

    def close(self) -> None: ...


class WeakWake:
    """A wake that does not keep its object alive, because backends keep wakes until they are removed."""

    def __init__(self, method: Callable[..., object]) -> None:
        self._method = WeakMethod(method)

    def __call__(self, *arguments: Any) -> None:
        method = self._method()
        if method is not None:
            method(*arguments)


#: The most ids that PendingWakeups keeps. With more, any conversation may have changed.
MAX_IDS: Final = 10_000


class PendingWakeups:
    """The ids of conversations that may have changed.

    Any thread adds ids, one consumer takes them. Each id is kept once."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._ids: dict[str, None] = {}
        self._any = False

    def add(self, conversation_id: str | None) -> None:
        """None: any conversation may have changed."""
        with self._lock:
            if conversation_id is None or len(self._ids) >= MAX_IDS:
                self._any = True
            else:
                self._ids[conversation_id] = None
        self._wake()

    def take(self) -> tuple[dict[str, None], bool]:
        """The ids added since the last call, in order, and whether any other conversation may have changed."""
        with self._lock:
            ids, self._ids = self._ids, {}
            any_other, self._any = self._any, False
        return ids, any_other
