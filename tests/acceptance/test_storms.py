"""Concurrent calls, some of which are cancelled or interrupted at random moments. No call receives the reply of another
call, no cancellation is lost, other callers are not disturbed, and no connections or tasks are left behind."""

import asyncio
import gc
import logging
import os
import random
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import pytest
import redis
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from redis_history import AsyncHistoryStore, HistoryStore, RetryPolicy, user
from redis_history.errors import BackendUnavailableError, StoreClosedError
from redis_history.store.lanes import EXCHANGES
from tests.support.faces import open_store
from tests.support.servers import RealServer, Start, until, wait_until

#: The maximum number of connections of a store without subscriptions.
CONNECTIONS = sum(EXCHANGES.values())
CALLERS = 48


async def cancelled_task(call: Awaitable[Any], after: float) -> bool:
    """Return whether the call was cancelled. Otherwise, its outcome was checked."""
    task = asyncio.ensure_future(call)
    await asyncio.sleep(after)
    cancels = task.cancel()
    await asyncio.wait([task], timeout=30)
    assert task.cancelled() is cancels, "a lost cancellation"
    if not cancels:
        task.result()
    return cancels


async def timed_out(call: Awaitable[Any], after: float) -> bool:
    try:
        async with asyncio.timeout(after) as scope:
            await call
    except TimeoutError:
        assert scope.expired()
        return True
    return False


async def cancelled_scope(call: Awaitable[Any], after: float) -> bool:
    with anyio.move_on_after(after) as scope:
        await call
    return scope.cancelled_caught


LEAVING: dict[str, Callable[[Awaitable[Any], float], Awaitable[bool]]] = {
    "cancel": cancelled_task,
    "asyncio.timeout": timed_out,
    "anyio": cancelled_scope,
}
#: Clients of users.
CLIENTS: dict[str, Callable[[str], Any]] = {
    "url": lambda path: None,
    "client": lambda path: redis.asyncio.Redis(unix_socket_path=path, decode_responses=True, socket_timeout=5),
    "two connections": lambda path: redis.asyncio.Redis(
        connection_pool=redis.asyncio.BlockingConnectionPool(
            connection_class=redis.asyncio.UnixDomainSocketConnection, path=path, max_connections=2, timeout=30
        )
    ),
    "retries": lambda path: redis.asyncio.Redis(unix_socket_path=path, retry=Retry(NoBackoff(), 3), socket_timeout=5),
}


class Caller:
    """A caller with a separate conversation. It abandons some calls, and records which appends were acknowledged."""

    def __init__(self, store: AsyncHistoryStore, name: str, leave: Callable[[Awaitable[Any], float], Awaitable[bool]]):
        self._store = store
        self._name = name
        self._leave = leave
        self._sent = 0
        self._acknowledged: list[str] = []
        self.left = 0

    async def work(self, calls: int, *, leaves: bool) -> None:
        for _ in range(calls):
            call = random.choice((self._append, self._read, self._list))()
            if leaves:
                self.left += await self._leave(call, random.choice((0.0, 0.0005, 0.002, 0.01)) * random.random())
            else:
                await call

    async def _append(self) -> None:
        self._sent += 1
        message_id = f"{self._name}-{self._sent}"
        await self._store.append(self._name, user("x" * random.choice((10, 2000)), id=message_id))
        self._acknowledged.append(message_id)

    async def _read(self) -> None:
        ids = [message.id for message in await self._store.get(self._name, limit=50)]
        assert all(one.startswith(f"{self._name}-") for one in ids), f"a foreign reply: {ids}"
        # A call that was left may take effect after the next call.
        known = set(self._acknowledged)
        acknowledged = [message_id for message_id in ids if message_id in known]
        assert acknowledged == sorted(acknowledged, key=self._number), "out of order"

    async def _list(self) -> None:
        found = await self._store.list_conversations(user_id=self._name)
        assert found == []

    async def check(self) -> None:
        """Check that acknowledged messages are stored once and in order."""
        stored = [message.id async for message in self._store.iter(self._name)]
        assert len(stored) == len(set(stored))
        assert set(self._acknowledged) <= set(stored)
        known = set(self._acknowledged)
        assert [message_id for message_id in stored if message_id in known] == self._acknowledged

    @staticmethod
    def _number(message_id: str) -> int:
        return int(message_id.rpartition("-")[2])


def connections(server: RealServer) -> int:
    return len(server.watcher.client_list()) - 1


