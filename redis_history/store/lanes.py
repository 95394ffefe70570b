"""Share the connections to a server among the calls of a store: they queue, and all requests that queued during an
exchange are sent as the next one, in one pipeline. Pure.

Each kind of call has its own queue and connections, so that a small write never waits for a large reply, a large
request, or the confirmation of other writes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any, Final, Literal, Protocol, TypeVar

#: "write": small writes, and renewals of leases. "read": reads, whose replies may be large. "large": requests with many
#: bytes. "confirmed": writes that wait for the confirmation of a disk or a replica.
Kind = Literal["write", "read", "large", "confirmed"]

#: Maximum number of concurrent exchanges of each kind. Two keep a server busy while the replies of one are decoded;
#: reads have more, because a read that waits for a large reply must not hold back the others.
EXCHANGES: Final[dict[Kind, int]] = {"write": 2, "read": 4, "large": 2, "confirmed": 2}
#: Maximum number of commands and bytes of one pipeline: its last reply waits for all of them, and so do other clients,
#: because a server executes what it has received from one client without a pause. A read of a long conversation takes
#: it milliseconds. A single call may have more.
MAX_COMMANDS: Final[dict[Kind, int]] = {"write": 128, "read": 16, "large": 128, "confirmed": 128}
MAX_BYTES: Final = 1_000_000
#: From this size on, a request counts as large: it takes about a millisecond to send and to execute.
LARGE_BYTES: Final = 64_000


class Queued(Protocol):
    """A request in a queue: its `commands`, their `size` in bytes, the command that confirms them, or None, and whether
    its caller `has_left`, so its reply is not needed."""

    commands: Sequence[Sequence[Any]]
    confirm: Sequence[Any] | None
    size: int

    @property
    def has_left(self) -> bool: ...


R = TypeVar("R", bound=Queued)


def kind_of(size: int, *, writes: bool, confirmed: bool) -> Kind:
    """The kind of a request with this many bytes."""
    if confirmed:
        return "confirmed"
    if size >= LARGE_BYTES:
        return "large"
    return "write" if writes else "read"


def take(queue: deque[R], taken: list[R], kind: Kind) -> None:
    """Move the requests of the next pipeline from the queue of a kind to a list. Several threads may do so at the same
    time."""
    commands = size = 0
    while queue and commands < MAX_COMMANDS[kind] and size < MAX_BYTES:
        try:
            # One call in C, so that an interrupt between two steps of Python cannot lose a request of another thread.
            taken.extend(islice(iter(queue.popleft, None), 1))
        except IndexError:  # another thread was faster
            break
        if taken[-1].has_left:
            del taken[-1]
        else:
            commands += len(taken[-1].commands)
            size += taken[-1].size
