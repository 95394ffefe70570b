"""Two concurrent turns on one conversation, with each adapter: torn without runs, and one after the other with them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from agent_framework import Content
from agent_framework import Message as FrameworkMessage
from google.adk.events import Event
from google.genai import types
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.prebuilt.chat_agent_executor import _validate_chat_history
from pydantic_ai import Agent
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.test import TestModel

from redis_history import AsyncHistoryStore
from redis_history.errors import RunLostError
from redis_history.formats import to_openai_chat
from redis_history.integrations.agent_framework import AgentFrameworkHistory
from redis_history.integrations.google_adk import AdkSessionService
from redis_history.integrations.langchain import LangChainHistory
from redis_history.integrations.openai_agents import AgentsSession
from redis_history.integrations.pydantic_ai import PydanticAIHistory
from tests.support.sdk import torn
from tests.support.servers import until

NAME = "adk/shop/ann/s"  # of the conversation: that of a session of ADK
Turn = Callable[[AsyncHistoryStore, str], AsyncIterator[None]]


async def openai_agents(store: AsyncHistoryStore, text: str) -> AsyncIterator[None]:
    session = AgentsSession(NAME, store)
    call = {"type": "function_call", "call_id": text, "name": "find", "arguments": "{}"}
    await session.add_items([{"role": "user", "content": text}, call])  # type: ignore[list-item]
    yield
    result = {"type": "function_call_output", "call_id": text, "output": "found"}
    await session.add_items([result, {"role": "assistant", "content": f"answer to {text}"}])  # type: ignore[list-item]


async def langchain(store: AsyncHistoryStore, text: str) -> AsyncIterator[None]:
    history = LangChainHistory(NAME, async_store=store)
    call = {"name": "find", "args": {}, "id": text}
    await history.aadd_messages([HumanMessage(text), AIMessage("", tool_calls=[call])])
    yield
    await history.aadd_messages([ToolMessage("found", tool_call_id=text), AIMessage(f"answer to {text}")])


async def pydantic_ai(store: AsyncHistoryStore, text: str) -> AsyncIterator[None]:
    history = PydanticAIHistory(NAME, store)
    call = ToolCallPart("find", {}, tool_call_id=text)
    await history.append([ModelRequest([UserPromptPart(text)]), ModelResponse([call])])
    yield
    result = ToolReturnPart("find", "found", tool_call_id=text)
    await history.append([ModelRequest([result]), ModelResponse([TextPart(f"answer to {text}")])])


async def agent_framework(store: AsyncHistoryStore, text: str) -> AsyncIterator[None]:
    history = AgentFrameworkHistory(store)
    call = Content.from_function_call(text, "find", arguments="{}")
    await history.save_messages(NAME, [FrameworkMessage("user", [text]), FrameworkMessage("assistant", [call])])
    yield
    result = FrameworkMessage("tool", [Content.from_function_result(text, result="found")])
    await history.save_messages(NAME, [result, FrameworkMessage("assistant", [f"answer to {text}"])])


async def google_adk(store: AsyncHistoryStore, text: str) -> AsyncIterator[None]:
    service = AdkSessionService(store)
    session = await service.get_session(app_name="shop", user_id="ann", session_id="s")
    assert session is not None

    async def append(role: str, part: types.Part) -> None:
        author = "user" if role == "user" and part.text else "bot"
        await service.append_event(session, Event(author=author, content=types.Content(role=role, parts=[part])))

    await append("user", types.Part(text=text))
    await append("model", types.Part(function_call=types.FunctionCall(id=text, name="find", args={})))
    yield
    response = types.FunctionResponse(id=text, name="find", response={"result": "found"})
    await append("user", types.Part(function_response=response))
    await append("model", types.Part(text=f"answer to {text}"))


TURNS: list[Turn] = [openai_agents, langchain, pydantic_ai, agent_framework, google_adk]


async def take(turns: AsyncIterator[None], meanwhile: Callable[[], Awaitable[None]]) -> None:
    async for _ in turns:
        await meanwhile()


async def requests(store: AsyncHistoryStore) -> list[Any]:
    return to_openai_chat(await store.get(NAME), on_loss=lambda loss: None)


@pytest.fixture
async def session(async_store: AsyncHistoryStore) -> AsyncHistoryStore:
    """A store with a session of ADK."""
    await AdkSessionService(async_store).create_session(app_name="shop", user_id="ann", session_id="s")
    return async_store


@pytest.mark.proves("runs")
@pytest.mark.parametrize("turn", TURNS)
async def test_two_turns_at_once(session: AsyncHistoryStore, turn: Turn) -> None:
    """Without runs, no provider accepts the conversation while both are at work."""
    first, second = turn(session, "one"), turn(session, "two")
    await anext(first)
    await anext(second)
    assert set(torn("openai_chat", await requests(session))) == {"one", "two"}


@pytest.mark.proves("runs")
@pytest.mark.parametrize("turn", TURNS)
async def test_two_turns_in_runs(session: AsyncHistoryStore, turn: Turn) -> None:
    working = asyncio.Event()

    async def work(text: str) -> None:
        async with session.run(NAME, wait=20):
            await take(turn(session.exclusive(), text), until_the_other_waits if text == "one" else not_at_all)

    async def until_the_other_waits() -> None:
        working.set()

        async def waits() -> bool:
            run = await session.get_run(NAME)
            return run is not None and len(run.waiting) == 1

        await until(waits, "the second turn to wait")

    async def not_at_all() -> None: ...

    first = asyncio.create_task(work("one"))
    await working.wait()
    await asyncio.gather(first, work("two"))
    found = await requests(session)
    assert torn("openai_chat", found) == []
    said = [one["content"] for one in found if one["role"] != "tool" and one.get("content")]
    assert said == ["one", "answer to one", "two", "answer to two"]


@pytest.mark.proves("runs")
@pytest.mark.parametrize("turn", TURNS)
async def test_a_lost_run_writes_nothing(session: AsyncHistoryStore, turn: Turn) -> None:
    async def lose() -> None:
        await session.delete_conversation(NAME)

    async def work() -> None:
        async with session.run(NAME):
            await take(turn(session.exclusive(), "one"), lose)

    with pytest.raises(RunLostError):
        await anext(turn(session.exclusive(), "without a run"))
    with pytest.raises(RunLostError):
        await work()
    assert await session.get(NAME) == []


async def test_what_frameworks_say_to_a_turn_during_another(async_store: AsyncHistoryStore) -> None:
    """The errors that docs/how-to/runs.md names."""
    await anext(pydantic_ai(async_store, "one"))
    before: list[ModelMessage] = await PydanticAIHistory(NAME, async_store).load()
    with pytest.raises(UserError, match="unprocessed tool calls"):
        await Agent(TestModel()).run("two", message_history=before)
    messages = await LangChainHistory(NAME, async_store=async_store).aget_messages()
    with pytest.raises(ValueError, match="INVALID_CHAT_HISTORY"):
        _validate_chat_history([*messages, HumanMessage("two")])
