"""Rules of all adapters: the constructor rejects the wrong kind of store, and values without a JSON form are stored."""

import asyncio
import inspect
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from agent_framework import Content as FrameworkContent
from agent_framework import Message as FrameworkMessage
from google.adk.events import Event, EventActions
from google.genai import types
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from llama_index.core.base.llms.types import ChatMessage, ToolCallBlock
from pydantic_ai.messages import ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart, UserPromptPart

from redis_history import AsyncHistoryStore, HistoryStore, Message, assistant, text, tool_result, tool_use, user
from redis_history.errors import (
    InvalidConversationIdError,
    InvalidMessageError,
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
    strands,
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
    "StrandsSessionRepository": (strands.StrandsSessionRepository, {SYNC}),
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
    "search_tool of Strands": (lambda store: strands.search_tool(store, "s"), {SYNC}),
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
    """The threads of a web server, for example, each call `asyncio.run`."""
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


SIZE: Any = {"size": (640, (4, 8))}
IN_CLAUDE = {"type": "tool_use", "id": "c", "name": "f", "input": SIZE}
ENTRIES: Any = [
    {"type": "assistant", "uuid": "1", "message": {"role": "assistant", "content": [IN_CLAUDE]}, "own": SIZE},
    {"type": "progress", "uuid": "2", "own": SIZE},
]


async def in_agent_framework(store: AsyncHistoryStore) -> Any:
    call = FrameworkContent.from_function_call("c", "f", arguments=SIZE, additional_properties={"own": SIZE})
    adapter = agent_framework.AgentFrameworkHistory(store)
    await adapter.save_messages("s", [FrameworkMessage("assistant", [call])])
    [found] = (await adapter.get_messages("s"))[0].contents
    return [found.arguments, found.additional_properties["own"]]


async def in_adk(store: AsyncHistoryStore) -> Any:
    service = google_adk.AdkSessionService(store)
    where: Any = {"app_name": "a", "user_id": "u", "session_id": "s"}
    session = await service.create_session(**where, state=SIZE)
    parts = [
        types.Part(function_call=types.FunctionCall(name="f", id="c", args=SIZE)),
        types.Part(function_response=types.FunctionResponse(name="f", id="c", response=SIZE)),
    ]
    for part in parts:
        actions = EventActions(state_delta={"own": SIZE, "user:own": SIZE})
        content = types.Content(role="model", parts=[part])
        await service.append_event(session, Event(author="a", content=content, actions=actions, custom_metadata=SIZE))
    found = await service.get_session(**where)
    call, result = [event.content.parts[0] for event in found.events]  # type: ignore[union-attr,index]
    state = found.state
    metadata = [event.custom_metadata for event in found.events]
    return [call.function_call.args, result.function_response.response, state["own"], state["user:own"], *metadata]  # type: ignore[union-attr]


async def in_openai_agents(store: AsyncHistoryStore) -> Any:
    session = openai_agents.AgentsSession("s", store)
    items: Any = [
        {"role": "user", "content": [{"type": "input_text", "text": "x", "own": SIZE}], "own": SIZE},
        {"type": "function_call_output", "call_id": "c", "output": SIZE, "own": SIZE},
        {"own": SIZE},
    ]
    await session.add_items(items)
    asked, result, bare = await session.get_items()
    return [asked["content"][0]["own"], asked["own"], result["output"], result["own"], bare["own"]]  # type: ignore[index,typeddict-item]


async def in_claude_agent_sdk(store: AsyncHistoryStore) -> Any:
    adapter, key = claude_agent_sdk.ClaudeSessionStore(store), {"project_key": "p", "session_id": "s"}
    await adapter.append(key, ENTRIES)  # type: ignore[arg-type]
    said, other = await adapter.load(key) or ()  # type: ignore[arg-type,misc]
    return [said["message"]["content"][0]["input"], said["own"], other["own"]]


async def in_pydantic_ai(store: AsyncHistoryStore) -> Any:
    history = pydantic_ai.PydanticAIHistory("s", store)
    call = ToolCallPart("f", SIZE, tool_call_id="c", provider_details=SIZE)
    returned = ToolReturnPart("f", SIZE, "c", metadata=SIZE)
    await history.append([ModelResponse([call], provider_details=SIZE), ModelRequest([returned])])
    answer, request = await history.load()
    [call], [returned] = answer.parts, request.parts  # type: ignore[assignment]
    return [call.args, call.provider_details, answer.provider_details, returned.content, returned.metadata]  # type: ignore[union-attr]


async def in_langchain(store: AsyncHistoryStore) -> Any:
    history = langchain.LangChainHistory("s", async_store=store)
    answer = AIMessage("", tool_calls=[{"name": "f", "args": SIZE, "id": "c"}], response_metadata=SIZE)
    asked = HumanMessage([{"type": "text", "text": "x", "own": SIZE}], additional_kwargs=SIZE)
    await history.aadd_messages([asked, answer, ToolMessage("x", tool_call_id="c", artifact=(640, (4, 8)))])
    asked, answer, result = await history.aget_messages()  # type: ignore[assignment]
    shown: Any = asked.content
    values = [shown[0]["own"], asked.additional_kwargs, answer.tool_calls[0]["args"], answer.response_metadata]
    return [*values, {"size": result.artifact}]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "turn", [in_agent_framework, in_adk, in_openai_agents, in_claude_agent_sdk, in_pydantic_ai, in_langchain]
)
async def test_tuples_come_back_as_lists(turn: Callable[[Any], Any], async_store: AsyncHistoryStore) -> None:
    found = await turn(async_store)
    assert found == [{"size": [640, [4, 8]]}] * len(found)


