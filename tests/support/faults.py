"""Failures injected at the connections of a store: the server has done its work, and the reply is lost."""

import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from redis.exceptions import ConnectionError

LOSS = 0.1


def lose_replies(store: Any, when: Callable[[], bool]) -> None:
    """Lose the reply to each exchange of a store, of either kind, for which `when()` is true."""
    node = store._backend._server.node

    async def lost_later(reply: Any) -> None:
        await reply
        raise ConnectionError("the reply was lost")

    pipeline = node.pipeline  # `execute` sends one command with it

    def send_and_lose(commands: Any, **options: Any) -> Any:
        lost = when()
        reply = pipeline(commands, **options)
        if not lost:
            return reply
        if inspect.isawaitable(reply):
            return lost_later(reply)
        raise ConnectionError("the reply was lost")

    node.pipeline = send_and_lose


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


class KilledError(BaseException):
    """The process of a store was killed."""


@contextmanager
def killed_before(store: Any, script: str, number: int = 1) -> Iterator[None]:
    """Kill a synchronous or asynchronous store of a server before the first (second, ...) call of this script. It is an
    error if the call never happens."""
    backend, calls = getattr(store, "_target", store).backend, [0]
    carry_out = backend.carry_out

    def carrying(work: Any) -> Any:
        first = work[0] if type(work) is list else work
        if first.script is not None and first.script.name == script:
            calls[0] += 1
            if calls[0] == number:
                raise KilledError
        return carry_out(work)

    backend.carry_out = carrying
    try:
        yield
    except KilledError:
        return
    finally:
        del backend.carry_out
    raise AssertionError(f"{script} was called {calls[0]} times")
