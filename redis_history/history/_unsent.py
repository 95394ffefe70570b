"""What was done to a history here and is still to be sent to a store, or to be seen there. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Sequence
from typing import Literal, Unpack

from msgspec.structs import replace

from redis_history import requests
from redis_history._validation import check_integer
from redis_history.errors import InvalidInputError, RedisHistoryError, UnsavedLimitError
from redis_history.history._replica import Replica
from redis_history.history._steps import Add, Compaction, Rewrite, Step, summary_and_replaced
from redis_history.history.history import History, HistoryOptions
from redis_history.model import Message
from redis_history.model.ranges import stays
from redis_history.model.wire import encode_body
from redis_history.operations import Appended
from redis_history.requests import MAX_BATCH_BYTES, MAX_BATCH_MESSAGES

__all__ = ["MAX_UNSAVED_BYTES", "Unsent"]

#: Of messages that wait for the server, as stored, while a history saves by itself.
MAX_UNSAVED_BYTES = 64_000_000
_FAILURES = 100


class Unsent(History):
    """The steps of a history, from being done here to being acknowledged."""

    _EVENTS = (*History._EVENTS, "error")

    def __init__(self, *, max_unsaved: int, **options: Unpack[HistoryOptions]) -> None:
        check_integer(max_unsaved, "max_unsaved", 1)
        super().__init__(**options)
        self.conversation_id: str | None = None
        self._max_unsaved = max_unsaved
        self._following = False
        self._failures: deque[RedisHistoryError] = deque(maxlen=_FAILURES)
        self._replica = Replica()
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._steps: list[Step] = []
        self._unsaved_count = 0
        self._unsaved_bytes = 0
        self._hidden: set[str] = set()  # left because of the bounds, and not stored yet
        self._left_out: set[str] = set()  # left because of a reduction; the store keeps them
        self._seen = 0  # up to this revision the entries are what the store has, own changes included
        self._own: set[int] = set()  # own changes beyond that
        self._stale = False  # somebody else has made a change that is not here

    @property
    def unsaved(self) -> list[Message]:
        """Messages added here that the store has not acknowledged; of a history that was never saved, all."""
        with self._lock:
            if self.conversation_id is None:
                return list(self._entries)
            return [step.message for step in self._steps if isinstance(step, Add) and step.revision is None]

    # Local changes, called with the lock held

    def _wake(self) -> None:
        """Something is to be sent."""

    def _adding(self, message: Message, size: int) -> None:
        if self.conversation_id is None:
            return
        self._check_room(size)
        self._left_out.discard(message.id)
        self._steps.append(Add(message, size))
        self._count(1, size)
        self._wake()

    def _check_room(self, size: int) -> None:
        full = self._unsaved_count >= self._max_unsaved or self._unsaved_bytes + size > MAX_UNSAVED_BYTES
        if self._following and full:
            raise UnsavedLimitError(
                f"{self._unsaved_count:,} messages and rewrites of {self._unsaved_bytes:,} bytes wait for the server "
                "already; this one was not taken"
            )

    def _rewriting(self, how: Literal["replace", "reduce"], entries: list[Message]) -> None:
        if self.conversation_id is not None:
            step = self._reducing_step(entries) if how == "reduce" else self._replacing_step(entries)
            if step is not None:
                self._check_room(step.size)
                self._steps.append(step)
                self._count(1, step.size)
                self._wake()
            names = {entry.id for entry in entries}
            self._hidden -= names
            self._left_out -= names
        super()._rewriting(how, entries)

    def _replacing_step(self, entries: list[Message]) -> Rewrite:
        assert self.conversation_id is not None  # noqa: S101
        step = Rewrite(self._seen, entries)
        op = requests.restore(self.conversation_id, step.target, expected_revision=None)  # raises if it would not fit
        step.size = sum(len(entry.body) for entry in op.entries)
        return step

    def _reducing_step(self, entries: list[Message]) -> Rewrite | None:
        """A reduction takes nothing from the store: what a summary replaces goes to the archive, and what is only left
        out stays stored and is not shown here."""
        summary, replaced = summary_and_replaced(self._entries, entries)
        gone = {entry.id for entry in self._entries} - {entry.id for entry in entries}
        if summary is None:
            self._left_out |= gone
            return None
        if not self._replica.whole:
            raise InvalidInputError(
                "this history holds only the newest part of its conversation, so a plugin cannot rewrite it: "
                "load it without max_length and max_tokens"
            )
        if not summary.is_summary:
            summary = replace(summary, metadata={**summary.metadata, "is_summary": True})
        self._left_out |= gone.difference(entry.id for entry in replaced)
        stored = self._composed()  # entries that are not shown are stored between the others
        last = next(index for index, entry in enumerate(stored) if entry.id == replaced[-1].id)
        step = Compaction(self._seen, summary, [entry for entry in stored[: last + 1] if not stays(entry)])
        step.size = len(encode_body(summary))
        return step

    def _trimmed(self, gone: list[Message]) -> None:
        self._replica.forget([entry.id for entry in gone])
        waiting = {step.message.id for step in self._steps if isinstance(step, Add)}
        self._hidden.update(entry.id for entry in gone if entry.id in waiting)

    def _count(self, messages: int, size: int) -> None:
        self._unsaved_count += messages
        self._unsaved_bytes += size

    def _add_step(self, message: Message) -> None:
        size = len(requests.append_one(
            "-", message, expected_revision=None, must_exist=False, must_not_exist=False
        ).entries[0].body)  # fmt: skip
        self._steps.append(Add(message, size))
        self._count(1, size)

    def _leave(self, step: Step) -> None:
        self._steps.remove(step)
        if isinstance(step, Add):
            self._hidden.discard(step.message.id)
        if step.revision is None:
            self._count(-1, -step.size)

    def _composed(self) -> list[Message]:
        """What is stored, and the steps over it."""
        entries = list(self._replica.messages)
        known: Container[str] = self._replica
        added: set[str] = set()
        for step in self._steps:
            if isinstance(step, Add):
                if step.message.id not in known and step.message.id not in added:
                    entries.append(step.message)
                    added.add(step.message.id)
            else:
                entries = step.over(entries)
                known, added = {entry.id for entry in entries}, set()
        return entries

    def _compose(self) -> None:
        """The entries anew: what is stored, and the steps over it, without what is not shown."""
        entries = self._composed()
        if self._hidden or self._left_out:
            self._left_out.intersection_update([entry.id for entry in entries])
            entries = [one for one in entries if one.id not in self._hidden and one.id not in self._left_out]
        if entries != self._entries:
            self._put(entries)
            self._keep_bounds()
            self._changed()

    # From the driver: sending

    def _next(self) -> Sequence[Add] | Rewrite | None:
        """What is to be sent next: as many messages as one change may hold, or a rewrite."""
        with self._lock:
            batch: list[Add] = []
            size = 0
            for step in self._steps:
                if step.revision is not None:
                    continue
                if isinstance(step, Rewrite):
                    if not batch:
                        return step
                    break
                assert isinstance(step, Add)  # noqa: S101
                size += step.size
                if batch and (size > MAX_BATCH_BYTES or len(batch) >= MAX_BATCH_MESSAGES):
                    break
                batch.append(step)
            return batch or None

    def _appended(self, steps: Sequence[Add], outcomes: Sequence[Appended]) -> int:
        """The store has acknowledged messages; how many of them were new to it."""
        new = 0
        with self._lock:
            fresh = {outcome.revision for outcome in outcomes if not outcome.duplicate}
            for revision in fresh:
                self._acknowledged(revision)
            cursor = self._replica.cursor
            applied = 0 if cursor is None else cursor.revision
            if (not fresh and cursor is None) or max(one.revision for one in outcomes) > self._seen:
                self._stale = True
            if not self._following and fresh and max(fresh) <= applied:
                self._stale = True  # revisions count anew: another life of the conversation, or a rewound server
            for step, outcome in zip(steps, outcomes, strict=True):
                new += not outcome.duplicate
                if step not in self._steps:  # its event was faster
                    continue
                if step.revision is None:
                    self._count(-1, -step.size)
                step.revision = outcome.revision
                step.message = outcome.message
                if outcome.revision <= applied:
                    self._leave(step)  # what is known of the store is newer: if it is not there, it left again
                elif not (self._following or self._stale):
                    self._leave(step)
                    self._replica.place(outcome.message)
            if not self._following and not self._stale and self._replica.cursor is None:
                self._replica.whole = True  # the first change of the conversation was this one
            self._compose()
        return new

    def _rewritten(self, step: Rewrite, revision: int, *, changed: bool) -> None:
        """The store has done a rewrite, and is at this revision."""
        with self._lock:
            if step in self._steps and step.revision is None:
                self._count(-1, -step.size)
            step.revision = revision
            if changed:
                self._acknowledged(revision)
            cursor = self._replica.cursor
            if step not in self._steps:
                pass
            elif not changed or (cursor is not None and revision <= cursor.revision):
                self._leave(step)
            elif not self._following:
                if isinstance(step, Compaction):
                    self._leave(step)
                    self._replica.remove(step.removed)
                    if step.stored is not None:
                        self._replica.place(step.stored)
                elif step.target:
                    self._stale = True  # where these messages stand now is only known there
                else:
                    self._leave(step)
                    self._replica.remove([one.id for one in self._replica.messages])
            self._compose()

    def _acknowledged(self, revision: int) -> None:
        for step in self._steps:
            if isinstance(step, Rewrite) and step.revision is None and step.seen == revision - 1:
                step.seen = revision
        if revision == self._seen + 1:
            self._seen = revision
        elif revision > self._seen:
            self._own.add(revision)
            self._stale = True

    def _refused(self, steps: Iterable[Step]) -> None:
        """Steps that can never be done leave."""
        with self._lock:
            for step in steps:
                if step in self._steps:
                    self._leave(step)
            self._compose()
