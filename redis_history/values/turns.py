"""Turns: the answers that a conversation is owed. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal

from msgspec import Struct

from redis_history.values.message import Message

#: Attempts, and in seconds the pauses after failed ones and between looks, where a worker does not say otherwise.
ATTEMPTS: Final = 3
FIRST_WAIT: Final = 2.0
LONGEST_WAIT: Final = 300.0
LOOK_INTERVAL: Final = 5.0
#: The channels that idle workers of an agent listen to: see lua/_turns.lua.
CHANNELS: Final = 32
#: The most agents whose turns one conversation has at a time, and the most messages that a turn names.
MAX_TURNS: Final = 64
MAX_ASKS: Final = 256
#: The name of the error of an attempt whose worker died, or lost the server.
WORKER_DIED: Final = "WorkerDied"

TurnStatus = Literal["owed", "running", "waiting", "parked"]


class Turn(Struct, frozen=True, kw_only=True):
    """The answer that a conversation is owed, as it is when it is read.

    - `conversation_id`; `agent_name` and `user_id`: the agent that was asked, and the owner of the conversation.
    - `status`: "owed"; "running" (a worker answers it); "waiting" (for a person's decision, or another call); "parked"
      (its attempts have failed). A turn that is answered or dropped no longer exists.
    - `asked_at`: when the oldest of its messages asked. `due_at`: a worker takes it from then on. Times of the server's
      clock, in UTC.
    - `attempt`: the number of the newest attempt, from 1; 0 before the first.
    - `error`: the name of the exception that ended the last failed attempt, "WorkerDied" if its worker died; and
      `failed_at`; both are None without a failure.
    - `message_ids`: of the messages that asked, in order, at most the last 256; `run_id`: of the newest attempt.

    In `run.turn`, `messages` are those that asked and are due, and `interrupted` is the partial reply of the attempt
    before, or None. Elsewhere they are empty.
    """

    conversation_id: str
    status: TurnStatus
    asked_at: datetime
    due_at: datetime
    agent_name: str | None = None
    user_id: int | str | None = None
    attempt: int = 0
    error: str | None = None
    failed_at: datetime | None = None
    message_ids: tuple[str, ...] = ()
    run_id: str | None = None
    messages: tuple[Message, ...] = ()
    interrupted: Message | None = None
