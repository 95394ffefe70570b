"""Runs while the server, the network or a holder fails."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any, NamedTuple

import pytest

from redis_history import (
    Cursor,
    HistoryStore,
    MessagesAppended,
    ReplyEnded,
    Reset,
    RetryPolicy,
    RunChanged,
    assistant,
    user,
)
from redis_history.errors import RunBusyError
from tests.acceptance.run_worker import work
from tests.support.forks import Forked
from tests.support.proxy import LossyProxy
from tests.support.servers import Start, wait_until, wait_until_replicated


@pytest.mark.proves("runs")
@pytest.mark.parametrize("seconds", [10.0, pytest.param(20.0, marks=pytest.mark.full)])
def test_an_outage_ends_no_living_run(own_server: Start, seconds: float) -> None:
    """Nobody can renew a run while the server does not answer, so who waits does not take its holder for dead."""
    server = own_server()
    retry = RetryPolicy(deadline=2 * seconds + 30)
    with (
        HistoryStore(server.url, search="off", retry=retry) as store,
        HistoryStore(server.url, search="off", retry=retry) as other,
    ):
        busy: list[RunBusyError] = []

        def wait() -> None:
            with pytest.raises(RunBusyError) as error, other.run("c", wait=seconds + 8):
                pass
            busy.append(error.value)

        with store.run("c") as run:
            waiter = threading.Thread(target=wait)
            waiter.start()
            wait_until(lambda: len(getattr(store.get_run("c"), "waiting", ())) == 1, "it to wait")
            with run.stream(id="r") as reply:
                reply.write("before ")
                wait_until(lambda: [one.text for one in store.get("c")] == ["before "], "the text")
                with server.client() as client:
                    client.client_pause(round(1000 * seconds), all=True)
                reply.write("and after")
                run.append(assistant("The first call after the outage.", id="a"))
                now = store.get_run("c")
                assert now is not None
                assert (now.status, now.run_id) == ("active", run.run_id)
            waiter.join(60)
            assert len(busy) == 1
            assert busy[0].holder is not None
            assert busy[0].holder.run_id == run.run_id
        assert [message.text for message in store.get("c")] == ["before and after", "The first call after the outage."]


def test_subscribers_to_all_conversations_find_a_run_that_they_were_not_notified_of(own_server: Start) -> None:
    server = own_server(tcp=True)
    with (
        closing(LossyProxy(server.port)) as proxy,
        HistoryStore(server.url, search="off") as store,
        HistoryStore(f"redis://127.0.0.1:{proxy.port}", search="off", poll_interval=0.5) as viewer,
    ):
        store.append("c", user("Hello"))
        with viewer.subscribe_all() as changes:
            changes.get(timeout=0)
            proxy.refuse()
            with store.run("c") as run:
                proxy.forward(server.port)
                found = changes.get(timeout=30)
                assert isinstance(found, RunChanged)
                assert (found.run.run_id, found.run.status) == (run.run_id, "active")


@pytest.mark.full
def test_a_restart_ends_no_living_run(own_server: Start) -> None:
    server = own_server(options=("--appendonly", "yes", "--appendfsync", "always"))
    with HistoryStore(server.url, search="off") as store, store.run("c") as run:
        run.append(assistant("before"))
        server.kill()
        time.sleep(8.5)  # longer than the lease
        server.start()
        # Another store, which has not seen the outage.
        with HistoryStore(server.url, search="off") as fresh, pytest.raises(RunBusyError), fresh.run("c"):
            pass
        run.append(assistant("after"))
        status = store.get_run("c")
    assert status is not None
    assert status.status == "active"


class Write(NamedTuple):
    """A fenced write as the change log has it: of this run; when its message began; when the run was asked for."""

    run_id: str
    time: float
    asked: float


def fenced_writes(store: HistoryStore, name: str, after: Cursor) -> list[Write]:
    """All fenced writes to a conversation, in the order of its change log."""
    writes = []
    with store.subscribe(name, after=after) as changes:
        while (event := changes.get(timeout=0)) is not None:
            assert not isinstance(event, Reset), event
            if isinstance(event, MessagesAppended):
                messages = event.messages
            elif isinstance(event, ReplyEnded) and event.message is not None and event.message.status == "complete":
                messages = (event.message,)  # a reader has ended an interrupted one
            else:
                continue
            for message in messages:
                if message.trace_id is not None and message.timestamp is not None:
                    asked = float(message.text.split()[0]) if message.text else 0.0
                    writes.append(Write(message.trace_id, message.timestamp.timestamp(), asked))
    return writes


def overlapping(writes: Iterable[Write]) -> set[str]:
    """The runs that wrote again after another run had written."""
    found, over, last = set(), set(), None
    for write in writes:
        if write.run_id != last and last is not None:
            over.add(last)
        if write.run_id in over:
            found.add(write.run_id)
        last = write.run_id
    return found


def test_the_checker_finds_two_writers() -> None:
    writes = [Write(run_id, 0.0, 0.0) for run_id in "aabbab"]
    assert overlapping(writes) == {"a", "b"}
    assert overlapping(writes[:4]) == set()


class Storm:
    """Workers that take runs, each behind a proxy of its own, and what happens to them and to the server."""

    def __init__(self, own_server: Start, *, workers: int, rooms: int, seconds: float, seed: int) -> None:
        self._start = own_server
        self._options = ("--appendonly", "yes", "--appendfsync", "always")
        self.server = own_server(tcp=True, options=self._options)
        self._rooms, self._ends = rooms, time.monotonic() + seconds
        self._chance = random.Random(seed)
        self._seeds = itertools.count()
        self._proxies = [LossyProxy(self.server.port) for _ in range(workers)]
        self._workers = [self._worker(number) for number in range(workers)]
        self._free = set(range(workers))  # to which nothing happens now
        self._later: list[tuple[float, Callable[[], None]]] = []
        self.outages: list[tuple[float, float]] = []
        self.faults: list[float] = []

    def _worker(self, number: int) -> Forked:
        url = f"redis://127.0.0.1:{self._proxies[number].port}"
        left = self._ends - time.monotonic()
        seed = next(self._seeds)
        return Forked(work, url, str(number), seed, self._rooms, left, 8 if number % 2 else 1)

    def wait(self, seconds: float) -> None:
        """Let them work, and end the faults that are over."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            time.sleep(0.05)
            due = [one for one in self._later if one[0] <= time.monotonic()]
            self._later = [one for one in self._later if one not in due]
            for _, end in due:
                end()

    def _victim(self) -> int | None:
        """A worker for a fault: mostly one that has a run. At least two remain without a fault."""
        if len(self._free) < 3:
            return None
        self.faults.append(time.time())
        number = self._chance.choice(sorted(self._free))
        if self._chance.random() < 0.7:
            with HistoryStore(self.server.url, search="off") as store:
                run = store.get_run(f"c{self._chance.randrange(self._rooms)}")
            if run is not None and run.agent_name is not None and int(run.agent_name) in self._free:
                number = int(run.agent_name)
        self._free.discard(number)
        return number

    def _after(self, seconds: float, number: int, end: Callable[[], None]) -> None:
        def over() -> None:
            end()
            self._free.add(number)

        self._later.append((time.monotonic() + seconds, over))

    def kill(self) -> None:
        if (number := self._victim()) is not None:
            self._workers[number].kill()
            self._workers[number] = self._worker(number)
            self._free.add(number)

    def suspend(self, seconds: float) -> None:
        if (number := self._victim()) is not None:
            pid = self._workers[number].pid
            os.kill(pid, signal.SIGSTOP)
            self._after(seconds, number, lambda: os.kill(pid, signal.SIGCONT))

    def cut(self, seconds: float) -> None:
        if (number := self._victim()) is not None:
            self._proxies[number].refuse()
            self._after(seconds, number, lambda: self._proxies[number].forward(self.server.port))

    def restart(self) -> None:
        began = time.time()
        self.server.kill()
        self.server.start()
        self.outages.append((began, time.time()))

    def fail_over(self) -> None:
        """To a replica that has missed the last writes, leases among them."""
        began = time.time()
        replica = self._start(tcp=True, options=(*self._options, "--replicaof", "127.0.0.1", str(self.server.port)))
        wait_until_replicated(self.server, replica)
        replica.watcher.replicaof("NO", "ONE")
        self.wait(0.5)
        for number, proxy in enumerate(self._proxies):
            proxy.refuse()
            if number in self._free:
                proxy.forward(replica.port)
        self.server.kill()
        self.server, replica.options = replica, self._options  # after a restart it is no replica
        self.outages.append((began, time.time()))

    def finish(self) -> None:
        while time.monotonic() < self._ends or self._later:
            self.wait(0.5)
        for worker in self._workers:
            worker.result(60)
        for proxy in self._proxies:
            proxy.close()


