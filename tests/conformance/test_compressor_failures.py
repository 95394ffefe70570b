"""Errors of summarisers and callbacks, and errors that end the compressor itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from redis_history import CompressionProgress, Message, extractive_summarizer, tool, tool_result, user
from redis_history.errors import StoreClosedError
from tests.conformance.conftest import Awaitable
from tests.conformance.test_compressor import LOTS, compressor_of, inner
from tests.support.servers import until


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


@pytest.mark.backends("memory")
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("kind", ["plain", "coroutine"])
async def test_any_error_of_a_summariser_is_a_failed_attempt(store: Any, kind: str, error: type[BaseException]) -> None:
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
    """The error is raised, and nothing waits forever."""
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


async def test_a_summary_without_gain_is_reported_and_not_repeated(store: Any) -> None:
    """Until it changes; and then after a while only, as a summary costs something each time."""
    await store.append_many("c", LOTS)
    calls: list[int] = []

    def long(messages: Sequence[Message], previous: str | None) -> str:
        calls.append(1)
        return "".join(message.text for message in messages)

    told: list[CompressionProgress] = []
    compressor = compressor_of(store, long, told, look_interval=0.05, sweep_interval=0.05, longest_wait=0.02)
    work = asyncio.create_task(compressor.run())
    await until(lambda: inner(compressor).stats.nothing == 1)
    sweeps = inner(compressor).stats.sweeps
    await until(lambda: inner(compressor).stats.sweeps > sweeps + 3)
    assert len(calls) == 1
    await store.append("c", user("More"))
    await until(lambda: inner(compressor).stats.nothing == 2)
    inner(compressor).stop()
    assert (await work).failed == 0
    assert [progress.kind for progress in told] == ["started", "nothing"] * 2
    assert told[1].wait > 0
    assert str(told[1].error).startswith("NoGainError")
    assert len(await store.get("c")) == 41


@pytest.mark.backends("memory")
@pytest.mark.parametrize("bound", [18, 20, 40, 120])
async def test_extractive_summaries_fit_any_room(store: Any, bound: int) -> None:
    for number, texts in enumerate((["Line {}: yes it is."], ["ok"], ["{} " * 9], ["Why {}?", "Because it said so."])):
        await store.append_many(f"c{number}", [user(texts[at % len(texts)].replace("{}", str(at))) for at in range(24)])
    results = [tool(tool_result(f"r{at}", '{"data": "' + "x" * 40 * at + '"}')) for at in range(24)]
    await store.append_many("data", results)
    told: list[CompressionProgress] = []
    for options in ({"max_messages": 20}, {"max_messages": None, "max_tokens": bound}):
        stats = await compressor_of(store, extractive_summarizer(), told, keep_recent=2, **options).run_once()
    assert stats.failed == 0
    assert not [progress.error for progress in told if progress.error]


async def test_a_closed_store_ends_it(stores: Any) -> None:
    store = stores()
    compressor = compressor_of(store, lambda messages, previous: "A summary.", look_interval=0.05)
    work = asyncio.create_task(compressor.run())
    await until(lambda: inner(compressor).stats.sweeps == 1)
    await store.aclose()
    with pytest.raises(StoreClosedError):
        await work
