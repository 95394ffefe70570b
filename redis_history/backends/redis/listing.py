"""Lists the conversations of a namespace, newest change first, from the lists of its buckets.

Each bucket's list is a sorted set, so its newest are at hand; together they are merged here. What is read is in
proportion to `offset + limit`, without a filter; with one, to how far back the conversations that fit are: their
records are read to see. A scan of all of them goes through the lists in pages. No KEYS, no SCAN, and no command that
takes the server long: the size of a reply does not grow with what is asked for.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from redis_history.backends.redis.calls import Call, Settings, Steps, Upkeep, once
from redis_history.backends.redis.keys import BUCKETS, pack_keys
from redis_history.backends.redis.records import STATE_FIELDS, conversation_of
from redis_history.backends.redis.scripts import FORGET
from redis_history.model import Conversation
from redis_history.operations import ListConversations, ScanConversations, Scanned

__all__ = ["list_conversations", "pairs_of", "scan_conversations"]

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
    keyspace = settings.keyspace
    buckets = [_Bucket(key) for key in keyspace.registries()]
    wanted = op.offset + op.limit
    count = min(max(8, -(-2 * wanted // BUCKETS)), _MOST)
    found: list[Conversation] = []
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
            # Without a filter nearly all fit, and no more are read than are wanted.
            size = _CHUNK if (op.user_id, op.agent_name) != (None, None) else min(_CHUNK, wanted - len(found))
            # A conversation that changes meanwhile comes up again; where it was first stands.
            chunk = [item for item in merged[start : start + size] if item[1] not in seen]
            start += size
            seen.update(name for _, name, _ in chunk)
            found += yield from _read(op, settings, chunk)
    return found[op.offset : wanted]


class _Unread(NamedTuple):
    """The rest of one bucket's list: what has this score or a higher one, but for what was read at this score. That is
    one name, because the store gives no score twice in a list."""

    key: bytes
    score: bytes = b"-inf"
    read: frozenset[bytes] = frozenset()


def scan_conversations(op: ScanConversations, settings: Settings) -> Steps[Scanned]:
    """Reads a page of all conversations by ascending score: one that changes moves ahead and comes again."""
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
        found += yield from _read(ListConversations(None, None, 0, 0), settings, names[start : start + _CHUNK])
    return Scanned(found, left or None)


def _members(rest: _Unread, count: int) -> Call:
    limit = b"%d" % (count + len(rest.read))
    args = [b"ZRANGEBYSCORE", rest.key, rest.score, b"+inf", b"WITHSCORES", b"LIMIT", b"0", limit]
    return Call(None, b"", args, pairs_of)


def _merge(buckets: list[_Bucket]) -> list[tuple[float, bytes, bytes]]:
    """What is certain to come next: nothing that is still unread can be newer."""
    horizon = max((bucket.ahead[-1][0] for bucket in buckets if bucket.ahead and not bucket.exhausted), default=-1.0)
    merged = []
    for bucket in buckets:
        certain = [pair for pair in bucket.ahead if pair[0] >= horizon]
        bucket.ahead = bucket.ahead[len(certain) :]
        merged += [(score, name, bucket.key) for score, name in certain]
    merged.sort(key=lambda item: (-item[0], item[1]))
    return merged


def _read(
    op: ListConversations, settings: Settings, chunk: list[tuple[float, bytes, bytes]]
) -> Steps[list[Conversation]]:
    if not chunk:
        return []
    ids = [settings.keyspace.name_to_id(name) for _, name, _ in chunk]
    states = [settings.keyspace.conversation(conversation_id).state for conversation_id in ids]
    values = yield [Call(None, b"", [b"HMGET", state, *STATE_FIELDS], _as_is) for state in states]
    found, stale = [], []
    for (_, name, registry), conversation_id, state, value in zip(chunk, ids, states, values, strict=True):
        conversation = conversation_of(conversation_id, value)
        if conversation is None:
            stale.append(Call(FORGET, pack_keys(registry, state), [name], _as_is))
        elif op.user_id in (None, conversation.user_id) and op.agent_name in (None, conversation.agent_name):
            found.append(conversation)
    if stale:  # expired, where others of the bucket live on
        yield Upkeep(once(stale))
    return found


def _as_is(reply: Any) -> Any:
    return reply


def pairs_of(reply: list[Any]) -> list[tuple[float, bytes]]:
    """Scores and members of a reply WITHSCORES."""
    if reply and isinstance(reply[0], list):  # RESP3
        return [(float(score), name) for name, score in reply]
    return [(float(score), name) for name, score in zip(reply[::2], reply[1::2], strict=True)]
