"""Describes the changes of a conversation in words."""

from __future__ import annotations

from typing import Final, NamedTuple

from redis_history.cli._text import counted, name, one_line
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
    ResetReason,
)
from redis_history.model import Message

__all__ = ["Told", "told"]

_REASONS: Final[dict[ResetReason, str]] = {
    "log_trimmed": "there were more changes than the change log keeps",
    "log_unreadable": "an entry of the change log cannot be read",
    "conversation_missing": "the conversation does not exist any more",
    "conversation_replaced": "the conversation was deleted and created again",
    "server_rewound": "the server has lost changes that it had confirmed",
}


class Told(NamedTuple):
    """How to show a change: the messages, each with the note, then the words."""

    note: str
    messages: tuple[Message, ...]
    words: str


def told(event: Event) -> Told:
    match event:
        case MessagesAppended():
            gone = len(event.removed_ids)
            return Told(
                "", event.messages, f"-- the oldest {counted(gone, 'message')} removed to make room" if gone else ""
            )
        case MessageUpdated():
            return Told("edited", (event.message,), "")
        case MessagesDeleted():
            return Told("", (), f"-- {counted(len(event.message_ids), 'message')} deleted")
        case HistoryCleared():
            return Told("", (), "-- all messages removed")
        case HistoryRestored():
            left = tuple(message for message in event.messages if message.id not in set(event.removed_ids))
            return Told("", (), f"-- all messages replaced by {len(left):,} others")
        case HistoryCompacted():
            return Told(f"replaces {counted(event.count, 'message')}", (event.summary,), "")
        case HistoryExpanded():
            return Told("", (), f"-- a summary was replaced by its {counted(event.count, 'message')}")
        case ConversationUpdated():
            said = "; ".join(f"{name(key)}: {one_line(str(value), 200)}" for key, value in event.fields.items())
            return Told("", (), f"-- the record changed: {said}" if said else "-- the record changed")
        case ConversationDeleted():
            return Told("", (), "-- the conversation was deleted")
        case Reset():
            return Told(
                "",
                (),
                f"-- some changes are missing: {_REASONS[event.reason]}. `redis-history show` shows the messages "
                f"that are stored now; from revision {event.revision:,} on, all changes follow",
            )
