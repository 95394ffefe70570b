"""The history of one process: entries, limits, selectors, events, copies."""

import asyncio
import json
import logging
import threading
from datetime import timedelta
from typing import Any

import pytest
import tiktoken
from hypothesis import event, given
from hypothesis import strategies as st

from redis_history import (
    AttachmentPart,
    History,
    Message,
    assistant,
    system,
    text,
    tool,
    tool_result,
    tool_result_masking,
    tool_use,
    user,
)
from redis_history.errors import ConfigurationError, InvalidInputError, InvalidMessageError, MessageConflictError
from redis_history.types import tiktoken_counter
from redis_history.values.pairs import groups
from tests.property.strategies import TURNS, messages
from tests.support.histories import Dropping, texts


def test_adding() -> None:
    history = History()
    assert history, "an empty history is true"
    assert (history.last_entry(), history.get_system_message(), history.last_user()) == (None, None, None)
    added = [
        history.add_system("Be brief."),
        history.add_text("user", "hi"),
        history.add_message("assistant", [text("a"), tool_use("1", "f", {"x": 1})]),
        history.add_message("tool", tool_result("1", "42")),
        history.add_entry(user("last", id="m")),
        history.add_entry({"role": "assistant", "content": [{"type": "text", "text": "as a dict"}]}),
        history.add_entry({"role": "user", "content": "short"}),
        history.add_entry({"role": "user", "parts": ["a", text("b"), {"type": "text", "text": "c"}]}),
    ]
    assert history.entries == added == list(history) == history.get_entries()
    assert [entry.role for entry in added[:4]] == ["system", "user", "assistant", "tool"]
    assert history.last_entry() is added[-1]
    assert history.get_system_message() == "Be brief."
    assert history.get_messages_without_system() == added[1:]
    assert (history.get_tool_result("1"), history.get_tool_result("2")) == ("42", None)
    history.entries.clear()
    assert len(history) == 8
    assert history.add_entry(user("last", id="m", timestamp="2026-01-01")) is added[4], "a repeated message is ignored"
    with pytest.raises(MessageConflictError):
        history.add_entry(user("other", id="m"))


@pytest.mark.parametrize(
    "call",
    [
        lambda history: history.add_text("nobody", "x"),
        lambda history: history.add_text("user", 5),
        lambda history: history.add_text("user", "\ud800"),
        lambda history: history.add_message("user", [5]),
        lambda history: history.add_entry("text"),
        lambda history: history.add_entry({"content": "no role"}),
        lambda history: history.add_entry({"role": "user", "content": [{"no": "type"}]}),
        lambda history: history.add_entry(user("x", metadata={"a": float("nan")})),
        lambda history: history.restore("text"),
        lambda history: history.restore([user("x"), 5]),
        lambda history: history.restore([user("a", id="m"), user("b", id="m")]),
        lambda history: history.reduce(max_tokens=-1),
        lambda history: history.reduce(max_entries="3"),
        lambda history: history.reduce(older_than="yesterday"),
        lambda history: history.on("entries", print),
        lambda history: history.on("entry", "print"),
        lambda history: history.use(object()),
        lambda history: history.range(from_end=2, to_end=2),
        lambda history: history.range(from_end=2, to_end=-1),
        lambda history: history.recent(-1),
        lambda history: history.by_tokens(1.5),
        lambda history: History.from_json("{}"),
        lambda history: History.from_json("no JSON"),
        lambda history: History.from_json('[{"role": "user", "metadata": {"a": {"&bytes": 5}}}]'),
        lambda history: History(max_length=0),
        lambda history: History(max_tokens=True),
        lambda history: History(on_plugin_error=5),
        lambda history: History(token_counter=5),
    ],
)
def test_bad_input_changes_nothing(call: Any) -> None:
    history = History([user("a")])
    before = history.get_snapshot()
    with pytest.raises((InvalidInputError, MessageConflictError)):
        call(history)
    assert history.get_snapshot() is before


# Snapshots and events


def test_a_snapshot_is_the_same_until_something_changes() -> None:
    history = History()
    first = history.get_snapshot()
    assert first is history.get_snapshot()
    history.add_text("user", "a")
    second = history.get_snapshot()
    assert (first, len(second)) == ((), 1)
    assert second is history.get_snapshot()
    history.clear()
    assert (history.get_snapshot(), len(second)) == ((), 1)


