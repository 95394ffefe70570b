"""Events of the store as server-sent events, and the ring buffer that keeps the last ones of a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from redis_history._async.store import AsyncHistoryStore
from redis_history.events import (
    ConversationDeleted,
    ConversationUpdated,
    Event,
    HistoryCleared,
    HistoryCompacted,
    HistoryExpanded,
    HistoryRestored,
    MessagesAppended,
    MessagesDeleted,
    MessageUpdated,
    ReplyEnded,
    ReplyGrew,
    Reset,
)
from redis_history.model import Message, TextPart
from redis_history.model.replies import merged
from redis_history.web._shape import conversation_shape, dumps, message_shape, parts_shape

#: A heartbeat, which keeps the connection open in proxies.
PING: Final = b": ping\n\n"
#: Bytes of one event. Clients read larger changes page by page.
_LARGEST: Final = 1_000_000
#: Events and bytes that a ring keeps, and bytes that it returns at once. It keeps the newest event whatever its size.
_COUNT: Final = 512
_BYTES: Final = 1_000_000
_AT_ONCE: Final = 65_536

_KINDS: Final[dict[type, str]] = {
    MessagesAppended: "appended",
    MessageUpdated: "updated",
    ReplyGrew: "grew",
    ReplyEnded: "updated",
    MessagesDeleted: "deleted",
    HistoryCleared: "cleared",
    HistoryRestored: "restored",
    HistoryCompacted: "compacted",
    HistoryExpanded: "expanded",
    ConversationUpdated: "conversation",
    ConversationDeleted: "gone",
    Reset: "reset",
}


class Entry(NamedTuple):
    """An encoded event, the cursor after it, and its conversation."""

    cursor: str
    conversation_id: str
    data: bytes


def kind_of(event: Event) -> str:
    """The name of an event in the stream."""
    return _KINDS[type(event)]


def frame(kind: str, data: dict[str, Any], cursor: str | None = None) -> bytes:
    """One server-sent event. Its JSON is on one line, so the content of a message cannot end it or begin another."""
    head = f"event: {kind}\n" if cursor is None else f"id: {cursor}\nevent: {kind}\n"
    return b"".join((head.encode(), b"data: ", dumps(data), b"\n\n"))


async def encoded(store: AsyncHistoryStore, event: Event) -> Entry:
    """Encodes an event of one conversation. Reads the conversation's record if it has changed."""
    cursor = str(event.cursor)
    head = {"conversation": event.conversation_id, "cursor": cursor, "revision": event.revision}
    kind, data_of_event = await _data(store, event)
    data = frame(kind, {**head, **data_of_event}, cursor)
    if len(data) > _LARGEST:
        data = frame("reset", {**head, "reason": "change_too_large"}, cursor)
    return Entry(cursor, event.conversation_id, data)


async def _data(store: AsyncHistoryStore, event: Event) -> tuple[str, dict[str, Any]]:
    """The kind of an event for readers, and its data."""
    kind = kind_of(event)
    data: dict[str, Any] = {}
    match event:
        case MessagesAppended():
            data = {"messages": list(map(message_shape, event.messages)), "removed_ids": event.removed_ids}
        case MessageUpdated(message=None) | ReplyEnded(message=None):
            return "deleted", {"ids": [event.message_id]}
        case MessageUpdated(message=Message() as message) | ReplyEnded(message=Message() as message):
            data = {"message": message_shape(message)}
        case MessagesDeleted():
            data = {"ids": event.message_ids}
        case HistoryCompacted(summary=None):
            return "reset", {"reason": "summary_gone"}
        case HistoryCompacted(summary=Message() as summary):
            data = {"summary": message_shape(summary), "count": event.count, "through": str(event.through)}
        case HistoryExpanded():
            data = {"summary_id": event.summary_id, "count": event.count}
        case ConversationUpdated():
            conversation = await store.get_conversation(event.conversation_id)
            data = {"record": None if conversation is None else conversation_shape(conversation)}
        case Reset():
            data = {"reason": event.reason}
    return kind, data


class Growth:
    """What a reply that is being written has grown by, for many readers. A reader is only an index."""

    def __init__(self, event: ReplyGrew) -> None:
        self._conversation_id, self._message_id = event.conversation_id, event.message_id
        self._events: list[ReplyGrew] = []
        self._last = (0, 0, b"")

    def add(self, event: ReplyGrew) -> None:
        self._events.append(event)

    @property
    def end(self) -> int:
        return len(self._events)

    def after(self, index: int) -> bytes:
        """The event of all growth from `index` on. Readers that keep up get the same bytes."""
        if self._last[:2] != (index, self.end):
            some = self._events[index:]
            data: dict[str, Any] = {
                "conversation": self._conversation_id,
                "id": self._message_id,
                "offset": some[0].offset,
                "delta": "".join(event.delta for event in some),
                "whole": index == 0,
            }
            parts = merged((), [part for event in some for part in event.parts])
            if any(type(part) is not TextPart for part in parts):
                data["parts"] = parts_shape(parts)
            self._last = index, self.end, frame("grew", data)
        return self._last[2]


class Ring:
    """The events with indices from `start` up to, but not including, `end`, encoded once for all readers. A reader is
    only an index. `closed`: no more events follow."""

    def __init__(self, cursor: str = "", count: int = _COUNT, size: int = _BYTES) -> None:
        self.start = self.end = 0
        self.closed = False
        self._count, self._room = count, size
        self._entries: dict[int, Entry] = {}
        # The index after each cursor, and the reverse.
        self._places = {cursor: 0}
        self._cursors = {0: cursor}
        self._news = asyncio.Event()

    def add(self, entry: Entry) -> None:
        """Add an event, and drop the oldest if necessary. Call `wake` afterwards."""
        self._entries[self.end] = entry
        self.end += 1
        self._places[entry.cursor] = self.end
        self._cursors[self.end] = entry.cursor
        self._room -= len(entry.data)
        while (self._room < 0 or self.end - self.start > self._count) and self.end - self.start > 1:
            self._room += len(self._entries.pop(self.start).data)
            cursor = self._cursors.pop(self.start)
            if self._places[cursor] == self.start:
                del self._places[cursor]
            self.start += 1

    def place_of(self, cursor: str) -> int | None:
        """The index of the first event after a cursor; None if the ring does not contain it."""
        return self._places.get(cursor)

    def read(self, index: int) -> Iterator[Entry]:
        """One entry at `index`, and the next ones while they are small. `index` must not be before `start`."""
        size = 0
        for at in range(index, self.end):
            entry = self._entries[at]
            size += len(entry.data)
            if size > _AT_ONCE and at > index:
                return
            yield entry

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
