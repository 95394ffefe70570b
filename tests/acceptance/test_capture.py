"""Agents that are recorded on a real server: functions, streams, and turns by hand."""

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from redis_history import (
    AsyncHistoryStore,
    HistoryStore,
    Message,
    MessagesAppended,
    Participant,
    ReplyEnded,
    ReplyGrew,
    assistant,
    capture,
    text,
    tool,
    tool_result,
    tool_use,
    user,
)
from redis_history.errors import RunLostError
from redis_history.store.memory.backend import MemoryBackend

BOT = Participant("agent", "bot", "Bot")
ANN = Participant("user", "ann", "Ann")
EXPECTED = [("user", "hi"), ("assistant", "HI")]
PLACE = {"channel_id": "C1", "channel_type": "public", "channel_name": "general", "thread_id": "T1"}
ASKED = Message(
    role="user",
    parts="bot, hello",
    id="asked",
    participant=ANN,
    scope="thread",
    trace_id="trace",
    metadata={**PLACE, "mentions": ["bot"], "platform_message_id": "P1"},
)


def roles_and_texts(messages: list[Message]) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in messages]


async def test_functions_methods_and_objects(async_store: AsyncHistoryStore, store: HistoryStore) -> None:
    record = capture(async_store, "c", agent=BOT)

    class Agent:
        name = "the name is not a message"

        @record
        async def answer(self, message: str) -> str:
            """It shouts."""
            assert roles_and_texts(store.get("c")) == [("user", "hi")], "its input is stored before it begins"
            return message.upper()

        @capture(store, "c")
        async def stream(self, message: str) -> AsyncIterator[str]:
            for letter in message:
                yield letter.upper()

        async def __call__(self, message: str) -> str:
            return message.upper()

    agent = Agent()
    assert (Agent.answer.__doc__, inspect.iscoroutinefunction(Agent.answer)) == ("It shouts.", True)
    assert await agent.answer("hi") == "HI"
    assert (record.recorded, record.failed, record.last_error) == (2, 0, None)
    assert [message.participant for message in store.get("c")] == [None, BOT]
    assert capture(store, "c", agent="bot", user=ANN)(str.upper)("hi") == "HI"
    assert [message.participant for message in store.get("c")[2:]] == [ANN, Participant("agent", "bot")]
    assert [chunk async for chunk in agent.stream("hi")] == ["H", "I"]
    assert [await capture(one, "c")(agent)("hi") for one in (async_store, store)] == ["HI", "HI"]
    assert roles_and_texts(store.get("c")) == EXPECTED * 5


async def test_a_returned_stream_is_one_message(async_store: AsyncHistoryStore, store: HistoryStore) -> None:
    async def letters() -> AsyncIterator[str]:
        for letter in ("H", "I", ""):
            yield letter

    @capture(async_store, "c")
    async def agent(message: str) -> AsyncIterator[str]:
        return letters()

    @capture(store, "c")
    def agent_now(message: str) -> Iterator[str]:
        return iter(["", "H", "I"])

    assert len([chunk async for chunk in await agent("hi")]) == 3
    assert len(list(agent_now("hi"))) == 3
    assert roles_and_texts(store.get("c")) == EXPECTED * 2


async def test_a_failed_or_closed_agent_leaves_what_was_said(
    async_store: AsyncHistoryStore, store: HistoryStore
) -> None:
    closed: list[str] = []

    @capture(async_store, "closed")
    async def agent(message: str) -> AsyncIterator[str]:
        try:
            yield "H"
            yield "I"
        finally:
            closed.append("closed")

    async with contextlib.aclosing(agent("hi")) as stream:
        assert await anext(stream) == "H"

    @capture(store, "failed")
    def failing(message: str) -> Iterator[str]:
        yield "H"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(failing("hi"))
    with pytest.raises(ZeroDivisionError):
        capture(store, "without answer")(lambda message: 1 / 0)("hi")
    assert closed == ["closed"]
    for name in ("closed", "failed"):
        assert roles_and_texts(store.get(name)) == [("user", "hi"), ("assistant", "H")], name
        assert store.get(name)[1].status == "interrupted"
    assert roles_and_texts(store.get("without answer")) == [("user", "hi")]


