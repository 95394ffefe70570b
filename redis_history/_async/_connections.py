"""Connections for calls, kept between calls. The twin in _sync is written by hand.

redis-py's pool checks a connection each time it hands one out, which takes a fifth of the time of a call. Calls are
retried here anyway, so idle connections are kept outside the pool until they fail. Connections of a user's client go
back to its pool after each call, because the user sets its limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable
from typing import Any, Final

from redis.asyncio import connection as redis_connection
from redis.asyncio.connection import ConnectionPool as RedisPool
from redis.exceptions import ConnectionError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from redis_history._async._runtime import LoopLocal, close_with_loop, is_cancelled
from redis_history.backends.redis.resp import NEED_MORE, ReplyReader

#: Concurrent calls of one event loop; more wait, because the server runs one at a time.
MAX_CONCURRENT_CALLS: Final = 64

#: The error of calls whose connections are closed while they use them.
CLOSED: Final = "the connections were closed"

#: The parsers of redis-py that ReplyReader replaces: they are slower, and read no bytes ahead.
_SLOW: Final = tuple(
    getattr(redis_connection, name)
    for name in ("_AsyncRESP2Parser", "_AsyncRESP3Parser")
    if hasattr(redis_connection, name)
)
#: More than a stream buffers, so each read takes everything.
_READ_SIZE: Final = 1024 * 1024
_READER: Final = "_redis_history_reader"


async def _close_now(connection: Any) -> None:
    """Close a connection without TLS's orderly end: that waits for the server, and the event loop may end before."""
    writer = getattr(connection, "_writer", None)
    if writer is not None:
        writer.transport.abort()
    with contextlib.suppress(RedisError, OSError):
        await connection.disconnect(nowait=True)


class _LoopPool:
    """The connections of one event loop. A redis-py pool has asyncio locks, so loops cannot share it."""

    def __init__(self, pool: RedisPool, *, keep: bool) -> None:
        self.pool = pool
        self.idle: list[Any] = []
        self.turns = asyncio.Semaphore(MAX_CONCURRENT_CALLS)
        self.closed = False
        self._keep = keep
        self._guard = close_with_loop(self._close)

    async def aclose(self) -> None:
        await self._guard.aclose()
        await self._close()

    async def _close(self) -> None:
        self.closed = self._keep  # a user's client stays open
        await self.close_idle(calls=True)

    async def close_idle(self, *, calls: bool = False) -> None:
        """Close idle connections, and with `calls` also those in use."""
        while self.idle:
            connection = self.idle.pop()
            await _close_now(connection)
            await self.pool.release(connection)
        if self._keep:
            with contextlib.suppress(RedisError, OSError):
                await self.pool.disconnect(inuse_connections=calls)


