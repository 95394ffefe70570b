"""Execute operations on one Redis server: send calls, retry them if that is safe, do maintenance."""

from __future__ import annotations

import logging
import time
import warnings
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Literal
from weakref import finalize

from msgspec.structs import replace
from redis.exceptions import NoScriptError, RedisError, ResponseError, TryAgainError
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_delay

from redis_history import errors
from redis_history.store._async._doorbell import AsyncDoorbell, Topic
from redis_history.store._async._node import AsyncNode
from redis_history.store._async._runtime import Owner, Signal, is_abandoned, sleep
from redis_history.store.capabilities import Capabilities
from redis_history.store.durability import Confirmation
from redis_history.store.operations import Op
from redis_history.store.operations.backend import ChangedHeads, ChangeQuery, SearchedBy, Wake, WakeAll
from redis_history.store.operations.base import ByNode, Call, Pause, Steps, T, Upkeep, as_map, decoded
from redis_history.store.operations.documents import finish_work
from redis_history.store.operations.failures import (
    Attempt,
    FullJitter,
    is_transient,
    may_be_executed,
    raise_errors,
    raise_first,
    translate,
)
from redis_history.store.operations.index import use_index
from redis_history.store.operations.poll import poll_changes
from redis_history.store.operations.settings import Settings
from redis_history.store.retry import RetryDetails, RetryPolicy
from redis_history.store.server_info import (
    DECLARED_ONLY,
    NOTIFICATIONS,
    QUESTIONS,
    combined,
    merged_flags,
    read_info,
    read_survey,
)

_logger = logging.getLogger("redis_history")

#: Failed maintenance continues after this many seconds, with this many calls at a time. Older tasks are dropped,
#: because the server notes unfinished work too, or the next search of the conversation finds it.
_UPKEEP_WAIT: Final = 10.0
_UPKEEP_CALLS: Final = 100
_MAX_UPKEEP: Final = 100
_MAX_UNANSWERED: Final = 1000
#: Seconds after which a store looks again for unfinished work of processes that were killed.
_WORK_SECONDS: Final = 10.0
#: Seconds for the trial of a doorbell, and between checks whether the server has answered.
_TRIAL: Final = 5.0
_TRIAL_CHECK: Final = 0.02
#: Maximum number of times a call that the server finds too late is sent with a later time, if no copy of it is under
#: way.
_MAX_LATE: Final = 5


async def announce(settings: Settings, node: AsyncNode) -> None:
    """Have the server notify subscribers. If this user may not see or change the setting, the scripts of this store
    publish each change instead."""
    try:
        flags = merged_flags(await _notification_flags(node))
        if flags is not None:
            await node.execute([b"CONFIG", b"SET", NOTIFICATIONS, flags.encode()])
            # Some compatible servers accept a setting that they do not have.
            settings.publishes |= merged_flags(await _notification_flags(node)) is not None
    except ResponseError as error:
        if is_transient(error):
            raise
        settings.publishes = True
    node.announces = True


async def _notification_flags(node: AsyncNode) -> bytes:
    setting = as_map(await node.execute([b"CONFIG", b"GET", NOTIFICATIONS]))
    return next(iter(setting.values()), b"")


def _end_dropped(doorbell: Any, address: str) -> None:
    """Clean up after a store that was dropped together with its subscriptions and runs."""
    doorbell.abandon()
    text = f"a history store of {address} was not closed; use it in a with block, or close it"
    warnings.warn(text, ResourceWarning, stacklevel=2)


