"""Workers answer turns while they are killed, suspended and cut off, and while servers restart, fail over and move
slots: every question is answered, in its order, never by two runs at once, and nothing is left."""

import os
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from redis_history import Cursor, HistoryStore, Message, MessagesAppended, ReplyEnded, Reset, errors, user
from redis_history.store.operations import CountTurns
from tests.acceptance.test_run_storm import (
    KINDS,
    SECONDS,
    SETTLED,
    ClusterStorm,
    ServerStorm,
    Storm,
    Write,
    overlapping,
)
from tests.acceptance.turn_worker import ATTEMPTS, answer_turns, options
from tests.support.forks import Forked
from tests.support.servers import RealServer, Start, wait_until, wait_until_replicated

#: Attempts of a long storm in many conversations, for example 16000; 0: a shorter one, as long as a storm of runs.
TURNS = int(os.environ.get("REDIS_HISTORY_STORM_TURNS", "0"))
#: How often each fault then happens at least.
FAULTS = 20


class _Asking:
    """Asks questions one after the other in every room, until it is stopped."""

    def __init__(self, where: dict[str, Any], rooms: list[str], pause: float) -> None:
        self.asked: dict[str, list[str]] = defaultdict(list)
        self._where, self._rooms, self._pause = where, rooms, pause
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        number = 0
        with HistoryStore(**options(self._where)) as store:
            while not self._stopped.wait(self._pause):
                room = self._rooms[number % len(self._rooms)]
                message = user("?", id=f"{room}-{number:06}")
                number += 1
                try:
                    store.ask(room, message)
                except errors.BackendError:  # it may be stored, or not
                    continue
                self.asked[room].append(message.id)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


def _writes(store: HistoryStore, name: str, after: Cursor) -> list[Write]:
    """The fenced writes to a conversation, in the order of its change log."""
    writes = []
    with store.subscribe(name, after=after) as changes:
        while (event := changes.get(timeout=0)) is not None:
            assert not isinstance(event, Reset), event
            messages: tuple[Message | None, ...] = ()
            if isinstance(event, MessagesAppended):
                messages = event.messages
            elif isinstance(event, ReplyEnded) and event.message is not None and event.message.status == "complete":
                messages = (event.message,)  # a reader has ended an interrupted one
            writes += [
                Write(one.trace_id, 0.0, 0.0) for one in messages if one is not None and one.trace_id is not None
            ]
    return writes


class _Turns(Storm):
    """The differences between a storm of turns and a storm of runs. `notes`: a file to which workers add their
    attempts. `loses_writes`: whether a failover loses the last writes."""

    loses_writes = True

    def __init__(self, *arguments: Any, notes: Path, **options: Any) -> None:
        super().__init__(*arguments, **options)
        notes.touch()
        self._notes = notes

    def worker(self, number: int) -> Any:
        return Forked(answer_turns, self.where(number), str(number), next(self._seeds), str(self._notes))

    def start(self) -> None:
        self._workers = [self.worker(number) for number in range(self._count)]

    def goes_on(self, acts: Sequence[Callable[[], bool]]) -> bool:
        if not TURNS:
            return super().goes_on(acts)
        return len(self._attempts()) < TURNS or min(self.counts[act.__name__] for act in acts) < FAULTS

    def _attempts(self) -> list[list[str]]:
        """The run, the number and the questions of each attempt."""
        return [line.split(" ") for line in self._notes.read_text().splitlines()]

    def _victim(self, seconds: float) -> int | None:
        """A worker for a fault. At least two remain without one."""
        free: set[int] = self.free
        if len(free) < 3:
            return None
        number: int = self.chance.choice(sorted(free))
        free.discard(number)
        return number

    def check_turns(self, cursors: dict[str, Any], asked: dict[str, list[str]]) -> dict[str, Any]:
        """Figures, if everything is as promised."""
        figures: Counter[str] = Counter()
        with HistoryStore(**options(self.where())) as store:
            wait_until(lambda: not store.list_turns(), "all turns to be answered", 120)
            attempts = self._attempts()
            tried = Counter(question for _, _, *questions in attempts for question in questions)
            # A failover that loses writes may lose the failure that was counted last.
            assert max(tried.values()) <= ATTEMPTS + self.counts["fail_over"] * self.loses_writes
            assert max(int(number) for _, number, *_ in attempts) <= ATTEMPTS
            figures["attempts"], figures["most attempts"] = len(attempts), max(tried.values())
            assert store.backend.execute(CountTurns()) == store.backend.execute(CountTurns(open=False)) == 0
            for name in self.rooms:
                assert overlapping(_writes(store, name, cursors[name])) == set()
                found = list(store.iter(name))
                stored = [message.id for message in found if message.role == "user" and message.text == "?"]
                answers = [message for message in found if message.role == "assistant" and message.status == "complete"]
                by_question = defaultdict(set)
                first: dict[str, None] = {}
                for message in answers:
                    for question in message.text.split():
                        by_question[question].add(message.trace_id)
                        first[question] = None
                lost = set(asked[name]) - set(stored)
                may_lose = self.loses_writes and "fail_over" in self.counts
                assert may_lose or not lost, "a question was lost"
                unanswered = set(stored) - set(first)
                tries = [one for one in attempts if unanswered & {*one[2:]}]
                assert may_lose or not unanswered, f"not answered: {unanswered}, of the attempts {tries}"
                stored = [one for one in stored if one not in unanswered]
                assert [one for one in first if one in set(stored)] == stored, "the order of questions"
                assert max(map(len, by_question.values()), default=0) <= ATTEMPTS
                figures["questions"] += len(stored)
                figures["answers"] += sum(map(len, by_question.values()))
                figures["lost in failovers"] += len(lost) + len(unanswered)
                figures["answered turns"] += len({message.trace_id for message in answers})
        return {**figures, **self.counts}

    def end_workers(self) -> None:
        for worker in self._workers:
            os.kill(worker.pid, signal.SIGTERM)
        for worker in self._workers:
            worker.result(60)


