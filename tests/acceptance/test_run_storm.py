"""Many workers take runs while they are killed, suspended and cut off, and while servers restart, fail over and move
slots: runs never overlap, and each of those that wait begins in its turn."""

import contextlib
import itertools
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import pytest

from redis_history import Cursor, HistoryStore, MessagesAppended, ReplyEnded, Reset, RunChanged, user
from redis_history.errors import BackendError
from redis_history.store.memory.backend import AsyncMemoryBackend, MemoryBackend
from redis_history.types import RunInfo
from tests.acceptance.run_worker import HANG, Refused, work
from tests.faults.deployments import Cluster
from tests.support.forks import Forked
from tests.support.proxy import LossyProxy
from tests.support.servers import RealServer, Start, wait_until, wait_until_replicated

OUTAGES = ("restart", "fail_over")
#: Seconds between two outages: a server that restarts more often gives holders no time to come back.
QUIET = 9.0
#: How long a long storm takes. In 500 seconds, each fault happens more than 20 times.
SECONDS = float(os.environ.get("REDIS_HISTORY_STORM_SECONDS", "25"))
KINDS = ["redis", "valkey", "cluster", *(["cluster of valkey"] if SECONDS > 100 else [])]
#: Before the end, for the last faults to be over.
SETTLED = 16.0


class Write(NamedTuple):
    """A fenced write as the change log has it: of this run; when its message began; when the run was asked for."""

    run_id: str
    time: float
    asked: float


class Fault(NamedTuple):
    """From when to when, and to which worker; "" to the servers."""

    begin: float
    end: float
    worker: str = ""


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


def overtaken(runs: Sequence[Write], since: dict[str, float], alive: Callable[[str, float, float], bool]) -> set[str]:
    """The runs that began after a run that had come later, although their process was `alive` all the time. `runs`: the
    first writes, in order; `since`: when they began to wait, for those of which it is known."""
    found, latest = set(), 0.0
    for run in runs:
        came = since.get(run.run_id)
        if came is not None:
            if came < latest and alive(run.run_id, came, run.time):
                found.add(run.run_id)
            latest = max(latest, came)
    return found


def test_the_checker_finds_two_writers_and_wrong_order() -> None:
    writes = [Write(run_id, 0.0, 0.0) for run_id in "aabbab"]
    assert overlapping(writes) == {"a", "b"}
    assert overlapping(writes[:4]) == set()
    first = [Write(run_id, 0.0, 0.0) for run_id in "abc"]
    assert overtaken(first, {"a": 1.0, "b": 3.0, "c": 2.0}, lambda *_: True) == {"c"}
    assert overtaken(first, {"a": 1.0, "b": 2.0, "c": 3.0}, lambda *_: True) == set()


class Watcher:
    """Follows the runs of all conversations: since when each of them waited, when it began, where, and whose it is."""

    def __init__(self, **where: Any) -> None:
        self.since: dict[str, float] = {}
        self.began: dict[str, tuple[str, float]] = {}
        self.worker: dict[str, str] = {}
        self._where = where
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        with HistoryStore(**self._where, search="off", poll_interval=1.0) as store:
            while not self._ended.is_set():
                with contextlib.suppress(BackendError), store.subscribe_all() as changes:
                    while not self._ended.is_set():
                        event = changes.get(timeout=0.2)
                        if isinstance(event, RunChanged):
                            self._note(event.run)

    def _note(self, run: RunInfo) -> None:
        self.began[run.run_id] = run.conversation_id, run.started_at.timestamp()
        self.worker[run.run_id] = run.agent_name or ""
        for place in run.waiting:
            self.since[place.run_id] = place.since.timestamp()
            self.worker[place.run_id] = place.agent_name or ""

    def close(self) -> None:
        self._ended.set()
        self._thread.join()


