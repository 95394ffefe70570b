"""One agent process: makes its steps, reports, and may be killed at any point of it."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from itertools import chain, islice, repeat
from multiprocessing.connection import Connection
from random import Random

import msgspec

from redis_history import Appended, HistoryStore
from redis_history.demo.plan import Step
from redis_history.errors import BatchTooLargeError, RedisHistoryError

__all__ = ["AgentJob", "Did", "Failed", "Ready", "run_agent"]

_REPORT_SECONDS = 0.05


class AgentJob(msgspec.Struct, frozen=True):
    """`stop_at`: make only so many steps, then the last of them again and again, until killed: so the kill always
    falls between an append and its acknowledgement, or close to one, and never after the work is done."""

    number: int
    url: str
    namespace: str
    log_length: int
    steps: tuple[Step, ...]
    pause: float
    stop_at: int | None = None


class Ready(msgspec.Struct, frozen=True):
    """Connected, and waiting for the word to start."""


class Did(msgspec.Struct, frozen=True):
    """Since the last report: steps made, messages newly stored, messages ignored as stored before, messages sent
    again that the store took for new (there must be none), and the seconds each single append took."""

    steps: int
    stored: int
    ignored: int
    doubled: int
    seconds: tuple[float, ...]


class Failed(msgspec.Struct, frozen=True):
    """The process gives up."""

    reason: str


def run_agent(job: AgentJob, pipe: Connection) -> None:
    """The life of an agent process: Ready, the parent's word, reports, and its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when we end
    try:
        with HistoryStore(job.url, namespace=job.namespace, log_length=job.log_length) as store:
            store.get("-", limit=1)  # connects
            pipe.send(Ready())
            pipe.recv()
            _work(job, store, pipe)
    except RedisHistoryError as error:
        pipe.send(Failed(f"agent {job.number}: {error}"))
    except (EOFError, BrokenPipeError):
        pass  # the parent is gone, and so is the purpose


def _work(job: AgentJob, store: HistoryStore, pipe: Connection) -> None:
    random = Random(job.number)  # noqa: S311
    steps = stored = ignored = doubled = 0
    seconds: list[float] = []
    reported = time.monotonic()
    for step in _steps(job):
        if job.pause:
            time.sleep(random.uniform(0, 2 * job.pause))
        began = time.perf_counter()
        if len(step.messages) == 1:
            outcomes = [store.append(step.conversation_id, step.messages[0])]
            seconds.append(time.perf_counter() - began)
        else:
            outcomes = _append_many(store, step)
        known = sum(outcome.duplicate for outcome in outcomes)
        steps += 1
        ignored += known
        stored += len(outcomes) - known
        if step.again:
            doubled += len(outcomes) - known
        if time.monotonic() - reported > _REPORT_SECONDS:
            pipe.send(Did(steps, stored, ignored, doubled, tuple(seconds)))
            steps = stored = ignored = doubled = 0
            seconds = []
            reported = time.monotonic()
    pipe.send(Did(steps, stored, ignored, doubled, tuple(seconds)))


def _append_many(store: HistoryStore, step: Step) -> list[Appended]:
    try:
        return store.append_many(step.conversation_id, step.messages)
    except BatchTooLargeError:  # huge messages: one by one they fit
        return [store.append(step.conversation_id, message) for message in step.messages]


def _steps(job: AgentJob) -> Iterator[Step]:
    if job.stop_at is None:
        return iter(job.steps)
    last = job.steps[job.stop_at - 1]
    return chain(islice(job.steps, job.stop_at), repeat(Step(last.conversation_id, last.messages, again=True)))
