"""Lists the conversations of a namespace, newest change first, from the lists of its buckets.

Each bucket's list is a sorted set, so its newest are at hand; together they are merged here. What is read is in
proportion to `offset + limit`, without a filter; with one, to how far back the conversations that fit are: their
records are read to see. No KEYS, no SCAN, and no command that takes the server long.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from redis_history.backends.redis.calls import Call, Settings
from redis_history.backends.redis.keys import BUCKETS, pack_keys
from redis_history.backends.redis.records import STATE_FIELDS, conversation_of
from redis_history.backends.redis.scripts import FORGET
from redis_history.model import Conversation
from redis_history.operations import ListConversations

__all__ = ["list_conversations", "pairs_of"]

#: States read in one go.
_CHUNK = 500
_Steps = Generator[list[Call], list[Any], list[Conversation]]


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


def list_conversations(op: ListConversations, settings: Settings) -> _Steps:
    """Yields calls to be made, is sent their outcomes, and returns the conversations."""
    keyspace = settings.keyspace
    buckets = [_Bucket(key) for key in keyspace.registries()]
    wanted = op.offset + op.limit
    count = max(8, -(-2 * wanted // BUCKETS))
    found: list[Conversation] = []
    seen: set[bytes] = set()
    while len(found) < wanted and not all(bucket.exhausted and not bucket.ahead for bucket in buckets):
        short = [bucket for bucket in buckets if not bucket.exhausted]
        if short:
            for bucket, pairs in zip(short, (yield [bucket.read(count) for bucket in short]), strict=True):
                bucket.take(pairs, count)
            count = min(2 * count, 1000)
        merged = _merge(buckets)
        start = 0
        while start < len(merged) and len(found) < wanted:
            # Without a filter nearly all fit, and no more are read than are wanted.
            size = _CHUNK if op.user_id or op.agent_name else min(_CHUNK, wanted - len(found))
            # A conversation that changes meanwhile comes up again; where it was first stands.
            chunk = [item for item in merged[start : start + size] if item[1] not in seen]
            start += size
            seen.update(name for _, name, _ in chunk)
            found += yield from _read(op, settings, chunk)
    return found[op.offset : wanted]


def _merge(buckets: list[_Bucket]) -> list[tuple[float, bytes, _Bucket]]:
    """What is certain to come next: nothing that is still unread can be newer."""
    horizon = max((bucket.ahead[-1][0] for bucket in buckets if bucket.ahead and not bucket.exhausted), default=-1.0)
    merged = []
    for bucket in buckets:
        certain = [pair for pair in bucket.ahead if pair[0] >= horizon]
        bucket.ahead = bucket.ahead[len(certain) :]
        merged += [(score, name, bucket) for score, name in certain]
    merged.sort(key=lambda item: (-item[0], item[1]))
    return merged


def _read(op: ListConversations, settings: Settings, chunk: list[tuple[float, bytes, _Bucket]]) -> _Steps:
    if not chunk:
        return []
    ids = [settings.keyspace.name_to_id(name) for _, name, _ in chunk]
    states = [settings.keyspace.conversation(conversation_id).state for conversation_id in ids]
    values = yield [Call(None, b"", [b"HMGET", state, *STATE_FIELDS], _as_is) for state in states]
    found, stale = [], []
    for (_, name, bucket), conversation_id, state, value in zip(chunk, ids, states, values, strict=True):
        conversation = conversation_of(conversation_id, value)
        if conversation is None:
            stale.append(Call(FORGET, pack_keys(bucket.key, state), [name], _as_is))
        elif op.user_id in (None, conversation.user_id) and op.agent_name in (None, conversation.agent_name):
            found.append(conversation)
    if stale:  # expired, where others of the bucket live on
        yield stale
    return found


def _as_is(reply: Any) -> Any:
    return reply


def pairs_of(reply: list[Any]) -> list[tuple[float, bytes]]:
    """Scores and members of a reply WITHSCORES."""
    if reply and isinstance(reply[0], list):  # RESP3
        return [(float(score), name) for name, score in reply]
    return [(float(score), name) for name, score in zip(reply[::2], reply[1::2], strict=True)]
