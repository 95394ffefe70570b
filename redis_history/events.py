"""What a subscriber receives: one value per change of a conversation, in order.

Every change carries the `revision` it made (contiguous: 1, 2, 3 …) and a `cursor` to resume after it.
`Reset` stands for changes that can no longer be told: read the conversation again, then go on from its cursor.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from redis_history.errors import InvalidCursorError
from redis_history.model import Message, Position

__all__ = [
    "Change",
    "ConversationDeleted",
    "ConversationUpdated",
    "Cursor",
    "Event",
    "HistoryCleared",
    "HistoryCompacted",
    "HistoryExpanded",
    "HistoryRestored",
    "MessageUpdated",
    "MessagesAppended",
    "MessagesDeleted",
    "Reset",
    "ResetReason",
]

_CURSOR = re.compile(r"([0-9a-f]{16}):([0-9]{1,16}):([0-9a-f]{16})")
_NOTHING = "0" * 16


class Cursor(msgspec.Struct, frozen=True):
    """Where a subscriber is: which life of the conversation, which change, and that change's random token.

    The token is checked on resume, so a server that lost data and counts anew is noticed. The text form
    (`str(cursor)`, `Cursor.parse`) is `epoch:revision:token`; it is safe to hand to a browser, which learns nothing
    from it.
    """

    epoch: str
    revision: int
    token: str

    def __str__(self) -> str:
        return f"{self.epoch}:{self.revision}:{self.token}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Raises InvalidCursorError for anything but the text form of a cursor."""
        match = _CURSOR.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise InvalidCursorError(f"{str(text)[:64]!a} is not a cursor; pass one from an event, or None for now on")
        return cls(match[1], int(match[2]), match[3])


#: Before the first change of a conversation that does not exist yet.
BEGINNING = Cursor(_NOTHING, 0, _NOTHING)


class Change(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """One change of a conversation."""

    conversation_id: str
    revision: int
    cursor: Cursor


class MessagesAppended(Change, frozen=True, tag="messages_appended"):
    """Messages were added by one atomic change, in this order.

    `removed_ids` are the oldest, which the same change took away because of `max_messages`.
    """

    messages: tuple[Message, ...]
    removed_ids: tuple[str, ...] = ()


class MessagesDeleted(Change, frozen=True, tag="messages_deleted"):
    """Messages were removed by id."""

    message_ids: tuple[str, ...]


class MessageUpdated(Change, frozen=True, tag="message_updated"):
    """A message has other content, at the same place."""

    message: Message


class HistoryCleared(Change, frozen=True, tag="history_cleared"):
    """All messages were removed; the conversation is still there."""


class HistoryRestored(Change, frozen=True, tag="history_restored"):
    """These messages, less those of `removed_ids`, took the place of all there were."""

    messages: tuple[Message, ...]
    removed_ids: tuple[str, ...] = ()


class HistoryCompacted(Change, frozen=True, tag="history_compacted"):
    """A summary took the place of the oldest `count` messages, which are in the archive now.

    These are all messages with a position up to that of the summary, but for system messages that are no summaries.
    """

    summary: Message
    count: int

    @property
    def through(self) -> Position:
        """The position of the last message that was replaced."""
        position = self.summary.position
        assert position is not None  # noqa: S101 -- the store has placed it
        return position


class HistoryExpanded(Change, frozen=True, tag="history_expanded"):
    """What a summary had replaced, `count` messages, is back in its place; the summary is gone. Read the messages to
    have them: there may be more than an event should carry."""

    summary_id: str
    count: int


class ConversationUpdated(Change, frozen=True, tag="conversation_updated"):
    """The record of the conversation was created or changed; `fields` are the ones that were written."""

    fields: dict[str, Any]


class ConversationDeleted(Change, frozen=True, tag="conversation_deleted"):
    """The conversation is gone. If it is created again, a Reset follows."""


ResetReason = Literal[
    "log_trimmed", "log_unreadable", "conversation_missing", "conversation_replaced", "server_rewound"
]


class Reset(Change, frozen=True, tag="reset"):
    """Changes after the subscriber's cursor cannot be told; the state as of `revision` stands for them.

    Reasons: `log_trimmed` (the change log no longer reaches back), `log_unreadable` (an entry is corrupt, or of a
    newer version of this package), `conversation_missing` (deleted or expired while
    nobody watched), `conversation_replaced` (deleted and created again), `server_rewound` (the server lost
    acknowledged changes, e.g. in a failover). Read the conversation again; events then go on after `revision`.
    """

    reason: ResetReason


Event = (
    MessagesAppended
    | MessagesDeleted
    | MessageUpdated
    | HistoryCleared
    | HistoryCompacted
    | HistoryExpanded
    | HistoryRestored
    | ConversationUpdated
    | ConversationDeleted
    | Reset
)
