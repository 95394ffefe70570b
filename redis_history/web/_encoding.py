"""Encodes events of the store as server-sent events."""

from __future__ import annotations

from typing import Any, Final

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
    Reset,
)
from redis_history.web._ring import Entry
from redis_history.web._shape import conversation_shape, dumps, message_shape, writer

__all__ = ["PING", "encoded", "frame", "kind_of"]

#: A heartbeat, which keeps the connection open in proxies.
PING: Final = b": ping\n\n"
#: Bytes of one event. Clients read larger changes page by page.
_LARGEST: Final = 1_000_000

_KINDS: Final[dict[type, str]] = {
    MessagesAppended: "appended",
    MessageUpdated: "updated",
    MessagesDeleted: "deleted",
    HistoryCleared: "cleared",
    HistoryRestored: "restored",
    HistoryCompacted: "compacted",
    HistoryExpanded: "expanded",
    ConversationUpdated: "conversation",
    ConversationDeleted: "gone",
    Reset: "reset",
}


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
    data = frame(kind_of(event), {**head, **await _data(store, event)}, cursor)
    if len(data) > _LARGEST:
        data = frame("reset", {**head, "reason": "change_too_large"}, cursor)
    return Entry(cursor, event.conversation_id, data)


async def _data(store: AsyncHistoryStore, event: Event) -> dict[str, Any]:
    match event:
        case MessagesAppended():
            return {
                "messages": list(map(message_shape, event.messages)),
                "removed_ids": event.removed_ids,
                "writer": writer(event.messages[-1] if event.messages else None),
            }
        case MessageUpdated():
            return {"message": message_shape(event.message)}
        case MessagesDeleted():
            return {"ids": event.message_ids}
        case HistoryCompacted():
            return {"summary": message_shape(event.summary), "count": event.count, "through": str(event.through)}
        case HistoryExpanded():
            return {"summary_id": event.summary_id, "count": event.count}
        case ConversationUpdated():
            conversation = await store.get_conversation(event.conversation_id)
            return {"record": None if conversation is None else conversation_shape(conversation)}
        case Reset():
            return {"reason": event.reason}
    return {}
