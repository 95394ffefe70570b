"""The protocols of backends, asynchronous and synchronous. A backend executes operations and wakes subscriptions.

Operations are validated before. A backend retries automatically, and raises errors of `redis_history.errors`. For
optional features, see `Features`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

from msgspec import Struct

from redis_history.capabilities import Capabilities
from redis_history.events import Cursor
from redis_history.operations import Op

__all__ = [
    "AsyncBackend",
    "AsyncDescribes",
    "AsyncFollowsAll",
    "Backend",
    "ChangeQuery",
    "ChangedHeads",
    "Describes",
    "Features",
    "FollowsAll",
    "PendingWakeups",
    "SearchedBy",
    "Wake",
    "WakeAll",
    "features",
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
    only that.
    """

    known: Mapping[str, Cursor]
    position: Any = None
    news: Collection[str] = ()
    doubted: Collection[str] = ()


class ChangedHeads(Struct, frozen=True):
    """The conversations whose newest change differs from `ChangeQuery.known`, with that change; maybe also others, such
    as those with an active run. A deleted conversation has revision 0. `position`: for the next query."""

    heads: dict[str, Cursor]
    position: Any = None


#: "server": the backend searches, with the operations of the modules `search`, `fetch`, `index` and `documents` of
#: redis_history.operations, and `ReadTogether`.
#: "unknown": known after the first operation. "client": the store reads a conversation and ranks its messages.
#: "memory": the same, and the store may read all conversations.
SearchedBy = Literal["server", "unknown", "client", "memory"]


class Features(NamedTuple):
    """The optional features of a backend, declared as attributes or properties with these names.

    `compacts`: the operations `Compact` (also with a `run` of kind "compressor" as its precondition), `Expand`,
    `TakeRun`, `KeepRuns` and `EndRun` of that kind, `ScanConversations`, and `ReadPage` with `archived`;
    `Compact.replaced`, `check_summary`, `check_pairs` and `ReadPage.cut` are what backends share. Without it,
    `compact` and `expand` raise CapabilityError.

    `streams`: replies written piece by piece: the operation `GrowReply`, `UpdateMessage` with `reply`, and the text so
    far in all reads, also through `changelog.recover`. Without it, `stream` raises CapabilityError.

    `forks`: copies of conversations, and the log: the operations `WriteDraft`, `DropDraft`, `Publish` and `ReadLog`;
    with `compacts` also `ReadLayout`, and `ReadPage` with `archive`. Without it, `fork` and `log` raise
    CapabilityError.

    `runs`: the operations `TakeRun`, `KeepRuns`, `EndRun`, `StopRun`, `LeaveRun` and `ReadRun`, the condition `run` of
    writes, and the methods `watch_run` and `unwatch_run`: like `watch` and `unwatch`, for one holder or waiter.
    Without it, `store.run` raises CapabilityError.

    `reads_together`: the operation `ReadTogether`. Without it, the store sends the reads one by one.
    """

    compacts: bool = False
    streams: bool = False
    forks: bool = False
    runs: bool = False
    reads_together: bool = False
    search_mode: SearchedBy = "client"


def features(backend: AsyncBackend | Backend) -> Features:
    """The declared features of a backend. The defaults also hold for classes that do not derive from the protocol."""
    return Features(**{name: getattr(backend, name) for name in Features._fields if hasattr(backend, name)})


class _Declares(Protocol):
    """The defaults of `Features`."""

    @property
    def compacts(self) -> bool:
        return False

    @property
    def streams(self) -> bool:
        return False

    @property
    def forks(self) -> bool:
        return False

    @property
    def runs(self) -> bool:
        return False

    @property
    def reads_together(self) -> bool:
        return False

    @property
    def search_mode(self) -> SearchedBy:
        return "client"


class AsyncBackend(_Declares, Protocol):
    """Executes operations, and wakes subscriptions. Deriving from it gives the defaults of `Features`."""

    async def execute(self, op: Op[T]) -> T:
        """The outcome of `op`. Raises only errors of `redis_history.errors`."""
        ...

    async def watch(self, conversation_id: str, wake: Wake) -> None:
        """Call `wake` soon after each change of the conversation, and whenever changes may have been missed.

        Lost calls only delay: subscribers also poll every few seconds.
        """
        ...

    async def unwatch(self, conversation_id: str, wake: Wake) -> None:
        """End a `watch` with the same arguments, if there is one."""
        ...

    async def aclose(self) -> None:
        """Release all resources; later calls raise StoreClosedError."""
        ...


@runtime_checkable
class AsyncDescribes(Protocol):
    """Optional, for `store.capabilities`."""

    async def capabilities(self) -> Capabilities:
        """The abilities and settings of the backend."""
        ...


@runtime_checkable
class AsyncFollowsAll(Protocol):
    """Optional, for subscriptions to all conversations. Without it, they list and compare conversations."""

    async def poll_changes(self, query: ChangeQuery) -> ChangedHeads:
        """The conversations that have changed since the last query, and possibly others."""
        ...

    async def watch_all(self, wake: WakeAll) -> None:
        """Call `wake` soon after each change of any conversation, and with None whenever changes may have been missed.

        Lost calls only delay, as in `watch`.
        """
        ...

    async def unwatch_all(self, wake: WakeAll) -> None:
        """End a `watch_all` with the same argument, if there is one."""
        ...


class Backend(_Declares, Protocol):
    """The same methods as `AsyncBackend`, not awaited."""

    def execute(self, op: Op[T]) -> T: ...

    def watch(self, conversation_id: str, wake: Wake) -> None: ...

    def unwatch(self, conversation_id: str, wake: Wake) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class Describes(Protocol):
    """Like `AsyncDescribes`."""

    def capabilities(self) -> Capabilities: ...


@runtime_checkable
class FollowsAll(Protocol):
    """Like `AsyncFollowsAll`."""

    def poll_changes(self, query: ChangeQuery) -> ChangedHeads: ...

    def watch_all(self, wake: WakeAll) -> None: ...

    def unwatch_all(self, wake: WakeAll) -> None: ...


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
