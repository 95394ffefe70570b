"""Workers: they answer the turns that conversations are owed. The tests of turns are in test_turns.py."""

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest

from redis_history import AsyncWorker, Conversation, RetryPolicy, Usage, Worker, assistant, errors, tool_use, user
from redis_history.store.operations import LookForTurns, TakeRun
from tests.conformance.conftest import SOON
from tests.conformance.test_stream import execute
from tests.support.faces import open_store
from tests.support.servers import Start, until


def worker_of(store: Any, answer: Callable[[Any], Any], **options: Any) -> Any:
    """A worker; `answer` is a plain function that gets a run whose methods it may await, or not."""
    options = {"first_wait": 0.05, "longest_wait": 0.2, **options}
    target = getattr(store, "_target", None)
    if target is None:
        return AsyncWorker(store, answer, **options)

    def plain(run: Any) -> Any:
        return _completed(answer(_Awaited(run)))

    return Worker(target, plain, **options)


class _Awaited:
    """A synchronous run or reply, whose methods return awaitables that are done."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if name == "stream":
            return lambda **fields: _Awaited(value(**fields))
        if not callable(value) or name in ("check", "suspend_turn"):
            return value

        async def call(*arguments: Any, **options: Any) -> Any:
            return value(*arguments, **options)

        return call

    async def __aenter__(self) -> Any:
        self._target.__enter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return self._target.__exit__(*error)


def _completed(coroutine: Any) -> Any:
    """The outcome of a coroutine that waits for nothing but what is done."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


@contextlib.asynccontextmanager
async def working(*workers: Any) -> AsyncIterator[None]:
    tasks = []
    for worker in workers:
        run = worker.run() if isinstance(worker, AsyncWorker) else asyncio.to_thread(worker.run)
        tasks.append(asyncio.create_task(run))
    try:
        yield
    finally:
        for worker in workers:
            worker.stop()
        await asyncio.gather(*tasks)


async def until_answered(store: Any, **query: Any) -> None:
    async def done() -> bool:
        return not await store.list_turns(**query)

    await until(done, "all turns to be answered")


async def until_status(store: Any, status: str) -> None:
    async def so() -> bool:
        return bool(await store.list_turns(status=status))

    await until(so, f"a turn that is {status}")


async def texts(store: Any, conversation_id: str = "c") -> list[str]:
    return [message.text for message in await store.get(conversation_id)]


async def echo(run: Any) -> None:
    async with run.stream() as reply:
        await reply.write(" ".join(message.text for message in run.turn.messages))


@pytest.mark.smoke
async def test_a_question_from_anywhere_is_answered(stores: Any) -> None:
    store, other = stores(), stores()
    await other.ask("before", user("1"))
    async with working(worker_of(store, echo)):
        await other.ask("c", user("2"))
        await other.ask("c", user("3"), agent_name="another")

        async def left() -> bool:
            return [turn.agent_name for turn in await other.list_turns()] == ["another"]

        await until(left, "the answers")
    assert await texts(store, "before") == ["1", "1"]
    assert sorted(await texts(store)) == ["2", "2", "3"]
    assert (await store.get_run("c")).status == "completed"


async def test_an_idle_worker_begins_at_once(stores: Any) -> None:
    """Not only when it looks the next time."""
    store, other = stores(), stores()
    async with working(worker_of(store, echo)):
        await other.ask("first", user("x"))
        await until_answered(other)
        began = time.monotonic()
        for number in range(5):
            await other.ask(f"c{number}", user("x"))
            await until_answered(other)
        assert time.monotonic() - began < 4.0  # it looks every 4 to 6 seconds


