"""What rang since one last looked: ids of conversations, or "it may be any"."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

__all__ = ["Bell"]

#: Ids that are remembered; of more, only that there were too many.
MOST: Final = 10_000


class Bell:
    """Rung from any thread, heard by one consumer. Holds each id once, so its memory is bounded."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._ids: dict[str, None] = {}
        self._any = False

    def ring(self, conversation_id: str | None) -> None:
        with self._lock:
            if conversation_id is None or len(self._ids) >= MOST:
                self._any = True
            else:
                self._ids[conversation_id] = None
        self._wake()

    def hear(self) -> tuple[dict[str, None], bool]:
        """The ids that rang, in order, and whether any other may have changed."""
        with self._lock:
            ids, self._ids = self._ids, {}
            anything, self._any = self._any, False
        return ids, anything