class Storm:
    """Workers that take runs, and what happens to them and to the servers. `where`: the options of a store that say
    where the data are."""

    def __init__(self, *, workers: int, rooms: int, seconds: float, seed: int = 1) -> None:
        self.rooms = [f"c{number}" for number in range(rooms)]
        self.faults: list[Fault] = []
        self.counts: Counter[str] = Counter()
        self.refused: list[Refused] = []
        self.chance = random.Random(seed)
        self.ends = time.monotonic() + seconds
        self.free = set(range(workers))  # to which nothing happens now
        self._seeds = itertools.count()
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._count = workers
        self._workers: list[Any] = []
        self.watcher: Watcher | None = None

    def where(self, worker: int | None = None) -> dict[str, Any]:
        """For a worker; None: for the watcher and the checks."""
        raise NotImplementedError

    def start(self) -> None:
        self._workers = [self.worker(number) for number in range(self._count)]
        self.watcher = Watcher(**self.where())

    def worker(self, number: int) -> Any:
        left = self.ends - time.monotonic()
        tasks = 8 if number % 2 else 1
        return Forked(work, self.where(number), str(number), next(self._seeds), len(self.rooms), left, tasks)

    def wait(self, seconds: float) -> None:
        """Let them work, and end the faults that are over."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            time.sleep(0.05)
            due = [one for one in self._later if one[0] <= time.monotonic()]
            self._later = [one for one in self._later if one not in due]
            for _, end in due:
                end()

    def _victim(self, seconds: float) -> int | None:
        """A worker for a fault: usually a worker with a run. At least two remain without a fault."""
        if len(self.free) < 3:
            return None
        number = self.chance.choice(sorted(self.free))
        if self.chance.random() < 0.7:
            with HistoryStore(**self.where(), search="off") as store:
                run = store.get_run(self.chance.choice(self.rooms))
            if run is not None and run.agent_name is not None and int(run.agent_name) in self.free:
                number = int(run.agent_name)
        self.free.discard(number)
        self.faults.append(Fault(time.time(), time.time() + seconds, str(number)))
        return number

    def later(self, seconds: float, number: int, end: Callable[[], None]) -> None:
        def over() -> None:
            end()
            self.free.add(number)

        self._later.append((time.monotonic() + seconds, over))

    def kill(self) -> bool:
        if (number := self._victim(1.0)) is None:
            return False
        self._workers[number].kill()
        self._workers[number] = self.worker(number)
        self.free.add(number)
        return True

    def suspend(self, seconds: float = 15.0) -> bool:
        if (number := self._victim(seconds)) is None:
            return False
        pid = self._workers[number].pid
        os.kill(pid, signal.SIGSTOP)
        self.later(seconds, number, lambda: os.kill(pid, signal.SIGCONT))
        return True

    def goes_on(self, acts: Sequence[Callable[[], bool]]) -> bool:
        return time.monotonic() < self.ends - SETTLED

    def attack(self, acts: Sequence[Callable[[], bool]]) -> None:
        """All of these about equally often, until the time is over."""
        while self.goes_on(acts):
            began = time.time()
            quiet = began - max((fault.end for fault in self.faults if not fault.worker), default=0.0) > QUIET
            possible = [act for act in acts if quiet or act.__name__ not in OUTAGES]
            fewest = min(self.counts[act.__name__] for act in possible)
            act = self.chance.choice([one for one in possible if self.counts[one.__name__] <= fewest + 1])
            if act():
                self.counts[act.__name__] += 1
                if act.__name__ in OUTAGES:
                    self.faults.append(Fault(began, time.time()))
            self.wait(self.chance.random() * 2)

    def finish(self) -> None:
        while time.monotonic() < self.ends or self._later:
            self.wait(0.5)
        for worker in self._workers:
            self.refused += worker.result(120) or ()
        if self.watcher is not None:
            self.watcher.close()

    # Checks

    def begin(self) -> dict[str, Cursor]:
        with HistoryStore(**self.where(), search="off", log_length=100_000) as store:
            for name in self.rooms:
                store.append(name, user("Begin."))
            return {name: store.snapshot(name).cursor for name in self.rooms}

    def check(self, cursors: dict[str, Cursor]) -> dict[str, Any]:
        """Figures, if everything is as promised."""
        gaps: list[float] = []
        overlaps, late, runs = set(), set(), 0
        with HistoryStore(**self.where(), search="off") as store:
            for message in store.get("hangs"):
                worker, at = message.text.split()
                self.faults.append(Fault(float(at), float(at) + HANG, worker))
            for name in self.rooms:
                wait_until(lambda name=name: not store.get_run(name).is_active, "the end of each run", 20)
                writes = fenced_writes(store, name, cursors[name])
                overlaps |= overlapping(writes)
                groups = [[*found] for _, found in itertools.groupby(writes, key=lambda write: write.run_id)]
                runs += len(groups)
                late |= overtaken([group[0] for group in groups], self.watcher.since, self._was_alive)
                gaps += [
                    gap
                    for before, after in itertools.pairwise(groups)
                    if (gap := self._gap(name, before[-1], after[0])) is not None
                ]
        assert overlaps == set()
        assert late == set()
        assert self.refused == []  # although each waited for a minute only
        gaps.sort()
        shares = {f"p{part}": round(gaps[round(part / 100 * (len(gaps) - 1))], 3) for part in (50, 99, 100) if gaps}
        return {"runs": runs, "queued": len(self.watcher.since), **self.counts, "gaps": shares}

    def _during(self, begin: float, end: float, worker: str) -> list[Fault]:
        """The faults in this time of the servers and of one worker."""
        return [one for one in self.faults if one.begin < end and begin < one.end and one.worker in ("", worker)]

    def _was_alive(self, run_id: str, begin: float, end: float) -> bool:
        return not self._during(begin - 1, end, self.watcher.worker.get(run_id, ""))

    def _gap(self, room: str, before: Write, after: Write) -> float | None:
        """Seconds from the last write of a run, or the death of its holder or the end of an outage since then, to the
        next run, if that was waiting and lived. Also returns None if another run took place in between and wrote
        nothing."""
        ended = before.time
        silent = [
            run_id
            for run_id, (where, began) in self.watcher.began.items()
            if where == room and run_id != after.run_id and ended < began < after.time
        ]
        faults = self._during(ended, after.time, self.watcher.worker.get(after.run_id, "?"))
        if not after.asked or after.asked > ended or silent or any(fault.worker for fault in faults):
            return None
        of_holder = self._during(ended, after.time, self.watcher.worker.get(before.run_id, "?"))
        death = min((fault.begin for fault in of_holder if fault.worker), default=ended)
        return after.time - max([ended, death, *(fault.end for fault in faults)])


class ServerStorm(Storm):
    """On one server at a time, each worker behind its own proxy."""

    def __init__(self, own_server: Start, kind: str = "redis", **options: Any) -> None:
        super().__init__(**options)
        self._start = own_server
        self._kind = kind
        self._options = ("--appendonly", "yes", "--appendfsync", "always")
        self.server = own_server(kind, tcp=True, options=self._options)
        self._proxies = [LossyProxy(self.server.port) for _ in range(self._count + 1)]

    def where(self, worker: int | None = None) -> dict[str, Any]:
        port = self._proxies[-1 if worker is None else worker].port
        return {"url": f"redis://127.0.0.1:{port}"}

    def cut(self) -> bool:
        seconds = 12.0
        if (number := self._victim(seconds)) is None:
            return False
        self._proxies[number].refuse()
        self.later(seconds, number, lambda: self._proxies[number].forward(self.server.port))
        return True

    def restart(self) -> bool:
        self.server.kill()
        self.server.start()
        return True

    def fail_over(self) -> bool:
        """To a replica that has missed the last writes, leases among them."""
        primary = ("--replicaof", "127.0.0.1", str(self.server.port))
        replica = self._start(self._kind, tcp=True, options=(*self._options, *primary))
        wait_until_replicated(self.server, replica)
        self._leave(replica)
        for number, proxy in enumerate(self._proxies):
            proxy.refuse()
            if number in self.free or number == self._count:
                proxy.forward(replica.port)
        self.server.kill()
        self.server, replica.options = replica, self._options  # after a restart it is not a replica
        return True

    def _leave(self, replica: RealServer) -> None:
        """The replica becomes a primary. Writes to the old one are lost until clients know of it."""
        replica.watcher.replicaof("NO", "ONE")
        self.wait(0.5)

    def finish(self) -> None:
        super().finish()
        for proxy in self._proxies[:-1]:
            proxy.close()

    def close(self) -> None:
        self._proxies[-1].close()


class ClusterStorm(Storm):
    """On a cluster whose slots move and whose primaries fail."""

    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__(**options)
        self._cluster = Cluster(kind, replicas=True, latest=1.0, seed=1)
        self._cluster.start()
        self._cluster.settle()  # no faults of proxies

    def where(self, worker: int | None = None) -> dict[str, Any]:
        return {"url": self._cluster.url}

    def move_slot(self) -> bool:
        self._cluster.move_slot()
        return True

    def fail_over(self) -> bool:
        self._cluster.fail_over()
        return True

    def close(self) -> None:
        self._cluster.close()


class _Thread:
    """A worker in this process."""

    def __init__(self, *arguments: Any) -> None:
        self._refused: list[Refused] = []
        self._thread = threading.Thread(target=lambda: self._refused.extend(work(*arguments)))
        self._thread.start()

    def result(self, seconds: float) -> list[Refused]:
        self._thread.join(seconds)
        assert not self._thread.is_alive()
        return self._refused


class _Memory(MemoryBackend):
    """Stays open when a store of it is closed."""

    def close(self) -> None:
        pass


class MemoryStorm(Storm):
    """In this process: threads and event loops, which hang."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._memory = _Memory(max_messages=None, max_conversations=None, log_length=100_000)

    def where(self, worker: int | None = None) -> dict[str, Any]:
        is_loop = worker is not None and worker % 2
        return {"backend": AsyncMemoryBackend(memory=self._memory) if is_loop else self._memory}

    def worker(self, number: int) -> Any:
        left = self.ends - time.monotonic()
        tasks = 8 if number % 2 else 1
        return _Thread(self.where(number), str(number), next(self._seeds), len(self.rooms), left, tasks)


