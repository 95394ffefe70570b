"""What compaction and expansion share: their steps, and the search documents of what has moved. Pure: no I/O here."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

from redis_history.backends.redis.calls import Call, Settings, as_is
from redis_history.backends.redis.keys import pack_keys
from redis_history.backends.redis.scripts import MARK
from redis_history.model import Position

__all__ = ["PAGE", "Steps", "marked", "plain", "position_of"]

#: Messages read at once.
PAGE: Final = 1000
#: Search documents marked at once: 5 to 8 ms of the server's time, as each is indexed anew.
_MARKED: Final = 50

#: Yields a call, or several that do no harm when repeated; is sent the outcome, or the outcomes.
Steps = Generator[Any, Any, Any]


def marked(
    settings: Settings, conversation_id: str, sequences: list[int], archived: bytes, reply: list[Any]
) -> Call | None:
    """Tells the search documents of messages, some at a time, where their messages are now; if these have moved."""
    if type(reply[0]) is bytes and reply[0] != b"stored":
        return None
    keys = settings.keyspace.conversation(conversation_id)

    def chunk(start: int, life: bytes) -> Call | None:
        share = sequences[start : start + _MARKED]
        if not share:
            return None
        prefix = settings.keyspace.documents_of(conversation_id, life)
        packed = pack_keys(keys.state, *(b"%b%d" % (prefix, sequence) for sequence in share))
        return Call(MARK, packed, [life, archived], as_is, follow=lambda _: chunk(start + _MARKED, life))

    def begin(life: bytes | None) -> Call | None:
        return None if life is None else chunk(0, life)

    return Call(None, b"", [b"HGET", keys.state, b"i"], as_is, follow=begin)


def position_of(place: bytes) -> Position:
    return Position(int.from_bytes(place[11:19], "big", signed=True), int.from_bytes(place[2:10], "big"))


def plain(*command: bytes) -> Call:
    return Call(None, b"", [*command], as_is)
