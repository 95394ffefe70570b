# Generated from ../_async by scripts/unasync: do not edit.
"""The client of redis-py for calls that are repeated anyway."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hiredis import pack_command
from redis import ConnectionPool, Redis
from redis.client import Pipeline
from redis.exceptions import ConnectionError, RedisError, ResponseError

from redis_history._sync._runtime import TimeLimit


class LeanClient(Redis):
    """A client of one server that sends and reads, no more.

    redis-py surrounds each call with retries, which are off here, and telemetry. Both take some 16 us, a tenth of an
    append. Replies are not decoded.
    """

    def execute_command(self, *args: Any, **options: Any) -> Any:
        connection = self.connection_pool.get_connection()
        try:
            with TimeLimit(connection):
                connection.send_packed_command([pack_command(args)])
                return connection.read_response(disable_decoding=True)
        finally:
            self.connection_pool.release(connection)

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> LeanPipeline:
        return LeanPipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)


class LeanPipeline(Pipeline):
    """Releases its connection once. redis-py's does so again after an interrupt, when it is deleted; others may use the
    connection by then."""

    def reset(self) -> None:  # type: ignore[override]
        connection, self.connection = self.connection, None
        if connection is not None:
            self.connection_pool.release(connection)
        super().reset()  # type: ignore[no-untyped-call, unused-ignore]


class LeanPool(ConnectionPool):
    """A pool that keeps idle connections at hand. redis-py's own way takes some 14 us longer: it holds a lock, and
    counts its connections for telemetry, each time.

    For redis-py, a connection at hand is in use. Connections must be of a class with Guard.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # The methods of a dict are atomic: no lock is needed. And redis-py may release a connection twice.
        self._at_hand: dict[Any, None] = {}

    def get_connection(self, *args: Any, **options: Any) -> Any:
        try:
            connection, _ = self._at_hand.popitem()
        except KeyError:
            return super().get_connection(*args, **options)  # type: ignore[no-untyped-call, unused-ignore]
        if connection.can_be_used():
            return connection
        super().release(connection)  # which closes it when it is asked for again
        return super().get_connection(*args, **options)  # type: ignore[no-untyped-call, unused-ignore]

    def release(self, connection: Any) -> None:
        self._at_hand[connection] = None

    def disconnect(self, inuse_connections: bool = True) -> None:
        for connection in [*self._at_hand]:
            if self._at_hand.pop(connection, False) is None:  # no other thread has taken it
                super().release(connection)
        super().disconnect(inuse_connections)


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

    def can_be_used(self) -> bool:
        """Whether it is connected and no reply, nor the end of the connection, is waiting to be read."""
        if self._unready or self._awaited or not self.is_connected:  # type: ignore[attr-defined]
            return False
        try:
            return not self.can_read()  # type: ignore[attr-defined]
        except (RedisError, OSError):
            return False

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
