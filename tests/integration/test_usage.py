"""Tokens and cost that frameworks report become the usage of stored messages, once."""

from decimal import Decimal
from typing import Any

import httpx
import pytest
from agent_framework import Agent as FrameworkAgent
from agent_framework import (
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    FunctionInvocationLayer,
    UsageDetails,
)
from agent_framework import Message as FrameworkMessage
from agents import Agent, OpenAIChatCompletionsModel, RunConfig, RunContextWrapper, Runner, Usage
from agents.usage import RequestUsage as SdkRequestUsage
from google.adk.events import Event
from google.adk.sessions import Session
from google.genai import types
from langchain_core.messages import AIMessage
from llama_index.core.llms import ChatMessage, MessageRole
from openai import AsyncOpenAI
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.usage import RequestUsage
from strands import Agent as StrandsAgent
from strands.session import RepositorySessionManager

from redis_history import AsyncHistoryStore, HistoryStore, Message, assistant
from redis_history import Usage as OurUsage
from redis_history.integrations.agent_framework import AgentFrameworkHistory
from redis_history.integrations.claude_agent_sdk import ClaudeSessionStore
from redis_history.integrations.google_adk import AdkSessionService
from redis_history.integrations.langchain import LangChainHistory
from redis_history.integrations.llama_index import from_llama_index
from redis_history.integrations.openai_agents import AgentsSession
from redis_history.integrations.pydantic_ai import PydanticAIHistory, to_pydantic_ai
from redis_history.integrations.strands import StrandsSessionRepository
from redis_history.values import large
from tests.integration import test_strands as strands_samples
from tests.integration.test_claude_agent_sdk import KEY, entry
from tests.support.models import ModelServer, completion

ONE = OurUsage(100, 10, 40, model="m")


def sdk_usage(read: int, written: int, cached: int) -> Usage:
    details = InputTokensDetails(cached_tokens=cached, cache_write_tokens=0)
    reasons = OutputTokensDetails(reasoning_tokens=0)
    total = read + written
    one = SdkRequestUsage(read, written, total, details, reasons)
    return Usage(1, read, details, written, reasons, total, [one])


def item(role: str, text: str) -> Any:
    return {"role": role, "content": text}


async def used(store: Any, conversation_id: str = "c") -> list[OurUsage]:
    return [message.usage for message in await store.get(conversation_id) if message.usage is not None]


async def test_openai_agents(async_store: AsyncHistoryStore) -> None:
    """As the runner calls it: the question, then the items of each turn."""
    session, run = AgentsSession("c", async_store), RunContextWrapper(None)
    await session.add_items([item("user", "q")], wrapper=run)
    run.usage.add(sdk_usage(100, 10, 40))
    await session.add_items([item("assistant", "a")], wrapper=run)
    await session.add_items([item("user", "more")], wrapper=run)
    run.usage.add(sdk_usage(120, 20, 100))
    run.usage.add(sdk_usage(1, 1, 0))
    await session.add_items([item("assistant", "b"), item("assistant", "c")], wrapper=run)
    assert await used(async_store) == [OurUsage(100, 10, 40), OurUsage(121, 21, 100)]
    # Another process continues a run, whose usage so far is counted.
    other = AgentsSession("c", async_store)
    run.usage.add(sdk_usage(7, 3, 0))
    await other.add_items([item("assistant", "d")], wrapper=run)
    await other.add_items([item("assistant", "without")])
    assert (await async_store.get_conversation("c")).usage == OurUsage(228, 34, 140)  # type: ignore[union-attr]


async def test_the_runner_of_openai_agents_reports_usage(async_store: AsyncHistoryStore) -> None:
    with ModelServer() as server:
        server.answer = lambda body: completion("hello")
        async with AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="k", http_client=httpx.AsyncClient(trust_env=False)
        ) as client:
            agent = Agent(name="a", model=OpenAIChatCompletionsModel("m", client))
            for _ in range(2):
                session = AgentsSession("c", async_store)
                done = await Runner.run(agent, "hi", session=session, run_config=RunConfig(tracing_disabled=True))
                one = done.context_wrapper.usage
    found = await used(async_store)
    assert [(each.input_tokens, each.output_tokens) for each in found] == [(one.input_tokens, one.output_tokens)] * 2
    assert found[0].input_tokens > 0


async def test_pydantic_ai(async_store: AsyncHistoryStore) -> None:
    reported = RequestUsage(input_tokens=100, output_tokens=10, cache_read_tokens=40, cost=Decimal("0.02"))
    given = ModelResponse(parts=[TextPart("hi")], usage=reported, model_name="m")
    await PydanticAIHistory("c", async_store).append([given])
    [stored] = await async_store.get("c")
    assert stored.usage == OurUsage(100, 10, 40, 0.02, "m")
    assert to_pydantic_ai([stored]) == [given]


