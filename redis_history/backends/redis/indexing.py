"""The search index of a namespace: made when first needed, made anew when it is lost, moved when its form changes.

Searches go through an alias. An index of another form (language, vectors) is built beside the one in use, over the
same documents, and the alias moves when the server has filled it; until then the former one answers. Pure: no I/O here.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from redis.exceptions import ResponseError

from redis_history._words import LANGUAGES, UNSTEMMED
from redis_history.backends.redis.calls import Pause, Settings, Steps, plain
from redis_history.backends.redis.failures import is_transient
from redis_history.backends.redis.keys import Keyspace
from redis_history.errors import BackendError, CapabilityError, CorruptDataError
from redis_history.model import Message
from redis_history.search.redisearch import VECTOR, create_arguments, document
from redis_history.search.vectors import VectorField

__all__ = [
    "IndexState",
    "SearchIndex",
    "Searching",
    "create_index",
    "fill_index",
    "is_refusal",
    "read_index_form",
    "read_index_info",
    "use_index",
]

_logger = logging.getLogger("redis_history")

#: Raised with each change of what a document holds: then the index has another name, and documents are written anew.
DOCUMENT_VERSION: Final = 1
#: Seconds between looks at an index that the server is still filling.
_LOOK: Final = 0.05


@dataclass(frozen=True, slots=True)
class Searching:
    """How a store searches. `required`: by the server or not at all."""

    language: str = "english"
    vector: VectorField | None = None
    required: bool = False

    def document(self, message: Message, vector: bytes = b"") -> list[bytes]:
        """The fields and values of a message's search document; its vector, if it has one."""
        fields = document(message)
        return [*fields, VECTOR, vector] if vector else fields


class SearchIndex:
    """What a backend knows of its index. `form`: what it is to be like."""

    def __init__(self, form: Searching) -> None:
        self.form = form
        #: Whether the server searches; None before the first call.
        self.works: bool | None = None
        #: Whether searches go to the index of this form, and not yet to a former one.
        self.settled = False


class IndexState(NamedTuple):
    """`share` of the documents that are in the index, 0 to 1; `complete`: all of them."""

    name: bytes
    documents: int
    share: float
    complete: bool


def create_index(keyspace: Keyspace, searching: Searching) -> tuple[bytes, list[bytes]]:
    """The name of the index of this form, and the command that makes it."""
    command = create_arguments(b"", [keyspace.documents], language=searching.language, vector=searching.vector)
    form = hashlib.sha256(b"\0".join(command)).hexdigest()[:8].encode()
    name = b"%b:%d:%b" % (keyspace.index, DOCUMENT_VERSION, form)
    command[1] = name
    return name, command


def read_index_info(reply: Any) -> IndexState:
    """The reply to FT.INFO, RESP2 or RESP3."""
    try:
        info = _fields(reply)
        share = float(info[b"percent_indexed"])
        complete = float(info[b"indexing"]) == 0 and share >= 1
        return IndexState(info[b"index_name"], int(info[b"num_docs"]), share, complete)
    except (TypeError, ValueError, KeyError) as error:
        raise CorruptDataError(f"this is no reply to FT.INFO: {str(reply)[:200]}") from error


def read_index_form(keyspace: Keyspace, reply: Any) -> Searching | None:
    """How the stores search whose index this is, from the reply to FT.INFO; None for an index of another version."""
    info = _fields(reply)
    name, vector = info.get(b"index_name"), None
    for attribute in info.get(b"attributes", ()):
        said = _fields([*attribute, b""] if isinstance(attribute, list) and len(attribute) % 2 else attribute)
        if said.get(b"attribute") == VECTOR and said.get(b"type") == b"VECTOR":
            algorithm, distance = said[b"algorithm"].decode().lower(), said[b"distance_metric"].decode().lower()
            vector = VectorField(int(said[b"dim"]), algorithm, distance)
    every = (Searching(language, vector) for language in (*sorted(LANGUAGES), UNSTEMMED))
    return next((one for one in every if create_index(keyspace, one)[0] == name), None)


def _fields(reply: Any) -> Mapping[bytes, Any]:
    return reply if isinstance(reply, Mapping) else dict(zip(reply[::2], reply[1::2], strict=True))


def is_refusal(error: Exception) -> bool:
    """Whether an error is what the server said to this command, and no passing state or broken connection."""
    return isinstance(error.__cause__, ResponseError) and not is_transient(error.__cause__)


def use_index(settings: Settings) -> Steps[None]:
    """Look whether the server can search, and make the index. Raises CapabilityError if it is required and cannot be
    had."""
    index = settings.index
    if index is None:
        return
    found = yield from _ensure(index, settings.keyspace)
    if isinstance(found, str):
        if index.form.required:
            raise CapabilityError(
                f"search='require', but this server has no search ({found}): use Redis 8, Redis Stack or "
                "RediSearch, and database 0; or search='auto', which ranks one conversation at a time without it"
            )
        if index.works is not False:
            _logger.info("no search on this server (%s); conversations are ranked here", found)
    index.works = not isinstance(found, str)


def fill_index(settings: Settings, seconds: float) -> Steps[IndexState | None]:
    """Make the index if there is none, and wait until the server has filled it, for so long at most; how far it is, or
    None if this server has no search."""
    index = settings.index
    if index is None:
        return None
    found = yield from _ensure(index, settings.keyspace)
    waited = 0.0
    while not isinstance(found, str) and not found.complete and waited < seconds:
        yield Pause(_LOOK)
        waited += _LOOK
        found = yield from _ensure(index, settings.keyspace)
    return None if isinstance(found, str) else found


def _ensure(index: SearchIndex, keyspace: Keyspace) -> Steps[IndexState | str]:
    """Make the index if there is none; how far it is, or why this server has no search."""
    alias = keyspace.index
    name, command = create_index(keyspace, index.form)
    try:
        yield from _unless_there(*command)
        yield from _unless_there(b"FT.ALIASADD", alias, name)
        state = yield from _state(alias)
        if state.name != name:
            state = yield from _move(alias, state.name, name)
    except BackendError as error:
        if not is_refusal(error):
            raise
        return str(error.__cause__)
    index.settled = state.name == name
    return state


def _move(alias: bytes, former: bytes, name: bytes) -> Steps[IndexState]:
    state = yield from _state(name)
    if not state.complete:
        _logger.info("the search index %r is being built (%.0f %%)", name, 100 * state.share)
        return (yield from _state(alias))
    yield plain(b"FT.ALIASUPDATE", alias, name)
    try:
        yield plain(b"FT.DROPINDEX", former)
    except BackendError as error:
        if not is_refusal(error):
            raise
        # Another process was first.
        _logger.info("the former search index %r is not there any more: %s", former, error.__cause__)
    return state


def _state(name: bytes) -> Steps[IndexState]:
    return read_index_info((yield plain(b"FT.INFO", name)))


def _unless_there(*command: bytes) -> Steps[None]:
    try:
        yield plain(*command)
    except BackendError as error:
        if not is_refusal(error) or "exists" not in str(error.__cause__):
            raise
