# Generated from ../_async by scripts/unasync: do not edit.
"""The worker: it finds turns that are due, takes each together with a run of its conversation, and answers it.

The server wakes one idle worker when a turn becomes due. A worker also looks every few seconds, so that a lost message
or a worker that hangs only delays. This module does not decide whether a turn may be taken: the script that takes it
does.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec.structs import replace

from redis_history import errors
from redis_history.store import operations as ops
from redis_history.store._sync._runtime import (
    CAN_CANCEL,
    Job,
    Signal,
    check_callback,
    completed,
    is_cancelled,
    resolve,
    spawn,
    uninterrupted,
)
from redis_history.store._sync.asking import check_agent
from redis_history.store._sync.runs import Run
from redis_history.store._sync.store import HistoryStore
from redis_history.store.operations.keys import Keyspace
from redis_history.values._validation import check_integer, check_seconds
from redis_history.values.ids import new_token, rng
from redis_history.values.turns import ATTEMPTS, CHANNELS, FIRST_WAIT, LONGEST_WAIT, LOOK_INTERVAL

_logger = logging.getLogger("redis_history")

#: In a cluster a look takes a command for each of 64 buckets: so it is half as frequent, and rare if nothing has
#: happened for `_QUIET` seconds. Otherwise it is frequent enough to notice a worker that has died.
_IN_CLUSTER: Final = 2
_IN_QUIET_CLUSTER: Final = 16
_QUIET: Final = 60.0
#: Seconds by which workers spread looks at the same time.
_SPREAD: Final = 0.2
#: Seconds until the next look if none of the turns that were found could be taken, and after errors of the server.
_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 5.0
#: Seconds after which found turns are looked for again, because other workers may have taken them. Each race that
#: another worker won makes it a fraction, down to the second value: many workers take what they found much faster.
_FRESH: Final = 1.0
_SHORTEST_FRESH: Final = 0.05
#: Turns among which a worker chooses after another one was faster, for each such race, and at most.
_CHOICE: Final = 8
_LONGEST_CHOICE: Final = 32
#: Seconds for which an owner's turns wait if as many as may run are running, the seconds for which a seat (`per_user`)
#: lasts, and those after which it is renewed.
_FULL: Final = 2.0
_MANY_FULL: Final = 4
_SEAT: Final = 30.0
_KEEP_SEATS: Final = 10.0
#: Conversations named by wake-ups that are kept.
_HINTS: Final = 1000


class Worker:
    """Answers the turns that conversations are owed (`store.ask`): `worker.run()`, in any number of processes.

    `answer(run)` is a plain function, called in a run of the conversation (`Run`):
    at most one at a time for each conversation, fenced, and stoppable by `store.stop_run` (see `run.check`).
    `run.turn.messages` are the messages that asked, `run.turn.attempt` counts from 1, and `run.turn.interrupted` is the
    partial reply of the attempt before. Its result is ignored.

    - `agent_name`: the worker answers the turns of this agent; None: those that were asked of no agent.
    - `concurrency`: turns that it answers at a time. `per_user`: turns of one owner that all workers of the agent
      answer at a time, as long as none of them hangs; None: no limit.
    - `attempts`: an attempt that raises an exception, or whose process dies, is repeated after `first_wait` seconds,
      twice as long each time up to `longest_wait`. After this number of failures the turn is parked with the name of
      the error, until `retry_turn` or a further question.
    - `look_interval`: seconds between looks of an idle worker for turns whose wake-up was lost or whose worker died; in
      a cluster 2 times, and after a quiet minute 16 times as many. Longer ones save commands.
    - `grace`: seconds that `stop` gives to running answers. An answer that does not end in time is owed again
      immediately, and does not count as a failure.

    Turns are taken in the order in which they are due, and owners of several take turns. Raises ConfigurationError.
    """

    def __init__(
        self,
        store: HistoryStore,
        answer: Callable[[Run], object],
        *,
        agent_name: str | None = None,
        concurrency: int = 10,
        per_user: int | None = None,
        attempts: int = ATTEMPTS,
        first_wait: float = FIRST_WAIT,
        longest_wait: float = LONGEST_WAIT,
        look_interval: float = LOOK_INTERVAL,
        grace: float = 20.0,
    ) -> None:
        if not isinstance(store, HistoryStore):
            raise errors.ConfigurationError(f"a worker needs an {HistoryStore.__name__}, not {store!r}")
        check_callback(answer, "answer", optional=False)
        check_agent(agent_name)
        check_integer(concurrency, "concurrency", 1, 10_000)
        check_integer(per_user, "per_user", 1, 10_000, optional=True)
        check_integer(attempts, "attempts", 1, 1000)
        check_seconds(first_wait, "first_wait", 0, most=86_400)
        check_seconds(longest_wait, "longest_wait", first_wait, most=86_400)
        check_seconds(look_interval, "look_interval", most=86_400)
        check_seconds(grace, "grace", 0, most=86_400)
        self._store = store
        self._answer = answer
        self._agent_name = agent_name
        self._concurrency = concurrency
        self._per_user = per_user
        self._claim = ops.Claim(agent_name, attempts, round(1000 * first_wait), round(1000 * longest_wait))
        self._look_interval = look_interval
        self._grace = grace
        self._number = rng.randrange(CHANNELS)
        self._lock = threading.Lock()  # for the answers and wake-ups, which change in other threads
        self._running: dict[str, Run] = {}
        self._jobs: dict[str, Job] = {}
        self._hints: deque[str] = deque(maxlen=_HINTS)
        self._seats: dict[str, int | str] = {}  # the owners of the runs, if their number is limited
        self._keep_seats_at = 0.0
        self._full: dict[str, float] = {}  # queues of owners whose turns wait for other runs, and until when
        self._queues: dict[str, str] = {}  # by run, that of its owner
        self._seen: deque[str] = deque()  # conversations whose next turn is due at a time that it does not know
        self._signal: Signal | None = None
        self._listens = False
        self._stop_at: float | None = None
        self._candidates: list[ops.Candidate] = []
        self._found_at = 0.0
        self._again_at = 0.0  # when to look again after those that were found
        self._look_at = 0.0
        self._next_of: dict[int, float] = {}  # when to look at a bucket
        self._in_cluster = False
        self._busy_at = 0.0  # when it last saw a turn
        self._lost_races = 0  # to other workers, lately

    @property
    def running(self) -> int:
        """The number of turns that it answers now. Thread-safe."""
        return len(self._running)

    def run(self) -> None:
        """Answer turns until `stop`. Failures of the server are logged and retried. Raises StoreClosedError if the
        store is closed in the meantime."""
        if self._signal is not None:
            raise errors.InvalidInputError("this worker runs already")
        signal = self._signal = Signal()
        try:
            self._work(signal)
        finally:
            completed(self._end)
            self._signal, self._stop_at = None, None

    def stop(self, grace: float | None = None) -> None:
        """End `run`, or the next `run` if it has not started: it takes no further turn, and running answers have
        `grace` seconds to end (None: as the worker was made). A second call ends them immediately. May be called from
        signal handlers and any thread."""
        check_seconds(grace, "grace", 0, optional=True)
        now = time.monotonic()
        self._stop_at = now if self._stop_at is not None else now + (self._grace if grace is None else grace)
        self._wake()

    @property
    def _poll(self) -> float:
        """Seconds between looks."""
        if not self._in_cluster:
            return self._look_interval
        quiet = time.monotonic() - self._busy_at > _QUIET
        return self._look_interval * (_IN_QUIET_CLUSTER if quiet else _IN_CLUSTER)

    def _wake(self) -> None:
        signal = self._signal
        if signal is not None:
            signal.set()

    def _hear(self, conversation_id: str | None) -> None:
        """A turn has become due; None: perhaps anywhere. From any thread."""
        if conversation_id is None:
            self._look_at = 0.0
        else:
            self._hints.append(conversation_id)
            self._busy_at = time.monotonic()
            self._look_at = min(self._look_at, self._busy_at + self._poll)
        self._wake()

    # Finding turns

    def _work(self, signal: Signal) -> None:
        self._look_at, self._candidates = 0.0, []
        pause = _PAUSE
        while self._stop_at is None and not is_cancelled():
            signal.clear()  # before anything is looked at: a later change sets it again
            try:
                self._keep_seats()
                wait = self._take_turns()
                pause = _PAUSE
            except errors.StoreClosedError:
                raise
            except errors.RedisHistoryError as error:
                _logger.warning("a worker could not take turns, and tries again: %s", error)
                wait, self._look_at = pause * rng.uniform(0.5, 1.0), 0.0
                pause = min(2 * pause, _LONGEST_PAUSE)
            if self._stop_at is None and wait > 0:
                signal.wait(min(wait, _KEEP_SEATS) if self._seats else wait)

    def _take_turns(self) -> float:
        """Take turns while there are any and there is room. Returns the seconds until there may be others."""
        while self._stop_at is None:
            if len(self._running) >= self._concurrency:
                self._listen(False)
                while self._hints:  # the server took this worker for idle
                    self._store.backend.execute(ops.RingWorker(self._hints.popleft(), self._agent_name))
                return self._poll
            if self._hints:
                self._take(ops.Candidate(0.0, self._hints.popleft()))
                continue
            fresh = max(_FRESH / (1 + self._lost_races), _SHORTEST_FRESH)
            if self._candidates and time.monotonic() - self._found_at < fresh:
                self._take_one()
                continue
            if self._candidates:  # there may be others in their place
                self._look_at = min(self._look_at, self._again_at)
                self._candidates = []
            wait = self._look()
            if wait > 0 and not self._listens:
                self._listen(True)
                self._look_at = 0.0  # for turns that became due in the meantime
            elif wait > 0:
                return wait
        return 0.0

    def _take_one(self) -> None:
        """Take one of the turns that were found."""
        # The more often other workers were faster, the further from the oldest one.
        at = rng.randrange(min(len(self._candidates), 1 + _CHOICE * self._lost_races, _LONGEST_CHOICE))
        candidate = self._candidates.pop(at)
        now, until = time.monotonic(), self._full.get(candidate.queue, 0.0)
        if until <= now:
            taken = self._take(candidate)
            self._lost_races = max(0, self._lost_races - 1) if taken else self._lost_races + 2
            until = max(self._full.get(candidate.queue, 0.0), now + (0.0 if taken else _PAUSE))
        self._again_at = min(self._again_at, until)
        if not self._candidates:  # there may be others behind those that were found
            self._look_at = min(self._look_at, self._again_at)

    def _look(self) -> float:
        """Look for turns if it is time. Returns the seconds until the next look, 0 if there are turns."""
        now = time.monotonic()
        while self._seen:
            self._next_of[Keyspace.bucket_of(self._seen.popleft())] = now
        due = [bucket for bucket, at in self._next_of.items() if at <= now]
        if now >= self._look_at:
            self._look_at = now + self._poll * rng.uniform(0.8, 1.2)
            look = self._store.backend.execute(ops.LookForTurns(self._agent_name))
            self._next_of = {}
        elif due:
            look = self._store.backend.execute(ops.LookForTurns(self._agent_name, tuple(due)))
        else:
            return max(0.001, min(self._look_at, *self._next_of.values(), now + self._poll) - now)
        for bucket in due:
            self._next_of.pop(bucket, None)
        now, self._in_cluster = time.monotonic(), look.in_cluster
        if look.candidates or look.next_in:
            self._busy_at = now
        for bucket, seconds in look.next_in.items():
            self._next_of[bucket] = now + seconds + rng.uniform(0.0, _SPREAD)
        self._candidates, self._found_at = self._in_turns(look.candidates), now
        self._again_at = float("inf")
        return (
            0.0 if look.candidates else max(0.001, min(self._look_at, *self._next_of.values(), now + self._poll) - now)
        )

    def _in_turns(self, candidates: list[ops.Candidate]) -> list[ops.Candidate]:
        """The candidates in the order in which to take them: owners of several take turns."""
        ranks = Counter(self._queues.values())
        ordered = []
        for candidate in candidates:
            rank = ranks[candidate.queue] if candidate.queue else 0
            ranks[candidate.queue] += 1
            ordered.append((rank, candidate.due, candidate))
        ordered.sort()
        return [candidate for _, _, candidate in ordered]

    def _listen(self, wanted: bool) -> None:
        """Have the server wake this worker, or not."""
        if wanted is self._listens:
            return
        backend = self._store.backend
        change = backend.watch_turns if wanted else backend.unwatch_turns
        change(self._agent_name, self._number, self._hear)
        self._listens = wanted

    def _take(self, candidate: ops.Candidate) -> bool:
        """Take a turn, and begin to answer it. Returns False if it may be found again: another worker, or another run
        of its conversation, was faster."""
        conversation_id, run_id = candidate.conversation_id, new_token()
        claim = replace(self._claim, queue=candidate.queue)
        op = ops.TakeRun(conversation_id, ((run_id, self._agent_name),), False, claim=claim)
        try:
            if self._per_user is not None and not self._take_seat(candidate, run_id, self._per_user):
                return False
            outcome: ops.RunOutcome = self._store.backend.execute(op)
        except BaseException:  # the server may have given it the turn
            uninterrupted(partial(self._give_up, conversation_id, run_id), self._store._unfinished)
            raise
        if outcome.fence is None or outcome.turn is None:
            self._leave_seat(run_id)
            if not candidate.due and (outcome.run is None or not outcome.run.is_active):
                self._seen.append(conversation_id)  # the server named it before its turn is due
            return outcome.run is None  # it has expired, and its turn is no longer found
        run = Run.of_turn(self._store, conversation_id, run_id, outcome)
        self._running[run_id] = run
        if candidate.queue:
            self._queues[run_id] = candidate.queue
        job = spawn(partial(self._answer_turn, run), "redis_history-turn")
        with self._lock:
            if run_id in self._running:  # a thread may have ended already
                self._jobs[run_id] = job
        return True

    def _take_seat(self, candidate: ops.Candidate, run_id: str, most: int) -> bool:
        """Whether one more turn of the conversation's owner may be answered now."""
        backend, name = self._store.backend, candidate.conversation_id
        record = backend.execute(ops.ReadConversation(name))
        owner = None if record is None else record.user_id
        if owner is None:
            return True
        if backend.execute(ops.TakeSeat(self._agent_name, owner, run_id, most, _SEAT)):
            self._seats[run_id] = owner
            return True
        until = time.monotonic() + _FULL * rng.uniform(0.5, 1.0)  # another worker may leave a seat, and does not tell
        self._look_at = min(self._look_at, until)
        if candidate.queue:
            self._full[candidate.queue] = until
            if len(self._full) > _MANY_FULL:  # so that they do not hide the turns of others
                backend.execute(ops.Postpone(name, self._agent_name, candidate.queue, _FULL))
        return False

    def _leave_seat(self, run_id: str) -> None:
        owner = self._seats.pop(run_id, None)
        if owner is None:
            return
        self._full.clear()
        self._look_at = 0.0  # for the owner's next turn
        try:
            self._store.backend.execute(ops.TakeSeat(self._agent_name, owner, run_id, 0, _SEAT))
        except errors.RedisHistoryError as error:  # it expires
            _logger.info("a worker could not give up a seat: %s", error)

    def _keep_seats(self) -> None:
        now = time.monotonic()
        if not self._seats or now < self._keep_seats_at:
            return
        self._keep_seats_at = now + _KEEP_SEATS
        for run_id, owner in [*self._seats.items()]:
            if run_id in self._running:
                op = ops.TakeSeat(self._agent_name, owner, run_id, self._concurrency + 10_000, _SEAT)
                self._store.backend.execute(op)

    def _give_up(self, conversation_id: str, run_id: str) -> None:
        self._leave_seat(run_id)
        try:
            self._store.backend.execute(ops.LeaveRun(conversation_id, (run_id,)))
        except errors.RedisHistoryError as error:  # it expires
            _logger.info("a turn of conversation %r was not given back: %s", conversation_id[:80], error)

    def _answer_turn(self, run: Run) -> None:
        """Answer one turn. Its errors are logged; they do not end the worker."""
        name = run.conversation_id[:80]
        try:
            with run:
                resolve(self._answer(run))
        except (errors.RunStopped, errors.RunLostError) as error:
            _logger.info("the answer to conversation %r ended: %s", name, error)
        except BaseException as error:
            if run._postponed:
                level = logging.INFO if isinstance(error, errors.BudgetExceededError) else logging.WARNING
                _logger.log(level, "the answer to conversation %r cannot begin yet: %s", name, error)
            elif not run._given_back:
                _logger.exception("the answer to conversation %r failed", name)
            if CAN_CANCEL and not isinstance(error, Exception):  # a thread would report it once more
                raise
        finally:
            self._leave_seat(run.run_id)
            with self._lock:
                self._running.pop(run.run_id, None)
                self._jobs.pop(run.run_id, None)
                queue = self._queues.pop(run.run_id, "")
            if run._postponed and queue:
                self._full[queue] = time.monotonic() + _FULL * rng.uniform(0.5, 1.0)
            elif self._full.pop(queue, None) is not None:
                self._look_at = 0.0  # another turn of the owner may begin now
            self._seen.append(run.conversation_id)  # what it is owed now, perhaps after a pause, must be looked at
            self._wake()

    # The end

    def _end(self) -> None:
        """Wait for running answers, and give back those that do not end in time."""
        signal = self._signal
        assert signal is not None  # noqa: S101
        try:
            self._listen(False)
        except errors.RedisHistoryError as error:
            _logger.info("a worker ends: %s", error)
        if is_cancelled() or self._stop_at is None:  # an error, or an interrupt
            self._stop_at = time.monotonic()
        while self._running and (left := self._stop_at - time.monotonic()) > 0:
            signal.clear()
            if self._running:
                signal.wait(left)
        with self._lock:
            late, jobs = [*self._running.values()], [*self._jobs.values()]
        for run in late:
            run._give_back()
        for job in jobs if CAN_CANCEL else ():
            job.stop()
