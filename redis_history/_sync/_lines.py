"""Connections for calls, kept ready between them. Its twin in _async is written by hand too.

redis-py's pool looks at a connection each time it is taken, to see whether the server has hung up. Our calls may be
repeated when that turns out on the way, so a connection stays with us until it fails: that is a fifth of the time of
a call. Connections of a client that is the user's go back to its pool each time, because its limit is the user's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

from redis.connection import ConnectionPool
from redis.exceptions import ConnectionError, RedisError

from redis_history._sync._runtime import reset_after_fork

__all__ = ["CLOSED", "Lines"]

#: Said of calls whose connections are closed under them.
CLOSED: Final = "the connections were closed"


class Lines:
    """Connections, ready to be used by any thread. As many as threads have called at once."""

    def __init__(self, make_pool: Callable[[], ConnectionPool], *, keep: bool) -> None:
        """With `keep` the pool is ours to close."""
        self.pool = make_pool()
        self._keep = keep
        self._idle: list[Any] = []
        self._closed = False
        reset_after_fork(self)

    def take(self) -> Any:
        """A connection, for one exchange; to be given back, or dropped."""
        try:
            return self._idle.pop()
        except IndexError:
            pass
        try:
            connection = self.pool.get_connection()
        except BaseException as error:
            if self._closed:  # redis-py may have connected once more
                self.let_go()
            self.check(error)
            raise
        if self._closed:  # while it connected
            self.drop(connection)
            raise ConnectionError(CLOSED)
        return connection

    def send(self, connection: Any, packed: bytes) -> None:
        connection.send_packed_command([packed])

    def give(self, connection: Any) -> None:
        """Back, after a whole reply."""
        if self._closed or connection.should_reconnect():  # or the server said that it moves elsewhere
            self.drop(connection)
        elif self._keep:
            self._idle.append(connection)
            if self._closed:  # at this moment
                self.let_go()
        else:
            self.pool.release(connection)

    def drop(self, connection: Any) -> None:
        """Back, in an unknown state: a reply still to come must not be taken for that of the next call."""
        with contextlib.suppress(RedisError, OSError):
            connection.disconnect()
        self.pool.release(connection)

    def check(self, error: BaseException) -> None:
        """What a call raised: a ConnectionError in its place, if redis-py came upon a connection that was closed here
        while it was used, which may be any error."""
        if self._closed and isinstance(error, Exception) and not isinstance(error, RedisError | OSError):
            raise ConnectionError(CLOSED) from error

    def close(self) -> None:
        """Close the connections. Calls that use one, or make one, end with a ConnectionError."""
        self._closed = self._keep  # those of a user's client go on
        self._release()
        if self._keep:
            self.pool.disconnect()

    def let_go(self) -> None:
        """Close those that are not in use."""
        self._release()
        if self._keep:
            self.pool.disconnect(inuse_connections=False)

    def _release(self) -> None:
        with contextlib.suppress(IndexError):  # other threads take some too
            while True:
                self.pool.release(self._idle.pop())

    def forget(self) -> None:
        """Let go of all idle connections without a word to the server: they are the parent process's."""
        self._idle = []
