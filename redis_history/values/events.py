"""Events: one for each change of a conversation, in order.

Every change has the `revision` it made (contiguous: 1, 2, 3 …) and a `cursor` to resume after it. `Reset` replaces
changes that are no longer available: read the conversation again, then continue from its cursor.

An event has its messages as they are when it is read, and the ids of those that have been removed since.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

import msgspec

from redis_history.errors import InvalidCursorError
from redis_history.values import Message, Part, Position
from redis_history.values.ids import check_conversation_id
from redis_history.values.replies import grown
from redis_history.values.runs import RunInfo
from redis_history.values.times import from_microseconds
from redis_history.values.turns import Turn

__all__ = [
    "Change", "ConversationDeleted", "ConversationUpdated", "Cursor", "Event", "HistoryCleared", "HistoryCompacted",
    "HistoryExpanded", "HistoryRestored", "MessageUpdated", "MessagesAppended", "MessagesDeleted", "ReplyEnded",
    "ReplyGrew", "Reset", "ResetReason", "RunChanged", "TurnChanged",
]  # fmt: skip

_CURSOR = re.compile(r"([0-9a-f]{16}):([0-9]{1,16}):([0-9a-f]{20})")


class Cursor(msgspec.Struct, frozen=True):
    """The position of a subscriber: the generation of the conversation (`epoch`), the last change that was seen
    (`revision`), and the `token` of that change: its kind, time and random bytes.

    The token is checked on resume, to notice a server that lost data and counts anew. The text form (`str(cursor)`,
    `Cursor.parse`) is `epoch:revision:token`. It is safe to send to a browser.
    """

    epoch: str
    revision: int
    token: str

    def __str__(self) -> str:
        return f"{self.epoch}:{self.revision}:{self.token}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """The cursor of a text form. Raises InvalidCursorError for anything but the text form of a cursor."""
        match = _CURSOR.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise InvalidCursorError(f"{str(text)[:64]!a} is not a cursor; pass one from an event, or None for now on")
        return cls(match[1], int(match[2]), match[3])

    @classmethod
    def of(cls, after: Cursor | str | None) -> Cursor | None:
        """Raises InvalidCursorError for anything but a cursor, its text form or None."""
        return after if after is None or isinstance(after, Cursor) else cls.parse(after)


def cursors_of(after: Mapping[str, Cursor | str] | None) -> dict[str, Cursor] | None:
    """Raises InvalidCursorError or InvalidConversationIdError for anything but cursors by conversation id, or None."""
    if after is None:
        return None
    if not isinstance(after, Mapping):
        raise InvalidCursorError(
            f"subscribe_all takes a dict of cursors by conversation id, or None for now on, not {type(after).__name__}"
        )
    for conversation_id in after:
        check_conversation_id(conversation_id)
    return {one: cursor if isinstance(cursor, Cursor) else Cursor.parse(cursor) for one, cursor in after.items()}


#: Before the first change of a conversation that does not exist yet.
BEGINNING = Cursor("0" * 16, 0, "0" * 20)
#: The same for readers that need not know whether there was another conversation of this id before.
ANEW = Cursor("0" * 16, 0, "")


class Change(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """One change of the conversation `conversation_id`. `revision` is its number, and `cursor` resumes after it."""

    conversation_id: str
    revision: int
    cursor: Cursor

    @property
    def changed_at(self) -> datetime | None:
        """The time of the newest change up to `revision`, or None before the first change."""
        microseconds = int(self.cursor.token[:14], 16) % (1 << 52)
        return from_microseconds(microseconds) if microseconds else None

    @property
    def delta(self) -> str:
        """The text that this event appends to a reply: see ReplyGrew."""
        return ""


class MessagesAppended(Change, frozen=True, tag="messages_appended"):
    """`messages` were added by one change, in this order. `removed_ids` are the oldest, which `max_messages` removed in
    the same change. `gone_ids`: those of the added messages that were removed since, one by one (not by a later clear
    or restore)."""

    messages: tuple[Message, ...]
    removed_ids: tuple[str, ...] = ()
    gone_ids: tuple[str, ...] = ()


class MessagesDeleted(Change, frozen=True, tag="messages_deleted"):
    """The messages `message_ids` were removed."""

    message_ids: tuple[str, ...]


class MessageUpdated(Change, frozen=True, tag="message_updated"):
    """The content of message `message_id` was replaced, at the same position. `message` is the new one; None: it was
    removed since."""

    message_id: str
    message: Message | None


class ReplyGrew(Change, frozen=True, tag="reply_grew"):
    """Message `message_id`, which `store.stream` is writing, has grown by `parts`: they append `delta` to its text,
    which had `offset` characters. Text at their beginning continues the last part of the message if that is plain text.

    The first event of a reply in a subscription has all its parts so far, and `whole` is true. So the deltas, joined,
    are the text. If you have some of it from elsewhere, `text[:event.offset] + event.delta` is the text. The
    conversation does not change: `revision` and `cursor` are those of the last change.
    """

    message_id: str
    offset: int
    delta: str
    parts: tuple[Part, ...]
    whole: bool = False

    def applied_to(self, message: Message) -> Message:
        """The grown message, from the message as this subscription or a snapshot gave it."""
        return grown(message, self.parts, whole=self.whole)


class ReplyEnded(Change, frozen=True, tag="reply_ended"):
    """The reply `message_id` has ended: its `status` is "complete" or "interrupted". `message` is all of it; None: it
    was removed since. `delta` and `offset`: the rest of its text, as in ReplyGrew. If an edit has ended it, or has
    changed it since, `offset` may be 0, and `delta` all of the text."""

    message_id: str
    message: Message | None
    offset: int
    delta: str


class RunChanged(Change, frozen=True, tag="run_changed"):
    """The run of the conversation is another one, or has another state: `run` is its state when the event was read.
    States that lasted for a moment may be left out. An active run comes at the beginning of a subscription, too.

    The conversation does not change: `revision` and `cursor` are those of the last change.
    """

    run: RunInfo


class TurnChanged(Change, frozen=True, tag="turn_changed"):
    """The turns of the conversation are others, or have another state: `turns` is what it was owed when the event was
    read, empty if nothing. States that lasted for a moment may be left out. Turns that are there already come at the
    beginning of a subscription, too.

    The conversation does not change: `revision` and `cursor` are those of the last change.
    """

    turns: tuple[Turn, ...]


class HistoryCleared(Change, frozen=True, tag="history_cleared"):
    """All messages were removed. The conversation still exists."""


class HistoryRestored(Change, frozen=True, tag="history_restored"):
    """All messages were replaced by `messages`, without those of `removed_ids`, which `max_messages` removed.
    `gone_ids` as for MessagesAppended."""

    messages: tuple[Message, ...]
    removed_ids: tuple[str, ...] = ()
    gone_ids: tuple[str, ...] = ()


class HistoryCompacted(Change, frozen=True, tag="history_compacted"):
    """The summary `summary_id` replaced the oldest `count` messages, which are in the archive now: all messages with a
    position up to `through`, that of the summary, except system messages that are not summaries, replies that are being
    written, and pinned messages with their tool calls and results, which may follow later. `summary` is None if it was
    removed since."""

    summary_id: str
    summary: Message | None
    through: Position
    count: int


class HistoryExpanded(Change, frozen=True, tag="history_expanded"):
    """The `count` messages that the summary `summary_id` had replaced are back, and the summary is removed. Read the
    messages: there may be too many for an event."""

    summary_id: str
    count: int


class ConversationUpdated(Change, frozen=True, tag="conversation_updated"):
    """The record of the conversation was created or changed; `fields` are the written fields with their present
    values."""

    fields: dict[str, Any]


class ConversationDeleted(Change, frozen=True, tag="conversation_deleted"):
    """The conversation was deleted. If it is created again, a Reset follows."""


ResetReason = Literal[
    "log_trimmed", "log_unreadable", "conversation_missing", "conversation_replaced", "server_rewound"
]


class Reset(Change, frozen=True, tag="reset"):
    """Changes after the cursor of the subscriber are not available. The state at `revision` replaces them.

    Values of `reason`: `log_trimmed` (the change log does not reach back so far), `log_unreadable` (an entry is
    corrupt, or of a newer version of this package), `conversation_missing` (deleted or expired),
    `conversation_replaced` (deleted and created again), `server_rewound` (the server lost acknowledged changes, for
    example in a failover). Read the conversation again with `snapshot`, and resume from its cursor. Or continue this
    subscription: its next event is the one after `revision` (0: the conversation does not exist), which a snapshot read
    in the meantime may already include.
    """

    reason: ResetReason


Event = (
    MessagesAppended
    | MessagesDeleted
    | MessageUpdated
    | ReplyGrew
    | ReplyEnded
    | RunChanged
    | TurnChanged
    | HistoryCleared
    | HistoryCompacted
    | HistoryExpanded
    | HistoryRestored
    | ConversationUpdated
    | ConversationDeleted
    | Reset
)
