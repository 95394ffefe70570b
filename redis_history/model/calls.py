"""Which tool call a result answers, also if many agents write at once. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from redis_history.model.message import Participant

__all__ = ["OpenCalls"]

T = TypeVar("T")


class OpenCalls(Generic[T]):
    """The calls that have no result yet, each with what is to be known of it; iterated over, these.

    A result answers the nearest earlier call of its id that has none: one by its own participant, if there is one, for
    agents that number their calls alike. Ids come back for other calls in real conversations.
    """

    def __init__(self) -> None:
        self._calls: dict[str, list[tuple[Participant | None, T]]] = {}

    def __iter__(self) -> Iterator[T]:
        for calls in self._calls.values():
            for _, what in calls:
                yield what

    def call(self, call_id: str, by: Participant | None, what: T) -> None:
        self._calls.setdefault(call_id, []).append((by, what))

    def answer(self, call_id: str, by: Participant | None) -> T | None:
        """The call that a result answers; None: there is none, or it has its result already."""
        calls = self._calls.get(call_id)
        if calls is None:
            return None
        at = len(calls) - 1
        if by is not None:
            own = (index for index in range(at, -1, -1) if _is_same(calls[index][0], by))
            at = next(own, at)
        _, what = calls.pop(at)
        if not calls:
            del self._calls[call_id]
        return what


def _is_same(one: Participant | None, other: Participant) -> bool:
    return one is not None and one.id == other.id and one.kind == other.kind