def test_tuples_come_back_as_lists_in_llama_index(store: HistoryStore) -> None:
    adapter = llama_index.LlamaIndexChatStore(store)
    block = ToolCallBlock(tool_call_id="c", tool_name="f", tool_kwargs=SIZE)
    adapter.add_message("s", ChatMessage(role="assistant", blocks=[block], additional_kwargs=SIZE))
    [found] = adapter.get_messages("s")
    assert [found.blocks[0].tool_kwargs, found.additional_kwargs] == [{"size": [640, [4, 8]]}] * 2  # type: ignore[union-attr]


@pytest.mark.proves("frameworks")
def test_calls_and_results_within_a_reply_become_several_messages(store: HistoryStore) -> None:
    """A result follows its call. One of the messages can be changed or removed."""
    with store.stream("s", id="m") as reply:
        for part in (tool_use("1", "f"), tool_result("1", "r"), text("so"), tool_use("2", "f"), tool_result("2", "x")):
            reply.add(part)
    turns = pydantic_ai.PydanticAIHistory("s", store).load_sync()
    assert [[one.part_kind for one in turn.parts] for turn in turns] == [
        *[["tool-call"], ["tool-return"], ["text", "tool-call"], ["tool-return"]]
    ]
    chat = langchain.LangChainHistory("s", store)
    assert [one.type for one in chat.messages] == ["ai", "tool", "ai", "tool"]
    chats = llama_index.LlamaIndexChatStore(store)
    assert [one.role for one in chats.get_messages("s")] == ["assistant", "tool", "assistant", "tool"]
    chats.delete_message("s", 2)
    assert [one.type for one in chat.messages] == ["ai", "tool", "tool"]
    assert [part.type for part in store.get("s")[0].parts] == ["tool_use", "tool_result", "tool_result"]


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


def texts(store: HistoryStore) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in store.get("s")]


TAKES_DICTS: dict[str, tuple[Callable[[HistoryStore, Any], Any], list[Any]]] = {
    "Agent Framework": (
        lambda store, given: asyncio.run(agent_framework.AgentFrameworkHistory(store).save_messages("s", given)),
        [FrameworkMessage("user", ["Hi"]).to_dict(), {"role": "assistant", "contents": ["Hello"]}],
    ),
    "LangChain": (
        lambda store, given: langchain.LangChainHistory("s", store).add_messages(given),
        [HumanMessage("Hi").model_dump(), {"role": "assistant", "content": "Hello"}],
    ),
    "LlamaIndex": (
        lambda store, given: llama_index.LlamaIndexChatStore(store).set_messages("s", given),
        [ChatMessage(role="user", content="Hi").model_dump(mode="json"), {"role": "assistant", "content": "Hello"}],
    ),
    "LlamaIndex memory": (
        lambda store, given: asyncio.run(llama_index.LlamaIndexMemoryStore(store).add_messages("s", given)),
        [{"role": "user", "content": "Hi"}, ChatMessage(role="assistant", content="Hello")],
    ),
    "OpenAI Agents": (
        lambda store, given: asyncio.run(openai_agents.AgentsSession("s", store).add_items(given)),
        [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}],
    ),
    "Pydantic AI": (
        lambda store, given: pydantic_ai.PydanticAIHistory("s", store).append_sync(given),
        [
            {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "Hi"}]},
            {"kind": "response", "parts": [{"part_kind": "text", "content": "Hello"}]},
        ],
    ),
}


