"""Runs: the agent that works on a conversation, and the waiting agents. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final, Literal

from msgspec import Struct

#: Seconds after the last renewal at which the run of a holder that died or hangs expires. Its contract is 10 seconds:
#: the rest is for the next in the queue to notice.
RUN_SECONDS: Final = 8.0
#: Seconds between two renewals.
RENEW_SECONDS: Final = 2.0
#: Seconds for which a place in the queue is kept without a sign of life, and between two signs of life.
PLACE_SECONDS: Final = 5.0
POLL_SECONDS: Final = 1.5
#: Seconds in which a waiter that was woken by the end of a run must give a sign of life. Otherwise it is passed over,
#: because the next run has to begin within 2 seconds. WOKEN: the number of waiters that are woken.
ANSWER_SECONDS: Final = 1.5
WOKEN: Final = 4
#: The number of runs that are remembered after the next one has begun, and for how long.
FORMER_RUNS: Final = 16
FORMER_AGE: Final = timedelta(minutes=1)
#: The maximum number of agents that wait for one conversation.
MAX_WAITING: Final = 1000

RunStatus = Literal["active", "stopping", "completed", "failed", "stopped", "interrupted"]


class RunWaiter(Struct, frozen=True):
    """An agent, `agent_name`, that waits for a run of the conversation. `run_id` is that of its future run, `since` is
    when it asked for it."""

    run_id: str
    agent_name: str | None
    since: datetime


class RunInfo(Struct, frozen=True):
    """The newest run of a conversation, as it is when it is read.

    - `run_id` is random; `conversation_id` and `agent_name` are those given to `store.run`.
    - `status`: "active"; "stopping" after `stop_run`, until the holder ends it; then "completed", "failed" (its block
      raised an error), "stopped", or "interrupted" (its holder died, hung, or lost the server).
    - `started_at` and `ended_at` are times of the server's clock, in UTC; `ended_at` is None while the run is active.
    - `stop_reason`: the reason given to `stop_run`.
    - `waiting`: the agents that wait for the next run, in order of arrival.
    - `first_sequence`: the first that its messages may have. Messages with a lower one were stored before it began.
    - `former`: the last 16 runs before it that ended less than a minute before it began, the newest first.
    """

    run_id: str
    conversation_id: str
    agent_name: str | None
    status: RunStatus
    started_at: datetime
    ended_at: datetime | None = None
    stop_reason: str | None = None
    waiting: tuple[RunWaiter, ...] = ()
    first_sequence: int = 0
    former: tuple[RunInfo, ...] = ()

    @property
    def is_active(self) -> bool:
        """Whether the holder still has the run: its status is "active" or "stopping"."""
        return self.status in ("active", "stopping")
