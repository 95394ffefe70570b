"""Read messages that a search found, with their neighbors."""

from __future__ import annotations

import logging
from typing import Any, Final

from msgspec import Struct

from redis_history.store.operations.base import Call, OnConversation, Read, Steps
from redis_history.store.operations.contents import with_contents
from redis_history.store.operations.scripts import load_script
from redis_history.store.operations.settings import Settings
from redis_history.values import Message
from redis_history.values.wire import decode_members

FETCH: Final = load_script(
    "fetch",
    "_declared",
    "_member",
    "_archive",
    "_locate",
    args="generation around *sequences",
    keys="state messages *documents",
    asks=True,
)
_logger = logging.getLogger("redis_history")


class Fetched(Struct, frozen=True):
    """A found message and its neighbors, ascending. An archived message has archived neighbors."""

    message: Message
    before: list[Message]
    after: list[Message]
    archived: bool = False


class Fetch(OnConversation, Read[list[Fetched | None]], frozen=True):
    """Read found messages of one conversation, each with `around` neighbors before and after; None: it is gone.
    `contents`: as in `ReadPage`."""

    generation: bytes
    sequences: tuple[int, ...]
    around: int = 0
    contents: bool = True

    def call(self, settings: Settings) -> Call:
        keys = settings.keyspace.conversation(self.conversation_id)
        prefix = settings.keyspace.documents_of(self.conversation_id, self.generation)
        numbers = [b"%d" % sequence for sequence in self.sequences]
        declared = (keys.state, keys.messages, *map(prefix.__add__, numbers))
        args = FETCH.args(generation=self.generation, around=b"%d" % self.around, sequences=numbers)
        return Call(FETCH, declared, args, self._decode)

    def completed(self, found: list[Fetched | None], settings: Settings) -> Steps[list[Fetched | None]]:
        if not self.contents:
            return found
        whole: list[Fetched | None] = []
        for one in found:
            if one is not None:
                given = [one.message, *one.before, *one.after]
                message, *others = yield from with_contents(self.conversation_id, given, settings)
                before, after = others[: len(one.before)], others[len(one.before) :]
                kept = [other for other in before if other is not None], [other for other in after if other is not None]
                one = None if message is None else Fetched(message, *kept, one.archived)
            whole.append(one)
        return whole

    def _decode(self, reply: list[Any]) -> list[Fetched | None]:
        every, errors = decode_members([member for item in reply if item for member in item[0]])
        found: list[Fetched | None] = []
        start = 0
        for item in reply:
            if not item:
                found.append(None)
                continue
            members, at, archived = item
            messages = every[start : start + len(members)]
            start += len(members)
            if errors:  # some are missing in `every`
                messages, unreadable = decode_members(members)
                if unreadable:
                    name = self.conversation_id[:80]
                    _logger.error("skipped an unreadable message of conversation %r: %s", name, unreadable[0])
                    found.append(None)
                    continue
            found.append(Fetched(messages[at], messages[:at], messages[at + 1 :], bool(archived)))
        return found
