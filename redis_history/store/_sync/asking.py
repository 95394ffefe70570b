# Generated from ../_async by scripts/unasync: do not edit.
"""The methods of a store for turns: the answers that conversations are owed."""

from __future__ import annotations

import math
import time
from datetime import timedelta

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from redis_history.errors import InvalidInputError
from redis_history.store import operations as ops
from redis_history.store._sync.executing import Executing
from redis_history.store.operations.usage import check_budget_of
from redis_history.values import Message
from redis_history.values._validation import check_choice, check_integer, check_name, check_owner, check_text
from redis_history.values.ids import check_conversation_id
from redis_history.values.times import Instant, to_microseconds
from redis_history.values.turns import Turn, TurnStatus

#: Messages in which the newest of a user is looked for.
_LAST: int = 200


class Asking(Executing):
    def ask(
        self,
        conversation_id: str,
        message: Message,
        *,
        agent_name: str | None = None,
        at: Instant | timedelta | None = None,
    ) -> ops.Appended:
        """Append a message and open a turn in one change: the conversation is owed an answer, which a worker gives
        (`Worker`), in whichever process.

        Messages that arrive before a worker begins join the turn. `run.messages()` returns those that arrive during the
        answer; if it does not take them up, they are the next turn. `agent_name` names the workers that may answer:
        those with the same name. A conversation has one turn for each agent that was asked. `at` is when the answer is
        due (a time, as for messages, or a timedelta from now): a wake-up. Later questions do not move it.

        The outcome and the errors are those of `append`: a message that is stored already opens no turn. Raises
        ConflictError if 64 agents owe the conversation an answer, and BudgetExceededError if the owner's budget is used
        up.
        """
        op = ops.Append.of(conversation_id, message)
        check_agent(agent_name)
        self.execute(check_budget_of(conversation_id))
        return (self._write(replace(op, asking=ops.Asking(agent_name, _due(at)))))[0]

    def list_turns(
        self,
        *,
        status: TurnStatus | None = None,
        agent_name: str | None = None,
        user_id: int | str | None = None,
        limit: int = 50,
    ) -> list[Turn]:
        """Return what conversations are owed, the oldest question first: at most `limit` turns, 1 to 100,000.

        `status`: only those that are "owed", "running", "waiting" or "parked". `agent_name`: only those of this agent.
        `user_id`: only those of conversations of this owner."""
        if status is not None:
            check_choice(status, "status", ("owed", "running", "waiting", "parked"), InvalidInputError)
        check_agent(agent_name)
        check_owner(user_id, "user_id")
        check_integer(limit, "limit", 1, 100_000, error=InvalidInputError)
        return self._backend.execute(ops.ListTurns(status, agent_name, user_id, limit))

    def retry_turn(self, conversation_id: str, *, agent_name: str | UnsetType | None = UNSET) -> bool:
        """Make the turns of a conversation due now, as if they were new: those that are parked, waiting, or owed later.
        `agent_name`: only that of this agent, or with None, that of no agent.

        Without a turn, the newest message of a user asks again, for example after the answer was deleted. Returns
        whether a turn is owed now; not if it is running, or if there is no message of a user.
        """
        check_conversation_id(conversation_id)
        op = _change("retry", conversation_id, agent_name)
        if self._write(op):
            return True
        turns = self._backend.execute(ops.ReadTurns(conversation_id))
        if any(op.all_agents or turn.agent_name == op.agent_name for turn in turns):
            return False
        page = self._backend.execute(ops.ReadPage(conversation_id, _LAST, newest=True, contents="none"))
        asked = [one.id for one in page.messages if one.role == "user" and not one.is_summary]
        if not asked:
            return False
        return bool(self._write(ops.ChangeTurns(conversation_id, "open", op.agent_name, False, 0, (asked[-1],))))

    def drop_turn(self, conversation_id: str, *, agent_name: str | UnsetType | None = UNSET) -> bool:
        """End the turns of a conversation without an answer, and return whether there were any. Messages stay. A turn
        that is running loses only the messages that came during the answer: `stop_run` ends the answer. `agent_name` as
        in `retry_turn`."""
        check_conversation_id(conversation_id)
        return bool(self._write(_change("drop", conversation_id, agent_name)))


def _change(action: ops.Action, conversation_id: str, agent_name: str | UnsetType | None) -> ops.ChangeTurns:
    agent = None if isinstance(agent_name, UnsetType) else agent_name
    check_agent(agent)
    return ops.ChangeTurns(conversation_id, action, agent, agent_name is UNSET)


def check_agent(agent_name: str | None) -> None:
    """Raises InvalidInputError."""
    check_text(agent_name, "agent_name", optional=True, error=InvalidInputError)
    check_name(agent_name, "agent_name")


def _due(at: Instant | timedelta | None) -> int:
    """When an answer is due, as in `ops.Asking`. Raises InvalidTimestampError."""
    if at is None:
        return 0
    if isinstance(at, timedelta):
        seconds = max(0.0, at.total_seconds())
        to_microseconds(time.time() + seconds)  # whether it is a valid time
        return -math.ceil(1000 * seconds)
    return max(0, -(-to_microseconds(at) // 1000))
