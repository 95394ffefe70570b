"""Conversations of a namespace: the newest, all of them, and those that have changed since a query.

Each bucket's registry is a sorted set of its conversations by time of last change, read in pages. No KEYS, no SCAN, and
no command that takes the server long."""

from __future__ import annotations

import logging
from typing import Any, Final, NamedTuple

from redis_history.backends.redis.plan_reads import STATE_FIELDS, conversation_of, page_of, readable
from redis_history.backends.redis.plan_runs import is_active
from redis_history.errors import CorruptDataError
from redis_history.events import BEGINNING, Cursor
from redis_history.model import Conversation
from redis_history.operations import (
    CountConversations,
    ListConversations,
    ListPreviews,
    Preview,
    ScanConversations,
    Scanned,
    Selection,
)
from redis_history.operations.backend import ChangedHeads, ChangeQuery
from redis_history.operations.base import FORGET, Call, Settings, Steps, Upkeep, as_is, once, plain
from redis_history.operations.keys import BUCKETS, Keyspace, pack_keys
from redis_history.operations.rules import FIRST_MESSAGES, preview_of

_logger = logging.getLogger("redis_history")

#: States read in one round trip.
_CHUNK: Final = 500
#: Members of one bucket read at once for a listing, and for a query of changes.
_LISTED: Final = 256
_MEMBERS: Final = 1000
#: Heads read at once: about a millisecond of the server's time.
_HEADS: Final = 500
#: Known conversations that each query compares, changed or not.
_SWEEP: Final = 200


def _by_score(key: bytes, score: bytes, count: int) -> Call:
    """Reads members with this score or a higher one, ascending."""
    limit = (b"WITHSCORES", b"LIMIT", b"0", b"%d" % count)
    return plain(b"ZRANGEBYSCORE", key, score, b"+inf", *limit, decode=_pairs_of)


def _pairs_of(reply: list[Any]) -> list[tuple[float, bytes]]:
    """Scores and members of a reply WITHSCORES."""
    if reply and isinstance(reply[0], list):  # RESP3
        return [(float(score), name) for name, score in reply]
    return [(float(score), name) for name, score in zip(reply[::2], reply[1::2], strict=True)]


