"""A history that follows a stored conversation: what is here, what is stored, and what is still to be sent. No I/O.

The entries are what the store has, by position, and then what was done here since, step by step, as if it had been
stored. A step leaves when its change has been seen. So entries never jump back, whatever arrives in which order.

What the driver calls only posts what is to be told; the driver delivers it, with no lock held.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from redis_history.errors import InvalidInputError, RedisHistoryError
from redis_history.events import (
    ConversationDeleted,
    Cursor,
    Event,
    HistoryCleared,
    HistoryCompacted,
    HistoryRestored,
    MessagesAppended,
    Reset,
)
from redis_history.history._replica import Replica, read_whole
from redis_history.history._steps import Add, Compaction, Rewrite
from redis_history.history._unsent import Unsent
from redis_history.operations import ReadChanges, Snapshot
from redis_history.paging import Reads

__all__ = ["SharedHistory"]

_logger = logging.getLogger("redis_history")


class SharedHistory(Unsent):
    """The part of `RedisHistory` that talks to nobody."""

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

    def _read(self, snapshot: Snapshot) -> None:
        self._replica.begin(snapshot.messages, snapshot.cursor, whole=len(snapshot.messages) == snapshot.message_count)
        self._seen = snapshot.cursor.revision
        self._own.clear()
        self._stale = False

    def _read_again(self, snapshot: Snapshot, reason: str | None = None) -> bool:
        """Put a snapshot in place of what is known of the store; unsent steps stay. `reason` is that of a Reset.

        False, and nothing has changed, if newer changes are applied already, unless a Reset says the server lost them.
        """
        with self._lock:
            known, revision = self._replica.cursor, snapshot.cursor.revision
            ended = reason in ("server_rewound", "conversation_missing", "conversation_replaced")
            goes_on = known is not None and known.epoch == snapshot.cursor.epoch and not ended
            if goes_on and known is not None and revision < known.revision:
                return False
            before = self._ids | self._left_out
            acknowledged, own = self._seen, set(self._own)
            self._read(snapshot)
            if goes_on and acknowledged > revision:  # own changes since; their events are still to come
                self._seen = acknowledged
                self._own |= {one for one in own if one > acknowledged}
            for step in list(self._steps):
                if isinstance(step, Add) and step.message.id in self._replica:
                    self._leave(step)
                elif step.revision is None:
                    continue
                elif reason == "server_rewound" and isinstance(step, Add):
                    step.revision = None  # acknowledged, and lost: it is sent again
                    self._count(1, step.size)
                elif step.revision <= revision or reason in ("conversation_missing", "conversation_replaced"):
                    self._leave(step)
            self._generation += 1
            for message in snapshot.messages:
                if message.id not in before:
                    self._listeners.post("entry", message)
            self._compose()
            self._wake()
        return True

    # From the driver: what others did

    def _resume_at(self) -> Cursor | None:
        with self._lock:
            return self._replica.cursor

    def _changes_by_others(self) -> Reads[None]:
        """Reads what others have changed: the changes after the last known one, or everything if that is not enough."""
        conversation_id = self.conversation_id
        assert conversation_id is not None  # noqa: S101
        while (cursor := self._resume_at()) is not None:
            acknowledged = self._acknowledged_revision()  # before the read: later ones may be missing from its reply
            changes = yield ReadChanges(conversation_id, cursor)
            event = self._apply(changes.events)
            if event is not None:
                reason = event.reason if isinstance(event, Reset) else None
                if self._read_again((yield from read_whole(conversation_id)), reason):
                    break
            elif not changes.more:
                known = self._resume_at()
                if known is not None and acknowledged > known.revision:  # the conversation was deleted since
                    self._read_again((yield from read_whole(conversation_id)), "conversation_missing")
                break
        else:
            self._read_again((yield from read_whole(conversation_id)))
        with self._lock:
            self._stale = False

    def _acknowledged_revision(self) -> int:
        """The newest own change that the store has acknowledged and whose event is still to come; 0 without one."""
        with self._lock:
            return max((step.revision or 0 for step in self._steps), default=0)

    def _apply(self, events: Iterable[Event]) -> Reset | Event | None:
        """Do what events tell; the one that tells only that the conversation must be read again, if there is one."""
        with self._lock:
            for event in events:
                if not self._apply_one(event):
                    return event
            self._compose()
        return None

    def _apply_one(self, event: Event) -> bool:
        before = self._replica.cursor
        if not self._replica.apply(event):
            return False
        if self._replica.cursor is before:  # applied already
            return True
        own = False
        arrived = {message.id for message in event.messages} if isinstance(event, MessagesAppended) else set()
        strange = set(arrived)
        for step in list(self._steps):
            if isinstance(step, Add) and step.message.id in arrived:
                strange.discard(step.message.id)
                own = not strange or step.revision == event.revision
                self._leave(step)
            elif isinstance(step, Compaction) and isinstance(event, HistoryCompacted):
                if event.summary.id == step.summary.id:
                    own = True
                    self._leave(step)
            elif isinstance(step, Rewrite) and step.token == event.cursor.token:
                own = True
                self._leave(step)
            elif step.revision is not None and step.revision <= event.revision:
                own = own or step.revision == event.revision
                self._leave(step)
        if own:
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
        elif isinstance(event, HistoryCompacted):
            self._generation += 1
        elif isinstance(event, HistoryRestored):
            self._generation += 1
            self._listeners.post("restore", list(self._replica.messages))

    # Failures

    def _report(self, error: RedisHistoryError, *, lost: bool = False) -> None:
        """Tell of a failure; `lost`: it is kept for `flush`, too, because no later attempt can mend it."""
        if lost:
            self._failures.append(error)
        if self._listeners.wants("error"):
            self._listeners.post("error", error)
        else:
            _logger.warning("saving or following %r: %s", str(self.conversation_id)[:80], error)
