"""Turns: the answers that a conversation is owed, and how workers find and take them. See lua/_turns.lua."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from redis_history.errors import CorruptDataError
from redis_history.store import refusals
from redis_history.store.claims import Action, Candidate, Look, Taken
from redis_history.store.operations.base import (
    UNREADABLE,
    Call,
    Op,
    Steps,
    Upkeep,
    Write,
    as_is,
    once,
    plain,
    with_turn_keys,
)
from redis_history.store.operations.keys import BUCKETS, ConversationKeys, Keyspace
from redis_history.store.operations.listing import pairs_of
from redis_history.store.operations.scripts import WRITING, load_script
from redis_history.store.operations.settings import Settings
from redis_history.values.times import from_microseconds
from redis_history.values.turns import Turn, TurnStatus

if TYPE_CHECKING:
    from redis_history.store.memory.space import Space

TURN: Final = load_script("turn", *WRITING, args="action all_agents agent due publish_command *ids")
TURNS: Final = load_script("turns", "_declared", keys="state")
TIDY: Final = load_script("tidy", "_declared", args="entry", keys="subject turns")
SEAT: Final = load_script("seat", args="run_id most lasts", keys="seats")
RING: Final = load_script("ring", "_declared", args="agent", keys="state")
_logger = logging.getLogger("redis_history")
_decode = msgspec.msgpack.Decoder().decode

#: Entries that a worker reads of each bucket, and states that a list reads together.
_ENTRIES: Final = 8
_CHUNK: Final = 200


def read_turns(conversation_id: str, packed: bytes, owner: bytes = b"") -> tuple[Turn, ...]:
    """The turns in the field P of the state; `owner`: the field U. Raises CorruptDataError."""
    if not packed:
        return ()
    try:
        user_id = _decode(owner) if owner else None
        return tuple(_turn(conversation_id, values, user_id) for values in _decode(packed))
    except UNREADABLE as error:
        raise CorruptDataError(f"the turns of conversation {conversation_id[:80]!r} are unreadable: {error}") from error


def read_taken(conversation_id: str, packed: bytes) -> Taken:
    """The turn that run.lua returns to the worker that has taken it."""
    values = _decode(packed)
    asks = values[15]
    ids = tuple(asks[at] for at in range(0, len(asks), 3) if asks[at + 2])
    return Taken(msgspec.structs.replace(_turn(conversation_id, values, None), message_ids=ids), values[14])


def _turn(conversation_id: str, values: list[Any], user_id: int | str | None) -> Turn:
    agent, status, run_id, asked, due, attempt, _, error, failed, *_, asks = values
    return Turn(
        conversation_id=conversation_id,
        status=status,
        asked_at=_time(asked),
        due_at=_time(due),
        agent_name=agent or None,
        user_id=user_id,
        attempt=attempt,
        error=error or None,
        failed_at=_time(failed) if failed else None,
        message_ids=tuple(asks[::3]),
        run_id=run_id or None,
    )


def _time(milliseconds: float) -> Any:
    return from_microseconds(round(1000 * milliseconds))


class ChangeTurns(Write[int], frozen=True):
    """Change the turns of `agent_name`, or of all agents, unless they are running. The outcome is their number.

    "open": the stored messages `message_ids` ask for an answer at `due` (milliseconds; 0: now). "retry": they are due
    now, and may fail as often as a new turn. "wait": until a call makes them owed again. "drop": they end."""

    action: Action
    agent_name: str | None = None
    all_agents: bool = True
    due: int = 0
    message_ids: tuple[str, ...] = ()

    def steps(self, settings: Settings) -> Steps[int]:
        agent = (self.agent_name or "").encode()
        args = TURN.args(
            action=self.action.encode(),
            all_agents=b"1" if self.all_agents else b"0",
            agent=agent,
            due=b"%d" % self.due,
            publish_command=settings.publish_command,
            ids=map(str.encode, self.message_ids),
        )
        call = self.script_call(TURN, settings, args)
        return self.send(with_turn_keys(call, self.conversation_id, self.agent_name, settings), settings)

    def decode(self, reply: list[Any]) -> int:
        if type(reply[0]) is bytes:
            if reply[0] == b"messages":
                raise refusals.message_missing(self.conversation_id, self.message_ids[0])
            self.refuse(reply)
        return int(reply[1])

    def apply(self, space: Space) -> int:
        return space.turns.change(space, self)


class ReadTurns(Op[tuple[Turn, ...]], Struct, frozen=True):
    """The turns of a conversation."""

    conversation_id: str

    def steps(self, settings: Settings) -> Steps[tuple[Turn, ...]]:
        keys = settings.keyspace.conversation(self.conversation_id)
        return (yield turns_call(self.conversation_id, keys))  # type: ignore[no-any-return]

    def apply(self, space: Space) -> tuple[Turn, ...]:
        return space.turns.of(space, self.conversation_id)


def turns_call(conversation_id: str, keys: ConversationKeys) -> Call:
    """Reads the turns of a conversation."""
    return Call(TURNS, (keys.state,), [], lambda reply: read_turns(conversation_id, *reply))


class ListTurns(Op[list[Turn]], Struct, frozen=True):
    """The turns of the namespace, the oldest question first."""

    status: TurnStatus | None
    agent_name: str | None
    user_id: int | str | None
    limit: int

    def has(self, turn: Turn) -> bool:
        return (
            self.status in (None, turn.status)
            and self.agent_name in (None, turn.agent_name)
            and self.user_id in (None, turn.user_id)
        )

    def steps(self, settings: Settings) -> Steps[list[Turn]]:
        """Reads pages of the lists of all buckets, until no unread conversation can be among the oldest ones."""
        unread = dict.fromkeys(settings.keyspace.turn_lists(open=self.status in (None, "owed", "running")), 0)
        if self.status is None:
            unread |= dict.fromkeys(settings.keyspace.turn_lists(open=False), 0)
        found: list[Turn] = []
        stale: list[ConversationKeys] = []
        seen: set[str] = set()
        size = min(self.limit, _CHUNK)
        while unread:
            pages = yield [_entries(key, start, start + size - 1) for key, start in unread.items()]
            names: list[str] = []
            unread_from = float("inf")  # the earliest question of a conversation that was not read
            for key, page in zip(list(unread), pages, strict=True):
                names += filter(None, (settings.keyspace.name_to_id(name) for _, name in page))
                if len(page) < size:
                    del unread[key]
                else:
                    unread[key] += size
                    unread_from = min(unread_from, page[-1][0])
            new = [name for name in dict.fromkeys(names) if name not in seen]
            seen.update(new)
            for start in range(0, len(new), _CHUNK):
                found += yield from self._read(new[start : start + _CHUNK], settings, stale)
            found.sort(key=lambda turn: turn.asked_at)
            if len(found) >= self.limit and 1000 * found[self.limit - 1].asked_at.timestamp() <= unread_from:
                break
        for keys in stale:  # not before, because that moves what is unread
            yield Upkeep(_tidy(keys))
        return found[: self.limit]

    def _read(self, names: list[str], settings: Settings, stale: list[ConversationKeys]) -> Steps[list[Turn]]:
        """The matching turns of these conversations. `stale` gets those that have expired, or whose questions were
        deleted."""
        keys = [settings.keyspace.keys_of(name) for name in names]
        replies = yield [_safely(turns_call(name, one)) for name, one in zip(names, keys, strict=True)]
        stale += [one for one, turns in zip(keys, replies, strict=True) if not turns]
        return [turn for turns in replies for turn in turns if self.has(turn)]

    def apply(self, space: Space) -> list[Turn]:
        found = [turn for name in space.turns.names() for turn in space.turns.of(space, name) if self.has(turn)]
        return sorted(found, key=lambda turn: turn.asked_at)[: self.limit]


def _tidy(keys: ConversationKeys) -> Steps[None]:
    base = keys.registry[:-1]
    call = Call(TIDY, (keys.state, base + b"q", base + b"h"), TIDY.args(entry=b""), as_is)
    [reply] = yield [call]
    while type(reply) is list and reply[:1] == [b"keys"]:
        call = msgspec.structs.replace(call, keys=(*call.keys, *reply[1:]))
        [reply] = yield [call]


def _safely(call: Call) -> Call:
    """The call; unreadable turns are logged, and left out."""

    def decode(reply: Any) -> tuple[Turn, ...]:
        try:
            turns: tuple[Turn, ...] = call.decode(reply)
        except CorruptDataError as error:
            _logger.error("a list leaves out turns: %s", error)
            return ()
        return turns

    return msgspec.structs.replace(call, decode=decode)


class CountTurns(Op[int], Struct, frozen=True):
    """The number of conversations with a turn that is owed or running (`open`), or waiting or parked. Expired
    conversations count until a list or a worker finds them gone."""

    open: bool = True

    def steps(self, settings: Settings) -> Steps[int]:
        return sum((yield [plain(b"ZCARD", key) for key in settings.keyspace.turn_lists(open=self.open)]))

    def apply(self, space: Space) -> int:
        wanted = ("owed", "running") if self.open else ("waiting", "parked")
        names = space.turns.names()
        return sum(any(turn.status in wanted for turn in space.turns.of(space, name)) for name in names)


class LookForTurns(Op[Look], Struct, frozen=True):
    """Find turns of an agent that are due. `buckets`: where; None: everywhere."""

    agent_name: str | None
    buckets: tuple[int, ...] | None = None

    def steps(self, settings: Settings) -> Steps[Look]:
        indexes = settings.keyspace.turn_indexes(self.agent_name)
        buckets: Iterable[int] = range(BUCKETS) if self.buckets is None else self.buckets
        if self.buckets is None and not settings.cluster:
            there = yield plain(b"EXISTS", *indexes, beside=indexes[0])
            if not there:
                return Look([], {})
        found: list[tuple[float, bytes, bytes]] = []
        next_in: dict[int, float] = {}
        calls = [_entries(indexes[bucket], 0, _ENTRIES - 1) for bucket in buckets]
        *replies, clock = yield [*calls, plain(b"TIME", beside=indexes[0])]
        now = int(clock[0]) * 1000 + int(clock[1]) / 1000
        for bucket, entries in zip(buckets, replies, strict=True):
            found += [(score, entry, indexes[bucket]) for score, entry in entries if score <= now]
            later = [score for score, _ in entries if score > now]
            if later:
                next_in[bucket] = (min(later) - now) / 1000
        return Look((yield from self._candidates(found, settings)), next_in, settings.cluster)

    def _candidates(self, found: Sequence[tuple[float, bytes, bytes]], settings: Settings) -> Steps[list[Candidate]]:
        """The conversations of the entries; of an owner's entry, the next one in the owner's queue."""
        owners = [(index, entry) for _, entry, index in found if entry[:1] == b"u"]
        firsts: dict[tuple[bytes, bytes], bytes] = {}
        if owners:
            queues = [b"%b:%b" % (index, entry[1:]) for index, entry in owners]
            replies = yield [_entries(key, 0, 0) for key in queues]
            for owner, key, names in zip(owners, queues, replies, strict=True):
                if names:
                    firsts[owner] = names[0][1]
                else:
                    yield Upkeep(once([Call(TIDY, (key, owner[0]), TIDY.args(entry=owner[1]), as_is)]))
        candidates = []
        for score, entry, index in found:
            name = firsts.get((index, entry), b"") if entry[:1] == b"u" else entry[1:]
            if conversation_id := Keyspace.name_to_id(name):
                queue = entry[1:].decode() if entry[:1] == b"u" else ""
                candidates.append(Candidate(score, conversation_id, queue))
        candidates.sort()
        return candidates

    def apply(self, space: Space) -> Look:
        return space.turns.look(space, self.agent_name)


def _entries(key: bytes, first: int, last: int) -> Call:
    return plain(b"ZRANGE", key, b"%d" % first, b"%d" % last, b"WITHSCORES", decode=pairs_of)


class RingWorker(Op[None], Struct, frozen=True):
    """Wake another worker for a turn that is due."""

    conversation_id: str
    agent_name: str | None

    def steps(self, settings: Settings) -> Steps[None]:
        keys = settings.keyspace.conversation(self.conversation_id)
        args = RING.args(agent=(self.agent_name or "").encode())
        yield Call(RING, (keys.state,), args, as_is, renews=True)

    def apply(self, space: Space) -> None:
        space.turns.ring(space, self.conversation_id, self.agent_name)


class Postpone(Op[None], Struct, frozen=True):
    """Let other owners go first: no worker takes a turn of this owner's queue for some seconds, because as many as may
    run at a time are running."""

    conversation_id: str
    agent_name: str | None
    queue: str
    seconds: float

    def steps(self, settings: Settings) -> Steps[None]:
        index = settings.keyspace.turn_index(self.agent_name, Keyspace.bucket_of(self.conversation_id))
        clock = yield plain(b"TIME", beside=index)
        until = int(clock[0]) * 1000 + int(clock[1]) // 1000 + round(1000 * self.seconds)
        # It must exist: the last turn of the owner may have been taken in the meantime.
        yield plain(b"ZADD", index, b"XX", b"%d" % until, b"u" + self.queue.encode())

    def apply(self, space: Space) -> None:
        space.turns.postponed[self.agent_name, self.queue] = time.time() + self.seconds


class TakeSeat(Op[bool], Struct, frozen=True):
    """Take or keep one of `most` seats of an owner for `seconds`; 0: give it up. The outcome is whether the run has a
    seat now."""

    agent_name: str | None
    owner: int | str
    run_id: str
    most: int
    seconds: float

    def steps(self, settings: Settings) -> Steps[bool]:
        key = settings.keyspace.seats(self.agent_name, self.owner)
        lasts = b"%d" % round(1000 * self.seconds)
        args = SEAT.args(run_id=self.run_id.encode(), most=b"%d" % self.most, lasts=lasts)
        return (yield Call(SEAT, (key,), args, bool, renews=True))  # type: ignore[no-any-return]

    def apply(self, space: Space) -> bool:
        return space.turns.seat((self.agent_name, repr(self.owner)), self.run_id, self.most, self.seconds)
