"""A copy of a stored conversation: its messages by position, kept up to date by the events of its change log."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

from redis_history.store.operations import ReadChanges, ReadHead, ReadPage, Snapshot
from redis_history.store.operations.base import Steps
from redis_history.store.operations.page import PAGE, next_page
from redis_history.values import Message, Position, events
from redis_history.values.events import Cursor, Event, Reset
from redis_history.values.folding import Fold, fold_of
from redis_history.values.ranges import leaving

#: How often a long conversation is read again because the log no longer has all changes made during the reading.
_ATTEMPTS: Final = 5


class Replica:
    """Stored messages in ascending order, without replies that are being written.

    `cursor`: the last applied change; None: not read yet. `whole`: no message is missing. `streaming`: the replies that
    are being written, as they began or were read, by id.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.cursor: Cursor | None = None
        self.whole = False
        self.streaming: dict[str, Message] = {}
        self._ids: set[str] = set()

    def __contains__(self, message_id: object) -> bool:
        return message_id in self._ids

    def begin(self, messages: Iterable[Message], cursor: Cursor, *, whole: bool) -> None:
        messages = list(messages)
        self.messages = [message for message in messages if message.status != "streaming"]
        self.streaming = {message.id: message for message in messages if message.status == "streaming"}
        self._ids = {message.id for message in self.messages}
        self.cursor = cursor
        self.whole = whole

    def put(self, message: Message) -> None:
        """Insert a stored message at its position, or replace the one with its id."""
        if message.id in self._ids:
            self.remove([message.id])
        self._ids.add(message.id)
        if not self.messages or position_in_store(self.messages[-1]) < position_in_store(message):
            self.messages.append(message)
        else:
            self.messages.insert(bisect_left(self.messages, position_in_store(message), key=position_in_store), message)

    def remove(self, message_ids: Iterable[str]) -> bool:
        """Remove messages; unknown ids are ignored. Whether any was removed that is not being written."""
        message_ids = set(message_ids)
        self.streaming = {name: reply for name, reply in self.streaming.items() if name not in message_ids}
        ids = self._ids.intersection(message_ids)
        if ids:
            self._ids -= ids
            self.messages = [message for message in self.messages if message.id not in ids]
        return bool(ids)

    def forget(self, message_ids: Iterable[str]) -> None:
        """Remove messages that stay in the store."""
        if self.remove(message_ids):
            self.whole = False

    def apply(self, event: Event) -> bool:
        """Apply an event. False, and no change, if the conversation must be read again instead.

        The event must have the next revision of the same generation of the conversation. An event that was already
        applied is ignored. For anything else (a gap, a Reset, an event without its content) the result is False.
        """
        known = self.cursor
        if known is None or isinstance(event, Reset):
            return False
        if known.revision and event.cursor.epoch != known.epoch:
            return False
        if isinstance(event, events.ReplyGrew | events.RunChanged | events.TurnChanged):
            return event.revision <= known.revision
        if event.revision <= known.revision:
            return event.revision < known.revision or event.cursor == known
        if event.revision != known.revision + 1:
            return False
        fold = self._compaction(event) if isinstance(event, events.HistoryCompacted) else fold_of(event)
        if fold is None:
            return False
        if fold.clears:
            self.begin((), event.cursor, whole=True)
        for message in fold.added:
            if message.status == "streaming":
                self.streaming[message.id] = message
            else:
                self.put(message)
        for message in fold.ended:
            self.streaming.pop(message.id, None)
            self.put(message)
        for message in fold.changed:
            if message.id in self:
                self.put(message)
        self.remove(fold.removed)
        self.cursor = event.cursor
        return True

    def _compaction(self, event: events.HistoryCompacted) -> Fold | None:
        """The effect of a compaction; None if it is not certain which messages it replaced."""
        replaced = leaving([one for one in self.messages if position_in_store(one) <= event.through])
        if len(replaced) != event.count:  # what stays also depends on later messages, and on pins removed since
            return None
        summary = () if event.summary is None else (event.summary,)
        return Fold(added=summary, removed=tuple(one.id for one in replaced))


def position_in_store(message: Message) -> Position:
    position = message.position
    assert position is not None  # noqa: S101 -- the store has placed it
    return position


def read_whole(conversation_id: str) -> Steps[Snapshot]:
    """All messages, and the cursor of exactly that state.

    A long conversation is read in pages, so that no single read holds the server, and then the changes made in the
    meantime are applied. If others always change more than the log holds, the last pages are returned with the cursor
    from before them. The messages may then be newer, until the changes after the cursor are applied.
    """
    for _ in range(_ATTEMPTS):
        head = yield ReadHead(conversation_id, PAGE)
        if head.message_count == len(head.newest.messages):
            return Snapshot(head.newest.messages, head.cursor, head.message_count)
        # By id: a message deleted and appended again in the meantime may be found at both positions.
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
            messages = sorted([*replica.messages, *replica.streaming.values()], key=position_in_store)
            return Snapshot(messages, cursor, len(messages))
    messages = sorted(found.values(), key=position_in_store)
    return Snapshot(messages, head.cursor, len(messages))
