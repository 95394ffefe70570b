"""What came of a run."""

from __future__ import annotations

import msgspec

from redis_history.demo.watcher import Heard
from redis_history.errors import RedisHistoryError

__all__ = ["Outcome", "RunError"]


class RunError(RedisHistoryError):
    """A process of the demo failed; the run has no result."""


class Outcome(msgspec.Struct):
    """What happened, as reported. Times in seconds. `ignored`: messages sent again, on purpose or by the restarted
    agent, and known to the store; `doubled`: those it took for new; `too_long`: conversations that the compressor left
    so, and its last failure; `not_cut`: why no connection could be cut."""

    stored: int = 0
    ignored: int = 0
    doubled: int = 0
    killed: int = 0
    compressors_killed: int = 0
    too_long: int = 0
    compressor_error: str | None = None
    cut: int = 0
    not_cut: str | None = None
    seen_messages: int = 0
    elapsed: float = 0.0
    seconds: list[float] = msgspec.field(default_factory=list)
    events: dict[str, list[Heard]] = msgspec.field(default_factory=dict)
    revisions: dict[str, int] = msgspec.field(default_factory=dict)
