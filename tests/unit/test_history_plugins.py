"""The hooks of plugins: when each is called, and where its errors go."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from redis_history import (
    History,
    Message,
    Plugin,
    ReduceOptions,
    ToolResultMasking,
    assistant,
    system,
    tool,
    tool_result,
    tool_result_masking,
    tool_use,
    user,
)
from redis_history.errors import ConfigurationError, InvalidInputError


class Recorder(Plugin):
    def __init__(self, name: str, told: list[Any]) -> None:
        self.name = name
        self.told = told

    def on_registered(self, history: History) -> None:
        self.told.append((self.name, "registered", len(history)))

    def after_add(self, history: History) -> None:
        self.told.append((self.name, "added", len(history)))

    async def reduce(self, entries: Any, options: ReduceOptions) -> Any:
        self.told.append((self.name, "reduce", len(entries), options.max_entries))
        return entries[1:]

    def transform(self, entries: list[Message]) -> list[Message]:
        self.told.append((self.name, "transform", len(entries)))
        return entries[1:]


def test_hooks_in_the_order_of_registration() -> None:
    told: list[Any] = []
    history = History([user("0"), user("1"), user("2")])
    assert history.use(Recorder("a", told)).use(Recorder("b", told)) is history
    assert told == [("a", "registered", 3), ("b", "registered", 3)]
    told.clear()
    history.on("entry", lambda message: told.append(message.text))
    history.add_text("user", "3")
    assert told == ["3", ("a", "added", 4), ("b", "added", 4)]
    told.clear()
    assert [entry.text for entry in history.get_entries()] == ["2", "3"]
    assert len(history.entries) == 4
    assert told == [("a", "transform", 4), ("b", "transform", 3)]
    told.clear()
    assert history.reduce(max_entries=2).removed == 2
    assert told == [("a", "reduce", 4, 2), ("b", "reduce", 3, 2)]
    assert [entry.text for entry in history.entries] == ["2", "3"]
    told.clear()
    history.restore([user("x")])
    history.clear()
    assert told == [], "what is restored was not added"


def test_any_object_with_a_hook_will_do() -> None:
    history = History([user("a")]).use(SimpleNamespace(transform=lambda entries: entries[:0]))  # type: ignore[arg-type]
    assert (history.get_entries(), len(history)) == ([], 1)
    assert history.reduce(max_entries=0).removed == 0, "no reducer: the newest stays"
    for wrong in (object(), Recorder, None, "plugin"):
        with pytest.raises(InvalidInputError):
            history.use(wrong)  # type: ignore[arg-type]


class Failing(Plugin):
    def after_add(self, history: History) -> None:
        raise ValueError("of the plugin")


class FailingLater(Plugin):
    async def after_add(self, history: History) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        raise ValueError("of the plugin")


@pytest.mark.proves("plugins")
@pytest.mark.parametrize("plugin", [Failing(), FailingLater()])
def test_after_add_errors_go_to_plugin_error(plugin: Plugin, caplog: pytest.LogCaptureFixture) -> None:
    told: list[Any] = []
    history = History(on_plugin_error=lambda error, which, hook: told.append((str(error), which, hook))).use(plugin)
    history.on("plugin_error", lambda error, which, hook: told.append((type(error), which, hook)))
    history.add_text("user", "a")
    assert told == [("of the plugin", plugin, "after_add"), (ValueError, plugin, "after_add")]
    assert caplog.text == ""
    silent = History().use(plugin)
    with caplog.at_level(logging.ERROR, "redis_history"):
        silent.add_text("user", "a")
    assert "of the plugin" in caplog.text
    assert len(silent) == 1


@pytest.mark.parametrize("hook", ["reduce", "transform"])
def test_errors_of_reading_and_reducing_reach_the_caller(hook: str) -> None:
    def wrong(*_: Any) -> Any:
        raise ValueError("of the plugin")

    history = History([user("a"), user("b")]).use(SimpleNamespace(**{hook: wrong}))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="of the plugin"):
        _ = history.reduce(max_entries=1) if hook == "reduce" else history.get_entries()
    assert len(history) == 2
    history.add_text("user", "c")


class Slow(Plugin):
    """A reducer that waits for a word; it leaves a summary of all but the last entry."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go = asyncio.Event()
        self.calls = 0

    async def reduce(self, entries: Any, options: ReduceOptions) -> Any:
        self.calls += 1
        self.begun.set()
        await self.go.wait()
        return [user("summary"), *entries[-1:]]


@pytest.mark.proves("plugins")
async def test_entries_added_during_a_reduction_stay() -> None:
    slow = Slow()
    history = History([user("1"), user("2"), user("3")]).use(slow)
    reducing = asyncio.ensure_future(_awaited(history.reduce(max_tokens=1)))
    await slow.begun.wait()
    history.add_text("user", "meanwhile")
    assert await history.reduce(max_tokens=1) == 0, "one at a time"
    slow.go.set()
    assert await reducing == 2
    assert [entry.text for entry in history.entries] == ["summary", "3", "meanwhile"]
    assert slow.calls == 1


@pytest.mark.parametrize("what", ["clear", "restore"])
async def test_a_rewrite_makes_a_reduction_void(what: str) -> None:
    slow = Slow()
    history = History([user("1"), user("2"), user("3")]).use(slow)
    reducing = asyncio.ensure_future(_awaited(history.reduce(max_tokens=1)))
    await slow.begun.wait()
    _ = history.clear() if what == "clear" else history.restore([user("x")])
    slow.go.set()
    assert await reducing == 0
    assert [entry.text for entry in history.entries] == ([] if what == "clear" else ["x"])


