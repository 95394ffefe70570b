"""A store used by many threads, by a loop that stops and runs again, by a forked child, and by killed processes."""

import asyncio
import gc
import os
import random
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import anyio
import pytest

from redis_history import (
    AsyncHistoryStore,
    AsyncRedisHistory,
    Conversation,
    HistoryStore,
    MessagesAppended,
    RetryPolicy,
    assistant,
    tool_use,
    user,
)
from redis_history.errors import EventLoopError, RevisionConflictError, RunStopped, StoreClosedError
from redis_history.integrations._extras import asynchronous
from tests.conftest import Servers
from tests.support.faces import open_store
from tests.support.forks import Forked, write_messages
from tests.support.proxy import LossyProxy
from tests.support.servers import RealServer, Start, until, wait_until

#: So long that changes arrive in time only through a doorbell.
NEVER = 600.0


async def in_another_loop(work: Callable[[], Any]) -> Any:
    """The outcome of `work` in another thread, with a new event loop."""
    return await asyncio.to_thread(lambda: asyncio.run(work()))


@pytest.fixture(params=["redis", "cluster"])
async def store(request: pytest.FixtureRequest, server_of: Servers, namespace: str) -> AsyncIterator[AsyncHistoryStore]:
    kind: str = request.param
    store = AsyncHistoryStore(server_of(kind).url, namespace=namespace, poll_interval=NEVER)
    yield store
    await store.aclose()
    del store
    gc.collect()  # a connection that outlived its loop would warn now, and a warning is an error


async def test_a_cancelled_scope_of_anyio_closes_all_connections(server: RealServer, namespace: str) -> None:
    """It also cancels each `await` of a close."""
    url = f"{server.url}?client_name={namespace}"
    with anyio.CancelScope() as scope:
        async with (
            AsyncRedisHistory(url, namespace=namespace) as history,
            AsyncHistoryStore(url, namespace=namespace) as store,
            store.subscribe("c") as subscription,
            store.run("c") as run,
        ):
            await history.autosave("c")
            await store.on_change("c", lambda event: None)
            await run.append(user("x"))
            await subscription.get(timeout=10)
            scope.cancel()
            await asyncio.sleep(60)
    await until(lambda: all(one["name"] != namespace for one in server.watcher.client_list()), "the connections' end")


@pytest.mark.proves("threads")
async def test_a_second_event_loop_is_refused(store: AsyncHistoryStore) -> None:
    called: list[Any] = []
    await store.on_change("c", called.append)
    async with store.subscribe("c") as subscription:
        await store.append("c", user("x"))

        async def use() -> None:
            for call in (
                lambda: store.append("c", user("y")),
                lambda: store.get("c"),
                lambda: store.subscribe("c").open(),
                lambda: store.on_change("c", called.append),
                lambda: subscription.get(timeout=1),
                subscription.aclose,
                store.aclose,
            ):
                with pytest.raises(EventLoopError):
                    await call()

        await in_another_loop(use)
        # Its own loop continues to work.
        await store.append("c", user("z"))
        for text in ("x", "z"):
            event = await subscription.get(timeout=10)
            assert isinstance(event, MessagesAppended)
            assert [message.text for message in event.messages] == [text]
    await until(lambda: len(called) == 2)


@pytest.mark.proves("get-in-time", "embedders")
async def test_a_callback_that_waits_for_a_cancelled_task_has_failed(server: RealServer, namespace: str) -> None:
    """The task of the store itself was not cancelled."""
    seen: list[Any] = []
    errors: list[Any] = []

    async def wait_for_cancelled(*_: Any) -> Any:
        shared = asyncio.ensure_future(asyncio.sleep(60))
        shared.cancel()
        await shared

    async def callback(event: Any) -> None:
        seen.append(event.revision)
        await wait_for_cancelled()

    async with AsyncHistoryStore(server.url, namespace=namespace, embedder=wait_for_cancelled, vectors=8) as store:
        unsubscribe = await store.on_change("c", callback, on_error=lambda error, event: errors.append(event))
        for text in ("one", "two"):
            await store.append("c", user(text))
        await until(lambda: len(errors) == 2)
        assert seen == [1, 2]
        assert [hit.message.text for hit in await store.search("c", "two")] == ["two"]
        await unsubscribe()


def test_a_loop_that_runs_and_stops_many_times(own_server: Start) -> None:
    """As in an interactive program. Another loop is refused, also when the first one does not run."""
    server = own_server()
    store = AsyncHistoryStore(server.url, poll_interval=NEVER)
    loop = asyncio.new_event_loop()
    subscription = store.subscribe("c")
    for number in range(10):
        added = loop.run_until_complete(store.append("c", user(str(number))))
        assert added.revision == number + 1
        event: Any = loop.run_until_complete(subscription.get(timeout=10))
        assert event.revision == number + 1
        loop.run_until_complete(loop.shutdown_asyncgens())
        with pytest.raises(EventLoopError):
            asyncio.run(store.get("c"))
    loop.run_until_complete(store.aclose())
    with server.client() as client:
        wait_until(lambda: len(client.client_list()) == 1, "the store's connections to end")
    loop.close()
    gc.collect()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="new in Python 3.12")
