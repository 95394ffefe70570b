"""Turns of each framework with a tool and a scripted model."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from typing import Any, Self

from agent_framework import Agent as FrameworkAgent
from agent_framework import AgentSession, InMemoryHistoryProvider
from agents import Agent, Model, ModelResponse, RunConfig, Runner, SQLiteSession, Usage, function_tool
from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig as AdkRunConfig
from google.adk.agents.run_config import StreamingMode
from google.adk.runners import Runner as AdkRunner
from google.adk.sessions import InMemorySessionService
from google.genai import types
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, TextBlock, ToolCallBlock
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.memory import Memory
from openai.types.responses import Response, ResponseCompletedEvent, ResponseFunctionToolCall, ResponseOutputMessage
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, TextPart, ToolCallPart
from pydantic_ai.messages import ModelResponse as PydanticResponse
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from redis_history.integrations.agent_framework import AgentFrameworkHistory
from redis_history.integrations.google_adk import AdkSessionService
from redis_history.integrations.llama_index import LlamaIndexMemoryStore
from redis_history.integrations.openai_agents import AgentsSession
from redis_history.integrations.pydantic_ai import PydanticAIHistory
from tests.integration import test_agent_framework, test_google_adk

TOOL = {"a": 2, "b": 3}


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Turns:
    """Turns on one conversation in `store`; None: in the framework's own memory. `requests` are what the model was
    sent, in a form without random ids and times."""

    def __init__(self, store: Any, conversation_id: str) -> None:
        self.store, self.id = store, conversation_id
        self.requests: list[Any] = []
        self.loop = asyncio.Runner()

    def take(self, texts: Iterable[str], *, only_streams: bool = False) -> Self:
        for number, text in enumerate(texts):
            if number % 2 or only_streams:
                self.run(self.stream(text))
            else:
                self.ask(text)
        return self

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        self.loop.run(work)

    def ask(self, text: str) -> None:
        """Take a turn without a stream, through the synchronous interface of the framework if there is one."""
        raise NotImplementedError

    async def stream(self, text: str) -> None:
        """A turn whose answer is streamed."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self.loop.get_loop()  # becomes the loop that synchronous interfaces use
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.close()

    @property
    def name(self) -> str:
        """The name of the conversation in the store."""
        return self.id


class AgentsModel(Model):
    def __init__(self, requests: list[Any]) -> None:
        self._requests = requests

    async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> ModelResponse:
        self._requests.append(json.loads(json.dumps(input)))
        last = input[-1]
        if last.get("type") == "function_call_output":
            content = [{"type": "output_text", "text": f"It is {last['output']}.", "annotations": []}]
            message = {"id": f"m{len(input)}", "type": "message", "role": "assistant", "status": "completed"}
            return ModelResponse([ResponseOutputMessage.model_validate({**message, "content": content})], Usage(), None)
        call = {"type": "function_call", "call_id": f"c{len(input)}", "name": "add", "arguments": json.dumps(TOOL)}
        return ModelResponse([ResponseFunctionToolCall.model_validate(call)], Usage(), None)

    async def stream_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> AsyncIterator[Any]:  # type: ignore[override]
        made = await self.get_response(system_instructions, input)
        response = Response.model_construct(id="r", output=made.output, usage=None)
        yield ResponseCompletedEvent.model_construct(type="response.completed", sequence_number=0, response=response)


class OpenAIAgents(Turns):
    def __init__(self, store: Any, conversation_id: str) -> None:
        super().__init__(store, conversation_id)
        self._session = AgentsSession(conversation_id, store) if store else SQLiteSession(conversation_id)
        self._options: Any = {"session": self._session, "run_config": RunConfig(tracing_disabled=True)}
        self._agent = Agent(name="a", model=AgentsModel(self.requests), tools=[function_tool(add)])

    def ask(self, text: str) -> None:
        Runner.run_sync(self._agent, text, **self._options)

    async def stream(self, text: str) -> None:
        run = Runner.run_streamed(self._agent, text, **self._options)
        async for _ in run.stream_events():
            pass

    def __exit__(self, *_: object) -> None:
        if isinstance(self._session, SQLiteSession):
            self._session.close()
        super().__exit__()


