# Generated from ../_async by scripts/unasync: do not edit.
"""Executes calls on one Redis server: sends bytes, repeats what may be repeated, rings the doorbell."""

from __future__ import annotations

import logging
from typing import Any, TypeVar

from redis.exceptions import NoScriptError, RedisError, ResponseError
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from redis_history._sync._connect import Connected
from redis_history._sync._lines import Lines
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

__all__ = ["INFO", "RedisBackend", "told"]

T = TypeVar("T")
_logger = logging.getLogger("redis_history")

INFO = Call(None, b"", [b"INFO", b"server"], read_info)
_SURVEY = b"".join([Call(None, b"", question, read_info).pack() for question in QUESTIONS])


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
        self._doorbell = connected.doorbell(self._lines)
        self._usable = False
        self._closed = False
        #: Servers that were seen to be able to confirm writes (the nodes of a cluster; else None).
        self._confirming: set[Any] = set()

    def execute(self, op: Op[T]) -> T:
        if self._closed:
            raise StoreClosedError("the store was closed")
        if type(op) is ListConversations:
            return self._list(op)  # type: ignore[return-value]
        call = plan(op, self._settings)
        try:
            reply = self._reply(call)
        except (RedisError, OSError) as error:
            if not is_transient(error):
                raise translate(error, self._connected.address) from error
            reply = self._repeat(self._reply, call, error)
        outcome: T = call.decode(reply)
        return outcome

    def _list(self, op: ListConversations) -> list[Conversation]:
        steps = list_conversations(op, self._settings)
        calls = next(steps)
        while True:
            try:
                replies = self._replies(calls)
            except (RedisError, OSError) as error:
                if not is_transient(error):
                    raise translate(error, self._connected.address) from error
                replies = self._repeat(self._replies, calls, error)
            try:
                calls = steps.send([call.decode(reply) for call, reply in zip(calls, replies, strict=True)])
            except StopIteration as end:
                found: list[Conversation] = end.value
                return found

    def capabilities(self) -> Capabilities:
        if self._closed:
            raise StoreClosedError("the store was closed")
        try:
            return self._look()
        except (RedisError, OSError) as error:
            if not is_transient(error):
                raise translate(error, self._connected.address) from error
            found: Capabilities = self._repeat(self._look, None, error)
            return found

    def watch(self, conversation_id: str, wake: Wake) -> None:
        self._doorbell.watch(self._channel(conversation_id), wake)

    def unwatch(self, conversation_id: str, wake: Wake) -> None:
        self._doorbell.unwatch(self._channel(conversation_id), wake)

    def close(self) -> None:
        self._closed = True
        self._doorbell.close()
        self._lines.close()
        self._connected.close()

    def _channel(self, conversation_id: str) -> bytes:
        return self._settings.doorbell_channel(self._settings.keyspace.conversation(conversation_id))

    def _reply(self, call: Call, *, again: bool = False) -> Any:
        if not self._usable:
            self._prepare()
        send: Any = self._exchange
        if call.confirm is not None:
            self._examine(call.confirm)
            send = self._confirmed
        try:
            return send(call.pack(again=again))
        except NoScriptError:
            return send(call.pack(teach=True, again=again))

    def _prepare(self) -> None:
        if not self._usable:
            self._connected.start()
            INFO.decode(self._exchange(INFO.pack()))
            self._usable = True

    def _look(self, what: None = None, *, again: bool = False) -> Capabilities:
        self._connected.start()
        return self._survey()

    def _survey(self, lines: Lines | None = None) -> Capabilities:
        replies = self._exchange(_SURVEY, len(QUESTIONS), lines)
        return read_survey(replies, sentinel=self._connected.sentinel)

    def _examine(self, confirm: Confirmation, place: Any = None, lines: Lines | None = None) -> None:
        if place not in self._confirming:
            confirm.check(self._survey(lines))
            self._confirming.add(place)

    def _confirmed(self, packed: bytes, lines: Lines | None = None, before: int = 0) -> tuple[Any, Any]:
        """The replies to a write and to the command after it; `before` are commands before them.

        The second may be an error: what it would have confirmed is done. But if it is one that passes, as when the
        server has just become a replica, it is raised, so that the call is repeated.
        """
        confirm = self._settings.confirm
        patience = None if confirm is None else confirm.timeout
        *_, reply, said = self._exchange(packed, before + 2, lines, patience)
        for one in (reply, said):
            if isinstance(one, ResponseError) and (one is reply or is_transient(one)):
                raise one
        return reply, said

    def _replies(self, calls: list[Call], *, again: bool = False) -> list[Any]:
        """Of several calls that do no harm when repeated, in one round trip."""
        self._prepare()
        packed = b"".join([call.pack(again=again) for call in calls])
        replies = told(self._exchange(packed, len(calls)))
        return [
            self._exchange(call.pack(teach=True)) if isinstance(reply, NoScriptError) else reply
            for call, reply in zip(calls, replies, strict=True)
        ]

    def _repeat(self, work: Any, what: Any, error: Exception) -> Any:
        """Try again until the deadline. Safe for every call: what had been applied is recognised by its token."""
        _logger.info("%s: %s; trying again", self._connected.address, error)
        self._confirming.clear()  # it may be another server now, that cannot confirm
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

    def _exchange(
        self, packed: bytes, count: int = 0, lines: Lines | None = None, patience: float | None = None
    ) -> Any:
        """The reply to one command; or the list of replies to `count` of them, in which errors are values.

        The last may take `patience` seconds longer than any other.
        """
        lines = lines or self._lines
        connection = lines.take()
        try:
            connection.send_packed_command([packed])
            if not count:
                reply = connection.read_response(disable_decoding=True)
            else:
                reply = []
                for index in range(count):
                    longer: dict[str, float] = {}
                    if patience is not None and index == count - 1 and connection.socket_timeout is not None:
                        longer["timeout"] = connection.socket_timeout + patience
                    try:
                        reply.append(connection.read_response(disable_decoding=True, **longer))
                    except ResponseError as error:
                        reply.append(error)
        except ResponseError as error:
            # A whole reply; but a server that is no primary any more is to be left.
            (lines.drop(connection) if is_transient(error) else lines.give(connection))
            raise
        except BaseException:  # a cancelled task too
            lines.drop(connection)
            raise
        left = count and any(isinstance(one, ResponseError) and is_transient(one) for one in reply)
        (lines.drop(connection) if left else lines.give(connection))
        return reply


def told(replies: list[Any]) -> list[Any]:
    """Replies to several commands: raises the first error, except of a script that the server does not know."""
    for reply in replies:
        if isinstance(reply, ResponseError) and not isinstance(reply, NoScriptError):
            raise reply
    return replies
