"""How a history is sent to a store, and read from it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar, Unpack

from msgspec.structs import replace

from redis_history import requests
from redis_history._async._listing import read
from redis_history._async._runtime import Lock, LoopBound
from redis_history._async.store import AsyncHistoryStore
from redis_history._ids import check_conversation_id
from redis_history.backends import rules
from redis_history.backends.base import features
from redis_history.errors import (
    CompactionConflictError,
    InvalidInputError,
    MessageConflictError,
    MessageNotFoundError,
    OutcomeUnknownError,
    RedisHistoryError,
    RevisionConflictError,
    TornPairError,
)
from redis_history.history._replica import read_whole
from redis_history.history._steps import Add, Compaction, Rewrite
from redis_history.history.history import HistoryOptions
from redis_history.history.shared import SharedHistory
from redis_history.operations import Clear, Restore, Snapshot

__all__ = ["AsyncSaving"]

T = TypeVar("T")
#: Seconds in which the server certainly decides about a copy of a call.
_DECIDABLE: Final = 60.0
#: What no later attempt can mend.
_REFUSED = (
    MessageConflictError,
    RevisionConflictError,
    CompactionConflictError,
    MessageNotFoundError,
    InvalidInputError,
)


class AsyncSaving(SharedHistory):
    """A history and the store it talks to, when it is told to."""

    _store: AsyncHistoryStore

    def __init__(self, *, max_unsaved: int, **options: Unpack[HistoryOptions]) -> None:
        super().__init__(max_unsaved=max_unsaved, **options)
        self._sending = Lock()
        self._unanswered: tuple[list[Add], requests.Batch, float] | None = None
        self._sender: LoopBound | None = None  # where what holds the lock runs
        self._reading = Lock()  # what is read from the store is applied in the order of reading

    async def _exclusively(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do what only one may do at a time; then tell the handlers, which may want to do such a thing themselves."""
        try:
            async with self._sending:
                self._sender = LoopBound()
                return await work()
        finally:
            self._listeners.deliver()

    # Called inside of `_exclusively`

    async def _send_all(self) -> int:
        sent = 0
        while (step := self._next()) is not None:
            try:
                if isinstance(step, Rewrite):
                    await self._rewrite(step)
                else:
                    sent += await self._append(list(step))
            except _REFUSED as error:
                if not await self._is_done(step, error):
                    if not self._following:
                        if isinstance(step, Compaction):  # nothing is lost: the entries are as they were
                            self._refused([step])
                            self._stale = True
                        raise
                    await self._give_up(step, error)
            except BaseException:  # also a cancelled task
                if isinstance(step, Rewrite):
                    step.uncertain = True
                raise
        return sent

    async def _append(self, adds: list[Add]) -> int:
        """Send messages. If the last attempt got no answer, they are sent as the same call, so that they are not stored
        again if others deleted them since; later than the server can decide, as a new call."""
        assert self.conversation_id is not None  # noqa: S101
        unanswered, self._unanswered = self._unanswered, None
        since = time.monotonic()
        known = unanswered is not None and since - unanswered[2] < _DECIDABLE
        again = unanswered is not None and known and adds[: len(unanswered[0])] == unanswered[0]
        if unanswered is not None and again:
            adds, batch, since = unanswered
        else:
            batch = requests.append(
                self.conversation_id,
                [add.message for add in adds],
                expected_revision=None,
                must_exist=False,
                must_not_exist=False,
            )
        try:
            outcomes = await self._store._write(batch.op)
        except _REFUSED:
            raise
        except BaseException as error:  # also a cancelled task
            forgotten = isinstance(error, OutcomeUnknownError) and error.forgotten
            if forgotten and again:
                return await self._append(adds)
            if not forgotten:
                self._unanswered = adds, batch, since
            raise
        return self._appended(adds, [outcomes[place] for place in batch.order])

    async def _rewrite(self, step: Rewrite) -> None:
        assert self.conversation_id is not None  # noqa: S101
        if isinstance(step, Compaction):
            through, summary = step.removed[-1], step.summary
            if not features(self._store._backend).compacts:
                raise InvalidInputError("the backend of this store cannot compact, so a reduction cannot be saved")
            try:
                done = await self._store.compact(
                    self.conversation_id, through=through, summary=summary, seen=step.replaced
                )
            except TornPairError as error:  # a result has come since it was chosen
                raise rules.compaction_conflict(self.conversation_id, str(error)) from error
            step.stored = done.summary
            self._rewritten(step, done.revision, changed=done.changed)
            return
        op: Clear | Restore
        if step.target:
            op = requests.restore(self.conversation_id, step.target, expected_revision=step.seen)
        else:
            op = requests.clear(self.conversation_id, expected_revision=step.seen)
        revision = await self._store._write(replace(op, token=step.token))
        if step.uncertain:  # done by an earlier attempt perhaps, and others may have written since
            self._stale = True
        self._rewritten(step, revision, changed=revision != step.seen)

    async def _is_done(self, step: object, error: Exception) -> bool:
        """Whether a rewrite was refused because an earlier attempt had done it, without an answer."""
        if not (isinstance(step, Rewrite) and step.uncertain and isinstance(error, RevisionConflictError)):
            return False
        await self._catch_up()
        return step not in self._steps  # it left when its own change was met in the log

    async def _give_up(self, step: object, error: RedisHistoryError) -> None:
        """What autosave can never save: tell it, and go on with the rest."""
        if isinstance(step, Rewrite):
            self._refused([step])
            self._report(error, lost=True)
            await self._catch_up()
            return
        assert isinstance(step, list)  # noqa: S101
        adds: list[Add] = step
        if isinstance(error, MessageConflictError):
            adds = [add for add in adds if add.message.id == error.message_id] or adds
        self._refused(adds)
        self._report(error, lost=True)

    # All that is read from the store comes in here

    async def _catch_up(self) -> None:
        async with self._reading:
            await read(self._store._backend, self._changes_by_others())

    async def _whole(self, conversation_id: str) -> Snapshot:
        check_conversation_id(conversation_id)
        return await read(self._store._backend, read_whole(conversation_id))
