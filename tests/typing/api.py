"""Uses of the public API that `mypy --strict` must accept, with the types it must find. Never run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, assert_never, assert_type

import redis.asyncio

import redis_history
from redis_history import (
    AsyncCompressor,
    AsyncConversationSearchTool,
    AsyncHistoryStore,
    AsyncNamespaceSubscription,
    AsyncSubscription,
    AttachmentPart,
    Capabilities,
    CompressionProgress,
    Compressor,
    Conversation,
    ConversationDeleted,
    ConversationSearchTool,
    ConversationUpdated,
    Embedder,
    Event,
    History,
    HistoryCleared,
    HistoryCompacted,
    HistoryExpanded,
    HistoryRestored,
    HistoryStore,
    Message,
    MessagesAppended,
    MessagesDeleted,
    MessageUpdated,
    NamespaceSubscription,
    Part,
    Participant,
    Position,
    ReasoningPart,
    ReduceOptions,
    ReplyEnded,
    ReplyGrew,
    Reset,
    RetryDetails,
    RetryPolicy,
    Source,
    Subscription,
    Summarizer,
    TextPart,
    ToolResultPart,
    ToolUsePart,
    UnknownPart,
    VectorField,
    anthropic_summarizer,
    assistant,
    compression,
    conversation_search_tool,
    extractive_summarizer,
    openai_summarizer,
    system,
    text,
    tiktoken_counter,
    tool,
    tool_result,
    tool_use,
    user,
)
from redis_history.compaction import Policy
from redis_history.errors import MessageConflictError, RedisHistoryError, RevisionConflictError
from redis_history.model import Metadata

# Messages

assert_type(user("hi"), Message)
assert_type(user("hi", id="m1", scope="dm", timestamp="2026-01-31T12:00:00Z", metadata={"mentions": ["bot"]}), Message)
assert_type(user(["see ", text("this"), AttachmentPart(name="a.png", modality="image", size=7)]), Message)
assert_type(user(part for part in (text("a"), text("b"))), Message)
assert_type(assistant("Looking.", tool_use("c", "find", {"q": 1}), ReasoningPart("hm", signature="s")), Message)
assert_type(tool(tool_result("c", [{"type": "text", "text": "found"}], is_error=False, name="find")), Message)
assert_type(system("Be brief.", participant=Participant("system", "ops", "Ops")), Message)
assert_type(user("hi", id=None, sources=[Source("d")], trace_id="t", provider_meta={"openai": {}}), Message)
notes: Metadata = {"channel_id": "C1"}
anything: dict[str, Any] = {"score": 1}
assert_type(
    [user("hi", metadata=notes), user("hi", metadata=anything), user("hi", metadata={"score": 1})], list[Message]
)
user("hi", particpant=Participant("user", "bob"))  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
assistant("hi", participant="bob")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
tool("hi", scope="private")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
system("hi", sequence=1)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]

message = Message(
    role="assistant",
    id="m2",
    parts=(text("x"), UnknownPart(data={"type": "new"})),
    participant=Participant(kind="agent", id="planner", display_name=None),
    timestamp=datetime(2026, 1, 31, tzinfo=UTC),
    scope="thread",
    metadata={"channel_id": "C1", "free": [1, None]},
    sources=(Source(document_id="d", score=0.5),),
    trace_id="t",
    provider_meta={"openai": {}},
)


def every_part(part: Part) -> str:
    match part:
        case TextPart() | ReasoningPart():
            return part.text
        case ToolUsePart():
            return part.name
        case ToolResultPart():
            return part.tool_use_id
        case AttachmentPart():
            return part.name or ""
        case UnknownPart():
            return part.type
        case _:
            assert_never(part)


def every_event(event: Event) -> None:
    match event:
        case MessagesAppended() | HistoryRestored() | MessagesDeleted() | HistoryCleared():
            pass
        case MessageUpdated() | ReplyGrew() | ReplyEnded():
            pass
        case HistoryCompacted() | HistoryExpanded():
            pass
        case ConversationUpdated() | ConversationDeleted():
            pass
        case Reset():
            every_reason(event)
        case _:
            assert_never(event)


def every_reason(reset: Reset) -> None:
    match reset.reason:
        case "log_trimmed" | "log_unreadable" | "server_rewound":
            pass
        case "conversation_missing" | "conversation_replaced":
            pass
        case _:
            assert_never(reset.reason)


def errors(store: HistoryStore) -> None:
    try:
        store.append("c", user("x"), expected_revision=3)
    except RevisionConflictError as error:
        print(error.current_revision)
    except MessageConflictError as error:
        print(error.message_id)
    except RedisHistoryError:
        pass


# Stores

HistoryStore("memory://")
HistoryStore("redis://localhost", doorbell="poll")
HistoryStore("redis://localhost:6379/0", namespace="support", log_length=100, poll_interval=1, retry=RetryPolicy(5))
HistoryStore("redis://localhost:6379/0", durability="replicas", replicas=2, durability_timeout=0.5)


def note(details: RetryDetails) -> None: ...


HistoryStore(retry=RetryPolicy(on_retry=note))
HistoryStore(retry=RetryPolicy(on_retry=print))
HistoryStore(client=redis.Redis())
AsyncHistoryStore("embedded:///data", retry=RetryPolicy(deadline=5.0, first_wait=0.1, longest_wait=2))
AsyncHistoryStore(client=redis.asyncio.Redis())


def embed(texts: Sequence[str]) -> list[list[float]]:
    return [[0.0] for _ in texts]


async def embed_elsewhere(texts: Sequence[str]) -> list[list[float]]:
    return embed(texts)


a_function: Embedder = embed
HistoryStore("redis://", search="require", language="german", embedder=embed, vectors=1)
AsyncHistoryStore("redis://", search="off", embedder=embed_elsewhere, vectors=VectorField(1, algorithm="hnsw"))


def rolling(messages: Sequence[Message], previous_summary: str | None) -> str:
    return f"{previous_summary}: {messages[0].text}"


async def rolling_later(messages: Sequence[Message], previous_summary: str | None) -> str:
    return await asyncio.to_thread(rolling, messages, previous_summary)


def progressed(progress: CompressionProgress) -> None: ...


def compressors(store: HistoryStore) -> None:
    every: list[Summarizer] = [rolling, rolling_later, extractive_summarizer(max_tokens=100)]
    every += [openai_summarizer("m", base_url="http://localhost/v1"), anthropic_summarizer("m", prompt="Be brief.")]
    compressor = Compressor(store, every[0], max_tokens=8000, older_than=timedelta(days=7), on_progress=progressed)
    compressor.stop()
    History().use(compression(rolling_later, auto_reduce_when={"max_tokens": 8000, "older_than": timedelta(days=1)}))
    History().use(compression(rolling, auto_reduce_when=ReduceOptions(max_entries=40)))


async def asynchronous_compressors(store: AsyncHistoryStore) -> None:
    AsyncCompressor(store, rolling_later, max_messages=100, target=0.3, keep_recent=0)


def synchronous() -> None:
    with HistoryStore("memory://") as store:
        assert_type(store.capabilities, Capabilities)
        assert_type(store, HistoryStore)
        store.get("c", limit=5, roles=["user", "tool"], participant_ids={"ann"}, scope="channel")
        store.get("c", since=datetime.now(UTC), before="2026-01-31")
        store.get("c", since=1.5, before=message.position)
        assert_type(store.iter("c", batch=100, roles=("user",)), Iterator[Message])
        store.append_many("c", (user(str(n)) for n in range(3)), must_not_exist=True)
        store.compact("c", through=message, summary="x", seen=[message])
        store.compact("c", through=Position(1, 2), summary=message, expected_revision=1)
        store.create_conversation(Conversation("c", user_id=1, auditing_id="a"))
        store.update_conversation("c", user_id="1", auditing_id=None)
        store.reindex(on_progress=print)
        store.list_conversations(user_id=b"1")  # type: ignore[arg-type]

        with store.subscribe("c", after=store.snapshot("c").cursor) as subscription:
            assert_type(subscription, Subscription)
            assert_type(subscription.get(timeout=1), Event | None)
            for event in subscription:
                every_event(event)
        store.subscribe("c", after="1:2:3").close()

        store.search("c", "word", roles=["user"], scope="dm", since="2026-01-31", context=1, highlight=True)
        store.search("c", "word", token_cap=100, token_counter=tiktoken_counter())
        store.search_all("word", token_counter=len)
        store.search("c", "word", token_counter=5)  # type: ignore[arg-type]
        search_tool = conversation_search_tool(store, "c")
        assert_type(search_tool, ConversationSearchTool)
        assert_type(search_tool(query="word", limit=3), str)

        with store.subscribe_all(after={"c": "1:2:3"}) as all_changes:
            assert_type(all_changes, NamespaceSubscription)
            for event in all_changes:
                every_event(event)

        def callback(event: Event) -> int:
            return event.revision

        def on_error(error: Exception, event: Event | None) -> None: ...

        assert_type(store.on_change("c", callback, on_error=on_error), Callable[[], None])
        assert_type(store.on_change_all(callback, on_error=on_error), Callable[[], None])
        store.on_change("c", every_event, after=None)()


async def asynchronous() -> None:
    async with AsyncHistoryStore("memory://") as store:
        assert_type(await store.capabilities, Capabilities)
        assert_type(store, AsyncHistoryStore)
        assert_type(store.iter("c"), AsyncIterator[Message])
        async for each in store.iter("c", before=5):
            assert_type(each, Message)
        Policy(max_tokens=1000, older_than=timedelta(days=1)).plan(await store.get("c"))
        snapshot = await store.snapshot("c")

        assert_type(await store.subscribe("c"), AsyncSubscription)
        async with store.subscribe("c", after=snapshot.cursor) as subscription:
            assert_type(subscription, AsyncSubscription)
            assert_type(await subscription.get(timeout=0.5), Event | None)
            async for event in subscription:
                every_event(event)

        search_tool = conversation_search_tool(store, "c")
        assert_type(search_tool, AsyncConversationSearchTool)
        conversation_search_tool(store, "c", token_cap=500, token_counter=len)
        assert_type(await search_tool.run('{"query": "word"}'), str)

        assert_type(await store.subscribe_all(), AsyncNamespaceSubscription)
        async with store.subscribe_all(after={"c": snapshot.cursor}) as all_changes:
            async for event in all_changes:
                every_event(event)

        async def callback(event: Event) -> None: ...

        unsubscribe = await store.on_change("c", callback)
        assert_type(unsubscribe, Callable[[], Awaitable[None]])
        await unsubscribe()
        await store.on_change("c", every_event)


def misspelt() -> object:
    """Names are looked up when they are asked for, but a checker knows them all."""
    return redis_history.HistoryStroe  # type: ignore[attr-defined]
