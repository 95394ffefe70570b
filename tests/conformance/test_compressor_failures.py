"""Compressors and errors, with summaries that gain nothing, and with messages that become old."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import anyio
import pytest

from redis_history import Message, system, user
from redis_history.errors import InvalidInputError, StoreClosedError
from redis_history.store.operations import ReadPage, TakeRun
from redis_history.types import CompressionProgress
from tests.conformance.conftest import Awaitable
from tests.conformance.test_compressor import LOTS, compressor_of, inner, running, summarize
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


@pytest.mark.proves("summarizers")
@pytest.mark.backends("memory")
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("kind", ["plain", "coroutine"])
async def test_any_error_of_a_summarizer_is_a_failed_attempt(store: Any, kind: str, error: type[BaseException]) -> None:
    if kind == "coroutine" and error is KeyboardInterrupt and not isinstance(store, Awaitable):
        pytest.skip("in the main thread it is Ctrl-C")
    await fill(store)

    def plain(messages: Sequence[Message], previous: str | None) -> str:
        if messages[0].text.startswith("good"):
            return "A summary."
        raise error("it")

    async def coroutine(messages: Sequence[Message], previous: str | None) -> str:
        return plain(messages, previous)

    progress: list[CompressionProgress] = []
    compressor = compressor_of(store, {"plain": plain, "coroutine": coroutine}[kind], progress, concurrency=1)
    async with asyncio.timeout(60):
        stats = await compressor.run_once()
    assert (stats.compressed, stats.failed, stats.working, stats.waiting, stats.resting) == (1, 2, 0, 0, 2)
    assert all(str(one.error).startswith("SummaryError") for one in progress if one.kind == "failed")


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


async def test_a_compressor_runs_again_after_a_cancelled_scope_of_anyio(stores: Any) -> None:
    store = stores()
    if isinstance(store, Awaitable):
        pytest.skip("a thread is not cancelled")
    await fill(store)
    scope = anyio.CancelScope()

    async def waits(messages: Sequence[Message], previous: str | None) -> str:
        if scope.cancel_called:
            return "x"
        scope.cancel()
        await asyncio.Event().wait()
        return ""

    compressor = compressor_of(store, waits, concurrency=2)
    with scope:
        await compressor.run()

    async def runs_again() -> bool:
        with suppress(InvalidInputError):  # until its workers have ended
            await compressor.run_once()
            return True
        return False

    await until(runs_again)


async def test_a_summary_without_gain_is_reported_and_not_repeated(store: Any) -> None:
    """Until it changes, and then only after a while, because a summary costs something each time."""
    await store.append_many("c", LOTS)
    calls: list[int] = []

    def long(messages: Sequence[Message], previous: str | None) -> str:
        calls.append(1)
        return "".join(message.text for message in messages)

    progress: list[CompressionProgress] = []
    options = {"look_interval": 0.05, "sweep_interval": 0.05, "longest_wait": 0.02}
    async with running(compressor_of(store, long, progress, **options)) as compressor:
        await until(lambda: compressor.stats.nothing == 1)
        sweeps = compressor.stats.sweeps
        await until(lambda: compressor.stats.sweeps > sweeps + 3)
        assert len(calls) == 1
        await store.append("c", user("More"))
        await until(lambda: compressor.stats.nothing == 2)
    assert compressor.stats.failed == 0
    assert [one.kind for one in progress] == ["started", "nothing"] * 2
    assert progress[1].wait > 0
    assert str(progress[1].error).startswith("NoGainError")
    assert len(await store.get("c")) == 41


async def test_a_closed_store_ends_it(stores: Any) -> None:
    store = stores()
    compressor = compressor_of(store, lambda messages, previous: "A summary.", look_interval=0.05)
    work = asyncio.create_task(compressor.run())
    await until(lambda: inner(compressor).stats.sweeps == 1)
    await store.aclose()
    with pytest.raises(StoreClosedError):
        await work


# Age

WEEK = timedelta(days=7)
OLD = [
    user(f"Old message {number}, which is long enough.", id=f"o{number}", timestamp="2020-01-01") for number in range(6)
]


@pytest.mark.parametrize("first", [LOTS[:1], OLD[:1]], ids=["fresh", "old"])
async def test_growth_is_noticed_at_once(store: Any, stores: Any, first: Any) -> None:
    await store.append_many("c", first)
    options = {"older_than": WEEK, "look_interval": 0.05, "sweep_interval": 3600}
    async with running(compressor_of(store, summarize, **options)) as compressor:
        await until(lambda: compressor.stats.sweeps == 1 and compressor._work.idle)
        await stores().append_many("c", LOTS[1:])
        await until(lambda: compressor.stats.compressed == 1)
    assert (compressor.stats.sweeps, compressor.stats.nothing) == (1, first[0].id == "o0")


async def test_young_conversations_are_read_once_and_not_reported(store: Any) -> None:
    for number in range(5):
        await store.append_many(f"c{number}", LOTS[:3])
    progress: list[CompressionProgress] = []
    compressor = compressor_of(store, summarize, progress, max_messages=None, older_than=WEEK)
    backend, operations = inner(compressor)._store._backend, []
    execute = backend.execute
    backend.execute = lambda operation: (operations.append(type(operation)), execute(operation))[1]
    for _ in range(3):
        stats = await compressor.run_once()
    assert not progress
    assert (stats.sweeps, stats.nothing, stats.compressed) == (3, 0, 0)
    assert (operations.count(TakeRun), operations.count(ReadPage)) == (0, 5)


async def test_old_messages_that_must_stay_are_reported_once(store: Any) -> None:
    await store.append_many("c", OLD[:1])  # a turn in progress
    progress: list[CompressionProgress] = []
    compressor = compressor_of(store, summarize, progress, max_messages=None, older_than=WEEK, keep_recent=6)
    for _ in range(3):
        await compressor.run_once()
    assert [one.kind for one in progress] == ["nothing"]
    await store.append_many("c", LOTS[:6])
    assert (await compressor.run_once()).compressed == 1


@pytest.mark.full
async def test_messages_are_compressed_when_they_become_old(store: Any) -> None:
    await store.append_many("c", [system(f"Rule {number}", timestamp="2019-01-01") for number in range(200)])
    await store.append_many("c", LOTS)
    options = {"max_messages": None, "older_than": 1.0, "sweep_interval": 0.05}
    async with running(compressor_of(store, summarize, **options)) as compressor:
        await until(lambda: compressor.stats.compressed == 1)
