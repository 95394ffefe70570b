"""Finds the conversations of a namespace that have changed, at a cost that does not grow with how many there are.

A look reads of each bucket's registry what is above the highest score of the last look, and the number of its members.
That finds everything, because

- a change gets a score above all others of its registry, whatever the clock says (see _change.lua);
- a server that lost changes lost the newest of the bucket first: the member that had the highest score has not got it
  any more, and the whole bucket is compared;
- a member that was taken out makes the number differ from the known and the new ones together: the same.

Two things leave no trace in a registry: the end of a time to live, and what somebody does by hand. So each look also
compares some of the known conversations, in turn.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from redis_history.backends.base import Found, Look
from redis_history.backends.redis.calls import Call, Settings, Steps, Upkeep, once
from redis_history.backends.redis.keys import BUCKETS, pack_keys
from redis_history.backends.redis.listing import pairs_of
from redis_history.backends.redis.scripts import FORGET
from redis_history.events import BEGINNING, Cursor

__all__ = ["find_changed"]

#: Members of one registry read at once.
_PAGE: Final = 1000
#: Heads read at once: about a millisecond of the server's time.
_CHUNK: Final = 500
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
    def __init__(self, look: Look, settings: Settings) -> None:
        self.known = look.known
        self.keyspace = settings.keyspace
        self.position: _Position = look.position or _Position()
        # Only a look that comes to its end counts: what one that fails has read is read again by the next.
        self.places = dict(self.position.places)
        self.registries = self.keyspace.registries()
        for conversation_id in self.known if look.position is None else look.news:
            held = self.position.held[self.keyspace.bucket_of(conversation_id)]
            (held.add if conversation_id in self.known else held.discard)(conversation_id)
        for conversation_id in look.doubted:
            self.places.pop(self.keyspace.bucket_of(conversation_id), None)

    def find(self) -> Steps[Found]:
        moved = yield from self.look()
        heads: dict[str, Cursor] = {}
        whole = [bucket for bucket in range(BUCKETS) if bucket not in self.places]
        for bucket, there in (yield from self.read_all(whole)).items():
            moved |= there
            heads |= dict.fromkeys(self.position.held[bucket] - there, BEGINNING)
        moved.update(self.next_of_sweep())
        heads |= yield from self.compare(sorted(moved - heads.keys()))
        self.position.places = self.places
        return Found(heads, self.position)

    def look(self) -> Steps[set[str]]:
        """What has a higher score than before. Forgets the places of buckets that are to be compared as a whole."""
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
            whole = len(pairs) < _PAGE and len(there | self.position.held[bucket]) == count
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
            buckets = [bucket for bucket, pairs in zip(buckets, replies, strict=True) if len(pairs) == _PAGE]
        self.places |= places
        return there

    def members(self, bucket: int, score: bytes) -> Call:
        args = [b"ZRANGEBYSCORE", self.registries[bucket], score, b"+inf", b"WITHSCORES", b"LIMIT", b"0", b"%d" % _PAGE]
        return Call(None, b"", args, pairs_of)

    def compare(self, ids: list[str]) -> Steps[dict[str, Cursor]]:
        """Those of `ids` whose newest change is not the known one."""
        found: dict[str, Cursor] = {}
        for start in range(0, len(ids), _CHUNK):
            chunk = ids[start : start + _CHUNK]
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


def find_changed(look: Look, settings: Settings) -> Steps[Found]:
    """Yields calls to be made, is sent their outcomes, and returns what was found."""
    return _Finder(look, settings).find()


def _place(pairs: list[tuple[float, bytes]]) -> _Place:
    return _Place(_text(pairs[-1][0]), pairs[-1][1])


def _text(score: float) -> bytes:
    return b"%d" % score


def _head(reply: list[bytes | None]) -> Cursor | None:
    epoch, revision, token = reply
    if epoch is None or revision is None or token is None:
        return None
    return Cursor(epoch.decode(), int(revision), token.decode())
