"""The compressor over every backend, in both faces, with summarizers that a test can hold."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from redis_history import (
    AsyncCompressor,
    AsyncHistoryStore,
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
from redis_history.store.operations import EndRun, TakeRun
from redis_history.types import CompressionProgress
from tests.conformance.conftest import Awaitable, Stores
from tests.support.servers import until

LOTS = [
    user(f"Message {number} tells at length about suitcase number {number}.", id=f"m{number}") for number in range(40)
]


def summarize(messages: Sequence[Message], previous: str | None) -> str:
    """Short, and tells what it was given."""
    return f"{previous or 'Nothing'} + {len(messages)}"


class Held:
    """A summarizer that says when it has been called, and waits for a word."""

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


def compressor_of(
    store: Any, summarizer: Any, progress: list[CompressionProgress] | None = None, **options: Any
) -> Any:
    """A compressor of the face of the store, that can be awaited."""
    options = {
        "max_messages": 20,
        "keep_recent": 4,
        "first_wait": 0.01,
        "on_progress": None if progress is None else progress.append,
        **options,
    }
    if isinstance(store, Awaitable):
        return Awaitable(Compressor(store._target, summarizer, **options))
    return AsyncCompressor(store, summarizer, **options)


def inner(compressor: Any) -> Any:
    return compressor._target if isinstance(compressor, Awaitable) else compressor


@asynccontextmanager
async def running(compressor: Any) -> AsyncIterator[Any]:
    """Run it, and stop it in the end."""
    work = asyncio.create_task(compressor.run())
    try:
        yield inner(compressor)
    finally:
        inner(compressor).stop()
        await work


@pytest.mark.smoke
async def test_a_long_conversation_is_compressed_and_a_short_one_is_not(store: Any) -> None:
    await store.append_many("long", [system("Be kind."), *LOTS])
    await store.append_many("short", LOTS[:20])
    progress: list[CompressionProgress] = []
    stats = await compressor_of(store, summarize, progress, keep_recent=4).run_once()
    found = await store.get("long")
    assert found[0].text == "Be kind."
    assert found[1].is_summary
    assert found[1].role == "user"
    assert found[1].text == f"[Earlier conversation summary: Nothing + {stats.messages}]"
    assert [message.id for message in found[2:]] == [message.id for message in LOTS[stats.messages :]]
    assert len(found) <= 10  # half of the bound
    assert [message.id for message in await store.get("short")] == [message.id for message in LOTS[:20]]
    assert (stats.compressed, stats.failed, stats.waiting, stats.working, stats.resting) == (1, 0, 0, 0, 0)
    assert [one.kind for one in progress] == ["started", "compressed"]
    assert progress[1].messages == stats.messages
    assert progress[1].tokens_before == stats.tokens_before > stats.tokens_after == progress[1].tokens_after


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
    assert (await store.get_conversation("c")).estimated_tokens <= bounds.get("max_tokens", 10**9)
    assert [message.id for message in live[-4:]] == ["now1", "now2", "now3", "now4"]
    if "older_than" in bounds:
        assert [message.is_summary for message in live] == [False, True, *[False] * 4]


async def test_a_summary_that_is_too_long_is_asked_for_again_of_more(store: Any) -> None:
    await store.append_many("c", LOTS)
    given: list[int] = []

    def long(messages: Sequence[Message], previous: str | None) -> str:
        given.append(len(messages))
        return "word " * 160  # 200 tokens

    bound = (await store.get_conversation("c")).estimated_tokens - 60
    progress: list[CompressionProgress] = []
    options = {"max_messages": None, "max_tokens": bound, "target": 1}
    stats = await compressor_of(store, long, progress, **options).run_once()
    assert (stats.compressed, stats.failed) == (1, 0)
    assert len(given) == 2
    assert given[0] < given[1] == stats.messages
    assert [one.kind for one in progress] == ["started", "compressed"]
    assert (await store.get_conversation("c")).estimated_tokens <= bound


async def test_appends_while_the_summarizer_thinks_stay(store: Any, stores: Stores) -> None:
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


@pytest.mark.proves("summarizers")
@pytest.mark.parametrize("change", ["edit", "delete", "clear"])
async def test_changed_messages_are_summarized_again(store: Any, change: str) -> None:
    await store.append_many("c", LOTS)
    held = Held()
    async with running(compressor_of(store, held)) as compressor:
        await held.until_called()
        if change == "edit":
            await store.update_message("c", user("Something else entirely, and quite long, too.", id="m3"))
        elif change == "delete":
            await store.delete_messages("c", ["m3"])
        else:
            await store.clear("c")
        held.go.set()
        await until(lambda: compressor.stats.conflicts == 1)
        if change != "clear":
            await until(lambda: compressor.stats.compressed == 1)
            assert ("Something else" in held.given[1][3].text) == (change == "edit")
    assert [message.is_summary for message in await store.get("c")].count(True) == (change != "clear")


@pytest.mark.proves("pairs")
async def test_a_late_tool_result_is_a_conflict_and_the_attempt_is_repeated(stores: Stores) -> None:
    """The call that it answers had been given up."""
    store, held = stores(), Held()
    calls = [assistant(tool_use("1", "f"), id="call"), user("Are you there?"), assistant("I go on.")]
    await store.append_many("c", [*calls, *LOTS])
    progress: list[CompressionProgress] = []
    async with running(compressor_of(stores(), held, progress, look_interval=0.05)) as compressor:
        await held.until_called()
        await store.append("c", tool(tool_result("1", "after all"), id="result"))
        await store.append_many("c", [user(message.text, id=f"x{message.id}") for message in LOTS])
        held.go.set()
        await until(lambda: compressor.stats.compressed == 1)
    assert [one.kind for one in progress] == ["started", "conflict", "started", "compressed"]
    assert not {message.id for message in await store.get("c")} & {"call", "result"}


@pytest.mark.proves("summarizers")
@pytest.mark.parametrize(
    "answer",
    [RuntimeError("no model"), "", None, "word " * 200_000, "held"],
    ids=["error", "empty", "none", "megabyte", "timeout"],
)
async def test_an_invalid_summary_changes_nothing_and_others_go_on(store: Any, answer: Any) -> None:
    for name in ("bad", "good", "better"):
        await store.append_many(name, [user(f"{name} {message.text}", id=message.id) for message in LOTS])
    before = await store.get("bad")
    held = Held()

    def some(messages: Sequence[Message], previous: str | None) -> Any:
        if not messages[0].text.startswith("bad"):
            return "A summary."
        if isinstance(answer, Exception):
            raise answer
        return held(messages, previous) if answer == "held" else answer

    progress: list[CompressionProgress] = []
    stats = await compressor_of(store, some, progress, timeout=0.5 if answer == "held" else 60).run_once()
    held.go.set()
    assert (stats.compressed, stats.failed, stats.resting) == (2, 1, 1)
    (failure,) = [one for one in progress if one.kind == "failed"]
    assert failure.conversation_id == "bad"
    assert str(failure.error).startswith("SummaryError")
    assert not isinstance(answer, Exception) or "RuntimeError: no model" in str(failure.error)
    assert failure.wait > 0
    assert await store.get("bad") == before
    assert [len(await store.get(name)) <= 10 for name in ("good", "better")] == [True, True]


def failing(times: int) -> Callable[..., str]:
    """A summarizer that fails `times` times."""
    errors = iter(range(times))

    def summarize(messages: Sequence[Message], previous: str | None) -> str:
        for number in errors:
            raise ValueError(number)
        return "At last."

    return summarize


async def test_waits_after_failures_double(store: Any) -> None:
    await store.append_many("c", LOTS)
    progress: list[CompressionProgress] = []
    async with running(compressor_of(store, failing(3), progress, first_wait=0.05)) as compressor:
        await until(lambda: compressor.stats.compressed == 1)
    waits = [one.wait for one in progress if one.kind == "failed"]
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
            if isinstance(operation, TakeRun):
                taken += 1
            elif isinstance(operation, EndRun) and not compressor.stats.compressed:
                before = taken  # if it rests already, until it comes again
                await until(lambda: compressor.stats.working or taken > before)
            return await execute(operation)

        store._backend.execute = slow  # type: ignore[method-assign]
        compressor = compressor_of(store, failing(2), first_wait=0.02)
        async with running(compressor):
            await until(lambda: compressor.stats.compressed == 1)
    assert (compressor.stats.failed, compressor.stats.busy) == (2, 0)


async def test_other_workers_also_wait_after_a_failure(store: Any, stores: Stores) -> None:
    await store.append_many("c", LOTS)
    assert (await compressor_of(store, failing(1), first_wait=60).run_once()).failed == 1
    stats = await compressor_of(stores(), summarize, first_wait=60).run_once()
    assert (stats.compressed, stats.busy) == (0, 1)


async def test_a_change_wakes_the_compressor(store: Any, stores: Stores) -> None:
    stores.need_patterns()
    options = {"look_interval": 3600, "sweep_interval": 3600}
    async with running(compressor_of(store, summarize, **options)) as compressor:
        await until(lambda: compressor.stats.sweeps == 1)
        await stores.until_all_watched()
        await stores().append_many("c", LOTS)
        await until(lambda: compressor.stats.compressed == 1)
    assert compressor.stats.sweeps == 1


async def test_a_conversation_that_was_made_anew_is_looked_at_again(store: Any) -> None:
    by_length = compressor_of(store, summarize, max_messages=5)
    by_age = compressor_of(store, summarize, max_messages=None, older_than=timedelta(days=1))
    for compressor in (by_length, by_age):
        await store.append_many("c", [system(f"rule {number}") for number in range(10)])
        assert (await compressor.run_once()).compressed == 0
        await store.delete_conversation("c")
        await store.append_many("c", [assistant(one.text, timestamp="2020-01-01") for one in LOTS])
        assert (await compressor.run_once()).compressed == 1
        await store.delete_conversation("c")


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
    async with running(compressor):
        await held.until_called()
        with pytest.raises(InvalidInputError):
            await compressor.run_once()
        held.go.set()
    await store.append_many("d", LOTS)
    assert (await compressor.run_once()).compressed == 2


@pytest.mark.parametrize(
    "options",
    [
        {"max_messages": None},
        {"target": 1.5},
        {"concurrency": 0},
        {"timeout": float("inf")},
        {"lease": 1e300},
        {"older_than": timedelta.max},
        {"on_progress": 3},
        {"longest_wait": 0.001},
        {"grace": -1},
    ],
)
def test_bad_options(options: dict[str, Any]) -> None:
    with HistoryStore("memory://") as store, pytest.raises(ConfigurationError, match=next(iter(options))):
        compressor_of(Awaitable(store), summarize, **options)


@pytest.mark.backends("memory")
async def test_a_summarizer_may_return_an_awaitable(store: Any) -> None:
    async def later(messages: Sequence[Message], previous: str | None) -> str:
        return "Later."

    await store.append_many("c", LOTS)
    await compressor_of(store, lambda messages, previous: later(messages, previous)).run_once()
    assert "Later." in (await store.get("c"))[0].text


async def test_stop_before_run_ends_the_run_at_once(store: Any) -> None:
    """With any number of workers: some end before others have begun."""
    await store.append_many("c", LOTS)
    compressor = compressor_of(store, summarize, concurrency=40)
    for _ in range(3):
        inner(compressor).stop()
        assert (await compressor.run()).compressed == 0
    assert (await compressor.run_once()).compressed == 1
