"""Fixtures for all tests: the real servers of each worker, and checks that tests clean up."""

import contextlib
import gc
import signal
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, settings

from redis_history import AsyncHistoryStore, HistoryStore
from redis_history.store._sync._runtime import _idle
from redis_history.store.operations import append
from redis_history.store.operations.keys import Keyspace
from redis_history.values import large, wire
from tests.support.cluster import RealCluster
from tests.support.restricted import RESTRICTED
from tests.support.servers import RealServer, lasting, wait_until

settings.register_profile(
    "project",
    deadline=None,
    max_examples=8,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("full", settings.get_profile("project"), max_examples=100)
settings.load_profile("project")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run every backend with both faces, and the long proofs")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Inherited from a shell that runs this in the background. Tests of interrupts need the default.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--full"):
        settings.load_profile("full")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Importing the frameworks makes a million objects that stay. The garbage collector looks at them neither in the
    meantime, which takes a fifth of it, nor afterwards."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked `full`, unless `--full` was given."""
    if config.getoption("--full"):
        return
    left_out = [item for item in items if item.get_closest_marker("full")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("full")]


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    """Whether `--full` was given: proofs take more rounds."""
    return bool(request.config.getoption("--full"))


class Servers:
    """The servers of one worker, each started when first asked for."""

    def __init__(self) -> None:
        self._running: dict[str, Any] = {}

    def __call__(self, kind: str) -> Any:
        """A RealServer; of the kind "cluster" a RealCluster, which has the same `url` and `client`; of the kind
        "lua54" a server that takes declared keys only, and runs scripts on Lua 5.4."""
        if kind not in self._running:
            self._running[kind] = _server(kind)
            self._running[kind].start()
        return self._running[kind]

    def clear(self, namespace: str) -> None:
        for node in self._nodes():
            client = node.watcher
            if client.dbsize():
                with client.pipeline(transaction=False) as pipe:
                    for pattern in Keyspace(namespace).patterns:
                        for key in client.scan_iter(match=pattern, count=1000):
                            pipe.unlink(key)  # one by one: in a cluster they are in many slots
                    pipe.execute()
            if node.binary.search:
                drop_indexes(client, namespace)

    def listeners(self, kind: str, channel: bytes | None) -> list[int]:
        """How many clients listen to a channel (None: to any pattern), for each node of the server."""
        server = self(kind)
        counts = []
        for node in getattr(server, "nodes", [server]):
            client = node.watcher
            counts.append(client.pubsub_numpat() if channel is None else client.pubsub_numsub(channel)[0][1])
        return counts

    def _nodes(self) -> list[RealServer]:
        return [node for server in self._running.values() for node in getattr(server, "nodes", [server])]

    def close(self) -> None:
        left = {}
        for node in self._nodes():
            with node.client() as client:
                if keys := lasting(client):
                    left[str(node.binary)] = sorted(keys)[:5]
        for server in self._running.values():
            server.close()
        assert not left, f"tests left keys: {left}"


def _server(kind: str) -> Any:
    if kind == "lua54":
        from tests.support.lua54 import StrictRedis  # needs lupa

        return StrictRedis()
    if kind in RESTRICTED:
        return RESTRICTED[kind]()
    return RealCluster() if kind == "cluster" else RealServer(kind)


def drop_indexes(client: Any, namespace: str) -> None:
    """Drop the search indexes of a namespace."""
    for index in client.execute_command("FT._LIST"):
        if index.startswith((Keyspace(namespace).index + b":", Keyspace(namespace).registries()[0][:-5])):
            with contextlib.suppress(redis.ResponseError):  # dropped by another worker
                client.execute_command("FT.DROPINDEX", index)


@pytest.fixture
def small_caps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message may have 4 MB, and a change: contents of 64 MB would take tests long."""
    monkeypatch.setattr(large, "MAX_MESSAGE_BYTES", 4_000_000)
    monkeypatch.setattr(large, "_MOST_AROUND", 2_000_000)
    monkeypatch.setattr(wire, "MAX_MESSAGE_BYTES", 4_000_000)
    monkeypatch.setattr(append, "MAX_BATCH_CONTENTS", 4_000_000)


@pytest.fixture(scope="session")
def server_of() -> Iterator[Servers]:
    """The worker's server of a kind."""
    servers = Servers()
    yield servers
    servers.close()


@pytest.fixture
def server(server_of: Servers) -> RealServer:
    """A real Redis with search, shared by the tests of this worker."""
    shared: RealServer = server_of("redis")
    return shared


@pytest.fixture
def own_server() -> Iterator[Callable[..., RealServer]]:
    """Starts servers for this test alone, which it may kill."""
    servers: list[RealServer] = []

    def start(kind: str = "redis", *, tcp: bool = False, options: tuple[str, ...] = ()) -> RealServer:
        servers.append(RealServer(kind, tcp=tcp, options=options))
        return servers[-1].start()

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def own_cluster() -> Iterator[RealCluster]:
    """A cluster for this test alone, which it may rearrange."""
    cluster = RealCluster()
    try:
        yield cluster.start()
    finally:
        cluster.close()


@pytest.fixture
def namespace(server_of: Servers) -> Iterator[str]:
    """A namespace of this test alone. Its keys on the shared servers are removed afterwards."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    yield name
    server_of.clear(name)


@pytest.fixture
def store(server: RealServer, namespace: str) -> Iterator[HistoryStore]:
    with HistoryStore(server.url, namespace=namespace) as made:
        yield made


@pytest.fixture
async def async_store(server: RealServer, namespace: str) -> AsyncIterator[AsyncHistoryStore]:
    async with AsyncHistoryStore(server.url, namespace=namespace) as made:
        yield made


@pytest.fixture(autouse=True)
def no_leaked_threads() -> Iterator[None]:
    before = set(threading.enumerate())
    yield

    def gone() -> bool:
        idle = {worker.thread for worker in _idle}  # they end on their own a second later
        return all(
            thread in before
            or thread in idle
            or thread.name.startswith(("asyncio_", "ThreadPoolExecutor", "strict server"))
            for thread in threading.enumerate()
        )

    wait_until(gone, "the threads of the test to end", 5)