async def test_at_most_so_many_at_once(stores: Any) -> None:
    store = stores()
    active, most, lock = Counter[str](), Counter[str](), threading.Lock()

    async def answer(run: Any) -> None:
        owner = run.conversation_id[0]
        with lock:
            for key in (owner, "all"):
                active[key] += 1
                most[key] = max(most[key], active[key])
        await run.wait_stop(0.05)
        with lock:
            active[owner] -= 1
            active["all"] -= 1

    for number in range(12):
        name = f"{'ab'[number % 2]}{number}"
        await store.create_conversation(Conversation(name, user_id=name[0]))
        await store.ask(name, user("x"))
    async with working(worker_of(store, answer, concurrency=3), worker_of(stores(), answer, concurrency=3)):
        await until_answered(store)
    assert 1 < most["all"] <= 6
    most.clear()
    for number in range(8):
        await store.ask(f"{'ab'[number % 2]}{number}", user("y"))
    options = {"concurrency": 3, "per_user": 1}
    async with working(worker_of(store, answer, **options), worker_of(stores(), answer, **options)):
        await until_answered(store)
    assert (most["a"], most["b"]) == (1, 1)


async def test_a_failing_answer_is_repeated_and_parked(store: Any) -> None:
    seen: list[tuple[int, str | None]] = []

    async def answer(run: Any) -> None:
        before = run.turn.interrupted
        seen.append((run.turn.attempt, None if before is None else before.text))
        async with run.stream() as reply:
            await reply.write(f"try {run.turn.attempt}")
            await reply.add(tool_use(f"call {run.turn.attempt}", "search", {}))
            raise ValueError("never mind")

    await store.ask("c", user("x"))
    async with working(worker_of(store, answer, attempts=3)):
        await until_status(store, "parked")
        [turn] = await store.list_turns()
        assert (turn.error, turn.attempt) == ("ValueError", 3)
        assert seen == [(1, None), (2, "try 1"), (3, "try 2")]
        await store.retry_turn("c")

        async def again() -> bool:
            return len(seen) == 4

        await until(again, "the fourth attempt")
    calls = [part.id for message in await store.get("c") for part in message.tool_uses]
    results = [part.tool_use_id for message in await store.get("c") for part in message.tool_results]
    assert results == calls == [f"call {number}" for number in range(1, 5)]


@pytest.mark.proves("turns")
async def test_an_answer_that_exits_or_cancels_itself_fails(store: Any) -> None:
    """Not only an Exception: otherwise it would be repeated immediately and for ever."""
    attempts = []

    async def answer(run: Any) -> None:
        attempts.append(run.turn.attempt)
        if hasattr(store, "_target"):  # in a task, it would end the program
            raise SystemExit("no key")
        asyncio.current_task().cancel()
        await asyncio.sleep(0)

    await store.ask("c", user("x"))
    async with working(worker_of(store, answer, attempts=2)):
        await until_status(store, "parked")
    [turn] = await store.list_turns()
    assert turn.error == ("SystemExit" if hasattr(store, "_target") else "CancelledError")
    assert attempts == [1, 2]


@pytest.mark.backends("plain")
async def test_an_answer_that_cannot_begin_waits(own_server: Start, face: str, stores: Any) -> None:
    """That is no attempt, and not repeated immediately: here the user may not read a large question."""
    server = own_server("plain")
    rights = ("reset", "on", ">secret", "~*", "&*", "+@all")
    attempts, begun = [], {}

    async def answer(run: Any) -> None:
        attempts.append(run.turn.attempt)

    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "app", *rights, "-getrange")
        async with open_store(face, f"unix://app:secret@{server.socket}") as store:
            await store.ask("c", user("x" * 300_000))
            async with working(worker_of(store, answer)):

                async def third() -> bool:
                    if run := await store.get_run("c"):
                        begun[run.run_id] = run.started_at
                    return len(begun) == 3

                await until(third, "three runs")
                client.execute_command("ACL", "SETUSER", "app", *rights)
                await until_answered(store)
    assert attempts == [1]
    assert max(begun.values()) - min(begun.values()) > timedelta(seconds=2.5)


@pytest.mark.proves("turns")
async def test_a_question_behind_many_expired_ones(stores: Any) -> None:
    short, store = stores(ttl=0.5), stores()
    for number in range(600):
        await short.ask(f"expired {number}", user("x"))

    async def gone() -> bool:
        return await store.get_conversation("expired 599") is None

    await until(gone, "the conversations to expire")
    await store.ask("c", user("x"))
    async with working(worker_of(store, echo)):
        await until_answered(store)
    assert await texts(store) == ["x", "x"]


