# Generated from ../_async by scripts/unasync: do not edit.
"""Executes operations on one Redis server: sends calls, retries what may be retried, does maintenance."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from msgspec.structs import replace
from redis import Redis
from redis.exceptions import MovedError, NoScriptError, RedisError, ResponseError, TryAgainError
from redis.sentinel import SentinelConnectionPool
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay

from redis_history._sync._connections import ConnectionPool
from redis_history._sync._doorbell import Doorbell, Topic
from redis_history._sync._runtime import LoopLocal, in_thread, is_abandoned, sleep
from redis_history.backends.base import ChangedHeads, ChangeQuery, SearchedBy, Wake, WakeAll
from redis_history.backends.redis.attempts import Attempt, is_late, learn_clock, server_time
from redis_history.backends.redis.calls import Call, Pause, Settings, Steps, Upkeep, plain
from redis_history.backends.redis.failures import FullJitter, is_transient, translate
from redis_history.backends.redis.plan_listing import poll_changes
from redis_history.backends.redis.planner import plan
from redis_history.backends.redis.search_index import finish_work, use_index
from redis_history.backends.redis.server_info import QUESTIONS, combined, read_info, read_survey
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

#: Failed maintenance continues after this many seconds, this many calls at once. No more than this is remembered: the
#: server has a note of unfinished work too, or the next search of the conversation finds it.
_UPKEEP_WAIT: Final = 10.0
_UPKEEP: Final = 100
_MAX_UPKEEP: Final = 100
#: Calls without an answer that are remembered.
_MAX_UNANSWERED: Final = 1000
#: How often a call that is late is sent with a later time, if no copy of it is under way.
_MAX_LATE: Final = 5
_INFO: Final = Call(None, b"", [b"INFO", b"server"], read_info)
_TIME: Final = b"*1\r\n$4\r\nTIME\r\n"
_SURVEY: Final = b"".join([plain(*question).pack() for question in QUESTIONS])


class Server:
    """A server, and how to connect to it: with the user's `client`, or with clients that `make` creates."""

    def __init__(
        self, address: str, *, make: Callable[[], Redis] | None = None, client: Any = None, embedded: Any = None
    ) -> None:
        self.address = address
        self.client: Any = client if make is None else make()
        self._make = make
        self._embedded = embedded
        pool = self.client.connection_pool
        self.sentinel = isinstance(pool, SentinelConnectionPool)
        self.database = int(pool.connection_kwargs.get("db") or 0)

    def connections(self) -> Any:
        """Connections for calls."""
        make = self._make
        if make is None:
            return ConnectionPool(lambda: self.client.connection_pool, keep=False)
        return ConnectionPool(lambda: make().connection_pool, keep=True)

    def doorbell(self, connections: Any, mode: str) -> Any:
        """Listens for changes. `mode`: see `DOORBELLS`."""
        return Doorbell(self.client if self._make is None else Redis(connection_pool=connections.pool), mode)

    def start(self) -> None:
        """Start the embedded server if it does not run."""
        if self._embedded is not None:
            in_thread(self._embedded.start)

    def close(self) -> None:
        if self._embedded is not None:
            in_thread(self._embedded.close)


