"""The compressor over every backend, in both faces, with summarisers that a test can hold."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from redis_history import (
    AsyncCompressor,
    AsyncHistoryStore,
    CompressionProgress,
    Compressor,
    HistoryStore,
    Message,
    assistant,
    system,
    tool,
    tool_result,
    tool_use,
    user,
)
from redis_history.errors import ConfigurationError, InvalidInputError
from redis_history.operations import KeepLease, TakeLease
from tests.conformance.conftest import Awaitable, Stores
from tests.support.servers import until

LOTS = [
    user(f"Message {number} tells at length about suitcase number {number}.", id=f"m{number}") for number in range(40)
]


def summarize(messages: Sequence[Message], previous: str | None) -> str:
    """Short, and tells what it was given."""
    return f"{previous or 'Nothing'} + {len(messages)}"


class Held:
    """A summariser that says when it has been called, and waits for a word."""

    def __init__(self, answer: Any = "A summary.") -> None:
        self.answer = answer
        self.called = threading.Event()
        self.go = threading.Event()
        self.given: list[list[Message]] = []

    def __call__(self, messages: Sequence[Message], previous: str | None) -> Any:
        self.given.append(list(messages))
        self.called.set()
        assert self.go.wait(30)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def until_called(self) -> None:
        assert await asyncio.to_thread(self.called.wait, 30)


def compressor_of(store: Any, summarizer: Any, told: list[CompressionProgress] | None = None, **options: Any) -> Any:
    """A compressor of the face of the store, that can be awaited."""
    options = {
        "max_messages": 20,
        "keep_recent": 4,
        "first_wait": 0.01,
        "on_progress": None if told is None else told.append,
        **options,
    }
    if isinstance(store, Awaitable):
        return Awaitable(Compressor(store._target, summarizer, **options))
    return AsyncCompressor(store, summarizer, **options)


def inner(compressor: Any) -> Any:
    return compressor._target if isinstance(compressor, Awaitable) else compressor


@pytest.mark.smoke
async def test_a_long_conversation_is_compressed_and_a_short_one_is_not(store: Any) -> None:
    await store.append_many("long", [system("Be kind."), *LOTS])
    await store.append_many("short", LOTS[:20])
    told: list[CompressionProgress] = []
    stats = await compressor_of(store, summarize, told, keep_recent=4).run_once()
    found = await store.get("long")
    assert found[0].text == "Be kind."
    assert found[1].is_summary
    assert found[1].role == "user"
    assert found[1].text == f"[Earlier conversation summary: Nothing + {stats.messages}]"
    assert [message.id for message in found[2:]] == [message.id for message in LOTS[stats.messages :]]
    assert len(found) <= 10  # half of the bound
    assert [message.id for message in await store.get("short")] == [message.id for message in LOTS[:20]]
    assert (stats.compressed, stats.failed, stats.waiting, stats.working, stats.resting) == (1, 0, 0, 0, 0)
    assert [progress.kind for progress in told] == ["started", "compressed"]
    assert told[1].messages == stats.messages
    assert told[1].tokens_before == stats.tokens_before > stats.tokens_after == told[1].tokens_after


async def test_the_summary_rolls(store: Any) -> None:
    await store.append_many("c", LOTS)
    compressor = compressor_of(store, summarize, keep_recent=2)
    first = await compressor.run_once()
    more = [user(f"And another thing: {number}", id=f"x{number}") for number in range(30)]
    await store.append_many("c", more)
    second = await compressor.run_once()
    found = await store.get("c")
    assert [message.is_summary for message in found].count(True) == 1
    given = second.messages - first.messages - 1  # without the previous summary
    assert found[0].text == f"[Earlier conversation summary: Nothing + {first.messages} + {given}]"
    every = await store.get("c", include_archived=True)
    assert [message.id for message in every if not message.is_summary] == [message.id for message in [*LOTS, *more]]


async def test_tokens_are_a_bound_too(store: Any) -> None:
    await store.append_many("c", LOTS)
    before = (await store.get_conversation("c")).tokens
    await compressor_of(store, summarize, max_messages=None, max_tokens=before).run_once()
    assert len(await store.get("c")) == 40
    await compressor_of(store, summarize, max_messages=None, max_tokens=before - 1).run_once()
    assert (await store.get_conversation("c")).tokens <= before / 2


@pytest.mark.proves("bounds")
@pytest.mark.parametrize("keep_recent", [0, 5, 1000])
@pytest.mark.parametrize("bounds", [{"max_messages": 6}, {"max_tokens": 120}, {"older_than": 86_400}], ids=str)
async def test_the_bounds_hold_and_the_turn_in_progress_stays(
    store: Any, bounds: dict[str, Any], keep_recent: int
) -> None:
    old = [
        message
        for number in range(8)
        for message in (
            user(f"Question {number}, which is long enough.", id=f"q{number}", timestamp="2020-01-01"),
            assistant(f"Answer {number}, which is long enough, too.", id=f"a{number}", timestamp="2020-01-01"),
        )
    ]
    turn = [
        user("Now?", id="now1"),
        assistant([tool_use("1", "look"), tool_use("2", "look")], id="now2"),
        tool(tool_result("1", "one"), id="now3"),
        tool(tool_result("2", "two"), id="now4"),
    ]
    await store.append_many("c", [system("Be kind.", timestamp="2019-01-01"), *old, *turn])
    options = {"max_messages": None, **bounds, "keep_recent": keep_recent}
    stats = await compressor_of(store, summarize, **options).run_once()
    assert (stats.compressed, stats.failed) == (1, 0)
    live = await store.get("c")
    assert len(live) <= bounds.get("max_messages", len(live))
    assert (await store.get_conversation("c")).tokens <= bounds.get("max_tokens", 10**9)
    assert [message.id for message in live[-4:]] == ["now1", "now2", "now3", "now4"]
    if "older_than" in bounds:
        assert [message.is_summary for message in live] == [False, True, *[False] * 4]


async def test_a_summary_that_is_too_long_is_asked_for_again_of_more(store: Any) -> None:
    await store.append_many("c", LOTS)
    given: list[int] = []

    def long(messages: Sequence[Message], previous: str | None) -> str:
        given.append(len(messages))
        return "word " * 160  # 200 tokens

    bound = (await store.get_conversation("c")).tokens - 60
    told: list[CompressionProgress] = []
    options = {"max_messages": None, "max_tokens": bound, "target": 1}
    stats = await compressor_of(store, long, told, **options).run_once()
    assert (stats.compressed, stats.failed) == (1, 0)
    assert len(given) == 2
    assert given[0] < given[1] == stats.messages
    assert [progress.kind for progress in told] == ["started", "compressed"]
    assert (await store.get_conversation("c")).tokens <= bound


async def test_appends_while_the_summariser_thinks_stay(store: Any, stores: Stores) -> None:
    await store.append_many("c", LOTS)
    before = await store.get("c")
    held, other = Held(), stores()
    work = asyncio.create_task(compressor_of(store, held).run_once())
    await held.until_called()
    late = [user(f"late {number}", id=f"late{number}") for number in range(10)]
    for message in late:
        await other.append("c", message)
    held.go.set()
    assert (await work).compressed == 1
    found = await store.get("c")
    assert [message.id for message in found[-10:]] == [message.id for message in late]
    (summary,) = [message for message in found if message.is_summary]
    await store.expand("c", summary.id)
    assert (await store.get("c"))[:40] == before


@pytest.mark.proves("summarisers")
@pytest.mark.parametrize("change", ["edit", "delete", "clear"])
async def test_changed_messages_are_summarised_again(store: Any, change: str) -> None:
    await store.append_many("c", LOTS)
    told: list[CompressionProgress] = []
    held = Held()
    compressor = compressor_of(store, held, told)
    work = asyncio.create_task(compressor.run())
    await held.until_called()
    if change == "edit":
        await store.update_message("c", user("Something else entirely, and quite long, too.", id="m3"))
    elif change == "delete":
        await store.delete_messages("c", ["m3"])
    else:
        await store.clear("c")
    held.go.set()
    await until(lambda: inner(compressor).stats.conflicts == 1)
    if change != "clear":
        await until(lambda: inner(compressor).stats.compressed == 1)
        assert ("Something else" in held.given[1][3].text) == (change == "edit")
    inner(compressor).stop()
    await work
    assert [message.is_summary for message in await store.get("c")].count(True) == (change != "clear")


@pytest.mark.proves("pairs")
async def test_a_late_tool_result_is_a_conflict_and_the_attempt_is_repeated(stores: Stores) -> None:
    """The call that it answers had been given up."""
    store, held = stores(), Held()
    calls = [assistant(tool_use("1", "f"), id="call"), user("Are you there?"), assistant("I go on.")]
    await store.append_many("c", [*calls, *LOTS])
    told: list[CompressionProgress] = []
    compressor = compressor_of(stores(), held, told, look_interval=0.05)
    work = asyncio.create_task(compressor.run())
    await held.until_called()
    await store.append("c", tool(tool_result("1", "after all"), id="result"))
    await store.append_many("c", [user(message.text, id=f"x{message.id}") for message in LOTS])
    held.go.set()
    await until(lambda: inner(compressor).stats.compressed == 1)
    inner(compressor).stop()
    await work
    assert [progress.kind for progress in told] == ["started", "conflict", "started", "compressed"]
    ids = {message.id for message in await store.get("c")}
    assert "call" not in ids
    assert "result" not in ids


@pytest.mark.proves("summarisers")
@pytest.mark.parametrize(
    "answer",
    [RuntimeError("no model"), "", None, "word " * 200_000],
    ids=["error", "empty", "none", "megabyte"],
)
async def test_an_invalid_summary_changes_nothing_and_others_go_on(store: Any, answer: Any) -> None:
    for name in ("bad", "good", "better"):
        await store.append_many(name, [user(f"{name} {message.text}", id=message.id) for message in LOTS])
    before = await store.get("bad")

    def some(messages: Sequence[Message], previous: str | None) -> Any:
        if messages[0].text.startswith("bad"):
            if isinstance(answer, Exception):
                raise answer
            return answer
        return "A summary."

    told: list[CompressionProgress] = []
    stats = await compressor_of(store, some, told).run_once()
    assert (stats.compressed, stats.failed, stats.resting) == (2, 1, 1)
    (failure,) = [progress for progress in told if progress.kind == "failed"]
    assert failure.conversation_id == "bad"
    assert str(failure.error).startswith("Summary")
    assert not isinstance(answer, Exception) or "RuntimeError: no model" in str(failure.error)
    assert failure.wait > 0
    assert await store.get("bad") == before
    assert [len(await store.get(name)) <= 10 for name in ("good", "better")] == [True, True]


@pytest.mark.proves("summarisers")
async def test_a_slow_summariser_times_out(store: Any) -> None:
    await store.append_many("c", LOTS)
    held = Held()
    told: list[CompressionProgress] = []
    stats = await compressor_of(store, held, told, timeout=0.1).run_once()
    held.go.set()
    assert stats.failed == 1
    assert str(told[-1].error).startswith("SummaryError")
    assert len(await store.get("c")) == 40


async def test_waits_after_failures_double(store: Any) -> None:
    await store.append_many("c", LOTS)
    told: list[CompressionProgress] = []
    answers = iter([ValueError("1"), ValueError("2"), ValueError("3")])

    def fails(messages: Sequence[Message], previous: str | None) -> str:
        for error in answers:
            raise error
        return "At last."

    compressor = compressor_of(store, fails, told, first_wait=0.05)
    work = asyncio.create_task(compressor.run())
    await until(lambda: inner(compressor).stats.compressed == 1)
    inner(compressor).stop()
    await work
    waits = [progress.wait for progress in told if progress.kind == "failed"]
    assert len(waits) == 3
    assert 0.03 < waits[0] < waits[1] < waits[2] < 0.3


async def test_a_lease_that_is_slow_to_end_does_not_hold_up_its_own_worker() -> None:
    """After a failure the lease is made to end before the next attempt; that call may take longer than the rest."""
    async with AsyncHistoryStore("memory://") as store:
        await store.append_many("c", LOTS)
        execute = store._backend.execute

        taken = 0

        async def slow(operation: Any) -> Any:
            nonlocal taken
            if isinstance(operation, TakeLease):
                taken += 1
            elif isinstance(operation, KeepLease) and not compressor.stats.compressed:
                before = taken  # if it rests already, until it comes again
                await until(lambda: compressor.stats.working or taken > before)
            return await execute(operation)

        store._backend.execute = slow  # type: ignore[method-assign]
        answers = iter([ValueError("1"), ValueError("2")])

        def fails(messages: Sequence[Message], previous: str | None) -> str:
            for error in answers:
                raise error
            return "At last."

        compressor = compressor_of(store, fails, first_wait=0.02)
        work = asyncio.create_task(compressor.run())
        await until(lambda: compressor.stats.compressed == 1)
        compressor.stop()
        stats = await work
    assert (stats.failed, stats.busy) == (2, 0)


async def test_other_workers_also_wait_after_a_failure(store: Any, stores: Stores) -> None:
    await store.append_many("c", LOTS)
    calls: list[int] = []

    def fails(messages: Sequence[Message], previous: str | None) -> str:
        calls.append(1)
        raise ValueError

    for each in (store, stores()):
        stats = await compressor_of(each, fails, first_wait=60).run_once()
    assert len(calls) == 1
    assert (stats.failed, stats.busy) == (0, 1)


async def test_a_change_wakes_the_compressor(store: Any, stores: Stores) -> None:
    compressor = compressor_of(store, summarize, look_interval=3600, sweep_interval=3600)
    work = asyncio.create_task(compressor.run())
    await until(lambda: inner(compressor).stats.sweeps == 1)
    await stores.until_all_watched()
    await stores().append_many("c", LOTS)
    await until(lambda: inner(compressor).stats.compressed == 1)
    inner(compressor).stop()
    assert (await work).sweeps == 1


async def test_a_preview_changes_nothing(store: Any) -> None:
    await store.append_many("c", LOTS)
    await store.append_many("short", LOTS[:5])
    before = await store.get_conversation("c")
    held = Held()
    (planned,) = await compressor_of(store, held).preview()
    assert (planned.kind, planned.conversation_id) == ("planned", "c")
    assert 30 <= planned.messages < 40
    assert planned.tokens_before > 100
    assert not held.given
    assert await store.get_conversation("c") == before


async def test_a_compressor_can_be_run_again_but_not_twice_at_once(store: Any) -> None:
    await store.append_many("c", LOTS)
    held = Held()
    compressor = compressor_of(store, held)
    work = asyncio.create_task(compressor.run())
    await held.until_called()
    with pytest.raises(InvalidInputError):
        await compressor.run_once()
    held.go.set()
    inner(compressor).stop()
    await work
    await store.append_many("d", LOTS)
    assert (await compressor.run_once()).compressed == 2


async def test_a_failing_on_progress_harms_nothing(store: Any) -> None:
    await store.append_many("c", LOTS)

    def fails(progress: CompressionProgress) -> None:
        raise RuntimeError

    assert (await compressor_of(store, summarize, on_progress=fails).run_once()).compressed == 1


async def test_coroutine_functions_and_what_returns_awaitables(store: Any) -> None:
    async def later(messages: Sequence[Message], previous: str | None) -> str:
        await asyncio.sleep(0)
        return "Later."

    class Callable_:
        async def __call__(self, messages: Sequence[Message], previous: str | None) -> str:
            return await later(messages, previous)

    for number, summarizer in enumerate((later, Callable_(), lambda messages, previous: later(messages, previous))):
        await store.append_many(f"c{number}", LOTS)
        assert (await compressor_of(store, summarizer).run_once()).compressed == 1
        assert "Later." in (await store.get(f"c{number}"))[0].text


@pytest.mark.parametrize(
    "options",
    [
        {"max_messages": None},
        {"max_messages": 0},
        {"max_tokens": True},
        {"older_than": -1},
        {"target": 0},
        {"target": 1.5},
        {"keep_recent": -1},
        {"concurrency": 0},
        {"timeout": 0},
        {"timeout": float("inf")},
        {"lease": 0.01},
        {"lease": 1e300},
        {"older_than": 1e12},
        {"older_than": timedelta.max},
        {"on_progress": 3},
        {"longest_wait": 0.001},
        {"grace": -1},
    ],
)
def test_bad_options(options: dict[str, Any]) -> None:
    with HistoryStore("memory://") as store, pytest.raises(ConfigurationError):
        compressor_of(Awaitable(store), summarize, **options)


def test_bad_stores_and_summarisers() -> None:
    with pytest.raises(ConfigurationError):
        Compressor("redis://", summarize, max_messages=3)  # type: ignore[arg-type]
    with HistoryStore("memory://") as store, pytest.raises(ConfigurationError, match="summarizer"):
        Compressor(store, "extractive", max_messages=3)  # type: ignore[arg-type]


async def test_stop_before_run_ends_the_run_at_once(store: Any) -> None:
    """With any number of workers: some end before others have begun."""
    await store.append_many("c", LOTS)
    compressor = compressor_of(store, summarize, concurrency=40)
    for _ in range(3):
        inner(compressor).stop()
        assert (await compressor.run()).compressed == 0
    assert (await compressor.run_once()).compressed == 1