@pytest.mark.proves("runs")
@pytest.mark.parametrize("full_storm", [False, pytest.param(True, marks=pytest.mark.full)], ids=["short", "long"])
def test_a_storm(own_server: Start, full_storm: bool, record_property: Any) -> None:
    """Holders are killed, suspended, hang and lose the network; the server restarts and forgets leases. No two runs
    overlap in their fenced writes, and who waits begins within 10 seconds after the end or death of a holder."""
    workers, rooms, seconds, seed = (8, 20, 210.0, 1) if full_storm else (4, 1, 14.0, 1)
    storm = Storm(own_server, workers=workers, rooms=rooms, seconds=seconds, seed=seed)
    names = [f"c{number}" for number in range(rooms)]
    with HistoryStore(storm.server.url, search="off", log_length=100_000) as store:
        cursors = {}
        for name in names:
            store.append(name, user("Begin."))
            cursors[name] = store.snapshot(name).cursor
    ends = time.monotonic() + seconds - (16 if full_storm else 11)
    if full_storm:
        chance = random.Random(seed)
        acts = [storm.kill] * 5 + [lambda: storm.suspend(15)] * 5 + [lambda: storm.cut(12)] * 3
        rare = itertools.cycle([storm.restart, storm.fail_over])
        for number in itertools.count(1):
            if time.monotonic() > ends:
                break
            storm.wait(chance.random() * 3)
            (next(rare) if number % 14 == 0 else chance.choice(acts))()
    else:
        storm.wait(2)
        storm.kill()
        storm.suspend(9)
    storm.finish()
    gaps: list[tuple[float, bool]] = []
    runs = 0
    with HistoryStore(storm.server.url, search="off") as store:
        for name in names:
            writes = fenced_writes(store, name, cursors[name])
            assert overlapping(writes) == set()
            groups = [[*found] for _, found in itertools.groupby(writes, key=lambda write: write.run_id)]
            runs += len(groups)
            for before, after in itertools.pairwise(groups):
                began, ended = before[-1].time, after[0].time
                if after[0].asked and after[0].asked < began:  # it was waiting
                    undisturbed = not any(began < end + 12 and start < ended for start, end in storm.outages)
                    faults = sum(began - 1 < at < ended for at in storm.faults)
                    gaps.append((ended - began, undisturbed and faults <= 1))
            wait_until(lambda name=name: not store.get_run(name).is_active, "the end of each run", 20)
    counted = sorted(gap for gap, counts in gaps if counts)
    record_property("runs", runs)
    record_property("gaps", [round(counted[round(part * (len(counted) - 1))], 4) for part in (0.5, 0.99, 1.0)])
    print(
        f"{runs} runs, {len(storm.faults)} faults of workers, {len(storm.outages)} of the server; gaps", *counted[-5:]
    )
    assert runs >= (500 if full_storm else 20)
    assert counted[-1] < 10
