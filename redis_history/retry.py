"""How long a call keeps trying while the server cannot be reached."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from redis_history.errors import ConfigurationError

__all__ = ["RetryDetails", "RetryPolicy"]

_logger = logging.getLogger("redis_history")


class RetryDetails(NamedTuple):
    """A call is about to be tried again. Times in seconds.

    `server` is the address, without secrets. `retry_num` is 1 before the first repetition. `wait_for` is the wait that
    comes now, `waited_so_far` those before it, without the tries themselves. `caused_by` is what redis-py raised, or
    the operating system.
    """

    server: str
    retry_num: int
    wait_for: float
    waited_so_far: float
    caused_by: BaseException


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long a call keeps trying while the server cannot be reached. Times in seconds.

    Repeating is safe: every change carries a token and every message an id, so what was applied before a lost reply is
    recognised. A wait between tries is random, of up to `first_wait`, and up to twice as long each time until
    `longest_wait`, so that a fleet does not come back all at once.

    `on_retry` is called before each repetition, by the thread or in the event loop of the call, so it must not block.
    Its exceptions are logged and change nothing.
    """

    deadline: float = 10.0
    first_wait: float = 0.02
    longest_wait: float = 1.0
    on_retry: Callable[[RetryDetails], object] | None = None

    def __post_init__(self) -> None:
        times = (self.deadline, self.first_wait, self.longest_wait)
        numbers = all(isinstance(time, int | float) and math.isfinite(time) for time in times)
        if not numbers or self.deadline < 0 or not 0 < self.first_wait <= self.longest_wait:
            raise ConfigurationError(f"a retry policy needs 0 <= deadline and 0 < first_wait <= longest_wait: {self}")
        hook = self.on_retry
        if hook is not None and (not callable(hook) or inspect.iscoroutinefunction(hook)):
            raise ConfigurationError(f"on_retry of a retry policy is a plain function of one argument, not {hook!r}")

    def notify(self, details: RetryDetails) -> None:
        """Call `on_retry`. Its errors must not become those of a write that may still succeed."""
        if self.on_retry is None:
            return
        try:
            self.on_retry(details)
        except Exception:
            _logger.exception("the on_retry of a retry policy failed")
