"""The hooks of plugins, and masking."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from redis_history import (
    History,
    Message,
    Plugin,
    assistant,
    system,
    tool,
    tool_result,
    tool_result_masking,
    tool_use,
    user,
)
from redis_history.errors import ConfigurationError, InvalidInputError, InvalidMessageError
from redis_history.types import ReduceOptions
from tests.support.histories import texts


class Recorder(Plugin):
    def __init__(self, name: str, calls: list[Any]) -> None:
        self.name = name
        self.calls = calls

    def on_registered(self, history: History) -> None:
        self.calls.append((self.name, "registered", len(history)))

    def after_add(self, history: History) -> None:
        self.calls.append((self.name, "added", len(history)))

    async def reduce(self, entries: Any, options: ReduceOptions) -> Any:
        self.calls.append((self.name, "reduce", len(entries), options.max_entries))
        return entries[1:]

    def transform(self, entries: list[Message]) -> list[Message]:
        self.calls.append((self.name, "transform", len(entries)))
        return entries[1:]


def test_hooks_in_the_order_of_registration() -> None:
    calls: list[Any] = []
    history = History([user("0"), user("1"), user("2")])
    assert history.use(Recorder("a", calls)).use(Recorder("b", calls)) is history
    assert calls == [("a", "registered", 3), ("b", "registered", 3)]
    calls.clear()
    history.on("entry", lambda message: calls.append(message.text))
    history.add_text("user", "3")
    assert calls == ["3", ("a", "added", 4), ("b", "added", 4)]
    calls.clear()
    assert [entry.text for entry in history.get_entries()] == ["2", "3"]
    assert len(history.entries) == 4
    assert calls == [("a", "transform", 4), ("b", "transform", 3)]
    calls.clear()
    assert history.reduce(max_entries=2).removed == 2
    assert calls == [("a", "reduce", 4, 2), ("b", "reduce", 3, 2)]
    assert texts(history) == ["2", "3"]
    calls.clear()
    history.restore([user("x")])
    history.clear()
    assert calls == [], "what is restored was not added"


def test_any_object_with_a_hook_is_a_plugin() -> None:
    history = History([user("a")]).use(SimpleNamespace(transform=lambda entries: entries[:0]))  # type: ignore[arg-type]
    assert (history.get_entries(), len(history)) == ([], 1)

    class Wrong(Recorder):
        def on_registered(self, history: History) -> None:
            raise ValueError("not here")

    for wrong in (object(), Recorder, None, "plugin"):
        with pytest.raises(InvalidInputError):
            history.use(wrong)  # type: ignore[arg-type]
    calls: list[Any] = []
    with pytest.raises(ValueError):
        history.use(Wrong("w", calls))
    history.add_text("user", "b")
    assert calls == []


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
    errors: list[Any] = []

    def on_plugin_error(error: Exception, failed: Plugin, hook: str) -> None:
        errors.append((str(error), failed, hook))
        raise KeyError("an error of the handler itself is logged")

    history = History(on_plugin_error=on_plugin_error).use(plugin)
    history.on("plugin_error", lambda error, failed, hook: errors.append((type(error), failed, hook)))
    history.add_text("user", "a")
    assert errors == [("of the plugin", plugin, "after_add"), (ValueError, plugin, "after_add")]
    assert "KeyError" in caplog.text
    silent = History().use(plugin)
    with caplog.at_level(logging.ERROR, "redis_history"):
        silent.add_text("user", "a")
    assert "of the plugin" in caplog.text
    assert len(silent) == 1


async def test_an_error_in_the_background_of_a_loop() -> None:
    errors: asyncio.Queue[str] = asyncio.Queue()
    history = History().use(FailingLater())
    history.on("plugin_error", lambda error: errors.put_nowait(str(error)))
    history.add_text("user", "a")
    assert errors.empty(), "the addition does not wait"
    assert await asyncio.wait_for(errors.get(), 10) == "of the plugin"


@pytest.mark.parametrize("hook", ["reduce", "transform"])
def test_errors_of_reading_and_reducing_reach_the_caller(hook: str) -> None:
    history = History([user("a"), user("b")]).use(SimpleNamespace(**{hook: lambda *_: 1 / 0}))  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError):
        _ = history.reduce(max_entries=1) if hook == "reduce" else history.get_entries()
    nonsense = History([user("a")]).use(SimpleNamespace(reduce=lambda entries, options: [5]))  # type: ignore[arg-type]
    with pytest.raises(InvalidMessageError):
        nonsense.reduce()
    assert (len(history), len(nonsense)) == (2, 1)


class Slow(Plugin):
    """A reducer that waits; it leaves a summary of all but the last entry."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go = asyncio.Event()

    async def reduce(self, entries: Any, options: ReduceOptions) -> Any:
        assert not self.begun.is_set(), "one reduction at a time"
        self.begun.set()
        await self.go.wait()
        return [user("summary"), *entries[-1:]]


