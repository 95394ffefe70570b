"""`assemble_prompt` on every backend, sync and async."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from redis_history import (
    AsyncCompressor,
    AsyncHistoryStore,
    Compressor,
    Message,
    assemble_prompt,
    system,
    user,
)
from redis_history.errors import ConfigurationError, InvalidConversationIdError, InvalidInputError


@pytest.mark.smoke
async def test_the_newest_of_a_scope_are_loaded(store: Any) -> None:
    said = [user(str(n), id=str(n), scope="dm" if n % 2 else "channel") for n in range(20)]
    await store.append_many("c", said)
    prompt = await assemble_prompt(store, "c", "a", "A", {"scope": "dm", "max_turns_to_load": 3})
    assert [message.id for message in prompt.messages] == ["15", "17", "19"]
    assert prompt.report.loaded == 3


@pytest.mark.backends("memory")
async def test_bad_input_is_refused(store: Any) -> None:
    for error, arguments in (
        (InvalidConversationIdError, ("", "a", "A")),
        (InvalidInputError, ("c", "", "A")),
        (InvalidInputError, ("c", "a", " ")),
        (ConfigurationError, ("c", "a", "A", {"token_budge": 3})),
        (ConfigurationError, ("c", "a", "A", {"token_budget": 0})),
        (InvalidInputError, ("c", "a", "A", {}, "no function")),
    ):
        with pytest.raises(error):
            await assemble_prompt(store, *arguments)  # type: ignore[call-overload]


async def test_one_summarizer_serves_prompts_and_compressors(store: Any) -> None:
    """The same function, called alike: the messages, and the text of the earlier summary or None."""
    calls: list[tuple[list[str], str | None]] = []

    def summarize(messages: Sequence[Message], previous_summary: str | None) -> str:
        calls.append(([message.id for message in messages], previous_summary))
        return "They counted."

    await store.append_many("c", [system("Count.", id="s"), *(user(f"number {n}", id=str(n)) for n in range(30))])
    options = {"rolling_summary_threshold": 10, "addressed_only_mode": False}
    await assemble_prompt(store, "c", "a", None, options, summarize)
    assert calls == [([str(n) for n in range(20)], None)]
    target = getattr(store, "_target", store)
    kind: Any = AsyncCompressor if isinstance(target, AsyncHistoryStore) else Compressor
    compressor = kind(target, summarize, max_messages=20, keep_recent=5)
    stats = compressor.run_once() if kind is AsyncCompressor else asyncio.to_thread(compressor.run_once)
    assert (await stats).compressed == 1
    [summary] = [message for message in await store.get("c") if message.is_summary]
    assert summary.role == "user"
    assert calls[1][0][0] == "0"
    assert calls[1][1] is None
    await store.append_many("c", [user(f"number {n}", id=str(n)) for n in range(30, 60)])
    prompt = await assemble_prompt(store, "c", "a", None, options, summarize)
    assert calls[2][1] == "They counted."
    assert summary.id not in calls[2][0]
    assert [message.id for message in prompt.messages if message.is_summary] == ["summary"]


async def test_a_summarizer_that_blocks_does_not_block_the_event_loop(store: Any) -> None:
    await store.append_many("c", [user(str(n)) for n in range(50)])
    loop, went_on, where = asyncio.get_running_loop(), threading.Event(), []

    def summarize(messages: Sequence[Message], previous_summary: str | None) -> str:
        loop.call_soon_threadsafe(went_on.set)
        where.append(threading.current_thread())
        assert went_on.wait(10), "the event loop waits for the summarizer"
        return "They counted."

    target = getattr(store, "_target", store)
    if isinstance(target, AsyncHistoryStore):
        prompt = await assemble_prompt(target, "c", "a", None, None, summarize)
    else:
        prompt = await asyncio.to_thread(assemble_prompt, target, "c", "a", None, None, summarize)
    assert prompt.messages[0].is_summary
    assert where[0] is not threading.main_thread()
