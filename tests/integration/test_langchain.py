"""The expectations of LangChain's own tests for its Redis history, and what ours adds."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.runnables.history import RunnableWithMessageHistory

from redis_history import AsyncHistoryStore, HistoryStore
from redis_history.errors import ConfigurationError, InvalidMessageError
from redis_history.integrations.langchain import LangChainHistory
from tests.conftest import Servers
from tests.support.servers import RealServer, wait_until


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


def test_every_kind_of_message_comes_back_equal(store: Any) -> None:
    history = LangChainHistory("s", store)
    history.add_messages(EVERY)
    assert history.messages == EVERY
    assert len(history) == len(EVERY)
    for message in EVERY:
        history.add_message(message)
    assert history.messages == [*EVERY, *EVERY], "what is added twice is there twice"


def test_sessions_are_apart_and_shared_by_name(store: Any) -> None:
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


def test_namespaces_are_apart(store: Any, server: RealServer, namespace: str, server_of: Servers) -> None:
    LangChainHistory("s", store).add_user_message("one")
    with HistoryStore(server.url, namespace=f"{namespace}-2") as other:
        LangChainHistory("s", other).add_user_message("two")
        assert [message.content for message in LangChainHistory("s", store).messages] == ["one"]
        assert [message.content for message in LangChainHistory("s", other).messages] == ["two"]
    server_of.clear(f"{namespace}-2")


def test_a_history_ends_with_the_ttl_of_the_store(server: RealServer, namespace: str) -> None:
    with HistoryStore(server.url, namespace=namespace, ttl=0.05) as store:
        history = LangChainHistory("s", store)
        history.add_user_message("ends")
        wait_until(lambda: history.messages == [], "the history to end")
        assert len(history) == 0


def test_the_store_finds_what_a_history_wrote(store: Any) -> None:
    history = LangChainHistory("550e8400-e29b-41d4-a716-446655440000", store)
    history.add_messages([HumanMessage("Hello, how are you?"), AIMessage("Well."), HumanMessage("And the Weather?")])
    LangChainHistory("another", store).add_user_message("weather")
    (hit,) = store.search(history.session_id, "weather")
    assert hit.message.text == "And the Weather?"
    assert store.search(history.session_id, "nonexistent") == []


@pytest.mark.parametrize("session", ["", None, 5])
def test_a_session_needs_an_id(store: Any, session: Any) -> None:
    with pytest.raises(ValueError):
        LangChainHistory(session, store)


def test_a_store_is_needed_and_the_right_one() -> None:
    with pytest.raises(ConfigurationError):
        LangChainHistory("s")
    with pytest.raises(ConfigurationError, match="async_store"):
        _ = LangChainHistory("s", async_store=AsyncHistoryStore("memory://")).messages


def test_what_is_no_message_changes_nothing(store: Any) -> None:
    history = LangChainHistory("s", store)
    with pytest.raises(InvalidMessageError):
        history.add_messages([HumanMessage("a"), HumanMessage("\ud800")])
    assert history.messages == []
    history.add_message(RemoveMessage(id="x"))
    assert isinstance(history.messages[0], RemoveMessage)


def test_threads_lose_nothing(store: Any) -> None:
    history = LangChainHistory("s", store)
    threads = [
        threading.Thread(target=history.add_messages, args=([HumanMessage(f"{n}-{i}") for i in range(5)],))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [str(message.content) for message in history.messages]
    assert sorted(found) == sorted(f"{n}-{i}" for n in range(8) for i in range(5))
    at = [found.index(f"{n}-0") for n in range(8)]
    assert all(found[start : start + 5] == [f"{found[start][0]}-{i}" for i in range(5)] for start in at), (
        "batches whole"
    )


@pytest.mark.parametrize("kind", ["async", "sync in a thread"])
async def test_asynchronous_methods(server: RealServer, namespace: str, kind: str) -> None:
    async with AsyncHistoryStore(server.url, namespace=namespace) as async_store:
        with HistoryStore(server.url, namespace=namespace) as store:
            history = LangChainHistory("s", store, async_store=async_store if kind == "async" else None)
            await history.aadd_messages(EVERY)
            assert await history.aget_messages() == EVERY
            await history.aclear()
            assert await history.aget_messages() == []


@pytest.mark.filterwarnings("ignore:RunnableWithMessageHistory is deprecated")
def test_a_runnable_with_history_goes_on_in_another_one(store: Any) -> None:
    model = RunnableLambda(lambda messages: AIMessage(f"I saw {len(messages)}"))

    def run(text: str) -> Any:
        chain = RunnableWithMessageHistory(model, lambda session: LangChainHistory(session, store))
        return chain.invoke([HumanMessage(text)], config={"configurable": {"session_id": "s"}}).content

    assert [run("one"), run("two"), run("three")] == ["I saw 1", "I saw 3", "I saw 5"]
