"""The elements of turns: questions, what workers find and take, and how an attempt ends."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import msgspec
from msgspec import Struct

from redis_history.values.turns import Turn

#: The effect of a call on the turns of a conversation: see ChangeTurns.
Action = Literal["open", "retry", "wait", "drop"]

_encode: Final = msgspec.msgpack.Encoder().encode


class Asking(Struct, frozen=True):
    """The question of an append: the agent that is asked, and when the answer is due (in milliseconds; 0: now,
    negative: so many from now, by the server's clock)."""

    agent_name: str | None
    due: int

    def packed(self, message_id: str) -> bytes:
        return _encode([self.agent_name or "", self.due, message_id])


class Claim(Struct, frozen=True):
    """A worker's request for a turn of its agent, which is parked after `attempts` failures, and due again after
    pauses of `first` to `longest` milliseconds. `queue`: that of the owner in which the worker found it, or ''."""

    agent_name: str | None
    attempts: int
    first: int
    longest: int
    queue: str = ""

    @property
    def packed(self) -> bytes:
        return _encode([self.agent_name or "", self.attempts, self.first, self.longest, self.queue])


class TurnEnd(Struct, frozen=True):
    """The end of the turn that a run answers. `how`: "done"; "back" (its worker stops, and it is due immediately);
    "later" (it is due soon, because other runs have reserved the rest of the budget); "wait"; or the name of the error
    that ended the attempt. `taken`: ids of messages that came during the run, and were answered, too. `agent_name`:
    whose turn it is. `revision`: the newest that a write of the run got. If the conversation has an older one, a
    failover has lost the answer, and "done" becomes "back"."""

    how: str
    taken: tuple[str, ...] = ()
    agent_name: str | None = None
    revision: int = 0


class Taken(NamedTuple):
    """The turn that a worker has taken, and the first sequence that messages of its attempts may have."""

    turn: Turn
    since: int


class Candidate(NamedTuple):
    """A conversation whose turn a worker may take, since `due` (milliseconds of the server's clock). `queue`: that of
    its owner, or ''."""

    due: float
    conversation_id: str
    queue: str = ""


class Look(NamedTuple):
    """The turns that a worker may take now, the oldest first, and the seconds until the next of others is due, by
    bucket. `in_cluster`: a look everywhere takes a command for each bucket."""

    candidates: list[Candidate]
    next_in: dict[int, float]
    in_cluster: bool = False
