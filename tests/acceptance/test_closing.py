"""A store is closed during calls: each call ends with its outcome or StoreClosedError, and no connection is left."""

import asyncio
import gc
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from redis_history import AsyncHistoryStore, HistoryStore, user
from redis_history.errors import StoreClosedError
from redis_history.types import Appended
from tests.conftest import Servers
from tests.support.faces import open_store
from tests.support.servers import until, wait_until


@pytest.fixture(params=["plain", "cluster"])
def server(server_of: Servers, request: pytest.FixtureRequest) -> Any:
    return server_of(request.param)


@pytest.fixture
def url(server: Any, namespace: str) -> str:
    """With a name for connections."""
    return f"{server.url}{'&' if '?' in server.url else '?'}client_name={namespace}"


@pytest.fixture
def connections(server: Any, namespace: str) -> Callable[[], int]:
    """Counts the connections with that name."""

    def connections() -> int:
        nodes = getattr(server, "nodes", [server])
        return sum(one["name"] == namespace for node in nodes for one in node.watcher.client_list())

    return connections


@pytest.mark.parametrize("face", ["sync", "async"])
async def test_during_calls_that_are_connecting(
    url: str, namespace: str, connections: Callable[[], int], monkeypatch: pytest.MonkeyPatch, face: str
) -> None:
    store = open_store(face, url, namespace=namespace)
    await store.append("c", user("x"))
    waiting: list[None] = []
    go = threading.Event()

    def held(connect: Any) -> Any:
        def held_call(self: Any, address: Any) -> Any:
            waiting.append(None)
            assert go.wait(20)
            return connect(self, address)

        async def held_task(*args: Any, **options: Any) -> Any:
            waiting.append(None)
            await until(go.is_set)
            return await connect(*args, **options)

        return held_call if face == "sync" else held_task

    if face == "sync":
        monkeypatch.setattr(socket.socket, "connect", held(socket.socket.connect))
    else:
        for name in ("open_connection", "open_unix_connection"):
            monkeypatch.setattr(asyncio, name, held(getattr(asyncio, name)))
    calls: list[Any] = []
    while not waiting:  # an idle connection serves some calls, and all of them if they come one after another
        calls.extend(asyncio.create_task(store.append("c", user(f"{len(calls)} {number}"))) for number in range(4))
        await until(lambda: len(waiting) + sum(call.done() for call in calls) == len(calls))
    await store.aclose()
    go.set()
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(outcome, Appended | StoreClosedError)
    await until(lambda: connections() == 0)


@pytest.mark.parametrize("face", ["sync", "async"])
@pytest.mark.parametrize("left", ["a closed subscription", "an open subscription", "an ended run"])
async def test_a_dropped_store_ends_its_doorbell(
    url: str, namespace: str, connections: Callable[[], int], face: str, left: str
) -> None:
    """As scripts that run again and again in one process leave stores. It says so, as files do."""

    async def use() -> None:
        store = open_store(face, url, namespace=namespace)
        if left == "an ended run":
            async with store.run("c", wait=1.0):
                pass
            return
        subscription = store.subscribe("c")
        await subscription.get(timeout=0)
        if left == "a closed subscription":
            await subscription.aclose()

    gc.collect()  # what other tests left would be reported as this store's
    before = {*threading.enumerate()}

    def ended() -> bool:
        gc.collect()
        doorbells = [one for one in {*threading.enumerate()} - before if one.name == "redis_history-doorbell"]
        return connections() == 0 and not doorbells

    async def use_and_drop() -> None:
        await use()
        await until(ended, "the end of the doorbell")

    with pytest.warns(ResourceWarning, match="was not closed") as said:
        await use_and_drop()
    assert len([one for one in said if "history store" in str(one.message)]) == 1


@pytest.mark.parametrize("server", ["cluster"], indirect=True)
@pytest.mark.parametrize("face", ["sync", "async"])
async def test_a_store_is_dropped_while_its_doorbells_begin(
    url: str, namespace: str, connections: Callable[[], int], face: str
) -> None:
    """A doorbell of a node that begins after those of other nodes were abandoned ends, too."""
    store = open_store(face, url, namespace=namespace)
    await store.append("c", user("x"))
    before = {*threading.enumerate()}
    backend = store._backend
    doorbell, nodes = backend._make_doorbell(), backend._server
    node_of = nodes.node

    def dropped(address: Any) -> Any:
        doorbell.abandon()
        return node_of(address)

    nodes.node = dropped
    doorbell.watch(backend._topic("c"), lambda: None)

    def ended() -> bool:
        named = [one for one in {*threading.enumerate()} - before if one.name.startswith("redis_history-doorbell")]
        tasks = [one for one in asyncio.all_tasks() if one.get_name().startswith("redis_history-doorbell")]
        return connections() == 0 and not named and not tasks

    await until(ended, "the end of the doorbells")
    await store.aclose()


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


@pytest.mark.full
def test_during_calls_of_threads(url: str, namespace: str, connections: Callable[[], int]) -> None:
    for _ in range(30):
        store = HistoryStore(url, namespace=namespace)
        errors: list[Exception] = []

        def call(store: HistoryStore = store, errors: list[Exception] = errors) -> None:
            try:
                while True:
                    store.append("c", user("x"))
            except StoreClosedError as error:
                errors.append(error)

        threads = [threading.Thread(target=call) for _ in range(8)]
        for thread in threads:
            thread.start()
        wait_until(lambda: connections() >= 2, "concurrent calls")
        store.close()
        for thread in threads:
            thread.join()
        assert len(errors) == 8
        wait_until(lambda: connections() == 0, "the connections to be closed")
