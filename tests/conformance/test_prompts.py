"""`assemble_prompt` on every backend, sync and async."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from redis_history import AsyncHistoryStore, Message, assemble_prompt, user
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