async def _awaited(reduction: Any) -> int:
    return int(await reduction)


async def test_additions_of_a_reducer_call_no_hooks() -> None:
    class Adding(Plugin):
        added = 0

        def after_add(self, history: History) -> Any:
            self.added += 1
            self.history = history
            return history.reduce()

        async def reduce(self, entries: Any, options: ReduceOptions) -> Any:
            self.history.add_text("user", "from the plugin")
            return entries

    plugin = Adding()
    history = History().use(plugin)
    history.add_text("user", "a")
    async with asyncio.timeout(10):
        while len(history) < 2:
            await asyncio.sleep(0)
    assert plugin.added == 1


# Masking


def _calls(*names: str, **options: Any) -> History:
    history = History([system("s")])
    for number, name in enumerate(names):
        history.add_message("assistant", [tool_use(f"call-{number}", name)])
        history.add_message("tool", [tool_result(f"call-{number}", f"{name} {number} " + "x" * 40)])
    return history.use(tool_result_masking(**options))


def _masked(history: History) -> list[int]:
    shown = [entry for entry in history.get_entries() if entry.role == "tool"]
    return [index for index, entry in enumerate(shown) if entry.text == f"[MASKED - ref: call-{index}]"]


def test_old_results_are_masked() -> None:
    history = _calls("f", "f", "f", "f")
    assert _masked(history) == [0, 1]
    assert all("MASKED" not in entry.text for entry in history.entries)
    assert history.get_tool_result("call-0") == "f 0 " + "x" * 40
    assert history.by_tokens(10**6) == history.get_entries()
    assert [entry.id for entry in history.get_entries()] == [entry.id for entry in history.entries]


def test_options_choose_the_masked_results() -> None:
    assert _masked(_calls("f", "g", "f", "g", keep_recent_results=0)) == [0, 1, 2, 3]
    assert _masked(_calls("f", "g", "f", "g", keep_recent_results=9)) == []
    assert _masked(_calls("f", "g", "f", "g", keep_recent_results=1, exclude=["g"])) == [0]
    assert _masked(_calls("f", "g", "f", "g", keep_recent_results=1, include=["g"])) == [1]
    assert _masked(_calls("f", "g", "f", keep_recent_results=0, min_tokens_to_mask=11)) == [0, 1, 2]
    assert _masked(_calls("f", "g", "f", keep_recent_results=0, min_tokens_to_mask=12)) == []


@pytest.mark.proves("plugins")
def test_a_repeated_id_belongs_to_the_nearest_earlier_call() -> None:
    history = History()
    for name in ("search", "book", "search"):
        history.add_message("assistant", [tool_use("same", name)])
        history.add_message("tool", [tool_result("same", f"of {name} {len(history)}")])
    masking = tool_result_masking(keep_recent_results=0, include=["search"])
    history.use(masking)
    shown = [entry.text for entry in history.get_entries() if entry.role == "tool"]
    assert shown == ["[MASKED - ref: same, occurrence: 1]", "of book 3", "[MASKED - ref: same, occurrence: 3]"]
    assert history.get_tool_result("same") == "of search 5"
    assert masking.retrieve_tool("same", 1) == "of search 1"
    assert masking.retrieve_tool("same", occurrence=3) == "of search 5"
    assert masking.retrieve_tool("same", 4).startswith("No tool result")


@pytest.mark.proves("plugins")
def test_the_retrieve_tool() -> None:
    masking = tool_result_masking(keep_recent_results=0)
    assert isinstance(masking, ToolResultMasking)
    tool_ = masking.retrieve_tool
    with pytest.raises(InvalidInputError):
        tool_("call-1")
    history = History().use(masking)
    history.add_entry(assistant(tool_use("call-1", "f"), tool_use("call-2", "f")))
    history.add_entry(tool(tool_result("call-1", "text"), tool_result("call-2", [{"n": 1}])))
    assert tool_.name == "retrieve_tool_result"
    assert tool_.parameters["required"] == ["tool_call_id"]
    assert "MASKED" in tool_.description
    assert (tool_("call-1"), tool_("call-2")) == ("text", '[{"n":1}]')
    assert tool_("call-3") == "No tool result found for id: call-3"
    history.add_entry(assistant(tool_use("r", tool_.name, {"tool_call_id": "call-1"})))
    history.add_entry(tool(tool_result("r", tool_(tool_call_id="call-1"))))
    assert history.get_entries()[-1].text == "text", "what was fetched can be read"


@pytest.mark.parametrize(
    "options",
    [
        {"exclude": ["a"], "include": ["b"]},
        {"exclude": [], "include": []},
        {"keep_recent_results": -1},
        {"keep_recent_results": None},
        {"min_tokens_to_mask": 1.5},
        {"include": "name"},
        {"exclude": [5]},
    ],
)
def test_options_that_make_no_sense(options: Any) -> None:
    with pytest.raises(ConfigurationError):
        tool_result_masking(**options)


def test_a_masking_plugin_has_one_history() -> None:
    masking = tool_result_masking()
    History().use(masking)
    with pytest.raises(InvalidInputError):
        History().use(masking)
