"""Live replies of the frameworks: readers see an answer while it is written, and the stored turn is the same."""

import asyncio
import gc
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import httpx
import pytest
from agent_framework import Agent as FrameworkAgent
from agent_framework import AgentSession
from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool
from google.adk.agents import LlmAgent, ParallelAgent
from google.adk.agents.run_config import RunConfig as AdkRunConfig
from google.adk.agents.run_config import StreamingMode
from google.adk.events import Event, EventActions
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner as AdkRunner
from google.adk.sessions import InMemorySessionService
from google.genai import types
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, TextBlock, ToolCallBlock
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.memory import Memory
from openai import AsyncOpenAI
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from redis_history import AsyncHistoryStore, HistoryStore, MessagesAppended, ReplyEnded, ReplyGrew
from redis_history.integrations.agent_framework import AgentFrameworkHistory
from redis_history.integrations.google_adk import AdkSessionService
from redis_history.integrations.llama_index import LlamaIndexMemoryStore
from redis_history.integrations.openai_agents import AgentsSession
from redis_history.integrations.pydantic_ai import PydanticAIHistory
from tests.integration.test_agent_framework import Model as FrameworkModel
from tests.integration.test_agent_framework import add as framework_add
from tests.integration.test_agent_loops import add, answer
from tests.integration.test_google_adk import Model as AdkModel
from tests.integration.test_google_adk import add as adk_add
from tests.support.models import ModelServer
from tests.support.servers import until

SESSION = "s"


@pytest.fixture
def grown() -> threading.Event:
    """Is set when a reader has seen a part of an answer."""
    return threading.Event()


@pytest.fixture
async def client(grown: threading.Event) -> AsyncIterator[AsyncOpenAI]:
    """With a model that writes the second half of an answer when a reader has seen the first half."""
    with ModelServer() as model:
        model.answer = answer
        model.pause = lambda piece: b"; " not in piece or grown.wait(20)
        http = httpx.AsyncClient(trust_env=False)
        async with AsyncOpenAI(base_url=f"{model.url}/v1", api_key="k", max_retries=0, http_client=http) as client:
            yield client


class Turns:
    """A turn of each framework that streams, with a live reply."""

    def __init__(self, store: HistoryStore, async_store: AsyncHistoryStore, client: AsyncOpenAI) -> None:
        self.sync, self.asynchronous, self.client = store, async_store, client
        self.conversation_id = SESSION

    async def openai_agents(self, text: str, _: Any) -> None:
        session = AgentsSession(SESSION, self.asynchronous)
        agent = Agent(name="a", model=OpenAIChatCompletionsModel("m", self.client), tools=[function_tool(add)])
        run = Runner.run_streamed(agent, text, session=session, run_config=RunConfig(tracing_disabled=True))
        async for _ in session.live(run.stream_events()):
            pass

    async def pydantic_ai(self, text: str, wait: Any) -> None:
        agent = PydanticAgent(OpenAIChatModel("m", provider=OpenAIProvider(openai_client=self.client)))
        agent.tool_plain(add)
        history = PydanticAIHistory(SESSION, self.asynchronous)
        async with agent.run_stream(text, message_history=await history.load()) as run:
            async for _ in history.live(run):
                await wait()

    async def llama_index(self, text: str, wait: Any) -> None:
        def say(messages: Any, **_: Any) -> ChatMessage:
            if messages[-1].role == "tool":
                return ChatMessage(role="assistant", content=f"It is {messages[-1].content}.")
            call = ToolCallBlock(tool_call_id=f"c{len(messages)}", tool_name="add", tool_kwargs={"a": 2, "b": 3})
            return ChatMessage(role="assistant", blocks=[TextBlock(text="I add."), call])

        class Slow(MockFunctionCallingLLM):
            """Its answer is whole, and stored, when a reader has seen it begin."""

            async def astream_chat(self, *arguments: Any, **options: Any) -> Any:
                pieces = await super().astream_chat(*arguments, **options)

                async def slowly() -> AsyncIterator[Any]:
                    async for piece in pieces:
                        yield piece
                        await wait()

                return slowly()

        chats = LlamaIndexMemoryStore(self.sync)
        agent = FunctionAgent(tools=[add], llm=Slow(response_generator=say))
        run = agent.run(text, memory=Memory.from_defaults(session_id=SESSION, chat_store=chats))
        async for _ in chats.live(SESSION, run.stream_events()):
            pass

    async def agent_framework(self, text: str, wait: Any) -> None:
        history = AgentFrameworkHistory(self.asynchronous)
        agent = FrameworkAgent(FrameworkModel(), tools=[framework_add], context_providers=[history])
        async for update in history.live(
            SESSION, agent.run(text, session=AgentSession(session_id=SESSION), stream=True)
        ):
            if update.text:
                await wait()

    async def google_adk(self, text: str, wait: Any) -> None:
        self.conversation_id = "adk/shop/ann/s"
        service = AdkSessionService(self.asynchronous)
        agent = LlmAgent(name="bot", model=AdkModel(model="scripted", requests=[]), tools=[adk_add])
        runner = AdkRunner(agent=agent, app_name="shop", session_service=service, auto_create_session=True)
        said = types.Content(role="user", parts=[types.Part(text=text)])
        async for event in service.live(runner, user_id="ann", session_id="s", new_message=said):
            if event.partial:
                await wait()


FRAMEWORKS = ["openai_agents", "pydantic_ai", "llama_index", "agent_framework", "google_adk"]


