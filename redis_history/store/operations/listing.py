"""Lists of conversations: the newest, all of them, or how many.

Each bucket's registry is a sorted set of its conversations by time of last change, read in pages. No KEYS, no SCAN, and
no command that takes the server long."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, cast

from msgspec import Struct

from redis_history.errors import CorruptDataError, InvalidInputError
from redis_history.store.memory.space import Space
from redis_history.store.operations.base import Call, Op, Steps, Upkeep, as_is, once, plain, readable
from redis_history.store.operations.keys import BUCKETS, Keyspace
from redis_history.store.operations.page import ReadPage, page_of
from redis_history.store.operations.record import STATE_FIELDS, ReadConversation, conversation_of
from redis_history.store.operations.scripts import load_script
from redis_history.store.operations.settings import Settings
from redis_history.store.operations.stream import refreshed
from redis_history.values import Conversation, Message, Position
from redis_history.values.contents import readable_text
from redis_history.values.ids import check_conversation_id
from redis_history.values.times import from_microseconds, to_microseconds

FORGET: Final = load_script("forget", args="*names", keys="list *states")
POLL: Final = load_script("poll", args="registries *known")
_logger = logging.getLogger("redis_history")

#: States read in one round trip.
_CHUNK: Final = 500
#: Members of one bucket read together for a listing, and for a query of changes.
_LISTED: Final = 256
#: Messages to read from the start of a conversation to find a title.
FIRST_MESSAGES: Final = 4
_EPOCH: Final = from_microseconds(0)


class Selection(Struct, frozen=True):
    """The conversations of one owner, of one agent, or that are forks of one conversation; of all that are given."""

    user_id: int | str | None = None
    agent_name: str | None = None
    forked_from: str | None = None

    def has(self, conversation: Conversation) -> bool:
        """Whether it belongs to them."""
        origin = conversation.forked_from and conversation.forked_from.conversation_id
        return (
            self.user_id in (None, conversation.user_id)
            and self.agent_name in (None, conversation.agent_name)
            and self.forked_from in (None, origin)
        )

    def lists(self, conversation: Conversation) -> bool:
        """Whether it belongs in these lists."""
        if self.forked_from is not None:
            return Selection(forked_from=self.forked_from).has(conversation)
        return Selection(self.user_id, self.agent_name if self.user_id is None else None).has(conversation)

    def registries(self, settings: Settings) -> list[bytes]:
        keyspace = settings.keyspace
        if self.forked_from is not None:
            return keyspace.lists("f", self.forked_from)
        if self.user_id is not None:
            return keyspace.lists("u", self.user_id)
        return keyspace.registries() if self.agent_name is None else keyspace.lists("v", self.agent_name)


class Place(NamedTuple):
    """A place in a list, behind a conversation: the time of its last change in microseconds, and its id. It reveals no
    more than this conversation, in particular not the number of conversations before it."""

    changed: int
    conversation_id: str

    @classmethod
    def of(cls, conversation: Conversation) -> Place:
        changed = conversation.updated_at
        return cls(0 if changed is None else to_microseconds(changed), conversation.conversation_id)

    @classmethod
    def parse(cls, text: str) -> Place:
        """Raises InvalidInputError."""
        changed, _, conversation_id = text.partition(".")
        if not changed.isascii() or not changed.isdigit() or len(changed) > 16 or not conversation_id:
            raise InvalidInputError(f"cursor must be `next` of a page, not {text[:20]!r}")
        check_conversation_id(conversation_id)
        return cls(int(changed), conversation_id)

    def __str__(self) -> str:
        return f"{self.changed}.{self.conversation_id}"


class Preview(Struct, frozen=True):
    """How a list shows a `conversation`: its `title` (by default the first 80 characters of the first message of a
    user; "" without one), and its newest message, `last_message`."""

    conversation: Conversation
    title: str
    last_message: Message | None

    @classmethod
    def of(cls, conversation: Conversation, first: Iterable[Message], newest: Sequence[Message]) -> Preview:
        """From its first messages and the newest one."""
        said = (readable_text(one.text)[0] for one in first if one.role == "user" and not one.is_summary)
        text = " ".join(next(said, "").split())
        title = conversation.title or (text if len(text) <= 80 else text[:79].rstrip() + "…")
        return cls(conversation, title, newest[-1] if newest else None)


class ListPreviews(Selection, Op[list[Preview]], frozen=True, kw_only=True):
    """Like ListConversations, with previews."""

    limit: int
    offset: int = 0
    after: Place | None = None

    def steps(self, settings: Settings) -> Steps[list[Preview]]:
        return _newest(self, settings)

    def apply(self, space: Space) -> list[Preview]:
        listing = ListConversations(
            self.user_id, self.agent_name, self.forked_from, limit=self.limit, offset=self.offset, after=self.after
        )
        previews = []
        for one in listing.apply(space):
            first, last = (
                ReadPage(one.conversation_id, count, newest=count == 1, contents="none").apply(space)
                for count in (FIRST_MESSAGES, 1)
            )
            previews.append(Preview.of(one, first.messages, last.messages))
        return previews


class ListConversations(Selection, Op[list[Conversation]], frozen=True, kw_only=True):
    """Conversations by time of their last change, newest first. `after`: only those behind this place; if its
    conversation has changed since, those that had not changed then."""

    limit: int
    offset: int = 0
    after: Place | None = None

    def steps(self, settings: Settings) -> Steps[list[Conversation]]:
        return [one.conversation for one in (yield from _newest(self, settings))]

    def apply(self, space: Space) -> list[Conversation]:
        found = [ReadConversation(name).apply(space) for name in list(space.conversations)]
        wanted = [conversation for conversation in found if conversation is not None and self.has(conversation)]
        wanted.sort(key=lambda conversation: conversation.updated_at or _EPOCH, reverse=True)
        start = self.offset
        if self.after is not None:
            places = [Place.of(conversation) for conversation in wanted]
            if self.after in places:
                start += places.index(self.after) + 1
            else:
                earlier = (at for at, place in enumerate(places) if place.changed <= self.after.changed)
                start += next(earlier, len(places))
        return wanted[start : start + self.limit]


class CountConversations(Selection, Op[int], frozen=True):
    """The number of conversations. At most one selection is given. Expired ones count until a list finds them gone."""

    def steps(self, settings: Settings) -> Steps[int]:
        return sum((yield [plain(b"ZCARD", key) for key in self.registries(settings)]))

    def apply(self, space: Space) -> int:
        found = (ReadConversation(name).apply(space) for name in list(space.conversations))
        return sum(one is not None and self.has(one) for one in found)


class Scanned(Struct, frozen=True):
    """A page of a scan, and the `cursor` of the next page (None: the scan has ended)."""

    conversations: list[Conversation]
    cursor: Any = None


class ScanConversations(Selection, Op[Scanned], frozen=True, kw_only=True):
    """Read a page of about `limit` conversations, possibly empty, unordered, from `cursor` on (None: the first page).

    A scan finds each conversation that exists all the time. Conversations that change in the meantime may appear twice.
    """

    limit: int = 500
    cursor: Any = None

    def steps(self, settings: Settings) -> Steps[Scanned]:
        """Reads a page of the conversations by ascending score. A conversation that changes appears again."""
        unread: list[_Unread] = self.cursor or [_Unread(key) for key in self.registries(settings)]
        count = min(max(8, self.limit // len(unread)), _LISTED - 1)
        pages = yield [by_score(rest.key, rest.score, count + len(rest.read)) for rest in unread]
        names: list[tuple[float, bytes, bytes]] = []
        remaining = []
        for rest, pairs in zip(unread, pages, strict=True):
            names += [(score, name, rest.key) for score, name in pairs if name not in rest.read]
            if len(pairs) == count + len(rest.read):
                last = pairs[-1][0]
                remaining.append(
                    _Unread(rest.key, b"%d" % last, frozenset(name for score, name in pairs if score == last))
                )
        found = []
        for start in range(0, len(names), _CHUNK):
            found += yield from _read_records(self, settings, names[start : start + _CHUNK])
        return Scanned([one.conversation for one in found], remaining or None)

    def apply(self, space: Space) -> Scanned:
        names = sorted(name for name in space.conversations if self.cursor is None or name > self.cursor)[: self.limit]
        found = [ReadConversation(name).apply(space) for name in names]
        cursor = names[-1] if len(names) == self.limit else None
        return Scanned([one for one in found if one is not None and self.has(one)], cursor)


def _newest(op: ListConversations | ListPreviews, settings: Settings) -> Steps[list[Preview]]:
    """The newest conversations, merged from all buckets; ListConversations gets previews without messages."""
    bound = None if op.after is None else (yield from _bound_of(op.after, op, settings))
    buckets = [Bucket(key, bound) for key in op.registries(settings)]
    wanted = op.offset + op.limit
    count = min(max(8, -(-2 * wanted // BUCKETS)), _LISTED)
    found: list[Preview] = []
    seen: set[bytes] = set()
    while len(found) < wanted and has_more(buckets):
        yield from refill(buckets, count)
        count = min(2 * count, _LISTED)
        items = merged(buckets)
        start = 0
        while start < len(items) and len(found) < wanted:
            # Nearly all match, so only the wanted number is read, except when one list is filtered by another value.
            given = (op.user_id, op.agent_name, op.forked_from)
            size = min(_CHUNK, wanted - len(found)) if given.count(None) > 1 else _CHUNK
            # A conversation that changes during the listing appears again. Its first place counts.
            chunk = [item for item in items[start : start + size] if item[1] not in seen]
            start += size
            seen.update(name for _, name, _ in chunk)
            found += yield from _read_records(op, settings, chunk)
    return found[op.offset : wanted]


def _bound_of(place: Place, op: Selection, settings: Settings) -> Steps[_Bound]:
    """Where a list goes on behind a place. A score is at least the time of the change, and usually that."""
    keys = settings.keyspace.conversation(place.conversation_id)
    list_ = op.registries(settings)[Keyspace.bucket_of(place.conversation_id)]
    changed, score = yield [plain(b"HGET", keys.state, b"u"), plain(b"ZSCORE", list_, keys.name)]
    if changed is None or score is None or int(changed) != place.changed:  # it has moved to the front, or is gone
        return _Bound(place.changed, b"")
    return _Bound(int(float(score)), keys.name)


def has_more(buckets: Iterable[Bucket]) -> bool:
    return not all(bucket.exhausted and not bucket.ahead for bucket in buckets)


def refill(buckets: Iterable[Bucket], count: int) -> Steps[None]:
    """Reads `count` further members of each bucket that has more, in one round trip."""
    short = [bucket for bucket in buckets if not bucket.exhausted]
    if short:
        for bucket, pairs in zip(short, (yield [bucket.read(count) for bucket in short]), strict=True):
            bucket.add(pairs, count)


def merged(buckets: Sequence[Bucket]) -> list[tuple[float, bytes, bytes]]:
    """Removes from `ahead` the conversations that no unread one can precede, newest first."""
    horizon = max(
        (bucket.ahead[-1][0] for bucket in buckets if bucket.ahead and not bucket.exhausted), default=float("-inf")
    )
    found = []
    for bucket in buckets:
        certain = [pair for pair in bucket.ahead if pair[0] >= horizon]
        bucket.ahead = bucket.ahead[len(certain) :]
        found += [(score, name, bucket.key) for score, name in certain]
    found.sort(key=lambda item: (-item[0], item[1]))
    return found


class _Bound(NamedTuple):
    """The highest score, and among those with this score the last name that is left out."""

    score: int
    name: bytes


class Bucket:
    """The progress in one bucket's list. `ahead`: read, but not merged yet."""

    def __init__(self, key: bytes, bound: _Bound | None = None) -> None:
        self.key = key
        self.bound = bound
        self.start = 0
        self.ahead: list[tuple[float, bytes]] = []
        self.exhausted = False

    def read(self, count: int) -> Call:
        if self.bound is not None:
            window = (b"BYSCORE", b"REV", b"LIMIT", b"%d" % self.start, b"%d" % count, b"WITHSCORES")
            return plain(b"ZRANGE", self.key, b"%d" % self.bound.score, b"-inf", *window, decode=pairs_of)
        last = self.start + count - 1
        return plain(b"ZREVRANGE", self.key, b"%d" % self.start, b"%d" % last, b"WITHSCORES", decode=pairs_of)

    def add(self, pairs: list[tuple[float, bytes]], count: int) -> None:
        self.start += len(pairs)
        self.ahead += [
            pair for pair in pairs if self.bound is None or pair[0] < self.bound.score or pair[1] > self.bound.name
        ]
        self.exhausted = len(pairs) < count