@pytest.mark.smoke
@pytest.mark.proves("turns")
async def test_a_question_waits_while_other_runs_reserve_the_budget(stores: Any) -> None:
    """That is no attempt, and does not hold up other owners."""
    store, other = stores(), stores()
    attempts: dict[str, int] = {}

    async def answer(run: Any) -> None:
        attempts[run.conversation_id] = run.turn.attempt

    for name in ("a1", "a2", "b"):
        await store.create_conversation(Conversation(name, user_id=name[0]))
    await store.set_budget("a", tokens=1000, reserve=1.0)
    async with other.run("a1"), working(worker_of(store, answer, attempts=1)):
        await store.ask("a2", user("x"))
        await until_tried(store, "a2")
        await store.ask("b", user("x"))
        await until_answered(store, user_id="b")
        [turn] = await store.list_turns()
        assert turn.error is None
        await store.set_budget("a", tokens=10_000, reserve=0.1)
        await until_answered(store)
    assert attempts == {"a2": 1, "b": 1}
    await store.ask("a2", user("y"))
    await store.append("a1", assistant("x", usage=Usage(10_000)))
    async with working(worker_of(store, answer, attempts=1)):
        await until_status(store, "parked")
    [turn] = await store.list_turns()
    assert turn.error == "BudgetExceededError", "usage does not end"


async def until_tried(store: Any, conversation_id: str) -> None:
    async def so() -> bool:
        run = await store.get_run(conversation_id)
        return run is not None and not run.is_active

    await until(so, "a run that has ended")


async def test_what_was_taken_up_is_answered_and_the_rest_is_the_next_turn(stores: Any) -> None:
    store = stores()
    rounds: list[list[str]] = []

    async def answer(run: Any) -> None:
        asked = [message.text for message in run.turn.messages]
        rounds.append(asked)
        if asked == ["1"]:
            while not (steered := await run.messages()):
                await run.wait_stop(0.01)
            rounds.append([message.text for message in steered])
            while len(await store_get("c")) < 3:
                await run.wait_stop(0.01)

    async def store_get(name: str) -> Any:
        return target.get(name) if target is not None else await store.get(name)

    target = getattr(store, "_target", None)
    other = stores()
    await other.ask("c", user("1"))
    async with working(worker_of(store, answer)):
        await until_status(other, "running")
        await other.ask("c", user("2"))

        async def steered() -> bool:
            return rounds[1:] == [["2"]]

        await until(steered, "the second message to be taken up")
        await other.ask("c", user("3"))
        await until_answered(other)
    assert rounds == [["1"], ["2"], ["3"]]


async def test_stop_ends_an_answer_and_its_turn(stores: Any) -> None:
    store, other = stores(), stores()
    stopped: list[bool] = []

    async def answer(run: Any) -> None:
        try:
            stopped.append(await run.wait_stop(SOON))
        finally:
            stopped.append(run.stop_requested)
        run.check()

    await store.ask("c", user("x"))
    async with working(worker_of(store, answer)):
        await until_status(other, "running")
        await until_running(other)
        assert await other.stop_run("c", reason="enough")
        await until_answered(other)
    assert stopped[-1] is True
    assert (await other.get_run("c")).status == "stopped"


async def until_running(store: Any) -> None:
    async def active() -> bool:
        run = await store.get_run("c")
        return run is not None and run.status == "active"

    await until(active, "the run to be active")


async def test_a_turn_that_waits_for_a_decision(store: Any) -> None:
    attempts: list[int] = []

    async def answer(run: Any) -> None:
        attempts.append(run.turn.attempt)
        if run.turn.attempt == 1:
            run.suspend_turn()

    await store.ask("c", user("x"))
    async with working(worker_of(store, answer)):
        await until_status(store, "waiting")
        await store.retry_turn("c")
        await until_answered(store)
    assert attempts == [1, 2]


