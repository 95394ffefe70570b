"""When a writing call was first sent, by the server's clock, and whether a copy of it may be under way. No I/O.

`_change.lua` says what the server does with it.
"""

from __future__ import annotations

import time
from typing import Any, Final

#: Clocks of two machines that run freely differ by less than 1 in 1,000 (NTP slews by 1 in 2,000 at most).
_SLOWEST: Final = 0.999
_CLOCK: Final = "_redis_history_clock"


class Attempt:
    """All copies of one call. `sent`: when the first was sent, in microseconds of the server's clock, 0 if none was;
    `uncertain`: a copy was sent and not answered, so it may be executed at any time.
    """

    __slots__ = ("sent", "uncertain")

    def __init__(self) -> None:
        self.sent = 0
        self.uncertain = False

    @property
    def argument(self) -> bytes:
        """ARGV[7] of the scripts."""
        return b"-%d" % self.sent if self.uncertain else b"%d" % self.sent


def learn_clock(connection: Any, microseconds: int) -> None:
    """Remember what the clock of the server at the other end said just now."""
    setattr(connection, _CLOCK, (_socket(connection), microseconds, time.monotonic()))


def server_time(connection: Any) -> int | None:
    """The server's clock in microseconds, never too late; None if this server was not asked yet.

    Each connection has its own: behind an address may be another server after a failover.
    """
    known = getattr(connection, _CLOCK, None)
    if known is None:
        return None
    socket, microseconds, since = known
    if socket is None or socket is not _socket(connection):  # redis-py has connected anew
        return None
    return int(microseconds + (time.monotonic() - since) * 1e6 * _SLOWEST)


def is_late(reply: Any) -> bool:
    """Whether a writing script could not decide about this copy, and did nothing."""
    return type(reply) is list and len(reply) == 3 and reply[0] == b"late"


def _socket(connection: Any) -> Any:
    return getattr(connection, "_sock", None) or getattr(connection, "_writer", None)