class AscendingBucket(Bucket):
    """The same in ascending order: by the scores with a minus."""

    def read(self, count: int) -> Call:
        last = self.start + count - 1
        return plain(b"ZRANGE", self.key, b"%d" % self.start, b"%d" % last, b"WITHSCORES", decode=_negated)


def _negated(reply: list[Any]) -> list[tuple[float, bytes]]:
    return [(-score, name) for score, name in pairs_of(reply)]


class _Unread(NamedTuple):
    """The rest of one bucket's list: members from this score on, except `read`: those with exactly this score. These
    are one name, because the store gives no score twice in a list."""

    key: bytes
    score: bytes = b"-inf"
    read: frozenset[bytes] = frozenset()


#: See `ReadMarks`.
Marks = tuple[object, ...]


class ReadMarks(Struct, Op[Marks], frozen=True):
    """What changes with every change, new conversation or deletion of the namespace, so that a worker need not list the
    conversations when nothing has happened. Marks can only be compared."""

    def steps(self, settings: Settings) -> Steps[Marks]:
        registries = settings.keyspace.registries()
        parts = [[registry] for registry in registries] if settings.cluster else [registries]
        calls = []
        for part in parts:
            args = POLL.args(registries=b"%d" % len(part), known=[b""] * len(part))
            calls.append(Call(POLL, (*part,), args, as_is))
        replies = yield calls
        return tuple(value for reply in replies for value in reply[1::2])

    def apply(self, space: Space) -> Marks:
        return tuple((name, one.head) for name, one in space.conversations.items())


