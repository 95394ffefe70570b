"""Each framework answers a question that is stored already, in a worker and in chat endpoints, as
docs/how-to/frameworks.md says: the question is sent and stored once."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import agent_framework
import agents
import httpx
import pytest
from agents import Agent as OpenAIAgent
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
from starlette.applications import Starlette
from strands import Agent as StrandsAgent
from strands.session import RepositorySessionManager

from redis_history import AsyncHistoryStore, AsyncWorker, HistoryStore, Worker, user
from redis_history.integrations.agent_framework import AgentFrameworkHistory
from redis_history.integrations.google_adk import AdkSessionService
from redis_history.integrations.langchain_agent import ConversationMiddleware
from redis_history.integrations.llama_index import LlamaIndexMemoryStore
from redis_history.integrations.openai_agents import AgentsSession
from redis_history.integrations.pydantic_ai import PydanticAIHistory
from redis_history.integrations.strands import StrandsSessionRepository
from redis_history.web import ChatEndpoints, allow_all
from tests.docs.pages import DOCS, blocks
from tests.integration import test_langchain_state, test_openai_agents, test_strands
from tests.support.servers import RealServer, until
from tests.support.web import listening

Sent = list[Any]


def with_openai_agents(store: AsyncHistoryStore, sent: Sent) -> Any:
    class Model(test_openai_agents.Says):
        async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> Any:
            contents = [item["content"] for item in input]
            sent.append([one if isinstance(one, str) else one[0]["text"] for one in contents])
            return await super().get_response()

    return OpenAIAgent(name="a", model=Model("t", "t"))


def with_pydantic_ai(store: AsyncHistoryStore, sent: Sent) -> Any:
    def model(messages: Any, info: Any) -> ModelResponse:
        sent.append([part.content for message in messages for part in message.parts])
        return ModelResponse([TextPart("t")])

    return PydanticAgent(FunctionModel(model))


def with_agent_framework(store: AsyncHistoryStore, sent: Sent) -> Any:
    class Client(
        agent_framework.FunctionInvocationLayer, agent_framework.ChatMiddlewareLayer, agent_framework.BaseChatClient
    ):  # type: ignore[type-arg]
        def _inner_get_response(self, *, messages: Any, stream: Any = False, options: Any = None, **_: Any) -> Any:
            async def respond() -> Any:
                sent.append([message.text for message in messages])
                return agent_framework.ChatResponse(messages=[agent_framework.Message("assistant", ["t"])])

            return respond()

    return agent_framework.Agent(Client(), context_providers=[AgentFrameworkHistory(store.exclusive())])


def with_langchain(store: AsyncHistoryStore, sent: Sent) -> Any:
    class Model(test_langchain_state.Model):
        def _generate(self, messages: Any, *arguments: Any, **options: Any) -> Any:
            sent.append([message.content for message in messages])
            return super()._generate(messages, *arguments, **options)

    return create_agent(Model(sent=[]), middleware=[ConversationMiddleware(async_store=store.exclusive())])


def with_llama_index(store: AsyncHistoryStore, sent: Sent) -> Any:
    def respond(messages: Any, **_: Any) -> ChatMessage:
        sent.append([message.content for message in messages])
        return ChatMessage(role="assistant", content="t")

    return FunctionAgent(tools=[], llm=MockFunctionCallingLLM(response_generator=respond), streaming=False)


def with_google_adk(store: AsyncHistoryStore, sent: Sent) -> Any:
    class Model(BaseLlm):
        async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
            sent.append([part.text for content in llm_request.contents for part in content.parts])
            yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text="t")]))

    service = AdkSessionService(store.exclusive())
    agent = LlmAgent(name="bot", model=Model(model="scripted"))
    return AdkRunner(agent=agent, app_name="shop", session_service=service, auto_create_session=True)


def with_strands(store: AsyncHistoryStore, sent: Sent) -> Any:
    class Model(test_strands.Model):
        async def stream(self, messages: Any, *arguments: Any, **options: Any) -> Any:  # type: ignore[override]
            sent.append([block["text"] for message in messages for block in message["content"]])
            async for one in super().stream(messages, *arguments, **options):
                yield one

    return Model()


def answer_of(name: str, store: Any, agent: Any) -> Any:
    """The function of the page, for an agent."""
    [block] = [one for one in blocks(DOCS / "how-to" / "frameworks.md") if f"def {name}(" in one.content]
    names: dict[str, Any] = {
        "store": store,
        "asyncio": asyncio,
        "Agent": partial(StrandsAgent, callback_handler=None),
        **{
            one.__name__: one
            for one in (
                *(AgentsSession, LlamaIndexMemoryStore, Memory, PydanticAIHistory),
                *(RepositorySessionManager, StrandsSessionRepository),
            )
        },
    }
    exec(block.content, names)
    return partial(names[name], agent)


FRAMEWORKS = [
    with_openai_agents,
    with_pydantic_ai,
    with_agent_framework,
    with_langchain,
    with_llama_index,
    with_google_adk,
    with_strands,
]


@pytest.mark.proves("frameworks")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("place", ["worker", pytest.param("chat", marks=pytest.mark.full)])
async def test_a_stored_question_is_answered(
    async_store: AsyncHistoryStore,
    server: RealServer,
    namespace: str,
    framework: Callable[[AsyncHistoryStore, Sent], Any],
    place: str,
) -> None:
    agents.set_tracing_disabled(True)
    name = "adk/shop/ann%40example.com/c%2F1" if framework is with_google_adk else "c"
    sent: Sent = []
    with HistoryStore(server.url, namespace=namespace) as blocking:
        is_blocking = framework in (with_llama_index, with_strands)
        answer = answer_of(framework.__name__, blocking if is_blocking else async_store, framework(async_store, sent))
        worker: Any = Worker(blocking, answer) if is_blocking else AsyncWorker(async_store, answer)
        for number in (1, 2):
            before = [message.text for message in await async_store.get(name)]
            if place == "worker":
                async with working(worker):
                    await async_store.ask(name, user(f"q{number}"))
                    await until(lambda: _is_answered(async_store, name), "the answer")
            elif is_blocking:
                async with working(worker):
                    await in_chat(ChatEndpoints(async_store, authorize=allow_all), name, f"q{number}")
            else:
                await in_chat(ChatEndpoints(async_store, answer, authorize=allow_all), name, f"q{number}")
            assert sent == [[*before, f"q{number}"]]
            stored = await async_store.get(name)
            assert [message.text for message in stored[:-1]] == sent.pop()
            assert (stored[-1].role, stored[-1].status) == ("assistant", "complete")


@asynccontextmanager
async def working(worker: Any) -> AsyncIterator[None]:
    running: Any
    if isinstance(worker, Worker):
        running = threading.Thread(target=worker.run)
        running.start()
    else:
        running = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await (asyncio.to_thread(running.join) if isinstance(worker, Worker) else running)


async def _is_answered(store: AsyncHistoryStore, name: str) -> bool:
    turns = await store.list_turns()
    assert all(one.status != "parked" for one in turns), turns
    return not turns


async def in_chat(chat: ChatEndpoints, name: str, text: str) -> None:
    app = Starlette(routes=[chat.mount("/api/chat")], lifespan=chat.lifespan)
    message = {"id": text, "role": "user", "parts": [{"type": "text", "text": text}]}
    async with listening(app, lifespan="on") as port, httpx.AsyncClient(timeout=20) as client:
        body = {"id": name, "messages": [message], "trigger": "submit-message"}
        response = await client.post(f"http://127.0.0.1:{port}/api/chat", json=body)
        assert response.status_code == 200, response.text
        assert '"error"' not in response.text, response.text
