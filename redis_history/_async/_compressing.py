"""Compress one conversation: the lease, the summariser, the write, and what is reported in each case."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Literal

from msgspec.structs import replace

from redis_history import requests
from redis_history._async._attempt import Attempt
from redis_history._async._runtime import Signal, in_thread
from redis_history._async.store import AsyncHistoryStore
from redis_history._validation import check_function
from redis_history.backends import rules
from redis_history.compaction.extractive import within
from redis_history.compaction.policy import Plan, Policy, due_at, older_at, wider
from redis_history.compaction.summaries import (
    NoGainError,
    Summarizer,
    SummaryTooLongError,
    check_summarizer,
    describe_error,
    read_summary,
    summary_limit,
    usable,
)
from redis_history.compaction.worker import CompressionProgress, Timing, Work
from redis_history.errors import (
    ConfigurationError,
    ConflictError,
    LeaseLostError,
    RedisHistoryError,
    SummaryError,
    TornPairError,
)
from redis_history.model import Message
from redis_history.operations import KeepLease, Lease, Precondition, TakeLease
from redis_history.tokens import message_tokens

_logger = logging.getLogger("redis_history")


class _StoppedError(Exception):
    """The compressor ended before the summary was ready."""


class AsyncCompressing:
    def __init__(
        self,
        store: AsyncHistoryStore,
        summarizer: Summarizer,
        policy: Policy,
        timing: Timing,
        on_progress: Callable[[CompressionProgress], object] | None,
    ) -> None:
        if not isinstance(store, AsyncHistoryStore):
            raise ConfigurationError(f"a compressor needs an {AsyncHistoryStore.__name__}, not {store!r}")
        check_summarizer(summarizer)
        check_function(on_progress, "on_progress")
        self._store = store
        self._summarizer = summarizer
        self._policy = policy
        self._timing = timing
        self._on_progress = on_progress
        self._work = Work(timing.first_wait, timing.longest_wait)
        self._stop_at: float | None = None

    async def _compress(self, conversation_id: str, revision: int, signal: Signal) -> None:
        """Compress one conversation. Its errors are reported; they do not stop the worker."""
        started = time.monotonic()
        lease: Lease | None = None
        rest: float | None = None
        try:
            try:
                lease = await self._store.backend.execute(TakeLease(conversation_id, self._timing.lease))
                if lease is None:
                    self._work.count(busy=1)
                    rest = self._timing.lease
                    return
                progress = await self._attempt(lease, revision, signal)
            except _StoppedError:
                self._work.succeeded(conversation_id)
                return
            except Exception as error:  # noqa: BLE001 -- it is reported, and other conversations go on
                progress = await self._failure(conversation_id, lease, error)
                lease = None if isinstance(error, ConflictError) else lease
            rest = progress.wait or None
            self._report(replace(progress, seconds=time.monotonic() - started))
        except BaseException:  # this worker ends
            self._work.release(conversation_id)
            raise
        finally:
            try:
                if lease is not None:
                    # Other processes also wait; a little less, so that this one is first.
                    await self._keep(lease, 0.9 * (rest or 0.0))
            finally:
                if rest is not None:  # only now, or this process would meet its own lease
                    self._work.release(conversation_id, rest)

    async def _failure(self, conversation_id: str, lease: Lease | None, error: Exception) -> CompressionProgress:
        kind: Literal["lease_lost", "conflict", "failed"] = "failed"
        if isinstance(error, ConflictError):
            # After losing the lease, the write may conflict with that of the next holder before it misses the lease.
            lost = isinstance(error, LeaseLostError) or (lease is not None and not await self._keep(lease, 0.0))
            kind = "lease_lost" if lost else "conflict"
            self._work.count(**{"leases_lost" if lost else "conflicts": 1})
            wait = self._timing.first_wait
        else:
            self._work.count(failed=1)
            wait = self._work.failed(conversation_id)
            _logger.warning("compressing %r failed: %s", conversation_id[:80], describe_error(error))
        return CompressionProgress(kind, conversation_id, wait=wait, error=describe_error(error))

    async def _keep(self, lease: Lease, seconds: float) -> bool:
        """Let the lease end after `seconds`; whether it was still held."""
        try:
            return await self._store.backend.execute(KeepLease(lease, seconds))
        except RedisHistoryError as error:  # the lease expires
            _logger.info("the lease on %r was not released: %s", lease.conversation_id[:80], error)
            return True

    async def _attempt(self, lease: Lease, revision: int, signal: Signal) -> CompressionProgress:
        conversation_id = lease.conversation_id
        messages = await self._store.get(conversation_id)
        now = datetime.now(UTC)
        plans = wider(self._policy, lambda policy: policy.plan(messages, now=now))
        plan = await in_thread(lambda: next(plans, None))
        if plan is None:
            self._work.count(nothing=1)
            due = await in_thread(lambda: due_at(messages, self._policy, now))
            self._work.succeeded(conversation_id)
            self._work.settle(conversation_id, revision, due)
            return CompressionProgress("nothing", conversation_id)
        summary: Message | None = None
        self._report(CompressionProgress("started", conversation_id, len(plan.seen), plan.tokens))
        try:
            while summary is None:
                try:
                    summary = await self._summarize(plan, messages, lease, signal)
                except SummaryTooLongError as error:
                    plan = await in_thread(partial(plans.send, error))
        except NoGainError as error:
            # Do not retry at this revision; after a change only after a while, because a summary costs money.
            self._work.count(nothing=1)
            wait = self._work.failed(conversation_id)
            self._work.settle(conversation_id, revision, older_at(messages, self._policy, now))
            return CompressionProgress(
                "nothing", conversation_id, len(plan.seen), plan.tokens, wait=wait, error=describe_error(error)
            )
        except SummaryTooLongError as error:
            raise SummaryError(str(error)) from error
        await self._write(lease, plan, summary)
        count, after = len(plan.seen), message_tokens(summary)
        self._work.count(compressed=1, messages=count, tokens_before=plan.tokens, tokens_after=after)
        self._work.succeeded(conversation_id)
        return CompressionProgress("compressed", conversation_id, count, plan.tokens, after)

    async def _write(self, lease: Lease, plan: Plan, summary: Message) -> None:
        """Write the summary if the summarised messages are unchanged and the lease is still held."""
        last = plan.through.position
        assert last is not None  # noqa: S101 -- it was read from the store
        op = requests.compact(lease.conversation_id, last, summary, plan.seen, expected_revision=None)
        try:
            await self._store._write(replace(op, precondition=Precondition(lease=lease)))
        except TornPairError as error:  # a tool result arrived since the plan
            raise rules.compaction_conflict(lease.conversation_id, str(error)) from error

    async def _summarize(self, plan: Plan, messages: list[Message], lease: Lease, signal: Signal) -> Message:
        """Call the summariser, and keep the lease meanwhile."""
        timing = self._timing
        kept = time.monotonic()
        ends = kept + timing.timeout
        limit = summary_limit(messages, plan.seen, self._policy.max_tokens)
        previous = None if plan.previous is None else read_summary(plan.previous)
        attempt = Attempt(within(self._summarizer, limit), (list(plan.messages), previous), signal)
        try:
            while True:
                signal.clear()
                if attempt.finished:
                    break
                now = time.monotonic()
                if now >= ends:
                    raise SummaryError(f"the summariser took longer than {timing.timeout:g} seconds")
                if self._stop_at is not None and now >= self._stop_at:
                    raise _StoppedError
                if now >= kept + timing.lease / 3:
                    if not await self._store.backend.execute(KeepLease(lease, timing.lease)):
                        raise LeaseLostError(
                            f"the lease on {lease.conversation_id[:80]!r} ended while it was being summarised"
                        )
                    kept = now
                until = min(ends, kept + timing.lease / 3, ends if self._stop_at is None else self._stop_at)
                await signal.wait(max(0.001, until - now))
            answer = attempt.outcome()
        finally:
            await attempt.leave()
        return usable(answer, plan.seen, limit)

    def _report(self, progress: CompressionProgress) -> None:
        if self._on_progress is not None:
            try:
                self._on_progress(progress)
            except Exception:
                _logger.exception("on_progress failed")
