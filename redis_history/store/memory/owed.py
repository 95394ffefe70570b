"""The turns of the memory backend: the same rules as in operations/lua/_turns.lua."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, MutableMapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from redis_history.store import refusals
from redis_history.store.claims import Asking, Candidate, Claim, Look, Taken, TurnEnd
from redis_history.values.ids import rng
from redis_history.values.times import from_microseconds
from redis_history.values.turns import MAX_ASKS, MAX_TURNS, WORKER_DIED, Turn, TurnStatus

if TYPE_CHECKING:
    from redis_history.store.memory.space import Run, Space
    from redis_history.store.operations.turn import ChangeTurns

#: Workers that poll notice a turn that is due later than in this many seconds.
_NOTICED: Final = 120.0
#: Seconds for which a turn waits for the reservations of other runs.
_POSTPONED: Final = 1.5
#: Seconds for which workers leave a conversation alone if others wait for its run.
_BUSY: Final = 1.0


@dataclass(slots=True)
class Ask:
    """A message that asked, when its answer is due, and whether the present attempt answers it."""

    message_id: str
    due: float
    claimed: bool = False


@dataclass(slots=True)
class TurnState:
    """A turn. Times are in seconds since 1970. `watched`: until when workers leave it alone, because a run of the
    conversation is active."""

    agent_name: str | None
    asked: float
    due: float
    status: TurnStatus = "owed"
    run_id: str | None = None
    fence: int = 0
    attempt: int = 0
    failures: int = 0
    error: str | None = None
    failed: float | None = None
    attempts: int = 0
    first: float = 0.0
    longest: float = 0.0
    since: int = 0
    watched: float = 0.0
    asks: list[Ask] = field(default_factory=list)

    def release(self, status: TurnStatus) -> None:
        self.status, self.fence, self.watched = status, 0, 0.0
        self.unclaim()

    def unclaim(self) -> None:
        """From now on, no attempt answers the messages of the turn."""
        for ask in self.asks:
            ask.claimed = False

    def fail(self, error: str, now: float) -> None:
        """Note a failed attempt: the turn is due again after a pause, or parked."""
        self.failures += 1
        self.error, self.failed = error, now
        if self.failures >= self.attempts:
            self.release("parked")
            return
        self.release("owed")
        self.due = now + min(self.first * 2 ** (self.failures - 1), self.longest)

    def close(self, taken: Collection[str], now: float) -> bool:
        """Remove the answered messages. Returns whether others are left: then they are the next turn."""
        self.asks = [ask for ask in self.asks if not (ask.claimed or (ask.message_id in taken and ask.due <= now))]
        if not self.asks:
            return False
        self.release("owed")
        self.asked, self.due = now, max(now, min(ask.due for ask in self.asks))
        self.attempt = self.failures = self.since = 0
        self.error = self.failed = None
        return True


@dataclass(slots=True)
class Turns:
    """The turns by conversation, and the idle workers by agent."""

    states: MutableMapping[str, list[TurnState]] = field(default_factory=dict)
    watchers: dict[str | None, list[Callable[[str | None], None]]] = field(default_factory=dict)
    #: By agent and owner, when a turn was taken, and until when none is taken.
    served: dict[tuple[str | None, str], float] = field(default_factory=dict)
    postponed: dict[tuple[str | None, str], float] = field(default_factory=dict)
    #: By agent and owner, the runs that have a seat, and until when.
    seats: MutableMapping[tuple[str | None, str], dict[str, float]] = field(default_factory=dict)

    def names(self) -> list[str]:
        return list(self.states)

    def of(self, space: Space, conversation_id: str) -> tuple[Turn, ...]:
        conversation = space.find(conversation_id)
        if conversation is None:
            return ()
        user_id = conversation.record.get("user_id")
        left = [
            replace(state, asks=[ask for ask in state.asks if ask.message_id in conversation.stored])
            for state in self.states.get(conversation_id, ())
        ]
        return tuple(_shown(conversation_id, state, user_id) for state in left if state.asks)

    def prune(self, space: Space, conversation_id: str) -> list[TurnState]:
        """Remove deleted messages from the turns, and turns without any. Returns the turns."""
        states = self.states.get(conversation_id)
        if states is None:
            return []
        conversation = space.find(conversation_id)
        stored: Collection[str] = () if conversation is None else conversation.stored
        for state in states:
            before, state.asks = state.asks, [ask for ask in state.asks if ask.message_id in stored]
            if state.status == "owed" and not state.failures and len(before) > len(state.asks) > 0:
                state.due = max(state.due, min(ask.due for ask in state.asks))
        self._save(conversation_id, [state for state in states if state.asks])
        return self.states.get(conversation_id, [])

    def _save(self, conversation_id: str, states: list[TurnState]) -> None:
        if states:
            self.states[conversation_id] = states
        elif conversation_id in self.states:
            del self.states[conversation_id]

    def forget(self, conversation_id: str) -> None:
        """Forget the turns of a conversation that ends."""
        if conversation_id in self.states:
            del self.states[conversation_id]

    def check_room(self, conversation_id: str, agent_name: str | None) -> None:
        """Raises ConflictError if a turn of one more agent is too many."""
        states = self.states.get(conversation_id, [])
        if len(states) >= MAX_TURNS and all(state.agent_name != agent_name for state in states):
            raise refusals.too_many_turns(conversation_id)

    def ask(self, space: Space, conversation_id: str, asking: Asking, message_ids: Collection[str]) -> None:
        """Add messages to the turn of an agent, which is created if necessary."""
        now = time.time()
        due = max(asking.due / 1000 if asking.due >= 0 else now - asking.due / 1000, now)
        states = [*self.states.get(conversation_id, [])]
        state = next((one for one in states if one.agent_name == asking.agent_name), None)
        if state is None:
            state = TurnState(asking.agent_name, now, due)
            states.append(state)
        is_new = not state.asks
        state.asks = [*state.asks, *(Ask(message_id, due) for message_id in message_ids)][-MAX_ASKS:]
        stays = state.status == "owed" and not is_new and (state.due <= due or state.failures > 0)
        if state.status != "running" and not stays:
            if state.status != "owed":
                state.failures = 0
            state.release("owed")
            state.due = due
            run = space.runs_of(conversation_id).active
            if run is not None:
                state.watched = run.expires
            else:
                self._ring_if_near(space, conversation_id, state, now)
        self._save(conversation_id, states)

    def change(self, space: Space, op: ChangeTurns) -> int:
        """See ChangeTurns."""
        conversation = space.check(op.conversation_id, op.precondition)
        if conversation is None:
            return 0
        if op.action == "open":
            ids = [message_id for message_id in op.message_ids if message_id in conversation.stored]
            if not ids:
                raise refusals.message_missing(op.conversation_id, op.message_ids[0])
            self.check_room(op.conversation_id, op.agent_name)
            self.ask(space, op.conversation_id, Asking(op.agent_name, op.due), ids)
            space.announce(op.conversation_id)
            return 1
        run, now = space.runs_of(op.conversation_id).active, time.time()
        states = self.prune(space, op.conversation_id)
        chosen = [
            one for one in states if (op.all_agents or one.agent_name == op.agent_name) and one.status != "running"
        ]
        for state in chosen:
            state.release("waiting" if op.action == "wait" else "owed")
            if op.action == "retry":
                state.failures, state.due = 0, now
                for ask in state.asks:
                    ask.due = min(ask.due, now)
                if run is not None:
                    state.watched = run.expires
                self._ring_if_near(space, op.conversation_id, state, now)
        dropped = 0
        if op.action == "drop":
            for state in states:
                # Messages that came during the answer would be the next turn.
                if state.status == "running" and (op.all_agents or state.agent_name == op.agent_name):
                    kept = [ask for ask in state.asks if ask.claimed]
                    dropped += len(kept) < len(state.asks)
                    state.asks = kept
            self._save(op.conversation_id, [one for one in states if not any(one is gone for gone in chosen)])
        space.announce(op.conversation_id)
        return len(chosen) + dropped

    def decided(self, space: Space, conversation_id: str, closed: int, own: int | None) -> None:
        """See owed.decided in _turns.lua. After `prune`."""
        now = time.time()
        for state in self.states.get(conversation_id, ()):
            made = 0 < state.since <= closed
            if state.status == "waiting" or (
                made and state.status == "owed" and state.due > now and not state.failures
            ):
                state.release("owed")
                state.due = now
                self._ring_if_near(space, conversation_id, state, now)
            elif made and state.status == "running" and state.fence != own:
                state.unclaim()

    # Runs

    def to_take(self, space: Space, conversation_id: str, claim: Claim) -> TurnState | None:
        """The turn that a worker may take now."""
        now = time.time()
        for state in self.prune(space, conversation_id):
            if state.agent_name == claim.agent_name and state.status == "owed" and state.due <= now:
                return state
        return None

    def busy(self, state: TurnState, run: Run | None) -> None:
        """Leave the turn alone until the run has ended, or may have expired."""
        state.watched = time.time() + _BUSY if run is None else run.expires

    def begin(self, space: Space, conversation_id: str, state: TurnState, run: Run, claim: Claim) -> None:
        """A worker has taken the turn."""
        now = time.time()
        state.status, state.fence, state.run_id = "running", run.fence.fence, run.fence.run_id
        state.attempt += 1
        state.attempts, state.first, state.longest = claim.attempts, claim.first / 1000, claim.longest / 1000
        state.since = state.since or run.first
        for ask in state.asks:
            ask.claimed = ask.due <= now
        self.served[claim.agent_name, _owner(space, conversation_id)] = now

    def taken(self, conversation_id: str, run: Run) -> Taken | None:
        """The turn that this run answers."""
        for state in self.states.get(conversation_id, []):
            if state.status == "running" and state.fence == run.fence.fence:
                turn = _shown(conversation_id, state, None)
                ids = tuple(ask.message_id for ask in state.asks if ask.claimed)
                return Taken(msgspec.structs.replace(turn, message_ids=ids), state.since)
        return None

    def settle(self, space: Space, conversation_id: str, fence: int, end: TurnEnd) -> None:
        """A run has ended."""
        states, now = [], time.time()
        if conversation_id not in self.states:
            return
        for state in self.states[conversation_id]:
            if state.status == "running" and state.fence == fence:
                if end.how == "done" and _needs_approval(space, conversation_id, state.since):
                    state.release("waiting")
                elif end.how == "done":
                    if not state.close(end.taken, now):
                        continue
                elif end.how == "back":
                    state.release("owed")
                    state.due = now
                elif end.how == "later":
                    self._postpone(space, conversation_id, state, now)
                elif end.how == "wait":
                    state.release("waiting")
                else:
                    state.fail(end.how, now)
            states.append(state)
            state.watched = 0.0
            self._ring_if_near(space, conversation_id, state, now)
        self._save(conversation_id, states)

    def _postpone(self, space: Space, conversation_id: str, state: TurnState, now: float) -> None:
        """The attempt could not begin, because other runs have reserved the rest of the owner's budget: it does not
        count, and workers leave the owner's turns alone for a while."""
        state.attempt -= 1
        if not state.attempt:
            state.since = 0
        state.release("owed")
        state.due = now + _POSTPONED
        self.postponed[state.agent_name, _owner(space, conversation_id)] = state.due

    def died(self, space: Space, conversation_id: str, fence: int) -> None:
        self.settle(space, conversation_id, fence, TurnEnd(WORKER_DIED))

    # Workers

    def seat(self, owner: tuple[str | None, str], run_id: str, most: int, seconds: float) -> bool:
        """See TakeSeat."""
        now = time.time()
        seats = {name: ends for name, ends in self.seats.get(owner, {}).items() if ends > now and name != run_id}
        taken = len(seats) < most
        if taken:
            seats[run_id] = now + seconds
        self.seats[owner] = seats
        if not seats:
            del self.seats[owner]
        return taken

    def look(self, space: Space, agent_name: str | None) -> Look:
        """See LookForTurns. Owners take turns."""
        now = time.time()
        found: list[tuple[float, float, str]] = []
        next_in = []
        for name in self.names():
            run = space.runs_of(name).active  # settles the turns of a dead worker
            owner = _owner(space, name)
            for state in self.prune(space, name):
                if state.agent_name != agent_name or state.status not in ("owed", "running"):
                    continue
                at = max(state.due, state.watched, self.postponed.get((agent_name, owner), 0.0))
                if state.status == "running":
                    at = run.expires if run is not None else now
                if at <= now and state.status == "owed":
                    found.append((max(state.due, self.served.get((agent_name, owner), 0.0)), state.due, name))
                else:
                    next_in.append(max(0.0, at - now))
        candidates = [Candidate(1000 * at, name, _owner(space, name)) for at, _, name in sorted(found)]
        return Look(candidates, {0: min(next_in)} if next_in else {})

    def ring(self, space: Space, conversation_id: str, agent_name: str | None) -> None:
        """See RingWorker."""
        for state in self.states.get(conversation_id, ()):
            if state.agent_name == agent_name:
                self._ring_if_near(space, conversation_id, state, time.time())

    def _ring_if_near(self, space: Space, conversation_id: str, state: TurnState, now: float) -> None:
        watchers = self.watchers.get(state.agent_name)
        is_near = state.due <= now + _NOTICED and state.watched <= now
        if state.status == "owed" and is_near and watchers:
            space.wakes.append(partial(rng.choice(watchers), conversation_id))


def _owner(space: Space, conversation_id: str) -> str:
    """The name of the queue of a conversation."""
    conversation = space.find(conversation_id)
    user_id = conversation.record.get("user_id") if conversation is not None else None
    return "" if user_id is None else f"{type(user_id).__name__}:{user_id}"


def _shown(conversation_id: str, state: TurnState, user_id: int | str | None) -> Turn:
    return Turn(
        conversation_id=conversation_id,
        status=state.status,
        asked_at=_time(state.asked),
        due_at=_time(state.due),
        agent_name=state.agent_name,
        user_id=user_id,
        attempt=state.attempt,
        error=state.error,
        failed_at=None if state.failed is None else _time(state.failed),
        message_ids=tuple(ask.message_id for ask in state.asks),
        run_id=state.run_id,
    )


def _time(seconds: float) -> datetime:
    return from_microseconds(round(1_000_000 * seconds))


def _needs_approval(space: Space, conversation_id: str, since: int) -> bool:
    """Whether a message from this sequence on has a call that waits for approval."""
    conversation = space.find(conversation_id)
    return conversation is not None and any(one.sequence >= since for one in conversation.requests)
