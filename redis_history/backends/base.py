"""What a backend is: something that executes operations and rings when a conversation changes.

Two protocols of the same shape. A store validates and retries nothing by itself: an operation that arrives here is
valid, and an error that leaves here is of `redis_history.errors`.

What a backend can do beside that, it declares: see `Features`. A class that derives from its protocol declares nothing
until it says so.
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

#: Called, from any thread, when a watched conversation may have changed. Must not block or raise.
Wake = Callable[[], None]
#: The same for those who watch all conversations: with the id of the one, or None if it may be any of them.
WakeAll = Callable[[str | None], None]


class ChangeQuery(Struct, frozen=True):
    """Asks which conversations have changed.

    `known` is the newest change that the caller knows of each conversation; do not modify it. `position` is that of the
    last answer, None the first time. `news` are the ids that entered or left `known` since then. `doubted` are those
    whose change log turned out to be another one: if a server has lost changes, others near them may be affected.
    A backend that compares all of `known` each time needs none of the three.
    """

    known: Mapping[str, Cursor]
    position: Any = None
    news: Collection[str] = ()
    doubted: Collection[str] = ()


class ChangedHeads(Struct, frozen=True):
    """The conversations whose newest change differs from `ChangeQuery.known`, with that change: new ones, changed ones,
    and deleted ones, whose revision is 0. `position` is for the next query."""

    heads: dict[str, Cursor]
    position: Any = None


#: Who searches. "server": the backend, by the search operations of redis_history.operations and `ReadTogether`.
#: "unknown": perhaps the backend; its first operation tells. "client": the store, which reads a conversation and ranks
#: its messages. "memory": the same, and the store may read all conversations.
SearchedBy = Literal["server", "unknown", "client", "memory"]


class Features(NamedTuple):
    """What a backend declares, as attributes or properties of these names.

    `compacts`: it knows the operations `Compact` (also with a `lease` as its precondition), `Expand`, `TakeLease`,
    `KeepLease`, `ScanConversations`, and `ReadPage` with `archived` (backends/rules.py has the checks that all of
    them share). To others the store sends none of these: `compact` and `expand` raise CapabilityError, and there is
    nothing archived to be read.

    `reads_together`: it knows `ReadTogether`. Others get the reads one by one. `search_mode`: who searches.
    """

    compacts: bool = False
    reads_together: bool = False
    search_mode: SearchedBy = "client"


def features(backend: AsyncBackend | Backend) -> Features:
    """What a backend declares now. What a class has not declared has its default, even if the class does not derive
    from the protocol."""
    return Features(**{name: getattr(backend, name) for name in Features._fields if hasattr(backend, name)})


class AsyncBackend(Protocol):
    @property
    def compacts(self) -> bool:
        return False

    @property
    def reads_together(self) -> bool:
        return False

    @property
    def search_mode(self) -> SearchedBy:
        return "client"

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


@runtime_checkable
class AsyncDescribes(Protocol):
    """What a backend may have beside, for `store.capabilities`."""

    async def capabilities(self) -> Capabilities:
        """What it can do and is set to."""
        ...


@runtime_checkable
class AsyncFollowsAll(Protocol):
    """What a backend may have beside, for those who follow all conversations. Without it they list and compare."""

    async def poll_changes(self, query: ChangeQuery) -> ChangedHeads:
        """Which conversations have changed. Whatever has changed since the last look must be found; what has not may be
        found too."""
        ...

    async def watch_all(self, wake: WakeAll) -> None:
        """Call `wake` soon after each change of any conversation, and with None whenever changes may have been missed.

        It is a hint, as in `watch`.
        """
        ...

    async def unwatch_all(self, wake: WakeAll) -> None:
        """End what `watch_all` began; more than once does no harm."""
        ...


class Backend(Protocol):
    @property
    def compacts(self) -> bool:
        return False

    @property
    def reads_together(self) -> bool:
        return False

    @property
    def search_mode(self) -> SearchedBy:
        return "client"

    def execute(self, op: Op[T]) -> T: ...

    def watch(self, conversation_id: str, wake: Wake) -> None: ...

    def unwatch(self, conversation_id: str, wake: Wake) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class Describes(Protocol):
    def capabilities(self) -> Capabilities: ...


@runtime_checkable
class FollowsAll(Protocol):
    def poll_changes(self, query: ChangeQuery) -> ChangedHeads: ...

    def watch_all(self, wake: WakeAll) -> None: ...

    def unwatch_all(self, wake: WakeAll) -> None: ...


#: Ids that pending wake-ups keep. With more, any conversation may have changed.
MAX_IDS: Final = 10_000


class PendingWakeups:
    """The ids of conversations that may have changed.

    Added to from any thread, taken by one consumer. Holds each id once, so its memory is bounded."""

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
