"""Whether the holder of an expired lease may still renew it, because the server was away. Pure.

A server that was suspended or restarted, or whose primary was replaced, cannot decide this: by its clock, the lease of
a living holder has expired like the lease of a dead holder. So each client judges by its own contact with the server.
It ends the leases of others only after it has heard from the server for long enough that a living holder would have
renewed its lease.

A failed call is not evidence of an outage: an outage between two replies of the server cannot have been longer than
the time between them. So a client that loses a reply now and then, or cannot reach another node of a cluster, judges
like any other.
"""

from __future__ import annotations

import time
from typing import Final

#: Seconds without a reply in which the server may have been away for so long that leases have expired. A lease of 6
#: seconds that is renewed every two outlives an outage of 4.
SILENCE: Final = 3.5
#: Seconds in which a living holder renews its leases after the server has come back: it repeats its calls after a
#: second at most.
RETURN: Final = 3.0
#: The same after a failover, because a holder may have waited up to 5 seconds for the former server.
RETURN_AFTER_FAILOVER: Final = 7.0
#: Seconds after the last heartbeat of a holder from which every client considers it dead.
PROMISE: Final = 10.0

_MAX_DOUBTS: Final = 10_000
#: A renewal moves the expiry of a lease by at least this number of seconds.
_RENEWED: Final = 3.0

#: The name of a lease: its conversation and its kind.
Lease = tuple[str, str]


class Contact:
    """The time for which this client has been in contact with one server. `moves`: the server is looked up for each
    connection, as behind Sentinels, so another server may have taken over while calls failed."""

    def __init__(self) -> None:
        self.moves = False
        self._since: float | None = None
        self._heard = 0.0
        self._failed = False
        self._return = RETURN
        #: By expired lease: when it expired, and when this client first found that.
        self._doubts: dict[Lease, tuple[float, float]] = {}

    def heard(self) -> None:
        """Note that the server has just replied."""
        now = time.monotonic()
        if self._since is None or now - self._heard > SILENCE:
            self._return = RETURN_AFTER_FAILOVER if self.moves and self._failed else RETURN
            self._since = now
        self._heard, self._failed = now, False

    def failed(self) -> None:
        """Note that a call has just failed without a reply. This alone does not break the contact."""
        self._failed = True

    def taken_over(self) -> None:
        """Note that another server has just replaced the former primary."""
        self._since = self._heard = time.monotonic()
        self._return = RETURN_AFTER_FAILOVER

    def spares(self, lease: Lease, over: float) -> float:
        """The seconds within which the holder of a lease that expired `over` seconds ago by the server's clock may
        still renew it, or 0 if the holder is dead. Each expired lease is spared once, however often this client loses
        contact."""
        now = time.monotonic()
        since = now if self._since is None else self._since
        if now - since >= self._return:
            return 0.0
        expired, first = self._doubts.get(lease, (float("-inf"), now))
        if now - over - expired > _RENEWED:  # it is new, or was renewed in the meantime
            if len(self._doubts) >= _MAX_DOUBTS:
                self._doubts.clear()
            self._doubts[lease] = now - over, now
            first = now
        return max(0.0, min(since, first) + self._return - now)

    def pause(self, lease: Lease, over: float, length: float) -> float:
        """The seconds after which to check again, because it is certain by then whether the holder of an expired lease
        of this length is alive, or 0 without a wait. A caller waits only for a lease whose last heartbeat is so old
        that its holder must no longer be considered alive."""
        left = self.spares(lease, over)
        return left if over + length >= PROMISE and left <= RETURN else 0.0