@pytest.mark.parametrize("kind", ["async", "sync", "async agent, sync store"])
async def test_a_streamed_answer_is_shown_while_it_is_written(
    async_store: AsyncHistoryStore, store: HistoryStore, kind: str
) -> None:
    """Its text, a tool call and a separate message, in the order of the stream."""
    shown: list[tuple[str, str]] = []
    chunks = [
        " ",
        "One ",
        "moment",
        tool_use("c1", "look"),
        tool(tool_result("c1", "x")),
        "\n",
        "Done",
    ]

    def look() -> None:
        last = store.get("c")[-1]
        shown.append((last.status, last.role))

    async def streaming(message: Message) -> AsyncIterator[Any]:
        for chunk in chunks:
            yield chunk
            await asyncio.to_thread(look)

    def stream(message: Message) -> Iterator[Any]:
        for chunk in chunks:
            yield chunk
            look()

    async with async_store.subscribe("c") as events:
        record = capture(async_store if kind == "async" else store, "c", agent=BOT)
        if kind == "sync":
            assert await asyncio.to_thread(lambda: list(record(stream)(ASKED))) == chunks
        else:
            assert [chunk async for chunk in record(streaming)(ASKED)] == chunks
        deltas: dict[str, str] = {}
        async for event in events:
            if isinstance(event, ReplyGrew | ReplyEnded):
                deltas[event.message_id] = deltas.get(event.message_id, "") + event.delta
            if isinstance(event, ReplyEnded) and event.message.text == "\nDone":
                break
    live = ("streaming", "assistant")
    assert shown == [("complete", "user"), live, live, live, *[("complete", "tool")] * 2, live]
    _, first, result, second = stored = store.get("c")
    assert [message.text for message in (first, second)] == list(deltas.values()) == [" One moment", "\nDone"]
    assert [use.id for use in first.tool_uses] == [one.tool_use_id for one in result.tool_results] == ["c1"]
    assert {message.status for message in stored} == {"complete"}
    for answer in (first, second):
        assert (answer.participant, answer.scope, answer.trace_id) == (BOT, "thread", "trace")
        assert answer.metadata == PLACE
    assert (record.recorded, record.failed) == (4, 0)


async def test_a_cancelled_stream_leaves_no_open_answer(async_store: AsyncHistoryStore) -> None:
    """Wherever the cancellation falls, also into the beginning of the reply."""
    record = capture(async_store, "c")

    @record
    async def agent(message: str) -> AsyncIterator[str]:
        while True:
            yield message

    async def consume() -> None:
        async for _ in agent("x"):
            begun.set()
            await asyncio.sleep(0)

    begun = asyncio.Event()
    for steps in range(0, 240, 4):
        task = asyncio.create_task(consume())
        for _ in range(steps):
            await asyncio.sleep(0)
        if steps == 236:
            await begun.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await record.flush()
    stored = await async_store.get("c")
    assert (record.recorded, record.failed) == (len(stored), 0)
    answers = [message for message in stored if message.role == "assistant"]
    assert answers
    assert {message.status for message in answers} == {"interrupted"}
    assert {*"".join(message.text for message in answers)} == {"x"}


@pytest.mark.proves("capture")
async def test_a_cancelled_agent_leaves_whole_messages(async_store: AsyncHistoryStore) -> None:
    """Wherever the cancellation falls, also into the append itself."""
    record = capture(async_store, "c")

    @record
    async def agent(message: str) -> str:
        await asyncio.sleep(0)
        return "said"

    for steps in range(40):
        task = asyncio.create_task(agent(f"{steps}"))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert await agent("last") == "said"
    await record.flush()
    stored = await async_store.get("c")
    assert record.failed == 0
    assert record.recorded == len(stored)
    assert roles_and_texts(stored)[-2:] == [("user", "last"), ("assistant", "said")]
    asked = [int(message.text) for message in stored[:-2] if message.role == "user"]
    assert asked == sorted(asked)


def test_answers_inherit_the_place_of_the_message(store: HistoryStore) -> None:
    @capture(store, "c", agent=BOT)
    def agent(message: Message) -> list[Message]:
        return [
            assistant(tool_use("c1", "look")),
            tool(tool_result("c1", "x")),
            assistant("done", scope="dm", metadata={"channel_id": "C2"}, trace_id="own"),
        ]

    agent(ASKED)
    asked, call, result, said = store.get("c")
    assert (asked.participant, asked.scope, asked.metadata) == (ANN, "thread", ASKED.metadata)
    for message in (call, result):
        assert (message.participant, message.scope, message.trace_id) == (BOT, "thread", "trace")
        assert message.metadata == PLACE
    assert (said.scope, said.trace_id, said.metadata) == ("dm", "own", {**PLACE, "channel_id": "C2"})


@pytest.mark.proves("capture")
def test_the_same_message_again_is_stored_once(store: HistoryStore) -> None:
    record = capture(store, "c", agent=BOT, user=ANN)
    reply = assistant("hello", id="reply")
    agent = record(lambda message: reply)
    for _ in range(3):
        agent(user("hi", id="asked"))
    stored = store.append("c", user("stored before")).message
    capture(store, "c", user=ANN)(lambda message: store.append("c", assistant("by itself")).message)(stored)
    assert [message.text for message in store.get("c")] == ["hi", "hello", "stored before", "by itself"]
    assert record.failed == 0


