"""How long a call keeps trying while the server cannot be reached."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from redis_history.errors import ConfigurationError
from redis_history.values._validation import check_function

__all__ = ["RetryDetails", "RetryPolicy"]

_logger = logging.getLogger("redis_history")


class RetryDetails(NamedTuple):
    """A call will be retried. Times in seconds.

    `server`: the address, without secrets. `retry_num`: 1 before the first retry. `wait_for`: the wait before this
    retry. `waited_so_far`: the sum of earlier waits, without the attempts themselves. `caused_by`: the error of
    redis-py or the operating system.
    """

    server: str
    retry_num: int
    wait_for: float
    waited_so_far: float
    caused_by: BaseException


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The limits within which a call keeps trying while the server cannot be reached. Times in seconds.

    Retries are safe: every change has a token and every message an id, so a repeated write is recognized. `deadline`:
    a call that fails after this time is not retried. Waits are random, so that a fleet does not reconnect
    simultaneously: up to `first_wait`, then up to twice as long each time, at most `longest_wait`.

    `on_retry` is called before each retry, in the thread or event loop of the call, so it must not block. Its errors
    are logged.
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
        check_function(self.on_retry, "on_retry", plain=True)

    def notify(self, details: RetryDetails) -> None:
        """Call `on_retry`; log its errors."""
        if self.on_retry is None:
            return
        try:
            self.on_retry(details)
        except Exception:
            _logger.exception("on_retry of a retry policy failed")