class ConnectionPool:
    """Connections to one server, for one event loop after the other."""

    def __init__(self, make_pool: Callable[[], RedisPool], *, keep: bool) -> None:
        """`make_pool` is called for each event loop. `keep`: the store owns the pools, and closes them."""
        self._make_pool = make_pool
        self._keep = keep
        self._ready = LoopLocal(lambda: _LoopPool(make_pool(), keep=keep))

    @property
    def pool(self) -> RedisPool:
        """redis-py's pool for this loop."""
        return self._ready.get().pool

    async def acquire(self) -> Any:
        """A connection for one call; `release` or `discard` it afterwards."""
        ready = self._ready.get()
        await ready.turns.acquire()
        try:
            connection = ready.idle.pop() if ready.idle else await ready.pool.get_connection()
        except BaseException as error:
            ready.turns.release()
            if ready.closed:  # redis-py may have made another connection
                await ready.close_idle()
            self.check(error)
            raise
        if ready.closed:  # while it connected
            await self.discard(connection)
            raise ConnectionError(CLOSED)
        return connection

    async def send(self, connection: Any, packed: bytes) -> None:
        # redis-py sends within asyncio.wait_for, which before Python 3.12 can lose a cancellation that comes just as it
        # ends. Then the caller would go on and wait for the reply.
        task = asyncio.current_task()
        before = task.cancelling() if task is not None else 0
        await connection.send_packed_command([packed])
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError

    async def read(self, connection: Any, patience: float | None = None) -> Any:
        """The next reply, which may take `patience` seconds longer than usual. Raises it if it is a ResponseError."""
        seconds = connection.socket_timeout
        longer = {}
        if patience is not None and seconds is not None:
            seconds += patience
            longer["timeout"] = seconds
        stream, reader = self._reader(connection)
        if reader is None:
            reply = await connection.read_response(disable_decoding=True, **longer)
            if longer and reply is None:  # redis-py's sign of a timeout
                raise RedisTimeoutError("Timeout reading from socket")
            return reply
        reply = reader.take()
        if reply is NEED_MORE:
            try:
                async with asyncio.timeout(seconds):
                    while reply is NEED_MORE:
                        if not (data := await stream.read(_READ_SIZE)):
                            raise ConnectionError("Connection closed by server.")
                        reader.feed(data)
                        reply = reader.take()
            except TimeoutError as error:
                raise RedisTimeoutError("Timeout reading from socket") from error
            except OSError as error:
                raise ConnectionError(f"Error while reading from socket: {error.args}") from error
        if isinstance(reply, ResponseError):
            raise reply
        return reply

    def _reader(self, connection: Any) -> tuple[Any, ReplyReader | None]:
        """The stream of a connection and the reader of its replies; None if redis-py reads them."""
        stream = getattr(connection, "_reader", None) if self._keep else None
        before, reader = getattr(connection, _READER, (None, None))
        if before is not stream:  # redis-py has connected or disconnected
            ours = stream is not None and isinstance(getattr(connection, "_parser", None), _SLOW)
            reader = ReplyReader(connection._parser.parse_error) if ours else None
            setattr(connection, _READER, (stream, reader))
        return stream, reader

    async def release(self, connection: Any) -> None:
        """Return a connection after a whole reply."""
        ready = self._ready.get()
        _, reader = self._reader(connection)
        unread = reader is not None and not reader.empty  # data that no command asked for
        if ready.closed or unread or connection.should_reconnect():  # the server announced that it moves
            await self.discard(connection)
            return
        ready.turns.release()
        if self._keep:
            ready.idle.append(connection)
        else:
            await ready.pool.release(connection)

    async def discard(self, connection: Any) -> None:
        """Close a connection in an unknown state, so that no later call reads an outstanding reply."""
        ready = self._ready.get()
        ready.turns.release()
        await _close_now(connection)
        self._reader(connection)  # drops the old reader
        await ready.pool.release(connection)

    def check(self, error: BaseException) -> None:
        """Raises ConnectionError if this pool was closed during the call: redis-py may raise any error then."""
        if self._ready.get().closed and isinstance(error, Exception) and not isinstance(error, RedisError | OSError):
            raise ConnectionError(CLOSED) from error

    async def aclose(self) -> None:
        """Close all connections. Calls that use or make one end with a ConnectionError."""
        await self._ready.aclose()

    async def close_idle(self) -> None:
        if (ready := self._ready.current) is not None:
            await ready.close_idle()


class PubSubConnection:
    """A connection for pub/sub. One task uses it; other code of its event loop may call `interrupt`.

    redis-py's PubSub reconnects in every method, which breaks other users of the connection. This class never
    reconnects: after any error, call `disconnect`, then `connect`.
    """

    def __init__(self, pool: RedisPool) -> None:
        self._pool = pool
        self._connection: Any = None
        self._interrupted = False
        self._waiting: asyncio.Timeout | None = None

    async def connect(self) -> None:
        self._connection = await self._pool.get_connection()

    async def send(self, *command: bytes) -> None:
        self._check()
        await self._connection.send_packed_command(self._connection.pack_command(*command), check_health=False)
        if is_cancelled():  # see ConnectionPool.send
            raise asyncio.CancelledError
        self._check()

    async def ask(self, command: tuple[bytes, ...], seconds: float) -> Any:
        """The reply to a command that is sent before the first subscription, within `seconds`."""
        await self.send(*command)
        async with asyncio.timeout(seconds):
            return await self._connection.read_response(disable_decoding=True, timeout=math.inf)

    async def receive(self, seconds: float) -> Any:
        """The next message, or None after `seconds`, after an interrupt, or for a message without content."""
        waiting = None
        if not self._interrupted:
            try:
                async with asyncio.timeout(seconds) as waiting:
                    self._waiting = waiting
                    if self._connection is None:
                        await asyncio.sleep(seconds)
                        return None
                    self._check()
                    return await self._connection.read_response(
                        disable_decoding=True, timeout=math.inf, disconnect_on_error=False, push_request=True
                    )
            except TimeoutError:
                if waiting is None or not waiting.expired():
                    raise
            finally:
                self._waiting = None
        if self._interrupted:
            self._interrupted = False
        return None

    def interrupt(self) -> None:
        """End the current `receive`, or else the next one."""
        self._interrupted = True
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(0.0)

    async def disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                await _close_now(connection)
            finally:
                await self._pool.release(connection)

    def close(self) -> None:
        """Release the resources of `interrupt`."""

    def _check(self) -> None:
        """Raises ConnectionError if redis-py would reconnect, which would lose the subscriptions."""
        if not self._connection.is_connected or self._connection.should_reconnect():
            raise ConnectionError(CLOSED)
