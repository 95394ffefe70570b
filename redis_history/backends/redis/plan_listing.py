"""The conversations of a namespace: those with the newest changes, all of them, and those that have changed since.

Each bucket's registry is a sorted set of its conversations by time of last change. No KEYS, no SCAN, and no command
that takes the server long."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from redis_history.backends.base import ChangedHeads, ChangeQuery
from redis_history.backends.redis.calls import FORGET, Call, Settings, Steps, Upkeep, as_is, once, plain
from redis_history.backends.redis.keys import BUCKETS, pack_keys
from redis_history.backends.redis.plan_reads import STATE_FIELDS, conversation_of, page_of, readable
from redis_history.backends.rules import FIRST_MESSAGES, preview
from redis_history.events import BEGINNING, Cursor
from redis_history.model import Conversation
from redis_history.operations import (
    CountConversations,
    ListConversations,
    ListPreviews,
    Preview,
    ScanConversations,
    Scanned,
)

#: States read in one go.
_CHUNK: Final = 500

#: Members read of one bucket at once.
_MOST: Final = 256


class _Bucket:
    """One bucket's list: how far it was read, and what of that was not merged yet."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.start = 0
        self.ahead: list[tuple[float, bytes]] = []
        self.exhausted = False

    def read(self, count: int) -> Call:
        last = self.start + count - 1
        args = [b"ZREVRANGE", self.key, b"%d" % self.start, b"%d" % last, b"WITHSCORES"]
        return Call(None, b"", args, pairs_of)

    def take(self, pairs: list[tuple[float, bytes]], count: int) -> None:
        self.start += len(pairs)
        self.ahead += pairs
        self.exhausted = len(pairs) < count


def list_conversations(op: ListConversations, settings: Settings) -> Steps[list[Conversation]]:
    """Yields calls to be made, is sent their outcomes, and returns the conversations."""
    return [one.conversation for one in (yield from _listed(op, settings))]


def list_previews(op: ListPreviews, settings: Settings) -> Steps[list[Preview]]:
    """The same, with previews."""
    return (yield from _listed(op, settings))


def count_conversations(op: CountConversations, settings: Settings) -> Steps[int]:
    """How many there are in the lists that the others read."""
    return sum((yield [plain(b"ZCARD", key) for key in _lists(op, settings)]))


def _lists(op: CountConversations | ListConversations | ListPreviews, settings: Settings) -> list[bytes]:
    keyspace = settings.keyspace
    if op.user_id is not None:
        return keyspace.lists("u", op.user_id)
    return keyspace.registries() if op.agent_name is None else keyspace.lists("v", op.agent_name)


