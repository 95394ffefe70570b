"""The search tool as the native tool of each framework, with both kinds of stores."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from agent_framework import AgentSession, FunctionInvocationContext
from google.adk.sessions import Session
from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel

from redis_history import AsyncHistoryStore, HistoryStore, assistant, user
from redis_history.integrations import agent_framework, google_adk, langchain, llama_index, openai_agents, pydantic_ai

MODULES = [agent_framework, google_adk, langchain, llama_index, openai_agents, pydantic_ai]


# The tool leaves out the turn in progress, so a question follows.
STORED = {
    "trip": [user("The hotel is in Oslo."), assistant("Fine."), user("And where?")],
    "other": [user("Another hotel."), assistant("Fine."), user("And where?")],
}


@pytest.fixture(params=["sync", "async"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    if request.param == "sync":
        with HistoryStore("memory://") as sync_store:
            for conversation_id, messages in STORED.items():
                sync_store.append_many(conversation_id, messages)
            yield sync_store
    else:
        async with AsyncHistoryStore("memory://") as async_store:
            for conversation_id, messages in STORED.items():
                await async_store.append_many(conversation_id, messages)
            yield async_store


async def ask(module: Any, store: Any, arguments: dict[str, Any]) -> str:
    tool = module.search_tool(store, "trip", token_cap=500)
    if module is langchain:
        return str(await tool.ainvoke(arguments))
    if module is llama_index:
        return str((await tool.acall(**arguments)).content)
    if module is agent_framework:
        return str((await tool.invoke(arguments=arguments))[0].text)
    if module is google_adk:
        assert tool._get_declaration().parameters_json_schema["required"] == ["query"]
        return str(await tool.run_async(args=arguments, tool_context=None))
    if module is openai_agents:
        return str(await tool.on_invoke_tool(None, str(arguments).replace("'", '"')))

    def model(messages: list[Any], info: Any) -> ModelResponse:
        done = isinstance(messages[-1].parts[0], ToolReturnPart)
        return ModelResponse([TextPart("done") if done else ToolCallPart("conversation_search", arguments)])

    result = await Agent(FunctionModel(model), tools=[tool]).run("Where is it?")
    (answer,) = (
        part.content for one in result.all_messages() for part in one.parts if isinstance(part, ToolReturnPart)
    )
    return str(answer)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
async def test_the_tool_searches_its_conversation_only(module: Any, store: Any) -> None:
    answer = await ask(module, store, {"query": "hotel", "limit": 3})
    assert "Oslo" in answer
    assert "Another" not in answer
    tool = module.search_tool(store, "trip")
    name = tool.metadata.name if module is llama_index else tool.name
    assert name == "conversation_search"


def test_synchronous_calls() -> None:
    with HistoryStore("memory://") as store:
        store.append_many("trip", STORED["trip"])
        assert "Oslo" in langchain.search_tool(store, "trip").invoke({"query": "hotel"})
        assert "Oslo" in str(llama_index.search_tool(store, "trip").call(query="hotel").content)


async def test_the_session_in_which_the_agent_runs() -> None:
    async with AsyncHistoryStore("memory://") as store:
        await store.append_many("trip", STORED["trip"])
        await store.append_many("adk/shop/ann/1", STORED["trip"])
        tool = agent_framework.search_tool(store)
        session = AgentSession(session_id="trip")
        context = FunctionInvocationContext(tool, {"query": "hotel"}, session=session)
        assert "Oslo" in (await tool.invoke(context=context))[0].text
        assert "Oslo" not in (await tool.invoke(arguments={"query": "hotel"}))[0].text
        adk = google_adk.search_tool(store)
        where: Any = SimpleNamespace(session=Session(app_name="shop", user_id="ann", id="1"))
        assert "Oslo" in await adk.run_async(args={"query": "hotel"}, tool_context=where)
