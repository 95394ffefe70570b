"""A server of Redis, and the client of redis-py that talks to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from redis.asyncio import Redis
from redis.client import NEVER_DECODE
from redis.exceptions import ConnectionError, MovedError, RedisError, ResponseError

from redis_history._async._client import AsyncGuard
from redis_history._async._runtime import delivers_cancellation, turns
from redis_history.operations.failures import is_read_only, is_transient
from redis_history.operations.leases import Contact
from redis_history.operations.settings import ServerClock

#: The error of calls whose connections are closed while they use them.
CLOSED: Final = "the connections were closed"
#: The version of RESP, unless a URL says otherwise. With 3, redis-py asks each new connection for notifications of
#: maintenance, which calls that are retried anyway do not need.
PROTOCOL: Final = 2


class AsyncNode:
    """A server. Sends commands through a client of redis-py, and knows the server's time.

    `owned`: the store made the client, and closes it.
    """

    def __init__(self, client: Redis, *, owned: bool) -> None:
        self.client = client
        self.clock = ServerClock()
        self.contact = Contact()
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
            pool.connection_class = type("GuardedConnection", (AsyncGuard, pool.connection_class), guard)

    @delivers_cancellation
    async def execute(self, words: Sequence[bytes]) -> Any:
        """The reply to a command. Raises errors of redis-py."""
        try:
            async with self._turns:
                reply = await self.client.execute_command(*words, **self._options)
        except BaseException as error:
            await self._failed(error)
            raise
        self.clock.heard()
        self.contact.heard()
        if self._closed:
            await self.disconnect()  # redis-py may have made a connection in the meantime
        return reply

    @delivers_cancellation
    async def pipeline(self, commands: Sequence[Sequence[bytes]]) -> list[Any]:
        """The replies to several commands in one round trip, on one connection; errors are values."""
        try:
            async with self._turns:
                pipeline = self.client.pipeline(transaction=False)
                for words in commands:
                    pipeline.execute_command(*words, **self._options)
                replies: list[Any] = await pipeline.execute(raise_on_error=False)
        except BaseException as error:
            await self._failed(error)
            raise
        self.clock.heard()
        serves = False
        for reply in replies:
            if isinstance(reply, ResponseError):
                await self._failed(reply)
            else:
                serves = True
        if serves:  # a server that is loading its data refuses all
            self.contact.heard()
        if self._closed:
            await self.disconnect()
        return replies

    async def time(self) -> int:
        """Ask for the server's time, in microseconds."""
        seconds, microseconds = await self.execute([b"TIME"])
        now = int(seconds) * 1_000_000 + int(microseconds)
        self.clock.learn(now)
        return now

    async def disconnect(self) -> None:
        """Close idle connections."""
        await self.client.connection_pool.disconnect(inuse_connections=False)

    async def aclose(self) -> None:
        """Close all connections of a client that the store made. Calls that use one end with a ConnectionError."""
        self._closed = self._owned
        if self._owned:
            await self.client.connection_pool.disconnect()

    def _forget(self) -> None:
        """A connection was lost or made: the address may belong to another or a restarted server now."""
        self.clock.forget()
        self.announces = self.confirms = False

    async def _failed(self, error: BaseException) -> None:
        if not isinstance(error, ResponseError) or isinstance(error, MovedError) or is_transient(error):
            self._forget()
        if not isinstance(error, ResponseError):
            self.contact.failed()
        elif is_read_only(error):
            self.contact.taken_over()
        # Other connections lead to the same replica; and redis-py may have kept a connection whose reply is to come.
        unowned = not (self._owned or isinstance(error, Exception | GeneratorExit))  # that one may await nothing
        if is_read_only(error) or unowned:
            await self.disconnect()
        if self._closed and isinstance(error, Exception) and not isinstance(error, RedisError | OSError):
            raise ConnectionError(CLOSED) from error
