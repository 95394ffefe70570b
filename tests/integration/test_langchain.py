"""LangChain: the tests that the framework has for its Redis history, ids of messages, and states of LangGraph."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import pytest
from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.runnables import RunnableLambda
from langchain_core.runnables.history import RunnableWithMessageHistory

from redis_history import AsyncHistoryStore, HistoryStore, Participant, assistant, tool, tool_result, tool_use, user
from redis_history.errors import ConfigurationError, InvalidMessageError
from redis_history.integrations.langchain import LangChainHistory
from tests.support.servers import RealServer


@pytest.fixture
def store(server: RealServer, namespace: str) -> Any:
    with HistoryStore(server.url, namespace=namespace) as store:
        yield store


CALL = {"name": "find", "args": {"q": ["x", 1.5, None]}, "id": "c1", "type": "tool_call"}
EVERY = [
    SystemMessage("Be brief."),
    HumanMessage("Hello 世界! 🌍", name="ann", id="h1", additional_kwargs={"k": {"n": 1}}),
    HumanMessage(
        [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "https://x.test/a.png"}}]
    ),
    AIMessage("", tool_calls=[CALL, {**CALL, "id": "c2"}], response_metadata={"model": "m"}),
    AIMessage([{"type": "thinking", "thinking": "hm", "signature": "c2ln"}, {"type": "text", "text": "4"}]),
    ToolMessage("rain", tool_call_id="c1", name="find", artifact={"raw": 1}),
    ToolMessage([{"type": "text", "text": "no"}], tool_call_id="c2", status="error"),
    AIMessage(""),
    HumanMessage(""),
    HumanMessage('"quotes", {braces} | @tag:{x} \\ and * <b>'),
]


def add_messages(state: list[BaseMessage], more: list[BaseMessage]) -> list[BaseMessage]:
    """What LangGraph's reducer of this name makes of a state: each message gets an id, and replaces that of its id."""
    for message in (*state, *more):
        message.id = message.id or str(uuid.uuid4())
    return list({message.id: message for message in (*state, *more)}.values())


def equal(found: list[BaseMessage], expected: list[BaseMessage]) -> bool:
    """Every message that is read has an id."""
    assert all(message.id for message in found)
    pairs = zip(found, expected, strict=True)
    return found == [given if given.id else given.model_copy(update={"id": message.id}) for message, given in pairs]


@pytest.mark.proves("frameworks")
def test_every_kind_of_message_comes_back_equal(store: Any) -> None:
    history = LangChainHistory("s", store)
    history.add_messages(EVERY)
    assert equal(history.messages, EVERY)
    assert len(history) == len(EVERY)
    for message in EVERY:
        history.add_message(message)
    without_id = [message for message in EVERY if not message.id]
    assert equal(history.messages, [*EVERY, *without_id])


def test_a_message_with_an_id_is_stored_once(store: Any) -> None:
    history = LangChainHistory("s", store)
    for _ in range(3):
        history.add_messages([HumanMessage("q", id="1"), AIMessage("a", id="2")])
        history.add_messages([HumanMessage("q", id="1"), AIMessage("a", id="2"), HumanMessage("r", id="3")])
    assert [message.id for message in history.messages] == ["1", "2", "3"]
    long = HumanMessage("long", id="x" * 2000)
    history.add_message(long)
    assert history.messages[-1] == long


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_state_that_is_saved_again_writes_only_what_changed(
    server: RealServer, namespace: str, store: Any, kind: str
) -> None:
    foreign = [
        user("hi", id="u", participant=Participant("user", "ann")),
        assistant("I look.", tool_use("1", "f"), tool_use("2", "f"), id="a", metadata={"channel_id": "C"}),
        tool(tool_result("1", "x"), tool_result("2", "y"), id="t"),
    ]
    store.append_many("s", foreign)
    async with AsyncHistoryStore(server.url, namespace=namespace) as async_store:
        history = LangChainHistory("s", store, async_store=async_store)

        async def save(messages: list[BaseMessage]) -> int:
            if kind == "async":
                await history.aadd_messages(messages)
            else:
                history.add_messages(messages)
            return store.get_conversation("s").revision

        before = store.get("s")
        state = add_messages([], history.messages)
        assert len(state) == 4, "one message for each result"
        revision = await save(state)
        assert store.get("s") == before
        assert revision == store.get_conversation("s").revision == 1
        state = add_messages(state, [AIMessage("done"), HumanMessage("more", id="h")])
        assert [await save(state), await save(state)] == [2, 2]
        state = add_messages(state, [HumanMessage("more!", id="h")])
        assert [await save(state), await save(state)] == [3, 3]
        assert store.get("s")[:3] == before, "nothing of the other framework's messages is lost"
        assert [message.text for message in store.get("s")[3:]] == ["done", "more!"]
        assert await save([RemoveMessage(id="h"), RemoveMessage(id="never stored")]) == 4
        assert history.messages == state[:-1]
        await save([RemoveMessage(id="__remove_all__"), HumanMessage("anew", id="n")])
        assert [message.id for message in history.messages] == ["n"]


