"""What a memory backend holds, and what all its operations do with it: find, check, begin, write."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

from redis_history.backends import refusals
from redis_history.backends.base import Wake, WakeAll
from redis_history.backends.memory.state import ConversationState, now
from redis_history.changelog import LogEntry, encode_ids
from redis_history.events import BEGINNING, Cursor
from redis_history.operations import Lease, Precondition

__all__ = ["Space", "held_then"]

#: Seconds for which those who follow all conversations may still read the log of a deleted one.
_OUTLIVES: Final = 60.0


@dataclass(slots=True)
class Space:
    """The conversations, and who watches them. For one caller at a time: the backend has the lock."""

    log_length: int
    ttl: float | None
    max_messages: int | None
    max_conversations: int | None
    conversations: dict[str, ConversationState] = field(default_factory=dict)
    #: Logs of deleted conversations, for those who were watching; and when each was deleted, the oldest first.
    ended: dict[str, deque[LogEntry]] = field(default_factory=dict)
    deleted: dict[str, float] = field(default_factory=dict)
    watchers: dict[str, list[Wake]] = field(default_factory=dict)
    watchers_of_all: list[WakeAll] = field(default_factory=list)
    #: Who works on a conversation, and until when.
    leases: dict[str, tuple[Lease, float]] = field(default_factory=dict)

    def find(self, conversation_id: str) -> ConversationState | None:
        """None if there is none, or if its time is over."""
        conversation = self.conversations.get(conversation_id)
        if conversation is not None and conversation.ends <= time.time():
            del self.conversations[conversation_id]
            return None
        return conversation

    def begin(self, conversation_id: str, token: str) -> tuple[ConversationState, bool]:
        """The conversation, a new one if need be, and whether it takes the place of one whose log was still there."""
        conversation = self.find(conversation_id)
        if conversation is not None:
            return conversation, False
        replaces = self.ended.pop(conversation_id, None) is not None
        self.deleted.pop(conversation_id, None)
        if self.max_conversations is not None and len(self.conversations) >= self.max_conversations:
            del self.conversations[min(self.conversations, key=lambda name: self.conversations[name].updated)]
        conversation = ConversationState(token, deque(maxlen=self.log_length))
        self.conversations[conversation_id] = conversation
        return conversation, replaces

    def check(self, conversation_id: str, precondition: Precondition) -> None:
        """Raises what is in `refusals` unless a write may begin."""
        conversation = self.find(conversation_id)
        revision = conversation.revision if conversation else 0
        if precondition.expected_revision not in (None, revision):
            raise refusals.revision_conflict(conversation_id, revision, precondition.expected_revision)
        if precondition.must_exist and conversation is None:
            raise refusals.conversation_missing(conversation_id)
        if precondition.must_not_exist and conversation is not None:
            raise refusals.conversation_exists(conversation_id, revision)
        if precondition.lease is not None and not self.holds(precondition.lease):
            raise refusals.lease_lost(conversation_id)

    def trimmed(self, conversation: ConversationState) -> bytes:
        """Let the oldest messages leave if there are too many; their ids, as the change log has them."""
        if self.max_messages is None or len(conversation.order) <= self.max_messages:
            return b""
        return encode_ids(conversation.trim(self.max_messages))

    def write(
        self,
        op: Any,
        conversation: ConversationState,
        kind: str,
        payload: bytes,
        replaces: bool = False,
        removed: bytes = b"",
    ) -> int:
        """Make a change count: revision, times, change log; the revision after it."""
        conversation.revision += 1
        conversation.token = op.token
        conversation.updated = now()
        conversation.created = conversation.created or conversation.updated
        conversation.log.append(LogEntry(conversation.revision, op.token, kind, payload, replaces, removed))
        conversation.ttl = self.ttl or conversation.ttl
        if conversation.ttl is not None:
            conversation.ends = time.time() + conversation.ttl
        return conversation.revision

    def end(self, conversation_id: str) -> Cursor:
        """The head of a conversation that does not exist: the end of its former life, if that is still known."""
        log = self.ended.get(conversation_id)
        return Cursor(BEGINNING.epoch, log[-1].revision, log[-1].token) if log else BEGINNING

    def is_free(self, conversation_id: str) -> bool:
        """Whether nobody works on a conversation."""
        if self.leases.get(conversation_id, (None, 0.0))[1] <= time.monotonic():
            self.leases.pop(conversation_id, None)
        return conversation_id not in self.leases

    def holds(self, lease: Lease) -> bool:
        """Whether a lease is the present one of its conversation."""
        return not self.is_free(lease.conversation_id) and self.leases[lease.conversation_id][0] == lease

    def forget_ended(self) -> None:
        """Let go of the logs of deleted conversations that nobody will read any more."""
        limit = time.monotonic() - _OUTLIVES if self.watchers_of_all else float("inf")
        for name, at in list(self.deleted.items()):
            if at > limit:
                break
            if name not in self.watchers:
                self.ended.pop(name, None)
                del self.deleted[name]


def held_then(precondition: Precondition, stored_at: int) -> bool:
    """Whether the precondition held for the call that stored messages as revision `stored_at`."""
    if precondition.expected_revision not in (None, stored_at - 1):
        return False
    return not precondition.must_not_exist or stored_at == 1
