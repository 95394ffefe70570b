"""Executes calls on one Redis server: sends bytes, repeats what may be repeated, rings the doorbell."""

from __future__ import annotations

import logging
from typing import Any, TypeVar

from redis.exceptions import NoScriptError, RedisError, ResponseError
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_delay, wait_random_exponential

from redis_history._async._connect import Connected
from redis_history._async._doorbell import AsyncDoorbell
from redis_history._async._lines import Lines
from redis_history.backends.base import Wake
from redis_history.backends.redis.failures import RetryPolicy, is_transient, translate
from redis_history.backends.redis.planner import Call, Settings, plan
from redis_history.backends.redis.servers import read_info
from redis_history.errors import StoreClosedError
from redis_history.operations import Op

__all__ = ["AsyncRedisBackend"]

T = TypeVar("T")
_logger = logging.getLogger("redis_history")

_INFO = Call(None, b"", [b"INFO", b"server"], read_info)


class AsyncRedisBackend:
    """The Redis backend over one redis-py client.

    It takes connections from the client's pool and speaks on them itself. That leaves out redis-py's own repetition of
    commands, which knows nothing of what is safe to repeat.
    """

    def __init__(self, connected: Connected, settings: Settings, retry: RetryPolicy) -> None:
        self._connected = connected
        self._lines = Lines(connected.client.connection_pool, keep=connected.owned)
        self._settings = settings
        self._retry = retry
        self._doorbell = AsyncDoorbell(connected.client)
        self._usable = False
        self._closed = False

    async def execute(self, op: Op[T]) -> T:
        if self._closed:
            raise StoreClosedError("the store was closed")
        call = plan(op, self._settings)
        try:
            reply = await self._reply(call)
        except (RedisError, OSError) as error:
            if not is_transient(error):
                raise translate(error, self._connected.address) from error
            reply = await self._repeat(call, error)
        outcome: T = call.decode(reply)
        return outcome

    async def watch(self, conversation_id: str, wake: Wake) -> None:
        await self._doorbell.watch(self._channel(conversation_id), wake)

    async def unwatch(self, conversation_id: str, wake: Wake) -> None:
        await self._doorbell.unwatch(self._channel(conversation_id), wake)

    async def aclose(self) -> None:
        self._closed = True
        await self._doorbell.aclose()
        await self._lines.aclose()
        await self._connected.aclose()

    def _channel(self, conversation_id: str) -> bytes:
        return self._settings.doorbell_channel(self._settings.keyspace.conversation(conversation_id))

    async def _reply(self, call: Call, *, again: bool = False) -> Any:
        if not self._usable:
            await self._connected.start()
            _INFO.decode(await self._exchange(_INFO.pack()))
            self._usable = True
        try:
            return await self._exchange(call.pack(again=again))
        except NoScriptError:
            return await self._exchange(call.pack(teach=True, again=again))

    async def _repeat(self, call: Call, error: Exception) -> Any:
        """Try again until the deadline. Safe for every call: what had been applied is recognised by its token."""
        _logger.info("%s: %s; trying again", self._connected.address, error)
        retrying = AsyncRetrying(
            retry=retry_if_exception(is_transient),
            wait=wait_random_exponential(multiplier=self._retry.first_wait, max=self._retry.longest_wait),
            stop=stop_after_delay(self._retry.deadline),
            before=self._before_try,
            reraise=True,
        )
        try:
            await self._connected.start()
            return await retrying(self._reply, call, again=True)
        except (RedisError, OSError) as last:
            raise translate(last, self._connected.address) from last

    def _before_try(self, state: RetryCallState) -> None:
        if self._closed:
            raise StoreClosedError("the store was closed while a call was waiting for the server")

    async def _exchange(self, packed: bytes) -> Any:
        connection = await self._lines.take()
        try:
            await connection.send_packed_command([packed])
            reply = await connection.read_response(disable_decoding=True)
        except ResponseError:
            await self._lines.give(connection)
            raise
        except BaseException:  # a cancelled task too
            await self._lines.drop(connection)
            raise
        await self._lines.give(connection)
        return reply
