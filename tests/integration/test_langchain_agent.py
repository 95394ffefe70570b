"""The middleware with `create_agent` and a scripted model, next to LangGraph's own checkpointer in memory."""

import asyncio
import re
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import nullcontext
from datetime import datetime
from itertools import pairwise
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    HumanInTheLoopMiddleware,
    ModelCallLimitMiddleware,
    PIIMiddleware,
    SummarizationMiddleware,
)
from langchain.agents.structured_output import ToolStrategy
from langchain_core.language_models import BaseChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command
from pydantic import BaseModel

from redis_history import AsyncHistoryStore, HistoryStore, Message, ReplyEnded, RetryPolicy, TextPart, user
from redis_history.errors import ConfigurationError
from redis_history.integrations.langchain import LangChainHistory, live_replies
from redis_history.integrations.langchain_agent import ConversationMiddleware
from tests.support.servers import until

CONFIG: Any = {"configurable": {"thread_id": "t1"}}


class Model(BaseChatModel):
    """Calls a tool for each question, and answers with the result. Fails if it is asked "crash"."""

    requests: list[list[str]] = []  # noqa: RUF012 -- a pydantic field
    tool: str = "add"
    arguments: dict[str, Any] = {"a": 2, "b": 3}  # noqa: RUF012

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        self.requests.append([re.sub(r",? ?id='[^']*'", "", repr(message)) for message in messages])
        last = messages[-1]
        if last.content == "crash":
            raise RuntimeError("the model failed")
        if isinstance(last, ToolMessage):
            answer = AIMessage(f"It is {last.content}")
        else:
            call = {"name": self.tool, "args": self.arguments, "id": f"call-{len(messages)}"}
            answer = AIMessage("", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=answer)])

    def _stream(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        answer: Any = self._generate(messages).generations[0].message
        yield ChatGenerationChunk(message=AIMessageChunk(answer.content[:4], tool_calls=answer.tool_calls))
        yield ChatGenerationChunk(message=AIMessageChunk(answer.content[4:], chunk_position="last"))


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def ask(agent: Any, text: str) -> str:
    return str(agent.invoke({"messages": [HumanMessage(text)]}, CONFIG)["messages"][-1].content)


def stream(agent: Any, text: str) -> str:
    parts = list(agent.stream({"messages": [HumanMessage(text)]}, CONFIG, stream_mode="messages"))
    return "".join(str(part.content) for part, _ in parts if isinstance(part, AIMessageChunk))


@pytest.mark.proves("frameworks")
def test_a_graph_sends_the_model_the_same_as_with_the_checkpointer_in_memory(store: HistoryStore) -> None:
    """The recipe of the docs: load the messages into the state, and add those of the state after each step."""
    requests = []
    saver = InMemorySaver()
    for kept in (True, False):
        model = Model(requests=[])
        for question in ("What is 2 + 3?", "And again?"):
            builder = StateGraph(MessagesState)
            builder.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})  # noqa: B023
            builder.add_node("tools", ToolNode([add]))
            builder.add_edge(START, "model")
            builder.add_conditional_edges("model", tools_condition)
            builder.add_edge("tools", "model")
            graph = builder.compile(checkpointer=saver if kept else None)
            if kept:
                graph.invoke({"messages": [HumanMessage(question)]}, CONFIG)
            else:
                history = LangChainHistory("s", store)
                given: Any = {"messages": [*history.messages, HumanMessage(question)]}
                for state in graph.stream(given, stream_mode="values"):
                    history.add_messages(state["messages"])
        requests.append(model.requests)
    assert requests[0] == requests[1]
    assert [message.role for message in store.get("s")] == ["user", "assistant", "tool", "assistant"] * 2


async def test_asynchronous_calls_use_the_asynchronous_store(async_store: AsyncHistoryStore) -> None:
    for number in (1, 2):
        agent = create_agent(Model(requests=[]), [add], middleware=[ConversationMiddleware(async_store=async_store)])
        answer = await agent.ainvoke({"messages": [HumanMessage("What is 2 + 3?")]}, CONFIG)
        assert answer["messages"][-1].content == "It is 5"
        assert len(await async_store.get("t1")) == len(answer["messages"]) == 4 * number


