# Generated from ../_async by scripts/unasync: do not edit.
"""How a history is sent to a store, and read from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, Unpack

from redis_history._sync._runtime import Lock
from redis_history._sync.reading import PAGE
from redis_history._sync.store import HistoryStore
from redis_history.backends import refusals
from redis_history.errors import (
    BackendUnavailableError,
    CapabilityError,
    CompactionConflictError,
    InvalidInputError,
    MessageConflictError,
    MessageNotFoundError,
    RedisHistoryError,
    RevisionConflictError,
    TornPairError,
)
from redis_history.events import Reset
from redis_history.history._replica import position_in_store
from redis_history.history._steps import Add, Compaction, Rewrite
from redis_history.history.history import HistoryOptions
from redis_history.history.shared import SharedHistory
from redis_history.operations import ReadChanges, Snapshot
from redis_history.requests import MAX_BATCH_MESSAGES

__all__ = ["Saving"]

T = TypeVar("T")
#: What no later attempt can mend.
_REFUSED = (MessageConflictError, RevisionConflictError, CompactionConflictError, MessageNotFoundError, CapabilityError)


class Saving(SharedHistory):
    """A history and the store it talks to, when it is told to."""

    _store: HistoryStore

    def __init__(self, *, max_unsaved: int, **options: Unpack[HistoryOptions]) -> None:
        super().__init__(max_unsaved=max_unsaved, **options)
        self._sending = Lock()

    def _exclusively(self, work: Callable[[], T]) -> T:
        """Do what only one may do at a time; then tell the handlers, which may want to do such a thing themselves."""
        try:
            with self._sending:
                return work()
        finally:
            self._listeners.deliver()

    # Called inside of `_exclusively`

    def _send_all(self) -> int:
        sent = 0
        while (step := self._next()) is not None:
            try:
                if isinstance(step, Rewrite):
                    self._rewrite(step)
                else:
                    assert self.conversation_id is not None  # noqa: S101
                    messages = [add.message for add in step]
                    sent += self._appended(step, self._store.append_many(self.conversation_id, messages))
            except BackendUnavailableError:
                if isinstance(step, Rewrite):
                    step.uncertain = True
                raise
            except (*_REFUSED, InvalidInputError) as error:
                if not self._is_done(step, error):
                    if not self._following:
                        if isinstance(step, Compaction):  # nothing is lost: the entries are as they were
                            self._refused([step])
                            self._stale = True
                        raise
                    self._give_up(step, error)
        return sent

    def _rewrite(self, step: Rewrite) -> None:
        assert self.conversation_id is not None  # noqa: S101
        if isinstance(step, Compaction):
            through, summary = step.removed[-1], step.summary
            try:
                done = self._store.compact(self.conversation_id, through=through, summary=summary, seen=step.replaced)
            except TornPairError as error:  # a result has come since it was chosen
                raise refusals.compaction_conflict(self.conversation_id, str(error)) from error
            step.stored = done.summary
            self._rewritten(step, done.revision, changed=done.changed)
            return
        if step.target is not None:
            expected = step.seen
            if step.target:
                revision = self._store.restore(self.conversation_id, step.target, expected_revision=expected)
            else:
                revision = self._store.clear(self.conversation_id, expected_revision=expected)
            self._rewritten(step, revision, changed=revision != expected)
            return
        changed = False
        for start in range(0, len(step.removed), MAX_BATCH_MESSAGES):
            ids = step.removed[start : start + MAX_BATCH_MESSAGES]
            if self._store.delete_messages(self.conversation_id, ids, expected_revision=step.seen):
                self._partly_rewritten(step)
                changed = True
        self._rewritten(step, step.seen, changed=changed)

    def _is_done(self, step: object, error: Exception) -> bool:
        """Whether a rewrite was refused because an earlier attempt had done it, without an answer."""
        if not (isinstance(step, Rewrite) and step.uncertain and isinstance(error, RevisionConflictError)):
            return False
        assert self.conversation_id is not None  # noqa: S101
        snapshot = self._whole(self.conversation_id)
        if not step.is_done_in(snapshot.messages):
            return False
        self._refused([step])
        self._read_again(snapshot)
        return True

    def _give_up(self, step: object, error: RedisHistoryError) -> None:
        """What autosave can never save: tell it, and go on with the rest."""
        if isinstance(step, Rewrite):
            self._refused([step])
            self._report(error, lost=True)
            self._read_anew()
            return
        assert isinstance(step, list)  # noqa: S101
        adds: list[Add] = step
        if isinstance(error, MessageConflictError):
            adds = [add for add in adds if add.message.id == error.message_id] or adds
        self._refused(adds)
        self._report(error, lost=True)

    def _catch_up(self) -> None:
        """Read what others have changed."""
        assert self.conversation_id is not None  # noqa: S101
        while True:
            cursor = self._resume_at()
            if cursor is None:
                self._read_anew()
                return
            changes = self._store._backend.execute(ReadChanges(self.conversation_id, cursor))
            odd = self._apply(changes.events)
            if odd is not None:
                self._read_anew(odd.reason if isinstance(odd, Reset) else None)
                return
            if not changes.more:
                break
        self._caught_up()

    def _read_anew(self, reason: str | None = None) -> None:
        assert self.conversation_id is not None  # noqa: S101
        self._read_again(self._whole(self.conversation_id), reason)

    def _whole(self, conversation_id: str) -> Snapshot:
        """All messages, and a cursor: the state is that of the cursor, or of a moment after it.

        A long conversation is read in steps, so that no single one holds the server. Events after the cursor may tell
        of what is here already, which does no harm: in the end it is the state of the last of them.
        """
        snapshot = self._store.snapshot(conversation_id, limit=PAGE)
        if snapshot.message_count == len(snapshot.messages):
            return snapshot
        # By id: what is deleted and appended again meanwhile may be met at both of its places.
        found = {message.id: message for message in self._store.iter(conversation_id, batch=PAGE)}
        messages = sorted(found.values(), key=position_in_store)
        return Snapshot(messages, snapshot.cursor, len(messages))
