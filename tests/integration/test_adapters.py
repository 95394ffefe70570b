"""Every adapter refuses a wrong kind of store when it is made, and names the class that it needs."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from agent_framework import Message as FrameworkMessage
from langchain_core.messages import HumanMessage
from llama_index.core.base.llms.types import ChatMessage
from pydantic_ai.messages import ModelRequest, UserPromptPart

from redis_history import AsyncHistoryStore, HistoryStore
from redis_history.errors import (
    InvalidConversationIdError,
    RedisHistoryError,
    StoreClosedError,
    StoreTypeError,
)
from redis_history.integrations import (
    ag_ui,
    agent_framework,
    ai_sdk,
    claude_agent_sdk,
    google_adk,
    langchain,
    langchain_agent,
    llama_index,
    mcp_server,
    openai_agents,
    pydantic_ai,
    telemetry,
)
from redis_history.web import ChatEndpoints

SYNC, ASYNC = HistoryStore, AsyncHistoryStore


def first(generator: Any) -> Any:
    """Generators check their arguments when they are first used."""
    return asyncio.run(anext(generator))


#: The adapters, and the kinds of stores that they take.
ADAPTERS: dict[str, tuple[Callable[[Any], Any], set[type]]] = {
    "AgentFrameworkHistory": (agent_framework.AgentFrameworkHistory, {SYNC, ASYNC}),
    "AdkSessionService": (google_adk.AdkSessionService, {SYNC, ASYNC}),
    "AgentsSession": (lambda store: openai_agents.AgentsSession("s", store), {SYNC, ASYNC}),
    "ClaudeSessionStore": (claude_agent_sdk.ClaudeSessionStore, {SYNC, ASYNC}),
    "LangChainHistory": (lambda store: langchain.LangChainHistory("s", store), {SYNC}),
    "LangChainHistory async": (lambda store: langchain.LangChainHistory("s", async_store=store), {ASYNC}),
    "ConversationMiddleware": (langchain_agent.ConversationMiddleware, {SYNC}),
    "ConversationMiddleware async": (lambda one: langchain_agent.ConversationMiddleware(async_store=one), {ASYNC}),
    "live_replies of LangChain": (lambda store: langchain.live_replies(store, "s"), {SYNC, ASYNC}),
    "LlamaIndexChatStore": (llama_index.LlamaIndexChatStore, {SYNC}),
    "LlamaIndexMemoryStore": (llama_index.LlamaIndexMemoryStore, {SYNC}),
    "PydanticAIHistory": (lambda store: pydantic_ai.PydanticAIHistory("s", store), {SYNC, ASYNC}),
    "mcp_server": (lambda store: mcp_server.mcp_server(store, everything=True), {ASYNC}),
    "instrument": (telemetry.instrument, {SYNC, ASYNC}),
    "ChatEndpoints": (lambda store: ChatEndpoints(store, print, authorize=lambda *_: True), {ASYNC}),
    "ui_message_stream": (lambda store: first(ai_sdk.ui_message_stream(store, "s")), {ASYNC}),
    "events of AG-UI": (lambda store: first(ag_ui.events(store, "s", run_id="r")), {ASYNC}),
    "search_tool of Agent Framework": (agent_framework.search_tool, {SYNC, ASYNC}),
    "search_tool of ADK": (google_adk.search_tool, {SYNC, ASYNC}),
    "search_tool of LangChain": (lambda store: langchain.search_tool(store, "s"), {SYNC, ASYNC}),
    "search_tool of LlamaIndex": (lambda store: llama_index.search_tool(store, "s"), {SYNC, ASYNC}),
    "search_tool of OpenAI Agents": (lambda store: openai_agents.search_tool(store, "s"), {SYNC, ASYNC}),
    "search_tool of Pydantic AI": (lambda store: pydantic_ai.search_tool(store, "s"), {SYNC, ASYNC}),
}
URL = "redis://user:pa55word@localhost:1/0"


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_wrong_store_is_refused_at_once(name: str) -> None:
    make, kinds = ADAPTERS[name]
    others = [kind("memory://") for kind in (SYNC, ASYNC) if kind not in kinds]
    for wrong in (*others, None, URL, 7, SYNC):
        with pytest.raises(StoreTypeError) as refused:
            make(wrong)
        assert isinstance(refused.value, TypeError)
        assert any(kind.__name__ in str(refused.value) for kind in kinds)
        assert "pa55word" not in str(refused.value)


MESSAGE = [ModelRequest(parts=[UserPromptPart("x")])]
#: The first call of each adapter, which uses its store.
CALLS: dict[str, tuple[type, Callable[[Any], Any]]] = {
    "AgentFrameworkHistory": (
        ASYNC,
        lambda store: agent_framework.AgentFrameworkHistory(store).save_messages(
            "s", [FrameworkMessage("user", ["x"])]
        ),
    ),
    "AdkSessionService": (
        ASYNC,
        lambda store: google_adk.AdkSessionService(store).create_session(app_name="a", user_id="u"),
    ),
    "AgentsSession": (
        ASYNC,
        lambda store: openai_agents.AgentsSession("s", store).add_items([{"role": "user", "content": "x"}]),
    ),
    "LangChainHistory": (
        SYNC,
        lambda store: langchain.LangChainHistory("s", store).add_messages([HumanMessage("x")]),
    ),
    "LangChainHistory async": (
        ASYNC,
        lambda store: langchain.LangChainHistory("s", async_store=store).aadd_messages([HumanMessage("x")]),
    ),
    "LlamaIndexChatStore": (
        SYNC,
        lambda store: llama_index.LlamaIndexChatStore(store).add_message("s", ChatMessage("x")),
    ),
    "LlamaIndexMemoryStore": (
        SYNC,
        lambda store: llama_index.LlamaIndexMemoryStore(store).add_message("s", ChatMessage("x")),
    ),
    "PydanticAIHistory": (ASYNC, lambda store: pydantic_ai.PydanticAIHistory("s", store).append(MESSAGE)),
    "PydanticAIHistory sync": (SYNC, lambda store: pydantic_ai.PydanticAIHistory("s", store).append_sync(MESSAGE)),
}


@pytest.mark.parametrize("name", CALLS)
async def test_a_closed_store_is_refused(name: str, server: Any, namespace: str) -> None:
    kind, call = CALLS[name]
    store = kind(server.url, namespace=namespace)
    closed = store.aclose() if kind is ASYNC else store.close()
    if closed is not None:
        await closed
    with pytest.raises(StoreClosedError):
        await result if inspect.isawaitable(result := call(store)) else None


@pytest.mark.parametrize("name", [name for name in CALLS if ADAPTERS.get(name, ("", ()))[1] == {SYNC, ASYNC}])
def test_a_synchronous_store_works_in_many_event_loops(name: str, store: HistoryStore) -> None:
    """Such as those of `asyncio.run` in the threads of a web server."""
    _, call = CALLS[name]

    async def run() -> None:
        await call(store)

    for _ in range(2):
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, run()).result()
    assert sum(max(one.message_count, 1) for one in store.list_conversations()) == 2


@pytest.mark.parametrize("wrong", ["", "x" * 600, "\ud800", None, 7], ids=["empty", "long", "surrogate", "None", "7"])
@pytest.mark.parametrize(
    "make",
    [
        lambda one, sync, asy: openai_agents.AgentsSession(one, asy),
        lambda one, sync, asy: langchain.LangChainHistory(one, sync),
        lambda one, sync, asy: langchain.live_replies(sync, one),
        lambda one, sync, asy: pydantic_ai.PydanticAIHistory(one, asy),
        lambda one, sync, asy: llama_index.LlamaIndexChatStore(sync).add_message(one, ChatMessage("x")),
        lambda one, sync, asy: asyncio.run(llama_index.LlamaIndexMemoryStore(sync).get_messages(one)),
        lambda one, sync, asy: mcp_server.mcp_server(asy, conversation_ids=[one]),
        lambda one, sync, asy: langchain_agent.ConversationMiddleware(sync, conversation_id=0 if one is None else one),
        lambda one, sync, asy: asyncio.run(
            google_adk.AdkSessionService(asy).get_session(app_name="a", user_id="u", session_id=one)
        ),
    ],
    ids=[
        "AgentsSession",
        "LangChain",
        "live_replies",
        "PydanticAI",
        "ChatStore",
        "MemoryStore",
        "MCP",
        "Middleware",
        "ADK",
    ],
)
def test_a_wrong_id_is_refused(make: Any, wrong: Any) -> None:
    with HistoryStore("memory://") as sync, pytest.raises(InvalidConversationIdError):
        make(wrong, sync, AsyncHistoryStore("memory://"))


def test_the_error_names_the_parameter_and_says_what_to_do() -> None:
    with pytest.raises(StoreTypeError, match=r"LlamaIndexChatStore needs a HistoryStore, not an AsyncHistoryStore"):
        llama_index.LlamaIndexChatStore(AsyncHistoryStore("memory://"))  # type: ignore[arg-type]
    with pytest.raises(
        StoreTypeError, match=r"store= of LangChainHistory needs a HistoryStore, not an AsyncHistoryStore"
    ):
        langchain.LangChainHistory("s", AsyncHistoryStore("memory://"))  # type: ignore[arg-type]
    with pytest.raises(
        StoreTypeError, match=r"AdkSessionService needs an .* not a str: create a store with AsyncHistory"
    ):
        google_adk.AdkSessionService(URL)  # type: ignore[arg-type]
    with pytest.raises(RedisHistoryError, match="this method of PydanticAIHistory needs a HistoryStore"):
        pydantic_ai.PydanticAIHistory("s", AsyncHistoryStore("memory://")).load_sync()
