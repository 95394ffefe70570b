"""One store, used from many event loops, threads and processes at once."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from redis_history import (
    AsyncHistoryStore,
    Conversation,
    HistoryStore,
    MessagesAppended,
    RetryPolicy,
    assistant,
    user,
)
from redis_history.errors import InvalidInputError, RevisionConflictError, StoreClosedError
from tests.conftest import Servers
from tests.support.proxy import LossyProxy
from tests.support.servers import RealServer, until, wait_until

#: So long that only a doorbell can bring a change in time.
NEVER = 600.0


async def in_loops(*works: Callable[[], Any]) -> list[Any]:
    """Their outcomes, each run in a thread with an event loop of its own, all at once."""
    with ThreadPoolExecutor(len(works)) as threads:
        loop = asyncio.get_running_loop()
        return await asyncio.gather(*(loop.run_in_executor(threads, asyncio.run, work()) for work in works))


@pytest.fixture(params=["redis", "cluster"])
async def store(request: pytest.FixtureRequest, server_of: Servers, namespace: str) -> AsyncIterator[AsyncHistoryStore]:
    kind: str = request.param
    store = AsyncHistoryStore(server_of(kind).url, namespace=namespace, poll_interval=NEVER)
    yield store
    await store.aclose()
    del store
    gc.collect()  # a connection that outlived its loop would warn now, and a warning is an error


async def test_every_loop_has_a_doorbell(store: AsyncHistoryStore) -> None:
    """Eight loops follow one conversation, while they and this one write to it."""
    ready = threading.Barrier(9)

    async def follow(number: int) -> list[str]:
        seen: list[str] = []
        async with store.subscribe("c") as subscription:
            await asyncio.to_thread(ready.wait, 20)
            await store.append("c", user("x", id=str(number)))
            while len(seen) < 8 + 20:
                event = await subscription.get(timeout=20)
                assert isinstance(event, MessagesAppended), event
                seen += [message.id for message in event.messages]
        return seen

    async def write() -> None:
        await asyncio.to_thread(ready.wait, 20)
        for number in range(20):
            await store.append("c", user("x", id=f"here {number}"))

    # One subscription of this loop as well, opened first: the doorbell is not that of whoever came first.
    async with store.subscribe("c") as own:
        following = asyncio.create_task(in_loops(*(lambda number=number: follow(number) for number in range(8))))
        await write()
        seen = await following
        stored = [message.id for message in await store.get("c")]
        assert len(stored) == 28
        assert seen == [stored] * 8
        mine: list[str] = []
        while len(mine) < 28:
            event = await own.get(timeout=20)
            assert isinstance(event, MessagesAppended)
            mine += [message.id for message in event.messages]
        assert mine == stored


async def test_callbacks_in_every_loop(store: AsyncHistoryStore) -> None:
    """They are called in the loop that asked for them."""
    names = [f"c{number}" for number in range(4)]

    async def listen(name: str) -> list[int]:
        seen: list[int] = []
        loop = asyncio.get_running_loop()

        async def callback(event: Any) -> None:
            assert asyncio.get_running_loop() is loop
            seen.append(event.revision)

        unsubscribe = await store.on_change(name, callback)
        for _ in range(20):
            await store.append(name, user("x"))
        await until(lambda: len(seen) == 20)
        await unsubscribe()
        return seen

    assert await in_loops(*(lambda name=name: listen(name) for name in names)) == [list(range(1, 21))] * 4


async def test_closing_in_one_loop_ends_the_others(server: RealServer, namespace: str) -> None:
    store = AsyncHistoryStore(f"{server.url}?client_name={namespace}", namespace=namespace, poll_interval=NEVER)
    await store.append("c", user("x"))
    watching = threading.Barrier(5)

    async def follow() -> str:
        called: list[Any] = []
        await store.on_change("other", called.append)
        async with store.subscribe("c") as subscription:
            waiting = asyncio.create_task(subscription.get())
            await asyncio.to_thread(watching.wait, 20)
            async with asyncio.timeout(20):
                assert await waiting is None
            assert subscription.closed
        with pytest.raises(StoreClosedError):
            await store.append("c", user("y"))
        return "ended"

    following = asyncio.create_task(in_loops(*[follow] * 4))
    await asyncio.to_thread(watching.wait, 20)
    await store.aclose()
    assert await following == ["ended"] * 4
    gc.collect()

    def alone() -> bool:
        with server.client() as client:
            return not any(one["sub"] != "0" for one in client.client_list() if one["name"] == namespace)

    await asyncio.to_thread(wait_until, alone, "the doorbells to go")


async def test_a_subscription_is_for_its_own_loop(store: AsyncHistoryStore) -> None:
    async with store.subscribe("c") as subscription:
        await store.append("c", user("x"))

        async def take() -> None:
            with pytest.raises(InvalidInputError):
                await subscription.get(timeout=1)

        await in_loops(take)
        event = await subscription.get(timeout=10)
        assert isinstance(event, MessagesAppended)

        async def go_on() -> None:
            async with store.subscribe("c", after=subscription.cursor) as own:
                await store.append("c", user("y"))
                event = await own.get(timeout=10)
                assert isinstance(event, MessagesAppended)
                assert event.revision == 2

        await in_loops(go_on)
        # It may be closed from anywhere, and then ends here.
        waiting = asyncio.create_task(_drain(subscription))
        await in_loops(subscription.aclose)
        async with asyncio.timeout(20):
            await waiting


async def test_a_write_opens_the_subscriptions_of_its_own_loop_only(store: AsyncHistoryStore) -> None:
    mine = store.subscribe("c")

    async def write() -> bool:
        theirs = store.subscribe("c")
        await store.append("c", user("x"))
        assert theirs.opened
        await theirs.aclose()
        return mine.opened

    assert await in_loops(write) == [False]
    await store.append("c", user("y"))
    assert mine.opened
    event = await mine.get(timeout=10)
    assert isinstance(event, MessagesAppended)
    assert [message.text for message in event.messages] == ["y"]
    await mine.aclose()


async def test_loops_that_begin_together(server: RealServer, namespace: str, full: bool) -> None:
    """Every one connects many times at the same moment: no lock, pool or connection is shared with another."""
    store = AsyncHistoryStore(server.url, namespace=namespace, poll_interval=NEVER)
    together = threading.Barrier(8)
    times, each = (3, 100) if full else (2, 40)

    async def work(name: str) -> None:
        together.wait(20)
        await asyncio.gather(*(store.append("c", user("x", id=f"{name}-{number}")) for number in range(each)))

    for rounds in range(times):
        names = [f"{rounds}-{number}" for number in range(8)]
        await in_loops(*(lambda name=name: work(name) for name in names))
        together.reset()
    stored = await store.get("c")
    assert [message.sequence for message in stored] == list(range(1, 8 * times * each + 1))
    assert len({message.id for message in stored}) == 8 * times * each
    await store.aclose()
    gc.collect()


def test_loops_come_and_go(own_server: Callable[..., RealServer]) -> None:
    """A store that serves one loop after the other, as a program does that calls asyncio.run for each request."""
    server = own_server()
    store = AsyncHistoryStore(server.url, poll_interval=NEVER)

    async def request(number: int) -> None:
        async with store.subscribe("c") as subscription:
            await store.append("c", user(str(number)))
            event = await subscription.get(timeout=10)
            assert isinstance(event, MessagesAppended)
            assert event.revision == number + 1

    for number in range(30):
        asyncio.run(request(number))
        assert len(store._backend._lines._ready.every()) == 1  # type: ignore[attr-defined]
        assert len(store._backend._doorbells.every()) == 1  # type: ignore[attr-defined]
    gc.collect()
    with server.client() as client:
        wait_until(lambda: len(client.client_list()) == 1, "the connections of the loops to go")
    asyncio.run(store.aclose())


def test_sixteen_threads_do_everything(server: RealServer, namespace: str) -> None:
    """Each has a conversation of its own, and all have one together; what is left is exactly known."""
    threads, rounds = 16, 6
    store = HistoryStore(server.url, namespace=namespace, poll_interval=NEVER)
    rung: dict[int, list[str]] = {number: [] for number in range(threads)}

    def work(number: int) -> None:
        own = f"own {number}"
        store.create_conversation(Conversation(own, user_id=f"user {number % 4}"))
        unsubscribe = store.on_change(own, lambda event: rung[number].append(type(event).__name__))
        with store.subscribe("shared") as subscription:
            for turn in range(rounds):
                key = f"{number}-{turn}"
                first = store.append(own, user("a", id=f"a{key}"))
                store.append_many(own, [assistant("b", id=f"b{key}"), user("c", id=f"c{key}")])
                assert store.append(own, user("a", id=f"a{key}")).duplicate
                store.update_message(own, user("A", id=f"a{key}"))
                assert store.delete_messages(own, [f"c{key}"]) == 1
                store.update_conversation(own, title=str(turn))
                assert store.get_message(own, f"a{key}").text == "A"  # type: ignore[union-attr]
                assert [message.id for message in store.get(own, limit=2)] == [f"a{key}", f"b{key}"]
                assert len(list(store.iter(own, batch=3))) == 2 * (turn + 1)
                with pytest.raises(RevisionConflictError):
                    store.append(own, user("x"), expected_revision=first.revision)
                store.append("shared", user(key, id=key))
                mine = store.list_conversations(user_id=f"user {number % 4}")
                assert own in {one.conversation_id for one in mine}
            seen: list[str] = []
            while not {f"{number}-{turn}" for turn in range(rounds)} <= set(seen):
                event = subscription.get(timeout=20)
                assert isinstance(event, MessagesAppended), event
                seen += [message.id for message in event.messages]
        snapshot = store.snapshot(own)
        assert snapshot.cursor.revision == 1 + 5 * rounds
        assert store.restore(own, snapshot.messages[-2:], expected_revision=snapshot.cursor.revision)
        assert store.clear(own) == 3 + 5 * rounds
        wait_until(lambda: len(rung[number]) == 2 + 5 * rounds, "the callbacks")
        unsubscribe()
        assert store.delete_conversation(own)

    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work, number) for number in range(threads)]:
            done.result()
    one_turn = ["MessagesAppended", "MessagesAppended", "MessageUpdated", "MessagesDeleted", "ConversationUpdated"]
    assert list(rung.values()) == [one_turn * rounds + ["HistoryRestored", "HistoryCleared"]] * threads
    stored = store.get("shared")
    assert sorted(message.id for message in stored) == sorted(
        f"{number}-{turn}" for number in range(threads) for turn in range(rounds)
    )
    assert [message.sequence for message in stored] == list(range(1, threads * rounds + 1))
    for number in range(threads):
        mine = [message.id for message in stored if message.id.startswith(f"{number}-")]
        assert mine == [f"{number}-{turn}" for turn in range(rounds)]
    assert [one.conversation_id for one in store.list_conversations()] == ["shared"]
    store.close()


async def test_calls_cancelled_at_random_are_sent_again(own_server: Callable[..., RealServer], full: bool) -> None:
    """Each writer gives up on its calls at random moments, some replies are lost too, and sends the same again."""
    server = own_server(tcp=True)
    proxy = LossyProxy(server.port, loss=0.02)
    patient = RetryPolicy(deadline=30, first_wait=0.001, longest_wait=0.01)
    chance = random.Random(11)
    rounds, cancelled = 20 if full else 6, 0

    async def surely(call: Callable[[], Any]) -> Any:
        nonlocal cancelled
        patience = 0.0002
        while True:
            task = asyncio.create_task(call())
            done, _ = await asyncio.wait([task], timeout=chance.uniform(0, patience))
            if done:
                return task.result()
            if task.cancel():
                await asyncio.wait([task])
                if not task.cancelled():
                    return task.result()
                cancelled += 1
            patience *= 1.5

    async with AsyncHistoryStore(f"redis://127.0.0.1:{proxy.port}/0", retry=patient) as store:

        async def write(writer: int) -> None:
            for number in range(rounds):
                one = user("x", id=f"{writer}-{number}")
                pair = [user("y", id=f"{writer}-{number}-{part}") for part in "ab"]
                await surely(lambda one=one: store.append("c", one))
                await surely(lambda pair=pair: store.append_many("c", pair))
                await surely(lambda one=one: store.update_message("c", user("z", id=one.id)))

        await asyncio.gather(*(write(writer) for writer in range(10)))
    await asyncio.to_thread(proxy.close)
    assert cancelled > 4 * rounds
    with HistoryStore(server.url) as reader:
        stored = reader.get("c")
        assert [message.sequence for message in stored] == list(range(1, 30 * rounds + 1))
        assert {message.id: message.text for message in stored} == {
            f"{writer}-{number}{part}": text
            for writer in range(10)
            for number in range(rounds)
            for part, text in (("", "z"), ("-a", "y"), ("-b", "y"))
        }
        assert reader.snapshot("c").cursor.revision == 30 * rounds
        record = reader.get_conversation("c")
        assert record is not None
        assert record.message_count == 30 * rounds
        assert record.characters == 30 * rounds


async def test_a_child_forked_in_the_middle_of_a_loop(server: RealServer, namespace: str) -> None:
    """Both go on with the one store: the parent with its subscription, the child in an event loop of its own."""
    store = AsyncHistoryStore(server.url, namespace=namespace, poll_interval=NEVER)

    async def in_child() -> None:
        async with store.subscribe("c") as own:
            for number in range(20):
                await store.append("c", user(f"child {number}"))
            seen: list[str] = []
            while len(seen) < 20:
                event = await own.get(timeout=20)
                assert isinstance(event, MessagesAppended)
                seen += [message.text for message in event.messages if message.text.startswith("child")]
            assert seen == [f"child {number}" for number in range(20)]

    async with store.subscribe("c") as subscription:
        await store.append("c", user("before"))
        assert await subscription.get(timeout=10) is not None
        child = os.fork()
        if child == 0:
            code = 1
            try:
                thread = threading.Thread(target=lambda: asyncio.run(in_child()))
                failed: list[Any] = []
                threading.excepthook = failed.append  # type: ignore[assignment]
                thread.start()
                thread.join(30)
                code = int(bool(failed) or thread.is_alive())
            finally:
                os._exit(code)
        for number in range(20):
            await store.append("c", user(f"parent {number}"))
        texts: list[str] = []
        while len(texts) < 40:
            event = await subscription.get(timeout=20)
            assert isinstance(event, MessagesAppended)
            texts += [message.text for message in event.messages]
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert status == 0
        stored = [message.text for message in await store.get("c")]
        assert stored[1:] == texts
        for name in ("parent", "child"):
            assert [text for text in texts if text.startswith(name)] == [f"{name} {number}" for number in range(20)]
    await store.aclose()
    gc.collect()


async def _drain(subscription: Any) -> None:
    async for _ in subscription:
        pass
