"""Which errors of redis-py pass by themselves, and what each of the others means to a user."""

from __future__ import annotations

from dataclasses import dataclass

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    ConnectionError,
    InvalidResponse,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TimeoutError,
)

from redis_history.errors import (
    BackendError,
    BackendRefusedError,
    BackendUnavailableError,
    ConfigurationError,
    CorruptDataError,
    UnsupportedServerError,
)

__all__ = ["RetryPolicy", "is_transient", "translate"]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long a call keeps trying while the server cannot be reached. Times in seconds.

    Repeating is safe: every change carries a token and every message an id, so what was applied before a lost reply is
    recognised. A wait between tries is random, of up to `first_wait`, and up to twice as long each time until
    `longest_wait`, so that a fleet does not come back all at once.
    """

    deadline: float = 10.0
    first_wait: float = 0.02
    longest_wait: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.deadline < float("inf") or not 0 < self.first_wait <= self.longest_wait:
            raise ConfigurationError(f"a retry policy needs 0 <= deadline and 0 < first_wait <= longest_wait: {self}")


# Replies that name a passing state: a script of somebody runs too long; a failover is under way.
_PASSING = ("BUSY ", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "UNBLOCKED")


def is_transient(error: BaseException) -> bool:
    """Whether the same call may well succeed a little later."""
    if isinstance(error, AuthenticationError | AuthorizationError | NoPermissionError):
        return False
    if isinstance(error, ConnectionError | TimeoutError | ReadOnlyError | OSError):
        return True
    return isinstance(error, ResponseError) and str(error).startswith(_PASSING)


def translate(error: Exception, server: str) -> BackendError:
    """The error of our own tree that says what `error` means; `server` is the address, without secrets."""
    text = str(error) or type(error).__name__
    if isinstance(error, AuthenticationError | AuthorizationError):
        return BackendRefusedError(f"{server} refused the user name or password: {text}")
    if isinstance(error, NoPermissionError):
        return BackendRefusedError(f"{server} does not allow this user what redis_history needs: {text}")
    if isinstance(error, ReadOnlyError):
        return BackendRefusedError(f"{server} is a read-only replica; connect to the primary: {text}")
    if isinstance(error, OutOfMemoryError) or text.startswith("OOM"):
        return BackendRefusedError(f"{server} is out of memory; raise maxmemory or delete conversations: {text}")
    if is_transient(error):
        return BackendUnavailableError(f"{server} gave no answer before the deadline: {text}")
    if isinstance(error, InvalidResponse):
        return UnsupportedServerError(f"{server} does not speak the Redis protocol: {text}")
    if "WRONGTYPE" in text:
        return CorruptDataError(f"a key of this conversation holds something else; use another namespace: {text}")
    if "unknown command" in text.lower():
        return UnsupportedServerError(f"{server} lacks a command that redis_history needs: {text}")
    return BackendError(f"{server} failed: {text}")
