"""Send the pending changes of a history to a store, and read what others have changed there."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from msgspec.structs import replace

from redis_history import requests
from redis_history._async._listing import read
from redis_history._async._runtime import Lock, LoopBound
from redis_history._async.store import AsyncHistoryStore
from redis_history.backends import rules
from redis_history.backends.base import features
from redis_history.errors import (
    CapabilityError,
    CompactionConflictError,
    InvalidInputError,
    MessageConflictError,
    MessageNotFoundError,
    OutcomeUnknownError,
    RedisHistoryError,
    RevisionConflictError,
    TornPairError,
)
from redis_history.history._listeners import Listeners
from redis_history.history._outbox import Add, Compaction, Rewrite
from redis_history.history._replica import read_whole
from redis_history.history._syncer import Syncer
from redis_history.operations import Clear, Restore

T = TypeVar("T")
_logger = logging.getLogger("redis_history")

#: Seconds in which the server certainly recognises a repeated call.
_RECOGNISED: Final = 60.0
#: Failures kept for `flush`.
_FAILURES: Final = 100
#: Errors that no later attempt can prevent.
_FINAL: Final = (
    MessageConflictError,
    RevisionConflictError,
    CompactionConflictError,
    MessageNotFoundError,
    InvalidInputError,
)


class AsyncSaver:
    """The driver of a `Syncer`: one call sends at a time, and replies are applied in the order of reading."""

    def __init__(self, store: AsyncHistoryStore, syncer: Syncer, listeners: Listeners) -> None:
        self._store = store
        self._syncer = syncer
        self._listeners = listeners
        self._unanswered: tuple[list[Add], requests.Batch, float] | None = None
        self._sender: LoopBound | None = None  # where the holder of the lock runs
        self.failures: deque[RedisHistoryError] = deque(maxlen=_FAILURES)
        self.renew_locks()

    def renew_locks(self) -> None:
        self.sending, self._reading = Lock(), Lock()

    async def exclusively(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do this while nothing else is sent. Then call the handlers, which may send something themselves."""
        try:
            async with self.sending:
                self._sender = LoopBound()
                return await work()
        finally:
            self._listeners.deliver()

    async def send_rest(self) -> None:
        """Send what is pending when the interpreter or the event loop ends."""
        if self._sender is not None and self._sender.stopped:  # its task would hold the lock forever
            self.sending = Lock()
        try:
            await self.exclusively(self.send_all)
        except RedisHistoryError as error:
            self.report(error, lost=True)
            self._listeners.deliver()

    def report(self, error: RedisHistoryError, *, lost: bool = False) -> None:
        """Post a failure as an event. `lost`: `flush` raises it too, because no later attempt can succeed."""
        if lost:
            self.failures.append(error)
        if self._listeners.wants("error"):
            self._listeners.post("error", error)
        else:
            _logger.warning("saving or following %r: %s", str(self._syncer.conversation_id)[:80], error)

    async def catch_up(self) -> None:
        async with self._reading:
            await read(self._store.backend, self._syncer.changes_by_others())

    # Called inside `exclusively`

    async def load(self, conversation_id: str) -> None:
        async with self._reading:
            self._syncer.load(conversation_id, await read(self._store.backend, read_whole(conversation_id)))

    async def save(self, conversation_id: str) -> int:
        if conversation_id != self._syncer.conversation_id:
            self._syncer.bind(conversation_id)
        sent = await self.send_all()
        if not self._syncer.following:
            await self.catch_up()
        return sent

    async def send_all(self) -> int:
        """Send all pending changes; how many messages were new to the store."""
        sent = 0
        while (change := self._syncer.next()) is not None:
            try:
                if isinstance(change, Rewrite):
                    await self._rewrite(change)
                else:
                    sent += await self._append(change)
            except (*_FINAL, CapabilityError) as error:
                if isinstance(error, CapabilityError) and self._can_make(change):
                    raise  # the server may get the replicas that it lacks
                if not await self._was_made(change, error):
                    if not self._syncer.following:
                        if isinstance(change, Compaction):  # nothing is lost: the entries are as they were
                            self._syncer.rejected([change])
                        raise
                    await self._give_up(change, error)
            except BaseException:  # also a cancelled task
                if isinstance(change, Rewrite):
                    change.uncertain = True
                raise
        return sent

    async def _append(self, adds: list[Add]) -> int:
        """Send messages. If the last attempt got no answer, repeat the same call, so that messages that others deleted
        since are not stored again. After `_RECOGNISED` seconds, send a new call."""
        unanswered, self._unanswered = self._unanswered, None
        since = time.monotonic()
        again = (
            unanswered is not None
            and since - unanswered[2] < _RECOGNISED
            and adds[: len(unanswered[0])] == unanswered[0]
        )
        if unanswered is not None and again:
            adds, batch, since = unanswered
        elif adds := self._syncer.without_deleted(adds):
            batch = requests.append(self._syncer.bound_id, [add.message for add in adds], expected_revision=None)
        else:
            return 0
        try:
            outcomes = await self._store._write(batch.op)
        except _FINAL:
            raise
        except BaseException as error:  # also a cancelled task
            forgotten = isinstance(error, OutcomeUnknownError) and error.forgotten
            if forgotten and again:
                return await self._append(adds)
            if not forgotten:
                self._unanswered = adds, batch, since
            raise
        return self._syncer.appended(adds, [outcomes[index] for index in batch.order])

    async def _rewrite(self, change: Rewrite) -> None:
        conversation_id = self._syncer.bound_id
        if isinstance(change, Compaction):
            try:
                done = await self._store.compact(
                    conversation_id, through=change.replaced[-1].id, summary=change.summary, seen=change.replaced
                )
            except TornPairError as error:  # a tool result arrived since it was planned
                raise rules.compaction_conflict(conversation_id, str(error)) from error
            self._syncer.rewritten(change, done.revision, changed=done.changed)
            return
        op: Clear | Restore = Clear(conversation_id, requests.precondition(change.seen))
        if change.target:
            op = requests.restore(conversation_id, change.target, expected_revision=change.seen)
        revision = await self._store._write(replace(op, token=change.token))
        self._syncer.rewritten(change, revision, changed=revision != change.seen)

    def _can_make(self, change: list[Add] | Rewrite) -> bool:
        return features(self._store.backend).compacts or not isinstance(change, Compaction)

    async def _was_made(self, change: list[Add] | Rewrite, error: Exception) -> bool:
        """Whether a rewrite was refused because an earlier attempt without an answer had made it."""
        if not (isinstance(change, Rewrite) and change.uncertain and isinstance(error, RevisionConflictError)):
            return False
        await self.catch_up()
        return change not in self._syncer.outbox  # it left when its own event was read

    async def _give_up(self, change: list[Add] | Rewrite, error: RedisHistoryError) -> None:
        """Report what autosave can never save, and go on with the rest."""
        changes = [change] if isinstance(change, Rewrite) else change
        if isinstance(error, MessageConflictError) and isinstance(change, list):
            changes = [add for add in change if add.message.id == error.message_id] or change
        self._syncer.rejected(changes)
        self.report(error, lost=True)
        if isinstance(change, Rewrite):
            await self.catch_up()
