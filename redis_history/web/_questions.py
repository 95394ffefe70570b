"""Questions of a chat: which run answers a message, and its answer over all attempts.

A message and the turn that it opens are one change, so a question is owed, being answered, or over at any time. Workers
of any process answer it, and a reader here only looks at turns and runs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any, TypeGuard

from msgspec import Struct
from msgspec.structs import replace

from redis_history.store._async.store import AsyncHistoryStore
from redis_history.store.operations import FindMessage, ReadTurns
from redis_history.values import Message, Position, events
from redis_history.values.runs import RunInfo, RunStatus
from redis_history.values.turns import Turn
from redis_history.web._answers import Answer, follow_answer

#: Events that say nothing about turns: a reader that waits need not look again.
_OTHER = (events.ReplyGrew, events.ReplyEnded, events.MessageUpdated, events.MessagesAppended)


class Question(Struct, frozen=True):
    """A message that an agent was asked to answer. `sequence`: of the message, if it asked when it was stored: runs
    that began later answer it. None: it was asked again, and all runs but these `former` ones answer it."""

    message_id: str
    agent_name: str | None
    sequence: int | None = None
    former: frozenset[str] = frozenset()

    @classmethod
    def of(cls, message: Message, agent_name: str | None) -> Question:
        """The question of a message that has just been stored, or of a copy."""
        return cls(message.id, agent_name, message.sequence or 0)

    @classmethod
    def again(cls, message_id: str, agent_name: str | None, former: Iterable[RunInfo]) -> Question:
        """The question of a message that is asked again, after these runs."""
        return cls(message_id, agent_name, None, frozenset(run.run_id for run in former))

    def may_be_answered_by(self, run: RunInfo) -> bool:
        if run.agent_name != self.agent_name:
            return False
        return run.run_id not in self.former if self.sequence is None else run.first_sequence > self.sequence


class Found(Struct, frozen=True):
    """The state of a question. `waits`: its answer has not begun, or is interrupted and will begin again. `run`:
    the run that answers or answered it, and `first`, the first attempt. Without either, it ended without an answer:
    as "stopped" if it was dropped, as "interrupted" if its message is gone."""

    waits: bool = False
    run: RunInfo | None = None
    first: RunInfo | None = None
    end: RunStatus = "stopped"


async def turn_of(store: AsyncHistoryStore, conversation_id: str, agent_name: str | None) -> Turn | None:
    """The turn of an agent in a conversation."""
    turns = await store.backend.execute(ReadTurns(conversation_id))
    return next((turn for turn in turns if turn.agent_name == agent_name), None)


def is_owed(turn: Turn | None) -> TypeGuard[Turn]:
    """Whether an answer is being written, or will be."""
    return turn is not None and turn.status in ("owed", "running")


async def find(store: AsyncHistoryStore, conversation_id: str, question: Question) -> Found:
    """The present state of a question."""
    # The turn is read first: the run of a turn that has ended since is among those that are read afterwards.
    turn = await turn_of(store, conversation_id, question.agent_name)
    newest = await store.get_run(conversation_id)
    own = [run for run in runs_of(newest) if run.agent_name == question.agent_name]
    later = [run for run in own if question.may_be_answered_by(run)]
    first = later[0] if later else None
    if turn is not None and question.message_id in turn.message_ids:
        if turn.status == "owed":
            return Found(waits=True, first=first)
        if turn.status == "running":
            run = next((one for one in later if one.run_id == turn.run_id), None)
            return Found(waits=run is None, run=run, first=first)
        # Parked or waiting. A message that came during the last attempt shares its end.
        last = (later or own)[-1:]
        return Found(run=last[0] if last else None, first=first, end="interrupted")
    if later:
        run = next((one for one in later if one.status not in ("failed", "interrupted")), later[-1])
        return Found(run=run, first=first)
    message = await store.backend.execute(FindMessage(conversation_id, question.message_id, "none"))
    if message is None:
        return Found(end="interrupted")
    if own and question.sequence is not None and _took_up(own[-1], message):
        return Found(run=own[-1])
    return Found()


def runs_of(newest: RunInfo | None) -> list[RunInfo]:
    """The known runs of a conversation, the oldest first."""
    return [] if newest is None else [*reversed(newest.former), newest]


def _took_up(run: RunInfo, message: Message) -> bool:
    """Whether an answer that was being written when a message came has taken it up, if nobody owes one any more."""
    if run.status != "completed" or run.ended_at is None or message.timestamp is None:
        return False
    # Times of runs are in milliseconds.
    return run.ended_at >= message.timestamp.replace(microsecond=message.timestamp.microsecond // 1000 * 1000)


async def follow(
    store: AsyncHistoryStore, conversation_id: str, *, question: Question | None = None, **options: Any
) -> AsyncIterator[Answer]:
    """The states of the answer to a question, or without one as `follow_answer`."""
    if question is None:
        answers = follow_answer(store, conversation_id, **options)
    else:
        options.pop("run_id", None)
        answers = follow_question(store, conversation_id, question, **options)
    async for answer in answers:
        yield answer


async def follow_question(
    store: AsyncHistoryStore,
    conversation_id: str,
    question: Question,
    *,
    after: Position | None = None,
    whole: bool = False,
    replaces: bool = False,
    heartbeat: float = 10.0,
) -> AsyncIterator[Answer]:
    """The states of the answer to a question, whichever process writes it: at each change, and every `heartbeat`
    seconds. After a failed attempt that will be repeated, the answer goes on with the next attempt. Other options as in
    `follow_answer`."""
    known = Answer([], None, False, lambda message: True)
    followed: set[str] = set()
    options: dict[str, Any] = {"after": after, "whole": whole, "replaces": replaces, "heartbeat": heartbeat}
    while True:
        async with store.subscribe(conversation_id) as changes:
            await changes.get(0)
            while (found := await find(store, conversation_id, question)).waits:
                yield known
                while isinstance(await changes.get(heartbeat), _OTHER):
                    pass
        if found.run is None or found.run.run_id in followed:
            yield replace(known, done=True, ended=found.end if known.run is None else None)
            return
        run_id = found.run.run_id
        followed.add(run_id)
        async for answer in follow_answer(store, conversation_id, run_id=run_id, since=found.first, **options):
            known = answer
            if not answer.done:
                yield answer
        if known.end in ("failed", "interrupted"):
            found = await find(store, conversation_id, question)
            if found.waits or (found.run is not None and found.run.run_id not in followed):
                known = replace(known, done=False)
                yield known
                continue
        yield known
        return
