# Generated from ../_async by scripts/unasync: do not edit.
"""A history that is loaded from a store, saved to it, and kept the same as it."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Any, Self, Unpack

from redis_history._ids import check_conversation_id
from redis_history._sync._runtime import Job, Signal, at_exit, is_cancelled, reset_after_fork, spawn
from redis_history._sync._saving import Saver
from redis_history._sync.store import HistoryStore
from redis_history.errors import BackendUnavailableError, InvalidInputError, RedisHistoryError, StoreClosedError
from redis_history.events import Cursor
from redis_history.history._syncer import Syncer
from redis_history.history.history import History, HistoryOptions
from redis_history.model import Message

_logger = logging.getLogger("redis_history")

#: Seconds between attempts to save while they fail.
_FIRST_WAIT = 0.1
_LONGEST_WAIT = 5.0
#: Seconds after which saving looks again, even without a wake-up.
_LOOK = 60.0


class RedisHistory(History):
    """A `History` that is loaded from a store and saved to it: by `load` and `save`, or by itself after `autosave`.

    `client_or_store` is a redis-py client, an HistoryStore, or a URL as a store takes it. A store and a client
    stay the caller's to close; `namespace` is for a client or a URL. `max_unsaved` is how many messages may wait for
    the server while the history saves by itself, together with 64 MB. Other options are those of `History`;
    `max_length` and `max_tokens` limit what is here, and take nothing from the store.

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
        self._owned = not isinstance(client_or_store, HistoryStore)
        if isinstance(client_or_store, HistoryStore):
            self._store = client_or_store
        elif isinstance(client_or_store, str):
            self._store = HistoryStore(client_or_store, namespace=namespace)
        else:
            self._store = HistoryStore(client=client_or_store, namespace=namespace)
        confirms = self._store._options.durability != "server"
        self._syncer = Syncer(self, max_unsaved, self._wake, confirms=confirms)
        self._saver = Saver(self._store, self._syncer, self._listeners)
        self._signal: Signal | None = None
        self._closing: Signal | None = None
        self._heard: Signal | None = None  # set by the doorbell of the conversation
        self._jobs: list[Job] = []
        self._not_at_exit: Any = None
        self._closed = False
        self._fork = _Fork(self)
        reset_after_fork(self._fork)

    @property
    def conversation_id(self) -> str | None:
        """The conversation that it was loaded from or saved to; None before."""
        return self._syncer.conversation_id

    @property
    def unsaved(self) -> list[Message]:
        """Messages added here that the store has not acknowledged; of a history that was never saved, all."""
        return self._syncer.unsaved

    @property
    def autosaving(self) -> bool:
        """Whether it saves and follows by itself."""
        return self._syncer.following

    def load(self, conversation_id: str) -> None:
        """Read a conversation, in place of what was loaded before. One that is unknown is empty.

        Unsaved additions stay, behind it; but a system message that is there already, word for word,
        is not added again. Rewrites that were not saved are given up. Raises InvalidInputError if unsaved messages
        belong to another conversation.
        """
        self._check(conversation_id)
        if self.conversation_id not in (None, conversation_id) and self.unsaved:
            raise InvalidInputError(
                f"{len(self.unsaved):,} messages are not saved to {str(self.conversation_id)[:80]!r} yet: "
                "save them, or make another history"
            )
        self._saver.exclusively(lambda: self._saver.load(conversation_id))

    def save(self, conversation_id: str | None = None) -> int:
        """Send what the store does not have yet; how many messages were new to it.

        Messages saved by others stay, and are here afterwards. `clear`, `restore`, `reset` and `reduce` are done there
        only if nobody has changed the conversation since it was loaded; else RevisionConflictError, nothing is
        overwritten, and `load` reads what is there. Another conversation than the one loaded gets all entries. Any
        error leaves what was not acknowledged to the next call, which may repeat it safely. More than 1,000 messages,
        or 4 MB, are several changes. Raises as `append_many`, and InvalidInputError without a conversation.
        """
        wanted = self._wanted(conversation_id)
        return self._saver.exclusively(lambda: self._saver.save(wanted))

    def autosave(self, conversation_id: str | None = None) -> None:
        """From now on, save each addition in the background, in order, and apply the changes of others.

        Loads the conversation first, if it is not loaded. Ends with `close`, which saves the rest, as does the end of
        the interpreter. While the server is away messages wait, up to `max_unsaved`; then adding raises
        UnsavedLimitError. Each failure in the background is an event `error`. If no later attempt can succeed (a
        rewrite that came too late, a message whose id has other content), `flush` raises it too.
        """
        wanted = self._wanted(conversation_id)
        if self.autosaving:
            return
        if wanted != self.conversation_id or self._cursor is None:
            self.load(wanted)
        self._signal, self._closing, self._heard = Signal(), Signal(), Signal()
        self._store.backend.watch(wanted, self._heard.set)
        self._syncer.following = True
        self._not_at_exit = at_exit(self._saver.send_rest)
        self._wake()
        self._jobs = [
            spawn(self._keep_saving, "redis_history-autosave"),
            spawn(self._keep_following, "redis_history-follow"),
        ]

    def flush(self) -> None:
        """Return when all that was added has been acknowledged.

        Raises what prevents that (the messages go on waiting), or what has been lost since the last call: see
        `autosave`.
        """
        if self.conversation_id is None:
            return
        self._saver.exclusively(self._saver.send_all)
        failures = self._saver.failures
        if failures:
            error = failures.popleft()
            if failures:
                error.add_note(f"and {len(failures)} further failures, see the event 'error'")
            failures.clear()
            raise error

    def close(self) -> None:
        """Save what autosave has not saved yet, and end it. Raises as `flush`, when it has ended: `unsaved` has the
        rest. More than once does no harm."""
        if self._closed:
            return
        try:
            if self.autosaving:
                self.flush()
        finally:
            self._closed = True
            self._syncer.following = False
            if self._not_at_exit is not None:
                self._not_at_exit()
            for signal in (self._signal, self._closing, self._heard):
                if signal is not None:
                    signal.set()
            if self._heard is not None and self._heard.owner.is_current:
                self._unwatch()
            for job in self._jobs:
                job.stop()
            if self._owned:
                self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _cursor(self) -> Cursor | None:
        return self._syncer.cursor

    def _wanted(self, conversation_id: str | None) -> str:
        wanted = self.conversation_id if conversation_id is None else conversation_id
        if wanted is None:
            raise InvalidInputError("conversation_id is required, unless a conversation was loaded")
        self._check(wanted)
        return wanted

    def _check(self, conversation_id: str) -> None:
        check_conversation_id(conversation_id)
        if self.transient:
            raise InvalidInputError("this history is transient: it is never saved")
        if self._closed:
            raise StoreClosedError("the history was closed")
        if self.autosaving and conversation_id != self.conversation_id:
            raise InvalidInputError(
                f"this history saves itself to {str(self.conversation_id)[:80]!r}: make another one for "
                f"{conversation_id[:80]!r}"
            )

    def _wake(self) -> None:
        if self._signal is not None:
            self._signal.set()

    def _keep_saving(self) -> None:
        assert self._signal is not None  # noqa: S101
        assert self._closing is not None  # noqa: S101
        wait = _FIRST_WAIT
        try:
            while not self._closed and not is_cancelled():
                self._signal.wait(_LOOK)
                self._signal.clear()
                if self._closed:
                    break
                try:
                    self._saver.exclusively(self._saver.send_all)
                    wait = _FIRST_WAIT
                except RedisHistoryError as error:
                    self._saver.report(error)
                    self._listeners.deliver()
                    self._closing.wait(wait)
                    wait = min(2 * wait, _LONGEST_WAIT)
                    self._signal.set()
        finally:
            if not self._closed:  # the event loop ends
                self._saver.send_rest()

    def _keep_following(self) -> None:
        heard = self._heard
        assert heard is not None  # noqa: S101
        while not self._closed and not is_cancelled():
            heard.clear()  # before reading: a later change sets it again
            try:
                self._saver.catch_up()
            except StoreClosedError:
                break
            except BackendUnavailableError as error:
                _logger.warning("following %r waits for the server: %s", str(self.conversation_id)[:80], error)
            except RedisHistoryError as error:
                if not self._closed:
                    self._saver.report(error)
            self._listeners.deliver()
            heard.wait(self._store._poll_interval)

    def _unwatch(self) -> None:
        assert self._heard is not None  # noqa: S101
        assert self.conversation_id is not None  # noqa: S101
        self._store.backend.unwatch(self.conversation_id, self._heard.set)


class _Fork:
    """Ends autosave in a forked child: it is the parent's."""

    def __init__(self, history: RedisHistory) -> None:
        self._history = history

    def forget(self) -> None:
        history = self._history
        history._renew_locks()
        history._saver.renew_locks()
        history._syncer.following = False
        history._jobs = []
        history._heard = None