def by_score(key: bytes, score: bytes, count: int) -> Call:
    """Reads members with this score or a higher one, ascending."""
    limit = (b"WITHSCORES", b"LIMIT", b"0", b"%d" % count)
    return plain(b"ZRANGEBYSCORE", key, score, b"+inf", *limit, decode=pairs_of)


def pairs_of(reply: list[Any]) -> list[tuple[float, bytes]]:
    """Scores and members of a reply WITHSCORES."""
    if reply and isinstance(reply[0], list):  # RESP3
        return [(float(score), name) for name, score in reply]
    return [(float(score), name) for name, score in zip(reply[::2], reply[1::2], strict=True)]


def _is_ours(name: bytes) -> bool:
    """Whether a name in a registry is that of a conversation. Others are logged, and left out of lists."""
    if Keyspace.name_to_id(name):
        return True
    _logger.error("a list leaves out %r, which is not the name of a conversation", name[:80])
    return False


def _read_records(op: Selection, settings: Settings, chunk: list[tuple[float, bytes, bytes]]) -> Steps[list[Preview]]:
    """The matching conversations of (score, name, registry) items."""
    chunk = [one for one in chunk if _is_ours(one[1])]
    if not chunk:
        return []
    ids = [settings.keyspace.name_to_id(name) for _, name, _ in chunk]
    keys = [settings.keyspace.conversation(conversation_id) for conversation_id in ids]
    calls = [plain(b"HMGET", one.state, *STATE_FIELDS) for one in keys]
    if type(op) is ListPreviews:
        calls += [page_of(one, 1, newest=True) for one in keys]
        calls += [page_of(one, FIRST_MESSAGES, newest=False) for one in keys]
    values = yield calls
    newest, first = values[len(keys) : 2 * len(keys)], values[2 * len(keys) :]
    found, stale = [], []
    for at, ((_, name, registry), conversation_id) in enumerate(zip(chunk, ids, strict=True)):
        try:
            conversation = conversation_of(conversation_id, values[at])
        except CorruptDataError as error:
            _logger.error("a list leaves out a conversation: %s", error)
            continue
        if conversation is None or not op.lists(conversation):
            stale.append(Call(FORGET, (registry, keys[at].state), FORGET.args(names=[name]), as_is))
        elif op.has(conversation):
            last, beginning = ([*filter(None, map(readable, page[at]))] if page else [] for page in (newest, first))
            if last and last[-1].status == "streaming":
                positions = [cast(Position, last[-1].position)]
                last = [*filter(None, (yield from refreshed(conversation_id, positions, settings)))]
            found.append(Preview.of(conversation, beginning, last))
    if stale:  # expired conversations, some of them created again, in a list that other ones keep alive
        yield Upkeep(once(stale))
    return found


def all_ids() -> Steps[list[str]]:
    """The ids of all conversations, each once, in no particular order."""
    ids: dict[str, None] = {}
    op = ScanConversations()
    while True:
        page = yield op
        ids.update(dict.fromkeys(one.conversation_id for one in page.conversations))
        if page.cursor is None:
            return list(ids)
        op = ScanConversations(cursor=page.cursor)
