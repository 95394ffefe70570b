"""A chat whose answers are turns: workers of other processes, joined messages, and repeated attempts."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

import pytest

from redis_history import AsyncHistoryStore, AsyncWorker, assistant, tool_use, user
from redis_history.store.operations import CountTurns
from redis_history.web import ChatEndpoints, ChatLimits, allow_all
from tests.support.servers import until
from tests.web.chatting import (
    CHAT,
    PATH,
    Gate,
    ask,
    asked,
    asker,
    chosen,
    chunks_of,
    is_waiting,
    resumed_by,
    speaker,
    text_in,
)
from tests.web.test_chat_ag_ui import ag_ui_text, run_input, said
from tests.web.test_chat_visitors import ann


@asynccontextmanager
async def working(store: AsyncHistoryStore, answer: Any, **options: Any) -> AsyncIterator[AsyncWorker]:
    """A worker as in another process."""
    worker = AsyncWorker(store, answer, **{"first_wait": 0.0, "longest_wait": 0.0, "grace": 0.0} | options)
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await task


async def is_owed(store: AsyncHistoryStore, count: int = 1) -> bool:
    return any(len(turn.message_ids) == count for turn in await store.list_turns(status="owed"))


async def test_a_process_without_an_answer_only_asks(serve: Any, store: AsyncHistoryStore) -> None:
    client = await serve(None, participant=ann)
    asking = asyncio.create_task(ask(client, asked("Hello")))
    await until(lambda: is_owed(store))
    reading = asyncio.create_task(resumed(client))
    async with working(store, speaker(store)):
        assert text_in(await asking) == text_in(await reading) == "You said: Hello"
    assert [one.text for one in await store.get(CHAT)] == ["Hello", "You said: Hello"]
    assert await store.backend.execute(CountTurns()) == 0


async def resumed(client: Any) -> list[dict[str, Any]]:
    async with client.stream("GET", f"/{PATH}/stream") as response:
        assert response.status_code == 200
        return [chunk async for chunk in chunks_of(response)]


async def test_messages_before_a_worker_begins_join_one_turn(serve: Any, store: AsyncHistoryStore) -> None:
    gate = Gate()
    gate.open.set()
    clients = [await serve(None) for _ in range(2)]
    asking = []
    for number in range(4):
        asking.append(asyncio.create_task(ask(clients[number % 2], asked(f"{number}", f"m{number}"))))
        await until(lambda number=number: is_owed(store, number + 1))
    async with working(store, gate):
        found = await asyncio.gather(*asking)
    assert [text_in(chunks) for chunks in found] == ["first last"] * 4
    assert gate.calls == 1


async def test_messages_during_an_answer_join_the_next_turn(serve: Any, store: AsyncHistoryStore) -> None:
    gate = Gate()
    client = await serve(gate)
    asking = [await gate.begin(client, asked("0", "m0"))]
    for number in (1, 2, 3):
        asking.append(asyncio.create_task(ask(client, asked(f"{number}", f"m{number}"))))
        await until(lambda number=number: is_waiting(store, number))
    gate.open.set()
    assert [text_in(chunks) for chunks in await asyncio.gather(*asking)] == ["first last"] * 4
    assert gate.calls == 2


async def test_a_message_that_an_answer_takes_up_is_not_answered_again(serve: Any, store: AsyncHistoryStore) -> None:
    gate = Gate()

    async def answer(run: Any) -> None:
        await gate(run)
        taken = [one.text for one in await run.messages()]
        await run.append(assistant(f"And {taken}."))

    client = await serve(answer)
    first = await gate.begin(client, asked("one"))
    second = asyncio.create_task(ask(client, asked("two", "u2")))
    await until(lambda: is_waiting(store))
    gate.open.set()
    assert text_in(await second) == "And ['two']."
    assert (await second)[-1]["type"] == (await first)[-1]["type"] == "finish"
    assert gate.calls == 1


@pytest.mark.parametrize("protocol", ["ai-sdk", "ag-ui"])
async def test_a_stream_goes_on_with_the_next_attempt(serve: Any, store: AsyncHistoryStore, protocol: str) -> None:
    calls: list[int] = []

    async def answer(run: Any) -> None:
        calls.append(run.turn.attempt)
        await run.append(assistant(f"attempt {len(calls)}. "))
        if len(calls) < 3:
            raise ValueError("the model is away")

    client = await serve(None, protocol=protocol)
    is_ui = protocol == "ai-sdk"
    body = asked("Hello") if is_ui else run_input(said("u1", "Hello"))
    asking = asyncio.create_task(ask(client, body))
    await until(lambda: is_owed(store))
    async with working(store, answer):
        chunks = await asking
    text = text_in(chunks) if is_ui else ag_ui_text(chunks)
    assert (text, calls) == ("attempt 1. attempt 2. attempt 3. ", [1, 2, 3])
    assert chunks[-1]["type"] == ("finish" if is_ui else "RUN_FINISHED")


async def test_a_stream_ends_when_its_turn_is_parked(serve: Any, store: AsyncHistoryStore) -> None:
    """The client may ask again, which makes the turn owed."""
    fails = [True, True]

    async def answer(run: Any) -> None:
        if fails:
            raise ValueError(fails.pop())
        await run.append(assistant("Yes."))

    client = await serve(None)
    asking = asyncio.create_task(ask(client, asked("Hello")))
    await until(lambda: is_owed(store))
    async with working(store, answer, attempts=2):
        assert (await asking)[-1]["type"] == "error"
        [turn] = await store.list_turns()
        assert (turn.status, turn.attempt, turn.error) == ("parked", 2, "ValueError")
        assert (await resumed(client))[-1]["type"] == "error"
        assert text_in(await ask(client, asked("Hello") | {"trigger": "regenerate-message"})) == "Yes."
    assert await store.list_turns() == []


async def test_a_worker_that_stops_gives_its_answer_to_another_one(serve: Any, store: AsyncHistoryStore) -> None:
    gate = Gate()
    client = await serve(None)
    asking = asyncio.create_task(ask(client, asked("Hello")))
    async with working(store, gate):
        await gate.begun.wait()

    async def again(run: Any) -> None:
        await store.delete_messages(CHAT, [run.turn.interrupted.id])
        await run.append(assistant("The answer."))

    async with working(store, again):
        chunks = await asking
        if chunks[-1]["type"] == "error":  # it had shown what was removed, so the client reads again
            assert chunks[-1]["errorText"].startswith("Reconnect")
        await until(lambda: has_ended(store))
    assert [one.text for one in await store.get(CHAT)] == ["Hello", "The answer."]


async def has_ended(store: AsyncHistoryStore) -> bool:
    return not await store.list_turns()


async def test_a_chat_that_ends_gives_its_answer_to_the_next_process(store: AsyncHistoryStore, serve: Any) -> None:
    gate = Gate()
    chat = ChatEndpoints(store, gate, authorize=allow_all)
    async with chat:
        await store.ask(CHAT, user("Hello", id="u1"))
        await gate.begun.wait()
        chat._worker.stop(0.0)  # type: ignore[union-attr]
    [turn] = await store.list_turns()
    assert turn.status == "owed"
    client = await serve(None)
    reading = asyncio.create_task(resumed(client))
    gate.open.set()
    async with working(store, gate):
        assert text_in(await reading).endswith("first last")
    assert gate.calls == 2


@pytest.mark.parametrize("when", ["owed", "between attempts", "running", "with a message that waits"])
async def test_a_stop_ends_an_answer_of_any_process(serve: Any, store: AsyncHistoryStore, when: str) -> None:
    gate = Gate()

    async def answer(run: Any) -> None:
        if when == "between attempts":
            gate.calls += 1
            raise ValueError("the model is away")
        await gate(run)

    async def is_paused() -> bool:
        return any(turn.error for turn in await store.list_turns(status="owed"))

    client = await serve(None)
    asking = [asyncio.create_task(ask(client, asked("Hello")))]
    await until(lambda: is_owed(store))
    if when == "owed":
        assert (await client.post(f"/{PATH}/stop")).status_code == 204
    async with working(store, answer, first_wait=60.0, longest_wait=60.0):
        if when == "between attempts":
            await until(is_paused)
        elif when != "owed":
            await gate.begun.wait()
        if when == "with a message that waits":
            asking.append(asyncio.create_task(ask(client, asked("More", "u2"))))
            await until(lambda: is_waiting(store))
        if when != "owed":
            assert (await client.post(f"/{PATH}/stop")).status_code == 204
        ends = [chunks[-1]["type"] for chunks in await asyncio.gather(*asking)]
        await until(lambda: has_ended(store))
    assert ends == ["error" if when == "between attempts" else "abort"] * len(asking)
    assert gate.calls == (0 if when == "owed" else 1)


async def test_results_of_the_front_end_make_a_turn_owed_again(serve: Any, store: AsyncHistoryStore) -> None:
    client = await serve(None, client_tools=["ask"])
    answer = asker(store)

    async def suspending(run: Any) -> None:
        await answer(run)
        if (await store.get(CHAT))[-1].tool_uses:
            run.suspend_turn()

    asking = asyncio.create_task(ask(client, asked("one choice")))
    async with working(store, suspending):
        assert (await asking)[-1]["type"] == "finish"
        [turn] = await store.list_turns()
        assert turn.status == "waiting"
        body = asked("") | {"messages": [await chosen(client, "red")]}
        assert text_in(await ask(client, body)) == "You chose ['red']."
        assert await store.list_turns() == []


async def test_owed_answers_are_limited(serve: Any, store: AsyncHistoryStore) -> None:
    client = await serve(None, max_waiting=2, participant=ann, limits=ChatLimits(answers=2, answers_per_user=1))
    asking = []
    for number in range(2):
        asking.append(asyncio.create_task(ask(client, asked(f"{number}", f"m{number}"))))
        await until(lambda number=number: is_owed(store, number + 1))
    for body, status, limit in (
        (asked("2", "m2"), 429, "max_waiting"),
        (asked("2", "m2", id="other"), 429, "answers_per_user"),
    ):
        refused = await client.post("", json=body)
        assert (refused.status_code, limit in refused.json()["detail"]) == (status, True)
    [strict] = [await serve(None, busy="refuse")]
    assert (await strict.post("", json=asked("2", "m2"))).status_code == 409
    assert [one.id for one in await store.get(CHAT)] == ["m0", "m1"]
    async with working(store, speaker(store)):
        await asyncio.gather(*asking)
        assert text_in(await ask(client, asked("2", "m2", id="other"))) == "You said: 2"


async def test_readers_of_another_process_see_an_answer_as_it_is_written(serve: Any, store: AsyncHistoryStore) -> None:
    gate = Gate()
    one, two = await serve(None), await serve(None)
    asking = asyncio.create_task(ask(one, asked("Hello")))
    async with working(store, gate):
        await gate.begun.wait()
        found = await resumed_by(two, gate, 2)
        assert [text_in(chunks) for chunks in [*found, await asking]] == ["first last"] * 3


async def test_a_call_that_is_open_when_a_stop_comes_is_settled(serve: Any, store: AsyncHistoryStore) -> None:
    begun = asyncio.Event()

    async def answer(run: Any) -> None:
        await run.append(assistant("I look.", tool_use("c", "find", {})))
        begun.set()
        await asyncio.Event().wait()

    client = await serve(None)
    asking = asyncio.create_task(ask(client, asked("Hello")))
    async with working(store, answer):
        await begun.wait()
        assert (await client.post(f"/{PATH}/stop")).status_code == 204
        assert (await asking)[-1]["type"] == "abort"
    assert (await store.get(CHAT))[-1].tool_results[0].is_error


@pytest.mark.proves("bounded-requests")
@pytest.mark.parametrize("option", ["answers", "answers_per_user"])
async def test_owed_answers_are_limited_for_requests_at_once(serve: Any, store: AsyncHistoryStore, option: str) -> None:
    limits: Any = {option: 3}
    client = await serve(None, participant=ann, limits=ChatLimits(**limits))
    sent = {
        asyncio.create_task(client.post("", json=asked("x", "m", id=f"chat {number}"))): f"chat {number}"
        for number in range(30)
    }
    await until(lambda: are_decided(store, sent))
    refused = [one for one in sent if one.done()]
    assert {one.result().status_code for one in refused} == {503 if option == "answers" else 429}
    owed = {turn.conversation_id for turn in await store.list_turns()}
    assert owed == {chat for one, chat in sent.items() if one not in refused}
    assert {one.conversation_id for one in await store.list_conversations()} == owed
    async with working(store, speaker(store)):
        assert {answered.status_code for answered in await asyncio.gather(*sent)} > {200}


async def are_decided(store: AsyncHistoryStore, sent: Collection[asyncio.Task[Any]]) -> bool:
    """Whether each of these requests is refused, or is owed an answer."""
    return sum(one.done() for one in sent) + len(await store.list_turns()) >= len(sent)
