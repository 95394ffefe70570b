"""Read messages that a search found, with their neighbors."""

from __future__ import annotations

import logging
from typing import Any, Final

from msgspec import Struct

from redis_history.errors import CorruptDataError
from redis_history.model import Message
from redis_history.model.wire import decode_member
from redis_history.operations.base import Call, Read, load_script
from redis_history.operations.keys import pack_keys
from redis_history.operations.settings import Settings

FETCH: Final = load_script("fetch", "_member", "_archive", "_locate", asks=True)
_logger = logging.getLogger("redis_history")


class Fetched(Struct, frozen=True):
    """A found message and its neighbors, ascending. An archived message has archived neighbors."""

    message: Message
    before: list[Message]
    after: list[Message]
    archived: bool = False


class Fetch(Struct, Read[list[Fetched | None]], frozen=True):
    """Read found messages of one conversation, each with `around` neighbors before and after; None: it is gone."""

    conversation_id: str
    generation: bytes
    sequences: tuple[int, ...]
    around: int = 0

    def call(self, settings: Settings) -> Call:
        keys = settings.keyspace.conversation(self.conversation_id)
        prefix = settings.keyspace.documents_of(self.conversation_id, self.generation)
        packed = pack_keys(keys.state, keys.messages, *(b"%b%d" % (prefix, sequence) for sequence in self.sequences))
        args = [self.generation, b"%d" % self.around, *(b"%d" % sequence for sequence in self.sequences)]
        return Call(FETCH, packed, args, self._decode)

    def _decode(self, reply: list[Any]) -> list[Fetched | None]:
        found: list[Fetched | None] = []
        for item in reply:
            try:
                if not item:
                    found.append(None)
                    continue
                messages = [decode_member(member) for member in item[0]]
                at = item[1]
                found.append(Fetched(messages[at], messages[:at], messages[at + 1 :], bool(item[2])))
            except CorruptDataError as error:
                _logger.error("skipped an unreadable message of conversation %r: %s", self.conversation_id[:80], error)
                found.append(None)
        return found