@pytest.mark.proves("history-events")
def test_events_in_order() -> None:
    history = History().use(Dropping())
    events: list[Any] = []
    ends = [
        history.on("entry", lambda message: events.append(("entry", message.text))),
        history.on("clear", lambda: events.append("clear")),
        history.on("restore", lambda messages: events.append(("restore", len(messages)))),
        history.on("change", lambda: events.append("change")),
        history.subscribe(lambda snapshot: events.append(len(snapshot))),
    ]
    history.add_text("user", "a")
    history.restore([user("x"), user("y")])
    history.reduce(max_entries=1)
    history.clear()
    history.reset()
    expected = [("entry", "a"), "change", 1, ("restore", 2), "change", 2, "change", 1]
    assert events == [*expected, "clear", "change", 0, "clear", "change", 0]
    for end in ends:
        end()
        end()
    history.add_text("user", "b")
    assert len(events) == len(expected) + 6


def test_handlers(caplog: pytest.LogCaptureFixture) -> None:
    """One takes as many arguments as it wants; its error is logged; and it may change the history."""
    history = History()
    events: list[Any] = []

    def answer(message: Message) -> None:
        if message.role == "user":
            history.add_text("assistant", f"re: {message.text}")

    history.on("entry", lambda: 1 / 0)
    history.on("entry", answer)
    history.on("entry", lambda *every: events.append(len(every)))
    history.on("entry", lambda message, more="none": events.append(more))
    history.on("entry", lambda message: events.append(message.text))
    with caplog.at_level(logging.ERROR, "redis_history"):
        history.add_text("user", "a")
    assert events == [1, "none", "a", 1, "none", "re: a"]
    assert "ZeroDivisionError" in caplog.text


async def test_handlers_may_be_coroutines() -> None:
    history = History()
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def handler(message: Message) -> None:
        await heard.put(message.text)

    history.on("entry", handler)
    history.add_text("user", "a")
    assert await asyncio.wait_for(heard.get(), 10) == "a"


@pytest.mark.proves("history-events")
def test_many_threads() -> None:
    history = History()
    heard: list[str] = []
    sizes: list[int] = []
    history.on("entry", lambda message: heard.append(message.text))
    history.subscribe(lambda snapshot: sizes.append(len(snapshot)))

    def work(name: int) -> None:
        for number in range(200):
            history.add_text("user", f"{name} {number}")

    threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(history) == len(set(texts(history))) == 1600
    assert heard == texts(history)
    assert sizes == sorted(sizes)
    for name in range(8):
        assert [one for one in heard if one.startswith(f"{name} ")] == [f"{name} {number}" for number in range(200)]


# Limits


def test_the_oldest_leave_and_the_system_message_stays() -> None:
    history = History(max_length=3)
    history.add_system("s")
    for number in range(5):
        history.add_text("user", str(number))
    assert texts(history) == ["s", "3", "4"]
    history = History(max_tokens=10)
    history.add_system("s" * 8)
    for number in range(5):
        history.add_text("user", str(number) * 16)
    assert texts(history) == ["s" * 8, "3" * 16, "4" * 16]
    history.add_text("user", "5" * 400)
    assert texts(history) == ["s" * 8, "5" * 400]


@given(turns=TURNS, max_length=st.integers(1, 8), max_tokens=st.none() | st.integers(1, 12))
def test_limits_keep_calls_with_their_results(turns: Any, max_length: int, max_tokens: int | None) -> None:
    history = History(max_length=max_length, max_tokens=max_tokens)
    everything: list[Message] = []
    for role, parts in turns:
        everything.append(history.add_message(role, parts))
        group = dict(zip([entry.id for entry in everything], groups(everything), strict=True))
        left = {entry.id for entry in history.entries}
        assert {entry.id for entry in everything if entry.role == "system"} <= left
        assert everything[-1].id in left
        assert [entry for entry in everything if entry.id in left] == history.entries
        remaining = {group[entry.id] for entry in history.entries if entry.role != "system"}
        for entry in everything:  # together since the end of the group was added, and so together now
            if group[entry.id] in remaining and entry.role != "system" and entry.id not in left:
                members = [one for one in everything if group[one.id] == group[entry.id]]
                gone = [one for one in members if one.id not in left]
                assert members.index(gone[-1]) < len(members) - 1, "the whole group was there, and part of it left"
        everything = [entry for entry in everything if entry.id in left]
        kept = [entry for entry in history.entries if entry.role != "system"]
        same = groups(history.entries)
        if len(history) > max_length:
            newest = same[-1]
            assert all(entry.role == "system" or same[history.entries.index(entry)] == newest for entry in kept)


def test_reduce_without_a_plugin_that_reduces_does_nothing() -> None:
    entries = [system("s"), *(user(str(number), timestamp="2020-01-01") for number in range(6))]
    for history in (History(entries), History(entries).use(tool_result_masking())):
        before = history.get_snapshot()
        for bounds in ({"max_entries": 1}, {"max_tokens": 1}, {"older_than": timedelta(days=1)}, {}):
            assert history.reduce(**bounds).removed == 0
        assert history.get_snapshot() is before


# Counting and selecting


