"""Connections for calls, kept between calls. The twin in _async is written by hand.

redis-py's pool checks a connection each time it hands one out, which takes a fifth of the time of a call. Calls are
retried here anyway, so idle connections are kept outside the pool until they fail. Connections of a user's client go
back to its pool after each call, because the user sets its limit.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Callable
from typing import Any, Final

from redis import connection as redis_connection
from redis.connection import ConnectionPool as RedisPool
from redis.exceptions import ConnectionError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from redis_history._sync._runtime import background, reset_after_fork
from redis_history.backends.redis.resp import NEED_MORE, ReplyReader

#: Seconds for the rest of a message after its first byte.
_REST_SECONDS: Final = 5.0
#: The error of calls whose connections are closed while they use them.
CLOSED: Final = "the connections were closed"

#: The parsers of redis-py that ReplyReader replaces: they are slower.
_SLOW: Final = tuple(
    getattr(redis_connection, name) for name in ("_RESP2Parser", "_RESP3Parser") if hasattr(redis_connection, name)
)
_READ_SIZE: Final = 256 * 1024
_READER: Final = "_redis_history_reader"


class ConnectionPool:
    """Connections to one server, for any thread; as many as threads have called at once."""

    def __init__(self, make_pool: Callable[[], RedisPool], *, keep: bool) -> None:
        """`keep`: the store owns the pool, and closes it."""
        self.pool = make_pool()
        self._keep = keep
        self._idle: list[Any] = []
        self._closed = False
        reset_after_fork(self)

    def acquire(self) -> Any:
        """A connection for one call; `release` or `discard` it afterwards."""
        connection, work = self._pop_or_connect(), background()
        if work is not None:
            work.connection = connection
            if work.abandoned:  # before it could be shut down
                self.discard(connection)
                raise ConnectionError(CLOSED)
        return connection

    def _pop_or_connect(self) -> Any:
        try:
            return self._idle.pop()
        except IndexError:
            pass
        try:
            connection = self.pool.get_connection()
        except BaseException as error:
            if self._closed:  # redis-py may have made another connection
                self.close_idle()
            self.check(error)
            raise
        if self._closed:  # while it connected
            self.discard(connection)
            raise ConnectionError(CLOSED)
        return connection

    def send(self, connection: Any, packed: bytes) -> None:
        connection.send_packed_command([packed])

    def read(self, connection: Any, patience: float | None = None) -> Any:
        """The next reply, which may take `patience` seconds longer than usual. Raises it if it is a ResponseError."""
        seconds = connection.socket_timeout
        longer = {"timeout": seconds + patience} if patience is not None and seconds is not None else {}
        sock, reader = self._reader(connection)
        if reader is None:
            return connection.read_response(disable_decoding=True, **longer)
        reply = reader.take()
        if reply is NEED_MORE:
            try:
                if longer:
                    sock.settimeout(longer["timeout"])
                while reply is NEED_MORE:
                    if not (data := sock.recv(_READ_SIZE)):
                        raise ConnectionError("Connection closed by server.")
                    reader.feed(data)
                    reply = reader.take()
                if longer:
                    sock.settimeout(seconds)
            except TimeoutError as error:
                raise RedisTimeoutError("Timeout reading from socket") from error
            except OSError as error:
                raise ConnectionError(f"Error while reading from socket: {error.args}") from error
        if isinstance(reply, ResponseError):
            raise reply
        return reply

    def _reader(self, connection: Any) -> tuple[Any, ReplyReader | None]:
        """The socket of a connection and the reader of its replies; None if redis-py reads them."""
        sock = getattr(connection, "_sock", None) if self._keep else None
        before, reader = getattr(connection, _READER, (None, None))
        if before is not sock:  # redis-py has connected, or disconnected
            ours = sock is not None and isinstance(getattr(connection, "_parser", None), _SLOW)
            if ours and connection._parser._buffer.unread_bytes():  # redis-py has read ahead
                ours = False
            reader = ReplyReader(connection._parser.parse_error) if ours else None
            setattr(connection, _READER, (sock, reader))
        return sock, reader

    def release(self, connection: Any) -> None:
        """Return a connection after a whole reply."""
        self._detach()
        _, reader = self._reader(connection)
        unread = reader is not None and not reader.empty  # data that no command asked for
        if self._closed or unread or connection.should_reconnect():  # the server announced that it moves
            self.discard(connection)
        elif self._keep:
            self._idle.append(connection)
            if self._closed:  # in the meantime
                self.close_idle()
        else:
            self.pool.release(connection)

    def discard(self, connection: Any) -> None:
        """Close a connection in an unknown state, so that no later call reads an outstanding reply."""
        self._detach()
        with contextlib.suppress(RedisError, OSError):
            connection.disconnect()
        self._reader(connection)  # drops the old reader
        self.pool.release(connection)

    def _detach(self) -> None:
        if (work := background()) is not None:
            work.connection = None

    def check(self, error: BaseException) -> None:
        """Raises ConnectionError if this pool was closed during the call: redis-py may raise any error then."""
        if self._closed and isinstance(error, Exception) and not isinstance(error, RedisError | OSError):
            raise ConnectionError(CLOSED) from error

    def close(self) -> None:
        """Close all connections. Calls that use or make one end with a ConnectionError."""
        self._closed = self._keep  # a user's client stays open
        self._release()
        if self._keep:
            self.pool.disconnect()

    def close_idle(self) -> None:
        """Close the connections that are not in use."""
        self._release()
        if self._keep:
            self.pool.disconnect(inuse_connections=False)

    def _release(self) -> None:
        with contextlib.suppress(IndexError):  # other threads pop too
            while True:
                self.pool.release(self._idle.pop())

    def forget(self) -> None:
        """Reset a forked child: forget the parent's connections without closing them."""
        self._idle = []


