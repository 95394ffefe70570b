"""Wrap agent functions to record them. Wrapped functions behave like the originals, even if recording fails."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from typing import Any, TypeVar, cast

from redis_history.errors import ConfigurationError

F = TypeVar("F", bound=Callable[..., Any])
#: Makes the turn of a call with these arguments, positional and by name.
_TurnOf = Callable[[tuple[Any, ...], dict[str, Any]], Any]


def wrap(function: F, turn_of: _TurnOf, *, asynchronous: bool) -> F:
    """Wrap an agent. If its turns are not `asynchronous`, those of an asynchronous agent are recorded in threads.

    Raises ConfigurationError for an object that is not callable, and for a function that is not asynchronous if the
    turns are.
    """
    if not callable(function):
        raise ConfigurationError(f"capture decorates a function, not {function!r}")
    async_turn_of = turn_of if asynchronous else lambda args, kwargs: _InThread(turn_of(args, kwargs))
    if _is(inspect.isasyncgenfunction, function):
        wrapped: Callable[..., Any] = _async_streaming(async_turn_of, function)
    elif _is(inspect.iscoroutinefunction, function):
        wrapped = _async_calling(async_turn_of, function)
    elif asynchronous:
        name = getattr(function, "__qualname__", type(function).__name__)
        raise ConfigurationError(f"{name} must be asynchronous: capture it with a HistoryStore instead")
    else:
        wrapped = (_streaming if _is(inspect.isgeneratorfunction, function) else _calling)(turn_of, function)
    return cast(F, functools.wraps(function)(wrapped))


def _async_calling(turn_of: _TurnOf, function: Callable[..., Any]) -> Callable[..., Any]:
    async def calling(*args: Any, **kwargs: Any) -> Any:
        turn = turn_of(args, kwargs)
        async with turn:
            result = await function(*args, **kwargs)
            if not isinstance(result, AsyncIterator):
                await turn.reply(result)
                return result
        return _async_streaming(lambda *_: turn, lambda: result)()

    return calling


def _async_streaming(turn_of: _TurnOf, function: Callable[..., Any]) -> Callable[..., AsyncGenerator[Any, None]]:
    """Wrap a function that returns an iterator, and add each item to the turn."""

    async def streaming(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        items = function(*args, **kwargs)
        async with turn_of(args, kwargs) as turn:
            try:
                async for item in items:
                    await turn.add(item)
                    yield item
            finally:
                if hasattr(items, "aclose"):
                    await items.aclose()

    return streaming


def _calling(turn_of: _TurnOf, function: Callable[..., Any]) -> Callable[..., Any]:
    def calling(*args: Any, **kwargs: Any) -> Any:
        with turn_of(args, kwargs) as turn:
            result = function(*args, **kwargs)
            if not isinstance(result, Iterator):
                turn.reply(result)
                return result
        return _streaming(lambda *_: turn, lambda: result)()

    return calling


def _streaming(turn_of: _TurnOf, function: Callable[..., Any]) -> Callable[..., Generator[Any, None, None]]:
    def streaming(*args: Any, **kwargs: Any) -> Generator[Any, None, None]:
        items = function(*args, **kwargs)
        with turn_of(args, kwargs) as turn:
            try:
                for item in items:
                    turn.add(item)
                    yield item
            finally:
                if hasattr(items, "close"):
                    items.close()

    return streaming


class _InThread:
    """A synchronous turn, used in threads by an agent in an event loop."""

    def __init__(self, turn: Any) -> None:
        self._turn = turn

    async def add(self, chunk: Any) -> None:
        await asyncio.shield(asyncio.to_thread(self._turn.add, chunk))

    async def reply(self, result: Any) -> None:
        await asyncio.shield(asyncio.to_thread(self._turn.reply, result))

    async def __aenter__(self) -> _InThread:
        await asyncio.shield(asyncio.to_thread(self._turn.__enter__))
        return self

    async def __aexit__(self, *error: Any) -> None:
        await asyncio.shield(asyncio.to_thread(self._turn.__exit__, *error))


def _is(test: Callable[[Any], bool], function: Any) -> bool:
    """Apply `test` to a function, or to `__call__` of a callable object."""
    if inspect.isroutine(function) or test(function):
        return test(function)
    return test(getattr(type(function), "__call__", None))  # noqa: B004 -- tests the kind of function
