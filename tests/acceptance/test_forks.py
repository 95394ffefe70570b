"""Forks under faults: lost replies, killed processes, moving slots. A fork is complete or absent."""

import asyncio
import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

import pytest
from redis.crc import key_slot

from redis_history import Conversation, HistoryStore, user
from redis_history.store.operations.keys import Keyspace
from tests.support.cluster import RealCluster
from tests.support.faults import lose_replies
from tests.support.forks import Forked, copy_conversations
from tests.support.servers import Start, wait_until

_MESSAGES, _BATCHES = 3000, 6


def _fill(store: HistoryStore) -> None:
    size = _MESSAGES // _BATCHES
    for batch in range(_BATCHES):
        store.append_many("c", [user("x" * 100, id=f"{batch}-{number}") for number in range(size)])


@contextmanager
def _appending(store: HistoryStore) -> Iterator[None]:
    """Others append messages to "c", one with each change."""
    end = Event()

    def append() -> None:
        while not end.is_set():
            store.append("c", user("later"))

    thread = Thread(target=append)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def _is_exact(store: HistoryStore, made: Conversation) -> bool:
    """Whether a fork has exactly the messages of the revision that it names."""
    found = list(store.iter(made.conversation_id, batch=1000))
    expected = _MESSAGES + made.forked_from.revision - _BATCHES
    in_origin = list(store.iter("c", batch=1000))[:expected]
    return found == in_origin and len(found) == expected == made.message_count


def _drafts(client: Any, namespace: str) -> dict[bytes, int]:
    """The keys of drafts, each with its time to live in milliseconds."""
    pattern = Keyspace(namespace).patterns[0].removesuffix(b"*") + b"*:d:*"
    return {key: client.pttl(key) for key in client.scan_iter(match=pattern, count=1000)}


@pytest.mark.proves("fork")
@pytest.mark.full
def test_a_fork_whose_replies_are_lost_is_made_once(own_server: Start) -> None:
    server, chance = own_server(), random.Random(5)
    with HistoryStore(server.url, search="off") as store, HistoryStore(server.url, search="off") as other:
        _fill(store)
        lose_replies(store, lambda: chance.random() < 0.2)
        with _appending(other):
            made = [store.fork("c", f"d{number}") for number in range(3)]
        assert all(_is_exact(other, one) for one in made)
        assert other.count_conversations() == 4
        with server.client() as client:
            assert _drafts(client, "default") == {}


@pytest.mark.proves("fork")
@pytest.mark.full
def test_a_killed_fork_is_complete_or_absent(own_server: Start) -> None:
    """The remains of a killed process are invisible, expire, and do not disturb a repeated fork."""
    server = own_server()
    with HistoryStore(server.url, search="off") as store, server.client() as client:
        _fill(store)
        for kill in range(3):
            known = _drafts(client, "default").keys()
            with _appending(store):
                process = Forked(copy_conversations, server.url, str(kill))
                wait_until(lambda known=known: _drafts(client, "default").keys() - known, "a draft", 60)
                process.kill()
                numbers = itertools.count()
                store.fork(
                    "c", next(name for number in numbers if not store.get_conversation(name := f"{kill}-{number}"))
                )
        made = list(store.iter_conversations(forked_from="c"))
        assert all(_is_exact(store, one) for one in made)
        assert all(0 < ttl <= 600_000 for ttl in _drafts(client, "default").values())


@pytest.mark.proves("fork")
@pytest.mark.full
async def test_forks_while_slots_move(own_cluster: RealCluster, namespace: str) -> None:
    def slot_of(name: str) -> int:
        return int(key_slot(Keyspace(namespace).conversation(name).state))

    slots = {slot_of("c"), slot_of("d0")}

    def move(until: Callable[[], bool]) -> int:
        moves = 0
        while not until():
            for slot in slots:
                own_cluster.move(slot, own_cluster.another(slot))
                moves += 1
        return moves

    with HistoryStore(own_cluster.url, namespace=namespace, search="off") as store:
        _fill(store)
        done = Event()
        with _appending(store):
            moving = asyncio.create_task(asyncio.to_thread(move, done.is_set))
            try:
                made = [await asyncio.to_thread(store.fork, "c", f"d{number}") for number in range(3)]
            finally:
                done.set()
                moves = await moving
        assert moves >= 2
        assert all(_is_exact(store, one) for one in made)
        for node in own_cluster.nodes:
            with node.client() as client:
                assert _drafts(client, namespace) == {}
