"""Agents that are recorded on a real server: all of them, in order, and none is hurt by it."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from redis_history import (
    AsyncHistoryStore,
    HistoryStore,
    Message,
    Participant,
    RetryPolicy,
    assistant,
    capture,
    text,
    tool,
    tool_result,
    tool_use,
    user,
)
from redis_history.errors import (
    BackendUnavailableError,
    ConfigurationError,
    InvalidConversationIdError,
    InvalidInputError,
    MessageConflictError,
    StoreClosedError,
)
from tests.support.servers import RealServer, wait_until

BOT = Participant("agent", "bot", "Bot")
ANN = Participant("user", "ann", "Ann")
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


@pytest.fixture
def store(server: RealServer, namespace: str) -> Iterator[HistoryStore]:
    with HistoryStore(server.url, namespace=namespace) as made:
        yield made


@pytest.fixture
async def async_store(server: RealServer, namespace: str) -> AsyncIterator[AsyncHistoryStore]:
    async with AsyncHistoryStore(server.url, namespace=namespace) as made:
        yield made


def told(messages: list[Message]) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in messages]


EXPECTED = [("user", "hi"), ("assistant", "HI")]


async def test_a_coroutine_function(async_store: AsyncHistoryStore) -> None:
    record = capture(async_store, "c", agent=BOT)

    @record
    async def agent(message: str) -> str:
        """It shouts."""
        assert told(await async_store.get("c")) == [("user", "hi")], "what it answers is there when it begins"
        return message.upper()

    assert await agent("hi") == "HI"
    stored = await async_store.get("c")
    assert told(stored) == EXPECTED
    assert [message.participant for message in stored] == [None, BOT]
    assert (record.recorded, record.failed, record.last_error, record.pending) == (2, 0, None, 0)
    assert agent.__name__ == "agent"
    assert agent.__doc__ == "It shouts."
    assert inspect.iscoroutinefunction(agent)


def test_a_function(store: HistoryStore) -> None:
    agent = capture(store, "c", agent="bot", user=ANN)(str.upper)
    assert agent("hi") == "HI"
    stored = store.get("c")
    assert told(stored) == EXPECTED
    assert [message.participant for message in stored] == [ANN, Participant("agent", "bot")]


async def test_an_asynchronous_agent_with_a_synchronous_store(store: HistoryStore) -> None:
    record = capture(store, "c")

    @record
    async def agent(message: str) -> str:
        return message.upper()

    @record
    async def stream(message: str) -> AsyncIterator[str]:
        for letter in message:
            yield letter.upper()

    assert await agent("hi") == "HI"
    assert [chunk async for chunk in stream("hi")] == ["H", "I"]
    assert told(store.get("c")) == EXPECTED * 2


async def test_methods_and_objects(async_store: AsyncHistoryStore, store: HistoryStore) -> None:
    class Agent:
        def __init__(self, name: str) -> None:
            self.name = name

        @capture(async_store, "c")
        async def answer(self, message: str) -> str:
            return message.upper()

        @capture(store, "c")
        def answer_now(self, message: str) -> str:
            return message.upper()

        async def __call__(self, message: str) -> str:
            return message.upper()

    agent = Agent("the name is no message")
    await agent.answer("hi")
    agent.answer_now(message="hi")
    await capture(async_store, "c")(agent)("hi")
    assert told(store.get("c")) == EXPECTED * 3


async def test_a_stream_is_one_message(async_store: AsyncHistoryStore, store: HistoryStore) -> None:
    @capture(async_store, "async")
    async def agent(message: str) -> AsyncIterator[str]:
        for letter in message:
            yield letter.upper()

    @capture(store, "sync")
    def generator(message: str) -> Any:
        got = yield "H"
        yield got
        return "the end"

    assert inspect.isasyncgenfunction(agent)
    assert inspect.isgeneratorfunction(generator)
    assert [chunk async for chunk in agent("hi")] == ["H", "I"]
    running = generator("hi")
    assert next(running) == "H"
    assert running.send("I") == "I"
    with pytest.raises(StopIteration) as stopped:
        next(running)
    assert stopped.value.value == "the end"
    for name in ("async", "sync"):
        assert told(store.get(name)) == EXPECTED
        assert "incomplete" not in store.get(name)[1].metadata


async def test_a_stream_that_is_returned(async_store: AsyncHistoryStore, store: HistoryStore) -> None:
    async def letters() -> AsyncIterator[Any]:
        for letter in "HI":
            yield SimpleNamespace(choices=[SimpleNamespace(delta=SimpleNamespace(content=letter))])
        yield SimpleNamespace(choices=[SimpleNamespace(delta=SimpleNamespace(content=None), finish_reason="stop")])

    @capture(async_store, "async")
    async def agent(message: str) -> AsyncIterator[Any]:
        return letters()

    @capture(store, "sync")
    def agent_now(message: str) -> Iterator[dict[str, Any]]:
        return iter([{"choices": [{"delta": {"role": "assistant"}}]}, *({"delta": {"text": one}} for one in "HI")])

    assert len([chunk async for chunk in await agent("hi")]) == 3
    assert len(list(agent_now("hi"))) == 3
    for name in ("async", "sync"):
        assert told(store.get(name)) == EXPECTED


async def test_what_was_streamed_before_it_ended_early(async_store: AsyncHistoryStore, store: HistoryStore) -> None:
    closed: list[str] = []

    @capture(async_store, "closed")
    async def agent(message: str) -> AsyncIterator[str]:
        try:
            yield "H"
            yield "I"
        finally:
            closed.append("async")

    async with contextlib.aclosing(agent("hi")) as stream:
        assert await anext(stream) == "H"

    @capture(store, "failed")
    def failing(message: str) -> Iterator[str]:
        yield "H"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(failing("hi"))

    @capture(async_store, "cancelled")
    async def waiting(message: str) -> AsyncIterator[str]:
        yield "H"
        await asyncio.sleep(100)

    async def consume() -> None:
        async for _ in waiting("hi"):
            reached.set()

    reached = asyncio.Event()
    task = asyncio.create_task(consume())
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed == ["async"]
    for name in ("closed", "failed", "cancelled"):
        stored = store.get(name)
        assert told(stored) == [("user", "hi"), ("assistant", "H")], name
        assert stored[1].metadata == {"incomplete": True}


async def test_an_agent_that_fails_has_said_nothing(async_store: AsyncHistoryStore) -> None:
    record = capture(async_store, "c")

    @record
    async def agent(message: str) -> str:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await agent("hi")
    assert told(await async_store.get("c")) == [("user", "hi")]
    assert record.failed == 0


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
    await record.aclose()
    stored = await async_store.get("c")
    assert record.failed == 0
    assert record.recorded == len(stored)
    assert told(stored)[-2:] == [("user", "last"), ("assistant", "said")]
    asked = [int(message.text) for message in stored[:-2] if message.role == "user"]
    assert asked == sorted(asked)


async def test_closing_waits_for_what_a_cancelled_agent_left(async_store: AsyncHistoryStore) -> None:
    await async_store.append("c", user("connects"))
    for steps in range(1, 8):
        record = capture(async_store, f"c{steps}")
        task = asyncio.create_task(record(upper)("hi"))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await record.aclose()
        recorded = record.recorded
        assert len(await async_store.get(f"c{steps}")) == recorded
        if steps > 3:
            assert recorded, "the append had begun"


def test_what_the_message_says_of_its_place_is_the_answers_too(store: HistoryStore) -> None:
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


def test_dicts_in_chat_form(store: HistoryStore) -> None:
    @capture(store, "c", agent=BOT)
    def agent(messages: list[dict[str, Any]]) -> dict[str, Any]:
        call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q": 1}'}}
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    agent(
        [
            {"role": "user", "content": "said before"},
            {
                "role": "user",
                "content": "hi",
                "id": "m1",
                "name": "ann",
                "scope": "dm",
                "mentions": ["bot"],
                "channel_id": "C1",
                "metadata": {"free": 1},
            },
        ]
    )
    asked, called = store.get("c")
    assert (asked.id, asked.text, asked.scope, asked.participant) == ("m1", "hi", "dm", Participant("user", "ann"))
    assert asked.metadata == {"free": 1, "mentions": ["bot"], "channel_id": "C1"}
    assert [(one.id, one.name, one.input) for one in called.tool_uses] == [("c1", "find", {"q": 1})]
    assert (called.participant, called.scope) == (BOT, "dm")


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


def test_how_a_call_is_read(store: HistoryStore) -> None:
    record = capture(
        store,
        lambda request, *, shout: request["room"],
        inbound=lambda request, *, shout: user(request["said"], id=request["id"]),
        outbound=lambda answer: answer["texts"],
    )

    @record
    def agent(request: dict[str, Any], *, shout: bool) -> dict[str, Any]:
        return {"texts": ["HI", text("there")]}

    agent({"room": "c", "said": "hi", "id": "7"}, shout=True)
    assert told(store.get("c")) == [("user", "hi"), ("assistant", "HI"), ("assistant", "there")]
    assert store.get("c")[0].id == "7"


@pytest.mark.parametrize(
    "call",
    [
        lambda agent: agent("hi", conversation_id="c"),
        lambda agent: agent({"content": "hi", "conversation_id": "c"}),
        lambda agent: agent(user("hi", metadata={"conversation_id": "c"})),
    ],
)
def test_the_conversation_is_named_by_the_call(store: HistoryStore, call: Callable[[Any], Any]) -> None:
    @capture(store)
    def agent(message: Any, conversation_id: str | None = None) -> str:
        return "HI"

    call(agent)
    assert told(store.get("c")) == EXPECTED


async def test_turns_by_hand(async_store: AsyncHistoryStore, store: HistoryStore) -> None:
    with capture(store, "c", agent=BOT) as record:
        with record.turn("hi") as turn:
            turn.reply("HI")
        with record.turn("hi", conversation_id="other") as turn:
            turn.add("H")
            turn.add("I")
        with contextlib.suppress(ZeroDivisionError), record.turn() as turn:
            turn.add("half")
            raise ZeroDivisionError
    async with capture(async_store, "c") as async_record, async_record.turn("hi") as async_turn:
        await async_turn.reply("HI")
    assert told(store.get("c")) == [*EXPECTED, ("assistant", "half"), *EXPECTED]
    assert told(store.get("other")) == EXPECTED


# Nothing of it reaches the agent


async def test_a_server_that_is_gone(own_server: Callable[..., RealServer], caplog: pytest.LogCaptureFixture) -> None:
    server = own_server()
    errors: list[tuple[Exception, str | None, list[str]]] = []
    quick = RetryPolicy(deadline=0.0)

    def on_error(error: Exception, conversation_id: str | None, messages: list[Message]) -> None:
        errors.append((error, conversation_id, [message.text for message in messages]))
        raise KeyError("its own error")

    async with AsyncHistoryStore(server.url, retry=quick) as async_store:
        record = capture(async_store, "c", on_error=on_error)
        logged = capture(async_store, "c")

        @record
        async def agent(message: str) -> str:
            return message.upper()

        assert await agent("hi") == "HI"
        server.close()
        with caplog.at_level(logging.WARNING, "redis_history"):
            assert await agent("hi") == "HI"
            assert await logged(agent)("hi") == "HI"
    assert [(conversation_id, texts) for _, conversation_id, texts in errors[:2]] == [("c", ["hi"]), ("c", ["HI"])]
    assert all(isinstance(error, BackendUnavailableError) for error, *_ in errors)
    assert (record.recorded, record.failed) == (2, 4)
    assert (logged.recorded, logged.failed) == (0, 2)
    assert isinstance(logged.last_error, BackendUnavailableError)
    assert sum("is not recorded" in one.message for one in caplog.records) == 2
    assert sum("on_error" in one.message for one in caplog.records) == 4


def test_what_cannot_be_read_is_told(store: HistoryStore) -> None:
    errors: list[tuple[type[Exception], str | None]] = []

    def on_error(error: Exception, conversation_id: str | None, messages: list[Message]) -> None:
        errors.append((type(error), conversation_id))

    def raises(*args: Any) -> Any:
        raise ZeroDivisionError

    def agent(message: Any = None) -> Any:
        return message

    made: list[tuple[Any, Any]] = [
        (capture(store, "c", on_error=on_error)(agent), 7),  # neither is a message
        (capture(store, on_error=on_error)(agent), "no conversation"),
        (capture(store, lambda message: "", on_error=on_error)(agent), "no id"),
        (capture(store, "c", inbound=raises, on_error=on_error)(agent), "x"),
        (capture(store, "d", outbound=raises, on_error=on_error)(agent), "x"),
        (capture(store, "d", outbound=lambda result: object(), on_error=on_error)(agent), "x"),
    ]
    for recorded, given in made:
        assert recorded(given) == given
    assert list(capture(store, "d", on_error=on_error)(lambda message: iter([1, 2]))("x")) == [1, 2]
    assert errors == [
        (InvalidInputError, None),
        (InvalidInputError, None),
        (InvalidConversationIdError, None),
        (ZeroDivisionError, None),
        (ZeroDivisionError, "d"),
        (InvalidInputError, "d"),
        (InvalidInputError, "d"),
    ]
    assert store.get("c") == []
    with pytest.raises(TypeError):
        capture(store, "c", on_error=on_error)(agent)("one", "too many")


def test_a_conflict_is_told(store: HistoryStore) -> None:
    store.append("c", user("stored", id="m"))
    record = capture(store, "c")
    record(lambda message: None)(user("other", id="m"))
    assert isinstance(record.last_error, MessageConflictError)
    assert (record.recorded, record.failed) == (0, 1)


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (InvalidConversationIdError, {"conversation_id": ""}),
        (InvalidInputError, {"agent": 7}),
        (InvalidInputError, {"user": ""}),
        (ConfigurationError, {"inbound": "text"}),
        (ConfigurationError, {"outbound": 7}),
        (ConfigurationError, {"on_error": 7}),
        (ConfigurationError, {"background": 1}),
        (ConfigurationError, {"max_pending": 0}),
    ],
)
def test_options_that_make_no_sense(store: HistoryStore, error: type[Exception], options: dict[str, Any]) -> None:
    with pytest.raises(error):
        capture(store, **options)


def test_what_cannot_be_recorded(store: HistoryStore) -> None:
    with pytest.raises(InvalidInputError):
        capture("redis://localhost", "c")  # type: ignore[call-overload]
    with pytest.raises(ConfigurationError):
        capture(store, "c")(7)  # type: ignore[type-var]
    with pytest.raises(ConfigurationError, match="HistoryStore"):
        capture(AsyncHistoryStore("memory://"), "c")(str.upper)


# Order


async def test_order_of_many_calls_at_once(async_store: AsyncHistoryStore) -> None:
    record = capture(async_store, lambda number: f"c{number % 3}", inbound=lambda number: user(str(number)))

    @record
    async def agent(number: int) -> str:
        for _ in range(number % 5):
            await asyncio.sleep(0)
        return f"re {number}"

    await asyncio.gather(*map(agent, range(90)))
    assert (record.recorded, record.failed) == (180, 0)
    for room in range(3):
        texts = [message.text for message in await async_store.get(f"c{room}")]
        asked = [int(one) for one in texts if not one.startswith("re")]
        assert asked == list(range(room, 90, 3)), "in the order of the calls"
        for number in asked:
            assert texts.index(str(number)) < texts.index(f"re {number}")


def test_many_event_loops(server: RealServer, namespace: str) -> None:
    made = AsyncHistoryStore(server.url, namespace=namespace)
    record = capture(made, "c")
    agent = record(upper)

    async def some() -> None:
        await asyncio.gather(*(agent("hi") for _ in range(25)))
        await record.flush()

    with ThreadPoolExecutor(4) as pool:
        for running in [pool.submit(asyncio.run, some()) for _ in range(4)]:
            running.result(60)
    asyncio.run(made.aclose())
    assert (record.recorded, record.failed) == (200, 0)


@pytest.mark.parametrize("background", [False, True])
def test_order_of_many_threads(store: HistoryStore, background: bool) -> None:
    with capture(store, "c", background=background) as record, ThreadPoolExecutor(8) as pool:
        agent = record(lambda message: f"re {message}")
        answers = list(pool.map(agent, (f"{thread}" for thread in range(200))))
        record.flush()
        assert record.pending == 0
    assert answers == [f"re {n}" for n in range(200)]
    texts = [message.text for message in store.get("c")]
    assert sorted(texts) == sorted([*answers, *(str(n) for n in range(200))])
    for number in range(200):
        assert texts.index(str(number)) < texts.index(f"re {number}")


# In the background


async def test_in_the_background(async_store: AsyncHistoryStore) -> None:
    async with capture(async_store, "c", background=True) as record:
        agent = record(upper)
        assert await asyncio.gather(*(agent(f"m{n}") for n in range(50))) == [f"M{n}" for n in range(50)]
        await record.flush()
        assert record.recorded == 100
        await agent("last")
    assert record.recorded == 102
    assert len(await async_store.get("c")) == 102
    await agent("late")
    assert isinstance(record.last_error, StoreClosedError)
    await record.aclose()


async def upper(message: str) -> str:
    return message.upper()


def test_the_background_outlives_an_outage_and_stores_each_once(own_server: Callable[..., RealServer]) -> None:
    server = own_server()
    tries: list[str] = []

    class Watched:
        """A store that says what is tried."""

        def append(self, conversation_id: str, message: Message) -> Any:
            tries.append(message.id)
            return store.append(conversation_id, message)

        append_many = None

    with (
        HistoryStore(server.url, retry=RetryPolicy(deadline=0.0)) as store,
        capture(Watched(), "c", background=True) as record,  # type: ignore[call-overload]
    ):
        agent = record(str.upper)
        agent("before")
        record.flush()
        server.kill()
        for n in range(20):
            assert agent(f"m{n}") == f"M{n}"
        wait_until(lambda: len(tries) > 5, "some tries in vain")
        assert record.pending == 40
        assert len(set(tries[2:])) == 1, "the same message, with the same id"
        server.start()
        record.flush()
        assert (record.failed, record.pending) == (0, 0)
        texts = [message.text for message in store.get("c") if "m" in message.text.lower()]
    assert texts == [one for n in range(20) for one in (f"m{n}", f"M{n}")]


def test_a_full_queue_is_told_and_a_close_without_a_server_ends(own_server: Callable[..., RealServer]) -> None:
    server = own_server()
    lost: list[str] = []
    with HistoryStore(server.url, retry=RetryPolicy(deadline=0.05)) as store:
        store.append("c", user("first"))
        server.close()
        record = capture(
            store,
            "c",
            background=True,
            max_pending=10,
            on_error=lambda error, where, messages: lost.extend(message.text for message in messages),
        )
        agent = record(str.upper)
        for n in range(8):
            assert agent(f"m{n}") == f"M{n}"
        wait_until(lambda: len(lost) == 6, "what does not fit to be told")
        record.close()
    assert (record.recorded, record.failed, record.pending) == (0, 16, 0)
    assert sorted(lost) == sorted(one for n in range(8) for one in (f"m{n}", f"M{n}"))
    assert not [thread for thread in threading.enumerate() if thread.name == "redis_history-capture"]