@pytest.mark.proves("threads")
@pytest.mark.parametrize("leaving", LEAVING)
@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.full
def test_callers_that_leave_at_random_moments(own_server: Start, kind: str, leaving: str, eager: bool) -> None:
    """Half of the callers leave. The others are not disturbed, and none of their calls is repeated."""
    if eager and sys.version_info < (3, 12):
        pytest.skip("new in Python 3.12")
    server = own_server("plain")
    retries: list[Any] = []

    async def storm() -> int:
        if eager:
            asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        before = asyncio.all_tasks()
        client = CLIENTS[kind](str(server.socket))
        policy = RetryPolicy(on_retry=retries.append)
        options: dict[str, Any] = {"client": client} if client else {"url": server.url}
        store = AsyncHistoryStore(**options, search="off", retry=policy)
        callers = [Caller(store, f"c{number}", LEAVING[leaving]) for number in range(CALLERS)]
        async with asyncio.timeout(600), asyncio.TaskGroup() as group:
            for number, caller in enumerate(callers):
                group.create_task(caller.work(420, leaves=number % 2 == 0))
        for caller in callers:
            await caller.check()
        if kind in ("url", "two connections"):
            assert connections(server) <= (CONNECTIONS if kind == "url" else 2)
        await store.aclose()
        if client:
            await client.connection_pool.disconnect()
        assert asyncio.all_tasks() == before
        return sum(caller.left for caller in callers)

    left = asyncio.run(storm())
    assert left > 1000
    assert not retries
    wait_until(lambda: connections(server) == 0, "the end of all connections")


@pytest.mark.proves("threads")
@pytest.mark.parametrize("only", ["exchanges", "all"])
@pytest.mark.full
def test_somebody_cancels_all_tasks_of_the_loop(own_server: Start, only: str) -> None:
    """The lanes survive the cancellation at any moment, and callers that are not cancelled repeat their calls."""
    server = own_server("plain")

    async def work() -> None:
        async with AsyncHistoryStore(server.url, search="off") as store:
            await store.append("c", user("x"))
            for moment in range(400):
                callers = {asyncio.ensure_future(store.append(f"c{number}", user("y"))) for number in range(16)}
                for _ in range(moment % 40):
                    await asyncio.sleep(0)
                others = asyncio.all_tasks() - {asyncio.current_task()}
                for task in others - (callers if only == "exchanges" else set()):
                    task.cancel()
                done, pending = await asyncio.wait(callers, timeout=30)
                assert not pending, f"a call that never ends, after moment {moment}"
                assert only == "all" or not any(task.exception() for task in done)
            async with asyncio.timeout(30):
                await asyncio.gather(*(store.get(f"c{number}") for number in range(100)))
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(work())
    wait_until(lambda: connections(server) == 0, "the end of all connections")


@pytest.mark.proves("threads")
@pytest.mark.parametrize("face", ["sync", "async"])
async def test_a_store_is_closed_during_exchanges(own_server: Start, face: str) -> None:
    server = own_server("plain")
    for delay in (0.0, 0.001, 0.003, 0.01, 0.03):
        store = open_store(face, server.url, search="off")
        await store.append("c", user("x"))

        async def call_on(number: int, store: Any = store) -> None:
            while True:
                await store.append(f"c{number}", user("y"))

        calls = [asyncio.ensure_future(call_on(number)) for number in range(24)]
        await asyncio.sleep(delay)
        await store.aclose()
        done, pending = await asyncio.wait(calls, timeout=20)
        assert not pending
        assert {type(task.exception()) for task in done} == {StoreClosedError}
        await until(lambda: connections(server) == 0, "the end of all connections")


@pytest.mark.full
def test_a_loop_that_ends_while_many_calls_are_under_way(
    own_server: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Connections that outlive their loop warn. The hook of pytest would keep them.
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)
    server = own_server("plain")

    async def work(moment: int) -> None:
        store = AsyncHistoryStore(server.url, search="off")
        kept = [asyncio.ensure_future(store.append(f"c{number}", user("y"))) for number in range(64)]
        for _ in range(moment):
            await asyncio.sleep(0)
        assert kept

    with caplog.at_level(logging.WARNING, "asyncio"):
        for moment in range(0, 40, 3):
            asyncio.run(work(moment))
            for _ in range(5):  # finalizers of transports keep their loop until the next collection
                gc.collect()
    assert not caplog.messages


@pytest.mark.proves("named-errors")
@pytest.mark.parametrize("face", ["sync", "async"])
@pytest.mark.full
async def test_a_server_that_accepts_connections_and_never_answers(own_server: Start, face: str) -> None:
    """The handshake of a connection has a time limit, too."""
    server = own_server("plain")
    os.kill(server.pid, signal.SIGSTOP)
    try:
        async with open_store(
            face,
            f"{server.url}?socket_timeout=0.3&socket_connect_timeout=0.3",
            search="off",
            retry=RetryPolicy(deadline=1),
        ) as store:
            call = asyncio.ensure_future(store.append("c", user("x")))
            done, _ = await asyncio.wait([call], timeout=20)
            assert done
            assert isinstance(call.exception(), BackendUnavailableError)
    finally:
        os.kill(server.pid, signal.SIGCONT)


