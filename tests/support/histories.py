"""One face for both kinds of histories: what talks to the store is awaited, the rest is called."""

import asyncio
from collections.abc import Sequence
from typing import Any

from redis_history import AsyncRedisHistory, History, Message, Plugin, RedisHistory, user
from redis_history.agents.history._syncer import Syncer
from redis_history.types import ReduceOptions

_AWAITED = {"load", "save", "autosave", "flush", "aclose"}


class Threaded:
    """A synchronous history whose calls to the store are awaited, each in a thread."""

    def __init__(self, target: RedisHistory) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        if name not in _AWAITED:
            return getattr(self._target, name)
        function = getattr(self._target, "close" if name == "aclose" else name)
        return lambda *args, **options: asyncio.to_thread(function, *args, **options)

    def __len__(self) -> int:
        return len(self._target)


class Dropping(Plugin):
    """Leaves out all but the newest `max_entries` entries."""

    def reduce(self, entries: Sequence[Message], options: ReduceOptions) -> Any:
        assert options.max_entries is not None
        return list(entries)[max(0, len(entries) - options.max_entries) :]


class Synced(History):
    """A history with a syncer and without a driver."""

    def __init__(self, max_unsaved: int = 1000, *, confirms: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.syncer = Syncer(self, max_unsaved, confirms=confirms)


def history_over(store: Any, **options: Any) -> Any:
    """A history over a store, or over what tests have in its place."""
    target = getattr(store, "_target", None)
    return AsyncRedisHistory(store, **options) if target is None else Threaded(RedisHistory(target, **options))


def texts(history: Any) -> list[str]:
    return [entry.text for entry in history.entries]


async def stored_texts(store: Any, conversation_id: str = "c", **options: Any) -> list[str]:
    return [message.text for message in await store.get(conversation_id, **options)]


def numbered(*numbers: int) -> list[Any]:
    return [user(str(number)) for number in numbers]
