"""Failures injected at the socket of a store: the request was sent, and the reply is lost."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from redis.exceptions import ConnectionError

LOSS = 0.1


class FlakyStore:
    """A store that loses one reply in ten; everything else is the store's own."""

    def __init__(self, store: Any, seed: int) -> None:
        self._store = store
        self._random = random.Random(seed)
        self._loss = LOSS
        pool = store._backend._connections
        acquire = pool.acquire

        def flaky_acquire() -> Any:
            connection = acquire()
            if self._random.random() < self._loss:
                self._lose_reply(connection)
            return connection

        pool.acquire = flaky_acquire

    def _lose_reply(self, connection: Any) -> None:
        read_response = connection.read_response

        def lost(*args: Any, **options: Any) -> Any:
            del connection.read_response
            read_response(*args, **options)  # the server has done its work
            raise ConnectionError("the reply was lost")

        connection.read_response = lost

    @contextmanager
    def reliable(self) -> Iterator[None]:
        self._loss = 0.0
        yield
        self._loss = LOSS

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def flaky(store: Any, seed: int) -> FlakyStore:
    """Loses replies of `store`, of which ones decides the seed."""
    return FlakyStore(store, seed)
