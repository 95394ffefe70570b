# Generated from ../_async by scripts/unasync: do not edit.
"""Compress one conversation: the lease, the summariser, the write, and what is reported in each case."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from msgspec.structs import replace

from redis_history import requests
from redis_history._sync._runtime import Signal, SummarizerCall, in_thread
from redis_history._sync.store import HistoryStore
from redis_history._validation import check_function
from redis_history.backends import rules
from redis_history.compaction.extractive import within
from redis_history.compaction.policy import Plan, due_at, older_at, wider
from redis_history.compaction.summaries import (
    NoGainError,
    Summarizer,
    SummaryTooLongError,
    always_allowed,
    check_summarizer,
    describe_error,
    read_summary,
    summary_limit,
    usable,
)
from redis_history.compaction.worker import CompressionProgress, CompressorOptions, Work, summary_room
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


class Compressing:
    def __init__(
        self,
        store: HistoryStore,
        summarizer: Summarizer,
        options: CompressorOptions,
        on_progress: Callable[[CompressionProgress], object] | None,
    ) -> None:
        if not isinstance(store, HistoryStore):
            raise ConfigurationError(f"a compressor needs an {HistoryStore.__name__}, not {store!r}")
        check_summarizer(summarizer)
        check_function(on_progress, "on_progress")
        self._options = options
        self._policy = options.policy
        self._store = store
        self._summarizer = summarizer
        self._on_progress = on_progress
        self._work = Work(options.first_wait, options.longest_wait, time.monotonic)
        self._stop_at: float | None = None

    def _one(self, conversation_id: str, revision: int, signal: Signal) -> None:
        """Compress one conversation. Its errors are reported; they do not stop the worker."""
        started = time.monotonic()
        lease: Lease | None = None
        rest: float | None = None

        def failed(kind: Any, error: Exception) -> None:
            seconds, text = time.monotonic() - started, describe_error(error)
            self._report(CompressionProgress(kind, conversation_id, seconds=seconds, wait=rest or 0.0, error=text))

        try:
            lease = self._store.backend.execute(TakeLease(conversation_id, self._options.lease))
            if lease is None:
                self._work.count(busy=1)
                rest = self._options.lease
                return
            progress = self._compress(lease, revision, signal, started)
            rest = progress.wait or None
            self._report(progress)
        except _StoppedError:
            self._work.done(conversation_id)
        except ConflictError as error:
            rest = self._options.first_wait
            # After losing the lease, the write may conflict with that of the next holder before it misses the lease.
            if isinstance(error, LeaseLostError) or (lease is not None and not self._keep(lease, 0.0)):
                self._work.count(leases_lost=1)
                failed("lease_lost", error)
            else:
                self._work.count(conflicts=1)
                failed("conflict", error)
            lease = None
        except Exception as error:  # noqa: BLE001 -- it is reported, and other conversations go on
            self._work.count(failed=1)
            rest = self._work.failed(conversation_id)
            failed("failed", error)
            _logger.warning("compressing %r failed: %s", conversation_id[:80], describe_error(error))
        except BaseException:  # this worker ends
            self._work.leave(conversation_id)
            raise
        finally:
            try:
                if lease is not None:
                    # Other processes also wait; a little less, so that this one is first.
                    self._keep(lease, 0.9 * (rest or 0.0))
            finally:
                if rest is not None:  # only now, or this process would meet its own lease
                    self._work.leave(conversation_id, rest)

    def _keep(self, lease: Lease, seconds: float) -> bool:
        """Let the lease end after `seconds`; whether it was still held."""
        try:
            return self._store.backend.execute(KeepLease(lease, seconds))
        except RedisHistoryError as error:  # the lease expires
            _logger.info("the lease on %r was not released: %s", lease.conversation_id[:80], error)
            return True

    def _compress(self, lease: Lease, revision: int, signal: Signal, started: float) -> CompressionProgress:
        conversation_id = lease.conversation_id
        messages = self._store.get(conversation_id)
        now = datetime.now(UTC)
        plans = wider(self._policy, lambda policy: policy.plan(messages, now=now), lambda plan: len(plan.seen))
        found = in_thread(lambda: next(plans, None))
        if found is None:
            self._work.count(nothing=1)
            due = in_thread(lambda: due_at(messages, self._policy, now))
            self._work.done(conversation_id)
            self._work.settle(conversation_id, revision, due)
            return CompressionProgress("nothing", conversation_id, seconds=time.monotonic() - started)
        before = sum(map(message_tokens, found.seen))
        self._report(CompressionProgress("started", conversation_id, len(found.seen), before))
        while True:
            try:
                summary = self._summary(found, messages, lease, signal)
                break
            except SummaryTooLongError as error:
                try:
                    found = in_thread(partial(plans.send, error))
                    continue
                except NoGainError:
                    pass
                except SummaryTooLongError:
                    raise SummaryError(str(error)) from error
                # Do not retry at this revision; after a change only after a while, because a summary costs money.
                self._work.count(nothing=1)
                wait = self._work.failed(conversation_id)
                self._work.settle(conversation_id, revision, older_at(messages, self._policy, now))
                seconds, count, text = time.monotonic() - started, len(found.seen), describe_error(error)
                return CompressionProgress("nothing", conversation_id, count, before, 0, seconds, wait, text)
        self._write(lease, found, summary)
        count, before, after = len(found.seen), sum(map(message_tokens, found.seen)), message_tokens(summary)
        self._work.count(compressed=1, messages=count, tokens_before=before, tokens_after=after)
        self._work.done(conversation_id)
        seconds = time.monotonic() - started
        return CompressionProgress("compressed", conversation_id, count, before, after, seconds)

    def _write(self, lease: Lease, found: Plan, summary: Message) -> None:
        """Write the summary if the summarised messages are unchanged and the lease is still held."""
        last = found.through.position
        assert last is not None  # noqa: S101 -- it was read from the store
        op = requests.compact(lease.conversation_id, last, summary, found.seen, expected_revision=None)
        try:
            self._store._write(replace(op, precondition=Precondition(lease=lease)))
        except TornPairError as error:  # a tool result arrived since the plan
            raise rules.compaction_conflict(lease.conversation_id, str(error)) from error

    def _summary(self, found: Plan, messages: list[Message], lease: Lease, signal: Signal) -> Message:
        """Call the summariser, and keep the lease meanwhile."""
        options = self._options
        kept = time.monotonic()
        ends = kept + options.timeout
        previous = None if found.previous is None else read_summary(found.previous)
        room = summary_room(messages, found, options.max_tokens)
        least = always_allowed(sum(map(message_tokens, messages)), options.max_tokens)
        summarizer = within(self._summarizer, summary_limit(sum(map(message_tokens, found.seen)), room, least))
        call = SummarizerCall(summarizer, (list(found.messages), previous), signal)
        try:
            while True:
                signal.clear()
                if call.done:
                    break
                now = time.monotonic()
                if now >= ends:
                    raise SummaryError(f"the summariser took longer than {options.timeout:g} seconds")
                if self._stop_at is not None and now >= self._stop_at:
                    raise _StoppedError
                if now >= kept + options.lease / 3:
                    if not self._store.backend.execute(KeepLease(lease, options.lease)):
                        raise LeaseLostError(
                            f"the lease on {lease.conversation_id[:80]!r} ended while it was being summarised"
                        )
                    kept = now
                until = min(ends, kept + options.lease / 3, ends if self._stop_at is None else self._stop_at)
                signal.wait(max(0.001, until - now))
            answer = call.result()
        finally:
            call.abandon()
        return usable(answer, found.seen, room, least=least)

    @property
    def _stopping(self) -> bool:
        return self._stop_at is not None

    def _report(self, progress: CompressionProgress) -> None:
        if self._on_progress is not None:
            try:
                self._on_progress(progress)
            except Exception:
                _logger.exception("on_progress failed")