async def test_a_worker_that_stops_gives_back_what_does_not_end(stores: Any) -> None:
    store, other = stores(), stores()
    lost: list[str] = []
    begun = threading.Event()

    async def answer(run: Any) -> None:
        begun.set()
        try:
            while True:
                await run.wait_stop(0.05)
                await run.append(user("x"))
        except BaseException as error:
            lost.append(type(error).__name__)
            raise

    worker = worker_of(store, answer)
    await store.ask("c", user("q", id="q"))
    async with working(worker):
        await asyncio.to_thread(begun.wait, SOON)
        worker.stop(0.1)

        async def given_back() -> bool:
            return [turn.status for turn in await other.list_turns()] == ["owed"]

        await until(given_back, "the turn to be owed again")
    [turn] = await other.list_turns()
    assert (turn.attempt, turn.error, turn.message_ids) == (1, None, ("q",))

    async def ended() -> bool:
        return bool(lost)

    await until(ended, "the answer to end")
    assert lost in (["CancelledError"], ["RunLostError"])


async def test_a_worker_may_run_again_after_a_stop(store: Any) -> None:
    worker = worker_of(store, echo)
    for number in range(2):
        await store.ask("c", user(str(number)))
        async with working(worker):
            await until_answered(store)
    assert await texts(store) == ["0", "0", "1", "1"]


@pytest.mark.full
async def test_a_wakeup_is_answered_when_it_is_due(stores: Any) -> None:
    """Also if it is due before an idle worker looks the next time."""
    store, other = stores(), stores()
    async with working(worker_of(store, echo)):
        await other.ask("first", user("x"))
        await until_answered(other)
        began = time.monotonic()
        for number in range(3):
            await other.ask(f"c{number}", user("later"), at=timedelta(seconds=0.3))
            await until_answered(other)
        assert 0.8 < time.monotonic() - began < 8.0  # it looks every 4 to 6 seconds, in a cluster every 8 to 12
    assert await texts(store, "c0") == ["later", "later"]


async def test_a_question_during_a_run_of_others(stores: Any) -> None:
    store, other = stores(), stores()
    async with working(worker_of(store, echo)):
        async with other.run("c"):
            await other.ask("c", user("x"))
            await other.append("c", user("y"))
        await until_answered(other)
    assert await texts(store) == ["x", "y", "x"]


async def test_a_worker_goes_on_when_a_call_fails(stores: Any) -> None:
    store, other = stores(), stores()
    backend: Any = getattr(store, "_target", store).backend
    execute, failures = backend.execute, iter([True, True])

    def fails(op: Any) -> bool:
        return isinstance(op, LookForTurns | TakeRun) and next(failures, False)

    if hasattr(store, "_target"):

        def flaky(op: Any) -> Any:
            if fails(op):
                raise errors.BackendUnavailableError("away")
            return execute(op)
    else:

        async def flaky(op: Any) -> Any:
            if fails(op):
                raise errors.BackendUnavailableError("away")
            return await execute(op)

    backend.execute = flaky
    await other.ask("c", user("x"))
    async with working(worker_of(store, echo)):
        await until_answered(other)
    assert await texts(other) == ["x", "x"]


@pytest.mark.backends("plain")
async def test_a_worker_waits_for_its_server(own_server: Start, face: str, stores: Any) -> None:
    """Also at its start."""
    server = own_server("plain")
    server.kill()
    async with open_store(face, server.url, retry=RetryPolicy(deadline=0.1)) as store:
        async with working(worker_of(store, echo)):
            await asyncio.to_thread(server.start)

            async def asked() -> bool:
                with contextlib.suppress(errors.BackendError):
                    return bool(await store.ask("c", user("x", id="q")))
                return False

            await until(asked, "the server")
            await until_answered(store)
        assert await texts(store) == ["x", "x"]