class AsyncRedisBackend:
    """The Redis backend for one server.

    Calls go through a client of redis-py. Retries are made here, because redis-py cannot know which commands are safe
    to repeat.
    """

    def __init__(self, server: Any, settings: Settings, retry: RetryPolicy) -> None:
        self._server = server
        self._settings = settings
        settings.contact_of = server.contact
        self._retry = retry
        self._owner = Owner()
        self._doorbell: Any = None
        self._dropped: finalize[Any, Any] | None = None
        self._usable = False
        self._closed = False
        # Postponed maintenance: the steps, each with the calls at which they stopped; and when it continues.
        self._upkeep: deque[tuple[Steps[None], list[Call]]] = deque(maxlen=_MAX_UPKEEP)
        self._upkeep_at: float | None = None
        self._upkeep_failed = False
        #: Calls that ended without an answer, by token.
        self._unanswered: dict[bytes, Attempt] = {}

    # The interface of `operations.backend`

    async def execute(self, op: Op[T]) -> T:
        self._owner.check()
        if self._closed or not self._usable:
            await self._make_usable()
        due = self._upkeep_at  # another thread may set it to None
        if due is not None and time.monotonic() >= due:
            await self._continue_upkeep()
        return await self._run(op.steps(self._settings))

    async def poll_changes(self, query: ChangeQuery) -> ChangedHeads:
        self._owner.check()
        await self._make_usable()
        return await self._run(poll_changes(query, self._settings))

    @property
    def search_mode(self) -> SearchedBy:
        index = self._settings.index
        works = False if index is None else index.works
        return "unknown" if works is None else "server" if works else "client"

    async def capabilities(self) -> Capabilities:
        self._owner.check()
        with suppress(errors.BackendRefusedError, errors.CapabilityError):  # the rest can still be reported
            await self._make_usable()
        survey: Capabilities = await self._with_retries(self._describe)
        if self._settings.durable:
            survey = replace(survey, aof=None, durability=tuple(dict.fromkeys((*survey.durability, "fsync"))))
        doorbell, doorbell_all = await self._try_doorbell()
        return replace(
            survey,
            mode="cluster" if self._settings.cluster else survey.mode,
            search="server" if self.search_mode == "server" else "client",
            doorbell=doorbell,
            doorbell_all=doorbell_all,
        )

    @property
    def doorbell_mode(self) -> str:
        """ "notifications" or "publish"; "poll" while it is not connected."""
        return self._mode(self._doorbell, is_pattern=False)

    def _mode(self, doorbell: Any, *, is_pattern: bool) -> Literal["notifications", "publish", "poll"]:
        ways = set() if doorbell is None else doorbell.ways(is_pattern=is_pattern)
        if self._settings.publishes and "publish" in ways:
            return "publish"
        return "notifications" if "notifications" in ways else "poll"

    async def _try_doorbell(self) -> tuple[Any, Any]:
        """The modes of a doorbell for one conversation and for all of them: whether the server lets this user subscribe
        is only known after trying it."""
        doorbell, tried = self._make_doorbell(warns=False), Signal()
        try:
            for topic in (self._topic("-"), self._topic_of_all):
                doorbell.watch(topic, lambda *_: tried.set())
            until = time.monotonic() + _TRIAL
            while not doorbell.works and time.monotonic() < until:
                tried.clear()
                await tried.wait(_TRIAL_CHECK)
            return self._mode(doorbell, is_pattern=False), self._mode(doorbell, is_pattern=True)
        finally:
            await doorbell.aclose()

    async def watch(self, conversation_id: str, wake: Wake) -> None:
        self._watch(self._topic(conversation_id), wake)

    async def unwatch(self, conversation_id: str, wake: Wake) -> None:
        self._unwatch(self._topic(conversation_id), wake)

    async def watch_all(self, wake: WakeAll) -> None:
        self._watch(self._topic_of_all, wake)

    async def unwatch_all(self, wake: WakeAll) -> None:
        self._unwatch(self._topic_of_all, wake)

    async def watch_run(self, conversation_id: str, run_id: str, wake: Wake) -> Any:
        """Watch a run. Returns the server of the run."""
        self._watch(self._run_topic(conversation_id, run_id), wake)

    async def unwatch_run(self, conversation_id: str, run_id: str, wake: Wake) -> None:
        self._unwatch(self._run_topic(conversation_id, run_id), wake)

    async def watch_turns(self, agent_name: str | None, number: int, wake: WakeAll) -> None:
        self._watch(self._turn_topic(agent_name, number), wake)

    async def unwatch_turns(self, agent_name: str | None, number: int, wake: WakeAll) -> None:
        self._unwatch(self._turn_topic(agent_name, number), wake)

    def _turn_topic(self, agent_name: str | None, number: int) -> Topic:
        channel = self._settings.keyspace.worker_channel(agent_name, number)
        return Topic(channel, only_published=True, of_turns=True)

    def _topic(self, conversation_id: str) -> Topic:
        return Topic(self._settings.keyspace.conversation(conversation_id).log)

    @property
    def _topic_of_all(self) -> Topic:
        return Topic(self._settings.keyspace.logs, is_pattern=True)

    def _run_topic(self, conversation_id: str, run_id: str) -> Topic:
        return Topic(self._settings.keyspace.conversation(conversation_id).run_channel(run_id), only_published=True)

    def _watch(self, topic: Topic, wake: Any) -> None:
        self._owner.check()
        if self._closed:
            return
        if self._doorbell is None:
            self._doorbell = self._make_doorbell()  # the doorbell must not keep this backend alive
            self._dropped = finalize(self, _end_dropped, self._doorbell, self._server.address)
            self._dropped.atexit = False
        self._doorbell.watch(topic, wake)

    def _unwatch(self, topic: Topic, wake: Any) -> None:
        if self._doorbell is not None:
            self._doorbell.unwatch(topic, wake)

    def _make_doorbell(self, *, warns: bool = True) -> Any:
        settings = self._settings
        return AsyncDoorbell(
            self._server.node,
            settings.notifications,
            partial(announce, settings),
            poll_interval=settings.poll_interval,
            warns=warns,
        )

    async def ask(self, commands: Sequence[Sequence[bytes]]) -> list[list[Any]]:
        """The replies of each primary to read-only commands, in one round trip; errors are values."""
        self._owner.check()
        self._check_open()
        replies: list[list[Any]] = await self._with_retries(self._ask, commands)
        return replies

    async def aclose(self) -> None:
        if self._owner.is_parent:  # so are the connections
            self._closed = True
            return
        self._owner.check()
        self._closed = True
        if self._dropped is not None:
            self._dropped.detach()
        if self._doorbell is not None:
            await self._doorbell.aclose()
        await self._server.aclose()

    def _check_open(self, state: RetryCallState | None = None) -> None:
        if self._closed or is_abandoned():
            raise errors.StoreClosedError("the store was closed")

    # The steps of an operation

    async def _run(self, steps: Steps[T]) -> T:
        try:
            work = next(steps)
            while True:
                try:
                    single = type(work) is Call
                    outcome = decoded(work, await self.carry_out(work)) if single else await self._outcome(work)
                except errors.RedisHistoryError as error:
                    work = steps.throw(error)
                else:
                    work = steps.send(outcome)
        except StopIteration as end:
            returned: T = end.value
            return returned

    async def _outcome(self, work: Any) -> Any:
        """The outcome of a step that is not a single call."""
        if type(work) is Upkeep:
            return await self._maintain(work)
        if type(work) is Pause:
            return await sleep(work.seconds)
        if type(work) is ByNode:
            return await self._with_retries(self._by_node, work.keys)
        replies = await self.carry_out(work)
        return [decoded(call, reply) for call, reply in zip(work, replies, strict=True)]

    async def _maintain(self, upkeep: Upkeep) -> bool:
        """Do maintenance; errors are logged, not raised. Returns whether it was done."""
        steps, work = upkeep.steps, []
        try:
            work = next(steps)
            while True:
                work = steps.send(await self._outcome(work))
        except StopIteration:
            return True
        except errors.RedisHistoryError as error:
            self._report(error)
            if upkeep.later:
                self._postpone(steps, work, _UPKEEP_WAIT)
            return False

    async def _continue_upkeep(self) -> None:
        """Do some of the postponed maintenance. Errors are logged, not raised. Each call is sent once, so that no
        caller waits for an unavailable server."""
        self._upkeep_at = None
        remaining = _UPKEEP_CALLS
        while self._upkeep:
            try:
                steps, work = self._upkeep.popleft()
            except IndexError:  # another thread was quicker
                break
            try:
                while remaining > 0:
                    remaining -= 1
                    replies = await self._replies(work)
                    work = steps.send([decoded(call, reply) for call, reply in zip(work, replies, strict=True)])
            except StopIteration:
                continue
            except (RedisError, OSError, errors.RedisHistoryError) as error:
                self._may_retry(error)
                self._report(error)
                self._postpone(steps, work, _UPKEEP_WAIT)
                return
            except BaseException:  # a cancelled task
                self._postpone(steps, work)
                raise
            self._postpone(steps, work)
            return
        if self.search_mode == "server":
            self._finish_work(_WORK_SECONDS)

    def _postpone(self, steps: Steps[None], work: list[Call], wait: float = 0.0) -> None:
        """Continue later: after the other tasks with a `wait`, otherwise as the next one."""
        (self._upkeep.append if wait else self._upkeep.appendleft)((steps, work))
        self._upkeep_at = time.monotonic() + wait

    def _report(self, error: Exception) -> None:
        if not self._upkeep_failed:
            self._upkeep_failed = True
            _logger.warning("maintenance failed on %s and will be retried: %s", self._server.address, error)

    # Retries

    async def carry_out(self, work: Any) -> Any:
        """The reply to a call, or the replies to a list of calls, with retries. Raises errors of redis_history."""
        if type(work) is list:
            return await self._with_retries(self._replies, work)
        if work.sent_at is None:
            return await self._with_retries(self._reply, work)
        token = work.args[0]
        attempt = (self._unanswered.pop(token, None) if self._unanswered else None) or Attempt()
        try:
            return await self._with_retries(self._reply, work, attempt)
        except (errors.BackendUnavailableError, errors.BackendRefusedError) as error:
            # Refusals too: an earlier copy may be under way, and reach a server that accepts it.
            if attempt.uncertain and not isinstance(error, errors.OutcomeUnknownError):
                raise errors.OutcomeUnknownError(f"{error}; the write may have been made") from error.__cause__
            raise
        finally:
            if attempt.uncertain:
                self._remember(token, attempt)

    def _remember(self, token: bytes, attempt: Attempt) -> None:
        """Keep the attempt: if the operation is executed again, a copy of this call may still be under way."""
        self._unanswered[token] = attempt
        if len(self._unanswered) > _MAX_UNANSWERED:
            with suppress(KeyError, RuntimeError):  # another thread was faster
                del self._unanswered[next(iter(self._unanswered))]

    async def _with_retries(self, method: Any, *arguments: Any) -> Any:
        """The outcome of `method(*arguments)`, with retries. The scripts recognize a repeated write."""
        try:
            outcome = await method(*arguments)
        except (RedisError, OSError) as error:
            if not self._may_retry(error):
                raise translate(error, self._server.address) from error
            outcome = await self._retry_call(method, arguments, error)
        return outcome

    async def _retry_call(self, method: Any, arguments: tuple[Any, ...], error: Exception) -> Any:
        self._check_open()
        address = self._server.address
        _logger.info("%s: %s; trying again", address, error)
        # Immediately, because the connection may just be old.
        self._retry.notify(RetryDetails(address, 1, 0.0, 0.0, error))
        retrying = AsyncRetrying(
            retry=retry_if_exception(self._may_retry),
            wait=FullJitter(multiplier=self._retry.first_wait, max=self._retry.longest_wait),
            stop=stop_after_delay(self._retry.deadline),
            before=self._check_open,
            before_sleep=self._report_retry,
            reraise=True,
        )
        try:
            await self._server.start()
            return await retrying(method, *arguments)
        except (RedisError, OSError) as last:
            raise translate(last, address) from last

    def _report_retry(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        assert error is not None  # noqa: S101
        waited = state.idle_for - state.upcoming_sleep
        self._retry.notify(
            RetryDetails(self._server.address, state.attempt_number + 1, state.upcoming_sleep, waited, error)
        )

    def _may_retry(self, error: BaseException) -> bool:
        return is_transient(error)

    # Facts about the server

    async def _make_usable(self) -> None:
        """Before the first call: check the server's version, turn notifications on, and find or create the search
        index."""
        self._check_open()
        if self._usable:
            return
        await self._with_retries(self._check_version)
        for primary in await self._with_retries(self._primaries):
            with suppress(RedisError, OSError):  # a node is away, and writes to it try again
                await announce(self._settings, primary)
        await self._run(use_index(self._settings))
        self._usable = True
        if self.search_mode == "server":
            self._finish_work(0.0)

    def _finish_work(self, wait: float) -> None:
        """Finish the work of processes that were killed, when `wait` seconds have passed."""
        steps = finish_work(self._settings)
        self._postpone(steps, next(steps), wait)

    async def _primaries(self) -> list[AsyncNode]:
        await self._server.start()
        return [self._server.node]

    async def _check_version(self) -> None:
        """Without INFO the version is unknown, and an older server will refuse a command."""
        primary, *_ = await self._primaries()
        try:
            reply = await primary.execute([b"INFO", b"server"])
        except ResponseError as error:
            if is_transient(error):
                raise
            return
        server = read_info(reply)
        self._settings.locking = server.product == "upstash"
        if self._settings.index is not None and server.product in DECLARED_ONLY:
            self._settings.index.unusable = f"scripts of {server.name} may use declared keys only"

    async def _describe(self) -> Capabilities:
        return combined([await self._survey(primary) for primary in await self._primaries()])

    async def _survey(self, node: AsyncNode) -> Capabilities:
        return read_survey(await node.pipeline(QUESTIONS), sentinel=self._server.sentinel)

    async def _ask(self, commands: Sequence[Sequence[bytes]]) -> list[list[Any]]:
        return [await primary.pipeline(commands) for primary in await self._primaries()]

    async def _by_node(self, keys: list[bytes]) -> list[list[bytes]]:
        return [keys]

    async def _require_confirmation(self, confirm: Confirmation, node: AsyncNode) -> None:
        """Raises CapabilityError if the server cannot confirm writes."""
        if not node.confirms:
            confirm.check(await self._survey(node))
            node.confirms = True

    # From calls to commands and back

    async def _reply(
        self, call: Call, attempt: Attempt | None = None, node: AsyncNode | None = None, asking: bool = False
    ) -> Any:
        """The reply to a call; with `call.confirm`, also the reply to the confirming command, as a pair. `attempt`
        belongs to a write, whose delayed copies are decided here."""
        node = node or self._server.node
        if attempt is None:
            return await self._exchange(node, call, None, asking)
        if call.confirm is not None:
            await self._require_confirmation(call.confirm, node)
        before = attempt.uncertain
        for _ in range(_MAX_LATE):
            if not node.announces:
                await announce(self._settings, node)
            if not attempt.sent:
                attempt.sent = node.clock.now or await node.time()
            sent = b"-%d" % attempt.sent if before else b"%d" % attempt.sent
            attempt.uncertain = True  # until there is a reply
            try:
                reply = await self._exchange(node, call, sent, asking)
            except ResponseError:
                attempt.uncertain = before
                if not before:
                    attempt.sent = 0  # not executed, and the next copy may go to another server
                raise
            except Exception as error:
                if not may_be_executed(error):
                    attempt.uncertain = before
                raise
            attempt.uncertain = before
            of_script = reply if call.confirm is None else reply[0]
            if type(of_script) is not list or len(of_script) != 3 or of_script[0] != b"late":
                return reply
            # The script wrote nothing, because it cannot tell whether an earlier copy was executed.
            node.clock.learn(int(of_script[2]))
            if before:
                raise errors.OutcomeUnknownError(
                    f"{self._server.address} cannot tell any more whether this write was made: an earlier copy "
                    "got no reply, too long ago. Read the conversation before you repeat the call",
                    forgotten=True,
                )
            attempt.sent = int(of_script[1])  # no copy is under way, so this is a new call
        raise TryAgainError("the server's clock jumps ahead again and again: it finds every write too late")

    async def _exchange(
        self, node: AsyncNode, call: Call, sent: bytes | None, asking: bool, with_source: bool = False
    ) -> Any:
        """Send one copy of a call, with the script's source if the server lacks it. A permanent error of the confirming
        command is returned, because the write was made. A transient one is raised, so that the call is repeated: the
        server may just have become a replica."""
        words = call.words(with_source=with_source, sent=sent, locking=self._settings.locking)
        try:
            commands = [*call.contents_first, words] if call.contents else [words]
            if asking:
                commands = [one for command in commands for one in ([b"ASKING"], command)]
            confirm = None if call.confirm is None else call.confirm.command
            replies = await node.pipeline(commands, writes=call.is_urgent, confirm=confirm)
            reply, confirmed = replies[len(commands) - 1], replies[-1]
            if call.contents and reply == [b"contents"]:  # if the script has made its change, all contents are there
                raise_errors(replies[: len(commands) - 1])
            for answer in (reply, confirmed):
                if isinstance(answer, ResponseError) and (answer is reply or is_transient(answer)):
                    raise answer
        except NoScriptError:
            if with_source:
                raise
            return await self._exchange(node, call, sent, asking, with_source=True)
        return reply if call.confirm is None else (reply, confirmed)

    async def _replies(self, calls: list[Call]) -> list[Any]:
        """The replies to repeatable calls, in one round trip, or two if the server lacks a script."""
        urgent = all(call.is_urgent for call in calls)
        locking = self._settings.locking
        replies = await self._server.node.pipeline([call.words(locking=locking) for call in calls], writes=urgent)
        unknown = [at for at, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:
            sources = [calls[at].words(with_source=True, locking=locking) for at in unknown]
            again = await self._server.node.pipeline(sources, writes=urgent)
            for at, reply in zip(unknown, again, strict=True):
                replies[at] = reply
        return raise_first(calls, replies)
