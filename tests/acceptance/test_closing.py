"""A store that is closed while calls are under way: each ends, with its outcome or StoreClosedError, and no connection
is left."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from redis.connection import Connection, UnixDomainSocketConnection

from redis_history import Appended, AsyncHistoryStore, HistoryStore, user
from redis_history.errors import StoreClosedError
from tests.conftest import Servers
from tests.support.servers import until, wait_until


@pytest.fixture(params=["plain", "cluster"])
def server(server_of: Servers, request: pytest.FixtureRequest) -> Any:
    return server_of(request.param)


@pytest.fixture
def url(server: Any, namespace: str) -> str:
    """By which connections have a name."""
    return f"{server.url}{'&' if '?' in server.url else '?'}client_name={namespace}"


@pytest.fixture
def connections(server: Any, namespace: str) -> Callable[[], int]:
    """How many there are of that name."""

    def connections() -> int:
        nodes = getattr(server, "nodes", [server])
        return sum(one["name"] == namespace for node in nodes for one in node.watcher.client_list())

    return connections


async def test_calls_that_are_connecting(
    url: str, namespace: str, connections: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = AsyncHistoryStore(url, namespace=namespace)
    await store.append("c", user("x"))
    waiting: list[None] = []
    go = asyncio.Event()

    def holding(connect: Any) -> Any:
        async def held(*args: Any, **kwargs: Any) -> Any:
            waiting.append(None)
            await go.wait()
            return await connect(*args, **kwargs)

        return held

    for name in ("open_connection", "open_unix_connection"):
        monkeypatch.setattr(asyncio, name, holding(getattr(asyncio, name)))
    calls = [asyncio.create_task(store.append("c", user(str(number)))) for number in range(10)]
    await until(lambda: len(waiting) == 9)  # the first has the connection that was there
    await store.aclose()
    go.set()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes[1:]] == [StoreClosedError] * 9
    await until(lambda: connections() == 0)


def test_calls_of_threads_that_are_connecting(
    url: str, namespace: str, connections: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = HistoryStore(url, namespace=namespace)
    store.append("c", user("x"))
    waiting: list[None] = []
    go = threading.Event()
    outcomes: list[Any] = []

    def holding(connect: Any) -> Any:
        def held(self: Any) -> Any:
            waiting.append(None)
            assert go.wait(20)
            return connect(self)

        return held

    def call() -> None:
        outcomes.append(_outcome(lambda: store.append("c", user("x"))))

    for kind in (Connection, UnixDomainSocketConnection):
        monkeypatch.setattr(kind, "_connect", holding(kind._connect))
    threads = [threading.Thread(target=call) for _ in range(10)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(waiting) + len(outcomes) == 10, "the others to connect")
    store.close()
    go.set()
    for thread in threads:
        thread.join()
    done = [outcome for outcome in outcomes if type(outcome) is not StoreClosedError]
    assert len(done) + len(waiting) == 10
    assert {type(outcome) for outcome in done} == {Appended}
    wait_until(lambda: connections() == 0, "the connections to be closed")


async def test_at_any_step_of_calls(url: str, namespace: str, connections: Callable[[], int], full: bool) -> None:
    for steps in range(0, 60, 1 if full else 4):
        store = AsyncHistoryStore(url, namespace=namespace)
        await store.append("c", user("x"))
        calls = [asyncio.create_task(store.append("c", user("x"))) for _ in range(20)]
        for _ in range(steps):
            await asyncio.sleep(0)
        await store.aclose()
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, Appended | StoreClosedError), (steps, outcome)
        await until(lambda: connections() == 0)


def test_amid_calls_of_threads(url: str, namespace: str, connections: Callable[[], int], full: bool) -> None:
    for _ in range(30 if full else 8):
        store = HistoryStore(url, namespace=namespace)
        ended: list[Any] = []

        def call_on(store: HistoryStore = store, ended: list[Any] = ended) -> None:
            while type(outcome := _outcome(lambda: store.append("c", user("x")))) is Appended:
                pass
            ended.append(outcome)

        threads = [threading.Thread(target=call_on) for _ in range(8)]
        for thread in threads:
            thread.start()
        wait_until(lambda: connections() >= 4, "calls to be under way")
        store.close()
        for thread in threads:
            thread.join()
        assert [type(outcome) for outcome in ended] == [StoreClosedError] * 8, ended
        wait_until(lambda: connections() == 0, "the connections to be closed")


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - the caller checks it
        return error