@pytest.mark.backends("plain")
@pytest.mark.full
async def test_a_full_server_takes_no_turn_and_ends_those_under_way(own_server: Start, face: str, stores: Any) -> None:
    server = own_server("plain")
    attempts = []

    async def answer(run: Any) -> None:
        attempts.append(run.turn.attempt)
        if run.conversation_id == "first":
            with server.client() as client:
                client.config_set("maxmemory", 1)

    async with open_store(face, server.url, retry=RetryPolicy(deadline=0.1)) as store:
        await store.ask("second", user("x"), at=timedelta(seconds=3))
        await store.ask("first", user("x"))
        async with working(worker_of(store, answer)):

            async def ended() -> bool:
                return [turn.conversation_id for turn in await store.list_turns()] == ["second"]

            await until(ended, "the end of the first answer")
            with pytest.raises(errors.BackendRefusedError):
                await store.ask("third", user("x"))

            async def is_due() -> bool:
                look = await execute(store, LookForTurns(None))
                return bool(look.candidates)

            await until(is_due, "the second turn to be due")
            assert (await store.list_turns())[0].attempt == 0
            with server.client() as client:
                client.config_set("maxmemory", 0)
            await until_answered(store)
    assert attempts == [1, 1]


@pytest.mark.backends("plain")
async def test_an_answer_that_a_failover_has_lost_is_given_again(own_server: Start, face: str, stores: Any) -> None:
    server = own_server("plain")
    attempts = []

    async def answer(run: Any) -> None:
        attempts.append(run.turn.attempt)
        with server.client() as client:
            before = {key: client.dump(key) for key in client.scan_iter(match="*:c:*")}
            async with run.stream() as reply:
                await reply.write(f"answer {run.turn.attempt}")
            if run.turn.attempt == 1:  # the new master has not got this reply
                for key, value in before.items():  # at no moment is the conversation missing
                    client.restore(key, 0, value, replace=True)
                for key in {*client.scan_iter(match="*:c:*")} - before.keys():
                    client.delete(key)

    async with open_store(face, server.url) as store:
        await store.ask("c", user("q"))
        async with working(worker_of(store, answer)):
            await until_answered(store)
        assert await texts(store) == ["q", "answer 2"]
    assert attempts == [1, 2]


async def test_a_deleted_conversation_ends_the_answer(stores: Any) -> None:
    store, other = stores(), stores()

    async def answer(run: Any) -> None:
        while True:
            await run.wait_stop(0.02)
            await run.append(user("x"))

    async with working(worker_of(store, answer)):
        await other.ask("c", user("q"))
        await until_status(other, "running")
        await other.delete_conversation("c")
        await until_answered(other)
        await other.ask("d", user("q"))  # it goes on with others
        await until_status(other, "running")
        await other.delete_conversation("d")
        await until_answered(other)
    assert await other.get_conversation("c") is None


async def test_many_workers_and_turns(stores: Any) -> None:
    """Each is answered once, in the order of its conversation."""
    workers = [worker_of(stores(), echo, concurrency=4) for _ in range(3)]
    store = stores()
    async with working(*workers):
        for number in range(60):
            await store.ask(f"c{number % 10}", user(str(number), id=str(number)))
        await until_answered(store)
    for room in range(10):
        found = await store.get(f"c{room}")
        asked = [message.text for message in found if message.role == "user"]
        answered = " ".join(message.text for message in found if message.role == "assistant").split()
        assert asked == answered == [str(number) for number in range(room, 60, 10)]


@pytest.mark.backends("memory")
async def test_wrong_options(store: Any) -> None:
    made = AsyncWorker if not hasattr(store, "_target") else Worker
    target = getattr(store, "_target", store)
    for name, value in {
        "answer": None, "agent_name": "", "concurrency": 0, "per_user": 0, "attempts": 0, "first_wait": -1,
        "longest_wait": 0.1, "grace": -1, "store": "redis://",
    }.items():  # fmt: skip
        options = {"store": target, "answer": echo if made is AsyncWorker else print, name: value}
        with pytest.raises(errors.InvalidInputError, match="a worker needs" if name == "store" else name):
            made(options.pop("store"), options.pop("answer"), **options)
    if made is Worker:
        with pytest.raises(errors.ConfigurationError, match="coroutine"):
            Worker(target, echo)
