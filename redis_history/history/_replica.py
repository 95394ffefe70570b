"""A copy of a stored conversation: its messages by position, kept up to date by the events of its change log."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable
from typing import Final

from redis_history.events import (
    ConversationDeleted,
    ConversationUpdated,
    Cursor,
    Event,
    HistoryCleared,
    HistoryCompacted,
    HistoryRestored,
    MessagesAppended,
    MessagesDeleted,
    MessageUpdated,
    ReplyEnded,
    ReplyGrew,
    Reset,
)
from redis_history.model import Message, Position
from redis_history.model.ranges import stays
from redis_history.operations import ReadChanges, ReadHead, ReadPage, Snapshot
from redis_history.paging import PAGE, Reads, next_page

#: How often a long conversation is read again because the log did not reach over the time of reading.
_ATTEMPTS: Final = 5


class Replica:
    """Messages as stored, ascending by position, without replies that are being written.

    `cursor` is the last change that was applied (None: not read yet). `whole`: all messages are here.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.cursor: Cursor | None = None
        self.whole = False
        self._ids: dict[str, Message] = {}

    def __contains__(self, message_id: object) -> bool:
        return message_id in self._ids

    def begin(self, messages: Iterable[Message], cursor: Cursor, *, whole: bool) -> None:
        self.messages = [message for message in messages if message.status != "streaming"]
        self._ids = {message.id: message for message in self.messages}
        self.cursor = cursor
        self.whole = whole

    def place(self, message: Message) -> None:
        """Put a stored message at its position, in place of the one with its id."""
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
        """Remove messages that stay in the store."""
        if any(name in self._ids for name in message_ids):
            self.remove(message_ids)
            self.whole = False

    def apply(self, event: Event) -> bool:
        """Apply an event. False, and no change, if the conversation must be read again instead.

        The event must have the next revision of the same generation of the conversation; one that was already
        applied is ignored. For anything else (a gap, a Reset, an event without its content) the result is False.
        """
        known = self.cursor
        if known is None or isinstance(event, Reset):
            return False
        if known.revision and event.cursor.epoch != known.epoch:
            return False
        if isinstance(event, ReplyGrew):
            return event.revision <= known.revision
        if event.revision <= known.revision:
            return event.revision < known.revision or event.cursor == known
        if event.revision != known.revision + 1 or type(event) not in _KNOWN:
            return False
        if isinstance(event, MessagesAppended):
            for message in event.messages:
                if message.status != "streaming":
                    self.place(message)
            self.remove(event.removed_ids)
        elif isinstance(event, MessagesDeleted):
            self.remove(event.message_ids)
        elif isinstance(event, MessageUpdated):
            if event.message is not None and event.message_id in self._ids:
                self.place(event.message)
        elif isinstance(event, ReplyEnded):
            if event.message is not None:
                self.place(event.message)
        elif isinstance(event, HistoryRestored):
            self.begin(sorted(event.messages, key=position_in_store), event.cursor, whole=True)
            self.remove(event.removed_ids)
        elif isinstance(event, HistoryCompacted):
            replaced = [one for one in self.messages if position_in_store(one) <= event.through and not stays(one)]
            self.remove([message.id for message in replaced])
            if event.summary is not None:
                self.place(event.summary)
        elif isinstance(event, HistoryCleared | ConversationDeleted):
            self.begin([], event.cursor, whole=True)
        self.cursor = event.cursor
        return True


_KNOWN = frozenset(
    {
        MessagesAppended,
        MessagesDeleted,
        MessageUpdated,
        ReplyEnded,
        HistoryRestored,
        HistoryCleared,
        HistoryCompacted,
        ConversationDeleted,
        ConversationUpdated,
    }
)


def position_in_store(message: Message) -> Position:
    position = message.position
    assert position is not None  # noqa: S101 -- the store has placed it
    return position


def read_whole(conversation_id: str) -> Reads[Snapshot]:
    """All messages, and the cursor of exactly that state.

    A long conversation is read in pages, so that no single read holds the server, and the changes made meanwhile are
    applied to it. If others always change more than the log holds, the last pages are returned with the cursor from
    before them: the messages may be newer then, until the changes after the cursor are applied.
    """
    for _ in range(_ATTEMPTS):
        head = yield ReadHead(conversation_id, PAGE)
        if head.message_count == len(head.newest.messages):
            return Snapshot(head.newest.messages, head.cursor, head.message_count)
        # By id: a message deleted and appended again meanwhile may be found at both of its places.
        found: dict[str, Message] = {}
        op: ReadPage | None = ReadPage(conversation_id, PAGE, newest=False)
        while op is not None:
            page = yield op
            found |= {message.id: message for message in page.messages}
            op = next_page(op, page, PAGE)
        messages = sorted(found.values(), key=position_in_store)
        replica = Replica()
        replica.begin(messages, head.cursor, whole=True)
        cursor, more = head.cursor, True
        while more:
            changes = yield ReadChanges(conversation_id, cursor)
            if not all(replica.apply(event) for event in changes.events):
                break
            cursor, more = replica.cursor or cursor, changes.more
        else:
            return Snapshot(replica.messages, cursor, len(replica.messages))
    messages = sorted(found.values(), key=position_in_store)
    return Snapshot(messages, head.cursor, len(messages))