class PubSubConnection:
    """A connection for pub/sub. Only one thread uses it; any thread may call `interrupt`.

    redis-py's PubSub reconnects in every method, which breaks other users of the connection. This class never
    reconnects: after any error, call `disconnect`, then `connect`.
    """

    def __init__(self, pool: RedisPool) -> None:
        self._pool = pool
        self._connection: Any = None
        self._socket: Any = None
        self._interrupted = False
        self._awake, self._waker = socket.socketpair()  # wakes the thread that waits for the server
        self._awake.setblocking(False)
        self._waker.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._awake, selectors.EVENT_READ)

    def connect(self) -> None:
        self._connection = self._pool.get_connection()
        self._socket = self._connection._get_socket()
        self._check()
        self._selector.register(self._socket, selectors.EVENT_READ)

    def send(self, *command: bytes) -> None:
        self._check()
        self._connection.send_packed_command(self._connection.pack_command(*command), check_health=False)
        self._check()

    def ask(self, command: tuple[bytes, ...], seconds: float) -> Any:
        """The reply to a command that is sent before the first subscription, within `seconds`."""
        self.send(*command)
        return self._connection.read_response(disable_decoding=True, timeout=seconds)

    def receive(self, seconds: float) -> Any:
        """The next message. None after `seconds`, after an interrupt, or for a message without content."""
        if not self._interrupted:
            if self._connection is not None:
                self._check()
                if self._connection.can_read(timeout=0):
                    return self._read()
            ready = [key.fileobj for key, _ in self._selector.select(seconds)]
            if self._awake not in ready:
                return self._read() if ready else None
        self._interrupted = False  # before reading the bytes, so that a later interrupt counts for the next call
        with contextlib.suppress(BlockingIOError):
            while self._awake.recv(4096):
                pass
        return None

    def interrupt(self) -> None:
        """End the current `receive`, or else the next one."""
        self._interrupted = True
        with contextlib.suppress(OSError):  # the buffer is full, or closed
            self._waker.send(b"x")

    def disconnect(self) -> None:
        connection, self._connection = self._connection, None
        sock, self._socket = self._socket, None
        if connection is not None:
            try:
                with contextlib.suppress(KeyError, ValueError):  # not registered, or closed elsewhere
                    self._selector.unregister(sock)
                connection.disconnect()
            finally:
                self._pool.release(connection)

    def close(self) -> None:
        """Release the resources of `interrupt`."""
        self._selector.close()
        self._awake.close()
        self._waker.close()

    def _read(self) -> Any:
        return self._connection.read_response(
            disable_decoding=True, timeout=_REST_SECONDS, disconnect_on_error=False, push_request=True
        )

    def _check(self) -> None:
        """Raises ConnectionError if redis-py has reconnected or would: that loses the subscriptions."""
        current = self._connection._get_socket()
        if current is None or current is not self._socket or self._connection.should_reconnect():
            raise ConnectionError(CLOSED)
