"""Uses of the public API that `mypy --strict` must accept, with the types it must find. Never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, assert_never, assert_type

import redis.asyncio

import redis_history as rh
from redis_history import types
from redis_history.formats import to_mistral
from redis_history.integrations.importers import (
    Exported,
    Imported,
    async_export_messages,
    export_messages,
    import_messages,
)
from redis_history.store import operations as ops
from redis_history.values import Metadata

# Messages

notes: Metadata = {"channel_id": "C1"}
anything: dict[str, Any] = {"score": 1}
assert_type(
    [
        rh.user(["see ", rh.text("this"), rh.AttachmentPart(name="a.png", modality="image", size=7)], id=None),
        rh.user((part for part in (rh.text("a"), rh.text("b"))), timestamp="2026-01-31T12:00:00Z", metadata=notes),
        rh.assistant("Looking.", rh.tool_use("c", "find", {"q": 1}), rh.ReasoningPart("hm"), metadata=anything),
        rh.tool(rh.tool_result("c", [{"type": "text", "text": "found"}], is_error=False), metadata={"score": 1}),
        rh.system("Be brief.", participant=rh.Participant("system", "ops", "Ops"), sources=[rh.Source("d")]),
    ],
    list[rh.Message],
)
rh.user("hi", particpant=rh.Participant("user", "bob"))  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
rh.assistant("hi", participant="bob")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
rh.tool("hi", scope="private")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
rh.system("hi", sequence=1)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]

message = rh.Message(role="assistant", parts=(rh.text("x"), rh.UnknownPart(data={"type": "new"})), scope="thread")


def every_part(part: types.Part) -> str:
    match part:
        case rh.TextPart() | rh.ReasoningPart():
            return part.text
        case rh.ToolUsePart():
            return part.name
        case rh.ToolResultPart():
            return part.tool_use_id
        case rh.AttachmentPart():
            return part.name or ""
        case rh.UnknownPart():
            return part.type
        case _:
            assert_never(part)


def every_event(event: rh.Event) -> None:
    match event:
        case rh.MessagesAppended() | rh.HistoryRestored() | rh.MessagesDeleted() | rh.HistoryCleared():
            pass
        case rh.MessageUpdated() | rh.ReplyGrew() | rh.ReplyEnded() | rh.RunChanged() | rh.TurnChanged():
            pass
        case rh.HistoryCompacted() | rh.HistoryExpanded():
            pass
        case rh.ConversationUpdated() | rh.ConversationDeleted():
            pass
        case rh.Reset():
            every_reason(event)
        case _:
            assert_never(event)


def every_reason(reset: rh.Reset) -> None:
    match reset.reason:
        case "log_trimmed" | "log_unreadable" | "server_rewound":
            pass
        case "conversation_missing" | "conversation_replaced":
            pass
        case _:
            assert_never(reset.reason)


# Stores


def embed(texts: Sequence[str]) -> list[list[float]]:
    return [[0.0] for _ in texts]


async def embed_elsewhere(texts: Sequence[str]) -> list[list[float]]:
    return embed(texts)


rh.HistoryStore("redis://", embedder=embed, vectors=1, durability="replicas", search="require", language="german")
rh.AsyncHistoryStore(
    client=redis.asyncio.Redis(), embedder=embed_elsewhere, vectors=1, retry=rh.RetryPolicy(5, on_retry=print)
)


def rolling(messages: Sequence[rh.Message], previous_summary: str | None) -> str:
    return f"{previous_summary}: {messages[0].text}"


async def rolling_later(messages: Sequence[rh.Message], previous_summary: str | None) -> str:
    return rolling(messages, previous_summary)


summarizers: list[types.Summarizer] = [rolling, rolling_later, rh.extractive_summarizer(max_tokens=100)]
summarizers += [rh.openai_summarizer("m", base_url="http://localhost/v1"), rh.anthropic_summarizer("m")]


def progressed(progress: types.CompressionProgress) -> None: ...


def synchronous() -> None:
    with rh.HistoryStore("memory://") as store:
        assert_type(store, rh.HistoryStore)
        store.get("c", roles=["user", "tool"], participant_ids={"ann"}, scope="channel", since=datetime.now(UTC))
        store.get("c", since=1.5, before=message.position)
        store.append_many("c", (rh.user(str(n)) for n in range(3)), must_not_exist=True)
        store.compact("c", through=rh.Position(1, 2), summary=message, expected_revision=1)
        store.list_conversations(user_id=b"1")  # type: ignore[call-overload]
        store.search("c", "word", token_cap=100, token_counter=types.tiktoken_counter())
        store.search("c", "word", token_counter=5)  # type: ignore[arg-type]
        search_tool = rh.conversation_search_tool(store, "c")
        assert_type(search_tool, types.ConversationSearchTool)
        assert_type(search_tool(query="word", limit=3), str)
        rh.Compressor(store, summarizers[0], older_than=timedelta(days=7), on_progress=progressed).stop()

        with store.subscribe("c", after="1:2:3") as subscription:
            assert_type(subscription, types.Subscription)
            assert_type(subscription.get(timeout=1), rh.Event | None)
            for event in subscription:
                every_event(event)

        def callback(event: rh.Event) -> int:
            return event.revision

        def on_error(error: Exception, event: rh.Event | None) -> None: ...

        assert_type(store.on_change("c", callback, on_error=on_error), Callable[[], None])


async def asynchronous() -> None:
    async with rh.AsyncHistoryStore("memory://") as store:
        assert_type(store, rh.AsyncHistoryStore)
        assert_type(await store.capabilities, rh.Capabilities)
        assert_type(store.iter("c"), AsyncIterator[rh.Message])
        assert_type(await store.subscribe("c"), types.AsyncSubscription)
        search_tool = rh.conversation_search_tool(store, "c", token_cap=500, token_counter=len)
        assert_type(search_tool, types.AsyncConversationSearchTool)
        assert_type(await search_tool.run('{"query": "word"}'), str)
        assert_type(await store.subscribe_all(), types.AsyncNamespaceSubscription)

        async def callback(event: rh.Event) -> None: ...

        assert_type(await store.on_change("c", callback), Callable[[], Awaitable[None]])
        await store.on_change("c", every_event)


# Tasks


def count_words(conversation_id: str) -> types.Steps[int]:
    yield ops.ReadConversation(conversation_id)
    return sum(len(message.text.split()) for message in (yield from ops.read_messages(conversation_id, 10)))


async def tasks(store: rh.HistoryStore, async_store: rh.AsyncHistoryStore) -> None:
    assert_type(store.execute(count_words("c")), int)
    assert_type(await async_store.execute(count_words("c")), int)
    store.execute(7)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    assert_type(import_messages("chats.jsonl", store), Imported)
    assert_type(await import_messages("chats.jsonl", async_store), Imported)
    assert_type(export_messages(store, "chats.jsonl"), Exported)
    assert_type(await async_export_messages(async_store, "chats.jsonl"), Exported)


def misspelt() -> object:
    """Names are looked up when they are asked for, but a checker knows them all."""
    return rh.HistoryStroe  # type: ignore[attr-defined]


# Prompts and capture


def prompts(store: rh.HistoryStore) -> None:
    prompt = rh.assemble_prompt(store, "c", "bot", "Bot", rh.PromptOptions(scope="dm", agent_aliases=("b",)), rolling)
    assert_type(prompt, types.AssembledPrompt)
    rh.assemble_prompt(store, "c", agent_id="bot", options={"token_budget": 2000}, summarizer=summarizers[2])
    rh.assemble_prompt(store, "c", "bot", None, None, lambda messages: "no summary")  # type: ignore[arg-type]
    rh.PromptOptions(addressed_only_mode="loose")  # type: ignore[arg-type]
    assert_type(rh.assemble_messages(store.iter("c"), "bot", "Bot", summarizer=rolling), types.AssembledPrompt)
    rh.PromptOptions(token_counter=len, also_addressed=lambda message: message.scope is None, now=datetime.now(UTC))
    rh.PromptOptions(scope="room")  # type: ignore[arg-type]


async def async_prompts(store: rh.AsyncHistoryStore) -> None:
    coroutine: Coroutine[Any, Any, types.AssembledPrompt] = rh.assemble_prompt(store, "c", "bot")
    assert_type(await coroutine, types.AssembledPrompt)
    assert_type(
        await rh.assemble_prompt(store, "c", "bot", "Bot", {"scope": "dm"}, rolling_later), types.AssembledPrompt
    )


async def captures(store: rh.HistoryStore, async_store: rh.AsyncHistoryStore) -> None:
    def on_error(error: Exception, conversation_id: str | None, messages: list[rh.Message]) -> None: ...

    record = rh.capture(store, "c", agent="bot", user=rh.Participant("user", "ann"), on_error=on_error)
    async_record = rh.capture(async_store, lambda request: str(request), inbound=str, outbound=str)

    @record
    def agent(question: str, *, loud: bool = False) -> int:
        return 1

    @async_record
    async def async_agent(question: str) -> AsyncIterator[str]:
        yield question

    assert_type(agent("x", loud=True), int)
    agent(7)  # type: ignore[arg-type]
    assert_type(async_agent("x"), AsyncIterator[str])
    async with async_record.turn("x") as turn:
        await turn.reply("y")


# Histories


class Shorter(rh.Plugin):
    def on_registered(self, history: rh.History) -> None: ...

    async def reduce(self, entries: Sequence[rh.Message], options: types.ReduceOptions) -> Sequence[rh.Message]:
        assert_type(options.older_than, datetime | None)
        return entries[1:]

    def transform(self, entries: list[rh.Message]) -> list[rh.Message]:
        return entries


def histories() -> None:
    history = rh.History(max_length=5, token_counter=len, on_plugin_error=lambda error, plugin, hook: None)
    assert_type(history.use(Shorter()).use(rh.tool_result_masking(exclude=["a"])), rh.History)
    history.use(rh.compression(rolling_later, auto_reduce_when={"max_tokens": 8000, "older_than": timedelta(days=1)}))
    history.use(rh.compression(rolling, auto_reduce_when=types.ReduceOptions(max_entries=40)))
    assert_type(history.reduce(max_tokens=5, older_than=timedelta(days=1)), types.Reduction)
    assert_type(history.clone(max_length=3), rh.History)
    with rh.RedisHistory(rh.HistoryStore("memory://"), max_length=5, max_unsaved=7) as shared:
        assert_type(shared.use(Shorter()), rh.RedisHistory)


async def asynchronous_histories() -> None:
    async with rh.AsyncRedisHistory(redis.asyncio.Redis(), namespace="n", token_counter=len) as history:
        assert_type(history, rh.AsyncRedisHistory)
        assert_type(await history.reduce(max_entries=5), int)
        assert_type(await history.save(), int)


to_mistral([message], short_ids=True, on_loss=lambda loss: None)
