"""Pending wake-ups: the ids of conversations that may have changed, or "any may have"."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

__all__ = ["PendingWakeups"]

#: Ids that are kept. With more, any conversation may have changed.
MAX_IDS: Final = 10_000


class PendingWakeups:
    """Added to from any thread, taken by one consumer. Holds each id once, so its memory is bounded."""

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
