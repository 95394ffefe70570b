"""LangChain: the tests that the framework has for its Redis history, ids of messages, and states of LangGraph."""

import asyncio
import math
import uuid
from datetime import datetime
from typing import Any

import pytest
from langchain_core.load import dumpd
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
    message_to_dict,
)
from msgspec.structs import replace

from redis_history import (
    AsyncHistoryStore,
    HistoryStore,
    Message,
    Participant,
    assistant,
    tool,
    tool_result,
    tool_use,
    user,
)
from redis_history.errors import ConfigurationError, InvalidConversationIdError, InvalidMessageError
from redis_history.formats import Loss
from redis_history.integrations.langchain import LangChainHistory
from tests.support.faces import Awaitable
from tests.support.servers import wait_until

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
    AIMessage("", tool_calls=[{**CALL, "args": {"n": 2**70, "x": [-(2**65)]}}], response_metadata={"n": 2**70}),
    ToolMessage("x", tool_call_id="c", artifact={"n": 2**70}),
    HumanMessage([{"type": "new", "n": 2**70}]),
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
async def test_a_state_that_is_saved_again_writes_only_what_changed(store: Any, async_store: Any, kind: str) -> None:
    foreign = [
        user("hi", id="u", participant=Participant("user", "ann")),
        assistant("I look.", tool_use("1", "f"), tool_use("2", "f"), id="a", metadata={"channel_id": "C"}),
        tool(tool_result("1", "x"), tool_result("2", "y"), id="t"),
    ]
    store.append_many("s", foreign)
    history = LangChainHistory("s", store, async_store=async_store)

    async def save(messages: list[BaseMessage]) -> int:
        if kind == "async":
            await history.aadd_messages(messages)
        else:
            history.add_messages(messages)
        return int(store.get_conversation("s").revision)

    before = store.get("s")
    state = add_messages([], history.messages)
    assert len(state) == 4, "one message for each result"
    assert await save(state) == 1
    assert store.get("s") == before
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


RAW = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q": ["x", 1.5, null]}'}}


@pytest.mark.parametrize(
    "given",
    [
        AIMessage("", tool_calls=[CALL], additional_kwargs={"tool_calls": [RAW], "refusal": None}),
        AIMessageChunk(
            "", tool_call_chunks=[{"name": "find", "args": '{"q": ["x", 1.5, null]}', "id": "c1", "index": 0}]
        ),
    ],
    ids=["message", "chunk"],
)
def test_an_edit_of_a_call_is_in_each_form_of_it(store: Any, given: AIMessage) -> None:
    history = LangChainHistory("s", store)
    history.add_message(given)
    assert equal(history.messages, [given])
    [stored] = store.get("s")
    store.update_message("s", replace(stored, parts=(tool_use("c1", "find", {"q": "[REDACTED]"}),)))
    [found] = history.messages
    assert [call["args"] for call in found.tool_calls] == [{"q": "[REDACTED]"}]
    assert "1.5" not in repr(found)
    store.update_message("s", replace(stored, parts=assistant("No.").parts))
    [found] = history.messages
    assert (found.content, found.tool_calls) == ("No.", [])


def test_a_message_that_is_changed_keeps_its_author_and_pin(store: Any) -> None:
    ann, metadata = Participant("user", "ann"), {"pinned": True, "channel_id": "C"}
    store.append("s", user("I am ann@example.com", id="u", participant=ann, metadata=metadata))
    LangChainHistory("s", store).add_messages([HumanMessage("I am [REDACTED]", id="u")])
    [found] = store.get("s")
    assert (found.text, found.participant, found.metadata) == ("I am [REDACTED]", ann, metadata)


@pytest.mark.parametrize("removes_all", [[], [RemoveMessage(id="__remove_all__")]], ids=["setter", "add"])
def test_messages_that_stay_keep_all_that_is_stored(store: Any, removes_all: list[BaseMessage]) -> None:
    fields: Any = {"participant": Participant("user", "ann"), "metadata": {"pinned": True, "channel_id": "C"}}
    store.append_many(
        "s", [user("one", id="1"), assistant("two", id="2", trace_id="t"), user("three", id="3", **fields)]
    )
    before = store.get("s")
    history = LangChainHistory("s", store)
    revision = store.get_conversation("s").revision
    state = [AIMessage("one, two", id="0"), HumanMessage("3", id="3"), AIMessage("four", id="4")]
    if removes_all:
        history.add_messages([*removes_all, *state])
    else:
        history.messages = state
    assert history.messages == state
    assert store.get_conversation("s").revision == revision + 1
    found = store.get("s")[1]
    assert (found.timestamp, found.participant, found.metadata) == (before[2].timestamp, *fields.values())
    history.messages = history.messages[1:][::-1]
    assert [one.id for one in history.messages] == ["4", "3"]
    assert store.get_message("s", "3").is_pinned


