"""Uses of the public API that `mypy --strict` must accept, with the types it must find. Never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from datetime import UTC, datetime
from typing import Any, assert_never, assert_type

import redis.asyncio

from redis_history import (
    Appended,
    AssembledPrompt,
    AsyncCapture,
    AsyncHistoryStore,
    AsyncSubscription,
    AttachmentPart,
    Capabilities,
    Capture,
    ConversationDeleted,
    ConversationUpdated,
    Cursor,
    Event,
    HistoryCleared,
    HistoryRestored,
    HistoryStore,
    LeftOut,
    LeftOutReason,
    Message,
    MessagesAppended,
    MessagesDeleted,
    MessageUpdated,
    Part,
    Participant,
    Position,
    PromptOptions,
    PromptReport,
    ReasoningPart,
    Reset,
    RetryPolicy,
    Snapshot,
    Source,
    Subscription,
    TextPart,
    ToolResultPart,
    ToolUsePart,
    UnknownPart,
    __version__,
    assemble_messages,
    assemble_prompt,
    assistant,
    capture,
    system,
    text,
    tool,
    tool_result,
    tool_use,
    user,
)
from redis_history.errors import MessageConflictError, RedisHistoryError, RevisionConflictError

assert_type(__version__, str)

# Messages

assert_type(user("hi"), Message)
assert_type(user("hi", id="m1", scope="dm", timestamp="2026-01-31T12:00:00Z", metadata={"mentions": ["bot"]}), Message)
assert_type(user(["see ", text("this"), AttachmentPart(name="a.png", modality="image", size=7)]), Message)
assert_type(user(part for part in (text("a"), text("b"))), Message)
assert_type(assistant("Looking.", tool_use("c", "find", {"q": 1}), ReasoningPart("hm", signature="s")), Message)
assert_type(tool(tool_result("c", [{"type": "text", "text": "found"}], is_error=False, name="find")), Message)
assert_type(system("Be brief.", participant=Participant("system", "ops", "Ops")), Message)
assert_type(text("x"), TextPart)
assert_type(tool_use("c", "n"), ToolUsePart)
assert_type(tool_result("c"), ToolResultPart)

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
assert_type(message.parts, tuple[Part, ...])
assert_type(message.text, str)
assert_type(message.id, str)
assert_type(message.timestamp, datetime | None)
assert_type(message.sequence, int | None)
assert_type(message.position, Position | None)
assert_type(message.participant, Participant | None)
assert_type(message.sources, tuple[Source, ...])
assert_type(message.tool_uses, tuple[ToolUsePart, ...])
assert_type(message.tool_results, tuple[ToolResultPart, ...])
assert_type(message.mentions, list[str])
assert_type(message.is_summary, bool)
assert_type(Position.parse("1.2").timestamp, int)
assert_type(Cursor.parse("x").revision, int)


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
    assert_type(event.conversation_id, str)
    assert_type(event.revision, int)
    assert_type(event.cursor, Cursor)
    match event:
        case MessagesAppended():
            assert_type(event.messages, tuple[Message, ...])
        case MessagesDeleted():
            assert_type(event.message_ids, tuple[str, ...])
        case MessageUpdated():
            assert_type(event.message, Message)
        case HistoryRestored():
            assert_type(event.messages, tuple[Message, ...])
        case ConversationUpdated():
            assert_type(event.fields, dict[str, Any])
        case HistoryCleared() | ConversationDeleted():
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
        assert_type(error.current_revision, int)
        assert_type(error.expected_revision, int | None)
    except MessageConflictError as error:
        assert_type(error.message_id, str)
    except RedisHistoryError:
        pass


# Stores

HistoryStore("memory://")
HistoryStore("redis://localhost:6379/0", namespace="support", log_length=100, poll_interval=1, retry=RetryPolicy(5))
HistoryStore("redis://localhost:6379/0", durability="replicas", replicas=2, durability_timeout=0.5)
HistoryStore(client=redis.Redis())
AsyncHistoryStore("embedded:///data", retry=RetryPolicy(deadline=5.0, first_wait=0.1, longest_wait=2))
AsyncHistoryStore(client=redis.asyncio.Redis())


def synchronous() -> None:
    with HistoryStore("memory://") as store:
        assert_type(store.capabilities, Capabilities)
        assert_type(store.capabilities.dangers, tuple[str, ...])
        assert_type(store, HistoryStore)
        assert_type(store.append("c", user("x"), must_exist=True), Appended)
        assert_type(store.append_many("c", (user(str(n)) for n in range(3)), must_not_exist=True), list[Appended])
        assert_type(store.append("c", message).revision, int)
        assert_type(store.append("c", message).message, Message)
        assert_type(store.append("c", message).duplicate, bool)
        assert_type(store.get("c"), list[Message])
        store.get("c", limit=5, roles=["user", "tool"], participant_ids={"ann"}, scope="channel")
        store.get("c", since=datetime.now(UTC), before="2026-01-31")
        store.get("c", since=1.5, before=message.position)
        assert_type(store.iter("c", batch=100, roles=("user",)), Iterator[Message])
        assert_type(store.get_message("c", "m1"), Message | None)
        assert_type(store.delete_messages("c", ["m1"], expected_revision=1), int)
        assert_type(store.delete_conversation("c"), bool)
        assert_type(store.snapshot("c", limit=10), Snapshot)
        assert_type(store.snapshot("c").messages, list[Message])
        assert_type(store.snapshot("c").message_count, int)

        with store.subscribe("c", after=store.snapshot("c").cursor) as subscription:
            assert_type(subscription, Subscription)
            assert_type(subscription.get(timeout=1), Event | None)
            assert_type(subscription.cursor, Cursor | None)
            for event in subscription:
                every_event(event)
        store.subscribe("c", after="1:2:3").close()

        def callback(event: Event) -> int:
            return event.revision

        def on_error(error: Exception, event: Event | None) -> None: ...

        assert_type(store.on_change("c", callback, on_error=on_error), Callable[[], None])
        store.on_change("c", every_event, after=None)()


async def asynchronous() -> None:
    async with AsyncHistoryStore("memory://") as store:
        assert_type(await store.capabilities, Capabilities)
        assert_type(store, AsyncHistoryStore)
        assert_type(await store.append("c", user("x"), expected_revision=0), Appended)
        assert_type(await store.append_many("c", [user("x")]), list[Appended])
        assert_type(await store.get("c", limit=5, roles=["user"], since=Position(1, 2)), list[Message])
        assert_type(store.iter("c"), AsyncIterator[Message])
        async for each in store.iter("c", before=5):
            assert_type(each, Message)
        assert_type(await store.get_message("c", "m1"), Message | None)
        assert_type(await store.delete_messages("c", ["m1"]), int)
        assert_type(await store.delete_conversation("c"), bool)
        snapshot = await store.snapshot("c")
        assert_type(snapshot, Snapshot)

        assert_type(await store.subscribe("c"), AsyncSubscription)
        async with store.subscribe("c", after=snapshot.cursor) as subscription:
            assert_type(subscription, AsyncSubscription)
            assert_type(await subscription.get(timeout=0.5), Event | None)
            async for event in subscription:
                every_event(event)

        async def callback(event: Event) -> None: ...

        unsubscribe = await store.on_change("c", callback)
        assert_type(unsubscribe, Callable[[], Awaitable[None]])
        await unsubscribe()
        await store.on_change("c", every_event)


# Prompts and capture


def summarize(messages: list[Message]) -> str:
    return messages[0].text


async def summarize_later(messages: list[Message]) -> Message | None:
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
    assemble_prompt(store, "c", "bot", None, None, summarize_later)  # type: ignore[arg-type]
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