@pytest.mark.proves("frameworks")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_readers_see_an_answer_while_it_is_written(
    framework: str,
    store: HistoryStore,
    async_store: AsyncHistoryStore,
    client: AsyncOpenAI,
    grown: threading.Event,
) -> None:
    turns = Turns(store, async_store, client)
    name = "adk/shop/ann/s" if framework == "google_adk" else SESSION
    seen: list[Any] = []

    async def read() -> None:
        async with async_store.subscribe(name) as changes:
            async for event in changes:
                seen.append(event)
                if isinstance(event, ReplyGrew):
                    grown.set()

    async def wait() -> None:
        assert await asyncio.to_thread(grown.wait, 20)

    reader = asyncio.create_task(read())
    for text in ("Add 2 and 3", "Add 4 and 5"):
        grown.clear()
        await getattr(turns, framework)(text, wait)
    stored = await async_store.get(name)
    roles = ["user", "assistant", "tool", "assistant"]
    assert [message.role for message in stored] == roles * 2
    assert [message.status for message in stored] == ["complete"] * 8
    assert all(message.parts for message in stored)
    for call, result in ((1, 2), (5, 6)):
        assert [use.id for use in stored[call].tool_uses] == [one.tool_use_id for one in stored[result].tool_results]
    answers = {stored[3].id, stored[7].id}
    await until(
        lambda: answers <= {event.message_id for event in seen if isinstance(event, ReplyEnded)}, "the ends of both"
    )
    reader.cancel()
    begun = {
        one.id
        for event in seen
        if isinstance(event, MessagesAppended)
        for one in event.messages
        if one.status == "streaming"
    }
    assert answers <= begun


class Words(BaseLlm):
    """Says words that begin like those of another agent, each when `may_say` lets it."""

    words: list[str]
    may_say: Any

    async def generate_content_async(self, _: Any, stream: bool = False) -> AsyncGenerator[LlmResponse]:
        for number, word in enumerate(self.words):
            await self.may_say(number)
            yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text=word)]), partial=True)
        await self.may_say(len(self.words))
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text="".join(self.words))]))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("live", [True, False])
async def test_parallel_agents_write_replies_of_their_own_and_no_change_of_state_is_lost(
    async_store: AsyncHistoryStore, live: bool
) -> None:
    """Another request changes the state while they write. Without `live`, ADK's own service shows what is right."""
    service: Any = AdkSessionService(async_store) if live else InMemorySessionService()
    where: Any = {"app_name": "shop", "user_id": "ann", "session_id": "s"}
    turns = [asyncio.Event() for _ in range(7)]
    turns[0].set()

    def agent(name: str, places: list[int], words: list[str]) -> LlmAgent:
        async def may_say(number: int) -> None:
            await turns[places[number]].wait()

        model = Words(model="scripted", words=words, may_say=may_say)
        return LlmAgent(name=name, model=model, output_key=f"user:{name}")

    agents = [agent("one", [0, 4, 5], ["The ", "first."]), agent("two", [1, 2, 3], ["The ", "second."])]
    await service.create_session(**where)
    both = ParallelAgent(name="both", sub_agents=list(agents))
    runner = AdkRunner(agent=both, app_name="shop", session_service=service)
    said: Any = {"user_id": "ann", "session_id": "s", "new_message": types.UserContent("Hi")}
    streamed = AdkRunConfig(streaming_mode=StreamingMode.SSE)
    events = service.live(runner, **said) if live else runner.run_async(**said, run_config=streamed)
    step = 0
    async for event in events:
        step += 1
        if step == 3:  # both have begun: another request, which sees no half answers
            session = await service.get_session(**where)
            assert [one.author for one in session.events] == ["user"]
            changed = EventActions(state_delta={"theme": "dark", "user:one": "not yet"})
            await service.append_event(session, Event(author="ui", actions=changed))
        turns[step].set()
        assert event.author in ("one", "two")
    session = await service.get_session(**where)
    assert sorted((one.author, one.content and one.content.parts[0].text) for one in session.events[1:]) == [
        ("one", "The first."),
        ("two", "The second."),
        ("ui", None),
    ]
    answers = {"user:one": "The first.", "user:two": "The second."}
    assert session.state == {"theme": "dark", **answers}
    other = await service.create_session(app_name="shop", user_id="ann", session_id="other")
    assert other.state == answers
    if live:
        stored = await async_store.get("adk/shop/ann/s")
        assert [message.status for message in stored] == ["complete"] * 4


@pytest.mark.parametrize("failure", ["closed early", "erased"])
async def test_what_ends_a_live_reply_early(
    failure: str, store: HistoryStore, async_store: AsyncHistoryStore, client: AsyncOpenAI, grown: threading.Event
) -> None:
    """A reader that stops leaves the written text, marked as interrupted. Erased text stays erased."""
    turns = Turns(store, async_store, client)
    grown.set()

    async def streaming() -> list[str]:
        return [message.id for message in await async_store.get(SESSION) if message.status == "streaming"]

    async def has_ended() -> bool:
        return not await streaming()

    async def stop() -> None:
        reply = await until(streaming, "a streaming reply")
        if failure == "erased":
            await async_store.erase(SESSION, reply)
        else:
            raise LookupError

    if failure == "erased":
        await turns.pydantic_ai("Hi", stop)
        assert [message.role for message in await async_store.get(SESSION)] == ["user"]
        return
    with pytest.raises(LookupError):
        await turns.pydantic_ai("Hi", stop)
    gc.collect()
    await until(has_ended, "the end of the reply")
    stored = await async_store.get(SESSION)
    assert [(message.role, message.status) for message in stored] == [
        ("user", "complete"),
        ("assistant", "interrupted"),
    ]