async def test_turns_by_hand(async_store: AsyncHistoryStore, store: HistoryStore) -> None:
    record = capture(store, "c", agent=BOT)
    with record.turn("hi") as turn:
        turn.reply("HI")
    with record.turn("hi", conversation_id="other") as turn:
        turn.add("H")
        turn.add("I")
    with contextlib.suppress(ZeroDivisionError), record.turn() as turn:
        turn.add("half")
        raise ZeroDivisionError
    async with capture(async_store, "c").turn("hi") as async_turn:
        await async_turn.reply("HI")
    assert roles_and_texts(store.get("c")) == [*EXPECTED, ("assistant", "half"), *EXPECTED]
    assert roles_and_texts(store.get("other")) == EXPECTED


@pytest.mark.parametrize("options", [{"live": False}, {"outbound": "".join}, {"streams": False}])
def test_a_streamed_answer_is_stored_at_the_end(options: dict[str, Any]) -> None:
    class Backend(MemoryBackend):
        streams = options.pop("streams", True)

    with HistoryStore(backend=Backend()) as store, store.subscribe("c") as events:
        record = capture(store, "c", **options)
        assert list(record(lambda message: iter(message))("hi")) == ["h", "i"]
        [asked, answered] = [events.get(timeout=10), events.get(timeout=10)]
        assert (record.recorded, record.failed) == (2, 0)
    assert isinstance(asked, MessagesAppended)
    assert isinstance(answered, MessagesAppended)
    assert [(message.text, message.status) for message in answered.messages] == [("hi", "complete")]


@pytest.mark.proves("capture")
@pytest.mark.parametrize("kind", ["dicts", "messages"])
def test_the_loop_of_an_agent_with_parallel_calls(store: HistoryStore, kind: str) -> None:
    """It calls the model with the growing list of messages."""
    calls = [{"id": id_, "type": "function", "function": {"name": "f", "arguments": "{}"}} for id_ in ("c1", "c2")]
    answers: list[Any] = [{"role": "assistant", "content": None, "tool_calls": calls}, "Sun and rain."]
    model = capture(store, "c", user="ann")(lambda messages: answers[len(messages) > 1])
    said: list[Any] = [{"role": "user", "content": "the weather?"}]
    called = model(said)
    results: dict[str, list[Any]] = {
        "dicts": [{"role": "tool", "tool_call_id": id_, "content": "sun"} for id_ in ("c1", "c2")],
        "messages": [tool(tool_result(id_, "sun")) for id_ in ("c1", "c2")],
    }
    assert model([*said, called, *results[kind]]) == "Sun and rain."
    stored = store.get("c")
    assert [one.role for one in stored] == ["user", "assistant", "tool", "tool", "assistant"]
    assert [result.tool_use_id for one in stored for result in one.tool_results] == ["c1", "c2"]


def test_functions_that_read_a_call(store: HistoryStore) -> None:
    agent = capture(
        store,
        lambda request, *, shout: request["room"],
        inbound=lambda request, *, shout: user(request["said"], id=request["id"]),
        outbound=lambda answer: answer["texts"],
    )(lambda request, *, shout: {"texts": ["HI", text("there")]})
    agent({"room": "c", "said": "hi", "id": "7"}, shout=True)
    assert roles_and_texts(store.get("c")) == [*EXPECTED, ("assistant", "there")]
    assert store.get("c")[0].id == "7"


def test_a_conversation_id_in_the_call(store: HistoryStore) -> None:
    @capture(store)
    def agent(message: Any, conversation_id: str | None = None) -> str:
        return "HI"

    agent("hi", conversation_id="c")
    assert roles_and_texts(store.get("c")) == EXPECTED


def test_an_exclusive_store_records_in_runs_only(store: HistoryStore) -> None:
    lost: list[Any] = []
    agent = capture(store.exclusive(), "c", on_error=lambda error, *_: lost.append(error))(str.upper)
    assert agent("hi") == "HI"
    assert [type(error) for error in lost] == [RunLostError] * 2
    with store.run("c"):
        assert agent("hi") == "HI"
    assert roles_and_texts(store.get("c")) == EXPECTED


@pytest.mark.usefixtures("small_caps")
async def test_a_turn_above_the_limits_is_recorded_as_far_as_it_fits(async_store: AsyncHistoryStore) -> None:
    reported: list[str] = []
    record = capture(async_store, "c", on_error=lambda error, conversation_id, messages: reported.append(str(error)))

    @record
    async def agent(message: str) -> list[Message]:
        calls = [tool_use(f"c{number}", "read") for number in range(6)]
        sizes = [1_000_000] * 5 + [4_500_000]
        results = [tool(tool_result(f"c{number}", "x" * size)) for number, size in enumerate(sizes)]
        return [assistant(*calls), *results, assistant("done")]

    await agent("go")
    stored = await async_store.get("c")
    assert [message.role for message in stored] == ["user", "assistant", *["tool"] * 6, "assistant"]
    assert [message.tool_results[0].is_error for message in stored[2:8]] == [False] * 5 + [True]
    [problem] = reported
    assert "is recorded without its result of 4,500,000 bytes" in problem
