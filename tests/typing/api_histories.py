"""The same as `api.py` for prompts, capture, histories, formats and importers. Never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

import redis.asyncio

from redis_history import (
    AssembledPrompt,
    AsyncCapture,
    AsyncHistoryStore,
    AsyncRedisHistory,
    Capture,
    History,
    HistoryStore,
    Message,
    Participant,
    Plugin,
    PromptOptions,
    RedisHistory,
    ReduceOptions,
    Reduction,
    Summarizer,
    assemble_messages,
    assemble_prompt,
    capture,
    extractive_summarizer,
    tool_result_masking,
    user,
)
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


def summarize(messages: Sequence[Message], previous_summary: str | None) -> str:
    return messages[0].text


async def summarize_later(messages: Sequence[Message], previous_summary: str | None) -> str | None:
    return None


def prompts(store: HistoryStore) -> None:
    prompt = assemble_prompt(store, "c", "bot", "Bot", PromptOptions(scope="dm", agent_aliases=("b",)), summarize)
    assert_type(prompt, AssembledPrompt)
    assemble_prompt(store, "c", agent_id="bot", options={"token_budget": 2000}, summarizer=None)
    every: list[Summarizer] = [summarize, summarize_later, extractive_summarizer()]
    assemble_prompt(store, "c", "bot", None, None, every[2])
    assemble_prompt(store, "c", "bot", None, None, lambda messages: "no summary")  # type: ignore[call-overload]
    PromptOptions(addressed_only_mode="strict")
    PromptOptions(addressed_only_mode="loose")  # type: ignore[arg-type]
    assert_type(assemble_messages(store.iter("c"), "bot", "Bot", summarizer=summarize), AssembledPrompt)
    PromptOptions(token_counter=len, also_addressed=lambda message: message.scope is None, now=datetime.now(UTC))
    PromptOptions(scope="room")  # type: ignore[arg-type]


async def async_prompts(store: AsyncHistoryStore) -> None:
    coroutine: Coroutine[Any, Any, AssembledPrompt] = assemble_prompt(store, "c", "bot")
    assert_type(await coroutine, AssembledPrompt)
    assert_type(await assemble_prompt(store, "c", "bot", "Bot", {"scope": "dm"}, summarize_later), AssembledPrompt)
    assert_type(await assemble_prompt(store, "c", "bot", summarizer=summarize), AssembledPrompt)


async def captures(store: HistoryStore, async_store: AsyncHistoryStore) -> None:
    def on_error(error: Exception, conversation_id: str | None, messages: list[Message]) -> None: ...

    record = capture(store, "c", agent="bot", user=Participant("user", "ann"), on_error=on_error)
    assert_type(record, Capture)
    async_record = capture(async_store, lambda request: str(request), inbound=str, outbound=str, background=True)
    assert_type(async_record, AsyncCapture)

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
        assert_type(same, Capture)
        turn.reply("y")
    async with async_record as async_same, async_same.turn("x") as async_turn:
        await async_turn.reply("y")
        await async_turn.add("z")
        await async_same.flush()


# Histories


class Shorter(Plugin):
    def on_registered(self, history: History) -> None: ...

    async def reduce(self, entries: Sequence[Message], options: ReduceOptions) -> Sequence[Message]:
        assert_type(options.older_than, datetime | None)
        return entries[1:]

    def transform(self, entries: list[Message]) -> list[Message]:
        return entries


def histories() -> None:
    history = History(max_length=5, max_tokens=100, token_counter=len, on_plugin_error=lambda error, plugin, hook: None)
    assert_type(history.use(Shorter()).use(tool_result_masking(exclude=["a"])), History)
    assert_type(history.reduce(max_tokens=5, older_than=timedelta(days=1)), Reduction)
    assert_type(history.clone(max_length=3), History)
    assert_type(History.from_json(history.to_json(), max_length=3), History)
    with RedisHistory(HistoryStore("memory://"), max_length=5, max_unsaved=7) as shared:
        assert_type(shared, RedisHistory)
        assert_type(shared.use(Shorter()), RedisHistory)
        shared.load("c")
        shared.autosave()
        shared.flush()


async def asynchronous_histories() -> None:
    async with AsyncRedisHistory(redis.asyncio.Redis(), namespace="n", token_counter=len) as history:
        assert_type(history, AsyncRedisHistory)
        await history.load("c")
        assert_type(await history.reduce(max_entries=5), int)
        assert_type(await history.save(), int)
        await history.autosave("c")
        await history.flush()


# Formats and importers

message = user("x")
from_anthropic([{"role": "user", "content": "hi"}], system="Be brief.")
to_openai_responses([message], on_loss=lambda loss: None)
to_mistral([message], short_ids=True)


def transfers(store: HistoryStore) -> None:
    import_messages("a.jsonl", store, format="chatgpt", on_progress=lambda done: None)
    export_messages(store, "out.jsonl", conversation_ids=["c"])
