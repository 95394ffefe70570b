"""Failures injected at the connections of a store: the server has done its work, and the reply is lost."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from redis.exceptions import ConnectionError

LOSS = 0.1


def lose_replies(store: Any, when: Callable[[], bool]) -> None:
    """Lose the reply to each call of a store, of either kind, for which `when()` is true."""
    pool = store._backend._connections
    acquire, read = pool.acquire, pool.read
    spoilt: set[Any] = set()

    def spoil(connection: Any) -> Any:
        if when():
            spoilt.add(connection)
        return connection

    async def spoil_later(acquired: Any) -> Any:
        return spoil(await acquired)

    def acquire_and_spoil() -> Any:
        acquired = acquire()
        return spoil_later(acquired) if inspect.isawaitable(acquired) else spoil(acquired)

    async def lost_later(reply: Any) -> None:
        await reply
        raise ConnectionError("the reply was lost")

    def read_and_lose(connection: Any, *patience: Any) -> Any:
        reply = read(connection, *patience)
        if connection not in spoilt:
            return reply
        spoilt.remove(connection)
        if inspect.isawaitable(reply):
            return lost_later(reply)
        raise ConnectionError("the reply was lost")

    pool.acquire = acquire_and_spoil
    pool.read = read_and_lose


def lose_one_reply(store: Any) -> None:
    """Lose the reply to the next call."""
    once = iter([True])
    lose_replies(store, lambda: next(once, False))


class FlakyStore:
    """A store that loses one reply in ten; which ones depends on the seed. The rest is the store's own."""

    def __init__(self, store: Any, seed: int) -> None:
        self._store = store
        self._loss = LOSS
        chance = random.Random(seed)
        lose_replies(store, lambda: chance.random() < self._loss)

    @contextmanager
    def reliable(self) -> Iterator[None]:
        self._loss = 0.0
        yield
        self._loss = LOSS

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)
