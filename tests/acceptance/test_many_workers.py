"""A hundred workers: they neither poll the server all the time nor all run for one question, and what they take is
fair to conversations and owners."""

import os
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from redis_history import Conversation, HistoryStore, Worker, user
from tests.acceptance.turn_worker import answer_in_many
from tests.support.forks import Forked
from tests.support.servers import RealServer, Start, wait_until

WORKERS, PROCESSES = 100, 4
#: They measure, so they need a machine of their own.
LONG = pytest.mark.skipif(
    "REDIS_HISTORY_STORM_TURNS" not in os.environ, reason="set REDIS_HISTORY_STORM_TURNS, on a quiet machine"
)


class _Many:
    """The workers; `answers`, `claims` and `looks`: see answer_in_many, after the end."""

    def __init__(self, server: RealServer, per_user: int | None, seconds: float) -> None:
        self.answers: list[tuple[float, float, str]] = []
        self.claims: list[float] = []
        self.looks: list[float] = []
        self._server = server
        arguments = (server.url, WORKERS // PROCESSES, per_user, seconds)
        self._processes = [Forked(answer_in_many, *arguments) for _ in range(PROCESSES)]

    def wait_until_idle(self) -> None:
        client = self._server.watcher

        def listen() -> bool:
            channels = client.pubsub_channels("*:w:*")
            return sum(count for _, count in client.pubsub_numsub(*channels)) == WORKERS

        wait_until(listen, "all workers to listen", 120)

    def stop(self) -> None:
        for process in self._processes:
            os.kill(process.pid, signal.SIGTERM)
        for process in self._processes:
            found = process.result(60)
            self.answers += found["answers"]
            self.claims += found["claims"]
            self.looks += found["looks"]
        self.answers.sort()

    def kill(self) -> None:
        for process in self._processes:
            with suppress(ValueError):  # it has ended
                process.kill()


@contextmanager
def _many(server: RealServer, *, per_user: int | None = None, seconds: float = 0.02) -> Iterator[_Many]:
    workers = _Many(server, per_user, seconds)
    try:
        yield workers
    finally:
        workers.kill()


def _commands(server: RealServer) -> int:
    """Commands of clients so far, without those that scripts called."""
    stats = server.watcher.info("commandstats")
    scripts = {"cmdstat_evalsha", "cmdstat_eval", "cmdstat_fcall"}
    asked = {"cmdstat_exists", "cmdstat_ping", "cmdstat_time", "cmdstat_subscribe", "cmdstat_unsubscribe"}
    return sum(int(stats[name]["calls"]) for name in scripts | asked if name in stats)


def _answered(store: HistoryStore) -> None:
    wait_until(lambda: not store.list_turns(limit=1), "all turns to be answered", 120)


def _ask(store: HistoryStore, owner: str | None, count: int) -> list[str]:
    """Ask in `count` conversations of an owner, and return their names."""
    names = [f"{owner or 'nobody'}-{number}" for number in range(count)]
    for name in names:
        if owner is not None:
            store.create_conversation(Conversation(name, user_id=owner))
        store.ask(name, user("?"))
    return names


@pytest.mark.full
@LONG
def test_a_hundred_workers_do_not_storm_the_server(own_server: Start, record_property: Any) -> None:
    server = own_server("plain")
    with HistoryStore(server.url, search="off") as store, _many(server) as workers:
        workers.wait_until_idle()
        seconds, before, began = 15.0, _commands(server), time.monotonic()
        wait_until(lambda: time.monotonic() > began + seconds, "some time to pass", 2 * seconds)
        idle = (_commands(server) - before) / (time.monotonic() - began) / WORKERS
        questions, began = 100, time.monotonic()
        for number in range(questions):
            store.ask(f"c{number % 10}", user("?"))
            _answered(store)
        ended = time.monotonic()
        workers.stop()
    claims = sum(began <= at <= ended for at in workers.claims) / questions
    looks = sum(began <= at <= ended for at in workers.looks) / (ended - began) / WORKERS
    figures = {"commands/s of an idle worker": idle, "claims of a question": claims, "looks/s of a worker": looks}
    record_property("figures", figures)
    print(f"\n{figures}")
    assert idle < 1.0  # 0.2 looks a second, and pings
    assert claims < 5  # about 3 workers listen to each of 32 channels
    assert looks < 1.0
    assert len(workers.answers) == questions


@pytest.mark.full
@LONG
def test_a_hundred_workers_are_fair(own_server: Start, record_property: Any) -> None:
    """The questions are older than the workers, so that all of them compete."""
    server = own_server("plain")
    with HistoryStore(server.url, search="off") as store:
        many = _ask(store, None, 300)
        with _many(server) as workers:
            _answered(store)
            workers.stop()
        order = [name for _, _, name in workers.answers]
        assert sorted(order) == sorted(many)
        late = [at - many.index(name) for at, name in enumerate(order)]
        claims = len(workers.claims) / len(many)
        greedy, modest = _ask(store, "greedy", 300), _ask(store, "modest", 10)
        with _many(server) as workers:
            _answered(store)
            workers.stop()
        begun = [name for _, _, name in workers.answers]
        assert sorted(begun) == sorted(greedy + modest)
        last = max(begun.index(name) for name in modest)
    # Each of the others can be a turn ahead, and a worker that has lost races chooses among the oldest.
    p90 = sorted(late)[len(late) * 9 // 10]
    figures = {"p90 of places late": p90, "claims of a turn": claims, "the last of 10 turns beside 300": last}
    record_property("figures", figures)
    print(f"\n{figures}")
    assert p90 < WORKERS + 32
    assert claims < 4
    assert last < 150


@pytest.mark.full
@LONG
def test_a_hundred_workers_keep_a_limit_for_each_owner(own_server: Start, record_property: Any) -> None:
    server, limit, seconds = own_server("plain"), 2, 0.05
    with HistoryStore(server.url, search="off") as store, _many(server, per_user=limit, seconds=seconds) as workers:
        workers.wait_until_idle()
        names = [name for owner in "abcdefgh" for name in _ask(store, owner, 20)]
        _answered(store)
        workers.stop()
    changes: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for began, ended, name in workers.answers:
        changes[name[0]] += [(began, 1), (ended, -1)]
    most: Counter[str] = Counter()
    for owner, steps in changes.items():
        active = 0
        for _, step in sorted(steps):
            active += step
            most[owner] = max(most[owner], active)
    claims = len(workers.claims) / len(names)
    figures = {"most of an owner": max(most.values()), "claims of a turn": claims}
    record_property("figures", figures)
    print(f"\n{figures}")
    assert sorted(name for _, _, name in workers.answers) == sorted(names)
    assert max(most.values()) == limit
    assert claims < 8


def test_an_idle_worker_looks_as_often_as_it_was_told(own_server: Start) -> None:
    servers = [own_server("plain"), own_server("plain")]

    def looks() -> list[int]:
        stats = [server.watcher.info("commandstats") for server in servers]
        return [int(one["cmdstat_exists"]["calls"]) if "cmdstat_exists" in one else 0 for one in stats]

    with HistoryStore(servers[0].url) as store, HistoryStore(servers[1].url) as other:
        workers = [Worker(store, print, look_interval=0.02), Worker(other, print, look_interval=3600)]
        threads = [threading.Thread(target=worker.run) for worker in workers]
        for thread in threads:
            thread.start()
        try:
            wait_until(lambda: looks()[0] > 100 and looks()[1] > 0, "100 looks", 30)
            assert looks()[1] <= 3
        finally:
            for worker, thread in zip(workers, threads, strict=True):
                worker.stop()
                thread.join()
