"""The history of one process: entries, bounds, events, copies."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from redis_history import (
    History,
    Message,
    Reduction,
    system,
    text,
    tool_result,
    tool_result_masking,
    tool_use,
    user,
)
from redis_history.errors import (
    InvalidInputError,
    InvalidMessageError,
    MessageConflictError,
)
from redis_history.model.pairs import groups
from tests.property.strategies import TURNS, messages
from tests.support.histories import Dropping, texts


def test_adding() -> None:
    history = History()
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
    assert len(history) == 8
    assert [entry.role for entry in added[:4]] == ["system", "user", "assistant", "tool"]
    assert history.last_entry() is added[-1]
    assert history.get_system_message() == "Be brief."
    assert history.get_messages_without_system() == added[1:]
    assert history.get_tool_result("1") == "42"
    assert history.get_tool_result("2") is None
    history.entries.clear()
    assert len(history) == 8
    assert History([user("a"), user("b")]).recent_text(5) == "User: a\nUser: b"


def test_the_same_id() -> None:
    history = History()
    first = history.add_entry(user("a", id="m"))
    assert history.add_entry(user("a", id="m", timestamp="2026-01-01")) is first
    with pytest.raises(MessageConflictError):
        history.add_entry(user("b", id="m"))
    assert history.entries == [first]


@pytest.mark.parametrize(
    "call",
    [
        lambda history: history.add_text("nobody", "x"),
        lambda history: history.add_text("user", 5),
        lambda history: history.add_text("user", "\ud800"),
        lambda history: history.add_message("user", 5),
        lambda history: history.add_message("user", [5]),
        lambda history: history.add_entry("text"),
        lambda history: history.add_entry({"content": "no role"}),
        lambda history: history.add_entry({"role": "user", "content": 5}),
        lambda history: history.add_entry({"role": "user", "content": [{"no": "type"}]}),
        lambda history: history.add_entry(user("x", metadata={"a": float("nan")})),
        lambda history: history.restore("text"),
        lambda history: history.restore([user("x"), 5]),
        lambda history: history.restore(None),
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
        lambda history: History.from_json("[5]"),
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
    with pytest.raises((InvalidInputError, MessageConflictError)) as caught:
        call(history)
    assert len(str(caught.value)) > 10
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
    history.reduce(max_entries=5)
    assert second is history.get_snapshot()
    history.clear()
    assert history.get_snapshot() == ()
    assert len(second) == 1


@pytest.mark.proves("history-events")
def test_events_in_order() -> None:
    history = History().use(Dropping())
    told: list[Any] = []
    ends = [
        history.on("entry", lambda message: told.append(("entry", message.text))),
        history.on("clear", lambda: told.append("clear")),
        history.on("restore", lambda messages: told.append(("restore", len(messages)))),
        history.on("change", lambda: told.append("change")),
        history.subscribe(lambda snapshot: told.append(len(snapshot))),
    ]
    history.add_text("user", "a")
    history.restore([user("x"), user("y")])
    history.reduce(max_entries=1)
    history.clear()
    history.reset()
    wanted = [("entry", "a"), "change", 1, ("restore", 2), "change", 2, "change", 1]
    assert told == [*wanted, "clear", "change", 0, "clear", "change", 0]
    for end in ends:
        end()
        end()
    history.add_text("user", "b")
    assert len(told) == len(wanted) + 6


def test_a_handler_takes_what_it_wants() -> None:
    history = History()
    told: list[Any] = []
    history.on("entry", told.append)
    history.on("entry", lambda *every: told.append(every))
    history.on("entry", lambda message, more="none": told.append(more))
    history.on("entry", lambda: told.append("nothing"))
    message = history.add_text("user", "a")
    assert told == [message, (message,), "none", "nothing"]


def test_a_handler_that_fails_hurts_nobody(caplog: pytest.LogCaptureFixture) -> None:
    history = History()
    told: list[str] = []
    history.on("entry", lambda: 1 / 0)
    history.on("entry", lambda message: told.append(message.text))
    with caplog.at_level(logging.ERROR, "redis_history"):
        history.add_text("user", "a")
    assert told == ["a"]
    assert "ZeroDivisionError" in caplog.text


def test_a_handler_may_change_the_history() -> None:
    history = History()
    told: list[str] = []

    def answer(message: Message) -> None:
        told.append(message.text)
        if message.role == "user":
            history.add_text("assistant", f"re: {message.text}")

    history.on("entry", answer)
    history.on("entry", lambda message: told.append(message.text.upper()))
    history.add_text("user", "a")
    assert told == ["a", "A", "re: a", "RE: A"]


async def test_handlers_may_be_coroutines() -> None:
    history = History()
    told: asyncio.Queue[str] = asyncio.Queue()

    async def handler(message: Message) -> None:
        await told.put(message.text)

    history.on("entry", handler)
    history.add_text("user", "a")
    assert await asyncio.wait_for(told.get(), 10) == "a"


@pytest.mark.proves("history-events")
def test_many_threads() -> None:
    history = History()
    told: list[str] = []
    sizes: list[int] = []
    history.on("entry", lambda message: told.append(message.text))
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
    assert told == texts(history)
    assert sizes == sorted(sizes)
    for name in range(8):
        assert [one for one in told if one.startswith(f"{name} ")] == [f"{name} {number}" for number in range(200)]


# Bounds


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


@given(turns=TURNS, max_length=st.integers(1, 8), max_tokens=st.one_of(st.none(), st.integers(1, 12)))
def test_no_pair_is_ever_torn(turns: Any, max_length: int, max_tokens: int | None) -> None:
    history = History(max_length=max_length, max_tokens=max_tokens)
    everything: list[Message] = []
    for role, parts in turns:
        everything.append(history.add_message(role, parts))
        group = dict(zip([entry.id for entry in everything], groups(everything), strict=True))
        left = {entry.id for entry in history.entries}
        assert {entry.id for entry in everything if entry.role == "system"} <= left
        assert everything[-1].id in left
        assert [entry for entry in everything if entry.id in left] == history.entries
        open_now = {group[entry.id] for entry in history.entries if entry.role != "system"}
        for entry in everything:  # together since the last one of the group was added, and so together now
            if group[entry.id] in open_now and entry.role != "system" and entry.id not in left:
                members = [one for one in everything if group[one.id] == group[entry.id]]
                gone = [one for one in members if one.id not in left]
                assert members.index(gone[-1]) < len(members) - 1, "the whole group was there, and part of it left"
        everything = [entry for entry in everything if entry.id in left]
        kept = [entry for entry in history.entries if entry.role != "system"]
        same = groups(history.entries)
        if len(history) > max_length:
            newest = same[-1]
            assert all(entry.role == "system" or same[history.entries.index(entry)] == newest for entry in kept)


# Reducing


def test_reduce_without_a_plugin_that_reduces_does_nothing() -> None:
    entries = [system("s"), *(user(str(number), timestamp="2020-01-01") for number in range(6))]
    for history in (History(entries), History(entries).use(tool_result_masking())):
        before = history.get_snapshot()
        told: list[Any] = []
        history.subscribe(told.append)
        for bounds in ({"max_entries": 1}, {"max_tokens": 1}, {"older_than": timedelta(days=1)}, {}):
            outcome = history.reduce(**bounds)
            assert isinstance(outcome, Reduction)
            assert outcome.removed == 0
        assert history.get_snapshot() is before
        assert told == []


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


def test_json_carries_values_that_json_has_no_form_for() -> None:
    values = {"b": b"\x00\xff", "t": datetime(2026, 1, 1, tzinfo=UTC), "n": [{"&map": {}}]}
    values |= {"d": {"&bytes": "eA=="}, "k": {5: 1}}
    history = History([user("x", metadata=values, timestamp="2026-01-31T12:00:00Z")])
    found = History.from_json(history.to_json())
    assert found.entries[0].metadata == values
    assert json.loads(history.to_json())[0]["timestamp"] == "2026-01-31T12:00:00Z"


def test_json_of_a_newer_version_survives() -> None:
    [entry] = json.loads(History([user("x")]).to_json())
    entry["mood"] = "good"
    entry["parts"].append({"type": "hologram", "data": 1})
    again = json.loads(History.from_json(json.dumps([entry])).to_json())
    assert again == [entry]


def test_a_clone_is_independent() -> None:
    history = History([user("a")], max_length=2, transient=True)
    clone = history.clone()
    clone.add_text("user", "b")
    clone.add_text("user", "c")
    assert (texts(history), texts(clone), clone.transient) == (["a"], ["b", "c"], True)
    assert len(history.clone(max_length=None)._entries) == 1
