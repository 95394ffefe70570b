"""A history that follows a stored conversation: what is here, what is stored, and what is still to be sent. No I/O.

The entries are what the store has, by position, and then what was done here since, step by step, as if it had been
stored. A step leaves when its change has been seen. So entries never jump back, whatever arrives in which order.

What the driver calls only posts what is to be told; the driver delivers it, with no lock held.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Literal, Unpack

from redis_history import requests
from redis_history.errors import ConfigurationError, InvalidInputError, RedisHistoryError, UnsavedLimitError
from redis_history.events import (
    ConversationDeleted,
    Cursor,
    Event,
    HistoryCleared,
    HistoryRestored,
    MessagesAppended,
    Reset,
)
from redis_history.history._replica import Replica
from redis_history.history._steps import Add, Rewrite, Step
from redis_history.history.history import History, HistoryOptions
from redis_history.model import Message
from redis_history.operations import Appended, Snapshot
from redis_history.requests import MAX_BATCH_BYTES, MAX_BATCH_MESSAGES

__all__ = ["MAX_UNSAVED_BYTES", "SharedHistory"]

_logger = logging.getLogger("redis_history")

#: Of messages that wait for the server, as stored, while a history saves by itself.
MAX_UNSAVED_BYTES = 64_000_000
_FAILURES = 100


class SharedHistory(History):
    """The part of `RedisHistory` that talks to nobody."""

    _EVENTS = (*History._EVENTS, "error")

    def __init__(self, *, max_unsaved: int, **options: Unpack[HistoryOptions]) -> None:
        if not isinstance(max_unsaved, int) or isinstance(max_unsaved, bool) or max_unsaved < 1:
            raise ConfigurationError(f"max_unsaved is a number from 1, not {max_unsaved!r}")
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
        self._sending_now: frozenset[int] = frozenset()
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
            now = {entry.id: entry for entry in self._entries}
            left = {entry.id for entry in entries}
            kept = [entry for entry in self._entries if entry.id in left]
            if how == "reduce" and entries == kept:
                step = Rewrite(self._seen, removed=[name for name in now if name not in left])
            else:
                if how == "reduce" and not self._replica.whole:
                    raise InvalidInputError(
                        "this history holds only the newest part of its conversation, so a plugin cannot rewrite it: "
                        "load it without max_length and max_tokens"
                    )
                step = Rewrite(self._seen, target=entries)
                op = requests.restore(self.conversation_id, step.target or (), expected_revision=None)  # it would fit
                step.size = sum(len(entry.body) for entry in op.entries)
            self._check_room(step.size)
            self._steps.append(step)
            self._count(1, step.size)
            self._hidden.difference_update(entry.id for entry in entries)
            self._wake()
        super()._rewriting(how, entries)

    def _trimmed(self, gone: list[Message]) -> None:
        self._replica.forget([entry.id for entry in gone])
        waiting = {step.message.id for step in self._steps if isinstance(step, Add)}
        self._hidden.update(entry.id for entry in gone if entry.id in waiting)

    def _count(self, messages: int, size: int) -> None:
        self._unsaved_count += messages
        self._unsaved_bytes += size

    # From the driver: beginnings

    def _check_saveable(self) -> None:
        if self.transient:
            raise InvalidInputError("this history is transient: it is never saved")

    def _loaded(self, conversation_id: str, snapshot: Snapshot) -> None:
        """The conversation as it is, and behind it what was added here and is not there.

        A system message that is there already, word for word, is not added again.
        """
        with self._lock:
            unsaved = self.unsaved
            self._begin_anew()
            self.conversation_id = conversation_id
            self._read(snapshot)
            prompts = {message.text for message in snapshot.messages if message.role == "system"}
            for message in unsaved:
                if message.id not in self._replica and not (message.role == "system" and message.text in prompts):
                    self._add_step(message)
            self._generation += 1
            self._compose()

    def _bind(self, conversation_id: str) -> None:
        """Save to a conversation that was not read: all entries are new to it."""
        with self._lock:
            self._begin_anew()
            self.conversation_id = conversation_id
            self._replica = Replica()
            for message in self._entries:
                self._add_step(message)

    def _add_step(self, message: Message) -> None:
        size = len(requests.append_one(
            "-", message, expected_revision=None, must_exist=False, must_not_exist=False
        ).entries[0].body)  # fmt: skip
        self._steps.append(Add(message, size))
        self._count(1, size)

    def _read(self, snapshot: Snapshot) -> None:
        self._replica.begin(snapshot.messages, snapshot.cursor, whole=len(snapshot.messages) == snapshot.message_count)
        self._seen = snapshot.cursor.revision
        self._own.clear()
        self._stale = False

    def _read_again(self, snapshot: Snapshot, reason: str | None = None) -> None:
        """After a Reset, or a conflict: what is stored, and then what was not sent."""
        with self._lock:
            before = self._ids
            self._read(snapshot)
            for step in list(self._steps):
                if isinstance(step, Add) and step.message.id in self._replica:
                    self._leave(step)
                elif step.revision is None:
                    continue
                elif reason == "server_rewound" and isinstance(step, Add):
                    step.revision = None  # acknowledged, and lost: it is sent again
                    self._count(1, step.size)
                elif step.revision <= self._seen or reason in ("conversation_missing", "conversation_replaced"):
                    self._leave(step)
            self._generation += 1
            for message in snapshot.messages:
                if message.id not in before:
                    self._listeners.post("entry", message)
            self._compose()
            self._wake()

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
                        self._sending_now = frozenset([id(step)])
                        return step
                    break
                assert isinstance(step, Add)  # noqa: S101
                size += step.size
                if batch and (size > MAX_BATCH_BYTES or len(batch) >= MAX_BATCH_MESSAGES):
                    break
                batch.append(step)
            self._sending_now = frozenset(map(id, batch))
            return batch or None

    def _appended(self, steps: Sequence[Add], outcomes: Sequence[Appended]) -> int:
        """The store has acknowledged messages; how many of them were new to it."""
        new = 0
        with self._lock:
            self._sending_now = frozenset()
            fresh = {outcome.revision for outcome in outcomes if not outcome.duplicate}
            for revision in fresh:
                self._acknowledged(revision)
            if (not fresh and self._replica.cursor is None) or max(one.revision for one in outcomes) > self._seen:
                self._stale = True
            for step, outcome in zip(steps, outcomes, strict=True):
                new += not outcome.duplicate
                if step not in self._steps:  # its event was faster
                    continue
                if step.revision is None:
                    self._count(-1, -step.size)
                step.revision = outcome.revision
                step.message = outcome.message
                cursor = self._replica.cursor
                past = cursor is not None and outcome.revision <= cursor.revision
                if past or not (self._following or self._stale):
                    self._leave(step)
                    self._replica.place(outcome.message)
            if not self._following and not self._stale and self._replica.cursor is None:
                self._replica.whole = True  # the first change of the conversation was this one
            self._compose()
        return new

    def _rewritten(self, step: Rewrite, revision: int, *, changed: bool) -> None:
        """The store has done a rewrite, and is at this revision."""
        with self._lock:
            self._sending_now = frozenset()
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
                if step.target:
                    self._stale = True  # where these messages stand now is only known there
                else:
                    self._leave(step)
                    gone = step.removed if step.target is None else [one.id for one in self._replica.messages]
                    self._replica.remove(gone)
            self._compose()

    def _partly_rewritten(self, step: Rewrite) -> None:
        """The store has made one change of several."""
        with self._lock:
            self._acknowledged(step.seen + 1)

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
            self._sending_now = frozenset()
            for step in steps:
                if step in self._steps:
                    self._leave(step)
            self._compose()

    # From the driver: what others did

    def _resume_at(self) -> Cursor | None:
        with self._lock:
            return self._replica.cursor

    def _caught_up(self) -> None:
        with self._lock:
            self._stale = False

    def _apply(self, events: Iterable[Event]) -> Reset | Event | None:
        """Do what events tell; the one that tells only that the conversation must be read again, if there is one."""
        with self._lock:
            for event in events:
                if not self._apply_one(event):
                    return event
            self._compose()
        return None

    def _apply_one(self, event: Event) -> bool:
        cursor = self._replica.cursor
        news = cursor is not None and event.revision > cursor.revision
        if not self._replica.apply(event):
            return False
        if not news:
            return True
        own = False
        arrived = {message.id for message in event.messages} if isinstance(event, MessagesAppended) else set()
        for step in list(self._steps):
            if isinstance(step, Add) and step.message.id in arrived:
                own = True
                self._leave(step)
            elif isinstance(step, Rewrite) and id(step) in self._sending_now and step.seen == event.revision - 1:
                own = isinstance(event, HistoryCleared | HistoryRestored)
            elif step.revision is not None and step.revision <= event.revision:
                own = own or step.revision == event.revision
                self._leave(step)
        if own and isinstance(event, MessagesAppended):
            self._acknowledged(event.revision)
        known = event.revision <= self._seen
        self._own.discard(event.revision)
        self._seen = max(self._seen, event.revision)
        while self._seen + 1 in self._own:
            self._own.remove(self._seen + 1)
            self._seen += 1
        if not known and not own:
            self._tell(event)
        return True

    def _tell(self, event: Event) -> None:
        """What others did, to the handlers."""
        if isinstance(event, MessagesAppended):
            for message in event.messages:
                if message.id not in self._ids and message.id in self._replica:
                    self._listeners.post("entry", message)
        elif isinstance(event, HistoryCleared | ConversationDeleted):
            self._generation += 1
            self._listeners.post("clear")
        elif isinstance(event, HistoryRestored):
            self._generation += 1
            self._listeners.post("restore", list(self._replica.messages))

    def _leave(self, step: Step) -> None:
        self._steps.remove(step)
        if isinstance(step, Add):
            self._hidden.discard(step.message.id)
        if step.revision is None:
            self._count(-1, -step.size)

    def _compose(self) -> None:
        """The entries anew: what is stored, and the steps over it."""
        entries = list(self._replica.messages)
        known = {entry.id for entry in entries}
        for step in self._steps:
            if isinstance(step, Add):
                if step.message.id not in known:
                    entries.append(step.message)
                    known.add(step.message.id)
            else:
                entries = step.over(entries)
                known = {entry.id for entry in entries}
        if self._hidden:
            entries = [entry for entry in entries if entry.id not in self._hidden]
        if entries != self._entries:
            self._put(entries)
            self._keep_bounds()
            self._changed()

    # Failures

    def _report(self, error: RedisHistoryError, *, lost: bool = False) -> None:
        """Tell of a failure; `lost`: it is kept for `flush`, too, because no later attempt can mend it."""
        if lost:
            self._failures.append(error)
        if self._listeners.wants("error"):
            self._listeners.post("error", error)
        else:
            _logger.warning("saving or following %r: %s", str(self.conversation_id)[:80], error)
