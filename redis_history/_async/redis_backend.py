"""Executes calls on one Redis server: sends bytes, repeats what may be repeated, rings the doorbell."""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import Any, TypeVar, cast

from redis.exceptions import NoScriptError, RedisError, ResponseError
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_delay, wait_random_exponential

from redis_history._async._connect import Connected
from redis_history._async._lines import Lines
from redis_history.backends.base import Found, Look, Wake, WakeAll
from redis_history.backends.redis.failures import RetryPolicy, is_transient, translate
from redis_history.backends.redis.finding import find_changed
from redis_history.backends.redis.listing import list_conversations
from redis_history.backends.redis.planner import Call, Settings, plan
from redis_history.backends.redis.servers import read_info
from redis_history.errors import StoreClosedError
from redis_history.operations import ListConversations, Op

__all__ = ["INFO", "AsyncRedisBackend"]

T = TypeVar("T")
R = TypeVar("R")
_logger = logging.getLogger("redis_history")

INFO = Call(None, b"", [b"INFO", b"server"], read_info)


class AsyncRedisBackend:
    """The Redis backend over one redis-py client.

    It takes connections from the client's pool and speaks on them itself. That leaves out redis-py's own repetition of
    commands, which knows nothing of what is safe to repeat.
    """

    def __init__(self, connected: Connected, settings: Settings, retry: RetryPolicy) -> None:
        self._connected = connected
        self._lines: Any = connected.lines()
        self._settings = settings
        self._retry = retry
        mode = settings.doorbell
        self._doorbell = None if mode == "poll" else connected.doorbell(self._lines, mode)
        self._usable = False
        self._closed = False

    async def execute(self, op: Op[T]) -> T:
        if self._closed:
            raise StoreClosedError("the store was closed")
        if type(op) is ListConversations:
            listed = await self._follow_steps(list_conversations(op, self._settings))
            return cast(T, listed)
        call = plan(op, self._settings)
        try:
            reply = await self._reply(call)
        except (RedisError, OSError) as error:
            if not is_transient(error):
                raise translate(error, self._connected.address) from error
            reply = await self._repeat(self._reply, call, error)
        outcome: T = call.decode(reply)
        return outcome

    async def find_changed(self, look: Look) -> Found:
        if self._closed:
            raise StoreClosedError("the store was closed")
        return await self._follow_steps(find_changed(look, self._settings))

    async def _follow_steps(self, steps: Generator[list[Call], list[Any], R]) -> R:
        """What `steps` return, which yield calls that do no harm when repeated, and are sent their outcomes."""
        try:
            calls = next(steps)
            while True:
                try:
                    replies = await self._replies(calls)
                except (RedisError, OSError) as error:
                    if not is_transient(error):
                        raise translate(error, self._connected.address) from error
                    replies = await self._repeat(self._replies, calls, error)
                calls = steps.send([call.decode(reply) for call, reply in zip(calls, replies, strict=True)])
        except StopIteration as end:
            outcome: R = end.value
            return outcome

    @property
    def doorbell_mode(self) -> str:
        """How subscriptions hear of changes at the moment: "keyspace", "publish", or "poll" if by looking only."""
        return str(self._doorbell.mode) if self._doorbell is not None else "poll"

    async def watch(self, conversation_id: str, wake: Wake) -> None:
        if self._doorbell is not None:
            await self._doorbell.watch(self._channel(conversation_id), wake)

    async def unwatch(self, conversation_id: str, wake: Wake) -> None:
        if self._doorbell is not None:
            await self._doorbell.unwatch(self._channel(conversation_id), wake)

    async def watch_all(self, wake: WakeAll) -> None:
        if self._doorbell is not None:
            await self._doorbell.watch_all(self._settings.doorbell_pattern, wake)

    async def unwatch_all(self, wake: WakeAll) -> None:
        if self._doorbell is not None:
            await self._doorbell.unwatch_all(self._settings.doorbell_pattern, wake)

    async def aclose(self) -> None:
        self._closed = True
        if self._doorbell is not None:
            await self._doorbell.aclose()
        await self._lines.aclose()
        await self._connected.aclose()

    def _channel(self, conversation_id: str) -> bytes:
        return self._settings.doorbell_channel(self._settings.keyspace.conversation(conversation_id))

    async def _reply(self, call: Call, *, again: bool = False) -> Any:
        if not self._usable:
            await self._prepare()
        try:
            return await self._exchange(call.pack(again=again))
        except NoScriptError:
            return await self._exchange(call.pack(teach=True, again=again))

    async def _prepare(self) -> None:
        if not self._usable:
            await self._connected.start()
            INFO.decode(await self._exchange(INFO.pack()))
            self._usable = True

    async def _replies(self, calls: list[Call], *, again: bool = False) -> list[Any]:
        """Of several calls that do no harm when repeated, in one round trip."""
        await self._prepare()
        replies = await self._exchange(b"".join([call.pack(again=again) for call in calls]), len(calls))
        return [
            await self._exchange(call.pack(teach=True)) if isinstance(reply, NoScriptError) else reply
            for call, reply in zip(calls, replies, strict=True)
        ]

    async def _repeat(self, work: Any, what: Any, error: Exception) -> Any:
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
            return await retrying(work, what, again=True)
        except (RedisError, OSError) as last:
            raise translate(last, self._connected.address) from last

    def _before_try(self, state: RetryCallState) -> None:
        if self._closed:
            raise StoreClosedError("the store was closed while a call was waiting for the server")

    async def _exchange(self, packed: bytes, count: int = 0, lines: Lines | None = None) -> Any:
        """The reply to one command; the list of replies to `count` of them, where those of a script that the server
        does not know are errors in the list."""
        lines = lines or self._lines
        connection = await lines.take()
        try:
            await connection.send_packed_command([packed])
            if not count:
                reply = await connection.read_response(disable_decoding=True)
            else:
                reply = []
                for _ in range(count):
                    try:
                        reply.append(await connection.read_response(disable_decoding=True))
                    except NoScriptError as error:
                        reply.append(error)
        except ResponseError as error:
            # A whole reply; but of several commands others are still to come, and a server that is no primary any
            # more is to be left.
            await (lines.drop(connection) if count or is_transient(error) else lines.give(connection))
            raise
        except BaseException:  # a cancelled task too
            await lines.drop(connection)
            raise
        await lines.give(connection)
        return reply
