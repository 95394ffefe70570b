"""Wrap agent functions to record them. Wrapped functions behave like the originals, even if recording fails."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from typing import Any, Protocol, TypeVar, cast

from redis_history.errors import ConfigurationError

__all__ = ["AsyncWrapping", "Wrapping"]

F = TypeVar("F", bound=Callable[..., Any])


class _Turn(Protocol):
    def add(self, chunk: Any) -> None: ...
    def reply(self, result: Any) -> None: ...
    def __enter__(self) -> Any: ...
    def __exit__(self, *error: Any) -> None: ...


class _AsyncTurn(Protocol):
    def add(self, chunk: Any) -> None: ...
    async def reply(self, result: Any) -> None: ...
    async def __aenter__(self) -> Any: ...
    async def __aexit__(self, *error: Any) -> None: ...


class AsyncWrapping:
    """A decorator for coroutine functions and asynchronous generators."""

    def _turn_of(self, signature: inspect.Signature | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError

    def __call__(self, function: F) -> F:
        """Wrap the agent. Raises ConfigurationError for a function that is not asynchronous."""
        turn_of = functools.partial(self._turn_of, _signature(function))
        if _is(inspect.isasyncgenfunction, function):
            return _wrapped(function, _async_streaming(lambda args, kwargs: (turn_of(args, kwargs), function)))
        if _is(inspect.iscoroutinefunction, function):
            return _wrapped(function, _async_calling(turn_of, function))
        raise ConfigurationError(f"{_name(function)} must be asynchronous: capture it with a HistoryStore instead")


class Wrapping:
    """A decorator for functions and generators. Asynchronous ones are recorded in a thread."""

    def _turn_of(self, signature: inspect.Signature | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError

    def __call__(self, function: F) -> F:
        """Wrap the agent. Raises ConfigurationError for an object that is not callable."""
        if not callable(function):
            raise ConfigurationError(f"capture decorates a function, not {function!r}")
        turn_of = functools.partial(self._turn_of, _signature(function))
        if _is(inspect.isasyncgenfunction, function):
            return _wrapped(
                function, _async_streaming(lambda args, kwargs: (_InThread(turn_of(args, kwargs)), function))
            )
        if _is(inspect.iscoroutinefunction, function):
            return _wrapped(function, _async_calling(lambda *call: _InThread(turn_of(*call)), function))
        if _is(inspect.isgeneratorfunction, function):
            return _wrapped(function, _streaming(lambda args, kwargs: (turn_of(args, kwargs), function)))
        return _wrapped(function, _calling(turn_of, function))


def _async_calling(turn_of: Callable[..., _AsyncTurn], function: Callable[..., Any]) -> Callable[..., Any]:
    async def calling(*args: Any, **kwargs: Any) -> Any:
        turn = turn_of(args, kwargs)
        async with turn:
            result = await function(*args, **kwargs)
            if not isinstance(result, AsyncIterator):
                await turn.reply(result)
                return result
        return _async_streaming(lambda *_: (_Entered(turn), lambda: result))()

    return calling


def _async_streaming(begin: Callable[..., Any]) -> Callable[..., AsyncGenerator[Any, Any]]:
    """Wrap the agent's generator, and add each item to the turn."""

    async def streaming(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        turn, function = begin(args, kwargs)
        inner = function(*args, **kwargs)
        async with turn:
            try:
                item = await anext(inner)
                while True:
                    turn.add(item)
                    try:
                        sent = yield item
                    except GeneratorExit:
                        if hasattr(inner, "aclose"):
                            await inner.aclose()
                        raise
                    except BaseException as error:
                        if not hasattr(inner, "athrow"):
                            raise
                        item = await inner.athrow(error)
                    else:
                        item = await (anext(inner) if sent is None else inner.asend(sent))
            except StopAsyncIteration:
                pass

    return streaming


def _calling(turn_of: Callable[..., _Turn], function: Callable[..., Any]) -> Callable[..., Any]:
    def calling(*args: Any, **kwargs: Any) -> Any:
        turn = turn_of(args, kwargs)
        with turn:
            result = function(*args, **kwargs)
            if not isinstance(result, Iterator):
                turn.reply(result)
                return result
        return _streaming(lambda *_: (_Entered(turn), lambda: result))()

    return calling


def _streaming(begin: Callable[..., Any]) -> Callable[..., Generator[Any, Any, Any]]:
    def streaming(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        turn, function = begin(args, kwargs)
        inner = function(*args, **kwargs)
        with turn:
            try:
                item = next(inner)
                while True:
                    turn.add(item)
                    try:
                        sent = yield item
                    except GeneratorExit:
                        if hasattr(inner, "close"):
                            inner.close()
                        raise
                    except BaseException as error:
                        if not hasattr(inner, "throw"):
                            raise
                        item = inner.throw(error)
                    else:
                        item = next(inner) if sent is None else inner.send(sent)
            except StopIteration as stop:
                return stop.value

    return streaming


class _InThread:
    """A synchronous turn, for an agent in an event loop."""

    def __init__(self, turn: _Turn) -> None:
        self._turn = turn
        self.add = turn.add

    async def reply(self, result: Any) -> None:
        await asyncio.shield(asyncio.to_thread(self._turn.reply, result))

    async def __aenter__(self) -> None:
        await asyncio.shield(asyncio.to_thread(self._turn.__enter__))

    async def __aexit__(self, *error: Any) -> None:
        await asyncio.shield(asyncio.to_thread(self._turn.__exit__, *error))


class _Entered:
    """A turn that has already been entered."""

    def __init__(self, turn: Any) -> None:
        self._turn = turn
        self.add = turn.add

    def __enter__(self) -> None: ...
    async def __aenter__(self) -> None: ...

    def __exit__(self, *error: Any) -> None:
        self._turn.__exit__(*error)

    async def __aexit__(self, *error: Any) -> None:
        await self._turn.__aexit__(*error)


def _is(test: Callable[[Any], bool], function: Any) -> bool:
    """Apply `test` to a function, or to `__call__` of a callable object."""
    if inspect.isroutine(function) or test(function):
        return test(function)
    return test(getattr(type(function), "__call__", None))  # noqa: B004 -- tests the kind of function


def _signature(function: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # some built-in functions have no signature
        return None


def _wrapped(function: F, wrapper: Any) -> F:
    return cast(F, functools.wraps(function)(wrapper))


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__))
