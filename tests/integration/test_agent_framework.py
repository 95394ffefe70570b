"""Agent Framework's contract of a history provider, and its agents with a scripted model."""

import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest
from agent_framework import (
    Agent,
    AgentResponse,
    AgentSession,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationLayer,
    Message,
    SessionContext,
    tool,
)
from msgspec.structs import replace

from redis_history import AsyncHistoryStore, assistant, tool_result, tool_use, user
from redis_history import tool as tool_message
from redis_history.formats import Loss
from redis_history.integrations.agent_framework import AgentFrameworkHistory, from_agent_framework, to_agent_framework
from tests.support.sdk import validate
from tests.support.servers import until
from tests.unit.format_cases import FORMATS, through_storage

MESSAGES = [
    Message("system", ["Be brief."]),
    Message("user", ["Hi", Content.from_uri("https://example.org/a.png", media_type="image/png")]),
    Message("user", [Content.from_data(b"abc", media_type="image/png")]),
    Message(
        "assistant",
        [
            Content.from_text_reasoning(text="Hm.", protected_data="c2ln"),
            Content.from_text("I look."),
            Content.from_function_call("c1", "find", arguments='{"q": 1}'),
            Content.from_function_call("c2", "find", arguments={"q": 2**70}),
        ],
        message_id="m1",
        author_name="helper",
        additional_properties={"big": 2**70},
    ),
    Message("tool", [Content.from_function_result("c1", result="rain")]),
    Message("tool", [Content.from_function_result("c2", result={"a": [1, float("nan")]})]),
    Message("critic", ["A role of its own"]),
]


