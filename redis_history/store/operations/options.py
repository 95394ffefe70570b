"""The options of a store, checked, and as each backend takes them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal, Protocol, get_args

from msgspec import UNSET, Struct, UnsetType

from redis_history.errors import ConfigurationError, MissingExtraError
from redis_history.store.search.words import check_language
from redis_history.values._validation import (
    MAX_INTEGER,
    check_choice,
    check_function,
    check_integer,
    check_seconds,
    refuse,
)
from redis_history.values._zstd import check_zstd

#: Seconds. A hundred years, far below the limit of a server's clock.
MAX_TTL: Final = 3_155_760_000.0
#: Seconds.
MAX_DURABILITY_TIMEOUT: Final = 3600.0
SearchMode = Literal["auto", "require", "off"]
#: A write waits until the server, its disk, or other servers have it.
Durability = Literal["server", "fsync", "replicas"]
#: How messages are stored on the server; None: as they are.
Codec = Literal["zstd"]
#: Numbers in a vector of the default embedder, WordLlama (the extra `semantic`), which comes with its weights.
_DEFAULT_DIMENSION: Final = 256
#: RediSearch's limit.
MAX_DIMENSION: Final = 32_768


class Embedder(Protocol):
    """From texts to vectors, one for each, in order, all of one dimension. A plain function or a coroutine function;
    the synchronous store takes the plain one only. It may be called from several threads."""

    def __call__(self, texts: Sequence[str], /) -> Sequence[Sequence[float]] | Awaitable[Sequence[Sequence[float]]]: ...


def meaning(embedder: Embedder | Literal["default"] | None, vectors: int | None) -> tuple[Embedder | None, int | None]:
    """The embedder and the dimension of its vectors. Raises ConfigurationError, MissingExtraError."""
    if embedder != "default":
        return embedder, vectors
    if find_spec("wordllama") is None:
        raise MissingExtraError(
            "embedder='default' needs a package that is not installed: pip install 'redis_history[semantic]'"
        )
    if vectors not in (None, _DEFAULT_DIMENSION):
        raise ConfigurationError(
            f"embedder='default' makes vectors of {_DEFAULT_DIMENSION} numbers, not of {vectors}: leave vectors out"
        )
    return _embed, _DEFAULT_DIMENSION


@cache  # half a second
def _default_model() -> Any:
    import wordllama

    # By default it looks for its tokenizer in a folder where the package does not have it.
    return wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)


#: Everything but the Latin script and common signs. The default model knows the pieces of words of other scripts by
#: chance, so that its vectors would make a search of such texts worse than their words alone.
_UNKNOWN: Final = re.compile(r"[^\0-\u036f\u1e00-\u1eff\u2000-\u20cf\u2c60-\u2c7f\ua720-\ua7ff]+")
_LETTER: Final = re.compile(r"[^\W\d_]")


def _embed(texts: Sequence[str]) -> Sequence[Sequence[float]]:
    """The means of the vectors of each text's tokens, of length 1; zeros for a text without words that the model
    knows."""
    known = [_UNKNOWN.sub(" ", text) for text in texts]
    vectors: list[Sequence[float]] = _default_model().embed([text or " " for text in known], norm=True).tolist()
    none = [0.0] * _DEFAULT_DIMENSION
    return [
        vector if not _UNKNOWN.search(text) or _LETTER.search(left) else none
        for text, left, vector in zip(texts, known, vectors, strict=True)
    ]


class Options(Struct, frozen=True):
    """The options of a store, checked. Raises ConfigurationError for what makes no sense."""

    log_length: int
    poll_interval: float
    ttl: float | None = None
    max_messages: int | UnsetType | None = UNSET
    max_conversations: int | UnsetType | None = UNSET
    durability: Durability = "server"
    durability_timeout: float = 5.0
    search: SearchMode = "auto"
    language: str = "english"
    embedder: Embedder | None = None
    #: Numbers in a vector.
    vectors: int | None = None
    #: Seconds that a search of all conversations waits for an index that the server is filling.
    search_wait: float = 10.0
    codec: Codec | None = None
    durable_server: bool = False
    #: Seconds.
    audit: float | None = None

    def __post_init__(self) -> None:
        check_choice(self.durability, "durability", get_args(Durability))
        check_seconds(self.durability_timeout, "durability_timeout", most=MAX_DURABILITY_TIMEOUT)
        if type(self.durable_server) is not bool:
            refuse(self.durable_server, "durable_server", "True or False", ConfigurationError)
        if self.durable_server and self.durability != "fsync":
            raise ConfigurationError(
                f"durable_server=True needs durability='fsync', not {self.durability!r}: it says that the server "
                "acknowledges only durable writes"
            )
        check_integer(self.log_length, "log_length", 1, MAX_INTEGER)
        check_seconds(self.poll_interval, "poll_interval", 0, above=True)
        check_seconds(self.ttl, "ttl", most=MAX_TTL, optional=True)
        check_seconds(self.audit, "audit", 1, most=MAX_TTL, optional=True)
        for name in ("max_messages", "max_conversations"):
            if (value := getattr(self, name)) is not UNSET:
                check_integer(value, name, 1, optional=True)
        check_choice(self.codec, "codec", (None, *get_args(Codec)))
        if self.codec is not None:
            check_zstd()
        check_choice(self.search, "search", get_args(SearchMode))
        check_language(self.language)
        check_integer(self.vectors, "vectors", 1, MAX_DIMENSION, optional=True)
        check_function(self.embedder, "embedder", '"default", or a function from texts to vectors')
        if self.embedder is not None and self.vectors is None:
            raise ConfigurationError("an embedder needs the dimension of its vectors: embedder=..., vectors=384")

    def check_for_custom_backend(self, *others: Any) -> None:
        """Raises ConfigurationError for options that a custom backend has itself."""
        self._check_without_server("a custom backend")
        capped = self.max_messages is not UNSET or self.max_conversations is not UNSET
        own = self.ttl is not None or capped or self.audit is not None
        if any(other is not None for other in others) or own:
            raise ConfigurationError(
                "with backend=, give no url, client, retry, ttl, max_messages, max_conversations or audit: "
                "they are the backend's own"
            )

    def for_memory(self) -> dict[str, Any]:
        """As the memory backend takes them; options that were not given are left out."""
        self._check_without_server("memory://")
        caps = {"max_messages": self.max_messages, "max_conversations": self.max_conversations}
        given = {name: cap for name, cap in caps.items() if cap is not UNSET}
        return {"log_length": self.log_length, "ttl": self.ttl, "audit": self.audit, **given}

    def _check_without_server(self, backend: str) -> None:
        for name, is_set in (
            ("durability", self.durability != "server"),
            ("codec", self.codec is not None),
            ("search", self.search == "require"),
            ("embedder", self.embedder is not None),
        ):
            if is_set:
                value = repr(getattr(self, name))[:80]
                raise ConfigurationError(f"{name}={value} needs a Redis server, which {backend} is not")

    def for_redis(self) -> int | None:
        """`max_messages` as the Redis backend takes it, which has no other cap."""
        if self.max_conversations is not UNSET and self.max_conversations is not None:
            raise ConfigurationError("max_conversations is for memory://; on a server use ttl")
        return None if isinstance(self.max_messages, UnsetType) else self.max_messages
