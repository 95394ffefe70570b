"""Read which archives a conversation has, and remove what an erasure left in them."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from redis_history.store.memory.space import Space
from redis_history.store.operations.base import Call, OnConversation, Op, Steps, as_is
from redis_history.store.operations.keys import ConversationKeys
from redis_history.store.operations.scripts import PLACES, load_script
from redis_history.store.operations.settings import Settings
from redis_history.values import Position
from redis_history.values.usage import Numbers, read_days

ARCHIVES: Final = load_script("archives", "_declared", "_member", "_archive", args="known_up_to blocks", keys="state")
SCRUB: Final = load_script("scrub", "_declared", "_member", "_archive", "_contents", *PLACES, keys="state copy")

#: Blocks of the index that are read together: some 2 ms of the server's time.
_BLOCKS: Final = 10


class Archive(Struct, frozen=True):
    """The messages that the summary `summary_id` replaced, of which `former` is the summary before it (None if it
    never existed or was removed). Archives are numbered in the order of their compactions."""

    number: int
    summary_id: str | None = None
    former: str | None = None


class StoredArchive(Archive, frozen=True):
    """An archive with the position of its summary, if that exists, and the token of the compaction."""

    position: Position | None = None
    token: str = ""


class Layout(Struct, frozen=True):
    """The archives of a conversation, oldest first, its own time to live in seconds, its highest sequence, and its
    usage by day."""

    archives: tuple[StoredArchive, ...] = ()
    ttl: float | None = None
    sequence: int = 0
    usage: dict[int, Numbers] | None = None


class ReadLayout(OnConversation, Op[Layout | None], frozen=True):
    """The archives of a conversation, or None if the conversation does not exist. Many are read in several steps."""

    def steps(self, settings: Settings) -> Steps[Layout | None]:
        keys = settings.keyspace.conversation(self.conversation_id)
        archives: list[StoredArchive] = []
        more = True
        while more:
            last = archives[-1].number if archives else 0
            args = ARCHIVES.args(known_up_to=b"%d" % last, blocks=b"%d" % _BLOCKS)
            found = yield Call(ARCHIVES, (keys.state,), args, _decode)
            if found is None:
                return None
            layout: Layout
            layout, more, erased = found
            if erased:
                yield from scrub(keys)
            archives += layout.archives
        return replace(layout, archives=tuple(archives))

    def apply(self, space: Space) -> Layout | None:
        conversation = space.find(self.conversation_id)
        if conversation is None:
            return None
        archives = []
        for one in conversation.archives:
            position = conversation.stored[one.summary_id].position if one.summary_id else None
            archives.append(StoredArchive(one.revision, one.summary_id or None, one.former, position))
        usage = dict(conversation.spent) if conversation.ledger or conversation.spent else None
        return Layout(tuple(archives), conversation.ttl, conversation.sequence, usage)


def _decode(reply: list[Any]) -> tuple[Layout, bool, bool] | None:
    """The next archives, whether there are more, and whether some of them have something to remove."""
    if not reply:
        return None
    ttl, sequence, usage, more, erased, *rest = reply
    archives = []
    for number, token, summary, former, time, place in zip(*(rest[at::6] for at in range(6)), strict=True):
        position = Position(int(time), place) if summary else None
        names = summary.decode() or None, former.decode() or None
        archives.append(StoredArchive(number, *names, position, token.decode()))
    layout = Layout(
        tuple(archives), int(ttl) / 1000 if ttl else None, int(sequence), None if usage == 0 else read_days(usage)
    )
    return layout, bool(more), bool(erased)


def scrub(keys: ConversationKeys) -> Steps[None]:
    """Remove the former summaries that an erasure has made invisible. Several callers may do so at the same time."""
    extra: list[bytes] = []
    left = 1
    while left:
        call = Call(SCRUB, (keys.state, keys.copy, *extra), [], as_is)
        [reply] = yield [call]
        if type(reply) is list:  # it asks for archives
            extra = reply[1:]
        else:
            left, extra = reply, []