class ServerTurns(_Turns, ServerStorm):
    """In a long storm of many turns, failovers lose nothing, so that each question must be answered. Otherwise an
    answer or a question of the last half second is lost, and the turn may be closed nevertheless."""

    loses_writes = not TURNS

    def _leave(self, replica: RealServer) -> None:
        if self.loses_writes:
            super()._leave(replica)
            return
        with self.server.client() as client:
            client.client_pause(20_000, all=False)  # writes
        wait_until_replicated(self.server, replica)
        replica.watcher.replicaof("NO", "ONE")

    def close(self) -> None:
        for proxy in self._proxies:
            proxy.close()


class ClusterTurns(_Turns, ClusterStorm):
    loses_writes = False


def _ride(storm: Any, acts: Any, pause: float) -> dict[str, Any]:
    cursors = storm.begin()
    asking = _Asking(storm.where(), storm.rooms, pause)
    storm.start()
    try:
        acts()
        while storm._later:  # the ends of faults
            storm.wait(0.2)
    finally:
        asking.stop()
    try:
        figures: dict[str, Any] = storm.check_turns(cursors, asking.asked)
        storm.end_workers()
    except BaseException:
        for worker in storm._workers:
            with suppress(ValueError):  # it has ended
                worker.kill()
        raise
    return figures


@pytest.mark.proves("turns")
def test_a_worker_dies_and_the_server_restarts(own_server: Start, tmp_path: Path) -> None:
    storm = ServerTurns(own_server, workers=3, rooms=6, seconds=0.0, notes=tmp_path / "notes")

    def acts() -> None:
        storm.wait(1.0)
        storm.kill()
        storm.wait(0.5)
        storm.restart()
        storm.wait(1.0)

    with closing(storm):
        figures = _ride(storm, acts, 0.02)
    assert figures["questions"] >= 50


@pytest.mark.proves("turns")
@pytest.mark.full
@pytest.mark.timeout(0 if TURNS else 600)
@pytest.mark.parametrize("kind", KINDS)
def test_a_long_storm_of_turns(own_server: Start, kind: str, tmp_path: Path, record_property: Any) -> None:
    """Eight workers and a stream of questions: workers are killed, suspended for 15 seconds and cut off; servers
    restart and fail over, and slots move. Each question that is stored is answered, never by two fenced runs at once,
    in the order of its conversation, and no turn is left."""
    settings: dict[str, Any] = {
        "workers": 8,
        "rooms": 200 if TURNS else 40,
        "seconds": SECONDS + SETTLED,
        "notes": tmp_path / "notes",
    }
    storm: Any
    if kind.startswith("cluster"):
        storm = ClusterTurns("valkey" if "valkey" in kind else "plain", **settings)
        acts = [storm.kill, storm.suspend, storm.move_slot, storm.fail_over]
    else:
        storm = ServerTurns(own_server, kind, **settings)
        acts = [storm.kill, storm.suspend, storm.cut, storm.restart, storm.fail_over]
    began = time.monotonic()
    with closing(storm):
        figures = _ride(storm, lambda: storm.attack(acts), 0.02 if TURNS else 0.05)
    figures["seconds"] = round(time.monotonic() - began, 1)
    record_property("figures", figures)
    print(f"\n{kind}: {figures}")
    assert figures["questions"] >= (TURNS // 2 or 4 * SECONDS)
