"""What a process knows of a stored conversation: its messages by position, kept so by the events of its change log."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable

from redis_history.events import (
    ConversationDeleted,
    ConversationUpdated,
    Cursor,
    Event,
    HistoryCleared,
    HistoryRestored,
    MessagesAppended,
    MessagesDeleted,
    MessageUpdated,
)
from redis_history.model import Message, Position

__all__ = ["Replica", "position_in_store"]


class Replica:
    """Messages as stored, ascending by position.

    `cursor` is the change up to which events were applied (None: not read yet); `whole` tells whether all messages of
    the conversation are here.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.cursor: Cursor | None = None
        self.whole = False
        self._ids: dict[str, Message] = {}

    def __contains__(self, message_id: object) -> bool:
        return message_id in self._ids

    def begin(self, messages: Iterable[Message], cursor: Cursor, *, whole: bool) -> None:
        """The state as of a snapshot."""
        self.messages = list(messages)
        self._ids = {message.id: message for message in self.messages}
        self.cursor = cursor
        self.whole = whole

    def place(self, message: Message) -> None:
        """Put a stored message where it belongs; in place of the one of its id, if there is one."""
        known = self._ids.get(message.id)
        if known is not None:
            self.remove([message.id])
        self._ids[message.id] = message
        if not self.messages or position_in_store(self.messages[-1]) < position_in_store(message):
            self.messages.append(message)
        else:
            self.messages.insert(bisect_left(self.messages, position_in_store(message), key=position_in_store), message)

    def remove(self, message_ids: Iterable[str]) -> None:
        """Remove messages; ids that are not here are ignored."""
        gone = {name for name in message_ids if self._ids.pop(name, None) is not None}
        if gone:
            self.messages = [message for message in self.messages if message.id not in gone]

    def forget(self, message_ids: Collection[str]) -> None:
        """Let go of messages that stay in the store."""
        if any(name in self._ids for name in message_ids):
            self.remove(message_ids)
            self.whole = False

    def apply(self, event: Event) -> bool:
        """Do what an event tells, but nothing if it is of the past; False if only reading the conversation helps."""
        if self.cursor is None:
            return False
        if type(event) not in _KNOWN:
            return False
        if event.revision <= self.cursor.revision:
            return True
        if isinstance(event, MessagesAppended):
            for message in event.messages:
                self.place(message)
            self.remove(event.removed_ids)
        elif isinstance(event, MessagesDeleted):
            self.remove(event.message_ids)
        elif isinstance(event, MessageUpdated):
            if event.message.id in self._ids:
                self.place(event.message)
        elif isinstance(event, HistoryRestored):
            self.begin(sorted(event.messages, key=position_in_store), event.cursor, whole=True)
            self.remove(event.removed_ids)
        elif isinstance(event, HistoryCleared | ConversationDeleted):
            self.begin([], event.cursor, whole=True)
        self.cursor = event.cursor
        return True


_KNOWN = frozenset(
    {
        MessagesAppended,
        MessagesDeleted,
        MessageUpdated,
        HistoryRestored,
        HistoryCleared,
        ConversationDeleted,
        ConversationUpdated,
    }
)


def position_in_store(message: Message) -> Position:
    """Where a stored message sorts."""
    position = message.position
    assert position is not None  # noqa: S101 -- the store has placed it
    return position