class _Bucket:
    """The progress in one bucket's list. `ahead`: read, but not merged yet."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.start = 0
        self.ahead: list[tuple[float, bytes]] = []
        self.exhausted = False

    def read(self, count: int) -> Call:
        last = self.start + count - 1
        return plain(b"ZREVRANGE", self.key, b"%d" % self.start, b"%d" % last, b"WITHSCORES", decode=_pairs_of)

    def add(self, pairs: list[tuple[float, bytes]], count: int) -> None:
        self.start += len(pairs)
        self.ahead += pairs
        self.exhausted = len(pairs) < count


def list_conversations(op: ListConversations, settings: Settings) -> Steps[list[Conversation]]:
    return [one.conversation for one in (yield from list_previews(op, settings))]


def count_conversations(op: CountConversations, settings: Settings) -> Steps[int]:
    return sum((yield [plain(b"ZCARD", key) for key in _lists(op, settings)]))


def _lists(op: Selection, settings: Settings) -> list[bytes]:
    keyspace = settings.keyspace
    if op.forked_from is not None:
        return keyspace.lists("f", op.forked_from)
    if op.user_id is not None:
        return keyspace.lists("u", op.user_id)
    return keyspace.registries() if op.agent_name is None else keyspace.lists("v", op.agent_name)


def list_previews(op: ListConversations | ListPreviews, settings: Settings) -> Steps[list[Preview]]:
    """The newest conversations, merged from all buckets; ListConversations gets previews without messages."""
    buckets = [_Bucket(key) for key in _lists(op, settings)]
    wanted = op.offset + op.limit
    count = min(max(8, -(-2 * wanted // BUCKETS)), _LISTED)
    found: list[Preview] = []
    seen: set[bytes] = set()
    while len(found) < wanted and not all(bucket.exhausted and not bucket.ahead for bucket in buckets):
        short = [bucket for bucket in buckets if not bucket.exhausted]
        if short:
            for bucket, pairs in zip(short, (yield [bucket.read(count) for bucket in short]), strict=True):
                bucket.add(pairs, count)
            count = min(2 * count, _LISTED)
        merged = _merge(buckets)
        start = 0
        while start < len(merged) and len(found) < wanted:
            # Nearly all match, so only the wanted number is read, except when one list is filtered by another value.
            given = (op.user_id, op.agent_name, op.forked_from)
            size = min(_CHUNK, wanted - len(found)) if given.count(None) > 1 else _CHUNK
            # A conversation that changes during the listing appears again; its first place counts.
            chunk = [item for item in merged[start : start + size] if item[1] not in seen]
            start += size
            seen.update(name for _, name, _ in chunk)
            found += yield from _read_records(op, settings, chunk)
    return found[op.offset : wanted]


def _merge(buckets: list[_Bucket]) -> list[tuple[float, bytes, bytes]]:
    """Removes from `ahead` the conversations that no unread one can precede, newest first."""
    horizon = max((bucket.ahead[-1][0] for bucket in buckets if bucket.ahead and not bucket.exhausted), default=-1.0)
    merged = []
    for bucket in buckets:
        certain = [pair for pair in bucket.ahead if pair[0] >= horizon]
        bucket.ahead = bucket.ahead[len(certain) :]
        merged += [(score, name, bucket.key) for score, name in certain]
    merged.sort(key=lambda item: (-item[0], item[1]))
    return merged


class _Unread(NamedTuple):
    """The rest of one bucket's list: members from this score on, except `read`: those with exactly this score. These
    are one name, because the store gives no score twice in a list."""

    key: bytes
    score: bytes = b"-inf"
    read: frozenset[bytes] = frozenset()


def scan_conversations(op: ScanConversations, settings: Settings) -> Steps[Scanned]:
    """Reads a page of the conversations by ascending score. A conversation that changes appears again."""
    unread: list[_Unread] = op.cursor or [_Unread(key) for key in _lists(op, settings)]
    count = min(max(8, op.limit // len(unread)), _LISTED - 1)
    pages = yield [_by_score(rest.key, rest.score, count + len(rest.read)) for rest in unread]
    names: list[tuple[float, bytes, bytes]] = []
    remaining = []
    for rest, pairs in zip(unread, pages, strict=True):
        names += [(score, name, rest.key) for score, name in pairs if name not in rest.read]
        if len(pairs) == count + len(rest.read):
            last = pairs[-1][0]
            remaining.append(_Unread(rest.key, b"%d" % last, frozenset(name for score, name in pairs if score == last)))
    found = []
    for start in range(0, len(names), _CHUNK):
        found += yield from _read_records(op, settings, names[start : start + _CHUNK])
    return Scanned([one.conversation for one in found], remaining or None)


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
        if conversation is None:
            stale.append(Call(FORGET, pack_keys(registry, keys[at].state), [name], as_is))
        elif op.has(conversation):
            last, beginning = ([*filter(None, map(readable, page[at]))] if page else [] for page in (newest, first))
            found.append(preview_of(conversation, beginning, last))
    if stale:  # expired conversations in a registry that other ones keep alive
        yield Upkeep(once(stale))
    return found


class _Newest(NamedTuple):
    """The highest score of a registry, and its conversation."""

    score: bytes = b"-inf"
    name: bytes = b""

    @classmethod
    def of(cls, pairs: list[tuple[float, bytes]]) -> _Newest:
        return cls(b"%d" % pairs[-1][0], pairs[-1][1])


class _Position:
    """The progress of a series of queries. `newest`: of each registry that was read. `known`: the ids that the caller
    knows, by bucket. `sweep`: the ids to compare next."""

    def __init__(self) -> None:
        self.newest: dict[int, _Newest] = {}
        self.known: list[set[str]] = [set() for _ in range(BUCKETS)]
        self.sweep: list[str] = []


class _ChangeFinder:
    """One query: reads what changed in each registry, or the whole registry if something may have been lost."""

    def __init__(self, query: ChangeQuery, settings: Settings) -> None:
        self.known = query.known
        self.keyspace = settings.keyspace
        self.registries = self.keyspace.registries()
        self.position: _Position = query.position or _Position()
        # Stored at the end, so that after a failure the next query reads the same again.
        self.newest = dict(self.position.newest)
        for conversation_id in self.known if query.position is None else query.news:
            known = self.position.known[self.keyspace.bucket_of(conversation_id)]
            (known.add if conversation_id in self.known else known.discard)(conversation_id)
        for conversation_id in query.doubted:
            self.newest.pop(self.keyspace.bucket_of(conversation_id), None)

    def find(self) -> Steps[ChangedHeads]:
        moved = yield from self.read_moved()
        heads: dict[str, Cursor] = {}
        unread = [bucket for bucket in range(BUCKETS) if bucket not in self.newest]
        for bucket, present in (yield from self.read_whole(unread)).items():
            moved |= present
            heads |= dict.fromkeys(self.position.known[bucket] - present, BEGINNING)
        moved.update(self.next_of_sweep())
        heads |= yield from self.compare(sorted(moved - heads.keys()))
        self.position.newest = self.newest
        return ChangedHeads(heads, self.position)

    def read_moved(self) -> Steps[set[str]]:
        """Conversations with a higher score than before. Removes registries from `newest` that must be read whole."""
        moved: set[str] = set()
        buckets = sorted(self.newest)
        calls = []
        for bucket in buckets:
            calls.append(_by_score(self.registries[bucket], self.newest[bucket].score, _MEMBERS))
            calls.append(plain(b"ZCARD", self.registries[bucket]))
        replies = (yield calls) if calls else []
        for bucket, pairs, count in zip(buckets, replies[::2], replies[1::2], strict=True):
            before = self.newest[bucket]
            ids = {self.keyspace.name_to_id(name) for _, name in pairs} - {""}
            complete = len(pairs) < _MEMBERS and len(ids | self.position.known[bucket]) == count
            if complete and (not before.name or any(name == before.name for _, name in pairs)):
                if pairs:
                    self.newest[bucket] = _Newest.of(pairs)
                    ids -= {self.keyspace.name_to_id(name) for score, name in pairs if b"%d" % score == before.score}
                moved |= ids
            else:
                del self.newest[bucket]
        return moved

    def read_whole(self, buckets: list[int]) -> Steps[dict[int, set[str]]]:
        """All members of some buckets. By score, because ranks shift during the reading."""
        present: dict[int, set[str]] = {bucket: set() for bucket in buckets}
        newest = dict.fromkeys(buckets, _Newest())
        while buckets:
            replies = yield [_by_score(self.registries[bucket], newest[bucket].score, _MEMBERS) for bucket in buckets]
            for bucket, pairs in zip(buckets, replies, strict=True):
                present[bucket] |= {self.keyspace.name_to_id(name) for _, name in pairs} - {""}
                if pairs:
                    newest[bucket] = _Newest.of(pairs)
            buckets = [bucket for bucket, pairs in zip(buckets, replies, strict=True) if len(pairs) == _MEMBERS]
        self.newest |= newest
        return present

    def compare(self, ids: list[str]) -> Steps[dict[str, Cursor]]:
        """The heads of those of `ids` whose newest change is not the known one, or that have an active run: a run is no
        change, but the notification of it may have been lost."""
        found: dict[str, Cursor] = {}
        for start in range(0, len(ids), _HEADS):
            chunk = ids[start : start + _HEADS]
            keys = [self.keyspace.keys_of(conversation_id) for conversation_id in chunk]
            heads = yield [plain(b"HMGET", key.state, b"e", b"r", b"x", b"R", decode=_head) for key in keys]
            stale = []
            for conversation_id, key, (head, works) in zip(chunk, keys, heads, strict=True):
                if head is None:  # an expired conversation in a registry that other ones keep alive
                    stale.append(Call(FORGET, pack_keys(key.registry, key.state), [key.name], as_is))
                    if conversation_id in self.known:
                        found[conversation_id] = BEGINNING
                elif works or head != self.known.get(conversation_id):
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
    return _ChangeFinder(query, settings).find()


def _head(reply: list[bytes | None]) -> tuple[Cursor | None, bool]:
    """The head of a conversation, and whether a run is active."""
    epoch, revision, token, run = reply
    if epoch is None or revision is None or token is None:
        return None, False
    return Cursor(epoch.decode(), int(revision), token.hex()), run is not None and is_active(run)