def test_counting() -> None:
    history = History([user("a" * 10), assistant("b" * 3, tool_use("1", "find", {"q": 1}))])
    assert history.size == 10 + 3 + 4 + len('{"q":1}')
    assert history.total_estimated_tokens == 3 + 4
    calls: list[str] = []

    def words(counted: str) -> int:
        calls.append(counted)
        return len(counted.split())

    history = History([user("one two", AttachmentPart(name="a b"))], token_counter=words)
    assert history.total_estimated_tokens == history.total_estimated_tokens == 4
    assert calls == ["one two\na b"], "each message is counted once"


def test_counting_with_tiktoken(monkeypatch: pytest.MonkeyPatch) -> None:
    encoding = tiktoken.Encoding(
        "letters",
        pat_str=r"\w+|\s+|[^\w\s]+",
        mergeable_ranks={bytes([number]): number for number in range(256)} | {b"ab": 256},
        special_tokens={"<|end|>": 257},
    )
    history = History([user("ab ab")], token_counter=tiktoken_counter(encoding))
    assert history.total_estimated_tokens == 3
    assert history.count_tokens(user("<|end|>")) == 7
    with pytest.raises(ConfigurationError):
        tiktoken_counter("no such model")
    monkeypatch.setitem(__import__("sys").modules, "tiktoken", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'redis_history\[tiktoken\]'"):
        tiktoken_counter()


def test_selectors() -> None:
    history = History(
        [
            system("s"),
            user("Here", AttachmentPart(name="report.pdf")),
            assistant("Thanks", tool_use("1", "f")),
            user(tool_result("1", "42")),
            assistant("Done"),
            tool(tool_result("2", [{"type": "text", "text": "late"}])),
        ]
    )
    entries = history.entries
    assert (history.last_user(), history.last_assistant()) == (entries[1], entries[4])
    assert history.range(from_end=4, to_end=1) == entries[2:5]
    assert history.range(from_end=3, to_end=1) == entries[4:5], "the call is not among them"
    assert [one.text for one in history.range(from_end=4, to_end=3)] == ["Thanks"], "the result is not among them"
    assert history.range(from_end=2) == entries[4:]
    assert history.range(from_end=100, to_end=5) == entries[:1]
    assert history.range(from_end=100, to_end=50) == []
    assert (history.recent(0), history.recent(2), history.recent(100)) == ([], entries[4:], entries)
    lines = ["System: s", "User: Here", "File: report.pdf", "Assistant: Thanks", "Tool: 42", "Assistant: Done"]
    assert history.recent_text(100) == "\n".join([*lines, "Tool: late"])
    assert history.recent_text(2) == "Assistant: Done\nTool: late"


def test_the_newest_are_without_results_whose_call_was_cut_off() -> None:
    history = History(
        [
            assistant(tool_use("1", "f")),
            assistant(tool_use("2", "f")),
            tool(tool_result("2", "x"), tool_result("1", "y")),
            tool(tool_result("3", "answers nothing")),
            user("q"),
        ]
    )
    entries = history.entries
    assert history.recent(5) == entries
    four = history.recent(4)
    assert [four[0], *four[2:]] == [entries[1], *entries[3:]]
    assert four[1].parts == entries[2].parts[:1]
    assert history.recent(3) == history.recent(2) == entries[3:]


@given(turns=TURNS, budget=st.integers(0, 12))
def test_selected_by_tokens_is_the_longest_whole_suffix(turns: Any, budget: int) -> None:
    history = History()
    for role, parts in turns:
        history.add_message(role, parts)
    chosen = history.by_tokens(budget)
    entries = history.entries
    start = len(entries) - len(chosen)
    assert chosen == entries[start:]
    whole = [
        at
        for at in range(len(entries) + 1)
        if sum(map(history.count_tokens, entries[at:])) <= budget and all(root >= at for root in groups(entries)[at:])
    ]
    assert start == min(whole)


# Copies and JSON


@pytest.mark.proves("history-events")
@given(st.lists(messages(), max_size=5, unique_by=lambda message: message.id))
def test_json_loses_nothing(entries: list[Message]) -> None:
    history = History(entries)
    try:
        written = history.to_json()
    except InvalidMessageError:
        event("what JSON cannot carry, such as a number as the key of a dict")
        return
    assert isinstance(json.loads(written), list)
    assert History.from_json(written).entries == history.entries
    assert History.from_json(written.encode()).entries == history.entries


def test_a_clone_is_independent() -> None:
    history = History([user("a")], max_length=2, transient=True)
    clone = history.clone()
    clone.add_text("user", "b")
    clone.add_text("user", "c")
    assert (texts(history), texts(clone), clone.transient) == (["a"], ["b", "c"], True)
    assert len(history.clone(max_length=None)) == 1