class RedisBackend:
    """The Redis backend over one redis-py client.

    It takes connections from the client's pool and speaks on them itself, without redis-py's own retries, which do not
    know what is safe to repeat.
    """

    compacts = True
    streams = True
    reads_together = True

    def __init__(self, server: Any, settings: Settings, retry: RetryPolicy) -> None:
        self._server = server
        self._connections: Any = server.connections()
        self._settings = settings
        self._retry = retry
        self._doorbell = LoopLocal[Any](lambda: server.doorbell(self._connections, settings.doorbell))
        self._listens = settings.doorbell != "poll"
        self._usable = False
        self._closed = False
        # Postponed maintenance: steps and the calls where they stopped; and when it continues.
        self._upkeep: deque[tuple[Steps[None], list[Call]]] = deque(maxlen=_MAX_UPKEEP)
        self._upkeep_at: float | None = None
        self._upkeep_failed = False
        #: The connections to servers that can confirm writes.
        self._confirming: set[ConnectionPool] = set()
        #: Calls that ended without an answer, by token.
        self._unanswered: dict[bytes, Attempt] = {}

    # The interface of backends.base

    def execute(self, op: Op[T]) -> T:
        if self._closed or not self._usable:
            self._make_usable()
        due = self._upkeep_at  # another thread may take it away
        if due is not None and time.monotonic() >= due:
            self._continue_upkeep()
        return self._run(plan(op, self._settings))

    def poll_changes(self, query: ChangeQuery) -> ChangedHeads:
        self._make_usable()
        return self._run(poll_changes(query, self._settings))

    @property
    def search_mode(self) -> SearchedBy:
        index = self._settings.index
        works = False if index is None else index.works
        return "unknown" if works is None else "server" if works else "client"

    def capabilities(self) -> Capabilities:
        with suppress(BackendRefusedError, CapabilityError):  # the rest can still be reported
            self._make_usable()
        found: Capabilities = self._persist(self._describe)
        mode = self._settings.doorbell
        return replace(
            found,
            search="server" if self.search_mode == "server" else "client",
            doorbell=mode if mode in ("publish", "poll") else found.doorbell,
        )

    @property
    def doorbell_mode(self) -> str:
        """ "keyspace" or "publish"; "poll" while there is no connection."""
        doorbell = self._doorbell.current
        return "poll" if doorbell is None else str(doorbell.mode)

    def watch(self, conversation_id: str, wake: Wake) -> None:
        self._watch(self._topic(conversation_id), wake)

    def unwatch(self, conversation_id: str, wake: Wake) -> None:
        self._unwatch(self._topic(conversation_id), wake)

    def watch_all(self, wake: WakeAll) -> None:
        self._watch(Topic(True, self._settings.doorbell_pattern), wake)

    def unwatch_all(self, wake: WakeAll) -> None:
        self._unwatch(Topic(True, self._settings.doorbell_pattern), wake)

    def _watch(self, topic: Topic, wake: Any) -> None:
        if self._listens and not self._closed:
            self._doorbell.get().watch(topic, wake)

    def _unwatch(self, topic: Topic, wake: Any) -> None:
        if self._listens:
            self._doorbell.get().unwatch(topic, wake)

    def _topic(self, conversation_id: str) -> Topic:
        return Topic(False, self._settings.doorbell_channel(self._settings.keyspace.conversation(conversation_id)))

    def ask(self, commands: Sequence[Sequence[bytes]]) -> list[list[Any]]:
        """The replies of each primary to commands that change nothing, in one go; errors are among them, as values."""
        self._check_open()
        replies: list[list[Any]] = self._persist(self._ask, commands)
        return replies

    def close(self) -> None:
        self._closed = True
        self._doorbell.close()
        self._connections.close()
        self._server.close()

    def _check_open(self, state: RetryCallState | None = None) -> None:
        if self._closed or is_abandoned():
            raise StoreClosedError("the store was closed")

    # The steps of an operation

    def _run(self, steps: Steps[T]) -> T:
        """Run the steps of an operation, and return what they return."""
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
        """The outcome of a step that is not a single call."""
        if type(work) is Upkeep:
            return self._maintain(work)
        if type(work) is Pause:
            return sleep(work.seconds)
        replies = self.carry_out(work)
        return [call.decode(reply) for call, reply in zip(work, replies, strict=True)]

    def _maintain(self, upkeep: Upkeep) -> bool:
        """Do maintenance. Errors are logged, not raised. Returns whether it was done."""
        steps, work = upkeep.steps, []
        try:
            work = next(steps)
            while True:
                work = steps.send(self._outcome(work))
        except StopIteration:
            return True
        except RedisHistoryError as error:
            self._report(error)
            if upkeep.later:
                self._postpone(steps, work, _UPKEEP_WAIT)
            return False

    def _continue_upkeep(self) -> None:
        """Do some of the postponed maintenance. Each call is sent once, so that no caller waits for a server that is
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
                self._passes(error)
                self._report(error)
                self._postpone(steps, work, _UPKEEP_WAIT)
                return
            except BaseException:  # a cancelled task
                self._postpone(steps, work)
                raise
            self._postpone(steps, work)
            return

    def _postpone(self, steps: Steps[None], work: list[Call], wait: float = 0.0) -> None:
        """With a `wait`, after other maintenance, which may succeed."""
        (self._upkeep.append if wait else self._upkeep.appendleft)((steps, work))
        self._upkeep_at = time.monotonic() + wait

    def _report(self, error: Exception) -> None:
        """Log that maintenance failed, once."""
        if not self._upkeep_failed:
            self._upkeep_failed = True
            _logger.warning("maintenance failed on %s and will be retried: %s", self._server.address, error)

    # Retries

    def carry_out(self, work: Any) -> Any:
        """The reply to a call, or those to a list of calls, with retries. Raises errors of redis_history."""
        if type(work) is list:
            return self._persist(self._replies, work)
        if work.sent_at is None:
            return self._persist(self._reply, work)
        token = work.args[0]
        attempt = (self._unanswered.pop(token, None) if self._unanswered else None) or Attempt()
        try:
            return self._persist(self._reply, work, attempt)
        except BackendUnavailableError as error:
            if attempt.uncertain and not isinstance(error, OutcomeUnknownError):
                raise OutcomeUnknownError(f"{error}; the write may have been made") from error.__cause__
            raise
        finally:
            if attempt.uncertain:
                self._remember(token, attempt)

    def _remember(self, token: bytes, attempt: Attempt) -> None:
        """A copy of this call may be under way when its operation is executed again."""
        self._unanswered[token] = attempt
        if len(self._unanswered) > _MAX_UNANSWERED:
            with suppress(KeyError, RuntimeError):  # another thread was faster
                del self._unanswered[next(iter(self._unanswered))]

    def _persist(self, method: Any, *arguments: Any) -> Any:
        """The outcome of `method(*arguments)`, with retries: a write that was made is recognised."""
        try:
            return method(*arguments)
        except (RedisError, OSError) as error:
            if not self._passes(error):
                raise translate(error, self._server.address) from error
            return self._retried(method, arguments, error)

    def _retried(self, method: Any, arguments: tuple[Any, ...], error: Exception) -> Any:
        self._check_open()
        address = self._server.address
        _logger.info("%s: %s; trying again", address, error)
        self._retry.tell(RetryDetails(address, 1, 0.0, 0.0, error))  # at once, because the connection may just be old
        self._confirming.clear()  # it may be another server now, that cannot confirm
        retrying = Retrying(
            retry=retry_if_exception(self._passes),
            wait=FullJitter(multiplier=self._retry.first_wait, max=self._retry.longest_wait),
            stop=stop_after_delay(self._retry.deadline),
            before=self._check_open,
            before_sleep=self._before_wait,
            reraise=True,
        )
        try:
            self._server.start()
            return retrying(method, *arguments)
        except (RedisError, OSError) as last:
            raise translate(last, address) from last

    def _before_wait(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        assert error is not None  # noqa: S101
        waited = state.idle_for - state.upcoming_sleep
        self._retry.tell(
            RetryDetails(self._server.address, state.attempt_number + 1, state.upcoming_sleep, waited, error)
        )

    def _passes(self, error: BaseException) -> bool:
        """Whether a retry may help."""
        return is_transient(error)

    # Facts about the server

    def _make_usable(self) -> None:
        """Before the first call: check the server's version, and find or make the search index."""
        self._check_open()
        if self._usable:
            return
        self._persist(self._check_version)
        self._run(use_index(self._settings))
        self._usable = True
        if self.search_mode == "server":
            steps = finish_work(self._settings.keyspace)
            self._postpone(steps, next(steps))

    def _primaries(self) -> list[ConnectionPool]:
        """The connections to each primary."""
        self._server.start()
        return [self._connections]

    def _check_version(self) -> None:
        primary, *_ = self._primaries()
        _INFO.decode(self._exchange(primary, _INFO.pack()))

    def _describe(self) -> Capabilities:
        return combined([self._survey(primary) for primary in self._primaries()])

    def _survey(self, connections: ConnectionPool) -> Capabilities:
        return read_survey(self._exchange(connections, _SURVEY, len(QUESTIONS)), sentinel=self._server.sentinel)

    def _ask(self, commands: Sequence[Sequence[bytes]]) -> list[list[Any]]:
        packed = b"".join(plain(*command).pack() for command in commands)
        return [self._exchange(primary, packed, len(commands)) for primary in self._primaries()]

    def _examine(self, confirm: Confirmation, connections: ConnectionPool) -> None:
        """Raises CapabilityError if the server cannot confirm writes."""
        if connections not in self._confirming:
            confirm.check(self._survey(connections))
            self._confirming.add(connections)

    # From calls to bytes and back

    def _reply(self, call: Call, attempt: Attempt | None = None, connections: Any = None, asking: bool = False) -> Any:
        """The reply to a call. The server may have to learn the script first, and may refuse a late copy."""
        connections = connections or self._connections
        if call.confirm is not None:
            self._examine(call.confirm, connections)
        for _ in range(_MAX_LATE):
            try:
                if call.confirm is None and not asking:  # nearly all calls: one function call less
                    reply = self._exchange(connections, call.pack, 0, None, attempt)
                else:
                    reply = self._send(connections, call, attempt, asking, teach=False)
            except NoScriptError:
                reply = self._send(connections, call, attempt, asking, teach=True)
            of_script = reply[0] if call.confirm is not None else reply
            if attempt is None or not is_late(of_script):
                return reply
            if attempt.uncertain:
                raise OutcomeUnknownError(
                    f"{self._server.address} cannot tell any more whether this write was made: an earlier copy "
                    "got no reply, too long ago. Read the conversation before you repeat the call",
                    forgotten=True,
                )
            attempt.sent = int(of_script[1])  # no copy is under way: this is a new call to the server
        raise TryAgainError("the server's clock does not stand still: writes are always late")

    def _send(
        self, connections: ConnectionPool, call: Call, attempt: Attempt | None, asking: bool, *, teach: bool
    ) -> Any:
        """The reply to one copy of a call; with `call.confirm`, a pair of it and the reply to the confirming command.

        The latter may be an error, because the write was made. But a transient error is raised, as when the server has
        just become a replica, so that the call is repeated.
        """
        pack, confirm = partial(call.pack, teach=teach, asking=asking), call.confirm
        if confirm is None and not asking:
            return self._exchange(connections, pack, 0, None, attempt)
        count = 1 + asking + (confirm is not None)
        patience = None if confirm is None else confirm.timeout
        replies = self._exchange(connections, pack, count, patience, attempt)
        reply, confirmed = replies[int(asking)], replies[-1]
        for one in (reply, confirmed):
            if isinstance(one, ResponseError) and (one is reply or is_transient(one)):
                raise one
        return reply if confirm is None else (reply, confirmed)

    def _replies(self, calls: list[Call]) -> list[Any]:
        """The replies to calls that can be repeated, in one round trip."""
        replies = self._exchange(self._connections, b"".join([call.pack() for call in calls]), len(calls))
        unknown = [place for place, reply in enumerate(checked(calls, replies)) if isinstance(reply, NoScriptError)]
        if unknown:
            again = [calls[place] for place in unknown]
            packed = b"".join([call.pack(teach=True) for call in again])
            taught = checked(again, self._exchange(self._connections, packed, len(again)))
            for place, reply in zip(unknown, taught, strict=True):
                replies[place] = reply
        return list(replies)

    def _exchange(
        self,
        connections: ConnectionPool,
        packed: bytes | Callable[..., bytes],
        count: int = 0,
        patience: float | None = None,
        attempt: Attempt | None = None,
    ) -> Any:
        """The reply to one command; or the list of replies to `count` of them, in which errors are values.

        The last reply may take `patience` seconds longer. `packed`: the bytes to send, or a function that makes them
        from the time of the first copy, which `attempt` records.
        """
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
            reply = self._read(connections, connection, count, patience)
        except ResponseError as error:
            _answered(attempt, connection, error, before)
            # The reply was read whole. But a server that is no longer a primary must be left.
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
            connections.send(connection, _TIME)
            seconds, microseconds = connections.read(connection)
            known = int(seconds) * 1_000_000 + int(microseconds)
            learn_clock(connection, known)
        return known

    def _read(self, connections: ConnectionPool, connection: Any, count: int, patience: float | None) -> Any:
        if not count:
            return connections.read(connection)
        replies: list[Any] = []
        for left in range(count, 0, -1):
            try:
                replies.append(connections.read(connection, patience if left == 1 else None))
            except ResponseError as error:
                replies.append(error)
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


def checked(calls: list[Call], replies: list[Any]) -> list[Any]:
    """Replies to several calls. Raises the first error, except of a script that the server does not know, and those
    that a call takes as its outcome."""
    for call, reply in zip(calls, replies, strict=True):
        if not isinstance(reply, ResponseError) or isinstance(reply, NoScriptError):
            continue
        if not call.errors or isinstance(reply, MovedError) or is_transient(reply):
            raise reply
    return replies
