"""The compression plugin over a history of this process."""

import asyncio
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_history import History, Message, assistant, compression, system, tool, tool_result, tool_use, user
from redis_history.errors import CompactionConflictError, ConfigurationError, InvalidInputError, SummaryError
from redis_history.types import Compression, ReduceOptions


def counting(messages: Sequence[Message], previous: str | None) -> str:
    return f"{previous or 'nothing'} + {len(messages)}"


def plugin(summarizer: Any, **options: Any) -> Compression:
    return compression(summarizer, **{"keep_recent": 4, **options})


def add(history: History, count: int) -> None:
    for number in range(count):
        history.add_text("user" if number % 2 == 0 else "assistant", f"Message {number}, which is long enough.")


def filled(count: int = 12) -> History:
    history = History()
    history.add_system("Be kind.")
    add(history, count)
    return history


async def reduced(history: History, **bounds: Any) -> int:
    return await history.reduce(**(bounds or {"max_entries": 8}))


def test_one_rolling_summary_takes_the_place_of_the_oldest() -> None:
    history = filled().use(plugin(counting))
    last = history.entries[-6:]
    assert history.reduce(max_entries=8).removed == 6
    first, summary, *rest = history.entries
    assert (first.text, rest) == ("Be kind.", last)
    assert summary.text == "[Earlier conversation summary: nothing + 6]"
    assert (summary.role, summary.is_summary) == ("user", True)
    add(history, 5)
    history.reduce(max_entries=8)
    assert [entry.is_summary for entry in history.entries].count(True) == 1
    assert history.entries[1].text == "[Earlier conversation summary: nothing + 6 + 5]"


def test_entries_that_are_too_old_are_summarized() -> None:
    history = History([user("old " * 30, timestamp="2020-01-01"), user("older " * 30, timestamp="2020-01-02")])
    for number in range(5):
        history.add_text("user", str(number))
    history.use(plugin(counting)).reduce(older_than=timedelta(days=1))
    assert [entry.text for entry in history.entries] == ["[Earlier conversation summary: nothing + 2]", *"01234"]


@pytest.mark.parametrize(
    "answer",
    [RuntimeError("away"), StopIteration("not for a future"), "", 7, "x" * 10**6],
    ids=["error", "stop", "empty", "number", "megabyte"],
)
@pytest.mark.parametrize("coroutine", [False, True])
async def test_an_invalid_summary_leaves_the_history_unchanged(answer: Any, coroutine: bool) -> None:
    def plain(messages: Sequence[Message], previous: str | None) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def later(messages: Sequence[Message], previous: str | None) -> Any:
        return plain(messages, previous)

    history = filled().use(plugin(later if coroutine else plain))
    before = history.get_snapshot()
    with pytest.raises(SummaryError):
        await reduced(history)
    assert history.get_snapshot() is before


class OwnError(BaseException):
    pass


@pytest.mark.proves("summarizers")
@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, asyncio.CancelledError, OwnError, KeyboardInterrupt])
@pytest.mark.parametrize("coroutine", [False, True])
async def test_no_error_of_a_summarizer_ends_the_program(error: type[BaseException], coroutine: bool) -> None:
    """Also an error for its own task or thread, such as `sys.exit()`."""

    def plain(messages: Sequence[Message], previous: str | None) -> str:
        raise error("it")

    async def later(messages: Sequence[Message], previous: str | None) -> str:
        raise error("it")

    if coroutine and error is KeyboardInterrupt:
        pytest.skip("in the main thread it is Ctrl-C")
    summarizer, failures = later if coroutine else plain, asyncio.Queue[Exception]()
    history = filled().use(plugin(summarizer))
    before = history.get_snapshot()
    with pytest.raises(SummaryError):
        await reduced(history)
    assert history.get_snapshot() is before
    history = filled().use(plugin(summarizer, auto_reduce_when={"max_entries": 13}))
    history.on("plugin_error", failures.put_nowait)
    add(history, 1)
    async with asyncio.timeout(5):
        assert type(await failures.get()) is SummaryError


async def test_a_cancelled_reduction_is_cancelled() -> None:
    called = asyncio.Event()

    async def waits(messages: Sequence[Message], previous: str | None) -> str:
        called.set()
        await asyncio.Event().wait()
        return ""

    work = asyncio.create_task(reduced(filled().use(plugin(waits))))
    await called.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work


def test_a_summarizer_that_takes_too_long() -> None:
    go = threading.Event()
    history = filled().use(plugin(lambda messages, previous: go.wait(20) and "x", timeout=0.05))
    with pytest.raises(SummaryError):
        history.reduce(max_entries=8)
    go.set()
    assert len(history) == 13


async def test_a_result_that_comes_meanwhile_keeps_its_call() -> None:
    """The call had been given up."""
    go = asyncio.Event()

    async def held(messages: Sequence[Message], previous: str | None) -> str:
        await go.wait()
        return "Later."

    history = History([assistant(tool_use("1", "f")), user("Are you there?"), assistant("I go on.")])
    add(history, 12)
    history.use(plugin(held))
    work = asyncio.create_task(reduced(history))
    await asyncio.sleep(0)
    history.add_entry(tool(tool_result("1", "after all")))
    before = history.entries
    go.set()
    with pytest.raises(CompactionConflictError):
        await work
    assert history.entries == before
    assert await history.reduce(max_entries=8) == 0  # between call and result nothing can leave


