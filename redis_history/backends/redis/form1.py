"""Migrates conversations from version 0.1, for `redis-history migrate`.

A conversation is written page by page under temporary keys, which expire, and one transaction renames them. So an
interrupted migration has no effect, and can be repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal

import msgspec
from redis.exceptions import WatchError

from redis_history.backends.redis.keys import ConversationKeys, Keyspace, field_of, former_key
from redis_history.errors import CorruptDataError, RedisHistoryError
from redis_history.model import Message
from redis_history.model._caps import check_caps
from redis_history.model.wire import encode_body, encode_member, flags_of, from_map, placed
from redis_history.tokens import count_characters, estimate_tokens

Outcome = Literal["migrated", "known", "other", "gone"]

_PAGE: Final = 500
_STAGED_MS: Final = 600_000
_ATTEMPTS: Final = 5
#: Fields of the state with the same meaning in both versions.
_FIELDS: Final = (*b"erqtbulUATDMwsahmf",)
#: A field of the new state: the newest change of the old one when it was migrated.
_MIGRATED: Final = b"1"
_RESTORED: Final = 3  # see changelog.Kind

_decode = msgspec.msgpack.Decoder().decode


def read_v1(member: bytes) -> Message:
    """The message in a member of version 0.1: sequence, timestamp, and a map of fields. Raises CorruptDataError."""
    try:
        check_caps(member)
        sequence, timestamp, fields = _decode(member)
        return placed(from_map(fields), sequence, timestamp)
    except (ValueError, TypeError, RecursionError, OverflowError, msgspec.MsgspecError, RedisHistoryError) as error:
        raise CorruptDataError(f"{len(member)} stored bytes are not a message of version 0.1: {error}") from error


def former_names(client: Any, registry: bytes) -> list[bytes]:
    return [name for name, _ in client.zscan_iter(former_key(registry), count=1000)]


class Migration:
    """Migrates one conversation. `messages`: the number written; `unreadable`: skipped."""

    def __init__(self, client: Any, keyspace: Keyspace, name: bytes) -> None:
        self.conversation_id = keyspace.name_to_id(name)
        self.keys: ConversationKeys = keyspace.keys_of(self.conversation_id)
        self.messages = self.unreadable = 0
        self._client = client
        self._keyspace = keyspace
        self._times: set[int] = set()
        self._state = former_key(self.keys.state)

    def run(self) -> Outcome:
        """ "known": migrated before. "other": another conversation has the id, or a process of version 0.1 has changed
        this one since then."""
        for _ in range(_ATTEMPTS):
            try:
                with self._client.pipeline() as pipe:
                    pipe.watch(self._state, self.keys.state, self.keys.registry)
                    return self._outcome(pipe)
            except WatchError:
                continue
        return "other"

    def _outcome(self, pipe: Any) -> Outcome:
        fields = [bytes((field,)) for field in _FIELDS]
        found = zip(fields, pipe.hmget(self._state, fields), strict=True)
        state = {field: value for field, value in found if value is not None}
        if b"e" not in state:
            return "gone"
        newest = pipe.hget(self._state, b"x") or b""
        epoch, migrated = pipe.hmget(self.keys.state, b"e", _MIGRATED)
        if epoch is not None:
            return "known" if migrated == newest else "other"
        self._move(pipe, state, newest)
        return "migrated"

    def _move(self, pipe: Any, state: dict[bytes, bytes], newest: bytes) -> None:
        keys, name = self.keys, former_key(self.keys.registry)
        archives = [keys.archive(revision) for revision in _archives(state)]
        staged = {key: key + b"~" for key in (keys.state, keys.messages, *archives)}
        pipe.unlink(*staged.values())
        self.messages = self.unreadable = 0
        self._times.clear()
        count, characters, tokens = self._stage(pipe, keys.messages)
        for archive in archives:
            self._stage(pipe, archive)
        head = (_RESTORED << 52 | int(state[b"u"])).to_bytes(7, "big") + bytes.fromhex(newest[:6].decode())
        state |= {b"v": b"2", b"x": head, b"n": b"%d" % count, b"c": b"%d" % characters, b"k": b"%d" % tokens}
        if self._times:
            bounds = (min(self._times), max(self._times))
            state[b"F"] = b"".join(time.to_bytes(7, "big", signed=True) for time in bounds)
        sizes = [b"#%d" % revision for revision in _archives(state)]
        state |= {field: size for field in sizes if (size := pipe.hget(self._state, field)) is not None}
        score = pipe.zscore(name, keys.name) or int(state[b"u"])
        ends = {key: pipe.pttl(former_key(key)) for key in staged}
        there = [key for key in (keys.messages, *archives) if pipe.exists(staged[key])]
        registry_ends, ttl = pipe.pttl(keys.registry), ends[keys.state]
        pipe.multi()
        pipe.unlink(keys.messages, keys.log)
        pipe.hset(staged[keys.state], mapping={**state, _MIGRATED: newest})
        for key in (keys.state, *there):
            pipe.rename(staged[key], key)
            if ends[key] > 0:
                pipe.pexpire(key, ends[key])
            else:
                pipe.persist(key)
        pipe.zadd(keys.registry, {keys.name: score})
        owners: tuple[tuple[Literal["u", "v"], bytes], ...] = (("u", b"U"), ("v", b"A"))
        for kind, field in owners:
            if (owner := msgspec.msgpack.decode(state.get(field, b"\xc0"))) is not None:
                lists = self._keyspace.lists(kind, owner)
                pipe.zadd(lists[self._keyspace.bucket_of(self.conversation_id)], {keys.name: score})
        if ttl <= 0:
            pipe.persist(keys.registry)
        elif registry_ends == -2 or 0 <= registry_ends < ttl:
            pipe.pexpire(keys.registry, ttl)
        pipe.execute()

    def _stage(self, pipe: Any, key: bytes) -> tuple[int, int, int]:
        """Writes the messages of a set under temporary keys. Returns their number, characters and tokens."""
        count = characters = tokens = 0
        for page in _pages(pipe, former_key(key)):
            members, places = {}, {}
            for message, score, place, compaction in self._read(pipe, page):
                size = count_characters(message)
                sequence = message.sequence or 0
                body = encode_body(message)
                members[encode_member(sequence, size, flags_of(message), score, body)] = score
                revision, mark, tools = int.from_bytes(place[19:24], "big"), place[24:27], place[51:]
                numbers = _number(sequence) + _number(revision)
                places[field_of(message.id)] = score.to_bytes(7, "big", signed=True) + mark + numbers + tools
                if compaction is not None:
                    places[b"^" + message.id.encode()] = compaction
                count, characters, tokens = count + 1, characters + size, tokens + estimate_tokens(size)
                self._times = {min(score, *self._times), max(score, *self._times)} if self._times else {score}
            if members:
                pipe.zadd(key + b"~", members)
                pipe.hset(self.keys.state + b"~", mapping=places)
                pipe.pexpire(key + b"~", _STAGED_MS)
                pipe.pexpire(self.keys.state + b"~", _STAGED_MS)
        self.messages += count
        return count, characters, tokens

    def _read(self, pipe: Any, page: list[tuple[bytes, float]]) -> Iterator[tuple[Message, int, bytes, bytes | None]]:
        """The messages of a page, with their scores and their fields of the state."""
        found: list[tuple[Message, int]] = []
        for member, score in page:
            try:
                found.append((read_v1(member), int(score)))
            except CorruptDataError:
                self.unreadable += 1
        ids = [message.id.encode() for message, _ in found]
        known = pipe.hmget(self._state, [b":" + one for one in ids] + [b"^" + one for one in ids]) if ids else []
        for (message, score), place, compaction in zip(found, known[: len(ids)], known[len(ids) :], strict=True):
            if place is None:
                self.unreadable += 1
            else:
                yield message, score, place, compaction

    def delete_old(self) -> None:
        """Removes the old conversation with its search documents, unless it has changed since it was migrated."""
        generation, archives = self._client.hmget(self._state, b"i", b"w")
        keys = [self.keys.messages, *map(self.keys.archive, _archives({b"w": archives or b""}))]
        with self._client.pipeline() as pipe:
            pipe.watch(self._state)
            if pipe.hget(self._state, b"x") != pipe.hget(self.keys.state, _MIGRATED):
                return
            for key in keys if generation is not None else ():
                document = b"rhd%b%b:" % (self._state[2:-1], generation or b"")
                for page in _pages(pipe, former_key(key)):
                    numbers = [int.from_bytes(member[2:10], "big") for member, _ in page]
                    pipe.unlink(*(b"%b%b%d" % (document, sign, one) for one in numbers for sign in (b"", b"-")))
            pipe.multi()
            pipe.zrem(former_key(self.keys.registry), self.keys.name)
            pipe.unlink(self._state, former_key(self.keys.log), *map(former_key, keys))
            pipe.execute()


def _archives(state: dict[bytes, bytes]) -> list[int]:
    return [int(one.split()[0]) for one in state.get(b"w", b"").split(b";") if one]


def _pages(pipe: Any, key: bytes) -> Iterator[list[tuple[bytes, float]]]:
    rank = 0
    while page := pipe.zrange(key, rank, rank + _PAGE - 1, withscores=True):
        yield page
        rank += _PAGE


def _number(value: int) -> bytes:
    """A number with 7 bits in each byte, low ones first."""
    found = bytearray()
    while value >= 128:
        found.append(value % 128 + 128)
        value //= 128
    return bytes((*found, value))