@pytest.mark.proves("plugins")
@pytest.mark.parametrize(
    ("meanwhile", "removed", "left"),
    [
        (lambda history: history.add_text("user", "meanwhile"), 2, ["summary", "3", "meanwhile"]),
        (lambda history: history.clear(), 0, []),
        (lambda history: history.restore([user("x")]), 0, ["x"]),
    ],
    ids=["add", "clear", "restore"],
)
async def test_changes_during_a_reduction_stay(meanwhile: Any, removed: int, left: list[str]) -> None:
    slow = Slow()
    history = History([user("1"), user("2"), user("3")]).use(slow)

    async def reduce() -> int:
        return await history.reduce(max_tokens=1)

    reducing = asyncio.create_task(reduce())
    await slow.begun.wait()
    meanwhile(history)
    assert await history.reduce(max_tokens=1) == 0
    slow.go.set()
    assert await reducing == removed
    assert texts(history) == left


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


def _masked(*names: str, **options: Any) -> list[int]:
    """Which results of calls of these tools are masked."""
    history = History([system("s")]).use(tool_result_masking(**options))
    for number, name in enumerate(names):
        history.add_message("assistant", [tool_use(f"call-{number}", name)])
        history.add_message("tool", [tool_result(f"call-{number}", f"{name} {number} " + "x" * 40)])
    assert "MASKED" not in "".join(texts(history))
    assert [entry.id for entry in history.get_entries()] == [entry.id for entry in history.entries]
    shown = [entry for entry in history.get_entries() if entry.role == "tool"]
    return [index for index, entry in enumerate(shown) if entry.text == f"[MASKED - ref: call-{index}]"]


def test_options_choose_the_masked_results() -> None:
    assert _masked("f", "f", "f", "f") == [0, 1]
    assert _masked("f", "g", "f", "g", keep_recent_results=0) == [0, 1, 2, 3]
    assert _masked("f", "g", "f", "g", keep_recent_results=9) == []
    assert _masked("f", "g", "f", "g", keep_recent_results=1, exclude=["g"]) == [0]
    assert _masked("f", "g", "f", "g", keep_recent_results=1, include=["g"]) == [1]
    assert _masked("f", "g", "f", keep_recent_results=0, min_tokens_to_mask=11) == [0, 1, 2]
    assert _masked("f", "g", "f", keep_recent_results=0, min_tokens_to_mask=12) == []


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


def test_an_occurrence_is_that_of_the_history_also_if_a_plugin_hides_others() -> None:
    class Newest(Plugin):
        hides_old = False

        def transform(self, entries: list[Message]) -> list[Message]:
            return entries[-2:] if self.hides_old else entries[:2]

    history, newest, masking = History(), Newest(), tool_result_masking(keep_recent_results=0)
    for number in (1, 2):
        history.add_message("assistant", [tool_use("same", "f")])
        history.add_message("tool", [tool_result("same", {number: "result"})])
    history.use(newest).use(masking)
    for number in (1, 2):
        newest.hides_old = number == 2
        assert history.get_entries()[-1].text == f"[MASKED - ref: same, occurrence: {number}]"
        assert masking.retrieve_tool("same", number) == f'{{"{number}":"result"}}'


def test_the_result_of_a_pinned_call_is_not_masked() -> None:
    history = History().use(tool_result_masking(keep_recent_results=0))
    history.add_entry(assistant(tool_use("c", "f"), metadata={"pinned": True}))
    history.add_entry(tool(tool_result("c", "the rules")))
    assert history.get_entries() == history.entries


@pytest.mark.proves("plugins")
def test_the_retrieve_tool() -> None:
    masking = tool_result_masking(keep_recent_results=0)
    tool_ = masking.retrieve_tool
    with pytest.raises(InvalidInputError):
        tool_("call-1")
    history = History().use(masking)
    with pytest.raises(InvalidInputError):
        History().use(masking)
    history.add_entry(assistant(tool_use("call-1", "f"), tool_use("call-2", "f"), tool_use("no", "f")))
    results = tool_result("call-1", "text"), tool_result("call-2", [{"n": 1}]), tool_result("no", False)
    history.add_entry(tool(*results))
    assert (tool_.name, tool_.parameters["required"]) == ("retrieve_tool_result", ["tool_call_id"])
    assert (tool_("call-1"), tool_("call-2"), tool_("no")) == ("text", '[{"n":1}]', "false")
    assert tool_("call-3") == "No tool result found for id: call-3"
    history.add_entry(assistant(tool_use("r", tool_.name, {"tool_call_id": "call-1"})))
    history.add_entry(tool(tool_result("r", tool_(tool_call_id="call-1"))))
    assert history.get_entries()[-1].text == "text", "what was fetched can be read"


@pytest.mark.parametrize(
    "options",
    [
        *({"exclude": ["a"], "include": ["b"]}, {"exclude": [], "include": []}, {"keep_recent_results": -1}),
        *({"keep_recent_results": None}, {"min_tokens_to_mask": 1.5}, {"include": "name"}, {"exclude": [5]}),
    ],
)
def test_options_that_make_no_sense(options: Any) -> None:
    with pytest.raises(ConfigurationError):
        tool_result_masking(**options)
