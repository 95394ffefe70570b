"""Each framework answers a question that is stored already, as in chat endpoints: it is sent and stored once."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import agent_framework
import pytest
from agents import Agent as OpenAIAgent
from agents import RunConfig, Runner
from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import Runner as AdkRunner
from google.genai import types
from langchain.agents import create_agent
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.memory import Memory
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel
from strands import Agent as StrandsAgent
from strands.session import RepositorySessionManager

from redis_history import HistoryStore, assistant, user
from redis_history.integrations.agent_framework import AgentFrameworkHistory
from redis_history.integrations.google_adk import AdkSessionService
from redis_history.integrations.langchain_agent import ConversationMiddleware
from redis_history.integrations.llama_index import LlamaIndexMemoryStore
from redis_history.integrations.openai_agents import AgentsSession
from redis_history.integrations.pydantic_ai import PydanticAIHistory
from redis_history.integrations.strands import StrandsSessionRepository
from tests.integration import test_langchain_state, test_openai_agents, test_strands

Sent = list[Any]


async def with_openai_agents(store: HistoryStore, sent: Sent) -> None:
    class Model(test_openai_agents.Says):
        async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> Any:
            sent.append([item["content"] for item in input])
            return await super().get_response()

    agent = OpenAIAgent(name="a", model=Model("t"))
    await Runner.run(agent, [], session=AgentsSession("c", store), run_config=RunConfig(tracing_disabled=True))


async def with_pydantic_ai(store: HistoryStore, sent: Sent) -> None:
    def model(messages: Any, info: Any) -> ModelResponse:
        sent.append([part.content for message in messages for part in message.parts])
        return ModelResponse([TextPart("t")])

    history = PydanticAIHistory("c", store)
    result = await PydanticAgent(FunctionModel(model)).run(message_history=await history.load())
    await history.append(result.new_messages())


async def with_agent_framework(store: HistoryStore, sent: Sent) -> None:
    class Client(
        agent_framework.FunctionInvocationLayer, agent_framework.ChatMiddlewareLayer, agent_framework.BaseChatClient
    ):  # type: ignore[type-arg]
        def _inner_get_response(self, *, messages: Any, stream: Any = False, options: Any = None, **_: Any) -> Any:
            async def respond() -> Any:
                sent.append([message.text for message in messages])
                return agent_framework.ChatResponse(messages=[agent_framework.Message("assistant", ["t"])])

            return respond()

    agent = agent_framework.Agent(Client(), context_providers=[AgentFrameworkHistory(store)])
    await agent.run([], session=agent.create_session(session_id="c"))


async def with_langchain(store: HistoryStore, sent: Sent) -> None:
    model = test_langchain_state.Model(sent=[])
    agent: Any = create_agent(model, middleware=[ConversationMiddleware(store)])
    agent.invoke({"messages": []}, {"configurable": {"thread_id": "c"}})
    sent += [[text.partition(": ")[2] for text in texts] for texts in model.sent]


async def with_llama_index(store: HistoryStore, sent: Sent) -> None:
    def respond(messages: Any, **_: Any) -> ChatMessage:
        sent.append([message.content for message in messages])
        return ChatMessage(role="assistant", content="t")

    memory = Memory.from_defaults(session_id="c", chat_store=LlamaIndexMemoryStore(store))
    agent = FunctionAgent(tools=[], llm=MockFunctionCallingLLM(response_generator=respond), streaming=False)
    await agent.run(chat_history=await memory.aget_all(), memory=memory)


async def with_google_adk(store: HistoryStore, sent: Sent) -> None:
    class Model(BaseLlm):
        async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
            sent.append([part.text for content in llm_request.contents for part in content.parts])
            yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text="t")]))

    service = AdkSessionService(store)
    await service.create_session(app_name="shop", user_id="ann", session_id="c")
    for message in store.get("c"):
        store.append("adk/shop/ann/c", message)
    agent = LlmAgent(name="bot", model=Model(model="scripted"))
    runner = AdkRunner(agent=agent, app_name="shop", session_service=service)
    async for _ in runner.run_async(user_id="ann", session_id="c", new_message=None):
        pass


async def with_strands(store: HistoryStore, sent: Sent) -> None:
    repository, model = StrandsSessionRepository(store), test_strands.Model()
    manager = RepositorySessionManager("c", repository)
    agent = StrandsAgent(model=model, messages=repository.messages("c"), session_manager=manager, callback_handler=None)
    await agent.invoke_async()
    sent += [[block["text"] for message in messages for block in message["content"]] for messages in model.sent]


@pytest.mark.proves("frameworks")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "answer",
    [
        with_openai_agents,
        with_pydantic_ai,
        with_agent_framework,
        with_langchain,
        with_llama_index,
        with_google_adk,
        with_strands,
    ],
)
@pytest.mark.parametrize("earlier", [0, 1])
def test_a_stored_question_is_answered(
    store: HistoryStore, answer: Callable[[HistoryStore, Sent], Coroutine[Any, Any, None]], earlier: int
) -> None:
    said = [user("q0"), assistant("t0")] * earlier
    store.append_many("c", [*(one for one in said), user("q1")])
    before = [message.text for message in store.get("c")]
    sent: Sent = []
    name = "adk/shop/ann/c" if answer is with_google_adk else "c"
    with store.run(name):
        asyncio.run(answer(store.exclusive(), sent) if answer is not with_google_adk else answer(store, sent))
    assert sent == [before]
    after = [message.text for message in store.get(name)]
    assert after[:-1] == before
    assert store.get(name)[-1].role == "assistant"
