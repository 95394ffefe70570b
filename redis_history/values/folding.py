"""How events change a list of messages, for all readers that keep messages up to date by events."""

from __future__ import annotations

import msgspec

from redis_history.values import events
from redis_history.values.message import Message


class Fold(msgspec.Struct, frozen=True):
    """The effect of an event on a list of messages, in this order: all messages leave if `clears`; `added` are new,
    `ended` are replies that are complete now, `changed` have new content; those with the ids `removed` leave."""

    clears: bool = False
    added: tuple[Message, ...] = ()
    ended: tuple[Message, ...] = ()
    changed: tuple[Message, ...] = ()
    removed: tuple[str, ...] = ()


_NOTHING = Fold()
_CLEARS = Fold(clears=True)


def fold_of(event: events.Event) -> Fold | None:
    """The effect of an event. None: it does not have all messages that it concerns (a compaction, an expansion, a
    Reset). The growth of replies has no effect: see `ReplyGrew.applied_to`."""
    match event:
        case events.MessagesAppended():
            return Fold(added=event.messages, removed=event.removed_ids)
        case events.MessagesDeleted():
            return Fold(removed=event.message_ids)
        case events.MessageUpdated(message=None) | events.ReplyEnded(message=None):
            return Fold(removed=(event.message_id,))
        case events.MessageUpdated(message=Message() as message):
            return Fold(changed=(message,))
        case events.ReplyEnded(message=Message() as message):
            return Fold(ended=(message,))
        case events.HistoryRestored():
            return Fold(clears=True, added=event.messages, removed=event.removed_ids)
        case events.HistoryCleared() | events.ConversationDeleted():
            return _CLEARS
        case events.ConversationUpdated() | events.RunChanged() | events.TurnChanged() | events.ReplyGrew():
            return _NOTHING
        case _:
            return None