def test_a_state_that_is_saved_after_compaction_adds_nothing_old(store: Any) -> None:
    history = LangChainHistory("s", store)
    state: list[BaseMessage] = [HumanMessage(str(n), id=str(n)) for n in range(6)]
    history.add_messages(state)
    store.compact("s", through=store.get("s")[3], summary="0 to 3")
    history.add_messages([*state, AIMessage("new", id="new")])
    assert [message.text for message in store.get("s")[1:]] == ["4", "5", "new"]


def test_integers_of_any_size_and_nan_survive(store: Any) -> None:
    history = LangChainHistory("s", store)
    call = {"name": "f", "args": {"n": 2**70, "x": [-(2**65)]}, "id": "c", "type": "tool_call"}
    messages = [
        AIMessage("", tool_calls=[call], response_metadata={"n": 2**70}),
        ToolMessage("x", tool_call_id="c", artifact={"n": 2**70}),
        HumanMessage([{"type": "new", "n": 2**70}]),
    ]
    history.add_messages(messages)
    assert equal(history.messages, messages)
    history.add_message(AIMessage("", tool_calls=[{**call, "args": {"x": float("nan")}}]))
    assert math.isnan(history.messages[-1].tool_calls[0]["args"]["x"])
    assert store.get("s")[0].tool_uses[0].input == '{"n": 1180591620717411303424, "x": [-36893488147419103232]}'


def test_sessions_are_separate_and_shared_by_id(store: Any) -> None:
    one, two = LangChainHistory("测试 🚀", store), LangChainHistory("550e8400-e29b-41d4-a716-446655440000", store)
    one.add_user_message("for one")
    two.add_ai_message("for two")
    LangChainHistory("测试 🚀", store).add_ai_message("and more")
    assert [message.content for message in one.messages] == ["for one", "and more"]
    one.clear()
    assert (one.messages, len(one)) == ([], 0)
    assert [message.content for message in two.messages] == ["for two"]
    one.add_user_message("again")
    assert len(one.messages) == 1
    assert bool(LangChainHistory("empty", store))


def test_many_and_large_messages(store: Any) -> None:
    history = LangChainHistory("s", store)
    history.add_messages([HumanMessage(f"Message {n}") for n in range(1200)])
    history.add_user_message("x" * 100_000)
    assert [message.content for message in history.messages[:-1]] == [f"Message {n}" for n in range(1200)]
    assert len(history.messages[-1].content) == 100_000
    assert LangChainHistory("s", store, limit=2).messages[0].content == "Message 1199"