def foreign() -> list[Message]:
    """Messages as other frameworks store them: the results of two calls in one, once with a text."""
    return [
        user("Weather?", id="q"),
        assistant(tool_use("1", "f"), tool_use("2", "f"), id="a"),
        tool(tool_result("1", "rain"), tool_result("2", "sun"), id="t"),
        assistant("Again.", tool_use("3", "f"), id="b"),
        user(tool_result("3", "wind"), "Thanks", id="u", participant=Participant("user", "ann")),
    ]


@pytest.mark.parametrize("face", ["sync", "async"])
@pytest.mark.parametrize("backend", ["redis", "memory"])
async def test_messages_that_are_stored_together_are_removed_and_changed_alone(
    server: Any, namespace: str, backend: str, face: str
) -> None:
    kind: Any = HistoryStore if face == "sync" else AsyncHistoryStore
    made = kind(server.url if backend == "redis" else "memory://", namespace=namespace)
    history = LangChainHistory("s", **{"store" if face == "sync" else "async_store": made})
    async with Awaitable(made) if face == "sync" else made as one:

        async def saved(messages: list[BaseMessage]) -> list[tuple[Any, Any]]:
            await history.aadd_messages(messages)
            return [(message.id, message.content) for message in await history.aget_messages()]

        await one.append_many("s", foreign())
        state = await history.aget_messages()
        q, a, t, t1, b, u, u1 = [(message.id, message.content) for message in state]
        assert [content for _, content in (t, t1, u, u1)] == ["rain", "sun", "wind", "Thanks"]
        assert await saved([RemoveMessage(id=str(t[0]))]) == [q, a, t1, b, u, u1]
        assert await saved([message for message in state if message.id != t[0]]) == [q, a, t1, b, u, u1]
        assert await saved(state) == [q, a, t1, b, u, u1], "what another one removed does not come back"
        state[3].content, state[6].content = "cleared", "Thank you"
        t1, u1 = (t1[0], "cleared"), (u1[0], "Thank you")
        assert await saved(state) == [q, a, t1, b, u, u1]
        revision = (await one.get_conversation("s")).revision
        assert await saved(state) == [q, a, t1, b, u, u1]
        assert (await one.get_conversation("s")).revision == revision
        assert await saved([RemoveMessage(id=str(id_)) for id_, _ in (t1, u, q)]) == [a, b, u1]
        [_, _, left] = await one.get("s")
        assert (left.id, left.role, left.text, left.participant) == (
            "u",
            "user",
            "Thank you",
            foreign()[-1].participant,
        )
        state[6].content = "Thanks!"
        assert await saved(state[6:]) == [a, b, (u1[0], "Thanks!")]
        assert await saved([RemoveMessage(id=str(u1[0]))]) == [a, b]


def test_a_live_reply_is_a_message_when_it_has_ended(store: Any) -> None:
    store.append_many("s", foreign()[:3])
    whole, newest = LangChainHistory("s", store), LangChainHistory("s", store, limit=4)
    with store.stream("s") as reply:
        reply.write("Half an")
        wait_until(lambda: store.get("s")[-1].text == "Half an", "the beginning of the reply")
        assert [len(history.messages) for history in (whole, newest)] == [4, 4]
        reply.write(" answer")
    assert [history.messages[-1].content for history in (whole, newest)] == ["Half an answer"] * 2


async def test_concurrent_removals_leave_the_others(async_store: AsyncHistoryStore) -> None:
    results = tool(*(tool_result(str(n), str(n)) for n in range(8)))
    await async_store.append_many("s", [assistant(*(tool_use(str(n), "f") for n in range(8))), results])
    histories = [LangChainHistory("s", async_store=async_store) for _ in range(6)]
    ids = [str(message.id) for message in (await histories[0].aget_messages())[1:]]
    await asyncio.gather(
        *(one.aadd_messages([RemoveMessage(id=id_)]) for one, id_ in zip(histories, ids, strict=False))
    )
    assert [message.id for message in await histories[0].aget_messages()][1:] == ids[6:]


def test_a_state_that_is_saved_after_compaction_adds_nothing_old(store: Any) -> None:
    history = LangChainHistory("s", store)
    state: list[BaseMessage] = [HumanMessage(str(n), id=str(n)) for n in range(6)]
    history.add_messages(state)
    store.compact("s", through=store.get("s")[3], summary="0 to 3")
    history.add_messages([*state, AIMessage("new", id="new")])
    assert [message.text for message in store.get("s")[1:]] == ["4", "5", "new"]


