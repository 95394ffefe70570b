"""One conversation of the memory backend."""

from __future__ import annotations

import time
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from redis_history.changelog import LogEntry
from redis_history.events import Cursor
from redis_history.model import Message, Position
from redis_history.model.pairs import oldest_with_results
from redis_history.model.wire import decode_member, encode_member
from redis_history.operations import Entry

__all__ = ["ConversationState", "StoredMessage", "now"]


def now() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000


@dataclass(slots=True)
class StoredMessage:
    """What is known of a message besides its place in the order."""

    entry: Entry
    position: Position
    revision: int
    token: str


@dataclass(slots=True)
class ConversationState:
    epoch: str
    log: deque[LogEntry]
    created: int = 0
    revision: int = 0
    token: str = ""
    sequence: int = 0
    stamp: int = 0
    fence: int = 0
    updated: int = 0
    ttl: float | None = None
    ends: float = float("inf")
    characters: int = 0
    tokens: int = 0
    record: dict[str, Any] = field(default_factory=dict)
    order: list[Position] = field(default_factory=list)
    ids: dict[Position, str] = field(default_factory=dict)
    stored: dict[str, StoredMessage] = field(default_factory=dict)

    @property
    def head(self) -> Cursor:
        return Cursor(self.epoch, self.revision, self.token)

    def read(self, position: Position) -> Message:
        return decode_member(self.member(position))

    def member(self, position: Position) -> bytes:
        return encode_member(position.sequence, position.timestamp, self.stored[self.ids[position]].entry.body)

    def put(self, entry: Entry, token: str, clock: int) -> Position:
        """Store a message behind those of its time; `clock` is the time of the change."""
        timestamp = entry.timestamp
        if timestamp is None:
            timestamp = self.stamp = max(clock, self.stamp + 1)
        self.sequence += 1
        position = Position(timestamp, self.sequence)
        insort(self.order, position)
        self.ids[position] = entry.message.id
        self.stored[entry.message.id] = StoredMessage(entry, position, self.revision + 1, token)
        self.count(entry, 1)
        return position

    def take(self, message_id: str) -> None:
        stored = self.stored.pop(message_id)
        del self.order[bisect_left(self.order, stored.position)]
        del self.ids[stored.position]
        self.count(stored.entry, -1)

    def empty(self) -> None:
        self.order, self.ids, self.stored = [], {}, {}
        self.characters = self.tokens = 0

    def count(self, entry: Entry, sign: int) -> None:
        self.characters += sign * entry.characters
        self.tokens += sign * entry.tokens

    def trim(self, most: int) -> list[str]:
        """Take the oldest away, and with a tool call its result; the ids that are gone."""
        entries = [self.stored[self.ids[position]].entry for position in self.order]
        gone = oldest_with_results([entry.tools for entry in entries], len(entries) - most)
        ids = [entries[index].message.id for index in gone]
        for message_id in ids:
            self.take(message_id)
        return ids
