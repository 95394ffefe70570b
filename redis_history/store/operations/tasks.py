"""What the steps of a task may yield to a store besides operations: a task takes several operations, such as a search,
a fork, or an import, and is written once for both kinds of stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from msgspec import Struct

from redis_history.store.operations.base import Steps

if TYPE_CHECKING:
    from redis_history.store.operations.searching import Searcher

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)


class Executes(Protocol[T_contra, R_co]):
    """A store of either kind, as the argument of a function that returns what `execute` returns: an
    AsyncHistoryStore a coroutine, a HistoryStore its result."""

    def execute(self, steps: Steps[T_contra], /) -> R_co:
        """As `HistoryStore.execute`."""
        ...


class Work(Struct, frozen=True):
    """Call a function in a thread, so that an event loop goes on."""

    function: Callable[[], Any]


class Ask(Struct, frozen=True):
    """Call a function of the user, which may be a coroutine function if the store is asynchronous."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()


class Searching(Struct, frozen=True):
    """Execute the steps that `task` makes with the store's own `Searcher`."""

    task: Callable[[Searcher], Steps[Any]]


class OutsideRuns(Struct, frozen=True):
    """Execute steps that belong to no run, also if the store is `exclusive`."""

    steps: Steps[Any]