def test_a_loop_whose_tasks_begin_at_once(server: RealServer, namespace: str) -> None:
    async def work() -> None:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        async with AsyncHistoryStore(server.url, namespace=namespace) as store:
            async with store.run("c") as run, run.stream() as reply:
                await reply.write("Hello")
            assert [message.text for message in await store.get("c")] == ["Hello"]

    thread = threading.Thread(target=asyncio.run, args=(work(),), daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.proves("threads")
def test_sixteen_threads_do_everything(server: RealServer, namespace: str) -> None:
    """Each has its own conversation, and all share another one. The expected result is exact."""
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
                assert store.get_message(own, f"a{key}").text == "A"
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


@pytest.mark.proves("threads")
@pytest.mark.full
async def test_a_cancelled_call_is_cancelled_at_every_moment(store: AsyncHistoryStore) -> None:
    """redis-py loses a cancellation that comes when the command has just been sent."""
    await store.append("c", user("x"))
    calls: list[Callable[[], Any]] = [
        lambda: store.append("c", user("y")),
        lambda: store.get("c", limit=1),
        store.list_conversations,
        lambda: store.get_run("c"),
        lambda: store.capabilities,
    ]
    for call in calls:
        for moment in range(60):
            task = asyncio.create_task(call())
            for _ in range(moment):
                await asyncio.sleep(0)
            if task.cancel():  # it has not ended
                await asyncio.wait([task])
                assert task.cancelled(), moment

    async def cancels_itself() -> None:
        task = asyncio.current_task()
        task.cancel()
        await store.get("c")

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(cancels_itself())

    async def reads_for(seconds: float) -> None:
        async with asyncio.timeout(seconds):
            while True:
                await store.get("c", limit=1)

    for number in range(20):
        with pytest.raises(TimeoutError):
            await reads_for(0.001 * number)


@pytest.mark.parametrize("kind", ["redis", "cluster"])
async def test_a_first_call_is_cancelled_at_every_moment(server_of: Servers, namespace: str, kind: str) -> None:
    """It connects, and reads the slots of a cluster."""
    url = server_of(kind).url
    for moment in range(30):
        async with AsyncHistoryStore(url, namespace=namespace) as store:
            task = asyncio.create_task(store.get("c"))
            for _ in range(moment):
                await asyncio.sleep(0)
            was_running = task.cancel()
            await asyncio.wait([task])
            assert task.cancelled() is was_running, moment


@pytest.mark.proves("runs")
@pytest.mark.full
async def test_a_stop_cancels_an_agent_that_reads_and_writes_all_the_time(store: AsyncHistoryStore) -> None:
    async def work(conversation_id: str) -> None:
        async with store.run(conversation_id, cancel=True) as run:
            while time.monotonic() < ends:
                await store.get(conversation_id, limit=1)
                await run.append(user("x"))

    ends = time.monotonic() + NEVER
    for number in range(20):
        task = asyncio.create_task(work(f"c{number}"))
        await until(lambda number=number: store.stop_run(f"c{number}", reason="enough"), "the run")
        with pytest.raises(RunStopped, match="enough"):
            await asyncio.wait_for(task, 10)
        assert not task.cancelling()
        info = await store.get_run(f"c{number}")
        assert info.status == "stopped"


@pytest.mark.proves("threads")
@pytest.mark.parametrize("face", ["sync", "async"])
async def test_a_forked_child_needs_a_store_of_its_own(server: RealServer, namespace: str, face: str) -> None:
    """The child closes the parent's store without touching its connections."""
    async with (
        open_store(face, server.url, namespace=namespace, poll_interval=NEVER) as store,
        store.subscribe("c") as subscription,
        store.run("run") as run,
        store.stream("reply", id="r") as reply,
    ):
        await reply.write("of the parent")
        await store.append("c", user("before"))
        assert await subscription.get(timeout=10) is not None
        child = os.fork()
        if child == 0:
            code = 1
            try:
                thread = threading.Thread(
                    target=lambda: asyncio.run(in_child(face, store, subscription, run, reply, server.url))
                )
                errors: list[Any] = []
                threading.excepthook = errors.append
                thread.start()
                thread.join(30)
                code = int(bool(errors) or thread.is_alive())
            finally:
                os._exit(code)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert status == 0
        await store.append("c", user("after"))
        event = await subscription.get(timeout=10)
        assert [message.text for message in event.messages] == ["after"]
    assert reply.message.text == "of the parent"
    with HistoryStore(server.url) as reader:
        assert [message.text for message in reader.get("c")] == ["of the child"]
        reader.delete_conversation("c")


async def in_child(face: str, store: Any, subscription: Any, run: Any, reply: Any, url: str) -> None:
    for call in (
        lambda: store.append("c", user("x")),
        lambda: store.get("c"),
        lambda: store.capabilities,
        lambda: store.subscribe("c").open(),
        lambda: store.on_change("c", print),
        lambda: subscription.get(timeout=1),
        lambda: reply.write("of the child"),
        lambda: reply.add(tool_use("1", "f", {})),
        lambda: run.append(user("x")),
        lambda: run.messages(),
        lambda: run.wait_stop(0),
        lambda: run.stream().write("x"),
    ):
        with pytest.raises(StoreClosedError, match="create a store in each process"):
            await call()
    await subscription.aclose()
    await store.aclose()
    async with open_store(face, url) as own:
        await own.append("c", user("of the child"))


@pytest.mark.parametrize("anyios", [False, True])
async def test_a_cancelled_write_in_a_thread_does_not_land_later(own_server: Start, anyios: bool) -> None:
    """Adapters call a HistoryStore in threads, which cannot be ended. The caller continues only after the thread
    ends."""
    server = own_server(tcp=True)
    retries: list[Any] = []
    policy = RetryPolicy(deadline=60.0, on_retry=retries.append)
    with (
        closing(LossyProxy(server.port)) as proxy,
        HistoryStore(f"redis://127.0.0.1:{proxy.port}", search="off", retry=policy) as store,
    ):
        in_threads: Any = asynchronous(store, "this test")
        await in_threads.append("c", user("before"))
        proxy.refuse()

        async def write() -> None:
            with anyio.CancelScope() as scope:
                if anyios:
                    scopes.append(scope)
                await in_threads.append("c", user("late"))

        scopes: list[anyio.CancelScope] = []
        task = asyncio.create_task(write())
        await until(lambda: len(retries) > 2, "the write to be repeated")
        if anyios:
            scopes[0].cancel()
        else:
            task.cancel()
        await asyncio.wait([task], timeout=10)
        assert task.done()
        assert task.cancelled() is not anyios
        async with asyncio.timeout(2):
            await asyncio.get_running_loop().shutdown_default_executor()
        proxy.forward(server.port)
        assert [message.text for message in store.get("c")] == ["before"]


def test_another_thread_does_the_maintenance_first(
    server: RealServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HistoryStore(server.url, namespace=namespace) as store:
        store.append("c", user("x"))
        backend: Any = store.backend
        backend._upkeep_at = 0.0
        monotonic = time.monotonic

        def look() -> float:
            backend._upkeep_at = None
            return monotonic()

        with monkeypatch.context() as patch:
            patch.setattr(time, "monotonic", look)
            assert store.get_message("c", "x") is None


@pytest.mark.proves("dense")
def test_eight_writers_killed_at_random(own_server: Start, full: bool) -> None:
    server = own_server()
    writers, count, kills = 8, 1000 if full else 300, 30 if full else 6
    chance = random.Random(7)
    running = {str(index): Forked(write_messages, server.url, str(index), count) for index in range(writers)}
    with HistoryStore(server.url) as store:
        for kill in range(1, kills + 1):
            goal = kill * writers * count // (kills + 1)
            wait_until(lambda goal=goal: store.snapshot("c", limit=1).message_count >= goal, f"{goal} messages", 120)
            name = chance.choice(sorted(running))
            running[name].kill()
            running[name] = Forked(write_messages, server.url, name, count)
        for process in running.values():
            process.result(300)
        stored = list(store.iter("c", batch=1000))
        assert [message.sequence for message in stored] == list(range(1, writers * count + 1))
        wanted = {f"{index}-{number}" for index in range(writers) for number in range(count)}
        assert {message.id for message in stored} == wanted
        for index in range(writers):
            mine = [message.id for message in stored if message.id.startswith(f"{index}-")]
            assert mine == [f"{index}-{number}" for number in range(count)]
        assert store.snapshot("c", limit=1).cursor.revision == writers * count


@pytest.mark.proves("named-errors")
@pytest.mark.parametrize("backend", ["redis", "memory"])
def test_without_a_loop_of_asyncio_the_error_is_named(server: RealServer, namespace: str, backend: str) -> None:
    """Trio, for example, runs coroutines in its own loop."""
    url = server.url if backend == "redis" else "memory://"

    async def entered(manager: Any) -> None:
        async with manager:
            pass

    works: dict[str, Callable[[AsyncHistoryStore], Any]] = {
        "append": lambda store: store.append("c", user("x")),
        "get": lambda store: store.get("c"),
        "search": lambda store: store.search("c", "x"),
        "stream": lambda store: entered(store.stream("c")),
        "run": lambda store: entered(store.run("c")),
        "subscribe": lambda store: entered(store.subscribe("c")),
        "subscribe_all": lambda store: entered(store.subscribe_all()),
        "async with": entered,
        "aclose": lambda store: store.aclose(),
    }
    needless = {"append", "get"} if backend == "memory" else set[str]()
    for name in works.keys() - needless:
        with pytest.raises(EventLoopError, match="asyncio"):
            works[name](AsyncHistoryStore(url, namespace=namespace)).send(None)
