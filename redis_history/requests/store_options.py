"""The options of a store, checked, and as each backend takes them."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Final, Literal, Protocol, get_args

from msgspec import UNSET, Struct, UnsetType

from redis_history._validation import check_choice, check_function, check_integer, check_seconds
from redis_history._words import check_language
from redis_history.errors import ConfigurationError
from redis_history.model.wire import check_zstd

#: Seconds; a hundred years, and far from what a server's clock can hold.
MAX_TTL: Final = 3_155_760_000.0
#: How subscribers hear of changes: by the server's notifications, by what writers publish, or by looking only; "auto":
#: by notifications if the server makes them, else by what writers publish if they do, else by looking.
Doorbell = Literal["auto", "keyspace", "publish", "poll"]
DOORBELLS: Final[tuple[str, ...]] = get_args(Doorbell)
#: Seconds; an hour.
MAX_DURABILITY_TIMEOUT: Final = 3600.0
SearchMode = Literal["auto", "require", "off"]
#: A write waits until the server, its disk, or other servers have it.
Durability = Literal["server", "fsync", "replicas"]
Compress = Literal["zstd"]


class Embedder(Protocol):
    """From texts to vectors, one for each, in order, all of one dimension. A plain function or a coroutine function;
    the synchronous store takes the plain one only. It may be called from several threads."""

    def __call__(self, texts: Sequence[str], /) -> Sequence[Sequence[float]] | Awaitable[Sequence[Sequence[float]]]: ...


class VectorField(Struct, frozen=True):
    """Vectors of `dimension` numbers, 1 to 32,768. With the distance "cosine" they are stored as 16-bit floats where
    the server has these (RediSearch 2.10), else as 32-bit floats.

    `algorithm`: "flat" compares with each (exact, for up to some 100,000 messages in the namespace), "hnsw" with few.
    `distance`: "cosine", "l2" or "ip". Raises ConfigurationError.
    """

    dimension: int
    algorithm: Literal["flat", "hnsw"] = "flat"
    distance: Literal["cosine", "l2", "ip"] = "cosine"

    def __post_init__(self) -> None:
        check_integer(self.dimension, "dimension", 1, 32_768)
        check_choice(self.algorithm, "algorithm", ("flat", "hnsw"))
        check_choice(self.distance, "distance", ("cosine", "l2", "ip"))


def meaning(
    embedder: Embedder | Literal["default"] | None, vectors: VectorField | int | None
) -> tuple[Embedder | None, VectorField | None]:
    """The embedder and its vectors. Raises ConfigurationError, MissingExtraError."""
    field = VectorField(vectors) if isinstance(vectors, int) else vectors
    if embedder != "default":
        return embedder, field
    from redis_history.requests import static_embedder  # here, because few need it

    static_embedder.check_semantic()
    field = field or VectorField(static_embedder.DIMENSION)
    if field.dimension != static_embedder.DIMENSION:
        raise ConfigurationError(
            f"embedder='default' makes vectors of {static_embedder.DIMENSION} numbers, not of {field.dimension}: "
            "leave vectors out"
        )
    return static_embedder.embed, field


class Options(Struct, frozen=True):
    """The options of a store, checked. Raises ConfigurationError for what makes no sense."""

    log_length: int
    poll_interval: float
    ttl: float | None = None
    max_messages: int | UnsetType | None = UNSET
    max_conversations: int | UnsetType | None = UNSET
    durability: Durability = "server"
    replicas: int | None = None
    durability_timeout: float = 5.0
    search: SearchMode = "auto"
    language: str = "english"
    embedder: Embedder | None = None
    vectors: VectorField | None = None
    #: Seconds that a search of all conversations waits for an index that the server is filling.
    search_wait: float = 10.0
    doorbell: str = "auto"
    compress: Compress | None = None

    def __post_init__(self) -> None:
        check_choice(self.durability, "durability", get_args(Durability))
        check_integer(self.replicas, "replicas", 1, optional=True)
        if self.replicas is not None and self.durability != "replicas":
            raise ConfigurationError(f"replicas={self.replicas} needs durability='replicas', not {self.durability!r}")
        check_seconds(self.durability_timeout, "durability_timeout", most=MAX_DURABILITY_TIMEOUT)
        check_integer(self.log_length, "log_length", 1)
        check_seconds(self.poll_interval, "poll_interval", 0, above=True)
        check_seconds(self.ttl, "ttl", most=MAX_TTL, optional=True)
        for name in ("max_messages", "max_conversations"):
            if (value := getattr(self, name)) is not UNSET:
                check_integer(value, name, 1, optional=True)
        check_choice(self.doorbell, "doorbell", DOORBELLS)
        check_choice(self.compress, "compress", (None, *get_args(Compress)))
        if self.compress is not None:
            check_zstd()
        check_choice(self.search, "search", get_args(SearchMode))
        check_language(self.language)
        if self.embedder is not None and self.vectors is None:
            raise ConfigurationError("an embedder needs the dimension of its vectors: embedder=..., vectors=384")
        check_function(self.embedder, "embedder", "a function from texts to vectors")

    def check_for_custom_backend(self, *others: Any) -> None:
        """Raises ConfigurationError for what a backend of the caller's own decides itself."""
        self._check_without_server("a backend of your own")
        capped = self.max_messages is not UNSET or self.max_conversations is not UNSET
        own = self.ttl is not None or capped or self.doorbell != "auto"
        if any(other is not None for other in others) or own:
            raise ConfigurationError(
                "with backend=, give no url, client, retry, ttl, max_messages, max_conversations or doorbell: "
                "they are the backend's own"
            )
        self.check_without_server()

    def check_without_server(self) -> None:
        """Raises ConfigurationError for what only a server with search has."""
        if self.search == "require" or self.embedder is not None:
            raise ConfigurationError("search='require' and embedder= are for a Redis server with search")

    def for_memory(self) -> dict[str, Any]:
        """As the memory backend takes them; its own defaults for those not given."""
        self._check_without_server("memory://")
        if self.doorbell != "auto":
            raise ConfigurationError("doorbell is for servers; subscriptions to memory:// hear of changes directly")
        given: dict[str, Any] = {"log_length": self.log_length, "ttl": self.ttl}
        for name in ("max_messages", "max_conversations"):
            if (value := getattr(self, name)) is not UNSET:
                given[name] = value
        return given

    def _check_without_server(self, backend: str) -> None:
        if self.durability != "server":
            raise ConfigurationError(f"durability={self.durability!r} needs a server, which {backend} is not")
        if self.compress is not None:
            raise ConfigurationError(f"compress={self.compress!r} needs a server, which {backend} is not")

    def for_redis(self) -> int | None:
        """`max_messages` as the Redis backend takes it, which has no other cap."""
        if self.max_conversations is not UNSET and self.max_conversations is not None:
            raise ConfigurationError("max_conversations is for memory://; on a server use ttl")
        return None if isinstance(self.max_messages, UnsetType) else self.max_messages
