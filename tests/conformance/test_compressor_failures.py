"""What a compressor's summariser and callbacks may raise, and what ends the compressor itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from redis_history import CompressionProgress, Message, user
from tests.conformance.conftest import Awaitable
from tests.conformance.test_compressor import LOTS, compressor_of, inner


class OwnError(BaseException):
    pass


class SilentError(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


ERRORS = [
    StopIteration,
    SystemExit,
    KeyboardInterrupt,
    GeneratorExit,
    asyncio.CancelledError,
    OwnError,
    SilentError,
]


async def fill(store: Any) -> None:
    for name in ("bad", "good", "worse"):
        await store.append_many(name, [user(f"{name} {message.text}", id=message.id) for message in LOTS])


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("kind", ["plain", "coroutine"])
async def test_whatever_a_summariser_raises_is_its_own_affair(
    store: Any, kind: str, error: type[BaseException]
) -> None:
    if kind == "coroutine" and error is KeyboardInterrupt and not isinstance(store, Awaitable):
        pytest.skip("in the main thread it is Ctrl-C")
    await fill(store)

    def plain(messages: Sequence[Message], previous: str | None) -> str:
        if messages[0].text.startswith("good"):
            return "A summary."
        raise error("it")

    async def coroutine(messages: Sequence[Message], previous: str | None) -> str:
        return plain(messages, previous)

    told: list[CompressionProgress] = []
    compressor = compressor_of(store, {"plain": plain, "coroutine": coroutine}[kind], told, concurrency=1)
    async with asyncio.timeout(60):
        stats = await compressor.run_once()
    assert (stats.compressed, stats.failed, stats.working, stats.waiting, stats.resting) == (1, 2, 0, 0, 2)
    assert all(str(one.error).startswith("SummaryError") for one in told if one.kind == "failed")


async def test_a_callback_that_ends_its_thread_or_task_ends_the_compressor(store: Any) -> None:
    """It is told, and nothing waits for ever."""
    await fill(store)

    def fails(progress: CompressionProgress) -> None:
        raise asyncio.CancelledError

    compressor = compressor_of(store, lambda messages, previous: "A summary.", concurrency=1, on_progress=fails)
    with pytest.raises(RuntimeError, match="CancelledError"):
        async with asyncio.timeout(60):
            await compressor.run_once()
    assert inner(compressor).stats.working == 0


async def test_a_cancelled_run_is_cancelled(stores: Any) -> None:
    store = stores()
    if isinstance(store, Awaitable):
        pytest.skip("a thread is not cancelled")
    await fill(store)
    called = asyncio.Event()

    async def waits(messages: Sequence[Message], previous: str | None) -> str:
        called.set()
        await asyncio.Event().wait()
        return ""

    compressor = compressor_of(store, waits, concurrency=2)
    work = asyncio.create_task(compressor.run())
    await called.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert compressor.stats.working == 0
