# Generated from ../_async by scripts/unasync: do not edit.
"""Executes calls on one Redis server: sends bytes, repeats what may be repeated, rings the doorbell."""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import Any, TypeVar, cast

from redis.exceptions import NoScriptError, RedisError, ResponseError
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from redis_history._sync._connect import Connected
from redis_history._sync._lines import Lines
from redis_history.backends.base import Found, Look, Wake, WakeAll
from redis_history.backends.redis.failures import RetryPolicy, is_transient, translate
from redis_history.backends.redis.finding import find_changed
from redis_history.backends.redis.listing import list_conversations
from redis_history.backends.redis.planner import Call, Settings, plan
from redis_history.backends.redis.servers import read_info
from redis_history.errors import StoreClosedError
from redis_history.operations import ListConversations, Op

__all__ = ["INFO", "RedisBackend"]

T = TypeVar("T")
R = TypeVar("R")
_logger = logging.getLogger("redis_history")

INFO = Call(None, b"", [b"INFO", b"server"], read_info)


class RedisBackend:
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

    def execute(self, op: Op[T]) -> T:
        if self._closed:
            raise StoreClosedError("the store was closed")
        if type(op) is ListConversations:
            listed = self._follow_steps(list_conversations(op, self._settings))
            return cast(T, listed)
        call = plan(op, self._settings)
        try:
            reply = self._reply(call)
        except (RedisError, OSError) as error:
            if not is_transient(error):
                raise translate(error, self._connected.address) from error
            reply = self._repeat(self._reply, call, error)
        outcome: T = call.decode(reply)
        return outcome

    def find_changed(self, look: Look) -> Found:
        if self._closed:
            raise StoreClosedError("the store was closed")
        return self._follow_steps(find_changed(look, self._settings))

    def _follow_steps(self, steps: Generator[list[Call], list[Any], R]) -> R:
        """What `steps` return, which yield calls that do no harm when repeated, and are sent their outcomes."""
        try:
            calls = next(steps)
            while True:
                try:
                    replies = self._replies(calls)
                except (RedisError, OSError) as error:
                    if not is_transient(error):
                        raise translate(error, self._connected.address) from error
                    replies = self._repeat(self._replies, calls, error)
                calls = steps.send([call.decode(reply) for call, reply in zip(calls, replies, strict=True)])
        except StopIteration as end:
            outcome: R = end.value
            return outcome

    @property
    def doorbell_mode(self) -> str:
        """How subscriptions hear of changes at the moment: "keyspace", "publish", or "poll" if by looking only."""
        return str(self._doorbell.mode) if self._doorbell is not None else "poll"

    def watch(self, conversation_id: str, wake: Wake) -> None:
        if self._doorbell is not None:
            self._doorbell.watch(self._channel(conversation_id), wake)

    def unwatch(self, conversation_id: str, wake: Wake) -> None:
        if self._doorbell is not None:
            self._doorbell.unwatch(self._channel(conversation_id), wake)

    def watch_all(self, wake: WakeAll) -> None:
        if self._doorbell is not None:
            self._doorbell.watch_all(self._settings.doorbell_pattern, wake)

    def unwatch_all(self, wake: WakeAll) -> None:
        if self._doorbell is not None:
            self._doorbell.unwatch_all(self._settings.doorbell_pattern, wake)

    def close(self) -> None:
        self._closed = True
        if self._doorbell is not None:
            self._doorbell.close()
        self._lines.close()
        self._connected.close()

    def _channel(self, conversation_id: str) -> bytes:
        return self._settings.doorbell_channel(self._settings.keyspace.conversation(conversation_id))

    def _reply(self, call: Call, *, again: bool = False) -> Any:
        if not self._usable:
            self._prepare()
        try:
            return self._exchange(call.pack(again=again))
        except NoScriptError:
            return self._exchange(call.pack(teach=True, again=again))

    def _prepare(self) -> None:
        if not self._usable:
            self._connected.start()
            INFO.decode(self._exchange(INFO.pack()))
            self._usable = True

    def _replies(self, calls: list[Call], *, again: bool = False) -> list[Any]:
        """Of several calls that do no harm when repeated, in one round trip."""
        self._prepare()
        replies = self._exchange(b"".join([call.pack(again=again) for call in calls]), len(calls))
        return [
            self._exchange(call.pack(teach=True)) if isinstance(reply, NoScriptError) else reply
            for call, reply in zip(calls, replies, strict=True)
        ]

    def _repeat(self, work: Any, what: Any, error: Exception) -> Any:
        """Try again until the deadline. Safe for every call: what had been applied is recognised by its token."""
        _logger.info("%s: %s; trying again", self._connected.address, error)
        retrying = Retrying(
            retry=retry_if_exception(is_transient),
            wait=wait_random_exponential(multiplier=self._retry.first_wait, max=self._retry.longest_wait),
            stop=stop_after_delay(self._retry.deadline),
            before=self._before_try,
            reraise=True,
        )
        try:
            self._connected.start()
            return retrying(work, what, again=True)
        except (RedisError, OSError) as last:
            raise translate(last, self._connected.address) from last

    def _before_try(self, state: RetryCallState) -> None:
        if self._closed:
            raise StoreClosedError("the store was closed while a call was waiting for the server")

    def _exchange(self, packed: bytes, count: int = 0, lines: Lines | None = None) -> Any:
        """The reply to one command; the list of replies to `count` of them, where those of a script that the server
        does not know are errors in the list."""
        lines = lines or self._lines
        connection = lines.take()
        try:
            connection.send_packed_command([packed])
            if not count:
                reply = connection.read_response(disable_decoding=True)
            else:
                reply = []
                for _ in range(count):
                    try:
                        reply.append(connection.read_response(disable_decoding=True))
                    except NoScriptError as error:
                        reply.append(error)
        except ResponseError as error:
            # A whole reply; but of several commands others are still to come, and a server that is no primary any
            # more is to be left.
            (lines.drop(connection) if count or is_transient(error) else lines.give(connection))
            raise
        except BaseException:  # a cancelled task too
            lines.drop(connection)
            raise
        lines.give(connection)
        return reply
