# Generated from ../_async by scripts/unasync: do not edit.
"""Executes calls on one Redis server: sends bytes, repeats what may be repeated, rings the doorbell."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from msgspec.structs import replace
from redis.exceptions import NoScriptError, RedisError, ResponseError, TryAgainError
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay

from redis_history._sync._connect import Connected
from redis_history._sync._connections import ConnectionPool
from redis_history._sync._runtime import LoopLocal, sleep
from redis_history.backends.base import ChangedHeads, ChangeQuery, SearchedBy, Wake, WakeAll
from redis_history.backends.redis.attempts import Attempt, is_late, learn_clock, server_time
from redis_history.backends.redis.calls import Call, Pause, Settings, Steps, Upkeep, plain
from redis_history.backends.redis.failures import FullJitter, is_transient, translate
from redis_history.backends.redis.plan_listing import poll_changes
from redis_history.backends.redis.planner import plan
from redis_history.backends.redis.search_index import finish_work, use_index
from redis_history.backends.redis.server_info import QUESTIONS, read_info, read_survey
from redis_history.capabilities import Capabilities
from redis_history.durability import Confirmation
from redis_history.errors import (
    BackendRefusedError,
    BackendUnavailableError,
    CapabilityError,
    OutcomeUnknownError,
    RedisHistoryError,
    StoreClosedError,
)
from redis_history.operations import Op
from redis_history.retry import RetryDetails, RetryPolicy

T = TypeVar("T")
_logger = logging.getLogger("redis_history")

#: Maintenance that failed is continued after so many seconds, so many calls at once, and no more of it is remembered:
#: what an operation leaves to be done is noted on the server too, or found by the next search of the conversation.
_UPKEEP_WAIT: Final = 10.0
_UPKEEP: Final = 100
_MOST_UPKEEP: Final = 100

INFO = Call(None, b"", [b"INFO", b"server"], read_info)
TIME: Final = b"*1\r\n$4\r\nTIME\r\n"
#: Calls without an answer that are remembered.
_MOST_UNANSWERED: Final = 1000
#: How often a call that is late, and of which no copy is under way, is sent with a later time.
_MOST_LATE: Final = 5
#: The bytes to send, or what makes them of the argument that says when the call was first sent.
Packed = bytes | Callable[..., bytes]
_SURVEY = b"".join([Call(None, b"", question, read_info).pack() for question in QUESTIONS])


class RedisBackend:
    """The Redis backend over one redis-py client.

    It takes connections from the client's pool and speaks on them itself. That leaves out redis-py's own repetition of
    commands, which knows nothing of what is safe to repeat.
    """

    compacts = True
    reads_together = True

    def __init__(self, connected: Connected, settings: Settings, retry: RetryPolicy) -> None:
        self._connected = connected
        self._connections: Any = connected.connections()
        self._settings = settings
        self._retry = retry
        self._doorbell = LoopLocal[Any](self._make_doorbell)
        self._listens = settings.doorbell != "poll"
        self._usable = False
        self._closed = False
        # Maintenance that was put off: steps and the calls at which they stand; and when to continue it, if ever.
        self._upkeep: deque[tuple[Steps[None], list[Call]]] = deque(maxlen=_MOST_UPKEEP)
        self._upkeep_at: float | None = None
        self._upkeep_failed = False
        #: Servers that were seen to be able to confirm writes (the nodes of a cluster; else None).
        self._confirming: set[Any] = set()
        #: Calls that ended without an answer, by token.
        self._unanswered: dict[bytes, Attempt] = {}

    def execute(self, op: Op[T]) -> T:
        if self._closed:
            raise StoreClosedError("the store was closed")
        if not self._usable:
            self._until_usable()
        if self._upkeep_at is not None and time.monotonic() >= self._upkeep_at:
            self._continue_upkeep()
        return self._run(plan(op, self._settings))

    def _run(self, steps: Steps[T]) -> T:
        """What the steps of an operation return."""
        try:
            work = next(steps)
            while True:
                try:
                    single = type(work) is Call
                    outcome = work.decode(self.carry_out(work)) if single else self._outcome(work)
                except RedisHistoryError as error:
                    work = steps.throw(error)
                else:
                    work = steps.send(outcome)
        except StopIteration as end:
            returned: T = end.value
            return returned

    def _outcome(self, work: Any) -> Any:
        """The outcome of a step that is no single call."""
        if type(work) is Upkeep:
            return self._keep_up(work)
        if type(work) is Pause:
            return sleep(work.seconds)
        replies = self.carry_out(work)
        return [call.decode(reply) for call, reply in zip(work, replies, strict=True)]

    def _keep_up(self, upkeep: Upkeep) -> bool:
        """Do maintenance: errors are logged and not raised. Returns whether it was done."""
        steps = upkeep.steps
        try:
            work = next(steps)
        except StopIteration:
            return True
        try:
            while True:
                work = steps.send(self._outcome(work))
        except StopIteration:
            return True
        except RedisHistoryError as error:
            self._report(error)
            if upkeep.later:
                self._upkeep.append((steps, work))
                self._upkeep_at = time.monotonic() + _UPKEEP_WAIT
            return False

    def _continue_upkeep(self) -> None:
        """Do some of the maintenance that was put off, each call once, so that no caller waits for a server that is
        away. Raises no errors of the server."""
        self._upkeep_at = None
        left = _UPKEEP
        while self._upkeep:
            try:
                steps, work = self._upkeep.popleft()
            except IndexError:  # another thread was quicker
                break
            try:
                while left > 0:
                    left -= 1
                    replies = self._replies(work)
                    work = steps.send([call.decode(reply) for call, reply in zip(work, replies, strict=True)])
            except StopIteration:
                continue
            except (RedisError, OSError, RedisHistoryError) as error:
                self._report(error)
                self._upkeep.append((steps, work))  # behind others, which may succeed
                self._upkeep_at = time.monotonic() + _UPKEEP_WAIT
                return
            except BaseException:  # a cancelled task
                self._upkeep.appendleft((steps, work))
                self._upkeep_at = 0.0
                raise
            self._upkeep.appendleft((steps, work))
            self._upkeep_at = 0.0
            return

    def _report(self, error: Exception) -> None:
        """Log that maintenance failed, once."""
        if not self._upkeep_failed:
            self._upkeep_failed = True
            _logger.warning("maintenance failed on %s and will be retried: %s", self._connected.address, error)

    def carry_out(self, work: Any) -> Any:
        """The reply to a call, or those to a list of calls, repeated while that may help. Raises errors of our own."""
        if type(work) is list:
            return self._persist(self._replies, work)
        if work.sent_at is None:
            return self._persist(self._reply, work)
        token = work.args[0]
        attempt = (self._unanswered.pop(token, None) if self._unanswered else None) or Attempt()
        try:
            return self._persist(partial(self._reply, attempt=attempt), work)
        except BackendUnavailableError as error:
            if attempt.uncertain and not isinstance(error, OutcomeUnknownError):
                raise OutcomeUnknownError(f"{error}; the write may have been made") from error.__cause__
            raise
        finally:
            if attempt.uncertain:
                self._remember(token, attempt)

    def _remember(self, token: bytes, attempt: Attempt) -> None:
        """A copy of this call is under way, in case that its operation is executed once more."""
        self._unanswered[token] = attempt
        if len(self._unanswered) > _MOST_UNANSWERED:
            with suppress(KeyError, RuntimeError):  # another thread was faster
                del self._unanswered[next(iter(self._unanswered))]

    def _persist(self, method: Any, what: Any = None) -> Any:
        """The outcome of `method(what)`, repeated while that may help."""
        try:
            return method(what)
        except (RedisError, OSError) as error:
            if not is_transient(error):
                raise translate(error, self._connected.address) from error
            return self._repeat(method, what, error)

    def _until_usable(self) -> None:
        self._persist(self._prepare)
        self._run(use_index(self._settings))
        self._usable = True
        if self.search_mode == "server":
            steps = finish_work(self._settings.keyspace)
            self._upkeep.append((steps, next(steps)))
            self._upkeep_at = 0.0

    @property
    def search_mode(self) -> SearchedBy:
        """Who searches: "server", "client", or "unknown" before the first call."""
        index = self._settings.index
        works = False if index is None else index.works
        return "unknown" if works is None else "server" if works else "client"

    def poll_changes(self, query: ChangeQuery) -> ChangedHeads:
        if self._closed:
            raise StoreClosedError("the store was closed")
        if not self._usable:
            self._until_usable()
        return self._run(poll_changes(query, self._settings))

    @property
    def doorbell_mode(self) -> str:
        """What wakes subscriptions now: "keyspace" or "publish"; "poll" while there is no connection for either."""
        doorbell = self._doorbell.current
        return "poll" if doorbell is None else str(doorbell.mode)

    def _make_doorbell(self) -> Any:
        return self._connected.doorbell(self._connections, self._settings.doorbell)

    def capabilities(self) -> Capabilities:
        if self._closed:
            raise StoreClosedError("the store was closed")
        if not self._usable:
            with suppress(BackendRefusedError, CapabilityError):  # what can be told is told
                self._until_usable()
        found: Capabilities = self._persist(self._look)
        mode = self._settings.doorbell
        return replace(
            found,
            search="server" if self.search_mode == "server" else "client",
            doorbell=mode if mode in ("publish", "poll") else found.doorbell,
        )

    def watch(self, conversation_id: str, wake: Wake) -> None:
        if self._listens and not self._closed:
            self._doorbell.get().watch(self._channel(conversation_id), wake)

    def unwatch(self, conversation_id: str, wake: Wake) -> None:
        if self._listens:
            self._doorbell.get().unwatch(self._channel(conversation_id), wake)

    def watch_all(self, wake: WakeAll) -> None:
        if self._listens and not self._closed:
            self._doorbell.get().watch_all(self._settings.doorbell_pattern, wake)

    def unwatch_all(self, wake: WakeAll) -> None:
        if self._listens:
            self._doorbell.get().unwatch_all(self._settings.doorbell_pattern, wake)

    def close(self) -> None:
        self._closed = True
        self._doorbell.close()
        self._connections.close()
        self._connected.close()

    def _channel(self, conversation_id: str) -> bytes:
        return self._settings.doorbell_channel(self._settings.keyspace.conversation(conversation_id))

    def _reply(self, call: Call, attempt: Attempt | None = None) -> Any:
        send: Any = self._exchange
        if call.confirm is not None:
            self._examine(call.confirm)
            send = self._confirmed
        return self._decided(call, attempt, send)

    def _decided(self, call: Call, attempt: Attempt | None, send: Callable[..., Any]) -> Any:
        """The reply to a call whose script the server may have to learn, and which it may refuse as late.

        `send` takes what to send (see `_exchange`) and the attempt.
        """
        for _ in range(_MOST_LATE):
            try:
                reply = send(partial(call.pack), attempt=attempt)
            except NoScriptError:
                reply = send(partial(call.pack, teach=True), attempt=attempt)
            of_script = reply[0] if call.confirm is not None else reply
            if attempt is None or not is_late(of_script):
                return reply
            if attempt.uncertain:
                raise OutcomeUnknownError(
                    f"{self._connected.address} cannot tell any more whether this write was made: an earlier copy "
                    "got no reply, too long ago. Read the conversation before you repeat the call",
                    forgotten=True,
                )
            attempt.sent = int(of_script[1])  # no copy is under way: this is a new call to the server
        raise TryAgainError("the server's clock does not stand still: writes are always late")

    def _prepare(self, what: None = None) -> None:
        if not self._usable:
            self._connected.start()
            INFO.decode(self._exchange(INFO.pack()))

    def _look(self, what: None = None) -> Capabilities:
        self._connected.start()
        return self._survey()

    def _survey(self, connections: ConnectionPool | None = None) -> Capabilities:
        replies = self._exchange(_SURVEY, len(QUESTIONS), connections)
        return read_survey(replies, sentinel=self._connected.sentinel)

    def ask(self, commands: Sequence[Sequence[bytes]]) -> list[list[Any]]:
        """The replies of each primary to commands that change nothing, in one go; errors are among them, as values."""
        if self._closed:
            raise StoreClosedError("the store was closed")
        replies: list[list[Any]] = self._persist(self._ask, commands)
        return replies

    def _ask(self, commands: Sequence[Sequence[bytes]]) -> list[list[Any]]:
        self._connected.start()
        return [self._answers(commands)]

    def _answers(self, commands: Sequence[Sequence[bytes]], connections: ConnectionPool | None = None) -> list[Any]:
        packed = b"".join(plain(*command).pack() for command in commands)
        replies: list[Any] = self._exchange(packed, len(commands), connections)
        return replies

    def _examine(self, confirm: Confirmation, place: Any = None, connections: ConnectionPool | None = None) -> None:
        if place not in self._confirming:
            confirm.check(self._survey(connections))
            self._confirming.add(place)

    def _confirmed(
        self, packed: Packed, connections: ConnectionPool | None = None, before: int = 0, attempt: Attempt | None = None
    ) -> tuple[Any, Any]:
        """The replies to a write and to the command after it; `before` are commands before them.

        The second may be an error: what it would have confirmed is done. But if it is one that passes, as when the
        server has just become a replica, it is raised, so that the call is repeated.
        """
        confirm = self._settings.confirm
        patience = None if confirm is None else confirm.timeout
        *_, reply, said = self._exchange(packed, before + 2, connections, patience, attempt)
        for one in (reply, said):
            if isinstance(one, ResponseError) and (one is reply or is_transient(one)):
                raise one
        return reply, said

    def _replies(self, calls: list[Call]) -> list[Any]:
        """Of several calls that do no harm when repeated, in one round trip."""
        packed = b"".join([call.pack() for call in calls])
        replies = told(self._exchange(packed, len(calls)))
        unknown = [place for place, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:
            packed = b"".join([calls[place].pack(teach=True) for place in unknown])
            for place, reply in zip(unknown, told(self._exchange(packed, len(unknown))), strict=True):
                replies[place] = reply
        return replies

    def _repeat(self, work: Any, what: Any, error: Exception) -> Any:
        """Try again until the deadline. Safe for every call: a write that was made is recognised."""
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
            return retrying(work, what)
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

    def _exchange(
        self,
        packed: Packed,
        count: int = 0,
        connections: ConnectionPool | None = None,
        patience: float | None = None,
        attempt: Attempt | None = None,
    ) -> Any:
        """The reply to one command; or the list of replies to `count` of them, in which errors are values.

        The last may take `patience` seconds longer than any other. `packed`: the bytes to send, or a function that
        makes them of when the call was first sent, which `attempt` records.
        """
        connections = connections or self._connections
        connection = connections.acquire()
        before = attempt is not None and attempt.uncertain
        try:
            if attempt is not None and not attempt.sent:
                attempt.sent = self._server_time(connection, connections)
            if callable(packed):
                packed = packed(sent=None if attempt is None else attempt.argument)
            if attempt is not None:
                attempt.uncertain = True  # until there is a reply
            connections.send(connection, packed)
            reply = self._read(connection, count, patience)
        except ResponseError as error:
            _answered(attempt, connection, error, before)
            # A whole reply; but a server that is no primary any more is to be left.
            (connections.discard(connection) if is_transient(error) else connections.release(connection))
            raise
        except BaseException as error:  # a cancelled task too
            connections.discard(connection)
            connections.check(error)
            raise
        _answered(attempt, connection, reply[count - (1 if patience is None else 2)] if count else reply, before)
        left = count and any(isinstance(one, ResponseError) and is_transient(one) for one in reply)
        (connections.discard(connection) if left else connections.release(connection))
        return reply

    def _server_time(self, connection: Any, connections: ConnectionPool) -> int:
        """The server's clock in microseconds: by what it said on this connection before, or asked now."""
        known = server_time(connection)
        if known is None:
            connections.send(connection, TIME)
            seconds, microseconds = connection.read_response(disable_decoding=True)
            known = int(seconds) * 1_000_000 + int(microseconds)
            learn_clock(connection, known)
        return known

    def _read(self, connection: Any, count: int, patience: float | None) -> Any:
        if not count:
            return connection.read_response(disable_decoding=True)
        replies: list[Any] = []
        for index in range(count):
            longer: dict[str, float] = {}
            if patience is not None and index == count - 1 and connection.socket_timeout is not None:
                longer["timeout"] = connection.socket_timeout + patience
            try:
                reply = connection.read_response(disable_decoding=True, **longer)
            except ResponseError as error:
                reply = error
            if longer and reply is None:
                # redis-py's async connection gives None instead of an error, and its next reply would be this one.
                raise TimeoutError("the confirmation of a write took too long")
            replies.append(reply)
        return replies


def _answered(attempt: Attempt | None, connection: Any, reply: Any, uncertain: bool) -> None:
    """The server has answered this copy; whether one before it is `uncertain` stays as it was."""
    if attempt is None:
        return
    attempt.uncertain = uncertain
    if is_late(reply):
        learn_clock(connection, int(reply[2]))
    elif isinstance(reply, ResponseError) and not uncertain:
        attempt.sent = 0  # it was not executed, and the next copy may go to another server


def told(replies: list[Any]) -> list[Any]:
    """Replies to several commands: raises the first error, except of a script that the server does not know."""
    for reply in replies:
        if isinstance(reply, ResponseError) and not isinstance(reply, NoScriptError):
            raise reply
    return replies
