"""Compression of histories with a store: it is a compaction there, and others see it."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from redis_history import (
    HistoryCompacted,
    Message,
    assistant,
    compression,
    system,
    tool,
    tool_result,
    tool_result_masking,
    tool_use,
    user,
)
from redis_history.errors import CompactionConflictError
from tests.support.histories import Dropping, history_over, texts
from tests.support.servers import until

LOTS = [user(f"Message {number}, which is long enough.", id=f"m{number}") for number in range(12)]


def counting(messages: Sequence[Message], previous: str | None) -> str:
    return f"{previous or 'nothing'} + {len(messages)}"


def compressing(store: Any, summarizer: Any = counting, **options: Any) -> Any:
    history = history_over(store)
    history.use(compression(summarizer, keep_recent=4, **options))
    return history


@pytest.mark.proves("no-overwrite")
async def test_a_reduction_is_saved_as_a_compaction(stores: Any) -> None:
    store, history = stores(), compressing(stores())
    await store.append_many("c", LOTS)
    await history.load("c")
    before = history.entries
    async with store.subscribe("c") as subscription:
        await history.reduce(max_entries=6)
        assert len(history) == 6
        assert len(await store.get("c")) == 12  # it is done by the next save
        await history.save()
        event = await subscription.get(timeout=20)
    assert isinstance(event, HistoryCompacted)
    assert event.count == 7
    live = await store.get("c")
    assert history.entries == live
    assert texts(history)[0] == "[Earlier conversation summary: nothing + 7]"
    every = await store.get("c", include_archived=True)
    assert [message for message in every if not message.is_summary] == before
    await store.expand("c", live[0].id)
    assert await store.get("c") == before


@pytest.mark.parametrize("what", ["the last message", "an earlier message", "the conversation", "an edit"])
async def test_a_change_of_summarized_messages_is_a_conflict_and_loses_nothing(stores: Any, what: str) -> None:
    store, history = stores(), compressing(stores())
    await store.append_many("c", LOTS)
    await history.load("c")
    removed = await history.reduce(max_entries=6)
    if what == "the conversation":
        await store.delete_conversation("c")
    elif what == "an edit":
        await store.update_message("c", user("Something else.", id="m2"))
    else:
        await store.delete_messages("c", [LOTS[0 if what == "an earlier message" else removed - 1].id])
    history.add_text("user", "mine")
    with pytest.raises(CompactionConflictError):
        await history.save()
    await history.save()  # goes on without the reduction
    assert history.entries == await store.get("c")
    assert texts(history)[-1] == "mine"
    assert len(history) == {"the conversation": 1, "an edit": 13}.get(what, 12)


@pytest.mark.proves("pins")
@pytest.mark.parametrize("pinned", ["call", "result"])
async def test_a_reduction_around_a_pinned_call_is_saved(stores: Any, pinned: str) -> None:
    store, history = stores(), compressing(stores())
    call, result = assistant(tool_use("1", "f"), id="call"), tool(tool_result("1", "found"), id="result")
    await store.append_many("c", [*LOTS[:3], call, LOTS[3], result, *LOTS[4:]])
    await store.pin("c", pinned)
    await history.load("c")
    await history.reduce(max_entries=8)
    shown = [entry.id for entry in history.entries]
    await history.save()
    assert [entry.id for entry in history.entries] == shown
    assert history.entries == await store.get("c")
    assert shown[:2] == ["call", "result"]
    assert history.entries[2].is_summary


@pytest.mark.proves("summarizers")
@pytest.mark.parametrize("change", ["edit", "erase", "pin", "insert"])
async def test_a_change_of_messages_during_their_summary_makes_it_void(stores: Any, change: str) -> None:
    """The history has read the change before the summarizer returns."""
    store, reached, go = stores(), asyncio.Event(), asyncio.Event()

    async def held(messages: Sequence[Message], previous: str | None) -> str:
        reached.set()
        await go.wait()
        return "|".join(message.text for message in messages)

    history = compressing(stores(), held)
    await store.append_many("c", LOTS)
    await history.load("c")
    before = await store.get("c")
    work = asyncio.create_task(_await(history.reduce(max_entries=6)))
    await reached.wait()
    if change == "edit":
        await store.update_message("c", user("Something else.", id="m1"))
    elif change == "erase":
        await store.erase("c", ["m1"])
    elif change == "pin":
        await store.pin("c", "m1")
    else:
        await store.append("c", user("From an old device.", timestamp="1999-01-01"))
    await history.save()
    go.set()
    assert await work == 0
    await history.save()
    live = await store.get("c")
    assert history.entries == live != before
    assert not any(message.is_summary for message in live)
    await history.reduce(max_entries=6)
    await history.save()
    assert history.entries == await store.get("c")
    assert len(history) == 6


async def test_a_reduced_history_is_saved_to_another_conversation_in_its_order(stores: Any) -> None:
    store, history = stores(), compressing(stores())
    await store.append_many("c", LOTS)
    await history.load("c")
    await history.reduce(max_entries=6)
    history.add_text("user", "mine")
    shown = texts(history)
    assert await history.save("other") == len(shown)
    assert texts(history) == shown
    assert history.entries == await store.get("other")
    assert [message.id for message in await store.get("c")] == [message.id for message in LOTS]


async def test_a_result_that_comes_before_it_is_saved_is_a_conflict(stores: Any) -> None:
    """The call that it answers had been given up."""
    store, history = stores(), compressing(stores())
    calls = [assistant(tool_use("1", "f")), user("Are you there?"), assistant("I go on.")]
    await store.append_many("c", [*calls, *LOTS])
    await history.load("c")
    await history.reduce(max_entries=6)
    await store.append("c", tool(tool_result("1", "after all")))
    with pytest.raises(CompactionConflictError):
        await history.save()
    assert await history.save() == 0
    assert history.entries == await store.get("c")
    assert len(history) == 16


async def test_automatic_reduction_during_autosave(stores: Any) -> None:
    store, history = stores(), compressing(stores(), auto_reduce_when={"max_entries": 10})
    await history.autosave("c")
    for number in range(40):
        history.add_text("user", f"Message {number}, which is long enough.")
        await until(lambda: len(history) <= 10, "a reduction")
    await history.flush()
    await until(lambda: len(history.entries) <= 10, "the rest")
    await history.flush()
    live = await store.get("c")
    assert [message.is_summary for message in live].count(True) == 1
    every = [message.text for message in await store.get("c", include_archived=True) if not message.is_summary]
    assert every == [f"Message {number}, which is long enough." for number in range(40)]
    await until(lambda: history.entries == live, "what is stored")
    await history.aclose()


async def test_autosave_gives_up_a_reduction_that_came_too_late(stores: Any) -> None:
    go = asyncio.Event()

    async def held(messages: Sequence[Message], previous: str | None) -> str:
        await go.wait()
        return "x"

    store, history = stores(), compressing(stores(), held)
    await store.append_many("c", LOTS)
    await history.load("c")
    work = asyncio.create_task(_await(history.reduce(max_entries=6)))
    await asyncio.sleep(0)
    await store.delete_messages("c", ["m1"])
    go.set()
    await work
    errors: list[Exception] = []
    history.on("error", errors.append)
    await history.autosave()
    await until(lambda: errors or len(history) == 11, "the refusal")
    with pytest.raises(CompactionConflictError):
        await history.flush()
    assert history.entries == await store.get("c")
    assert len(history) == 11
    await history.aclose()


# Guarantees of a reduction


TURNS = [
    system("Be kind.", id="s"),
    *(
        message
        for number in range(6)
        for message in (
            user(f"Question {number}, which is long enough.", id=f"q{number}"),
            assistant(tool_use("same", "look", {"n": number}), id=f"c{number}"),
            tool(tool_result("same", f"Result {number}, which is long enough, too."), id=f"r{number}"),
            assistant(f"Answer {number}, which is long enough.", id=f"a{number}"),
        )
    ),
]


async def ids_of(store: Any) -> list[str]:
    every = await store.get("c", include_archived=True)
    return sorted(message.id for message in every if not message.is_summary)


@pytest.mark.proves("no-overwrite")
@pytest.mark.backends("memory", "redis")
@pytest.mark.parametrize("by_itself", [False, True])
@pytest.mark.parametrize("kind", ["nothing", "masking", "compression", "both", "dropping", "max_length", "max_tokens"])
@pytest.mark.full
async def test_no_reduction_takes_an_acknowledged_message(stores: Any, kind: str, by_itself: bool) -> None:
    options = {"max_length": {"max_length": 5}, "max_tokens": {"max_tokens": 40}}.get(kind, {})
    store, history = stores(), history_over(stores(), **options)
    await store.append_many("c", TURNS)
    await (history.autosave("c") if by_itself else history.load("c"))
    if kind in ("masking", "both"):
        history.use(tool_result_masking(keep_recent_results=1))
    if kind in ("compression", "both"):
        history.use(compression(counting))
    if kind == "dropping":
        history.use(Dropping())
    wanted = [message.id for message in TURNS]
    for bounds in ({"max_entries": 9}, {"max_entries": 4, "max_tokens": 90}, {"max_entries": 2}):
        added = history.add_text("user", "One more, which is long enough.")
        wanted.append(added.id)
        await history.reduce(**bounds)
        await (history.flush() if by_itself else history.save())
        assert await ids_of(store) == sorted(wanted)
    live = await store.get("c")
    if kind in ("compression", "both"):
        assert len(live) < len(wanted)
        await store.expand("c", next(message.id for message in live if message.is_summary))
    else:
        assert [message.id for message in live] == wanted
    assert await ids_of(store) == sorted(wanted)
    await history.aclose()


async def _await(reduction: Any) -> int:
    removed: int = await reduction
    return removed