class Model(FunctionInvocationLayer[Any], BaseChatClient[Any]):
    """Calls the tool for each new question, and answers with its result. Remembers what it was sent."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[list[Any]] = []

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **kwargs: Any
    ) -> Any:
        # Calls get random ids, and messages the name of the provider that loaded them.
        known = [{**message.to_dict(), "additional_properties": {}} for message in messages]
        self.requests.append([re.sub("af-call-[0-9a-f]+", "random", repr(one)) for one in known])
        last = messages[-1]

        async def answer() -> ChatResponse:
            if last.role == "user":
                call = Content.from_function_call(f"c{len(messages)}", "add", arguments='{"a": 2, "b": 3}')
                return ChatResponse(messages=[Message("assistant", [call])])
            return ChatResponse(messages=[Message("assistant", [f"It is {last.contents[0].result}."])])

        async def updates() -> AsyncIterator[ChatResponseUpdate]:
            for message in (await answer()).messages:
                for content in message.contents:
                    pieces = [content]
                    if content.type == "text" and content.text:
                        pieces = [Content.from_text(content.text[:4]), Content.from_text(content.text[4:])]
                    for piece in pieces:
                        yield ChatResponseUpdate(contents=[piece], role="assistant")

        return self._build_response_stream(updates()) if stream else answer()


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def plain(messages: Sequence[Message]) -> list[str]:
    return [repr(message.to_dict()) for message in messages]  # NaN is not equal to itself


async def test_messages_come_back_equal(async_store: AsyncHistoryStore) -> None:
    history = AgentFrameworkHistory(async_store)
    await history.save_messages("s", MESSAGES)
    assert plain(await history.get_messages("s")) == plain(MESSAGES)
    assert await history.get_messages("another") == await history.get_messages(None) == []
    await history.save_messages(None, MESSAGES)
    assert [one.conversation_id for one in await async_store.list_conversations()] == ["s"]


async def test_a_repeated_transcript_is_stored_once(async_store: AsyncHistoryStore) -> None:
    history = AgentFrameworkHistory(async_store)
    for end in (2, 5, len(MESSAGES), len(MESSAGES)):
        await history.save_messages("s", MESSAGES[:end])
    assert plain(await history.get_messages("s")) == plain(MESSAGES)
    for _ in range(2):  # a person says the same twice
        await history.save_messages("s", [Message("user", ["Again"])])
    assert len(await history.get_messages("s")) == len(MESSAGES) + 2


async def test_a_limit_leaves_out_results_whose_call_is_cut_off(async_store: AsyncHistoryStore) -> None:
    await AgentFrameworkHistory(async_store).save_messages("s", MESSAGES)
    for limit in range(1, len(MESSAGES) + 1):
        found = await AgentFrameworkHistory(async_store, limit=limit).get_messages("s")
        called: set[str] = set()
        for content in (content for message in found for content in message.contents):
            if content.type == "function_result":
                assert content.call_id in called, limit
            called.update([content.call_id] if content.type == "function_call" and content.call_id else [])


async def test_a_reply_that_is_being_written_is_no_message(async_store: AsyncHistoryStore) -> None:
    history = AgentFrameworkHistory(async_store)
    await history.save_messages("s", MESSAGES)
    async with async_store.stream("s") as reply:
        await reply.write("Half")
        await until(lambda: _is_stored(async_store, "Half"), "the text")
        assert plain(await history.get_messages("s")) == plain(MESSAGES)
    assert (await history.get_messages("s"))[-1].text == "Half"


async def _is_stored(store: AsyncHistoryStore, text: str) -> bool:
    return any(message.text == text for message in await store.get("s"))


def test_an_edit_of_a_result_is_in_its_items() -> None:
    image = Content.from_data(b"abc", media_type="image/png")
    items = [Content.from_text("ann@example.com"), Content.from_text("Berlin"), image]
    [stored] = from_agent_framework([Message("tool", [Content.from_function_result("c", result=items)])])
    edited = replace(stored, parts=(replace(stored.tool_results[0], content="[REDACTED]"),))
    [found] = to_agent_framework([edited])[0].contents
    expected = Content.from_function_result("c", result=[Content.from_text("[REDACTED]")])
    assert found.to_dict() == expected.to_dict()


def test_messages_of_other_frameworks_are_converted() -> None:
    lost: list[Loss] = []
    found = to_agent_framework(
        [user("Hi"), assistant("I look.", tool_use("c", "find", {"q": 1})), tool_message(tool_result("c", "rain"))],
        on_loss=lost.append,
    )
    assert plain(found) == plain(
        [
            Message("user", ["Hi"]),
            Message("assistant", ["I look.", Content.from_function_call("c", "find", arguments='{"q":1}')]),
            Message("tool", [Content.from_function_result("c", result="rain")]),
        ]
    )
    assert lost == []
    assert [message.text for message in from_agent_framework(found)] == ["Hi", "I look.", "rain"]


def test_files_are_attachments_for_other_providers() -> None:
    image = Content.from_data(b"abc", media_type="image/png")
    link = Content.from_uri("https://x.test/a.png", media_type="image/png")
    result = Content.from_function_result("c", result=[Content.from_text("see"), image])
    given = [
        Message("user", ["see", image, link]),
        Message("assistant", [Content.from_function_call("c", "f", arguments="{}")]),
        Message("tool", [result]),
    ]
    messages = through_storage(from_agent_framework(given))
    assert [one.to_dict() for one in to_agent_framework(messages)] == [one.to_dict() for one in given]
    for format_ in FORMATS:
        items = format_.to(messages, shape="request", on_loss=lambda loss: None)
        validate(format_.name, items)
        assert str(items).count("YWJj") == (1 if format_.name in ("openai_chat", "gemini") else 2)
        assert "https://x.test/a.png" in str(items)


async def test_the_author_is_stored_when_each_call_of_a_model_is_saved(async_store: AsyncHistoryStore) -> None:
    class Says(FunctionInvocationLayer[Any], ChatMiddlewareLayer[Any], BaseChatClient[Any]):
        def _inner_get_response(self, **more: Any) -> Any:
            async def one() -> ChatResponse:
                return ChatResponse(messages=[Message("assistant", ["hello"])])

            return one()

    history = AgentFrameworkHistory(async_store)
    options: dict[str, Any] = {"require_per_service_call_history_persistence": True}
    agent = Agent(Says(), name="Researcher", context_providers=[history], **options)
    await agent.run("q", session=agent.create_session(session_id="s"))
    assert [one.author_name for one in await history.get_messages("s")] == [None, "Researcher"]


async def test_a_run_without_an_agent_is_stored(async_store: AsyncHistoryStore) -> None:
    """As the framework's own tests call a provider."""
    history = AgentFrameworkHistory(async_store)
    context = SessionContext(session_id="s", input_messages=[Message("user", ["q"])])
    context._response = AgentResponse(messages=[Message("assistant", ["a"])])
    await history.after_run(agent=None, session=AgentSession(), context=context, state={})
    assert [one.text for one in await async_store.get("s")] == ["q", "a"]


@pytest.mark.parametrize("approved", [True, False])
async def test_a_session_that_was_kept_resumes_with_the_decision(
    async_store: AsyncHistoryStore, approved: bool
) -> None:
    paid: list[int] = []

    class Pays(FunctionInvocationLayer[Any], ChatMiddlewareLayer[Any], BaseChatClient[Any]):
        def _inner_get_response(self, *, messages: Sequence[Message], **more: Any) -> Any:
            async def one() -> ChatResponse:
                is_done = any(part.type == "function_result" for message in messages for part in message.contents)
                call = Content.from_function_call("c1", "pay", arguments='{"amount": 3}')
                return ChatResponse(messages=[Message("assistant", ["done"] if is_done else [call])])

            return one()

    @tool(approval_mode="always_require")
    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    agent = Agent(Pays(), tools=[pay], context_providers=[AgentFrameworkHistory(async_store)])
    session = agent.create_session(session_id="s")
    await agent.run("pay", session=session)
    kept = json.dumps(session.to_dict())
    [waiting] = await async_store.list_approvals()
    assert (waiting.tool_name, waiting.input, paid) == ("pay", {"amount": 3}, [])
    await async_store.decide("s", waiting.call_id, approved)
    result = await agent.run([], session=AgentSession.from_dict(json.loads(kept)))
    assert (result.text, paid) == ("done", [3] if approved else [])
    assert await async_store.list_approvals() == []
