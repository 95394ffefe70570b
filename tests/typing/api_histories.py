"""The same as `api.py` for prompts, capture, histories, formats and importers. Never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

import redis.asyncio

import redis_history as rh
from redis_history.formats import (
    from_anthropic,
    to_mistral,
    to_openai_responses,
)
from redis_history.importers import (
    export_messages,
    import_messages,
)

# Prompts and capture


def summarize(messages: Sequence[rh.Message], previous_summary: str | None) -> str:
    return messages[0].text


async def summarize_later(messages: Sequence[rh.Message], previous_summary: str | None) -> str | None:
    return None


def prompts(store: rh.HistoryStore) -> None:
    prompt = rh.assemble_prompt(store, "c", "bot", "Bot", rh.PromptOptions(scope="dm", agent_aliases=("b",)), summarize)
    assert_type(prompt, rh.AssembledPrompt)
    rh.assemble_prompt(store, "c", agent_id="bot", options={"token_budget": 2000}, summarizer=None)
    every: list[rh.Summarizer] = [summarize, summarize_later, rh.extractive_summarizer()]
    rh.assemble_prompt(store, "c", "bot", None, None, every[2])
    rh.assemble_prompt(store, "c", "bot", None, None, lambda messages: "no summary")  # type: ignore[call-overload]
    rh.PromptOptions(addressed_only_mode="strict")
    rh.PromptOptions(addressed_only_mode="loose")  # type: ignore[arg-type]
    assert_type(rh.assemble_messages(store.iter("c"), "bot", "Bot", summarizer=summarize), rh.AssembledPrompt)
    rh.PromptOptions(token_counter=len, also_addressed=lambda message: message.scope is None, now=datetime.now(UTC))
    rh.PromptOptions(scope="room")  # type: ignore[arg-type]


async def async_prompts(store: rh.AsyncHistoryStore) -> None:
    coroutine: Coroutine[Any, Any, rh.AssembledPrompt] = rh.assemble_prompt(store, "c", "bot")
    assert_type(await coroutine, rh.AssembledPrompt)
    assert_type(
        await rh.assemble_prompt(store, "c", "bot", "Bot", {"scope": "dm"}, summarize_later), rh.AssembledPrompt
    )
    assert_type(await rh.assemble_prompt(store, "c", "bot", summarizer=summarize), rh.AssembledPrompt)


async def captures(store: rh.HistoryStore, async_store: rh.AsyncHistoryStore) -> None:
    def on_error(error: Exception, conversation_id: str | None, messages: list[rh.Message]) -> None: ...

    record = rh.capture(store, "c", agent="bot", user=rh.Participant("user", "ann"), on_error=on_error)
    assert_type(record, rh.Capture)
    async_record = rh.capture(async_store, lambda request: str(request), inbound=str, outbound=str, background=True)
    assert_type(async_record, rh.AsyncCapture)

    @record
    def agent(question: str, *, loud: bool = False) -> int:
        return 1

    @async_record
    async def async_agent(question: str) -> AsyncIterator[str]:
        yield question

    assert_type(agent("x", loud=True), int)
    agent(7)  # type: ignore[arg-type]
    assert_type(async_agent("x"), AsyncIterator[str])
    with record as same, same.turn("x", conversation_id="c") as turn:
        assert_type(same, rh.Capture)
        turn.reply("y")
    async with async_record as async_same, async_same.turn("x") as async_turn:
        await async_turn.reply("y")
        await async_turn.add("z")
        await async_same.flush()


# Histories


class Shorter(rh.Plugin):
    def on_registered(self, history: rh.History) -> None: ...

    async def reduce(self, entries: Sequence[rh.Message], options: rh.ReduceOptions) -> Sequence[rh.Message]:
        assert_type(options.older_than, datetime | None)
        return entries[1:]

    def transform(self, entries: list[rh.Message]) -> list[rh.Message]:
        return entries


def histories() -> None:
    history = rh.History(
        max_length=5, max_tokens=100, token_counter=len, on_plugin_error=lambda error, plugin, hook: None
    )
    assert_type(history.use(Shorter()).use(rh.tool_result_masking(exclude=["a"])), rh.History)
    assert_type(history.reduce(max_tokens=5, older_than=timedelta(days=1)), rh.Reduction)
    assert_type(history.clone(max_length=3), rh.History)
    assert_type(rh.History.from_json(history.to_json(), max_length=3), rh.History)
    with rh.RedisHistory(rh.HistoryStore("memory://"), max_length=5, max_unsaved=7) as shared:
        assert_type(shared, rh.RedisHistory)
        assert_type(shared.use(Shorter()), rh.RedisHistory)
        shared.load("c")
        shared.autosave()
        shared.flush()


async def asynchronous_histories() -> None:
    async with rh.AsyncRedisHistory(redis.asyncio.Redis(), namespace="n", token_counter=len) as history:
        assert_type(history, rh.AsyncRedisHistory)
        await history.load("c")
        assert_type(await history.reduce(max_entries=5), int)
        assert_type(await history.save(), int)
        await history.autosave("c")
        await history.flush()


# Formats and importers

message = rh.user("x")
from_anthropic([{"role": "user", "content": "hi"}], system="Be brief.")
to_openai_responses([message], on_loss=lambda loss: None)
to_mistral([message], short_ids=True)


def transfers(store: rh.HistoryStore) -> None:
    import_messages("a.jsonl", store, format="chatgpt", on_progress=lambda done: None)
    export_messages(store, "out.jsonl", conversation_ids=["c"])