def _listed(op: ListConversations | ListPreviews, settings: Settings) -> Steps[list[Preview]]:
    buckets = [_Bucket(key) for key in _lists(op, settings)]
    wanted = op.offset + op.limit
    count = min(max(8, -(-2 * wanted // BUCKETS)), _MOST)
    found: list[Preview] = []
    seen: set[bytes] = set()
    while len(found) < wanted and not all(bucket.exhausted and not bucket.ahead for bucket in buckets):
        short = [bucket for bucket in buckets if not bucket.exhausted]
        if short:
            for bucket, pairs in zip(short, (yield [bucket.read(count) for bucket in short]), strict=True):
                bucket.take(pairs, count)
            count = min(2 * count, _MOST)
        merged = _merge(buckets)
        start = 0
        while start < len(merged) and len(found) < wanted:
            # Nearly all fit, and no more are read than are wanted, unless the list of an owner is filtered by agent.
            size = _CHUNK if None not in (op.user_id, op.agent_name) else min(_CHUNK, wanted - len(found))
            # A conversation that changes meanwhile comes up again; where it was first stands.
            chunk = [item for item in merged[start : start + size] if item[1] not in seen]
            start += size
            seen.update(name for _, name, _ in chunk)
            found += yield from _read_records(op, settings, chunk)
    return found[op.offset : wanted]


class _Unread(NamedTuple):
    """The rest of one bucket's list: what has this score or a higher one, but for what was read at this score. That is
    one name, because the store gives no score twice in a list."""

    key: bytes
    score: bytes = b"-inf"
    read: frozenset[bytes] = frozenset()


def scan_conversations(op: ScanConversations, settings: Settings) -> Steps[Scanned]:
    """Reads a page of all conversations by ascending score. A conversation that changes moves ahead and comes again."""
    unread: list[_Unread] = op.cursor or [_Unread(key) for key in settings.keyspace.registries()]
    count = min(max(8, op.limit // len(unread)), _MOST - 1)
    pages = yield [_members(rest, count) for rest in unread]
    names: list[tuple[float, bytes, bytes]] = []
    left = []
    for rest, pairs in zip(unread, pages, strict=True):
        names += [(score, name, rest.key) for score, name in pairs if name not in rest.read]
        if len(pairs) == count + len(rest.read):
            last = pairs[-1][0]
            read = frozenset(name for score, name in pairs if score == last)
            left.append(_Unread(rest.key, b"%d" % last, read))
    found = []
    for start in range(0, len(names), _CHUNK):
        found += yield from _read_records(ListConversations(None, None, 0, 0), settings, names[start : start + _CHUNK])
    return Scanned([one.conversation for one in found], left or None)


def _members(rest: _Unread, count: int) -> Call:
    limit = b"%d" % (count + len(rest.read))
    args = [b"ZRANGEBYSCORE", rest.key, rest.score, b"+inf", b"WITHSCORES", b"LIMIT", b"0", limit]
    return Call(None, b"", args, pairs_of)


def _merge(buckets: list[_Bucket]) -> list[tuple[float, bytes, bytes]]:
    """The next conversations: unread ones cannot be newer."""
    horizon = max((bucket.ahead[-1][0] for bucket in buckets if bucket.ahead and not bucket.exhausted), default=-1.0)
    merged = []
    for bucket in buckets:
        certain = [pair for pair in bucket.ahead if pair[0] >= horizon]
        bucket.ahead = bucket.ahead[len(certain) :]
        merged += [(score, name, bucket.key) for score, name in certain]
    merged.sort(key=lambda item: (-item[0], item[1]))
    return merged


def _read_records(
    op: ListConversations | ListPreviews, settings: Settings, chunk: list[tuple[float, bytes, bytes]]
) -> Steps[list[Preview]]:
    if not chunk:
        return []
    ids = [settings.keyspace.name_to_id(name) for _, name, _ in chunk]
    keys = [settings.keyspace.conversation(conversation_id) for conversation_id in ids]
    states = [one.state for one in keys]
    calls = [Call(None, b"", [b"HMGET", state, *STATE_FIELDS], as_is) for state in states]
    if type(op) is ListPreviews:
        calls += [page_of(one, 1, newest=True) for one in keys]
        calls += [page_of(one, FIRST_MESSAGES, newest=False) for one in keys]
    values = yield calls
    newest, first = values[len(keys) : 2 * len(keys)], values[2 * len(keys) :]
    found, stale = [], []
    for at, ((_, name, registry), conversation_id, state) in enumerate(zip(chunk, ids, states, strict=True)):
        value = values[at]
        conversation = conversation_of(conversation_id, value)
        if conversation is None:
            stale.append(Call(FORGET, pack_keys(registry, state), [name], as_is))
        elif op.user_id in (None, conversation.user_id) and op.agent_name in (None, conversation.agent_name):
            last, beginning = ([*filter(None, map(readable, page[at]))] if page else [] for page in (newest, first))
            found.append(preview(conversation, beginning, last))
    if stale:  # expired, where others of the bucket live on
        yield Upkeep(once(stale))
    return found


def pairs_of(reply: list[Any]) -> list[tuple[float, bytes]]:
    """Scores and members of a reply WITHSCORES."""
    if reply and isinstance(reply[0], list):  # RESP3
        return [(float(score), name) for name, score in reply]
    return [(float(score), name) for name, score in zip(reply[::2], reply[1::2], strict=True)]


#: Members of one registry read at once.
_MEMBERS: Final = 1000

#: Heads read at once: about a millisecond of the server's time.
_HEADS: Final = 500

#: Known conversations that each look compares, whether they have changed or not.
_SWEEP: Final = 200


class _Place(NamedTuple):
    """The highest score of a registry, and whose it was."""

    score: bytes = b"-inf"
    name: bytes = b""


class _Position:
    """How far each registry was read, which of the known conversations are in which, and what is compared next."""

    def __init__(self) -> None:
        self.places: dict[int, _Place] = {}
        self.held: list[set[str]] = [set() for _ in range(BUCKETS)]
        self.sweep: list[str] = []


class _Finder:
    def __init__(self, query: ChangeQuery, settings: Settings) -> None:
        self.known = query.known
        self.keyspace = settings.keyspace
        self.position: _Position = query.position or _Position()
        # Set at the end: after a failure the next query reads the same again.
        self.places = dict(self.position.places)
        self.registries = self.keyspace.registries()
        for conversation_id in self.known if query.position is None else query.news:
            held = self.position.held[self.keyspace.bucket_of(conversation_id)]
            (held.add if conversation_id in self.known else held.discard)(conversation_id)
        for conversation_id in query.doubted:
            self.places.pop(self.keyspace.bucket_of(conversation_id), None)

    def find(self) -> Steps[ChangedHeads]:
        moved = yield from self.look()
        heads: dict[str, Cursor] = {}
        whole = [bucket for bucket in range(BUCKETS) if bucket not in self.places]
        for bucket, there in (yield from self.read_all(whole)).items():
            moved |= there
            heads |= dict.fromkeys(self.position.held[bucket] - there, BEGINNING)
        moved.update(self.next_of_sweep())
        heads |= yield from self.compare(sorted(moved - heads.keys()))
        self.position.places = self.places
        return ChangedHeads(heads, self.position)

    def look(self) -> Steps[set[str]]:
        """Conversations with a higher score than before. Forgets the places of buckets that must be compared whole."""
        moved: set[str] = set()
        places = self.places
        buckets = sorted(places)
        calls = []
        for bucket in buckets:
            calls.append(self.members(bucket, places[bucket].score))
            calls.append(Call(None, b"", [b"ZCARD", self.registries[bucket]], int))
        replies = (yield calls) if calls else []
        for bucket, pairs, count in zip(buckets, replies[::2], replies[1::2], strict=True):
            before = places[bucket]
            there = {self.keyspace.name_to_id(name) for _, name in pairs}
            whole = len(pairs) < _MEMBERS and len(there | self.position.held[bucket]) == count
            if whole and (not before.name or any(name == before.name for _, name in pairs)):
                if pairs:
                    places[bucket] = _place(pairs)
                    there -= {self.keyspace.name_to_id(name) for score, name in pairs if _text(score) == before.score}
                moved |= there
            else:
                del places[bucket]
        return moved

    def read_all(self, buckets: list[int]) -> Steps[dict[int, set[str]]]:
        """All members of some buckets. By score, because ranks shift while they are read."""
        there: dict[int, set[str]] = {bucket: set() for bucket in buckets}
        places = dict.fromkeys(buckets, _Place())
        while buckets:
            replies = yield [self.members(bucket, places[bucket].score) for bucket in buckets]
            for bucket, pairs in zip(buckets, replies, strict=True):
                there[bucket] |= {self.keyspace.name_to_id(name) for _, name in pairs}
                if pairs:
                    places[bucket] = _place(pairs)
            buckets = [bucket for bucket, pairs in zip(buckets, replies, strict=True) if len(pairs) == _MEMBERS]
        self.places |= places
        return there

    def members(self, bucket: int, score: bytes) -> Call:
        args = [
            b"ZRANGEBYSCORE",
            self.registries[bucket],
            score,
            b"+inf",
            b"WITHSCORES",
            b"LIMIT",
            b"0",
            b"%d" % _MEMBERS,
        ]
        return Call(None, b"", args, pairs_of)

    def compare(self, ids: list[str]) -> Steps[dict[str, Cursor]]:
        """Those of `ids` whose newest change is not the known one."""
        found: dict[str, Cursor] = {}
        for start in range(0, len(ids), _HEADS):
            chunk = ids[start : start + _HEADS]
            keys = [self.keyspace.keys_of(conversation_id) for conversation_id in chunk]
            heads = yield [Call(None, b"", [b"HMGET", key.state, b"e", b"r", b"x"], _head) for key in keys]
            stale = []
            for conversation_id, key, head in zip(chunk, keys, heads, strict=True):
                if head is None:  # it has expired, where others of the bucket live on
                    stale.append(Call(FORGET, pack_keys(key.registry, key.state), [key.name], int))
                    if conversation_id in self.known:
                        found[conversation_id] = BEGINNING
                elif head != self.known.get(conversation_id):
                    found[conversation_id] = head
            if stale:
                yield Upkeep(once(stale))
        return found

    def next_of_sweep(self) -> list[str]:
        if not self.position.sweep:
            self.position.sweep = list(self.known)
        sweep = self.position.sweep
        cut = max(0, len(sweep) - _SWEEP)
        taken, sweep[cut:] = sweep[cut:], []
        return [conversation_id for conversation_id in taken if conversation_id in self.known]


def poll_changes(query: ChangeQuery, settings: Settings) -> Steps[ChangedHeads]:
    """Yields calls to be made, is sent their outcomes, and returns what was found."""
    return _Finder(query, settings).find()


def _place(pairs: list[tuple[float, bytes]]) -> _Place:
    return _Place(_text(pairs[-1][0]), pairs[-1][1])


def _text(score: float) -> bytes:
    return b"%d" % score


def _head(reply: list[bytes | None]) -> Cursor | None:
    epoch, revision, token = reply
    if epoch is None or revision is None or token is None:
        return None
    return Cursor(epoch.decode(), int(revision), token.hex())
