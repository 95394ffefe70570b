"""Agents of two frameworks with a tool, on one conversation and one model server."""

import asyncio
import json
import re
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import httpx
import pytest
from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool
from openai import AsyncOpenAI
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from redis_history import AsyncHistoryStore
from redis_history.integrations.openai_agents import AgentsSession
from redis_history.integrations.pydantic_ai import PydanticAIHistory
from tests.support import sdk
from tests.support.models import ModelServer, completion
from tests.support.servers import RealServer


def add(a: int, b: int) -> int:
    return a + b


def answer(body: dict[str, Any]) -> dict[str, Any]:
    """Calls the tool for a question with two numbers. Otherwise the result of the tool and the number of questions."""
    messages = body["messages"]
    asked = [message["content"] for message in messages if message["role"] == "user"]
    if messages[-1]["role"] == "tool":
        return completion(f"{messages[-1]['content']}; {len(asked)} questions")
    numbers = [int(number) for number in re.findall(r"\d+", asked[-1])]
    if len(numbers) != 2:
        return completion(f"hello; {len(asked)} questions")
    return completion(None, calls=[(f"call_{numbers[0]}_{numbers[1]}", {"a": numbers[0], "b": numbers[1]})])


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with ModelServer() as model:
        model.answer = answer
        yield model


@pytest.fixture
async def client(model: ModelServer) -> AsyncIterator[AsyncOpenAI]:
    http = httpx.AsyncClient(trust_env=False)
    async with AsyncOpenAI(base_url=f"{model.url}/v1", api_key="k", max_retries=0, http_client=http) as client:
        yield client


async def openai_agents(client: AsyncOpenAI, store: AsyncHistoryStore, text: str) -> str:
    session = AgentsSession("c", store)
    agent = Agent(name="a", model=OpenAIChatCompletionsModel("openai_agents", client), tools=[function_tool(add)])
    run = Runner.run_streamed(agent, text, session=session, run_config=RunConfig(tracing_disabled=True))
    async for _ in run.stream_events():
        pass
    return str(run.final_output)


async def pydantic_ai(client: AsyncOpenAI, store: AsyncHistoryStore, text: str) -> str:
    agent = PydanticAgent(OpenAIChatModel("pydantic_ai", provider=OpenAIProvider(openai_client=client)))
    agent.tool_plain(add)
    history = PydanticAIHistory("c", store)
    async with agent.run_stream(text, message_history=await history.load()) as run:
        said = [part async for part in run.stream_text(delta=True)]
    await history.append(run.new_messages())
    return "".join(said)


FRAMEWORKS = [openai_agents, pydantic_ai]


def sent(model: ModelServer) -> list[tuple[str, list[Any]]]:
    """The frameworks that asked, and their messages in one form. OpenAI would accept all of them."""
    found = []
    for _, _, body in model.requests:
        sdk.validate("openai_chat", body["messages"])
        assert sdk.torn("openai_chat", body["messages"]) == []
        found.append((body["model"], [_plain(message) for message in body["messages"]]))
    return found


def _plain(message: dict[str, Any]) -> Any:
    calls = [(call["id"], json.loads(call["function"]["arguments"])) for call in message.get("tool_calls") or ()]
    return message["role"], message.get("tool_call_id"), message.get("content") or "", calls


def exchange(a: int, b: int, questions: int) -> list[Any]:
    """A question, the call of the tool, its result, and the answer."""
    call = f"call_{a}_{b}"
    return [
        ("user", None, f"Add {a} and {b}", []),
        ("assistant", None, "", [(call, {"a": a, "b": b})]),
        ("tool", call, str(a + b), []),
        ("assistant", None, f"{a + b}; {questions} questions", []),
    ]


