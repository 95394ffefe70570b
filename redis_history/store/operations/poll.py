"""Find the conversations that have changed since a query."""

from __future__ import annotations

from typing import Final, NamedTuple

from redis_history.store.operations.backend import ChangedHeads, ChangeQuery
from redis_history.store.operations.base import Call, Steps, Upkeep, as_is, once, plain
from redis_history.store.operations.keys import BUCKETS
from redis_history.store.operations.listing import FORGET, by_score
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
    """The progress of a series of queries. `newest`: of each registry that was read. `known`: the ids that the caller
    knows, by bucket. `sweep`: the ids to compare next."""

    def __init__(self) -> None:
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
                    stale.append(Call(FORGET, (list_, key.state), [key.name], as_is))
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


def _head(reply: list[bytes | None]) -> tuple[Cursor | None, bool]:
    """The head of a conversation, and whether a run is active."""
    epoch, revision, token, run = reply
    if epoch is None or revision is None or token is None:
        return None, False
    return Cursor(epoch.decode(), int(revision), token.hex()), run is not None and is_active(run)
