"""The client of redis-py for calls that are repeated anyway."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hiredis import pack_command
from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import ConnectionError, RedisError, ResponseError

from redis_history._async._runtime import TimeLimit


class AsyncLeanClient(Redis):
    """A client of one server that sends and reads, no more.

    redis-py surrounds each call with retries, which are off here, and telemetry. Both take some 16 us, a tenth of an
    append. Replies are not decoded.
    """

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        connection = await self.connection_pool.get_connection()
        try:
            async with TimeLimit(connection):
                await connection.send_packed_command([pack_command(args)])
                return await connection.read_response(disable_decoding=True)
        finally:
            await self.connection_pool.release(connection)

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> AsyncLeanPipeline:
        return AsyncLeanPipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)


class AsyncLeanPipeline(Pipeline):
    """Releases its connection once. redis-py's does so again after an interrupt, when it is deleted; others may use the
    connection by then."""

    async def reset(self) -> None:  # type: ignore[override]
        connection, self.connection = self.connection, None
        if connection is not None:
            await self.connection_pool.release(connection)
        await super().reset()  # type: ignore[no-untyped-call, unused-ignore]


class AsyncLeanPool(ConnectionPool):
    """A pool that keeps idle connections at hand. redis-py's own way takes some 14 us longer: it holds a lock, and
    counts its connections for telemetry, each time.

    For redis-py, a connection at hand is in use. Connections must be of a class with AsyncGuard.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # The methods of a dict are atomic: no lock is needed. And redis-py may release a connection twice.
        self._at_hand: dict[Any, None] = {}

    async def get_connection(self, *args: Any, **options: Any) -> Any:
        try:
            connection, _ = self._at_hand.popitem()
        except KeyError:
            return await super().get_connection(*args, **options)  # type: ignore[no-untyped-call, unused-ignore]
        if await connection.can_be_used():
            return connection
        await super().release(connection)  # which closes it when it is asked for again
        return await super().get_connection(*args, **options)  # type: ignore[no-untyped-call, unused-ignore]

    async def release(self, connection: Any) -> None:
        self._at_hand[connection] = None

    async def disconnect(self, inuse_connections: bool = True) -> None:
        for connection in [*self._at_hand]:
            if self._at_hand.pop(connection, False) is None:  # no other thread has taken it
                await super().release(connection)
        await super().disconnect(inuse_connections)


class AsyncGuard:
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

    async def can_be_used(self) -> bool:
        """Whether it is connected and no reply, nor the end of the connection, is waiting to be read."""
        if self._unready or self._awaited or not self.is_connected:  # type: ignore[attr-defined]
            return False
        try:
            return not await self.can_read()  # type: ignore[attr-defined]
        except (RedisError, OSError):
            return False

    async def connect(self) -> None:
        pool = self.connection_pool
        # redis.asyncio keeps connections to a former primary that were in use when it found the new one.
        former = pool is not None and pool.master_address != (self.host, self.port)  # type: ignore[attr-defined]
        if (self._unready or self._awaited or former) and not self._streams:
            await self.disconnect()
        if not self.is_connected:  # type: ignore[attr-defined]  # redis-py asks that behind its retries, on each call
            await super().connect()  # type: ignore[misc]

    async def connect_check_health(self, *args: Any, **options: Any) -> None:
        if self.is_connected:  # type: ignore[attr-defined]
            return
        if self._streams:  # the task that reads may be doing so too; and the doorbell takes a new one anyway
            raise ConnectionError("the connection was lost")
        self._unready = True
        await super().connect_check_health(*args, **options)  # type: ignore[misc]
        self._unready = False
        if self.on_connected is not None:
            self.on_connected()

    async def disconnect(self, *args: Any, **options: Any) -> None:
        self._unready = True  # an interrupt may leave it half done
        await super().disconnect(*args, **options)  # type: ignore[misc]
        self._unready = False
        self._awaited = self._packed = 0

    async def send_packed_command(self, *args: Any, **options: Any) -> None:
        self._awaited += self._packed or 1  # redis-py packs some commands itself
        self._packed = 0
        await super().send_packed_command(*args, **options)  # type: ignore[misc]

    async def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            response = await super().read_response(*args, **options)  # type: ignore[misc]
        except ResponseError:
            self._awaited -= 1
            raise
        self._awaited -= 1
        return response

    def pack_commands(self, commands: Any) -> Any:
        packed = super().pack_commands(commands)  # type: ignore[misc]
        self._packed = len(commands)
        return packed
