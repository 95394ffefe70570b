"""Forks and concurrent operations, in every order of their steps.

In memory a step is an operation, and all orders of small histories are tried. On servers it is a call, so that two
operations are interleaved between their scripts."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from redis.exceptions import ResponseError

from redis_history import AsyncHistoryStore, Conversation, errors, user
from redis_history.store.memory.backend import AsyncMemoryBackend, MemoryBackend
from redis_history.store.operations.keys import Keyspace
from tests.conformance.test_compaction import summary
from tests.conftest import Servers
from tests.support.marks import some
from tests.support.turns import Run, every_order

#: Of the orders of three, all are checked with the long proofs, which take many minutes.
LONG = "REDIS_HISTORY_FAULT_OPERATIONS" in os.environ

SECRET = "swordfish"
#: Calls that remove the secret permanently. A fork that appears after their return must not contain it.
REMOVALS: dict[str, Callable[[Any], Coroutine[Any, Any, Any]]] = {
    "erase": lambda store: store.erase("c", ["m1"]),
    "erase_user": lambda store: store.erase_user("ann"),
    "delete_conversation": lambda store: store.delete_conversation("c"),
    "clear": lambda store: store.clear("c"),
    "restore": lambda store: store.restore("c", [user("new", id="new")]),
}
CHANGES: dict[str, Callable[[Any], Coroutine[Any, Any, Any]]] = {
    "append": lambda store: store.append("c", user("more", id="more")),
    "edit": lambda store: store.update_message("c", user("edited", id="m3")),
    "delete": lambda store: store.delete_messages("c", ["m2", "s1"]),
    "compact": lambda store: _compact(store),
    "expand": lambda store: store.expand("c", "s1"),
}


async def _compact(store: Any) -> None:
    """Compact like a compressor. A summary that quotes content erased in the meantime is rejected."""
    seen = (await store.get("c"))[:3]
    await store.compact(
        "c", through=seen[-1], summary=summary(" and ".join(one.text for one in seen), id="s2"), seen=seen
    )


FORKS: dict[str, Callable[[Any], Coroutine[Any, Any, Any]]] = {
    "fork": lambda store: store.fork("c", "f"),
    "fork through": lambda store: store.fork("c", "f", through="m3"),
}


class World:
    """The stores of one backend with the history before the actors begin, and ways to inspect its content."""

    method = "execute"

    def __init__(self) -> None:
        self._memory = MemoryBackend(max_messages=None, max_conversations=None)
        self.stores: list[Any] = []

    def open(self) -> Any:
        store = AsyncHistoryStore(backend=AsyncMemoryBackend(memory=self._memory))
        self.stores.append(store)
        return store

    async def begin(self, *, archived: bool = True) -> Any:
        """Append four messages, of which m1 contains the secret. `archived`: m1 is archived behind s1."""
        store = self.open()
        await store.create_conversation(Conversation("c", user_id="ann"))
        await store.append_many(
            "c", [user(f"{SECRET} {n}" if n == 1 else f"text {n}", id=f"m{n}") for n in range(1, 5)]
        )
        if archived:
            await store.compact("c", through="m1", summary=summary(f"the user said {SECRET}", id="s1"))
        return store

    async def expire(self) -> None:
        self._memory._space.conversations["c"].ends = 0.0

    def drafts(self) -> list[str]:
        """Return the drafts that contain the secret."""
        drafts = self._memory._space.drafts.items()
        return [token for token, draft in drafts for held in draft.sets.values()
                for entry in held.values() if SECRET in entry.message.text]  # fmt: skip

    async def aclose(self) -> None:
        for store in self.stores:
            await store.aclose()


class OnServer(World):
    method = "carry_out"

    def __init__(self, server: Any, namespace: str, clear: Callable[[str], None]) -> None:
        self._server, self._namespace, self._clear = server, namespace, clear
        self.stores = []

    def open(self) -> Any:
        store = AsyncHistoryStore(self._server.url, namespace=self._namespace, search="off")
        self.stores.append(store)
        return store

    def _keys(self) -> dict[bytes, Any]:
        found = {}
        for node in getattr(self._server, "nodes", [self._server]):
            with node.client() as client:
                for key in client.scan_iter(match=Keyspace(self._namespace).patterns[0], count=1000):
                    found[key] = client.dump(key)
        return found

    async def expire(self) -> None:
        base = Keyspace(self._namespace).conversation("c").state[:-1]
        keys = [key for key in self._keys() if key.startswith(base) and key[len(base) : len(base) + 1] in b"smla"]
        for node in getattr(self._server, "nodes", [self._server]):
            with node.client() as client:
                for key in keys:
                    with contextlib.suppress(ResponseError):  # another node has it
                        client.delete(key)

    def drafts(self) -> list[str]:
        """Return the keys of drafts: the sets of a draft, and archives of a conversation that does not exist."""
        keys = self._keys()
        base = Keyspace(self._namespace).conversation("f").state
        held = [key for key, value in keys.items() if SECRET.encode() in (value or b"") and b":f:" in key]
        return [key.decode() for key in held if b":d:" in key or base not in keys]

    async def aclose(self) -> None:
        await super().aclose()
        await asyncio.to_thread(self._clear, self._namespace)


async def _content(store: Any, name: str) -> list[Any]:
    return [(one.id, one.text) for one in await store.get(name, include_archived=True)]


async def _check(world: World, run: Run, acting: dict[str, Any], kill: str = "", *, archived: bool = True) -> None:
    """Play one run, and check it."""
    reader = await world.begin(archived=archived)
    states: dict[int, list[Any]] = {}
    revived_if_later: list[str] = []

    async def look(actor: str) -> None:
        record = await reader.get_conversation("c")
        if record is not None and record.revision not in states:
            states[record.revision] = await _content(reader, "c")
        removed = actor in run.outcomes and actor in REMOVALS and not isinstance(run.outcomes[actor], Exception)
        if removed and SECRET not in str(await _content(reader, "f")):
            revived_if_later.append(actor)
            # The drafts of running and killed forks must not contain it either.
            assert not world.drafts(), (run.order, "a draft has it")

    await look("")
    actors = {}
    for name, act in acting.items():
        store = world.open()
        await store.get_conversation("none")  # what a store does once
        actors[name] = act(store)
        run.stop_before_steps(name, store, world.method)
    await run.play(actors, look, kill)
    made = await reader.get_conversation("f")
    what = run.order, run.outcomes
    assert not (revived_if_later and world.drafts()), what
    if made is None:
        fork = run.outcomes[next(name for name in acting if name in FORKS)]
        erased = isinstance(fork, Conversation) and "erase_user" in acting  # it has the same owner
        assert erased or fork == "killed" or isinstance(fork, errors.NotFoundError), what
        return
    content = await _content(reader, "f")
    assert not revived_if_later or SECRET not in str(content), what
    source = states[made.forked_from.revision]
    if "fork" in acting:
        assert content == source, what
    else:
        assert {*content} <= {*source}, what
    live = [one.id for one in await reader.get("f") if one.is_summary]
    assert len(live) <= 1, what


def _pairs() -> list[Any]:
    return [(fork, (act,)) for fork in FORKS for act in (*REMOVALS, *CHANGES, "expire")]


def _triples() -> list[Any]:
    """Combinations of a fork with two other actors. Of these, erase_user takes the most steps."""
    several = {"erase_user": ("append", "edit")}
    changes = ("append", "edit", "delete", "compact", "expire")
    return [(removal, change) for removal in REMOVALS for change in several.get(removal, changes)]


def _acting(world: World, fork: str, others: tuple[str, ...]) -> dict[str, Any]:
    async def expire(store: Any) -> None:
        await store.get_conversation("c")  # a step, right before it
        await world.expire()

    acts = REMOVALS | CHANGES | {"expire": expire}
    return {fork: FORKS[fork]} | {name: acts[name] for name in others}


async def _explore(fork: str, others: tuple[str, ...], kill: str = "", *, archived: bool = True) -> list[list[str]]:
    """Check every order. Returns the orders."""

    async def play(run: Run) -> None:
        world = World()
        await _check(world, run, _acting(world, fork, others), kill, archived=archived)
        await world.aclose()

    return [run.order async for run in every_order(play)]


@pytest.mark.proves("fork", "erase-user")
@pytest.mark.parametrize(("fork", "others"), some(_pairs(), each=6))
async def test_every_order_in_memory(fork: str, others: tuple[str, ...]) -> None:
    orders = await _explore(fork, others)
    assert len({*map(tuple, orders)}) == len(orders) > 10


@pytest.mark.proves("fork", "erase-user")
@pytest.mark.full
@pytest.mark.parametrize("others", _triples() if LONG else _triples()[::4])
async def test_every_order_of_three_in_memory(others: tuple[str, ...]) -> None:
    orders = await _explore("fork", others, archived=False)
    assert len({*map(tuple, orders)}) == len(orders) > 50


@pytest.mark.proves("fork", "erase-user")
@pytest.mark.parametrize("removal", REMOVALS)
@pytest.mark.full
async def test_a_fork_is_killed_at_every_step(removal: str) -> None:
    """The remains of the fork are gone when the removal returns."""
    orders = await _explore("fork", (removal,), kill="fork")
    assert sum("kill" in order for order in orders) > 10


@pytest.mark.proves("fork", "erase-user")
@pytest.mark.parametrize("kind", ["plain", "valkey", "cluster"])
@pytest.mark.parametrize(("fork", "others"), _pairs())
@pytest.mark.full
async def test_orders_on_servers(
    server_of: Servers, namespace: str, kind: str, fork: str, others: tuple[str, ...]
) -> None:
    """The other actor takes its steps between any two calls of the fork: all together, and on one kind of server, with
    up to two steps of the fork between them."""
    server = server_of(kind)
    for gap in (0, 1, 2) if kind == "plain" else (0,):
        start, length = 0, 1
        while start <= length:
            world = OnServer(server, namespace, server_of.clear)
            [other] = others
            run = Planned([*[fork] * start, *[other, *[fork] * gap] * 30])
            await _check(world, run, _acting(world, fork, others))
            await world.aclose()
            length, start = max(length, run.order.count(fork)), start + 1


@pytest.mark.proves("fork", "erase-user")
@pytest.mark.parametrize("kind", ["plain", "valkey", "cluster"])
@pytest.mark.parametrize("removal", REMOVALS)
@pytest.mark.full
async def test_a_fork_is_killed_on_servers(server_of: Servers, namespace: str, kind: str, removal: str) -> None:
    """The fork is killed before the removal, or one call after it. This call may write content that was read before."""
    server = server_of(kind)
    for after in (0, 1):
        start, length = 0, 1
        while start <= length:
            world = OnServer(server, namespace, server_of.clear)
            run = Planned([*["fork"] * start, *[removal] * 30, *["fork"] * after, "kill"])
            await _check(world, run, _acting(world, "fork", (removal,)), kill="fork")
            await world.aclose()
            length, start = max(length, run.order.count("fork")), start + 1


class Planned(Run):
    """A run in which the actors take their planned steps, except those that have ended, and then all other steps."""

    def __init__(self, plan: list[str]) -> None:
        super().__init__([])
        self._plan = iter(plan)

    def _choose(self, names: list[str]) -> str:
        return next((name for name in self._plan if name in names), names[0])
