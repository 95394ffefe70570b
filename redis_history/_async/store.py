"""The conversation store. It checks arguments, calls a backend, and shapes the answer."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from msgspec import UNSET, UnsetType

from redis_history._async._connect import open_backend
from redis_history._async._runtime import Job
from redis_history._async.reading import AsyncReading
from redis_history._async.subscription import AsyncFeed
from redis_history._async.writing import AsyncWriting
from redis_history.backends.base import AsyncBackend, AsyncDescribes
from redis_history.capabilities import Capabilities
from redis_history.requests.store_options import Doorbell, Durability, Embedder, Options, SearchMode, VectorField
from redis_history.retry import RetryPolicy


class AsyncHistoryStore(AsyncWriting, AsyncReading):
    """Conversations in one namespace of one backend.

    `url` is `redis://`, `rediss://` or `unix://` (a server), `redis+cluster://` or `redis+sentinel://` (several:
    docs/how-to/cluster.md), `embedded://` (a private server, started when first needed) or `memory://` (this process).
    Instead, `client` takes a redis-py client, which the caller closes, and `backend` any object with the methods of
    `backends.base`. The first call connects.

    `log_length` is the number of changes of a conversation that are kept for subscribers that were away. Subscriptions
    also poll every `poll_interval` seconds. `retry` says how long a call keeps trying while the server is unavailable.

    `ttl` removes a conversation with all its data so many seconds after its last change; a store without a `ttl` keeps
    that of the conversation. `max_messages` keeps the newest messages of a conversation: each change removes the
    oldest, a tool call together with its result. `max_conversations` is for `memory://`, whose caps are 500 and 500
    unless others (None: no cap) are given.

    `doorbell` says how subscriptions learn about changes: from the server's notifications ("keyspace"), from messages
    that writers publish ("publish", which all stores must set), only by polling ("poll"), or as available ("auto").

    `durability` says what a write waits for: "server" (the server has it), "fsync" (its disk has it) or "replicas"
    (`replicas` servers have it, one by default). Without confirmation within `durability_timeout` seconds,
    DurabilityError; if the server cannot confirm it at all, CapabilityError before the write.

    `search` is "auto" (the server keeps a search index if it can), "require" or "off". `language` is that of most
    messages, or "none" (docs/how-to/search.md), and the same in all stores of a namespace. With an `embedder`, from a
    list of texts to a list of vectors of `vectors` numbers each, search uses meaning and words.

    Any call may raise BackendUnavailableError (no answer in time; a write may have happened, and may be repeated with
    the same message ids), BackendRefusedError, UnsupportedServerError or StoreClosedError. Wrong arguments raise
    InvalidInputError before anything is sent.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str = "default",
        client: Any = None,
        backend: AsyncBackend | None = None,
        log_length: int = 1000,
        poll_interval: float = 3.0,
        retry: RetryPolicy | None = None,
        ttl: float | None = None,
        max_messages: int | UnsetType | None = UNSET,
        max_conversations: int | UnsetType | None = UNSET,
        durability: Durability = "server",
        replicas: int | None = None,
        durability_timeout: float = 5.0,
        search: SearchMode = "auto",
        language: str = "english",
        embedder: Embedder | None = None,
        vectors: VectorField | int | None = None,
        doorbell: Doorbell = "auto",
    ) -> None:
        options = self._options = Options(
            log_length,
            poll_interval,
            ttl,
            max_messages,
            max_conversations,
            durability,
            replicas,
            durability_timeout,
            search,
            language,
            embedder,
            VectorField(vectors) if isinstance(vectors, int) else vectors,
            doorbell=doorbell,
        )
        self.namespace = namespace
        self._poll_interval = poll_interval
        if backend is not None:
            options.check_for_custom_backend(url, client, retry)
        self._backend = backend or open_backend(url, client, namespace, options, retry or RetryPolicy())
        self._capabilities: Capabilities | None = None
        self._unopened: list[AsyncFeed] = []
        self._jobs: dict[AsyncFeed, Job] = {}

    @property
    def backend(self) -> AsyncBackend:
        """The backend, for operations without a method of the store."""
        return self._backend

    @property
    async def capabilities(self) -> Capabilities:
        """The abilities and settings of the backend, read once."""
        found = self._capabilities
        if found is None:
            backend = self._backend
            found = await backend.capabilities() if isinstance(backend, AsyncDescribes) else Capabilities("custom")
            self._capabilities = found
        return found

    async def aclose(self) -> None:
        """End subscriptions and callbacks, and close connections. Later calls raise StoreClosedError. Running calls end
        with their outcome or with that error; their writes may be stored then."""
        while self._jobs:
            subscription, job = self._jobs.popitem()
            await subscription.aclose()
            await job.stop()
        await self._backend.aclose()

    async def __aenter__(self) -> AsyncHistoryStore:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
