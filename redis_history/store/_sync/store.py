# Generated from ../_async by scripts/unasync: do not edit.
"""The conversation store."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, Literal, Self

from msgspec import UNSET, UnsetType

from redis_history.errors import InvalidInputError
from redis_history.store._sync._runtime import (
    Job,
    check_callback,
    completed,
    open_without_await,
    resolve,
    spawn,
    wait_for_unfinished,
)
from redis_history.store._sync.accounting import Accounting
from redis_history.store._sync.asking import Asking
from redis_history.store._sync.reading import Reading
from redis_history.store._sync.run_keeper import RunKeepers
from redis_history.store._sync.runs import Run
from redis_history.store._sync.subscription import Feed, NamespaceSubscription, Subscription
from redis_history.store._sync.writing import Writing
from redis_history.store.capabilities import Capabilities
from redis_history.store.operations import ReadRun, StopRun
from redis_history.store.operations.backend import Backend
from redis_history.store.operations.options import Codec, Durability, Embedder, Options, SearchMode, meaning
from redis_history.store.retry import RetryPolicy
from redis_history.values._validation import check_function, check_name, refuse
from redis_history.values.events import Cursor, Event, cursors_of
from redis_history.values.ids import check_conversation_id
from redis_history.values.runs import RunInfo

_logger = logging.getLogger("redis_history")

#: Characters of the reason for a stop.
_MAX_REASON = 1000


class HistoryStore(Writing, Asking, Reading, Accounting):
    """Conversations in one namespace of one backend. Use it as a context manager.

    - `url`: `redis://`, `rediss://` or `unix://` (a server), `redis+cluster://` or `redis+sentinel://` (several:
      docs/how-to/cluster.md), `embedded://` (a private server, started when first needed) or `memory://` (this
      process). Options of redis-py may follow as a query, such as `?socket_timeout=2`. The first call connects.
    - `client`: instead of a URL, a redis-py client, which the caller closes. `backend`: instead of both, any object
      with the methods of `operations.backend`, which then has its own options of retention.
    - `namespace`: 1 to 128 bytes of text. Stores of different namespaces are isolated from each other.
    - `log_length`: the minimum number of changes of a conversation to keep for subscribers that were away. Use the
      same in all writers.
    - `poll_interval`: seconds after which subscriptions read the log even without a notification.
    - `retry`: how long a call keeps trying while the server is unavailable.
    - `ttl`: seconds from the last change of a conversation to its end, from 0.001. A store without a `ttl` keeps the
      conversation's present one. See docs/how-to/expiry.md.
    - `max_messages`: keep the newest messages of a conversation. Each append and restore removes the oldest, a tool
      call together with its result. `max_conversations`: for `memory://` only. Both are 500 there by default; None: no
      cap.
    - `durability`: the confirmation that a write waits for: "server" (the server has it), "fsync" (its disk has it) or
      "replicas" (a replica has it). Raises DurabilityError without confirmation within
      `durability_timeout` seconds, 0.001 to 3,600, and CapabilityError before the write if the server never confirms.
      `durable_server`: with "fsync", trust a server that acknowledges only durable writes, such as MemoryDB or one with
      `appendfsync always`, and ask for no confirmation.
    - `codec`: "zstd" stores messages of more than 400 bytes compressed; every store reads them. It needs
      `pip install 'redis_history[zstd]'`.
    - `search`: "auto" (the server keeps a search index if it can), "require" or "off". `language`: the language of
      most messages, or "none" (docs/how-to/search.md). Use the same in all stores of a namespace.
    - `embedder`: search by meaning and words, with vectors of `vectors` numbers. "default" is a
      small model that needs no download, with 256 numbers: `pip install 'redis_history[semantic]'`. With `vectors`
      alone the store uses the index of other stores, which have an embedder.

    Any number of threads may share it. A forked process must
    create its own store.

    Any call may raise BackendUnavailableError (no answer in time: a write may have happened, and may be repeated with
    the same message ids), BackendRefusedError, UnsupportedServerError, StoreClosedError or CorruptDataError. Wrong
    arguments raise InvalidInputError before anything is sent.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str = "default",
        client: Any = None,
        backend: Backend | None = None,
        log_length: int = 10_000,
        poll_interval: float = 3.0,
        retry: RetryPolicy | None = None,
        ttl: float | None = None,
        max_messages: int | UnsetType | None = UNSET,
        max_conversations: int | UnsetType | None = UNSET,
        durability: Durability = "server",
        durability_timeout: float = 5.0,
        durable_server: bool = False,
        search: SearchMode = "auto",
        language: str = "english",
        embedder: Embedder | Literal["default"] | None = None,
        vectors: int | None = None,
        codec: Codec | None = None,
    ) -> None:
        function, field = meaning(embedder, vectors)
        options = self._options = Options(
            log_length, poll_interval, ttl, max_messages, max_conversations, durability, durability_timeout,
            search, language, function, field, codec=codec, durable_server=durable_server,
        )  # fmt: skip
        check_callback(function, "embedder")
        if retry is not None and not isinstance(retry, RetryPolicy):
            refuse(retry, "retry", "a RetryPolicy")
        self.namespace = namespace
        self._poll_interval = poll_interval
        if backend is not None:
            options.check_for_custom_backend(url, client, retry)
            if not isinstance(backend, Backend):
                refuse(backend, "backend", f"an object with the methods of {Backend.__name__}")
        else:
            from redis_history.store._sync._connect import open_backend  # redis-py takes long to import

            backend = open_backend(url, client, namespace, options, retry or RetryPolicy())
        self._backend: Backend = backend
        self._capabilities: Capabilities | None = None
        self._unopened: list[Feed] = []
        self._jobs: dict[Feed, Job] = {}
        self._runs = RunKeepers(backend)
        self._unfinished: set[Any] = set()  # ends of replies and runs
        self._exclusive = False

    @property
    def backend(self) -> Backend:
        """The backend, for operations without a method of the store: `store.backend.execute(operation)`."""
        return self._backend

    @property
    def capabilities(self) -> Capabilities:
        """The abilities and settings of the backend, read once, at the first access."""
        found = self._capabilities
        if found is None:
            found = self._capabilities = self._backend.capabilities()
        return found

    def subscribe(self, conversation_id: str, *, after: Cursor | str | None = None) -> Subscription:
        """The changes of a conversation after the cursor `after` (None: from now on), in order, each once. The
        conversation need not exist yet.

        See `Subscription`. Cursors come from events, subscriptions and snapshots. If the change log no longer
        reaches back to the cursor, or the conversation was replaced, a Reset comes first. Raises InvalidCursorError.
        """
        check_conversation_id(conversation_id)
        subscription = Subscription(self._backend, conversation_id, Cursor.of(after), self._poll_interval)
        self._start(subscription)
        return subscription

    def subscribe_all(self, *, after: Mapping[str, Cursor | str] | None = None) -> NamespaceSubscription:
        """The changes of all conversations of the namespace, including later ones, each as in `subscribe`.

        `after` has cursors by conversation id, such as `cursors` of an earlier subscription: it returns the changes
        after them, and all changes of other conversations. None: from now on. Raises InvalidCursorError. It begins by
        reading the newest change of every conversation: about a second for 10,000.
        """
        subscription = NamespaceSubscription(self._backend, cursors_of(after), self._poll_interval)
        self._start(subscription)
        return subscription

    def on_change(
        self,
        conversation_id: str,
        callback: Callable[[Event], object],
        *,
        after: Cursor | str | None = None,
        on_error: Callable[[Exception, Event | None], None] | None = None,
    ) -> Callable[[], None]:
        """Call the plain function `callback` with each change after the cursor `after` (None: from now
        on), in order, in the background.

        The returned function ends it. `on_error` (by default the log) receives errors of the callback, and of reading,
        then without an event. The callback is called again for the next change. Raises ConfigurationError for an object
        that cannot be called.
        """
        check_callback(callback, "callback", optional=False)
        check_function(on_error, "on_error", plain=True)
        subscription = self.subscribe(conversation_id, after=after)
        subscription.open()

        def report(error: Exception, event: Event | None) -> None:
            if on_error is not None:
                try:
                    on_error(error, event)
                    return
                except Exception:
                    _logger.exception("the on_error of a callback for %s failed", subscription._subject)
            _logger.error("a callback for %s failed", subscription._subject, exc_info=error)

        def run() -> None:
            while not subscription.closed:
                try:
                    event = subscription.get()
                except Exception as error:  # noqa: BLE001 -- such as a withdrawn permission, which may return
                    report(error, None)
                    subscription._sleep(self._poll_interval)
                    continue
                if event is not None:
                    try:
                        resolve(callback(event))
                    except Exception as error:  # noqa: BLE001 -- a callback may raise anything
                        report(error, event)

        job = self._jobs[subscription] = spawn(run, "redis_history-callback")

        def unsubscribe() -> None:
            self._jobs.pop(subscription, None)
            subscription.close()
            job.stop()

        return unsubscribe

    def run(
        self, conversation_id: str, *, agent_name: str | None = None, wait: float = 0.0, cancel: bool = False
    ) -> Run:
        """The right of one agent to work on a conversation, for the time of an `with` block::

            with store.run(conversation_id, agent_name="support", wait=30) as run:
                messages = store.get(conversation_id)
                with run.stream() as reply:
                    ...

        At most one run of a conversation is active. Entering the block waits up to `wait` seconds for the others that
        came first, in the order of arrival, and then raises RunBusyError. The conversation need not exist yet. See
        `Run`. Messages can always be written outside of runs, for example those of users.

        `agent_name` is shown to others, for example in RunBusyError. `cancel`: `stop_run` also cancels the task that
        entered the block, which then raises RunStopped.
        """
        return Run(self, conversation_id, agent_name, wait, cancel)

    def exclusive(self) -> Self:
        """Return this store for code that is unaware of runs, such as an adapter of a framework. Its writes to a
        conversation are fenced, as writes of the run whose block encloses the call::

            with store.run(conversation_id, wait=30):
                Runner.run(agent, text, session=AgentsSession(conversation_id, store.exclusive()))

        Writes outside of such a block raise RunLostError, as do forks and imports of exports, which do not have a run.
        Reads are those of this store, which it shares all with.
        """
        store = copy(self)
        store._exclusive = True
        return store

    def stop_run(self, conversation_id: str, *, run_id: str | None = None, reason: str | None = None) -> bool:
        """Ask the active run of a conversation to stop, from any process; returns whether there was one. With `run_id`
        only that run.

        Its holder sees it within 100 milliseconds: `run.stop_requested` is true, and `run.check()` raises RunStopped.
        `reason` is text of up to 1,000 characters, for the holder and for `get_run`.
        """
        check_conversation_id(conversation_id)
        check_name(run_id, "run_id")
        check_name(reason, "reason")
        if reason is not None and len(reason) > _MAX_REASON:
            refuse(reason, "reason", f"at most {_MAX_REASON:,} characters", InvalidInputError)
        while True:
            info = self.get_run(conversation_id)
            if info is None or not info.is_active or run_id not in (None, info.run_id):
                return False
            # The id is named, so that a late copy of this call stops no later run.
            if (self._backend.execute(StopRun(conversation_id, info.run_id, reason))).done:
                return True

    def get_run(self, conversation_id: str) -> RunInfo | None:
        """Return the newest run of a conversation, with its agent and the waiting agents, or None before its first
        run."""
        check_conversation_id(conversation_id)
        return (self._backend.execute(ReadRun(conversation_id))).run

    def _start(self, subscription: Feed) -> None:
        if not open_without_await(subscription):
            # It begins when it is first used. A write of this store before that begins it first.
            self._unopened = [waiting for waiting in self._unopened if not waiting.opened]
            self._unopened.append(subscription)

    def close(self) -> None:
        """End subscriptions and callbacks, and close connections. Later calls raise StoreClosedError, and so may
        running ones, whose writes may be stored."""
        completed(self._close)

    def _close(self) -> None:
        wait_for_unfinished(self._unfinished)
        for subscription, job in [*self._jobs.items()]:
            subscription.close()
            job.stop()
            self._jobs.pop(subscription, None)
        self._runs.close()
        self._backend.close()

    def __enter__(self) -> HistoryStore:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
