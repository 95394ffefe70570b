"""A copy of a conversation that follows all its changes."""

from collections.abc import Iterator

from redis_history import (
    ConversationDeleted,
    HistoryCleared,
    HistoryCompacted,
    HistoryExpanded,
    HistoryRestored,
    HistoryStore,
    Message,
    MessagesAppended,
    MessagesDeleted,
    MessageUpdated,
    ReplyEnded,
    ReplyGrew,
    Reset,
    RunChanged,
    TurnChanged,
)


def states(store: HistoryStore, conversation_id: str) -> Iterator[dict[str, Message]]:
    """All messages of a conversation, by id: as they are now, and again after every change."""
    while True:
        snapshot = store.snapshot(conversation_id)  # what there is, and the cursor of exactly that
        known = {message.id: message for message in snapshot.messages}
        yield known
        with store.subscribe(conversation_id, after=snapshot.cursor) as changes:
            for event in changes:
                if isinstance(event, (HistoryCleared, HistoryRestored, ConversationDeleted)):
                    known.clear()
                match event:
                    case MessagesAppended() | HistoryRestored():
                        known.update((message.id, message) for message in event.messages)
                        for message_id in event.removed_ids:  # the oldest, if there is a cap
                            known.pop(message_id, None)
                    case ReplyGrew():  # a reply that is being written: docs/how-to/live-replies.md
                        known[event.message_id] = event.applied_to(known[event.message_id])
                    case MessageUpdated() | ReplyEnded():
                        if event.message is not None:  # None: it has left since, as a later event tells
                            known[event.message_id] = event.message
                    case MessagesDeleted():
                        for message_id in event.message_ids:
                            known.pop(message_id, None)
                    case RunChanged() | TurnChanged():  # who works on it, or is asked to: docs/how-to/runs.md
                        continue
                    case HistoryCompacted() | HistoryExpanded() | Reset():
                        break  # read again
                yield known
            else:
                return  # the subscription was closed
