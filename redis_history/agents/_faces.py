"""Coroutines that also work with synchronous stores."""

from __future__ import annotations

from collections.abc import Coroutine
from inspect import isawaitable
from typing import Any, TypeVar, cast

T = TypeVar("T")


async def answer_of(answer: Any) -> Any:
    """The answer of a store: asynchronous stores return an awaitable."""
    return await answer if isawaitable(answer) else answer


def run_at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that uses a synchronous store, and so never waits."""
    try:
        work.send(None)
    except StopIteration as end:
        return cast("T", end.value)
    raise RuntimeError("the coroutine waits")
