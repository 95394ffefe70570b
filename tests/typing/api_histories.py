"""The same as `api.py` for prompts, capture, histories, formats and importers. Never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

import redis.asyncio

from redis_history import (
    Addressed,
    AddressedReason,
    AssembledPrompt,
    AsyncCapture,
    AsyncHistoryStore,
    AsyncRedisHistory,
    Capture,
    History,
    HistoryStore,
    LeftOut,
    LeftOutReason,
    Message,
    Participant,
    Plugin,
    PromptOptions,
    PromptReport,
    RedisHistory,
    ReduceOptions,
    Reduction,
    Summarizer,
    __version__,
    assemble_messages,
    assemble_prompt,
    capture,
    extractive_summarizer,
    tiktoken_counter,
    tool_result_masking,
    tool_use,
    user,
)
from redis_history.formats import (
    Loss,
    from_anthropic,
    to_anthropic,
    to_anthropic_system,
    to_gemini_system,
    to_mistral,
    to_openai_responses,
)
from redis_history.importers import (
    Exported,
    Imported,
    async_export_messages,
    async_import_messages,
    export_messages,
    import_messages,
    read_transcripts,
)

assert_type(__version__, str)

# Prompts and capture


def summarize(messages: Sequence[Message], previous_summary: str | None) -> str:
    return messages[0].text


async def summarize_later(messages: Sequence[Message], previous_summary: str | None) -> str | None:
    return None


def prompts(store: HistoryStore) -> None:
    prompt = assemble_prompt(store, "c", "bot", "Bot", PromptOptions(scope="dm", agent_aliases=("b",)), summarize)
    assert_type(prompt, AssembledPrompt)
    assert_type(prompt.messages, tuple[Message, ...])
    assert_type(prompt.to_dicts(), list[dict[str, str]])
    assert_type(prompt.report, PromptReport)
    assert_type(prompt.report.left_out, tuple[LeftOut, ...])
    assert_type(prompt.report.counts, dict[LeftOutReason, int])
    assert_type(prompt.report.ids("budget"), list[str])
    assemble_prompt(store, "c", agent_id="bot", options={"token_budget": 2000}, summarizer=None)
    every: list[Summarizer] = [summarize, summarize_later, extractive_summarizer()]
    assemble_prompt(store, "c", "bot", None, None, every[2])
    assemble_prompt(store, "c", "bot", None, None, lambda messages: "no summary")  # type: ignore[call-overload]
    assert_type(prompt.report.addressed, tuple[Addressed, ...])
    assert_type(prompt.report.addressed[0].reason, AddressedReason)
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
    assert_type(record.failed, int)
    assert_type(record.last_error, Exception | None)
    with record as same, same.turn("x", conversation_id="c") as turn:
        assert_type(same, Capture)
        turn.reply("y")
        assert_type(turn.inbound, list[Message])
    async with async_record as async_same, async_same.turn("x") as async_turn:
        await async_turn.reply("y")
        async_turn.add("z")
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
    assert_type(history.add_text("user", "x"), Message)
    assert_type(history.add_message("assistant", ["x", tool_use("c", "n")]), Message)
    assert_type(history.add_entry({"role": "user", "content": "x"}), Message)
    assert_type(history.entries, list[Message])
    assert_type(history.get_entries(), list[Message])
    assert_type(history.get_snapshot(), tuple[Message, ...])
    assert_type(history.last_user(), Message | None)
    assert_type(history.range(from_end=3, to_end=1), list[Message])
    assert_type(history.recent_text(3), str)
    assert_type(history.get_system_message(), str | None)
    assert_type(history.total_estimated_tokens, int)
    assert_type(history.use(Shorter()).use(tool_result_masking(exclude=["a"])), History)
    assert_type(history.reduce(max_tokens=5, older_than=timedelta(days=1)), Reduction)
    assert_type(history.on("entry", print), Callable[[], None])
    assert_type(history.subscribe(lambda snapshot: None), Callable[[], None])
    assert_type(history.clone(max_length=3), History)
    assert_type(History.from_json(history.to_json(), max_length=3), History)
    assert_type(tiktoken_counter("gpt-4o")("x"), int)
    with RedisHistory(HistoryStore("memory://"), max_length=5, max_unsaved=7) as shared:
        assert_type(shared, RedisHistory)
        assert_type(shared.save("c"), int)
        assert_type(shared.unsaved, list[Message])
        assert_type(shared.use(Shorter()), RedisHistory)
        shared.load("c")
        shared.autosave()
        shared.flush()


async def asynchronous_histories() -> None:
    async with AsyncRedisHistory(redis.asyncio.Redis(), namespace="n", token_counter=len) as history:
        assert_type(history, AsyncRedisHistory)
        await history.load("c")
        assert_type(history.add_text("user", "x"), Message)
        assert_type(await history.reduce(max_entries=5), int)
        assert_type(await history.save(), int)
        await history.autosave("c")
        await history.flush()


# Formats and importers

message = user("x")
assert_type(from_anthropic([{"role": "user", "content": "hi"}], system="Be brief."), list[Message])
assert_type(to_anthropic([message], shape="request"), list[dict[str, Any]])
assert_type(to_anthropic_system([message]), str | list[dict[str, Any]] | None)
assert_type(to_openai_responses([message], on_loss=lambda loss: None), list[dict[str, Any]])
assert_type(to_mistral([message], short_ids=True), list[dict[str, Any]])
assert_type(to_gemini_system([message]), dict[str, Any] | None)
assert_type(Loss("m", None, "why").part, int | None)


def transfers(sync: HistoryStore) -> None:
    assert_type(next(read_transcripts("a.jsonl")).messages, tuple[Message, ...])
    assert_type(import_messages("a.jsonl", sync, format="chatgpt", on_progress=lambda done: None), Imported)
    assert_type(export_messages(sync, "out.jsonl", conversation_ids=["c"]), Exported)


async def transfers_too(store: AsyncHistoryStore) -> None:
    assert_type(await async_import_messages("a.jsonl", store), Imported)
    assert_type(await async_export_messages(store, "out.jsonl"), Exported)