@pytest.mark.parametrize("name", TAKES_DICTS)
def test_messages_may_be_json_dicts(name: str) -> None:
    add, given = TAKES_DICTS[name]
    with HistoryStore("memory://", search="off") as store:
        wrong: Any
        for wrong in ([*given, 3], [*given, "text"], "text", 3, {"role": "user", "content": "Hi"}):
            with pytest.raises(InvalidMessageError):
                add(store, wrong)
        assert texts(store) == []
        add(store, given)
        assert texts(store) == [("user", "Hi"), ("assistant", "Hello")]


def in_order(value: Any) -> list[str]:
    """The markers of a framework's messages in order: texts, ids of calls and of results."""
    return re.findall(r"\[\w+\]", repr(value))


READERS: dict[str, Callable[[HistoryStore], Any]] = {
    "LangChainHistory": lambda store: langchain.LangChainHistory("c", store).messages,
    "LangChainHistory limit": lambda store: langchain.LangChainHistory("c", store, limit=9).messages,
    "LlamaIndexChatStore": lambda store: llama_index.LlamaIndexChatStore(store).get_messages("c"),
    "LlamaIndexMemoryStore": lambda store: asyncio.run(llama_index.LlamaIndexMemoryStore(store).get_messages("c")),
    "PydanticAIHistory": lambda store: pydantic_ai.PydanticAIHistory("c", store).load_sync(),
    "PydanticAIHistory limit": lambda store: pydantic_ai.PydanticAIHistory("c", store).load_sync(limit=9),
    "AgentFrameworkHistory": lambda store: [
        [content.to_dict() for content in message.contents]
        for message in asyncio.run(agent_framework.AgentFrameworkHistory(store).get_messages("c"))
    ],
    "AgentsSession": lambda store: asyncio.run(openai_agents.AgentsSession("c", store).get_items()),
    "AgentsSession limit": lambda store: asyncio.run(openai_agents.AgentsSession("c", store).get_items(10)),
    "StrandsSessionRepository": lambda store: [
        one["content"] for one in strands.StrandsSessionRepository(store).messages("c")
    ],
}


@pytest.mark.parametrize("name", READERS)
def test_results_follow_their_calls_whatever_others_wrote_in_between(name: str, store: HistoryStore) -> None:
    """Models reject a message of the user between a call and its result."""
    store.append_many(
        "c",
        [
            user("[u1]"),
            assistant(tool_use("[a]", "f", {})),
            user("[u2]"),
            user("[u3]"),
            Message(role="tool", parts=(tool_result("[a]", "1"),)),
            assistant(tool_use("[b]", "f", {}), tool_use("[c]", "f", {})),
            Message(role="tool", parts=(tool_result("[c]", "2"),)),
            user("[u4]"),
            Message(role="tool", parts=(tool_result("[b]", "3"),)),
        ],
    )
    expected = ["[u1]", "[a]", "[a]", "[u2]", "[u3]", "[b]", "[c]", "[c]", "[b]", "[u4]"]
    assert in_order(READERS[name](store)) == expected


@pytest.mark.parametrize("name", READERS)
def test_a_call_that_waits_for_an_approval_is_read(name: str, store: HistoryStore) -> None:
    store.append_many("c", [user("[u1]"), assistant(tool_use("[a]", "f", {})), user("[u2]")])
    assert in_order(READERS[name](store)) == ["[u1]", "[a]", "[u2]"]


def test_an_index_of_llama_index_is_that_of_its_list(store: HistoryStore) -> None:
    chats = llama_index.LlamaIndexChatStore(store)
    for last in (True, False):
        store.append_many(
            "c",
            [assistant(tool_use("[a]", "f", {})), user("[u1]"), Message(role="tool", parts=(tool_result("[a]", "1"),))],
        )
        removed = chats.delete_last_message("c") if last else chats.delete_message("c", 2)
        assert removed is not None
        assert removed.content == "[u1]"
        assert in_order(chats.get_messages("c")) == ["[a]", "[a]"]
        store.clear("c")
