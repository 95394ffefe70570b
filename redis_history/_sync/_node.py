# Generated from ../_async by scripts/unasync: do not edit.
"""A server of Redis, and the client of redis-py that talks to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from redis import Redis
from redis.client import NEVER_DECODE
from redis.exceptions import ConnectionError, MovedError, RedisError, ResponseError

from redis_history._sync._runtime import delivers_cancellation, turns
from redis_history.operations.failures import is_read_only, is_transient
from redis_history.operations.settings import ServerClock

#: The error of calls whose connections are closed while they use them.
CLOSED: Final = "the connections were closed"
#: The version of RESP, unless a URL says otherwise. With 3, redis-py asks each new connection for notifications of
#: maintenance, which calls that are retried anyway do not need.
PROTOCOL: Final = 2


class Guard:
    """Makes a connection of redis-py safe against interrupts.

    KeyboardInterrupt, or the exception of a signal handler, may come between any two steps of redis-py, a cancellation
    at any `await`: between a command and its reply, so that a later call would read that reply, or in the handshake, so
    that a later call would use another database. So the connection counts the replies that are still to come, and
    notes an unfinished handshake; if anything is left when a pool hands it out again, it connects anew.
    """

    _awaited = 0
    _packed = 0
    _unready = False
    _streams = False
    on_connected: Callable[[], None] | None = None
    #: Behind Sentinels, the pool, which knows the address of the primary.
    connection_pool: Any = None

    def register_connect_callback(self, callback: Any) -> None:
        self._streams = True  # for pub/sub, whose messages nobody asked for
        super().register_connect_callback(callback)  # type: ignore[misc]

    def deregister_connect_callback(self, callback: Any) -> None:
        self._streams = False
        super().deregister_connect_callback(callback)  # type: ignore[misc]

    def connect(self) -> None:
        pool = self.connection_pool
        # redis.asyncio keeps connections to a former primary that were in use when it found the new one.
        former = pool is not None and pool.master_address != (self.host, self.port)  # type: ignore[attr-defined]
        if (self._unready or self._awaited or former) and not self._streams:
            self.disconnect()
        if not self.is_connected:  # type: ignore[attr-defined]  # redis-py asks that behind its retries, on each call
            super().connect()  # type: ignore[misc]

    def connect_check_health(self, *args: Any, **options: Any) -> None:
        if self.is_connected:  # type: ignore[attr-defined]
            return
        if self._streams:  # the task that reads may be doing so too; and the doorbell takes a new one anyway
            raise ConnectionError("the connection was lost")
        self._unready = True
        super().connect_check_health(*args, **options)  # type: ignore[misc]
        self._unready = False
        if self.on_connected is not None:
            self.on_connected()

    def disconnect(self, *args: Any, **options: Any) -> None:
        self._unready = True  # an interrupt may leave it half done
        super().disconnect(*args, **options)  # type: ignore[misc]
        self._unready = False
        self._awaited = self._packed = 0

    def send_packed_command(self, *args: Any, **options: Any) -> None:
        self._awaited += self._packed or 1  # redis-py packs some commands itself
        self._packed = 0
        super().send_packed_command(*args, **options)  # type: ignore[misc]

    def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            response = super().read_response(*args, **options)  # type: ignore[misc]
        except ResponseError:
            self._awaited -= 1
            raise
        self._awaited -= 1
        return response

    def pack_commands(self, commands: Any) -> Any:
        packed = super().pack_commands(commands)  # type: ignore[misc]
        self._packed = len(commands)
        return packed


class Node:
    """A server. Sends commands through a client of redis-py, and knows the server's time.

    `owned`: the store made the client, and closes it.
    """

    def __init__(self, client: Redis, *, owned: bool) -> None:
        self.client = client
        self.clock = ServerClock()
        #: Whether the server notifies subscribers, or the scripts publish, and whether it can confirm writes, as far as
        #: is known.
        self.announces = self.confirms = False
        self._owned = owned
        self._turns = turns()
        self._options = {NEVER_DECODE: True} if client.get_encoder().decode_responses else {}
        self._closed = False
        if owned:
            guard = {"on_connected": staticmethod(self._forget)}
            pool = client.connection_pool
            pool.connection_class = type("GuardedConnection", (Guard, pool.connection_class), guard)

    @delivers_cancellation
    def execute(self, words: Sequence[bytes]) -> Any:
        """The reply to a command. Raises errors of redis-py."""
        try:
            with self._turns:
                reply = self.client.execute_command(*words, **self._options)
        except BaseException as error:
            self._failed(error)
            raise
        self.clock.heard()
        if self._closed:
            self.disconnect()  # redis-py may have made a connection in the meantime
        return reply

    @delivers_cancellation
    def pipeline(self, commands: Sequence[Sequence[bytes]]) -> list[Any]:
        """The replies to several commands in one round trip, on one connection; errors are values."""
        try:
            with self._turns:
                pipeline = self.client.pipeline(transaction=False)
                for words in commands:
                    pipeline.execute_command(*words, **self._options)
                replies: list[Any] = pipeline.execute(raise_on_error=False)
        except BaseException as error:
            self._failed(error)
            raise
        self.clock.heard()
        for reply in replies:
            if isinstance(reply, ResponseError):
                self._failed(reply)
        if self._closed:
            self.disconnect()
        return replies

    def time(self) -> int:
        """Ask for the server's time, in microseconds."""
        seconds, microseconds = self.execute([b"TIME"])
        now = int(seconds) * 1_000_000 + int(microseconds)
        self.clock.learn(now)
        return now

    def disconnect(self) -> None:
        """Close idle connections."""
        self.client.connection_pool.disconnect(inuse_connections=False)

    def close(self) -> None:
        """Close all connections of a client that the store made. Calls that use one end with a ConnectionError."""
        self._closed = self._owned
        if self._owned:
            self.client.connection_pool.disconnect()

    def _forget(self) -> None:
        """A connection was lost or made: the address may belong to another or a restarted server now."""
        self.clock.forget()
        self.announces = self.confirms = False

    def _failed(self, error: BaseException) -> None:
        if not isinstance(error, ResponseError) or isinstance(error, MovedError) or is_transient(error):
            self._forget()
        # Other connections lead to the same replica; and redis-py may have kept a connection whose reply is to come.
        unowned = not (self._owned or isinstance(error, Exception | GeneratorExit))  # that one may await nothing
        if is_read_only(error) or unowned:
            self.disconnect()
        if self._closed and isinstance(error, Exception) and not isinstance(error, RedisError | OSError):
            raise ConnectionError(CLOSED) from error
