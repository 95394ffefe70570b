"""Encodes events of the store as server-sent events, and keeps the last events of a stream for its readers."""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple

from redis_history.formats.json_form import dumps
from redis_history.store._async.store import AsyncHistoryStore
from redis_history.store.changelog import is_gone
from redis_history.store.operations import ReadLife
from redis_history.values import Message, TextPart, events
from redis_history.values.replies import merged
from redis_history.web._shape import conversation_shape, message_shape, parts_shape, run_shape, turn_shape

#: A heartbeat, which keeps the connection open in proxies.
PING: Final = b": ping\n\n"
#: Bytes of one event. Clients read larger changes page by page.
_LARGEST: Final = 1_000_000
#: Events and bytes that a ring keeps, and bytes that it returns per read. It keeps the newest event whatever its
#: size.
_COUNT: Final = 512
_BYTES: Final = 1_000_000
_AT_ONCE: Final = 65_536

KINDS: Final[dict[type, str]] = {
    events.MessagesAppended: "appended",
    events.MessageUpdated: "updated",
    events.ReplyGrew: "grew",
    events.ReplyEnded: "updated",
    events.RunChanged: "run",
    events.TurnChanged: "turn",
    events.MessagesDeleted: "deleted",
    events.HistoryCleared: "cleared",
    events.HistoryRestored: "restored",
    events.HistoryCompacted: "compacted",
    events.HistoryExpanded: "expanded",
    events.ConversationUpdated: "conversation",
    events.ConversationDeleted: "gone",
    events.Reset: "reset",
}


class Entry(NamedTuple):
    """An encoded event, the cursor after it, its conversation, and the life of the conversation that it describes; ""
    if it only reports that the conversation does not exist."""

    cursor: str
    conversation_id: str
    data: bytes
    life: str = ""


def frame(kind: str, data: dict[str, Any], cursor: str | None = None) -> bytes:
    """One server-sent event. Its JSON is on one line, so the content of a message cannot end it or begin another."""
    head = f"event: {kind}\n" if cursor is None else f"id: {cursor}\nevent: {kind}\n"
    return b"".join((head.encode(), b"data: ", dumps(data), b"\n\n"))


async def encoded(store: AsyncHistoryStore, event: events.Event) -> Entry:
    """Encodes an event of one conversation. Reads the conversation's record if it has changed, unless it is now that of
    another life."""
    cursor, life = str(event.cursor), event.cursor.epoch
    head = {"conversation": event.conversation_id, "cursor": cursor, "revision": event.revision}
    kind, fields = KINDS[type(event)], dict[str, Any]()
    match event:
        case events.MessagesAppended():
            fields = {"messages": list(map(message_shape, event.messages)), "removed_ids": event.removed_ids}
        case events.MessageUpdated(message=message) | events.ReplyEnded(message=message):
            if message is None:
                kind, fields = "deleted", {"ids": [event.message_id]}
            else:
                fields = {"message": message_shape(message)}
        case events.MessagesDeleted():
            fields = {"ids": event.message_ids}
        case events.HistoryCompacted(summary=None):
            kind, fields = "reset", {"reason": "summary_gone"}
        case events.HistoryCompacted(summary=Message() as summary):
            fields = {"summary": message_shape(summary), "count": event.count, "through": str(event.through)}
        case events.HistoryExpanded():
            fields = {"summary_id": event.summary_id, "count": event.count}
        case events.ConversationUpdated():
            record = await store.get_conversation(event.conversation_id)
            # If the life is still that of the event, which was there before, the record is of this life, too.
            if await store.backend.execute(ReadLife(event.conversation_id)) != life:
                record = None
            fields = {"record": None if record is None else conversation_shape(record)}
        case events.Reset():
            fields = {"reason": event.reason}
    if isinstance(event, events.ConversationDeleted) or is_gone(event.cursor):
        life = ""
    data = frame(kind, {**head, **fields}, cursor)
    if len(data) > _LARGEST:
        data = frame("reset", {**head, "reason": "change_too_large"}, cursor)
    return Entry(cursor, event.conversation_id, data, life)


def run_frame(event: events.RunChanged) -> bytes:
    """The run of a conversation, as an event for its readers."""
    return frame("run", {"conversation": event.conversation_id, "run": run_shape(event.run)})


def turn_frame(event: events.TurnChanged) -> bytes:
    """The turns of a conversation, as an event for its readers."""
    return frame("turn", {"conversation": event.conversation_id, "turns": list(map(turn_shape, event.turns))})


class Growth:
    """The growth of a reply that is being written, for many readers. A reader is only an index."""

    def __init__(self) -> None:
        self._events: list[events.ReplyGrew] = []
        self._last = (0, 0, b"")

    def add(self, event: events.ReplyGrew) -> None:
        self._events.append(event)

    @property
    def end(self) -> int:
        return len(self._events)

    def after(self, index: int) -> bytes:
        """One event with all growth from `index` on. Readers that keep up get the same bytes."""
        if self._last[:2] != (index, self.end):
            added = self._events[index:]
            data: dict[str, Any] = {
                "conversation": added[0].conversation_id,
                "id": added[0].message_id,
                "offset": added[0].offset,
                "delta": "".join(event.delta for event in added),
                "whole": index == 0,
            }
            parts = merged((), [part for event in added for part in event.parts])
            if any(type(part) is not TextPart for part in parts):
                data["parts"] = parts_shape(parts)
            self._last = index, self.end, frame("grew", data)
        return self._last[2]


class Ring:
    """The events with indices from `start` up to, but not including, `end`, encoded once for all readers. A reader is
    only an index. `closed`: no more events follow."""

    def __init__(self, cursor: str = "", count: int = _COUNT, size: int = _BYTES) -> None:
        self.start = 0
        self.closed = False
        self._count, self._free = count, size
        self._entries: list[Entry] = []
        self._first_cursor = cursor  # the cursor before the first entry
        self._news = asyncio.Event()

    @property
    def end(self) -> int:
        return self.start + len(self._entries)

    def add(self, entry: Entry) -> None:
        """Add an event, and drop the oldest if necessary. Call `wake` afterwards."""
        self._entries.append(entry)
        self._free -= len(entry.data)
        while (self._free < 0 or len(self._entries) > self._count) and len(self._entries) > 1:
            dropped = self._entries.pop(0)
            self._free += len(dropped.data)
            self._first_cursor = dropped.cursor
            self.start += 1

    def index_after(self, cursor: str) -> int | None:
        """The index of the first event after a cursor; None if the ring does not contain it."""
        for index in range(len(self._entries), 0, -1):
            if self._entries[index - 1].cursor == cursor:
                return self.start + index
        return self.start if cursor == self._first_cursor else None

    def read(self, index: int) -> list[Entry]:
        """The entry at `index`, and the next ones while they are small. `index` must not be before `start`."""
        entries: list[Entry] = []
        size, at = 0, index - self.start
        while at < len(self._entries) and (not entries or size + len(self._entries[at].data) <= _AT_ONCE):
            entries.append(self._entries[at])
            size += len(self._entries[at].data)
            at += 1
        return entries

    def wake(self) -> None:
        """Wake all waiting readers, for new events or a heartbeat."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def wait(self) -> None:
        """Return at the next `wake`."""
        if not self.closed:
            await self._news.wait()

    def close(self) -> None:
        self.closed = True
        self.wake()
