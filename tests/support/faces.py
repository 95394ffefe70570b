"""Both kinds of stores, used alike: a test awaits every call."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from redis_history import AsyncHistoryStore, HistoryStore

#: For tests of what a server does to calls. The synchronous source is generated from the other, so it has its turn in
#: the whole matrix. Tests of threads and tasks take both kinds by name.
FACES = pytest.mark.parametrize("face", ["async", pytest.param("sync", marks=pytest.mark.full)])


class Awaitable:
    """A synchronous store or subscription whose calls are awaited, each in a thread."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        if name == "aclose":
            name = "close"
        if name == "capabilities":
            return asyncio.to_thread(getattr, self._target, name)
        value = getattr(self._target, name)
        if not callable(value):
            return value
        if name in ("subscribe", "subscribe_all", "stream") or (
            name == "run" and isinstance(self._target, HistoryStore)
        ):
            return lambda *args, **options: Awaitable(value(*args, **options))
        if name in ("iter", "iter_conversations"):
            return lambda *args, **options: _each(value(*args, **options))
        if name == "on_change":
            return lambda *args, **options: _on_change(value, args, options)
        return lambda *args, **options: asyncio.to_thread(value, *args, **options)

    async def __aenter__(self) -> Awaitable:
        await asyncio.to_thread(self._target.__enter__)
        return self

    async def __aexit__(self, *exit_: object) -> None:
        await asyncio.to_thread(self._target.__exit__, *exit_)

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for item in _each(iter(self._target)):
            yield item


async def _each(items: Any) -> AsyncIterator[Any]:
    end = object()
    while (item := await asyncio.to_thread(next, items, end)) is not end:
        yield item


async def _on_change(on_change: Any, args: Any, options: Any) -> Any:
    unsubscribe = await asyncio.to_thread(on_change, *args, **options)
    return lambda: asyncio.to_thread(unsubscribe)


def open_store(face: str, url: str | None = None, **options: Any) -> Any:
    """A store of the kind "sync" or "async"."""
    return Awaitable(HistoryStore(url, **options)) if face == "sync" else AsyncHistoryStore(url, **options)


def act_after(store: Any, kind: type, act: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """Do `act` once, as another process would, after the next operation of this kind that the backend of the store
    executes."""
    backend, loop = store.backend, asyncio.get_running_loop()
    done: list[object] = []
    execute = backend.execute

    def is_next(op: object) -> bool:
        if done or not isinstance(op, kind):
            return False
        done.append(op)
        return True

    async def execute_async(op: Any) -> Any:
        found = await execute(op)
        if is_next(op):
            await act()
        return found

    def execute_sync(op: Any) -> Any:  # in a thread
        found = execute(op)
        if is_next(op):
            asyncio.run_coroutine_threadsafe(act(), loop).result()
        return found

    backend.execute = execute_async if inspect.iscoroutinefunction(execute) else execute_sync
