"""Find the conversations that have changed since a query.

A query that finds nothing is one script, in a cluster one for each bucket, in one round trip: poll.lua compares the
newest member of each registry, and some of the known conversations in turn. Registries that differ are then read.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from redis_history.store.operations.backend import ChangedHeads, ChangeQuery
from redis_history.store.operations.base import Call, Steps, Upkeep, as_is, once, plain
from redis_history.store.operations.keys import BUCKETS
from redis_history.store.operations.listing import FORGET, POLL, by_score
from redis_history.store.operations.run import is_active
from redis_history.store.operations.settings import Settings
from redis_history.values.events import BEGINNING, Cursor

_MEMBERS: Final = 1000
#: Heads read together: about a millisecond of the server's time.
_HEADS: Final = 500
#: Known conversations that each query compares, changed or not.
_SWEEP: Final = 200


def poll_changes(query: ChangeQuery, settings: Settings) -> Steps[ChangedHeads]:
    return _ChangeFinder(query, settings).find()


class _Newest(NamedTuple):
    """The highest score of a registry, and its conversation."""

    score: bytes = b"-inf"
    name: bytes = b""

    @classmethod
    def of(cls, pairs: list[tuple[float, bytes]]) -> _Newest:
        return cls(b"%d" % pairs[-1][0], pairs[-1][1])


class _Position:
    """The progress of a series of queries. `marks`: of each registry when it was last read (see poll.lua). `newest`:
    its newest member. `known`: the ids that the caller knows, by bucket. `sweep`: the ids to compare next."""

    def __init__(self) -> None:
        self.marks: dict[int, bytes] = {}
        self.newest: dict[int, _Newest] = {}
        self.known: list[set[str]] = [set() for _ in range(BUCKETS)]
        self.sweep: list[str] = []


class _ChangeFinder:
    """One query: reads the changes of each registry, or the whole registry if changes may have been lost."""

    def __init__(self, query: ChangeQuery, settings: Settings) -> None:
        self.known = query.known
        self.keyspace = settings.keyspace
        owner = query.user_id
        self.registries = self.keyspace.registries() if owner is None else self.keyspace.lists("u", owner)
        self.cluster = settings.cluster
        self.position: _Position = query.position or _Position()
        # Stored at the end, so that after a failure the next query reads the same again.
        self.newest = dict(self.position.newest)
        self.marks = dict(self.position.marks)
        for conversation_id in self.known if query.position is None else query.news:
            bucket = self.keyspace.bucket_of(conversation_id)
            known = self.position.known[bucket]
            (known.add if conversation_id in self.known else known.discard)(conversation_id)
            # The caller has heard of changes that an unchanged mark does not show, such as of a new conversation
            # that has been deleted since.
            self.marks.pop(bucket, None)
        for conversation_id in query.doubted:
            bucket = self.keyspace.bucket_of(conversation_id)
            self.newest.pop(bucket, None)
            self.marks.pop(bucket, None)

    def find(self) -> Steps[ChangedHeads]:
        buckets, moved = yield from self.read_marks()
        moved |= yield from self.read_moved(sorted(buckets & self.newest.keys()))
        heads: dict[str, Cursor] = {}
        unread = sorted(buckets - self.newest.keys())
        for bucket, present in (yield from self.read_whole(unread)).items():
            moved |= present
            heads |= dict.fromkeys(self.position.known[bucket] - present, BEGINNING)
        heads |= yield from self.compare(sorted(moved - heads.keys()))
        self.position.newest, self.position.marks = self.newest, self.marks
        return ChangedHeads(heads, self.position)

    def read_marks(self) -> Steps[tuple[set[int], set[str]]]:
        """The buckets whose registry must be read, and those conversations of the sweep that differ."""
        by_bucket: dict[int, list[str]] = {bucket: [] for bucket in range(BUCKETS)}
        for conversation_id in self.next_of_sweep():
            by_bucket[self.keyspace.bucket_of(conversation_id)].append(conversation_id)
        # In a cluster the keys of a script are in one slot.
        parts = [[bucket] for bucket in range(BUCKETS)] if self.cluster else [[*range(BUCKETS)]]
        replies = yield [self.marks_of(part, by_bucket) for part in parts]
        differing: set[int] = set()
        moved: set[str] = set()
        for part, reply in zip(parts, replies, strict=True):
            ids = [conversation_id for bucket in part for conversation_id in by_bucket[bucket]]
            if isinstance(reply, Exception):  # its slot is moving: single keys can be read
                differing.update(part)
                moved.update(ids)
                for bucket in part:
                    self.marks.pop(bucket, None)
                continue
            for number, value in zip(reply[::2], reply[1::2], strict=True):
                if number <= len(part):
                    differing.add(part[number - 1])
                    self.marks[part[number - 1]] = value
                else:
                    moved.add(ids[number - 1 - len(part)])
        return differing, moved

    def marks_of(self, part: list[int], by_bucket: dict[int, list[str]]) -> Call:
        ids = [conversation_id for bucket in part for conversation_id in by_bucket[bucket]]
        states = [self.keyspace.keys_of(conversation_id).state for conversation_id in ids]
        heads = [_mark_of(self.known[conversation_id]) for conversation_id in ids]
        known = [*(self.marks.get(bucket, b"") for bucket in part), *heads]
        args = POLL.args(registries=b"%d" % len(part), known=known)
        return Call(POLL, (*(self.registries[bucket] for bucket in part), *states), args, as_is, errors=True)

    def read_moved(self, buckets: list[int]) -> Steps[set[str]]:
        """Conversations with a higher score than before. Removes registries from `newest` that must be read whole."""
        moved: set[str] = set()
        calls = []
        for bucket in buckets:
            calls.append(by_score(self.registries[bucket], self.newest[bucket].score, _MEMBERS))
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
            replies = yield [by_score(self.registries[bucket], newest[bucket].score, _MEMBERS) for bucket in buckets]
            for bucket, pairs in zip(buckets, replies, strict=True):
                present[bucket] |= {self.keyspace.name_to_id(name) for _, name in pairs} - {""}
                if pairs:
                    newest[bucket] = _Newest.of(pairs)
            buckets = [bucket for bucket, pairs in zip(buckets, replies, strict=True) if len(pairs) == _MEMBERS]
        self.newest |= newest
        return present

    def compare(self, ids: list[str]) -> Steps[dict[str, Cursor]]:
        """The heads of those `ids` whose newest change differs from the known one, or that have an active run: a run
        is not a change, but its notification may have been lost."""
        found: dict[str, Cursor] = {}
        for start in range(0, len(ids), _HEADS):
            chunk = ids[start : start + _HEADS]
            keys = [self.keyspace.keys_of(conversation_id) for conversation_id in chunk]
            heads = yield [plain(b"HMGET", key.state, b"e", b"r", b"x", b"R", decode=_head) for key in keys]
            stale = []
            for conversation_id, key, (head, works) in zip(chunk, keys, heads, strict=True):
                if head is None:  # an expired conversation in a registry that other ones keep alive
                    list_ = self.registries[self.keyspace.bucket_of(conversation_id)]
                    stale.append(Call(FORGET, (list_, key.state), FORGET.args(names=[key.name]), as_is))
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


def _mark_of(head: Cursor) -> bytes:
    """A conversation's head as poll.lua compares it."""
    return b"%b:%d:%b" % (head.epoch.encode(), head.revision, bytes.fromhex(head.token))


def _head(reply: list[bytes | None]) -> tuple[Cursor | None, bool]:
    """The head of a conversation, and whether a run is active."""
    epoch, revision, token, run = reply
    if epoch is None or revision is None or token is None:
        return None, False
    return Cursor(epoch.decode(), int(revision), token.hex()), run is not None and is_active(run)
