"""A history that is loaded from a store, saved to it, and kept the same as it."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Any, Self, Unpack

from redis_history._async._runtime import Job, Lock, Signal, at_exit, ending, reset_after_fork, spawn
from redis_history._async._saving import AsyncSaving
from redis_history._async.store import AsyncHistoryStore
from redis_history._ids import check_conversation_id
from redis_history.errors import BackendUnavailableError, InvalidInputError, RedisHistoryError, StoreClosedError
from redis_history.history.history import HistoryOptions

__all__ = ["AsyncRedisHistory"]

_logger = logging.getLogger("redis_history")

#: Seconds between tries to save while that fails.
_FIRST_WAIT = 0.1
_LONGEST_WAIT = 5.0
_LOOK = 60.0


class AsyncRedisHistory(AsyncSaving):
    """A `History` that is loaded from a store and saved to it: by `load` and `save`, or by itself after `autosave`.

    `client_or_store` is a redis-py client, an AsyncHistoryStore, or a URL as a store takes it. A store and a client
    stay the caller's to close; `namespace` is for a client or a URL. `max_unsaved` is how many messages may wait for
    the server while the history saves by itself, together with 64 MB. Other options are those of `History`;
    `max_length` and `max_tokens` bound what is here, and take nothing from the store.

    Event `error`: with the error, for every failure in the background.
    """

    def __init__(
        self,
        client_or_store: Any,
        *,
        namespace: str = "default",
        max_unsaved: int = 10_000,
        **options: Unpack[HistoryOptions],
    ) -> None:
        super().__init__(max_unsaved=max_unsaved, **options)
        self._owned = not isinstance(client_or_store, AsyncHistoryStore)
        if isinstance(client_or_store, AsyncHistoryStore):
            self._store = client_or_store
        elif isinstance(client_or_store, str):
            self._store = AsyncHistoryStore(client_or_store, namespace=namespace)
        else:
            self._store = AsyncHistoryStore(client=client_or_store, namespace=namespace)
        self._signal: Signal | None = None
        self._closing: Signal | None = None
        self._heard: Signal | None = None  # set by the doorbell of the conversation
        self._jobs: list[Job] = []
        self._not_at_exit: Any = None
        self._closed = False
        self._fork = _Fork(self)
        reset_after_fork(self._fork)

    @property
    def autosaving(self) -> bool:
        """Whether it saves and follows by itself."""
        return self._following

    async def load(self, conversation_id: str) -> None:
        """Read a conversation, in place of what was loaded before. One that is unknown is empty.

        What was added here and not saved stays, behind it; but a system message that is there already, word for word,
        is not added again. Rewrites that were not saved are given up. Raises InvalidInputError if unsaved messages
        belong to another conversation.
        """
        self._check(conversation_id)
        if self.conversation_id not in (None, conversation_id) and self.unsaved:
            raise InvalidInputError(
                f"{len(self.unsaved):,} messages are not saved to {str(self.conversation_id)[:80]!r} yet: "
                "save them, or make another history"
            )

        async def read() -> None:
            async with self._reading:
                self._loaded(conversation_id, await self._whole(conversation_id))

        await self._exclusively(read)

    async def save(self, conversation_id: str | None = None) -> int:
        """Send what the store does not have yet; how many messages were new to it.

        What others have saved stays, and is here afterwards. `clear`, `restore`, `reset` and `reduce` are done there
        only if nobody has changed the conversation since it was loaded; else RevisionConflictError, nothing is
        overwritten, and `load` reads what is there. Another conversation than the one loaded gets all entries. Any
        error leaves what was not acknowledged to the next call, which may repeat it safely. More than 1,000 messages,
        or 4 MB, are several changes. Raises as `append_many`, and InvalidInputError without a conversation.
        """
        wanted = self.conversation_id if conversation_id is None else conversation_id
        if wanted is None:
            raise InvalidInputError("save to which conversation? save(conversation_id), or load one first")
        self._check(wanted)
        target = wanted

        async def send() -> int:
            if target != self.conversation_id:
                self._bind(target)
            sent = await self._send_all()
            if self._stale and not self._following:
                await self._catch_up()
            return sent

        return await self._exclusively(send)

    async def autosave(self, conversation_id: str | None = None) -> None:
        """From now on, save each addition in the background, in order, and take part in what others do.

        Loads the conversation first, if it is not loaded. Ends with `aclose`, which saves the rest, as does the end of
        the interpreter. While the server is away messages wait, up to `max_unsaved`; then adding raises
        UnsavedLimitError. A failure that a later attempt may mend is told by the event `error`, one that none can mend
        by `flush`, too: a rewrite that was refused because others were faster, a message whose id has other content.
        """
        wanted = self.conversation_id if conversation_id is None else conversation_id
        if wanted is None:
            raise InvalidInputError("save to which conversation? autosave(conversation_id), or load one first")
        self._check(wanted)
        if self._following:
            return
        if wanted != self.conversation_id or self._resume_at() is None:
            await self.load(wanted)
        self._signal, self._closing, self._heard = Signal(), Signal(), Signal()
        await self._store._backend.watch(wanted, self._heard.set)
        self._following = True
        self._not_at_exit = at_exit(self._finish)
        self._wake()
        self._jobs = [
            spawn(self._keep_saving, "redis_history-autosave"),
            spawn(self._keep_following, "redis_history-follow"),
        ]

    async def flush(self) -> None:
        """Return when all that was added has been acknowledged.

        Raises what prevents that (the messages go on waiting), or what has been lost since the last call: see
        `autosave`.
        """
        if self.conversation_id is None:
            return
        await self._exclusively(self._send_all)
        if self._failures:
            error = self._failures.popleft()
            if self._failures:
                error.add_note(f"and {len(self._failures)} further failures, told by the event 'error'")
            self._failures.clear()
            raise error

    async def aclose(self) -> None:
        """Save what autosave has not saved yet, and end it. Raises as `flush`, when it has ended: `unsaved` has the
        rest. More than once does no harm."""
        if self._closed:
            return
        try:
            if self._following:
                await self.flush()
        finally:
            self._closed = True
            self._following = False
            if self._not_at_exit is not None:
                self._not_at_exit()
            for signal in (self._signal, self._closing, self._heard):
                if signal is not None:
                    signal.set()
            if self._heard is not None and self._heard.home.here:
                await self._unwatch()
            for job in self._jobs:
                await job.stop()
            if self._owned:
                await self._store.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _forget(self) -> None:
        """In a forked child: autosave is the parent's."""
        self._renew_locks()
        self._jobs = []
        self._following = False
        self._heard = None
        self._sending, self._reading = Lock(), Lock()

    def _check(self, conversation_id: str) -> None:
        check_conversation_id(conversation_id)
        self._check_saveable()
        if self._closed:
            raise StoreClosedError("the history was closed")
        if self._following and conversation_id != self.conversation_id:
            raise InvalidInputError(
                f"this history saves itself to {str(self.conversation_id)[:80]!r}: make another one for "
                f"{conversation_id[:80]!r}"
            )

    def _wake(self) -> None:
        if self._signal is not None:
            self._signal.set()

    async def _keep_saving(self) -> None:
        assert self._signal is not None  # noqa: S101
        assert self._closing is not None  # noqa: S101
        wait = _FIRST_WAIT
        try:
            while not self._closed and not ending():
                await self._signal.wait(_LOOK)
                self._signal.clear()
                if self._closed:
                    break
                try:
                    await self._exclusively(self._send_all)
                    wait = _FIRST_WAIT
                except RedisHistoryError as error:
                    self._report(error)
                    self._listeners.deliver()
                    await self._closing.wait(wait)
                    wait = min(2 * wait, _LONGEST_WAIT)
                    self._signal.set()
        finally:
            if not self._closed:  # the event loop ends
                await self._finish()

    async def _keep_following(self) -> None:
        heard = self._heard
        assert heard is not None  # noqa: S101
        while not self._closed and not ending():
            heard.clear()  # before reading: a later change sets it again
            try:
                await self._catch_up()
            except StoreClosedError:
                break
            except BackendUnavailableError as error:
                _logger.warning("following %r waits for the server: %s", str(self.conversation_id)[:80], error)
            except RedisHistoryError as error:
                if not self._closed:
                    self._report(error)
            self._listeners.deliver()
            await heard.wait(self._store._poll_interval)

    async def _unwatch(self) -> None:
        assert self._heard is not None  # noqa: S101
        assert self.conversation_id is not None  # noqa: S101
        await self._store._backend.unwatch(self.conversation_id, self._heard.set)

    async def _finish(self) -> None:
        """The interpreter, or the event loop, ends without `aclose`."""
        if self._sender is not None and self._sender.stopped:  # it would hold the lock for ever
            self._sending = Lock()
        try:
            await self._exclusively(self._send_all)
        except RedisHistoryError as error:
            self._report(error, lost=True)
            self._listeners.deliver()


class _Fork:
    """What a forked child tells."""

    def __init__(self, history: AsyncRedisHistory) -> None:
        self._history = history

    def forget(self) -> None:
        self._history._forget()