def test_langchain(store: HistoryStore) -> None:
    reported: Any = {
        "input_tokens": 100,
        "output_tokens": 10,
        "total_tokens": 110,
        "input_token_details": {"cache_read": 40},
    }
    given = AIMessage("hi", id="a", usage_metadata=reported, response_metadata={"model_name": "m"})
    history = LangChainHistory("c", store)
    history.add_messages([given])
    history.add_messages([given])  # a state that is saved again
    [stored] = store.get("c")
    assert stored.usage == ONE
    assert history.messages == [given]
    history.add_messages([AIMessage("edited", id="a")])
    assert store.get("c")[0].usage == ONE, "an edit that knows no usage keeps it"
    assert store.usage() == OurUsage(100, 10, 40)


def test_llama_index() -> None:
    numbers = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    for kwargs in (numbers, {"usage": numbers}):
        given = ChatMessage(role=MessageRole.ASSISTANT, content="hi", additional_kwargs=kwargs)
        assert from_llama_index(given).usage == OurUsage(100, 10)
    assert from_llama_index(ChatMessage(role=MessageRole.USER, content="hi")).usage is None


async def test_google_adk(async_store: AsyncHistoryStore) -> None:
    service = AdkSessionService(async_store)
    session: Session = await service.create_session(app_name="shop", user_id="ann", session_id="s")
    reported = types.GenerateContentResponseUsageMetadata(
        prompt_token_count=100, candidates_token_count=7, thoughts_token_count=3, cached_content_token_count=40
    )
    said = types.Content(role="model", parts=[types.Part(text="hi")])
    await service.append_event(session, Event(author="bot", content=said, usage_metadata=reported, model_version="m"))
    assert await async_store.usage(user_id="ann", agent_name="shop") == OurUsage(100, 10, 40)
    again = await service.get_session(app_name="shop", user_id="ann", session_id="s")
    assert again is not None
    assert again.events[-1].usage_metadata == reported


async def test_agent_framework(async_store: AsyncHistoryStore) -> None:
    class Says(FunctionInvocationLayer[Any], ChatMiddlewareLayer[Any], BaseChatClient[Any]):
        def _inner_get_response(self, **more: Any) -> Any:
            async def one() -> ChatResponse:
                details = UsageDetails(input_token_count=100, output_token_count=10, total_token_count=110)
                return ChatResponse(messages=[FrameworkMessage("assistant", ["hello"])], usage_details=details)

            return one()

    agent = FrameworkAgent(Says(), name="Researcher", context_providers=[AgentFrameworkHistory(async_store)])
    session = agent.create_session(session_id="c")
    for question in ("q", "another"):
        await agent.run(question, session=session)
    found = await used(async_store)
    assert [(one.input_tokens, one.output_tokens) for one in found] == [(100, 10)] * 2


def test_strands(store: HistoryStore) -> None:
    """The answer has the usage that the model reports, the question no usage."""

    class Model(strands_samples.Model):
        async def stream(self, *arguments: Any, **options: Any) -> Any:  # type: ignore[override]
            async for one in super().stream(*arguments, **options):
                yield one
            counted = {"inputTokens": 60, "outputTokens": 10, "totalTokens": 110, "cacheReadInputTokens": 40}
            yield {"metadata": {"usage": counted, "metrics": {"latencyMs": 1}}}

    manager = RepositorySessionManager("c", StrandsSessionRepository(store))
    StrandsAgent(model=Model(), session_manager=manager, callback_handler=None)("q")
    assert [one.usage for one in store.get("c")] == [None, OurUsage(100, 10, 40)]
    assert store.usage() == OurUsage(100, 10, 40)


async def test_claude_reports_an_answer_with_each_of_its_entries(async_store: AsyncHistoryStore) -> None:
    def part(number: int, written: int, answer: str = "msg_1") -> Any:
        made = entry(number, "assistant", [{"type": "text", "text": f"part {number}"}])
        made["message"] |= {
            "id": answer,
            "usage": {"input_tokens": 10, "cache_read_input_tokens": 90, "output_tokens": written},
        }
        return made

    sessions = ClaudeSessionStore(async_store)
    await sessions.append(KEY, [entry(1, "user", "q"), part(2, 1), part(3, 1)])
    await sessions.append(KEY, [part(4, 10)])
    await sessions.append(KEY, [part(4, 10)])  # again
    await sessions.append(KEY, [part(5, 5, "msg_2")])
    assert await async_store.usage() == OurUsage(200, 15, 180)
    loaded = await sessions.load(KEY)
    assert loaded is not None
    assert loaded[1:] == [part(2, 1), part(3, 1), part(4, 10), part(5, 5, "msg_2")]


@pytest.mark.usefixtures("small_caps")
def test_a_large_message_counts_once(store: HistoryStore) -> None:
    """It is stored as several."""
    parts = ["x" * 1_600_000] * 3
    kept, _ = large.fitted(assistant(*parts, usage=ONE))
    store.append_many("c", kept[:1])
    store.append_many("c", kept[1:])
    assert len(kept) > 1
    assert store.usage() == OurUsage(100, 10, 40)
    joined: list[Message] = large.joined(store.get("c"))
    assert joined[0].usage == ONE