@pytest.mark.proves("runs")
@pytest.mark.full
def test_a_storm(own_server: Start) -> None:
    storm = ServerStorm(own_server, workers=4, rooms=1, seconds=14.0)
    with closing(storm):
        cursors = storm.begin()
        storm.start()
        storm.wait(2)
        storm.kill()
        storm.suspend(9.0)
        storm.finish()
        figures = storm.check(cursors)
    assert figures["runs"] >= 20
    assert figures["gaps"]["p100"] < 10


@pytest.mark.proves("runs")
@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_a_long_storm(own_server: Start, kind: str, record_property: Any) -> None:
    """Eight processes: holders are killed, suspended, hang and lose the network; servers restart and forget leases,
    slots move. No two runs overlap in their fenced writes, those that wait begin in the order in which they came, and
    within 10 seconds after the end or death of a holder or of an outage. No agent waits in vain, and each run ends."""
    options: dict[str, Any] = {"workers": 8, "rooms": 20, "seconds": SECONDS}
    storm: Any
    if kind.startswith("cluster"):
        storm = ClusterStorm("valkey" if "valkey" in kind else "plain", **options)
        acts = [storm.kill, storm.suspend, storm.move_slot, storm.fail_over]
    else:
        storm = ServerStorm(own_server, kind, **options)
        acts = [storm.kill, storm.suspend, storm.cut, storm.restart, storm.fail_over]
    with closing(storm):
        cursors = storm.begin()
        storm.start()
        storm.attack(acts)
        storm.finish()
        figures = storm.check(cursors)
    record_property("figures", figures)
    print(f"\n{kind}: {figures}")
    assert figures["runs"] >= 2 * SECONDS
    assert figures["gaps"]["p100"] < 10


@pytest.mark.proves("runs")
@pytest.mark.full
def test_a_storm_in_memory() -> None:
    storm = MemoryStorm(workers=8, rooms=20, seconds=15.0)
    cursors = storm.begin()
    storm.start()
    storm.finish()
    figures = storm.check(cursors)
    print(f"\nmemory: {figures}")
    assert figures["runs"] >= 200
