"""Executes calls on one Redis server: sends bytes, repeats what may be repeated, rings the doorbell."""

from __future__ import annotations

import logging
from typing import Any, TypeVar

from redis.exceptions import NoScriptError, RedisError, ResponseError
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_delay, wait_random_exponential

from redis_history._async._connect import Connected
from redis_history._async._lines import Lines
from redis_history.backends.base import Wake
from redis_history.backends.redis.durability import Confirmation
from redis_history.backends.redis.failures import RetryPolicy, is_transient, translate
from redis_history.backends.redis.listing import list_conversations
from redis_history.backends.redis.planner import Call, Settings, plan
from redis_history.backends.redis.servers import read_info
from redis_history.backends.redis.survey import QUESTIONS, read_survey
from redis_history.capabilities import Capabilities
from redis_history.errors import StoreClosedError
from redis_history.model import Conversation
from redis_history.operations import ListConversations, Op

__all__ = ["INFO", "AsyncRedisBackend", "told"]

T = TypeVar("T")
_logger = logging.getLogger("redis_history")

INFO = Call(None, b"", [b"INFO", b"server"], read_info)
_SURVEY = b"".join([Call(None, b"", question, read_info).pack() for question in QUESTIONS])


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
        self._doorbell = connected.doorbell(self._lines)
        self._usable = False
        self._closed = False
        #: Servers that were seen to be able to confirm writes (the nodes of a cluster; else None).
        self._confirming: set[Any] = set()

    async def execute(self, op: Op[T]) -> T:
        if self._closed:
            raise StoreClosedError("the store was closed")
        if type(op) is ListConversations:
            return await self._list(op)  # type: ignore[return-value]
        call = plan(op, self._settings)
        try:
            reply = await self._reply(call)
        except (RedisError, OSError) as error:
            if not is_transient(error):
                raise translate(error, self._connected.address) from error
            reply = await self._repeat(self._reply, call, error)
        outcome: T = call.decode(reply)
        return outcome

    async def _list(self, op: ListConversations) -> list[Conversation]:
        steps = list_conversations(op, self._settings)
        calls = next(steps)
        while True:
            try:
                replies = await self._replies(calls)
            except (RedisError, OSError) as error:
                if not is_transient(error):
                    raise translate(error, self._connected.address) from error
                replies = await self._repeat(self._replies, calls, error)
            try:
                calls = steps.send([call.decode(reply) for call, reply in zip(calls, replies, strict=True)])
            except StopIteration as end:
                found: list[Conversation] = end.value
                return found

    async def capabilities(self) -> Capabilities:
        if self._closed:
            raise StoreClosedError("the store was closed")
        try:
            return await self._look()
        except (RedisError, OSError) as error:
            if not is_transient(error):
                raise translate(error, self._connected.address) from error
            found: Capabilities = await self._repeat(self._look, None, error)
            return found

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
            await self._prepare()
        send: Any = self._exchange
        if call.confirm is not None:
            await self._examine(call.confirm)
            send = self._confirmed
        try:
            return await send(call.pack(again=again))
        except NoScriptError:
            return await send(call.pack(teach=True, again=again))

    async def _prepare(self) -> None:
        if not self._usable:
            await self._connected.start()
            INFO.decode(await self._exchange(INFO.pack()))
            self._usable = True

    async def _look(self, what: None = None, *, again: bool = False) -> Capabilities:
        await self._connected.start()
        return await self._survey()

    async def _survey(self, lines: Lines | None = None) -> Capabilities:
        replies = await self._exchange(_SURVEY, len(QUESTIONS), lines)
        return read_survey(replies, sentinel=self._connected.sentinel)

    async def _examine(self, confirm: Confirmation, place: Any = None, lines: Lines | None = None) -> None:
        if place not in self._confirming:
            confirm.check(await self._survey(lines))
            self._confirming.add(place)

    async def _confirmed(self, packed: bytes, lines: Lines | None = None, before: int = 0) -> tuple[Any, Any]:
        """The replies to a write and to the command after it; `before` are commands before them.

        The second may be an error: what it would have confirmed is done. But if it is one that passes, as when the
        server has just become a replica, it is raised, so that the call is repeated.
        """
        confirm = self._settings.confirm
        patience = None if confirm is None else confirm.timeout
        *_, reply, said = await self._exchange(packed, before + 2, lines, patience)
        for one in (reply, said):
            if isinstance(one, ResponseError) and (one is reply or is_transient(one)):
                raise one
        return reply, said

    async def _replies(self, calls: list[Call], *, again: bool = False) -> list[Any]:
        """Of several calls that do no harm when repeated, in one round trip."""
        await self._prepare()
        packed = b"".join([call.pack(again=again) for call in calls])
        replies = told(await self._exchange(packed, len(calls)))
        return [
            await self._exchange(call.pack(teach=True)) if isinstance(reply, NoScriptError) else reply
            for call, reply in zip(calls, replies, strict=True)
        ]

    async def _repeat(self, work: Any, what: Any, error: Exception) -> Any:
        """Try again until the deadline. Safe for every call: what had been applied is recognised by its token."""
        _logger.info("%s: %s; trying again", self._connected.address, error)
        self._confirming.clear()  # it may be another server now, that cannot confirm
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

    async def _exchange(
        self, packed: bytes, count: int = 0, lines: Lines | None = None, patience: float | None = None
    ) -> Any:
        """The reply to one command; or the list of replies to `count` of them, in which errors are values.

        The last may take `patience` seconds longer than any other.
        """
        lines = lines or self._lines
        connection = await lines.take()
        try:
            await connection.send_packed_command([packed])
            if not count:
                reply = await connection.read_response(disable_decoding=True)
            else:
                reply = []
                for index in range(count):
                    longer: dict[str, float] = {}
                    if patience is not None and index == count - 1 and connection.socket_timeout is not None:
                        longer["timeout"] = connection.socket_timeout + patience
                    try:
                        reply.append(await connection.read_response(disable_decoding=True, **longer))
                    except ResponseError as error:
                        reply.append(error)
        except ResponseError as error:
            # A whole reply; but a server that is no primary any more is to be left.
            await (lines.drop(connection) if is_transient(error) else lines.give(connection))
            raise
        except BaseException:  # a cancelled task too
            await lines.drop(connection)
            raise
        left = count and any(isinstance(one, ResponseError) and is_transient(one) for one in reply)
        await (lines.drop(connection) if left else lines.give(connection))
        return reply


def told(replies: list[Any]) -> list[Any]:
    """Replies to several commands: raises the first error, except of a script that the server does not know."""
    for reply in replies:
        if isinstance(reply, ResponseError) and not isinstance(reply, NoScriptError):
            raise reply
    return replies
