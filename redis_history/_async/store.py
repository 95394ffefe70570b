"""The conversation store: what users call. It checks, asks a backend, and shapes the answer."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from msgspec import UNSET, UnsetType

from redis_history._async._backend import open_backend
from redis_history._async._feed import AsyncFeed
from redis_history._async._runtime import Job
from redis_history._async.compacting import AsyncCompacting
from redis_history._async.reading import AsyncReading
from redis_history.backends.base import AsyncBackend, AsyncDescribes
from redis_history.capabilities import Capabilities
from redis_history.requests.options import Doorbell, Durability, Embedder, Options, SearchMode, VectorField
from redis_history.retry import RetryPolicy

__all__ = ["AsyncHistoryStore"]


class AsyncHistoryStore(AsyncCompacting, AsyncReading):
    """Conversations in one namespace of one backend.

    `url` says where: `redis://`, `rediss://` or `unix://` (a server), `redis+cluster://` or `redis+sentinel://`
    (several: docs/how-to/cluster.md), `embedded://` (a private one, started when first needed), `memory://` (this
    process). Instead, `client` takes a redis-py client, which stays the caller's to close,
    and `backend` any object with the methods of `backends.base`. Nothing is connected before the first call.

    `log_length` is how many changes of a conversation are kept for subscribers that were away. `poll_interval` is
    how many seconds a subscription trusts in being told of changes before it looks by itself. `retry` says how long a
    call keeps trying while the server is away.

    `ttl` lets a conversation end, with all that belongs to it, so many seconds after its last change; who changes it
    without a `ttl` of its own keeps to the conversation's. `max_messages` keeps the newest of a conversation: with
    each change the oldest leave, a tool call together with its result. `max_conversations` is for `memory://`, whose
    caps are 500 and 500 unless others (None: no cap) are given.

    `doorbell` says how subscriptions hear of changes: by the server's notifications ("keyspace"), by what the writers
    publish ("publish", to be given to them too), only by looking ("poll"), or by what there is ("auto").

    `durability` says what a write waits for: "server" (the server has it), "fsync" (the server's disk has it) or
    "replicas" (so many `replicas` have it, one if not given). If that is not confirmed within `durability_timeout`
    seconds, DurabilityError; if the server cannot confirm it at all, CapabilityError before anything is written.

    `search` says whether the server keeps a search index: "auto" if it can, "require" or fail, "off". `language` is
    that of most messages, or "none" (docs/how-to/search.md); all stores of a namespace name the same. With an
    `embedder`, from a list of texts to a list of vectors of `vectors` numbers each, search goes by meaning as well as
    by words.

    Any call may raise BackendUnavailableError (no answer in time; a write may have happened, and may be repeated with
    the same message ids), BackendRefusedError, UnsupportedServerError or StoreClosedError. Bad arguments raise
    InvalidInputError, and then nothing was sent.
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
        """The backend, for operations that the store has no method for."""
        return self._backend

    @property
    async def capabilities(self) -> Capabilities:
        """What the backend can do and is set to. The server is asked once, when this is first read."""
        found = self._capabilities
        if found is None:
            backend = self._backend
            found = await backend.capabilities() if isinstance(backend, AsyncDescribes) else Capabilities("custom")
            self._capabilities = found
        return found

    async def aclose(self) -> None:
        """End callbacks and give back connections. Subscriptions end; later calls raise StoreClosedError. Calls under
        way end with their outcome or with that: what they were to write may be stored then."""
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