@pytest.mark.proves("frameworks")
async def test_a_limit_leaves_out_results_whose_call_was_cut_off(server: RealServer, namespace: str) -> None:
    with HistoryStore(server.url, namespace=namespace) as store:
        calls = [{"id": "1", "name": "f", "args": {}}, {"id": "2", "name": "f", "args": {}}]
        said = [
            AIMessage("", tool_calls=calls),
            ToolMessage("x", tool_call_id="1"),
            ToolMessage("y", tool_call_id="2"),
            HumanMessage("q"),
        ]
        LangChainHistory("s", store).add_messages(said)
        lengths = [len(LangChainHistory("s", store, limit=limit).messages) for limit in (1, 2, 3, 4)]
        assert lengths == [1, 1, 1, 4]
        async with AsyncHistoryStore(server.url, namespace=namespace) as other:
            assert len(await LangChainHistory("s", async_store=other, limit=3).aget_messages()) == 1


def test_messages_of_a_history_are_searchable(store: Any) -> None:
    history = LangChainHistory("550e8400-e29b-41d4-a716-446655440000", store)
    history.add_messages([HumanMessage("Hello, how are you?"), AIMessage("Well."), HumanMessage("And the Weather?")])
    LangChainHistory("another", store).add_user_message("weather")
    (hit,) = store.search(history.session_id, "weather")
    assert hit.message.text == "And the Weather?"
    assert store.search(history.session_id, "nonexistent") == []


@pytest.mark.parametrize("session", ["", None, 5])
def test_an_invalid_session_id_is_refused(store: Any, session: Any) -> None:
    with pytest.raises(ValueError):
        LangChainHistory(session, store)


def test_a_missing_store_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        LangChainHistory("s")
    with pytest.raises(ConfigurationError):
        _ = LangChainHistory("s", async_store=AsyncHistoryStore("memory://")).messages


def test_an_invalid_message_changes_nothing(store: Any) -> None:
    history = LangChainHistory("s", store)
    with pytest.raises(InvalidMessageError):
        history.add_messages([HumanMessage("a"), HumanMessage("\ud800")])
    assert history.messages == []


@pytest.mark.parametrize("kind", ["async", "sync in a thread"])
async def test_asynchronous_methods(server: RealServer, namespace: str, kind: str) -> None:
    async with AsyncHistoryStore(server.url, namespace=namespace) as async_store:
        with HistoryStore(server.url, namespace=namespace) as store:
            history = LangChainHistory("s", store, async_store=async_store if kind == "async" else None)
            await history.aadd_messages(EVERY)
            assert equal(await history.aget_messages(), EVERY)
            await history.aclear()
            assert await history.aget_messages() == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_runnable_is_sent_the_same_as_with_the_history_in_memory(store: Any) -> None:
    theirs = InMemoryChatMessageHistory()
    sent: dict[bool, list[Any]] = {True: [], False: []}

    def model(kept: bool, messages: list[BaseMessage]) -> Iterator[AIMessageChunk]:
        sent[kept].append([(message.type, message.content) for message in messages])
        yield AIMessageChunk("I saw ")
        yield AIMessageChunk(f"{len(messages)}", chunk_position="last")

    for kept, text in product((True, False), ("one", "two", "three")):
        chain = RunnableWithMessageHistory(
            RunnableLambda(partial(model, kept)),
            lambda session: theirs if kept else LangChainHistory(session, store),  # noqa: B023
        )
        parts = list(chain.stream([HumanMessage(text)], config={"configurable": {"session_id": "s"}}))
        assert len([part for part in parts if part.content]) == 2
    assert sent[True] == sent[False]
    assert [len(messages) for messages in sent[True]] == [1, 3, 5]


def test_new_messages_are_added_without_reading_the_others(server: RealServer, namespace: str) -> None:
    with HistoryStore(server.url, namespace=namespace) as store:
        calls: list[str] = []
        execute = store._backend.execute
        store._backend.execute = lambda op: calls.append(type(op).__name__) or execute(op)  # type: ignore[method-assign,func-returns-value]
        history = LangChainHistory("c", store)
        history.add_messages([HumanMessage(str(number)) for number in range(5)])
        history.add_messages([HumanMessage("one", id="1"), HumanMessage("two", id="2")])
        assert calls == ["Append", "Append"]
        assert len(history.messages) == 7
