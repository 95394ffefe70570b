"""The compressor: it finds conversations that are too long, and replaces their older messages by summaries.

Its knowledge of the conversations is only a hint. A lease decides which process may compress a conversation; it
expires, so a killed process is replaced. The store rejects a summary if the summarised messages have changed or the
lease has ended.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from redis_history._async._compressing import AsyncCompressing
from redis_history._async._listing import scan_conversations
from redis_history._async._runtime import Job, Signal, ending, in_thread, spawn
from redis_history._async.store import AsyncHistoryStore
from redis_history._ids import rng
from redis_history._validation import check_integer
from redis_history.backends.base import AsyncFollowsAll, PendingWakeups
from redis_history.compaction.policy import KEEP_RECENT
from redis_history.compaction.summaries import Summarizer, describe_error, is_interrupt
from redis_history.compaction.worker import CompressionProgress, CompressorStats, Timing, compressor_policy
from redis_history.errors import CapabilityError, InvalidInputError, RedisHistoryError, StoreClosedError
from redis_history.model import Conversation
from redis_history.model.ranges import stays
from redis_history.operations import ListConversations, ReadConversation, ReadPage
from redis_history.paging import PAGE, next_page

_logger = logging.getLogger("redis_history")

#: Maximum seconds between checks whether to stop.
_CHECK: Final = 1.0
#: Minimum seconds between reads for changes, if changes are notified.
_NOTIFIED: Final = 1.0
#: Number of conversations in the first read for changes; more if all of them have changed.
_FIRST_LOOK: Final = 32
#: Number of recently changed conversations to remember, so that a read need not go further back.
_KNOWN: Final = 1_000
#: Number of messages in the first read for the oldest message that may be compressed.
_OLDEST: Final = 32


class AsyncCompressor(AsyncCompressing):
    """Keeps the conversations of a store short: `await compressor.run()`, in one or several processes.

    A conversation is compressed when it has more than `max_tokens` or `max_messages`, or messages `older_than` (seconds
    or a timedelta). It shrinks to at most `target` times these limits, so that the next message does not exceed them.
    The limits hold afterwards whenever a summary can achieve this. System messages, the turn in progress and tool calls
    that wait for results always stay; the `keep_recent` newest messages stay if the limits allow it.

    While `summarizer` runs, only the lease on that conversation is held, for `lease` seconds at a time; after `timeout`
    seconds the attempt fails. If a summary is too long, the summarizer is called again with more messages.

    Changed conversations are read every `look_interval` seconds, all of them every `sweep_interval`; at most
    `concurrency` are compressed at once. After a failure, no process retries the conversation for `first_wait` seconds,
    twice as long each time up to `longest_wait`. `stop` gives running attempts `grace` seconds. `on_progress` is called
    with each `CompressionProgress`; it must not block. Raises ConfigurationError.
    """

    def __init__(
        self,
        store: AsyncHistoryStore,
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
        check_integer(concurrency, "concurrency", 1)
        policy = compressor_policy(max_tokens, max_messages, older_than, target, keep_recent)
        timing = Timing(timeout, lease, look_interval, sweep_interval, first_wait, longest_wait, grace)
        super().__init__(store, summarizer, policy, timing, on_progress)
        self._concurrency = concurrency
        self._signals: list[Signal] = []
        self._workers: set[Signal] = set()
        self._running = False
        self._ended_by: BaseException | None = None  # the error that ended a worker
        self._known: dict[str, int] = {}  # revisions of recently read conversations, the newest first

    @property
    def stats(self) -> CompressorStats:
        """The counters so far. Thread-safe."""
        return self._work.stats

    async def run(self) -> CompressorStats:
        """Work until `stop`, and return what was done. Failures of the server are logged and retried.

        Raises StoreClosedError if the store is closed meanwhile, and CapabilityError."""
        return await self._run(self._keep_looking)

    async def run_once(self) -> CompressorStats:
        """Compress what is too long now, and return what was done. Skips conversations that fail or that another
        process compresses. Raises the error of a failed search for conversations."""
        return await self._run(self._look_once)

    def stop(self) -> None:
        """End `run`, or the next one if none runs. No new attempt begins, and running ones have `grace` seconds; after
        a second call none. May be called from signal handlers and any thread."""
        now = time.monotonic()
        self._stop_at = now if self._stop_at is not None else now + self._timing.grace
        self._work.clear()
        self._wake()

    async def preview(self) -> list[CompressionProgress]:
        """The conversations that would be compressed. Takes no lease and changes nothing."""
        planned: dict[str, CompressionProgress] = {}
        async for page in scan_conversations(self._store.backend):
            for conversation in await self._too_long([one for one in page if one.conversation_id not in planned]):
                name = conversation.conversation_id
                messages = await self._store.get(name)
                plan = await in_thread(partial(self._policy.plan, messages))
                if plan is not None:
                    planned[name] = CompressionProgress("planned", name, len(plan.seen), plan.tokens)
                    self._report(planned[name])
        return [*planned.values()]

    # Finding work

    async def _run(self, look: Callable[[Signal], Any]) -> CompressorStats:
        if self._running:
            raise InvalidInputError("this compressor runs already")
        self._store._check_compacts()
        self._running = True
        self._ended_by = None
        control = Signal()
        signals = [Signal() for _ in range(self._concurrency)]
        self._workers = set(signals)
        self._signals = [control, *signals]
        jobs: list[Job] = [spawn(self._worker(one, control), "redis_history-compress") for one in signals]
        try:
            await look(control)
            if not self._stopping:
                self.stop()
            while self._workers:
                await control.wait(_CHECK)
                control.clear()
            self._check_workers()
        finally:
            if self._workers:  # an error, or the task was cancelled
                self._stop_at = time.monotonic()
                self._wake()
            for job in jobs:
                await job.stop()
            self._signals = []
            self._running, self._stop_at = False, None
        return self.stats

    async def _look_once(self, control: Signal) -> None:
        self._work.take_rested()
        while await self._sweep(rested=False) and not self._stopping:
            while not self._work.idle and not self._stopping:
                self._check_workers()
                await control.wait(_CHECK)
                control.clear()

    async def _keep_looking(self, control: Signal) -> None:
        wakeups = PendingWakeups(control.set)
        backend = self._store.backend
        if not isinstance(backend, AsyncFollowsAll):
            await self._look_repeatedly(control, wakeups)
            return
        try:
            try:
                await backend.watch_all(wakeups.add)
            except RedisHistoryError as error:  # it still reads changes every `look_interval`
                _logger.warning("a compressor gets no notifications of changes: %s", error)
            await self._look_repeatedly(control, wakeups)
        finally:
            await backend.unwatch_all(wakeups.add)

    async def _look_repeatedly(self, control: Signal, wakeups: PendingWakeups) -> None:
        timing = self._timing
        sweep_at = look_at = looked = time.monotonic()
        while not self._stopping and not ending():
            self._check_workers()
            control.clear()  # before taking wake-ups: a later one sets it again
            now = time.monotonic()
            if any(wakeups.take()):
                look_at = min(look_at, looked + min(_NOTIFIED, timing.look_interval))
            try:
                if now >= sweep_at:
                    sweep_at = now + timing.sweep_interval * rng.uniform(0.9, 1.1)
                    look_at, looked = now + timing.look_interval, now
                    await self._sweep()
                elif now >= look_at:
                    look_at, looked = now + timing.look_interval, now
                    await self._look()
                await self._look_at(self._work.take_rested())
            except (StoreClosedError, CapabilityError):  # no later attempt can succeed
                raise
            except RedisHistoryError as error:
                _logger.warning("looking for conversations to compress: %s", error)
                sweep_at = look_at
            wait = min(sweep_at, look_at) - time.monotonic()
            retry = self._work.seconds_to_retry
            await control.wait(max(0.0, wait if retry is None else min(wait, retry)))

    async def _sweep(self, *, rested: bool = True) -> int:
        """Check all conversations; how many are too long."""
        self._remember(await self._list(_KNOWN))  # first, so that `_look` finds what changes from now on
        new = 0
        async for page in scan_conversations(self._store.backend):
            new += await self._found(page, rested)
            if self._stopping:
                break
        self._work.count(sweeps=1)
        return new

    async def _look(self) -> None:
        """Check the conversations that have changed since the last time, at most `_KNOWN`. The next sweep finds the
        others."""
        limit = _FIRST_LOOK
        while True:
            found = await self._list(limit)
            new = [self._known.get(one.conversation_id) != one.revision for one in found]
            if len(found) < limit or limit >= _KNOWN or not any(new[limit // 2 :]):
                break
            limit = min(4 * limit, _KNOWN)
        changed = [one for one, is_new in zip(found, new, strict=True) if is_new]
        self._remember(changed)
        await self._found(changed)
        self._work.count(looks=1)

    async def _look_at(self, conversation_ids: Sequence[str]) -> None:
        found = [await self._store.backend.execute(ReadConversation(name)) for name in conversation_ids]
        there = [one for one in found if one is not None]
        self._remember(there)
        await self._found(there)

    async def _list(self, limit: int) -> list[Conversation]:
        return await self._store.backend.execute(ListConversations(None, None, limit, 0))

    def _remember(self, conversations: Sequence[Conversation]) -> None:
        newest = {one.conversation_id: one.revision for one in conversations[:_KNOWN]}
        for name, revision in self._known.items():
            if len(newest) >= _KNOWN:
                break
            newest.setdefault(name, revision)
        self._known = newest

    async def _found(self, conversations: Sequence[Conversation], rested: bool = True) -> int:
        new = self._work.offer(await self._too_long(conversations), rested=rested)
        if new:
            self._wake()
        return new

    async def _too_long(self, conversations: Sequence[Conversation]) -> list[Conversation]:
        over = [one for one in conversations if self._is_over(one) or await self._is_old(one)]
        rng.shuffle(over)  # so that processes do not all begin with the same one
        return over

    def _is_over(self, conversation: Conversation) -> bool:
        max_tokens, max_messages = self._policy.max_tokens, self._policy.max_messages
        return (max_tokens is not None and conversation.tokens > max_tokens) or (
            max_messages is not None and conversation.message_count > max_messages
        )

    async def _is_old(self, conversation: Conversation) -> bool:
        """Whether the oldest message that may be compressed is too old. If not, remember until when."""
        age = self._policy.older_than
        if not isinstance(age, timedelta) or not conversation.message_count or self._work.is_young(conversation):
            return False
        gets_old: datetime | None = None
        op: ReadPage | None = ReadPage(conversation.conversation_id, _OLDEST, newest=False)
        while op is not None and gets_old is None:
            page = await self._store.backend.execute(op)
            for message in page.messages:
                if not stays(message) and not message.is_summary and message.timestamp is not None:
                    gets_old = message.timestamp + age
                    break
            op = next_page(op, page, min(4 * op.limit, PAGE))
        if gets_old is not None and gets_old < datetime.now(UTC):
            return True
        self._work.set_young(conversation, gets_old)
        return False

    def _worker(self, signal: Signal, control: Signal) -> Callable[[], Any]:
        async def work() -> None:
            try:
                while not self._stopping and not ending():
                    signal.clear()
                    job = self._work.take()
                    if job is None:
                        await signal.wait(_CHECK)
                        continue
                    await self._compress(*job, signal)
                    control.set()
            except BaseException as error:
                self._ended_by = self._ended_by or error  # `_check_workers` raises it
                if ending() or is_interrupt(error):
                    raise
            finally:
                self._workers.discard(signal)
                control.set()

        return work

    @property
    def _stopping(self) -> bool:
        return self._stop_at is not None

    def _check_workers(self) -> None:
        """Raises RuntimeError if a worker has ended by an error."""
        if self._ended_by is not None and not ending():
            raise RuntimeError(f"compressing ended: {describe_error(self._ended_by)}") from self._ended_by

    def _wake(self) -> None:
        for signal in list(self._signals):
            signal.set()