def test_it_reduces_by_itself_without_an_event_loop() -> None:
    history = History().use(plugin(counting, auto_reduce_when=ReduceOptions(max_tokens=100)))
    for _ in range(25):
        add(history, 2)
        assert history.total_estimated_tokens <= 100


@pytest.mark.parametrize("meanwhile", ["restore", "add"])
def test_an_automatic_reduction_that_was_overtaken_runs_again(meanwhile: str) -> None:
    calls: list[int] = []

    def overtaken(messages: Sequence[Message], previous: str | None) -> str:
        calls.append(len(messages))
        if len(calls) == 1:
            late = [user(f"Late message {number}, which is long enough.") for number in range(20)]
            if meanwhile == "restore":
                history.restore(late)
            else:
                other = threading.Thread(target=lambda: [history.add_entry(message) for message in late])
                other.start()
                other.join()
        return "Short."

    history = filled().use(plugin(overtaken, auto_reduce_when={"max_entries": 12}))
    history.add_text("user", "One more, which exceeds the limit.")
    assert len(calls) == 2, "the second reduction summarizes what came during the first"
    assert len(history) <= 12


def test_a_failed_automatic_reduction_is_reported_and_repeated() -> None:
    errors: list[Any] = []
    answers = iter([ValueError("no"), "", "At last."])

    def summarize(messages: Sequence[Message], previous: str | None) -> str:
        if isinstance(answer := next(answers), Exception):
            raise answer
        return answer

    reducing = plugin(summarize, auto_reduce_when={"max_entries": 12})
    history = filled(11).use(reducing)
    history.on("plugin_error", lambda error, failed, hook: errors.append((type(error), failed is reducing, hook)))
    for _ in range(3):
        history.add_text("user", "One more.")
    assert errors == [(SummaryError, True, "after_add")] * 2
    assert "At last." in history.entries[1].text


def test_a_summarizer_that_adds_to_the_history_is_not_called_again_for_that() -> None:
    calls: list[int] = []
    history = History()

    def adds(messages: Sequence[Message], previous: str | None) -> str:
        calls.append(len(messages))
        add(history, 20)
        return "x"

    history.use(plugin(adds, auto_reduce_when={"max_entries": 5}, keep_recent=1))
    add(history, 6)
    assert len(calls) == 1


def test_one_plugin_is_for_one_history() -> None:
    only = plugin(counting)
    filled().use(only)
    with pytest.raises(InvalidInputError):
        filled().use(only)


@pytest.mark.parametrize(
    "options",
    [
        *(
            {"auto_reduce_when": when}
            for when in (8000, {}, {"max_token": 5}, {"max_tokens": "5"}, {"max_tokens": [5]}, {"max_tokens": None})
        ),
        *({"keep_recent": -1}, {"target": 0}, {"timeout": -1}, {"summarizer": "gpt"}),
    ],
)
def test_bad_options(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        compression(**{"summarizer": counting, **options})


# Bounds


def long_talk(turns: list[tuple[int, int]], running: bool) -> list[Message]:
    """Turns of tool calls with texts of a given length. The last turn still runs, or has its answer."""
    messages = [system("Be kind.")]
    for number, (calls, words) in enumerate(turns):
        messages.append(user(f"{number} " + "word " * words))
        for _ in range(calls):
            messages.append(assistant(tool_use("same", "look", {"n": number})))
            messages.append(tool(tool_result("same", "found " * words)))
        if number < len(turns) - 1 or not running:
            messages.append(assistant("so " * words + "."))
    return messages


@pytest.mark.proves("bounds")
@given(
    turns=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 30)), min_size=1, max_size=8),
    running=st.booleans(),
    max_tokens=st.none() | st.integers(1, 300),
    max_entries=st.none() | st.integers(1, 30),
    words=st.integers(4, 20),
    keep_recent=st.integers(0, 20),
)
def test_the_bounds_hold_whenever_the_summary_can_make_them_hold(
    turns: list[tuple[int, int]],
    running: bool,
    max_tokens: int | None,
    max_entries: int | None,
    words: int,
    keep_recent: int,
) -> None:
    """Also if the summary is longer than expected, so that another one must replace more."""
    before = long_talk(turns, running)
    said = "summary " * words
    history = History(before).use(compression(lambda messages, previous: said, keep_recent=keep_recent))
    began = max(index for index, message in enumerate(before) if message.role == "user")
    turn = before[began:] if running else []
    least = [before[0], user(f"[Earlier conversation summary: {said.strip()}]"), *turn]
    fits = sum(map(history.count_tokens, least)) <= (max_tokens or 10**9)
    possible = len(least) <= (max_entries or len(least)) and fits
    try:
        history.reduce(max_tokens=max_tokens, max_entries=max_entries)
    except SummaryError:
        assert not possible
        assert history.entries == before
        return
    if possible:
        assert len(history) <= (max_entries or len(history))
        assert history.total_estimated_tokens <= (max_tokens or 10**9)
    assert history.entries[0] == before[0]
    assert history.entries[len(history) - len(turn) :] == turn
    assert sum(entry.is_summary for entry in history.entries) <= 1
    first = next((entry for entry in history.entries[1:] if not entry.is_summary), None)
    assert first is None or not first.tool_results


def test_recent_entries_stay_if_the_bounds_allow_it() -> None:
    for keep_recent, left in ((2, 5), (8, 10), (12, 5)):
        history = filled(8).use(plugin(counting, keep_recent=keep_recent, auto_reduce_when={"max_entries": 10}))
        add(history, 2)
        assert len(history) == left, keep_recent
