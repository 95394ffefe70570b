# Generated from ../_async by scripts/unasync: do not edit.
"""Executes calls on one Redis server: sends bytes, repeats what may be repeated, rings the doorbell."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast

from msgspec.structs import replace
from redis.exceptions import NoScriptError, RedisError, ResponseError
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay

from redis_history._sync._connect import Connected
from redis_history._sync._lines import Lines
from redis_history._sync._loops import PerLoop
from redis_history._sync._searcher import Searcher
from redis_history.backends.base import Found, Look, Wake, WakeAll
from redis_history.backends.redis.calls import Call, Settings, as_is
from redis_history.backends.redis.compacting import compact
from redis_history.backends.redis.durability import Confirmation
from redis_history.backends.redis.expanding import expand
from redis_history.backends.redis.failures import FullJitter, RetryDetails, RetryPolicy, is_transient, translate
from redis_history.backends.redis.finding import find_changed
from redis_history.backends.redis.listing import list_conversations
from redis_history.backends.redis.planner import plan
from redis_history.backends.redis.searching import SEARCHES, Searching
from redis_history.backends.redis.servers import read_info
from redis_history.backends.redis.survey import QUESTIONS, read_survey
from redis_history.capabilities import Capabilities
from redis_history.errors import BackendRefusedError, CapabilityError, StoreClosedError
from redis_history.operations import Compact, Expand, ListConversations, Op

__all__ = ["INFO", "RedisBackend", "told"]

T = TypeVar("T")
R = TypeVar("R")
_logger = logging.getLogger("redis_history")

INFO = Call(None, b"", [b"INFO", b"server"], read_info)
#: Operations that take several calls.
_STEPWISE: dict[Any, Callable[[Any, Settings], Generator[Any, Any, Any]]] = {Compact: compact, Expand: expand}
_SURVEY = b"".join([Call(None, b"", question, read_info).pack() for question in QUESTIONS])


def _none(_: Exception) -> bool:
    return False


class RedisBackend:
    """The Redis backend over one redis-py client.

    It takes connections from the client's pool and speaks on them itself. That leaves out redis-py's own repetition of
    commands, which knows nothing of what is safe to repeat.
    """

    #: Knows Compact, Expand, and pages with archived messages.
    compacts = True

    def __init__(
        self, connected: Connected, settings: Settings, retry: RetryPolicy, searching: Searching | None = None
    ) -> None:
        self._connected = connected
        self._lines: Any = connected.lines()
        self._settings = settings
        self._retry = retry
        self._doorbells = PerLoop[Any](self._make_doorbell)
        self._newest_doorbell: Any = None
        self._listens = settings.doorbell != "poll"
        self._searcher = None if searching is None else Searcher(self, searching, settings)
        self._usable = False
        self._closed = False
        #: Servers that were seen to be able to confirm writes (the nodes of a cluster; else None).
        self._confirming: set[Any] = set()

    def execute(self, op: Op[T]) -> T:
        if self._closed:
            raise StoreClosedError("the store was closed")
        if not self._usable:
            self._until_usable()
        if type(op) is ListConversations:
            listed = self._follow_steps(list_conversations(op, self._settings))
            return cast(T, listed)
        if type(op) in SEARCHES:
            return None if self._searcher is None else self._searcher.execute(op)  # type: ignore[return-value]
        if type(op) in _STEPWISE:
            return cast(T, self._follow_steps(_STEPWISE[type(op)](op, self._settings)))
        outcome: T = self._done(plan(op, self._settings))
        return outcome

    def _done(self, call: Call) -> Any:
        reply = self.carry_out(call)
        if call.follow is not None:  # before decoding, which may say that what was done is not confirmed
            self.finish(call.follow(reply))
        return call.decode(reply)

    def finish(self, call: Call | None) -> None:
        """Carry out a call that has no outcome of its own, and those that follow it."""
        while call is not None:
            reply = self.carry_out(call)
            call = None if call.follow is None else call.follow(reply)

    def carry_out(self, work: Any, *, passing: Callable[[Exception], bool] = _none) -> Any:
        """The reply to a call, or those to a list of calls, repeated while that may help. Raises errors of our own, but
        for those that `passing` lets through."""
        return self.persist(self._replies if type(work) is list else self._reply, work, passing)

    def persist(self, method: Any, what: Any = None, passing: Callable[[Exception], bool] = _none) -> Any:
        """The outcome of `method(what)`, repeated while that may help."""
        try:
            return method(what)
        except (RedisError, OSError) as error:
            if not is_transient(error):
                if passing(error):
                    raise
                raise translate(error, self._connected.address) from error
            return self._repeat(method, what, error)

    def _until_usable(self) -> None:
        self.persist(self._prepare)
        if self._searcher is not None and self._searcher.works:
            self._searcher.sweep()

    def use_search(self, what: None = None, *, again: bool = False) -> None:
        """Look whether the server can search, and make the index."""
        if self._searcher is not None:
            self._searcher.start()
            self._settings = self._searcher.settings

    @property
    def search_mode(self) -> str:
        """Who searches: "server", "client", or "unknown" before the first call."""
        if self._searcher is None:
            return "client"
        return {None: "unknown", True: "server", False: "client"}[self._searcher.works]

    def find_changed(self, look: Look) -> Found:
        if self._closed:
            raise StoreClosedError("the store was closed")
        if not self._usable:
            self._until_usable()
        return self._follow_steps(find_changed(look, self._settings))

    def _follow_steps(self, steps: Generator[Any, Any, R]) -> R:
        """What `steps` return, which yield a call, or a list of calls that do no harm when repeated, and are sent the
        outcome, or the outcomes."""
        try:
            work = next(steps)
            while True:
                if type(work) is list:
                    replies = self.carry_out(work)
                    outcome = [call.decode(reply) for call, reply in zip(work, replies, strict=True)]
                else:
                    outcome = self._done(work)
                work = steps.send(outcome)
        except StopIteration as end:
            returned: R = end.value
            return returned

    @property
    def doorbell_mode(self) -> str:
        """How subscriptions hear of changes at the moment: "keyspace", "publish", or "poll" if by looking only."""
        if not self._listens:
            return "poll"
        if self._newest_doorbell is None:  # nobody listens yet
            return "publish" if self._settings.doorbell == "publish" else "keyspace"
        return str(self._newest_doorbell.mode)

    def _make_doorbell(self) -> Any:
        self._newest_doorbell = self._connected.doorbell(self._lines, self._settings.doorbell)
        return self._newest_doorbell

    def capabilities(self) -> Capabilities:
        if self._closed:
            raise StoreClosedError("the store was closed")
        if not self._usable:
            with suppress(BackendRefusedError, CapabilityError):  # what can be told is told
                self._until_usable()
        found: Capabilities = self.persist(self._look)
        mode = self._settings.doorbell
        return replace(
            found,
            search="server" if self.search_mode == "server" else "client",
            doorbell=mode if mode in ("publish", "poll") else found.doorbell,
        )

    def watch(self, conversation_id: str, wake: Wake) -> None:
        if self._listens and not self._closed:
            self._doorbells.here().watch(self._channel(conversation_id), wake)

    def unwatch(self, conversation_id: str, wake: Wake) -> None:
        if self._listens:
            self._doorbells.here().unwatch(self._channel(conversation_id), wake)

    def watch_all(self, wake: WakeAll) -> None:
        if self._listens and not self._closed:
            self._doorbells.here().watch_all(self._settings.doorbell_pattern, wake)

    def unwatch_all(self, wake: WakeAll) -> None:
        if self._listens:
            self._doorbells.here().unwatch_all(self._settings.doorbell_pattern, wake)

    def close(self) -> None:
        self._closed = True
        self._doorbells.close()
        self._lines.close()
        self._connected.close()

    def _channel(self, conversation_id: str) -> bytes:
        return self._settings.doorbell_channel(self._settings.keyspace.conversation(conversation_id))

    def _reply(self, call: Call, *, again: bool = False) -> Any:
        send: Any = self._exchange
        if call.confirm is not None:
            self._examine(call.confirm)
            send = self._confirmed
        try:
            return send(call.pack(again=again))
        except NoScriptError:
            return send(call.pack(teach=True, again=again))

    def _prepare(self, what: None = None, *, again: bool = False) -> None:
        if not self._usable:
            self._connected.start()
            INFO.decode(self._exchange(INFO.pack()))
            self.use_search()
            self._usable = True

    def _look(self, what: None = None, *, again: bool = False) -> Capabilities:
        self._connected.start()
        return self._survey()

    def _survey(self, lines: Lines | None = None) -> Capabilities:
        replies = self._exchange(_SURVEY, len(QUESTIONS), lines)
        return read_survey(replies, sentinel=self._connected.sentinel)

    def ask(self, commands: Sequence[Sequence[bytes]]) -> list[list[Any]]:
        """The replies of each primary to commands that change nothing, in one go; errors are among them, as values."""
        if self._closed:
            raise StoreClosedError("the store was closed")
        replies: list[list[Any]] = self.persist(self._ask, commands)
        return replies

    def _ask(self, commands: Sequence[Sequence[bytes]], *, again: bool = False) -> list[list[Any]]:
        self._connected.start()
        return [self._answers(commands)]

    def _answers(self, commands: Sequence[Sequence[bytes]], lines: Lines | None = None) -> list[Any]:
        packed = b"".join(Call(None, b"", [*command], as_is).pack() for command in commands)
        replies: list[Any] = self._exchange(packed, len(commands), lines)
        return replies

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
        packed = b"".join([call.pack(again=again) for call in calls])
        replies = told(self._exchange(packed, len(calls)))
        return [
            self._exchange(call.pack(teach=True)) if isinstance(reply, NoScriptError) else reply
            for call, reply in zip(calls, replies, strict=True)
        ]

    def _repeat(self, work: Any, what: Any, error: Exception) -> Any:
        """Try again until the deadline. Safe for every call: what had been applied is recognised by its token."""
        self._before_try()
        address = self._connected.address
        _logger.info("%s: %s; trying again", address, error)
        self._retry.tell(RetryDetails(address, 1, 0.0, 0.0, error))  # at once, because the connection may just be old
        self._confirming.clear()  # it may be another server now, that cannot confirm
        retrying = Retrying(
            retry=retry_if_exception(is_transient),
            wait=FullJitter(multiplier=self._retry.first_wait, max=self._retry.longest_wait),
            stop=stop_after_delay(self._retry.deadline),
            before=self._before_try,
            before_sleep=self._before_wait,
            reraise=True,
        )
        try:
            self._connected.start()
            return retrying(work, what, again=True)
        except (RedisError, OSError) as last:
            raise translate(last, address) from last

    def _before_wait(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        assert error is not None  # noqa: S101
        waited = state.idle_for - state.upcoming_sleep
        address = self._connected.address
        self._retry.tell(RetryDetails(address, state.attempt_number + 1, state.upcoming_sleep, waited, error))

    def _before_try(self, state: RetryCallState | None = None) -> None:
        if self._closed:
            raise StoreClosedError("the store was closed while a call was waiting for the server")

    def send(self, *command: bytes) -> Any:
        """The reply to one command, as it is."""
        return self._exchange(Call(None, b"", [*command], as_is).pack())

    def _exchange(
        self, packed: bytes, count: int = 0, lines: Lines | None = None, patience: float | None = None
    ) -> Any:
        """The reply to one command; or the list of replies to `count` of them, in which errors are values.

        The last may take `patience` seconds longer than any other.
        """
        lines = lines or self._lines
        connection = lines.take()
        try:
            lines.send(connection, packed)
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
        except BaseException as error:  # a cancelled task too
            lines.drop(connection)
            lines.check(error)
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