def test_with_a_checkpointer_messages_are_stored_once(store: HistoryStore) -> None:
    agent = create_agent(
        Model(requests=[]), [add], middleware=[ConversationMiddleware(store)], checkpointer=InMemorySaver()
    )
    for number in (1, 2):
        ask(agent, "What is 2 + 3?")
        assert len(store.get("t1")) == 4 * number


@tool
def look(q: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Any:
    """Look at a page."""
    return Command(update={"messages": [ToolMessage("seen", tool_call_id=tool_call_id), HumanMessage("the picture")]})


class Page(BaseModel):
    """The answer to give."""

    q: str


ENDS: dict[str, Any] = {
    "structured output": {"tool": "Page", "response_format": ToolStrategy(Page)},
    "direct result": {"tools": [tool("look", description="Look.", return_direct=True)(lambda q: q)]},
    "rejected call": {"other": HumanInTheLoopMiddleware({"look": True})},
    "limit of calls": {"other": ModelCallLimitMiddleware(run_limit=1, exit_behavior="end")},
    "messages from a tool": {},
}


@pytest.mark.proves("frameworks")
@pytest.mark.parametrize("face", ["sync", "async"])
@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
@pytest.mark.parametrize("end", ENDS)
async def test_all_messages_are_stored_however_the_agent_ends(
    store: HistoryStore, async_store: AsyncHistoryStore, end: str, first: bool, face: str
) -> None:
    case = {
        "tools": [look],
        "tool": "look",
        "other": ModelCallLimitMiddleware(run_limit=9),
        "response_format": None,
        **ENDS[end],
    }
    ours = ConversationMiddleware(store, async_store=async_store)
    agent: Any = create_agent(
        Model(requests=[], tool=case["tool"], arguments={"q": "1"}),
        [] if case["response_format"] else case["tools"],
        middleware=[ours, case["other"]] if first else [case["other"], ours],
        response_format=case["response_format"],
        checkpointer=InMemorySaver() if end == "rejected call" else None,
    )

    async def run(given: Any) -> Any:
        return await agent.ainvoke(given, CONFIG) if face == "async" else agent.invoke(given, CONFIG)

    for _ in range(2):
        result = await run({"messages": [HumanMessage("Look")]})
        if end == "rejected call":
            result = await run(Command(resume={"decisions": [{"type": "reject", "message": "no"}]}))
        stored = store.get("t1")
        assert [message.id for message in stored] == [message.id for message in result["messages"]]
        assert {type(message) for message in result["messages"]} >= {HumanMessage, AIMessage, ToolMessage}
        calls = [use.id for message in stored for use in message.tool_uses]
        assert calls == [one.tool_use_id for message in stored for one in message.tool_results]


def test_what_another_middleware_summarizes_stays_in_the_archive(store: HistoryStore) -> None:
    """Complete, also if the summarizer runs before the results of tools are stored."""
    for number, first in enumerate((True, False)):
        model = Model(requests=[])
        summarizer = GenericFakeChatModel(messages=iter([AIMessage("SUMMARY")] * 9))
        other = SummarizationMiddleware(summarizer, trigger=("messages", 3), keep=("messages", 1))
        ours = ConversationMiddleware(store, conversation_id=f"c{number}")
        agent: Any = create_agent(model, [add], middleware=[ours, other] if first else [other, ours])
        for _ in range(3):
            agent.invoke({"messages": [HumanMessage("What is 2 + 3?")]})
        assert any("SUMMARY" in message for request in model.requests for message in request)
        found = store.get(f"c{number}", include_archived=True)
        roles = [message.role for message in found if not message.is_summary]
        assert roles == ["user", "assistant", "tool", "assistant"] * 3


class Scripted(GenericFakeChatModel):
    """Keeps what it is asked."""

    requests: list[str] = []  # noqa: RUF012 -- a pydantic field

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> Any:
        self.requests.append(str(messages))
        return super()._generate(messages, *args, **kwargs)


@pytest.mark.parametrize("face", ["sync", "async"])
@pytest.mark.parametrize("saves", [False, True], ids=["alone", "checkpointer"])
@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
async def test_what_another_middleware_redacts_is_stored_redacted(
    store: HistoryStore, async_store: AsyncHistoryStore, first: bool, saves: bool, face: str
) -> None:
    def find() -> str:
        """Find the address."""
        return "bob@mail.test"

    call = {"name": "find", "args": {}, "id": "c"}
    answers = [AIMessage("", tool_calls=[call, {**call, "id": "d"}]), AIMessage("It is bob@mail.test")] * 2
    model = Scripted(messages=iter([one.model_copy() for one in answers]), requests=[])
    other = PIIMiddleware("email", apply_to_input=True, apply_to_output=True, apply_to_tool_results=True)
    ours = ConversationMiddleware(store, async_store=async_store)
    middleware: Any = [ours, other] if first else [other, ours]
    agent = create_agent(model, [find], middleware=middleware, checkpointer=InMemorySaver() if saves else None)
    for turn in (1, 2):
        given: Any = {"messages": [HumanMessage("I am ann@mail.test")]}
        result = await agent.ainvoke(given, CONFIG) if face == "async" else agent.invoke(given, CONFIG)
        stored = store.get("t1")
        assert [message.id for message in stored] == [message.id for message in result["messages"]]
        assert len(stored) == 5 * turn
        assert "@" not in str(stored) + str(result["messages"]) + str(model.requests)


@pytest.mark.proves("frameworks")
@pytest.mark.parametrize("options", [{}, {"limit": 3}, {"limit": 1}], ids=str)
@pytest.mark.parametrize(
    "change", ["none", "another writer", "edited", "compacted", "all compacted", "deleted", "cleared"]
)
@pytest.mark.full
def test_with_a_checkpointer_the_prompt_is_what_is_stored(store: HistoryStore, change: str, options: Any) -> None:
    """The stored messages come in order, then the new one. Messages that are no longer stored do not return."""
    model = GenericFakeChatModel(messages=iter([AIMessage(f"a{number}") for number in range(9)]))
    middleware = ConversationMiddleware(store, **options)
    agent = create_agent(model, middleware=[middleware], checkpointer=InMemorySaver())
    for number in range(3):
        ask(agent, f"q{number}")
    messages = store.get("t1")
    if change == "another writer":
        store.append("t1", user("operator"))
    elif change == "edited":
        store.update_message("t1", Message(role="assistant", parts=(TextPart("edited"),), id=messages[-1].id))
    elif change == "deleted":
        store.delete_messages("t1", [messages[1].id, messages[-2].id])
    elif change == "cleared":
        store.clear("t1")
    elif change != "none":
        store.compact("t1", through=messages[-1 if change == "all compacted" else 3], summary="SUMMARY")
    for number in (3, 4):
        before = [message.text for message in store.get("t1", **options)]
        result = agent.invoke({"messages": [HumanMessage(f"q{number}")]}, CONFIG)
        new = [f"q{number}", f"a{number}"]
        assert [message.text for message in result["messages"]] == before + new
        assert [message.text for message in store.get("t1")][-2:] == new
    texts = [message.text for message in store.get("t1")]
    assert len(set(texts)) == len(texts)


def test_messages_of_a_checkpoint_that_were_never_stored_are_stored(store: HistoryStore) -> None:
    """Also if another conversation has stored them."""
    saver = InMemorySaver()
    model = GenericFakeChatModel(messages=iter([AIMessage(f"a{number}") for number in range(9)]))
    ask(create_agent(model, checkpointer=saver), "q0")
    for name, texts in {"one": ["q0", "a0", "q1", "a1"], "two": ["q0", "a0", "q1", "a1", "q2", "a2"]}.items():
        middleware = ConversationMiddleware(store, conversation_id=name)
        ask(create_agent(model, middleware=[middleware], checkpointer=saver), texts[-2])
        assert [message.text for message in store.get(name)] == texts


def test_what_was_said_before_a_crash_is_stored(store: HistoryStore) -> None:
    agent = create_agent(Model(requests=[]), [add], middleware=[ConversationMiddleware(store)])
    with pytest.raises(RuntimeError):
        ask(agent, "crash")
    assert [message.text for message in store.get("t1")] == ["crash"]


def test_the_agent_searches_its_own_conversation(store: HistoryStore) -> None:
    middleware = ConversationMiddleware(store, conversation_id="c", search=True)
    ask(create_agent(Model(requests=[]), [add], middleware=[middleware]), "My suitcase is green.")
    model = Model(requests=[], tool="conversation_search", arguments={"query": "suitcase"})
    assert "green" in ask(create_agent(model, [add], middleware=[middleware]), "Which color is it?")


@pytest.mark.parametrize("saver", [None, InMemorySaver()])
@pytest.mark.parametrize("thread_id", [42, 0, uuid.UUID(int=7)])
def test_a_thread_id_need_not_be_text(store: HistoryStore, thread_id: Any, saver: Any) -> None:
    agent = create_agent(Model(requests=[]), [add], middleware=[ConversationMiddleware(store)], checkpointer=saver)
    for text in ("Hi", "Again"):
        agent.invoke({"messages": [HumanMessage(text)]}, {"configurable": {"thread_id": thread_id}})
    assert [one.text for one in store.get(str(thread_id)) if one.role == "user"] == ["Hi", "Again"]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_question_that_comes_while_a_tool_works_stays_behind_its_result(
    async_store: AsyncHistoryStore, fails: bool
) -> None:
    class Strict(Model):
        def _generate(self, messages: list[BaseMessage], *arguments: Any, **options: Any) -> Any:
            for one, following in pairwise(messages):
                assert not getattr(one, "tool_calls", None) or following.type == "tool"
            return super()._generate(messages, *arguments, **options)

    @tool
    async def find() -> str:
        """Find."""
        if len(await async_store.get("c")) == 2:
            await async_store.append("c", user("And hurry!"))
            if fails:
                raise RuntimeError("the tool failed")
        return "5"

    middleware = ConversationMiddleware(async_store=async_store.exclusive(), conversation_id="c")
    agent: Any = create_agent(Strict(requests=[], tool="find", arguments={}), [find], middleware=[middleware])
    await async_store.append("c", user("2 + 3?"))
    for expected in (pytest.raises(RuntimeError) if fails else nullcontext(), nullcontext()):
        with expected:
            async with async_store.run("c"):
                await agent.ainvoke({"messages": []})
    assert (await async_store.get("c"))[-1].text == "It is 5"


def test_a_conversation_is_needed(store: HistoryStore) -> None:
    with pytest.raises(ConfigurationError):
        ConversationMiddleware()
    agent = create_agent(Model(requests=[]), [add], middleware=[ConversationMiddleware(store)])
    with pytest.raises(ConfigurationError):
        agent.invoke({"messages": [HumanMessage("Hi")]})


class Streaming(GenericFakeChatModel):
    """Streams an answer word by word, and fails at the word "crash"."""

    def _stream(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        for chunk in super()._stream(*args, **kwargs):
            if chunk.text == "crash":
                raise RuntimeError("the model failed")
            yield chunk


@pytest.mark.parametrize("face", ["sync", "async"])
async def test_a_streamed_answer_is_a_live_reply(
    store: HistoryStore, async_store: AsyncHistoryStore, face: str
) -> None:
    live = live_replies(async_store if face == "async" else store, "t1")
    model = Streaming(messages=iter([AIMessage("It is a word"), AIMessage("It will crash now")]), callbacks=[live])
    agent = create_agent(model, middleware=[ConversationMiddleware(store, async_store=async_store)])

    async def run(text: str) -> None:
        asked = {"messages": [HumanMessage(text)]}
        if face == "async":
            assert [part async for part in agent.astream(asked, CONFIG, stream_mode="messages")]
        else:
            assert list(agent.stream(asked, CONFIG, stream_mode="messages"))

    async with async_store.subscribe("t1") as changes:
        await run("What is it?")
        events: list[Any] = []
        while not events or not isinstance(events[-1], ReplyEnded):
            events.append(await changes.get(timeout=10))
            assert events[-1] is not None
    with pytest.raises(RuntimeError, match="the model failed"):
        await run("And now?")
    assert "".join(getattr(event, "delta", "") for event in events) == "It is a word"
    assert [(message.text, message.status) for message in store.get("t1")] == [
        ("What is it?", "complete"),
        ("It is a word", "complete"),
        ("And now?", "complete"),
        ("It will ", "interrupted"),
    ]
    assert [message.text for message in LangChainHistory("t1", store).messages][1] == "It is a word"


@pytest.mark.parametrize("how", ["closed", "cancelled"])
async def test_a_live_reply_ends_when_its_stream_is_left(async_store: AsyncHistoryStore, how: str) -> None:
    class Endless(Streaming):
        async def _astream(self, *args: Any, run_manager: Any = None, **kwargs: Any) -> AsyncIterator[Any]:
            yield ChatGenerationChunk(message=AIMessageChunk("It is"))
            await asyncio.Event().wait()

    live = live_replies(async_store, "t1")
    model = Endless(messages=iter([]), callbacks=[live])
    agent = create_agent(model, middleware=[ConversationMiddleware(async_store=async_store)])
    stream = agent.astream({"messages": [HumanMessage("What?")]}, CONFIG, stream_mode="messages")
    await anext(stream)

    async def is_stored() -> bool:
        found = await async_store.get("t1")
        return bool(found) and found[-1].text == "It is"

    await until(is_stored, "the beginning of the reply")
    if how == "closed":
        await stream.aclose()
    else:
        task = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    await until(lambda: is_interrupted(async_store), "the end of the reply", 5)
    assert (await async_store.get("t1"))[-1].text == "It is"


async def is_interrupted(store: AsyncHistoryStore) -> bool:
    return (await store.get("t1"))[-1].status == "interrupted"


def test_a_live_reply_that_fails_leaves_the_answer_alone(store: HistoryStore) -> None:
    with HistoryStore("redis://127.0.0.1:1", retry=RetryPolicy(deadline=0.0)) as away:
        model = Streaming(messages=iter([AIMessage("a b")]), callbacks=[live_replies(away, "t1")])
        agent = create_agent(model, middleware=[ConversationMiddleware(store)])
        assert list(agent.stream({"messages": [HumanMessage("Hi")]}, CONFIG, stream_mode="messages"))
    assert [message.text for message in store.get("t1")] == ["Hi", "a b"]


def test_what_the_model_of_a_tool_streams_is_no_live_reply(store: HistoryStore) -> None:
    other = Streaming(messages=iter([AIMessage("to myself")]))

    def think(a: int, b: int) -> str:
        """Ask another model."""
        return "".join(chunk.text for chunk in other.stream("?")).split()[-1]

    model = Model(requests=[], tool="think", callbacks=[live_replies(store, "t1")])
    agent = create_agent(model, [think], middleware=[ConversationMiddleware(store)])
    assert stream(agent, "What is it?").endswith("It is myself")
    assert [message.text for message in store.get("t1")] == ["What is it?", "", "myself", "It is myself"]


def test_an_artifact_with_a_date_does_not_end_the_run(store: HistoryStore) -> None:
    @tool(response_format="content_and_artifact")
    def when() -> tuple[str, Any]:
        """Tell the time."""
        return "now", {"at": datetime(2026, 1, 1)}

    agent = create_agent(Model(tool="when", arguments={}), [when], middleware=[ConversationMiddleware(store)])
    assert ask(agent, "When?") == "It is now"
    assert [message.role for message in store.get("t1")] == ["user", "assistant", "tool", "assistant"]
