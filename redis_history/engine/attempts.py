"""When copies of a call were sent, on the server's clock, and which replies are final."""

from __future__ import annotations

import time
from typing import Any, Final

from msgspec import Struct
from redis.exceptions import MovedError, NoScriptError, ResponseError, TryAgainError

from redis_history.operations.base import Call
from redis_history.operations.failures import is_transient

#: Two free-running clocks differ by less than 1 in 1,000 (NTP slews by 1 in 2,000 at most).
_SLOWEST_CLOCK: Final = 0.999


class ServerClock:
    """The time of a server, rather early than late, by its last report.

    Another server may use the address after a failover, so the report counts only while the connections last, and for
    `_TRUSTED` seconds after the last reply.
    """

    _TRUSTED: Final = 5.0

    def __init__(self) -> None:
        self._report: tuple[int, float] | None = None
        self._heard = 0.0

    def learn(self, microseconds: int) -> None:
        """The server has just reported this time."""
        self._heard = time.monotonic()
        self._report = microseconds, self._heard

    def heard(self) -> None:
        """The server has just replied."""
        self._heard = time.monotonic()

    def forget(self) -> None:
        """A connection was lost or made, or the server is not the primary."""
        self._report = None

    @property
    def now(self) -> int:
        """The time in microseconds; 0 if it is not known."""
        report, now = self._report, time.monotonic()
        if report is None or now - self._heard > self._TRUSTED:
            return 0
        return int(report[0] + (now - report[1]) * 1e6 * _SLOWEST_CLOCK)


class Attempt(Struct):
    """All copies of one writing call. `sent`: when the first copy was sent, in microseconds of the server's clock; 0
    before that. `uncertain`: a copy got no reply, so the server may execute it at any time. For the server's decision,
    see lua/_change.lua.
    """

    sent: int = 0
    uncertain: bool = False


def is_late(reply: Any) -> bool:
    """Whether a writing script did nothing, because it cannot tell whether an earlier copy was executed."""
    return type(reply) is list and len(reply) == 3 and reply[0] == b"late"


def raise_first(calls: list[Call], replies: list[Any]) -> list[Any]:
    """The replies. Raises the first error, except NoScriptError, and except permanent errors, redirections and TRYAGAIN
    of calls with `errors`."""
    for call, reply in zip(calls, replies, strict=True):
        if not isinstance(reply, ResponseError) or isinstance(reply, NoScriptError):
            continue
        if call.errors and isinstance(reply, TryAgainError | MovedError):
            continue
        if not call.errors or is_transient(reply):
            raise reply
    return replies