def test_nan_survives(store: Any) -> None:
    history = LangChainHistory("s", store)
    history.add_message(AIMessage("", tool_calls=[{**CALL, "args": {"x": float("nan")}}]))
    assert math.isnan(history.messages[-1].tool_calls[0]["args"]["x"])


def test_new_messages_are_added_without_reading_the_others(store: Any) -> None:
    calls: list[str] = []
    execute = store._backend.execute
    store._backend.execute = lambda op: calls.append(type(op).__name__) or execute(op)  # type: ignore[func-returns-value]
    history = LangChainHistory("c", store)
    history.add_messages([HumanMessage(str(number)) for number in range(5)])
    history.add_messages([HumanMessage("one", id="1"), HumanMessage("two", id="2")])
    assert calls == ["Append", "Append"]
    assert len(history.messages) == 7


@pytest.mark.proves("frameworks")
async def test_a_limit_leaves_out_results_whose_call_was_cut_off(store: Any, async_store: Any) -> None:
    calls = [{"id": "1", "name": "f", "args": {}}, {"id": "2", "name": "f", "args": {}}]
    results = [ToolMessage("x", tool_call_id="1"), ToolMessage("y", tool_call_id="2")]
    LangChainHistory("s", store).add_messages([AIMessage("", tool_calls=calls), *results, HumanMessage("q")])
    assert [len(LangChainHistory("s", store, limit=limit).messages) for limit in (1, 2, 3, 4)] == [1, 1, 1, 4]
    assert len(await LangChainHistory("s", async_store=async_store, limit=3).aget_messages()) == 1


@pytest.mark.parametrize("kind", ["async", "sync in a thread"])
async def test_asynchronous_methods(store: Any, async_store: Any, kind: str) -> None:
    history = LangChainHistory("s", store, async_store=async_store if kind == "async" else None)
    many = [HumanMessage(f"{n}") for n in range(600)]  # more than one batch
    await history.aadd_messages([*EVERY, *many])
    assert equal(await history.aget_messages(), [*EVERY, *many])
    await history.aclear()
    assert await history.aget_messages() == []


def test_wrong_arguments_are_refused(store: Any) -> None:
    with pytest.raises(InvalidConversationIdError):
        LangChainHistory("", store)
    with pytest.raises(ConfigurationError):
        LangChainHistory("s")
    with pytest.raises(ConfigurationError):
        _ = LangChainHistory("s", async_store=AsyncHistoryStore("memory://")).messages


class Unknown:
    """An object without a JSON form."""


def test_objects_in_an_artifact_become_json_or_are_left_out(store: Any) -> None:
    lost: list[Loss] = []
    history = LangChainHistory("s", store, on_loss=lost.append)
    at, artifact = datetime(2026, 1, 1), {"n": 1, "at": datetime(2026, 1, 1), "ids": {3}, 5: "x", "own": Unknown()}
    history.add_messages(
        [
            AIMessage("", tool_calls=[{"name": "f", "args": {"at": at}, "id": "1"}], additional_kwargs={"at": at}),
            ToolMessage("now", tool_call_id="1", id="t", artifact=artifact),
            ToolMessage("now", tool_call_id="1", artifact=Unknown()),
        ]
    )
    called, first, second = history.messages
    assert isinstance(called, AIMessage)
    assert (called.tool_calls[0]["args"], called.additional_kwargs) == ({"at": at.isoformat()},) * 2
    assert first.artifact == {"n": 1, "at": at.isoformat(), "ids": [3], "5": "x"}  # type: ignore[attr-defined]
    assert second.artifact is None  # type: ignore[attr-defined]
    assert [(loss.message_id, loss.reason.partition(",")[0]) for loss in lost] == [
        ("t", "a Unknown in artifact.own"),
        ("", "a Unknown in artifact"),
    ]


def test_dicts_are_messages_in_any_form_that_langchain_reads(store: Any) -> None:
    history = LangChainHistory("s", store)
    said = HumanMessage("hi", id="1")
    history.add_messages([{"role": "user", "content": "hi", "id": "2"}, {"type": "human", "content": "hi", "id": "3"}])  # type: ignore[list-item]
    history.add_messages([message_to_dict(said), dumpd(HumanMessage("hi", id="4"))])  # type: ignore[list-item]
    assert [(type(one), one.content, one.id) for one in history.messages] == [
        (HumanMessage, "hi", number) for number in "2314"
    ]
    wrong: list[Any] = ["text", None, 5, {"role": "user", "content": "x"}, [5], [None], [{"x": 1}], [{"role": "user"}]]
    for one in [*wrong, [{"type": "no such", "content": "x"}]]:
        with pytest.raises(InvalidMessageError, match="messages"):
            history.add_messages(one)
        with pytest.raises(InvalidMessageError, match="messages"):
            history.messages = one
    assert len(history.messages) == 4
