# Generated from ../_async by scripts/unasync: do not edit.
"""The compressor: it finds conversations that are too long, and replaces their older messages by summaries.

A lease decides which process may compress a conversation; it expires, so a killed process is replaced. The store
rejects a summary if the summarized messages have changed or the lease has ended.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, Literal

from msgspec.structs import replace

from redis_history import errors
from redis_history.agents._sync._summarizing import SummarizerCall
from redis_history.agents.compaction.extractive import within
from redis_history.agents.compaction.policy import KEEP_RECENT, Plan, wider
from redis_history.agents.compaction.summaries import (
    NoGainError,
    Summarizer,
    SummaryTooLongError,
    check_summarizer,
    describe_error,
    is_interrupt,
    read_summary,
    summary_limit,
    usable,
)
from redis_history.agents.compaction.worker import (
    CompressionProgress,
    CompressorStats,
    Facts,
    Timing,
    Version,
    Work,
    compressor_policy,
    is_over,
    version_of,
)
from redis_history.store import operations as ops
from redis_history.store import refusals
from redis_history.store._sync._runtime import Job, Signal, completed, in_thread, is_cancelled, spawn
from redis_history.store._sync.reading import scan_conversations
from redis_history.store._sync.store import HistoryStore
from redis_history.store.operations.backend import Backend, PendingWakeups
from redis_history.store.operations.page import PAGE, next_page
from redis_history.values import Conversation, Message
from redis_history.values._validation import check_function, check_integer
from redis_history.values.ids import new_token, rng
from redis_history.values.ranges import stays
from redis_history.values.sizes import message_tokens

_logger = logging.getLogger("redis_history")

#: Maximum seconds between checks whether to stop, and minimum seconds between reads of notified changes.
_CHECK: Final = 1.0
#: Number of conversations in the first read for changes; `_KNOWN` if more have changed.
_FIRST_LOOK: Final = 32
#: Number of messages in the first read for the oldest message that may be compressed.
_OLDEST: Final = 32
#: Number of recently changed conversations in a read that goes further back.
_KNOWN: Final = 1_000


class _StoppedError(Exception):
    """The compressor ended before the summary was ready."""


class Compressor:
    """Keeps the conversations of a store short: `compressor.run()`, in one or several processes.

    A conversation is compressed when it has more than `max_tokens` or `max_messages`, or messages `older_than` (seconds
    or a timedelta). It shrinks to at most `target` times these limits, so that the next message does not exceed them.
    The limits hold afterwards whenever a summary can achieve this. System messages, the turn in progress and tool calls
    that wait for results always stay. The `keep_recent` newest messages stay if the limits allow it.

    While `summarizer` runs, only the lease on that conversation is held, for `lease` seconds at a time; after `timeout`
    seconds the attempt fails. If a summary is too long, the summarizer is called again with more messages.

    Changed conversations are read every `look_interval` seconds, all of them every `sweep_interval`; at most
    `concurrency` are compressed concurrently. After a failure, no process retries the conversation for `first_wait`
    seconds, twice as long each time up to `longest_wait`. `stop` gives running attempts `grace` seconds. `on_progress`
    is called with each `CompressionProgress`; it must not block. Raises ConfigurationError.
    """

    def __init__(
        self,
        store: HistoryStore,
        summarizer: Summarizer,
        *,
        max_tokens: int | None = None,
        max_messages: int | None = None,
        older_than: float | timedelta | None = None,
        target: float = 0.5,
        keep_recent: int = KEEP_RECENT,
        concurrency: int = 4,
        timeout: float = 120.0,
        lease: float = 30.0,
        look_interval: float = 5.0,
        sweep_interval: float = 300.0,
        first_wait: float = 5.0,
        longest_wait: float = 600.0,
        grace: float = 20.0,
        on_progress: Callable[[CompressionProgress], object] | None = None,
    ) -> None:
        if not isinstance(store, HistoryStore):
            raise errors.ConfigurationError(f"a compressor needs an {HistoryStore.__name__}, not {store!r}")
        check_summarizer(summarizer)
        check_function(on_progress, "on_progress", plain=True)
        check_integer(concurrency, "concurrency", 1)
        self._policy = compressor_policy(max_tokens, max_messages, older_than, target, keep_recent)
        self._timing = Timing(timeout, lease, look_interval, sweep_interval, first_wait, longest_wait, grace)
        self._store = store
        self._summarizer = summarizer
        self._on_progress = on_progress
        self._concurrency = concurrency
        self._work = Work(first_wait, longest_wait)
        self._stop_at: float | None = None
        self._signals: list[Signal] = []
        self._workers: set[Signal] = set()
        self._running = False
        self._ended_by: BaseException | None = None  # the error that ended a worker
        self._known = Facts()  # it was read
        self._marks: ops.Marks | None = None  # at the last look

    @property
    def stats(self) -> CompressorStats:
        """The counters so far. Thread-safe."""
        return self._work.stats

    def run(self) -> CompressorStats:
        """Work until `stop`, and return the statistics. Failures of the server are logged and retried. Raises
        StoreClosedError if the store is closed in the meantime, and CapabilityError."""
        return self._run(self._keep_looking)

    def run_once(self) -> CompressorStats:
        """Compress the conversations that are too long now, and return the statistics. Skips conversations that fail
        or that another process compresses. Raises the error of a failed search for conversations."""
        return self._run(self._look_once)

    def stop(self) -> None:
        """End `run`, or the next `run` if it has not started. No new attempt begins, and running attempts have `grace`
        seconds to finish. A second call ends them immediately. May be called from signal handlers and any thread."""
        now = time.monotonic()
        self._stop_at = now if self._stop_at is not None else now + self._timing.grace
        self._work.clear()
        self._wake()

    def preview(self) -> list[CompressionProgress]:
        """Return the conversations that would be compressed, without a lease and without changes."""
        planned: dict[str, CompressionProgress] = {}
        for page in scan_conversations(self._store.backend):
            for conversation in self._too_long([one for one in page if one.conversation_id not in planned]):
                name = conversation.conversation_id
                messages = self._store.get(name, contents=False)
                plan = in_thread(partial(self._policy.plan, messages))
                if plan is not None:
                    planned[name] = CompressionProgress("planned", name, len(plan.seen), plan.tokens)
                    self._report(planned[name])
        return [*planned.values()]

    @property
    def _stopping(self) -> bool:
        return self._stop_at is not None

    # Finding work

    def _run(self, look: Callable[[Signal], Any]) -> CompressorStats:
        if self._running:
            raise errors.InvalidInputError("this compressor runs already")
        self._running = True
        self._ended_by = None
        control = Signal()
        signals = [Signal() for _ in range(self._concurrency)]
        self._workers = set(signals)
        self._signals = [control, *signals]
        jobs: list[Job] = [spawn(self._worker(one, control), "redis_history-compress") for one in signals]
        try:
            look(control)
            if not self._stopping:
                self.stop()
            while self._workers:
                control.wait(_CHECK)
                control.clear()
            self._check_workers()
        finally:
            if self._workers:  # an error, or an interrupt
                self._stop_at = time.monotonic()
                self._wake()
            completed(partial(self._end, jobs))
        return self.stats

    def _end(self, jobs: list[Job]) -> None:
        for job in jobs:
            job.stop()
        self._signals = []
        self._running, self._stop_at = False, None

    def _look_once(self, control: Signal) -> None:
        self._work.take_rested()
        while self._sweep(rested=False) and not self._stopping:
            while not self._work.idle and not self._stopping:
                self._check_workers()
                control.wait(_CHECK)
                control.clear()

    def _keep_looking(self, control: Signal) -> None:
        wakeups = PendingWakeups(control.set)
        backend = self._store.backend
        try:
            try:
                backend.watch_all(wakeups.add)
            except errors.RedisHistoryError as error:  # it still reads changes every `look_interval`
                _logger.warning("a compressor gets no notifications of changes: %s", error)
            self._look_repeatedly(control, wakeups)
        finally:
            backend.unwatch_all(wakeups.add)

    def _look_repeatedly(self, control: Signal, wakeups: PendingWakeups) -> None:
        timing = self._timing
        sweep_at = look_at = looked = time.monotonic()
        while not self._stopping and not is_cancelled():
            self._check_workers()
            control.clear()  # before taking wake-ups: a later one sets it again
            now = time.monotonic()
            if any(wakeups.take()):
                look_at = min(look_at, looked + min(_CHECK, timing.look_interval))
            try:
                if now >= sweep_at:
                    sweep_at = now + timing.sweep_interval * rng.uniform(0.9, 1.1)
                    look_at, looked = now + timing.look_interval, now
                    self._sweep()
                elif now >= look_at:
                    look_at, looked = now + timing.look_interval, now
                    self._look()
                self._look_at(self._work.take_rested())
            except (errors.StoreClosedError, errors.CapabilityError):  # no later attempt can succeed
                raise
            except errors.RedisHistoryError as error:
                _logger.warning("looking for conversations to compress: %s", error)
                sweep_at = look_at
            wait = min(sweep_at, look_at) - time.monotonic()
            retry = self._work.seconds_to_retry
            control.wait(max(0.0, wait if retry is None else min(wait, retry)))

    def _sweep(self, *, rested: bool = True) -> int:
        """Check all conversations, and return how many are too long."""
        self._remember(self._list(_KNOWN))  # first, so that `_look` finds all later changes
        new = 0
        for page in scan_conversations(self._store.backend):
            new += self._found(page, rested)
            if self._stopping:
                break
        self._work.count(sweeps=1)
        return new

    def _look(self) -> None:
        """Check the newest `_KNOWN` conversations if they have changed. The next sweep finds the others."""
        self._work.count(looks=1)
        marks = self._store.backend.execute(ops.ReadMarks())
        if marks == self._marks:
            return
        found = self._list(_FIRST_LOOK)
        if any(one not in self._known for one in found[_FIRST_LOOK // 2 :]):
            found = self._list(_KNOWN)
        changed = [one for one in found if one not in self._known]
        self._remember(changed)
        self._found(changed)
        self._marks = marks

    def _look_at(self, conversation_ids: Sequence[str]) -> None:
        found = [self._store.backend.execute(ops.ReadConversation(name)) for name in conversation_ids]
        existing = [one for one in found if one is not None]
        self._remember(existing)
        self._found(existing)

    def _list(self, limit: int) -> list[Conversation]:
        return self._store.backend.execute(ops.ListConversations(limit=limit))

    def _remember(self, conversations: Sequence[Conversation]) -> None:
        for one in conversations:
            self._known.add(one.conversation_id, version_of(one), None)

    def _found(self, conversations: Sequence[Conversation], rested: bool = True) -> int:
        new = self._work.offer(self._too_long(conversations), rested=rested)
        if new:
            self._wake()
        return new

    def _too_long(self, conversations: Sequence[Conversation]) -> list[Conversation]:
        over = [one for one in conversations if is_over(self._policy, one) or self._is_old(one)]
        rng.shuffle(over)  # so that processes begin with different conversations
        return over

    def _is_old(self, conversation: Conversation) -> bool:
        """Whether the oldest message that may be compressed is too old. If not, remember until when."""
        age = self._policy.older_than
        if not isinstance(age, timedelta) or not conversation.message_count or conversation in self._work.young:
            return False
        oldest = _oldest_to_compress(self._store.backend, conversation.conversation_id)
        gets_old = None if oldest is None else oldest + age
        if gets_old is not None and gets_old < datetime.now(UTC):
            return True
        self._work.young.add(conversation.conversation_id, version_of(conversation), gets_old)
        return False

    def _worker(self, signal: Signal, control: Signal) -> Callable[[], Any]:
        def work() -> None:
            try:
                while not self._stopping and not is_cancelled():
                    signal.clear()
                    job = self._work.take()
                    if job is None:
                        signal.wait(_CHECK)
                        continue
                    self._compress(*job, signal)
                    control.set()
            except BaseException as error:
                self._ended_by = self._ended_by or error  # `_check_workers` raises it
                if is_cancelled() or is_interrupt(error):
                    raise
            finally:
                self._workers.discard(signal)
                control.set()

        return work

    def _check_workers(self) -> None:
        """Raises RuntimeError if a worker has ended by an error."""
        if self._ended_by is not None and not is_cancelled():
            raise RuntimeError(f"compressing ended: {describe_error(self._ended_by)}") from self._ended_by

    def _wake(self) -> None:
        for signal in list(self._signals):
            signal.set()

    # Compressing one conversation

    def _compress(self, conversation_id: str, version: Version, signal: Signal) -> None:
        """Compress one conversation. Its errors are reported; they do not stop the worker."""
        started = time.monotonic()
        lease: ops.RunFence | None = None
        rest: float | None = None
        try:
            try:
                caller = (new_token(), None)
                op = ops.TakeRun(conversation_id, (caller,), False, self._timing.lease, "compressor")
                lease = (self._store.backend.execute(op)).fence
                if lease is None:
                    self._work.count(busy=1)
                    rest = self._timing.lease
                    return
                progress = self._attempt(conversation_id, lease, version, signal, started)
            except _StoppedError:
                self._work.succeeded(conversation_id)
                return
            except Exception as error:  # noqa: BLE001 -- it is reported, and other conversations go on
                progress = self._failure(conversation_id, lease, error)
                lease = None if isinstance(error, errors.ConflictError) else lease
            rest = progress.wait or None
            self._report(replace(progress, seconds=time.monotonic() - started))
        except BaseException:  # this worker ends
            self._work.release(conversation_id)
            raise
        finally:
            try:
                if lease is not None:
                    # Other processes also wait. This one waits a little less, so that it is first.
                    self._release(conversation_id, lease, 0.9 * (rest or 0.0))
            finally:
                if rest is not None:  # only now, or this process would meet its own lease
                    self._work.release(conversation_id, rest)

    def _failure(self, conversation_id: str, lease: ops.RunFence | None, error: Exception) -> CompressionProgress:
        kind: Literal["lease_lost", "conflict", "failed"] = "failed"
        if isinstance(error, errors.ConflictError):
            # After losing the lease, the write may conflict with the next holder's write before it misses the lease.
            lost = isinstance(error, errors.RunLostError) or (
                lease is not None and not self._release(conversation_id, lease)
            )
            kind = "lease_lost" if lost else "conflict"
            self._work.count(**{"leases_lost" if lost else "conflicts": 1})
            wait = self._timing.first_wait
        else:
            self._work.count(failed=1)
            wait = self._work.failed(conversation_id)
            _logger.warning("compressing %r failed: %s", conversation_id[:80], describe_error(error))
        return CompressionProgress(kind, conversation_id, wait=wait, error=describe_error(error))

    def _keep(self, conversation_id: str, lease: ops.RunFence, in_time: bool) -> bool:
        """Renew the lease. Returns whether it was still held. `in_time`: it has not expired yet."""
        op = ops.KeepRuns(((conversation_id, lease),), self._timing.lease, in_time)
        [outcome] = self._store.backend.execute(op)
        return outcome.done

    def _release(self, conversation_id: str, lease: ops.RunFence, rest: float = 0.0) -> bool:
        """End the lease, which others can take after `rest` seconds. Returns whether it was still held."""
        try:
            return (self._store.backend.execute(ops.EndRun(conversation_id, lease, "completed", rest))).done
        except errors.RedisHistoryError as error:  # the lease expires
            _logger.info("the lease on %r was not released: %s", conversation_id[:80], error)
            return True

    def _attempt(
        self, conversation_id: str, lease: ops.RunFence, version: Version, signal: Signal, taken: float
    ) -> CompressionProgress:
        """Compress with a lease that was asked for at this time of the monotonic clock."""
        messages = self._store.get(conversation_id, contents=False)
        now = datetime.now(UTC)
        plans = wider(self._policy, lambda policy: policy.plan(messages, now=now))
        plan = in_thread(lambda: next(plans, None))
        if plan is None:
            self._work.count(nothing=1)
            self._work.succeeded(conversation_id)
            ages = isinstance(self._policy.older_than, timedelta)
            until = now + timedelta(seconds=self._timing.sweep_interval) if ages else None
            self._work.settled.add(conversation_id, version, until)
            return CompressionProgress("nothing", conversation_id)
        summary: Message | None = None
        self._report(CompressionProgress("started", conversation_id, len(plan.seen), plan.tokens))
        try:
            while summary is None:
                try:
                    given = self._with_contents(conversation_id, plan)
                    summary = self._summarize(
                        given, messages, partial(self._keep, conversation_id, lease), signal, taken
                    )
                except SummaryTooLongError as error:
                    plan = in_thread(partial(plans.send, error))
        except NoGainError as error:
            # Do not retry at this revision; after a change only after a while, because a summary costs money.
            self._work.count(nothing=1)
            wait = self._work.failed(conversation_id)
            self._work.settled.add(conversation_id, version, None)
            return CompressionProgress(
                "nothing", conversation_id, len(plan.seen), plan.tokens, wait=wait, error=describe_error(error)
            )
        except SummaryTooLongError as error:
            raise errors.SummaryError(str(error)) from error
        last = plan.through.position
        assert last is not None  # noqa: S101 -- it was read from the store
        op = ops.Compact.of(conversation_id, last, summary, plan.seen, expected_revision=None)
        try:  # if the summarized messages are unchanged and the lease is still held
            self._store._write(replace(op, precondition=ops.Precondition(run=lease)))
        except errors.TornPairError as error:  # a tool result arrived since the plan
            raise refusals.compaction_conflict(conversation_id, str(error)) from error
        count, after = len(plan.seen), message_tokens(summary)
        self._work.count(compressed=1, messages=count, tokens_before=plan.tokens, tokens_after=after)
        self._work.succeeded(conversation_id)
        return CompressionProgress("compressed", conversation_id, count, plan.tokens, after)

    def _with_contents(self, conversation_id: str, plan: Plan) -> Plan:
        """The plan, whose messages have their large contents. Raises CompactionConflictError."""
        found = self._store.read_contents(conversation_id, plan.seen)
        if len(found) < len(plan.seen):
            raise refusals.compaction_conflict(conversation_id, "a message of the range was deleted")
        return replace(plan, seen=tuple(found))

    def _summarize(
        self, plan: Plan, messages: list[Message], keep: Callable[[bool], Any], signal: Signal, kept: float
    ) -> Message:
        """Call the summarizer, and `keep` the lease, last renewed at the time `kept` or later, in the meantime."""
        timing = self._timing
        ends = time.monotonic() + timing.timeout
        limit = summary_limit(messages, plan.seen, self._policy.max_tokens)
        previous = None if plan.previous is None else read_summary(plan.previous)
        call = SummarizerCall(within(self._summarizer, limit), (list(plan.messages), previous), signal)
        try:
            while True:
                signal.clear()
                if call.done:
                    break
                now = time.monotonic()
                if now >= ends:
                    raise errors.SummaryError(f"the summarizer took longer than {timing.timeout:g} seconds")
                if self._stop_at is not None and now >= self._stop_at:
                    raise _StoppedError
                if now >= kept + timing.lease / 3:
                    if not keep(now - kept < timing.lease):
                        raise errors.RunLostError("the lease on the conversation ended while it was being summarized")
                    kept = now
                until = min(ends, kept + timing.lease / 3, ends if self._stop_at is None else self._stop_at)
                signal.wait(max(0.001, until - now))
            answer = call.result()
        finally:
            call.abandon()
        return usable(answer, plan.seen, limit)

    def _report(self, progress: CompressionProgress) -> None:
        if self._on_progress is not None:
            try:
                self._on_progress(progress)
            except Exception:
                _logger.exception("on_progress failed")


def _oldest_to_compress(backend: Backend, conversation_id: str) -> datetime | None:
    """The time of the oldest message that may be compressed."""
    op: ops.ReadPage | None = ops.ReadPage(conversation_id, _OLDEST, newest=False, contents="none")
    while op is not None:
        page = backend.execute(op)
        for message in page.messages:
            if not stays(message) and not message.is_summary and message.timestamp is not None:
                return message.timestamp
        op = next_page(op, page, min(4 * op.limit, PAGE))
    return None