async def test_an_error_of_many_calls_has_a_traceback_for_each(own_server: Start) -> None:
    server = own_server("plain")
    policy = RetryPolicy(deadline=0.2, first_wait=0.01, longest_wait=0.01)
    async with AsyncHistoryStore(f"{server.url}?socket_timeout=1", search="off", retry=policy) as store:
        await store.append("c", user("x"))
        server.kill()
        outcomes = await asyncio.gather(*(store.get("c") for _ in range(100)), return_exceptions=True)
    for error in outcomes:
        assert isinstance(error, BackendUnavailableError)
        depth, step = 0, error.__cause__.__traceback__
        while step is not None:
            depth, step = depth + 1, step.tb_next
        assert depth < 40


@pytest.mark.proves("threads")
@pytest.mark.parametrize("threads", [1, 8])
@pytest.mark.full
def test_interrupts_of_the_main_thread_while_others_share_its_lanes(
    own_server: Start, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real signal, as from Ctrl-C, arrives between any two steps of the interpreter."""
    # An interrupt may come in a finalizer, and a socket be dropped in the middle of connect(). The hook of pytest would
    # keep both.
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)
    server = own_server("plain")
    interrupts, armed, ends = 10_000, False, threading.Event()

    def handler(number: int, frame: Any) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise KeyboardInterrupt

    with HistoryStore(server.url, search="off") as store, ThreadPoolExecutor(threads) as pool:

        def work(name: str) -> int:
            made = 0
            while not ends.is_set():
                made += 1
                store.append(name, user("x", id=f"{name}-{made}"))
                assert all(one.id.startswith(f"{name}-") for one in store.get(name, limit=5)), "a foreign reply"
            stored = [one.id for one in store.iter(name, batch=1000)]
            assert stored == [f"{name}-{number}" for number in range(1, made + 1)]
            return made

        before = signal.signal(signal.SIGALRM, handler)
        try:
            others = [pool.submit(work, f"t{number}") for number in range(threads)]
            interrupted = number = 0
            while interrupted < interrupts:
                number += 1
                try:
                    armed = True
                    signal.setitimer(signal.ITIMER_REAL, 1e-6 + 0.002 * random.random())
                    store.append("main", user("x", id=f"main-{number}"))
                    assert all(one.id.startswith("main-") for one in store.get("main", limit=5)), "a foreign reply"
                    armed = False
                except KeyboardInterrupt:
                    interrupted += 1
            armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
        finally:
            armed = False
            signal.signal(signal.SIGALRM, before)
            ends.set()
        for other in others:
            assert other.result(60) > 0
        # redis-py may leave the socket of an interrupted connection to the garbage collector.
        gc.collect()
        wait_until(lambda: connections(server) <= CONNECTIONS, "the end of interrupted connections")
    gc.collect()
    wait_until(lambda: connections(server) == 0, "the end of all connections")


@pytest.mark.proves("threads")
def test_a_signal_handler_uses_the_store_in_the_middle_of_a_call(own_server: Start, full: bool) -> None:
    with HistoryStore(own_server("plain").url, search="off") as store:

        def handler(number: int, frame: Any) -> None:
            seen.append([one.id for one in store.get("signal", limit=5)])

        seen: list[list[str]] = []
        store.append("signal", user("x", id="s"))
        store.append("main", user("x", id="m"))
        before = signal.signal(signal.SIGALRM, handler)
        try:
            while len(seen) < (5_000 if full else 300):
                signal.setitimer(signal.ITIMER_REAL, 1e-6 + 0.0005 * random.random())
                assert [one.id for one in store.get("main")] == ["m"]
            signal.setitimer(signal.ITIMER_REAL, 0)
        finally:
            signal.signal(signal.SIGALRM, before)
        assert all(ids == ["s"] for ids in seen)


async def test_a_cancelled_call_closes_no_connection_of_other_calls(own_server: Start) -> None:
    server = own_server("plain")

    def made() -> int:
        return server.watcher.info("stats")["total_connections_received"]

    async with AsyncHistoryStore(server.url, search="off") as store:

        async def use_all_lanes() -> None:
            await asyncio.gather(*(call("c") for call in (store.get, store.get_run) for _ in range(20)))
            await asyncio.gather(*(store.append("c", user("x")) for _ in range(20)))

        await use_all_lanes()
        before, cancelled = made(), 0
        for _ in range(20):
            call = asyncio.ensure_future(store.get("c"))
            await asyncio.sleep(0)
            cancelled += call.cancel()
            await asyncio.wait([call])
            await use_all_lanes()
        assert cancelled == 20
        assert made() - before <= cancelled
