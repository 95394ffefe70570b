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
    HistoryRestored,
    MessagesAppended,
    Reset,
)
from redis_history.history._replica import Replica
from redis_history.history._steps import Add, Rewrite
from redis_history.history._unsent import Unsent
from redis_history.operations import Snapshot

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

    # Failures

    def _report(self, error: RedisHistoryError, *, lost: bool = False) -> None:
        """Tell of a failure; `lost`: it is kept for `flush`, too, because no later attempt can mend it."""
        if lost:
            self._failures.append(error)
        if self._listeners.wants("error"):
            self._listeners.post("error", error)
        else:
            _logger.warning("saving or following %r: %s", str(self.conversation_id)[:80], error)