class PydanticAI(Turns):
    def __init__(self, store: Any, conversation_id: str) -> None:
        super().__init__(store, conversation_id)
        self._history = PydanticAIHistory(conversation_id, store) if store else None
        self._own: list[ModelMessage] = []
        self._agent = PydanticAgent(FunctionModel(self._answer, stream_function=self._words), tools=[add])

    def _next(self, messages: list[ModelMessage]) -> Any:
        dump = ModelMessagesTypeAdapter.dump_json(messages).decode()
        self.requests.append(re.sub(r'"(timestamp|run_id|conversation_id)":"[^"]*"', "", dump))
        last: Any = messages[-1].parts[-1]
        if last.part_kind == "tool-return":
            return TextPart(f"It is {last.content}.")
        return ToolCallPart("add", TOOL, tool_call_id=f"c{len(messages)}")

    def _answer(self, messages: list[ModelMessage], _: AgentInfo) -> PydanticResponse:
        return PydanticResponse(parts=[self._next(messages)])

    async def _words(self, messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[Any]:
        part = self._next(messages)
        if isinstance(part, TextPart):
            yield part.content[:3]
            yield part.content[3:]
        else:
            yield {0: DeltaToolCall(part.tool_name, json.dumps(part.args), tool_call_id=part.tool_call_id)}

    def ask(self, text: str) -> None:
        before = self._history.load_sync() if self._history else self._own
        run = self._agent.run_sync(text, message_history=before)
        if self._history:
            self._history.append_sync(run.new_messages())
        self._own = run.all_messages()

    async def stream(self, text: str) -> None:
        before = await self._history.load() if self._history else self._own
        async with self._agent.run_stream(text, message_history=before) as run:
            async for _ in self._history.live(run) if self._history else run.stream_text(delta=True):
                pass
        self._own = run.all_messages()


class LlamaIndexAgent(Turns):
    def __init__(self, store: Any, conversation_id: str) -> None:
        super().__init__(store, conversation_id)
        options: Any = {"chat_store": LlamaIndexMemoryStore(store)} if store else {}
        self.memory = Memory.from_defaults(session_id=conversation_id, **options)

    def _answer(self, messages: Sequence[ChatMessage], **_: Any) -> ChatMessage:
        self.requests.append([message.model_dump(mode="json") for message in messages])
        if messages[-1].role == "tool":
            return ChatMessage(role="assistant", content=f"It is {messages[-1].content}.")
        call = ToolCallBlock(tool_call_id=f"c{len(messages)}", tool_name="add", tool_kwargs=TOOL)
        return ChatMessage(role="assistant", blocks=[TextBlock(text="I add."), call])

    def ask(self, text: str) -> None:
        self.run(self._run(text, streaming=False))

    async def stream(self, text: str) -> None:
        await self._run(text, streaming=True)

    async def _run(self, text: str, *, streaming: bool) -> None:
        model = MockFunctionCallingLLM(response_generator=self._answer)
        run = FunctionAgent(tools=[add], llm=model, streaming=streaming).run(text, memory=self.memory)
        async for _ in run.stream_events():
            pass
        await run

    def __exit__(self, *_: object) -> None:
        if not self.store:
            self.loop.run(self.memory.sql_store._async_engine.dispose())
        super().__exit__()


class MicrosoftAgentFramework(Turns):
    def __init__(self, store: Any, conversation_id: str) -> None:
        super().__init__(store, conversation_id)
        model = test_agent_framework.Model()
        self.requests = model.requests
        provider = AgentFrameworkHistory(store) if store else InMemoryHistoryProvider()
        self._agent = FrameworkAgent(model, tools=[test_agent_framework.add], context_providers=[provider])
        self._session = AgentSession(session_id=conversation_id)

    def ask(self, text: str) -> None:
        async def run() -> None:
            await self._agent.run(text, session=self._session)

        self.run(run())

    async def stream(self, text: str) -> None:
        async for _ in self._agent.run(text, session=self._session, stream=True):
            pass


class GoogleADK(Turns):
    def __init__(self, store: Any, conversation_id: str) -> None:
        super().__init__(store, conversation_id)
        model = test_google_adk.Model(model="scripted", requests=[])
        self.requests = model.requests
        service = AdkSessionService(store) if store else InMemorySessionService()
        agent = LlmAgent(
            name="bot", model=model, tools=[test_google_adk.add], instruction="Sums: {user:sums?}.", output_key="last"
        )
        self._runner = AdkRunner(agent=agent, app_name="shop", session_service=service, auto_create_session=True)
        self._where = {"user_id": "ann", "session_id": conversation_id}

    @property
    def name(self) -> str:
        return f"adk/shop/ann/{self.id}"

    def ask(self, text: str) -> None:
        said = types.Content(role="user", parts=[types.Part(text=text)])
        assert list(self._runner.run(**self._where, new_message=said))

    async def stream(self, text: str) -> None:
        said = types.Content(role="user", parts=[types.Part(text=text)])
        streams = AdkRunConfig(streaming_mode=StreamingMode.SSE)
        async for _ in self._runner.run_async(**self._where, new_message=said, run_config=streams):
            pass


FRAMEWORKS: dict[str, type[Turns]] = {
    "openai_agents": OpenAIAgents,
    "pydantic_ai": PydanticAI,
    "llama_index_agent": LlamaIndexAgent,
    "agent_framework": MicrosoftAgentFramework,
    "google_adk": GoogleADK,
}