@pytest.mark.proves("frameworks")
@pytest.mark.parametrize(("first", "second"), [*product(FRAMEWORKS, FRAMEWORKS)])
async def test_one_framework_goes_on_where_another_stopped(
    server: RealServer, namespace: str, model: ModelServer, client: AsyncOpenAI, first: Any, second: Any
) -> None:
    for turn, text in ((first, "Add 2 and 3"), (second, "Add 20 and 30"), (first, "And now?")):
        async with AsyncHistoryStore(server.url, namespace=namespace) as store:
            await turn(client, store, text)
            messages = await store.get("c")
    whole = [*exchange(2, 3, 1), *exchange(20, 30, 2), ("user", None, "And now?", [])]
    names = [turn.__name__ for turn in (first, first, second, second, first)]
    assert sent(model) == [(name, whole[:length]) for name, length in zip(names, (1, 3, 5, 7, 9), strict=True)]
    assert [message.role for message in messages] == [*(role for role, *_ in whole), "assistant"]
    assert [use.input for message in messages for use in message.tool_uses] == [{"a": 2, "b": 3}, {"a": 20, "b": 30}]


ANOTHER_PROCESS = """
import asyncio, sys
from redis_history import AsyncHistoryStore
from redis_history.integrations.openai_agents import AgentsSession

async def main(url, namespace):
    async with AsyncHistoryStore(url, namespace=namespace) as store:
        session = AgentsSession("c", store)
        assert [item.get("call_id") for item in await session.get_items()] == [None, "c1", "c1"]
        await session.add_items([
            {"role": "assistant", "content": "5"},
            {"role": "user", "content": "Add 20 and 30"},
            {"type": "function_call", "call_id": "c2", "name": "add", "arguments": '{"a":20,"b":30}'},
            {"type": "function_call_output", "call_id": "c2", "output": "50"},
        ])

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.proves("frameworks")
@pytest.mark.full
async def test_another_framework_in_another_process_goes_on(
    async_store: AsyncHistoryStore, server: RealServer, namespace: str
) -> None:
    history = PydanticAIHistory("c", async_store)
    call = ToolCallPart("add", {"a": 2, "b": 3}, tool_call_id="c1")
    begun: list[ModelMessage] = [
        ModelRequest(parts=[UserPromptPart("Add 2 and 3")]),
        ModelResponse(parts=[call]),
        ModelRequest(parts=[ToolReturnPart("add", 5, tool_call_id="c1")]),
    ]
    await history.append(begun)
    command = [sys.executable, "-c", ANOTHER_PROCESS, server.url, namespace]
    await asyncio.to_thread(subprocess.run, command, check=True, timeout=120, cwd=Path(__file__).parents[2])
    found = await history.load()
    assert found[:3] == begun
    parts: Any = [part for message in found[3:] for part in message.parts]
    assert [part.part_kind for part in parts] == ["text", "user-prompt", "tool-call", "tool-return"]
    assert (parts[2].args, parts[3].tool_call_id, parts[3].content) == ({"a": 20, "b": 30}, "c2", "50")


@pytest.mark.proves("frameworks")
async def test_both_at_once_lose_nothing(
    async_store: AsyncHistoryStore, model: ModelServer, client: AsyncOpenAI
) -> None:
    both_asked = threading.Barrier(2, timeout=30)

    def answer_together(body: dict[str, Any]) -> dict[str, Any]:
        if len(model.requests) <= 2 and body["messages"][-1]["role"] == "user":
            both_asked.wait()
        return answer(body)

    model.answer = answer_together
    runs = [turn(client, async_store, f"Add 1 and {n}") for n, turn in enumerate(FRAMEWORKS)]
    answers = await asyncio.gather(*runs)
    assert [said.split(";")[0] for said in answers] == ["1", "2"]
    messages = await async_store.get("c")
    assert sorted(message.role for message in messages) == ["assistant"] * 4 + ["tool"] * 2 + ["user"] * 2
    pairs = [
        (call.id, [result.tool_use_id for result in after.tool_results])
        for before, after in pairwise(messages)
        for call in before.tool_uses
    ]
    assert sorted(pairs) == [(one, [one]) for one in ("call_1_0", "call_1_1")], "each result is right after its call"
    for turn in FRAMEWORKS:
        await turn(client, async_store, "And now?")
    sent(model)
