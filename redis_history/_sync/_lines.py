"""Connections for calls, kept ready between them. Its twin in _async is written by hand too.

redis-py's pool looks at a connection each time it is taken, to see whether the server has hung up. Our calls may be
repeated when that turns out on the way, so a connection stays with us until it fails: that is a fifth of the time of
a call. Connections of a client that is the user's go back to its pool each time, because its limit is the user's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from redis.connection import ConnectionPool
from redis.exceptions import RedisError

from redis_history._sync._runtime import reset_after_fork

__all__ = ["Lines"]


class Lines:
    """Connections, ready to be used by any thread. As many as threads have called at once."""

    def __init__(self, make_pool: Callable[[], ConnectionPool], *, keep: bool) -> None:
        """With `keep` the pool is ours to close."""
        self.pool = make_pool()
        self._keep = keep
        self._idle: list[Any] = []
        reset_after_fork(self)

    def take(self) -> Any:
        """A connection, for one exchange; to be given back, or dropped."""
        try:
            return self._idle.pop()
        except IndexError:
            return self.pool.get_connection()

    def send(self, connection: Any, packed: bytes) -> None:
        connection.send_packed_command([packed])

    def give(self, connection: Any) -> None:
        """Back, after a whole reply."""
        if connection.should_reconnect():  # the server said that it moves elsewhere
            self.drop(connection)
        elif self._keep:
            self._idle.append(connection)
        else:
            self.pool.release(connection)

    def drop(self, connection: Any) -> None:
        """Back, in an unknown state: a reply still to come must not be taken for that of the next call."""
        with contextlib.suppress(RedisError, OSError):
            connection.disconnect()
        self.pool.release(connection)

    def close(self) -> None:
        """Close the connections."""
        self._release()
        if self._keep:
            self.pool.disconnect()

    def let_go(self) -> None:
        """Close those that are not in use."""
        self._release()
        if self._keep:
            self.pool.disconnect(inuse_connections=False)

    def _release(self) -> None:
        while self._idle:
            self.pool.release(self._idle.pop())

    def forget(self) -> None:
        """Let go of all idle connections without a word to the server: they are the parent process's."""
        self._idle = []
