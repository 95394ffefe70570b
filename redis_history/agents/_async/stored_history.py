"""A history that is loaded from a store, saved to it, and kept the same as it."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, Self, Unpack

from msgspec.structs import replace

from redis_history import errors
from redis_history.agents.history._outbox import Add, Compaction, Rewrite
from redis_history.agents.history._replica import read_whole
from redis_history.agents.history._syncer import Syncer
from redis_history.agents.history.history import History, HistoryOptions
from redis_history.store import operations as ops
from redis_history.store import refusals
from redis_history.store._async._runtime import Job, Lock, Signal, at_exit, completed, is_cancelled, spawn
from redis_history.store._async.store import AsyncHistoryStore
from redis_history.store.operations.append import Batch
from redis_history.store.operations.base import T
from redis_history.values import Message
from redis_history.values._validation import check_process
from redis_history.values.ids import check_conversation_id

_logger = logging.getLogger("redis_history")

#: Seconds between attempts to save while they fail.
_FIRST_WAIT: Final = 0.1
_LONGEST_WAIT: Final = 5.0
#: Seconds after which saving checks for changes even without a wake-up.
_CHECK: Final = 60.0
#: Seconds in which the server certainly recognizes a repeated call.
_RECOGNISED: Final = 60.0
#: Failures kept for `flush`.
_FAILURES: Final = 100
#: Errors that no later attempt can prevent.
_FINAL: Final = (
    errors.MessageConflictError,
    errors.RevisionConflictError,
    errors.CompactionConflictError,
    errors.MessageNotFoundError,
    errors.InvalidInputError,
)


class AsyncRedisHistory(History):
    """A `History` that is loaded from a store and saved to it: by `load` and `save`, or automatically after `autosave`.

    `client_or_store` is a redis-py client, an AsyncHistoryStore, or a URL as a store takes it. The caller closes stores
    and clients; `namespace` is for a client or a URL. While the history saves automatically, at most `max_unsaved`
    messages, and 64 MB, may wait for the server. Other options are those of `History`; `max_length` and `max_tokens`
    limit the entries held in this process, and never remove messages from the store.

    Event `error`: with the error, for every failure in the background.
    """

    _EVENTS = (*History._EVENTS, "error")

    def __init__(
        self,
        client_or_store: Any,
        *,
        namespace: str = "default",
        max_unsaved: int = 10_000,
        **options: Unpack[HistoryOptions],
    ) -> None:
        super().__init__(**options)
        self._owned = not isinstance(client_or_store, AsyncHistoryStore)
        if isinstance(client_or_store, AsyncHistoryStore):
            self._store = client_or_store
        elif isinstance(client_or_store, str):
            self._store = AsyncHistoryStore(client_or_store, namespace=namespace)
        else:
            self._store = AsyncHistoryStore(client=client_or_store, namespace=namespace)
        confirms = self._store._options.durability != "server"
        self._syncer = Syncer(self, max_unsaved, self._wake, confirms=confirms)
        self._sending, self._reading = Lock(), Lock()
        self._unanswered: tuple[list[Add], Batch, float] | None = None
        self._failures: deque[errors.RedisHistoryError] = deque(maxlen=_FAILURES)
        self._signal: Signal | None = None  # there is something to send
        self._closing: Signal | None = None
        self._heard: Signal | None = None  # set by the doorbell of the conversation
        self._jobs: list[Job] = []
        self._not_at_exit: Callable[[], None] | None = None
        self._closed = False
        self._process = os.getpid()

    @property
    def conversation_id(self) -> str | None:
        """The conversation it was loaded from or saved to, or None."""
        return self._syncer.conversation_id

    @property
    def unsaved(self) -> list[Message]:
        """Added messages that the store has not acknowledged, or all messages if the history was never saved."""
        return self._syncer.unsaved

    @property
    def autosaving(self) -> bool:
        """Whether it saves and follows automatically."""
        return self._syncer.following

    async def load(self, conversation_id: str) -> None:
        """Load a conversation, and replace the present entries. An unknown conversation is empty.

        Unsaved additions follow it; a system message is not added again if the conversation has one with the same text.
        Unsaved rewrites are given up. Raises InvalidInputError if unsaved messages belong to another conversation.
        """
        self._check(conversation_id)
        if self.conversation_id not in (None, conversation_id) and self.unsaved:
            raise errors.InvalidInputError(
                f"{len(self.unsaved):,} messages are not saved to {str(self.conversation_id)[:80]!r} yet: "
                "save them, or make another history"
            )
        await self._exclusively(lambda: self._load(conversation_id))

    async def save(self, conversation_id: str | None = None) -> int:
        """Send the unsaved changes, and read those of others. Returns how many messages were new
        to the store.

        `clear`, `restore` and `reset` are applied only if no other writer has changed the conversation since it was
        loaded or is streaming a reply. Otherwise they raise RevisionConflictError without overwriting anything, and
        `load` reads the present state. A reduction is given up with CompactionConflictError if the messages it
        summarizes have changed. A conversation other than the loaded one gets all entries. After any error, the next
        call sends the rest without repeating anything. More than 1,000 messages or 4 MB are split into several
        changes. Raises the errors of `append_many`, and InvalidInputError without a conversation.
        """
        chosen = self._chosen(conversation_id)
        return await self._exclusively(lambda: self._save(chosen))

    async def autosave(self, conversation_id: str | None = None) -> None:
        """From now on, save each addition in the background, in order, and apply the changes of others.

        Loads the conversation first, if it is not loaded. Ends with `aclose`, which saves the rest, as does the end of
        the interpreter. During an outage messages wait, up to `max_unsaved`; then adding raises UnsavedLimitError. Each
        failure in the background is an event `error`. If no later attempt can succeed (a rewrite that came too late, a
        message whose id has other content), `flush` raises it too.
        """
        chosen = self._chosen(conversation_id)
        if self.autosaving:
            return
        if chosen != self.conversation_id or self._syncer.cursor is None:
            await self.load(chosen)
        self._signal, self._closing, self._heard = Signal(), Signal(), Signal()
        await self._store.backend.watch(chosen, self._heard.set)
        self._syncer.following = True
        self._not_at_exit = at_exit(self._send_rest)
        self._wake()
        self._jobs = [
            spawn(self._keep_saving, "redis_history-autosave"),
            spawn(self._keep_following, "redis_history-follow"),
        ]

    async def flush(self) -> None:
        """Return when the store has acknowledged all additions.

        Raises the error that prevents this. The messages stay unsaved. Also raises an error of autosave since the last
        call that lost something.
        """
        if self.conversation_id is None:
            return
        await self._exclusively(self._send_all)
        if self._failures:
            error = self._failures.popleft()
            if self._failures:
                error.add_note(f"and {len(self._failures)} further failures, see the event 'error'")
            self._failures.clear()
            raise error

    async def aclose(self) -> None:
        """Save the rest, and end autosave. Raises the errors of `flush` after it has ended; `unsaved` then has the
        rest. Further calls do nothing."""
        if self._closed:
            return
        try:
            if self.autosaving:
                await self.flush()
        finally:
            await completed(self._end)

    async def _end(self) -> None:
        self._closed = True
        self._syncer.following = False
        if self._not_at_exit is not None:
            self._not_at_exit()
        for signal in (self._signal, self._closing, self._heard):
            if signal is not None:
                signal.set()
        if self._heard is not None and self.conversation_id is not None:
            await self._store.backend.unwatch(self.conversation_id, self._heard.set)
        for job in self._jobs:
            await job.stop()
        if self._owned:
            await self._store.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    def _chosen(self, conversation_id: str | None) -> str:
        chosen = self.conversation_id if conversation_id is None else conversation_id
        if chosen is None:
            raise errors.InvalidInputError("conversation_id is required, unless a conversation was loaded")
        self._check(chosen)
        return chosen

    def _check(self, conversation_id: str) -> None:
        check_conversation_id(conversation_id)
        if self.transient:
            raise errors.InvalidInputError("this history is transient: it is never saved")
        if self._closed:
            raise errors.StoreClosedError("the history was closed")
        if self.autosaving and conversation_id != self.conversation_id:
            raise errors.InvalidInputError(
                f"this history saves itself to {str(self.conversation_id)[:80]!r}: make another one for "
                f"{conversation_id[:80]!r}"
            )

    def _wake(self) -> None:
        if self._signal is not None:
            check_process(self._process)  # the parent saves; in a child nothing does
            self._signal.set()

    def _report(self, error: errors.RedisHistoryError, *, lost: bool = False) -> None:
        """Post a failure as an event. `lost`: `flush` raises it too, because no later attempt can succeed."""
        if lost:
            self._failures.append(error)
        if self._listeners.wants("error"):
            self._listeners.post("error", error)
        else:
            _logger.warning("saving or following %r: %s", str(self.conversation_id)[:80], error)

    # In the background

    async def _keep_saving(self) -> None:
        assert self._signal is not None  # noqa: S101
        assert self._closing is not None  # noqa: S101
        wait = _FIRST_WAIT
        try:
            while not self._closed and not is_cancelled():
                await self._signal.wait(_CHECK)
                self._signal.clear()
                if self._closed:
                    break
                try:
                    await self._exclusively(self._send_all)
                    wait = _FIRST_WAIT
                except errors.RedisHistoryError as error:
                    self._report(error)
                    self._listeners.deliver()
                    await self._closing.wait(wait)
                    wait = min(2 * wait, _LONGEST_WAIT)
                    self._signal.set()
        finally:
            if not self._closed:  # the event loop ends
                await self._send_rest()

    async def _keep_following(self) -> None:
        heard = self._heard
        assert heard is not None  # noqa: S101
        while not self._closed and not is_cancelled():
            heard.clear()  # before reading: a later change sets it again
            try:
                await self._catch_up()
            except errors.StoreClosedError:
                break
            except errors.BackendUnavailableError as error:
                _logger.warning("following %r waits for the server: %s", str(self.conversation_id)[:80], error)
            except errors.RedisHistoryError as error:
                if not self._closed:
                    self._report(error)
            self._listeners.deliver()
            await heard.wait(self._store._poll_interval)

    async def _send_rest(self) -> None:
        """Send the pending changes when the interpreter or the event loop ends."""
        try:
            await self._exclusively(self._send_all)
        except errors.RedisHistoryError as error:
            self._report(error, lost=True)
            self._listeners.deliver()

    # One call sends at a time, and replies are applied in the order of reading

    async def _exclusively(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work` while nothing else is sent. Then call the handlers, which may send something themselves."""
        check_process(self._process)  # a task of the parent may have held the lock
        try:
            async with self._sending:
                return await work()
        finally:
            self._listeners.deliver()

    async def _catch_up(self) -> None:
        async with self._reading:
            await self._store.execute(self._syncer.changes_by_others())

    async def _load(self, conversation_id: str) -> None:
        async with self._reading:
            self._syncer.load(conversation_id, await self._store.execute(read_whole(conversation_id)))

    async def _save(self, conversation_id: str) -> int:
        if conversation_id != self.conversation_id:
            self._syncer.bind(conversation_id)
        sent = await self._send_all()
        if not self.autosaving:
            await self._catch_up()
        return sent

    async def _send_all(self) -> int:
        """Send all pending changes. Returns how many messages were new to the store."""
        sent = 0
        while (change := self._syncer.next()) is not None:
            try:
                if isinstance(change, Rewrite):
                    await self._rewrite(change)
                else:
                    sent += await self._append(change)
            except errors.CapabilityError:  # nothing was sent, and the server may get the replicas that it lacks
                raise
            except _FINAL as error:
                if not await self._was_made(change, error):
                    if not self.autosaving:
                        if isinstance(change, Compaction):  # nothing is lost: the entries are as they were
                            self._syncer.rejected([change])
                        raise
                    await self._give_up(change, error)
            except BaseException:  # also a cancelled task
                if isinstance(change, Rewrite):
                    change.uncertain = True
                raise
        return sent

    async def _append(self, adds: list[Add]) -> int:
        """Send messages. If the last attempt got no reply, repeat the same call, so that messages that others deleted
        since are not stored again. After `_RECOGNISED` seconds, send a new call."""
        unanswered, self._unanswered = self._unanswered, None
        since = time.monotonic()
        again = (
            unanswered is not None
            and since - unanswered[2] < _RECOGNISED
            and adds[: len(unanswered[0])] == unanswered[0]
        )
        if unanswered is not None and again:
            adds, batch, since = unanswered
        elif adds := self._syncer.without_deleted(adds):
            batch = ops.Append.batch(self._syncer.bound_id, [add.message for add in adds])
        else:
            return 0
        try:
            outcomes = await self._store._write(batch.op)
        except _FINAL:
            raise
        except BaseException as error:  # also a cancelled task
            forgotten = isinstance(error, errors.OutcomeUnknownError) and error.forgotten
            if forgotten and again:
                return await self._append(adds)
            if not forgotten:
                self._unanswered = adds, batch, since
            raise
        return self._syncer.appended(adds, [outcomes[index] for index in batch.order])

    async def _rewrite(self, change: Rewrite) -> None:
        conversation_id = self._syncer.bound_id
        if isinstance(change, Compaction):
            try:
                done = await self._store.compact(
                    conversation_id, through=change.replaced[-1].id, summary=change.summary, seen=change.replaced
                )
            except (errors.TornPairError, errors.MessageNotFoundError) as error:
                # A tool result came, or the last message is gone.
                raise refusals.compaction_conflict(conversation_id, str(error)) from error
            self._syncer.rewritten(change, done.revision, changed=done.changed)
            return
        if change.hidden_reply:  # streaming creates no revision for the store to compare
            raise refusals.reply_unfinished(conversation_id, change.seen)
        op: ops.Clear | ops.Restore = ops.Clear(conversation_id, precondition=ops.Precondition.of(change.seen))
        if change.target:
            op = ops.Restore.of(conversation_id, change.target, expected_revision=change.seen)
        revision = await self._store._write(replace(op, token=change.token))
        self._syncer.rewritten(change, revision, changed=revision != change.seen)

    async def _was_made(self, change: list[Add] | Rewrite, error: Exception) -> bool:
        """Whether a rewrite was rejected because an earlier attempt without a reply had made it."""
        if not (isinstance(change, Rewrite) and change.uncertain and isinstance(error, errors.RevisionConflictError)):
            return False
        await self._catch_up()
        return change not in self._syncer.outbox  # it left when its own event was read

    async def _give_up(self, change: list[Add] | Rewrite, error: errors.RedisHistoryError) -> None:
        """Report what autosave can never save, and go on with the rest."""
        changes = [change] if isinstance(change, Rewrite) else change
        if isinstance(error, errors.MessageConflictError) and isinstance(change, list):
            changes = [add for add in change if add.message.id == error.message_id] or change
        self._syncer.rejected(changes)
        self._report(error, lost=True)
        if isinstance(change, Rewrite):
            await self._catch_up()
