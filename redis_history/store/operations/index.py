"""The search index of a namespace.

Searches use an alias. If the form changes (language, vectors), a new index is built over the same documents, and the
alias moves to it when the server has filled it. Until then the former index answers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from msgspec import Struct

from redis_history.errors import BackendError, CapabilityError, CorruptDataError
from redis_history.store.operations.base import ByNode, Op, Pause, Steps, as_map, plain
from redis_history.store.operations.keys import Keyspace
from redis_history.store.operations.settings import SearchIndex, Searching, Settings
from redis_history.store.search.redisearch import VECTOR
from redis_history.store.search.words import LANGUAGES, UNSTEMMED

_logger = logging.getLogger("redis_history")

#: Seconds between checks of an index that the server is still filling.
_CHECK_SECONDS: Final = 0.05


class MakeIndex(Struct, Op[float | None], frozen=True):
    """Create the search index if necessary, and wait up to `seconds` for it. The outcome is the share that is
    filled."""

    seconds: float = 0.0

    def steps(self, settings: Settings) -> Steps[float | None]:
        state = yield from fill_index(settings, self.seconds, anew=True)
        return None if state is None else state.share


class IndexState(NamedTuple):
    """`share`: of documents in the index, 0 to 1; `complete`: all are."""

    name: bytes
    documents: int
    share: float
    complete: bool


def together(states: Sequence[IndexState]) -> IndexState:
    """The indexes of several nodes as one."""
    documents, share = sum(state.documents for state in states), min(state.share for state in states)
    return IndexState(states[0].name, documents, share, all(state.complete for state in states))


def read_index_info(reply: Any) -> IndexState:
    """The reply to FT.INFO, RESP2 or RESP3."""
    try:
        info = as_map(reply)
        share = float(info[b"percent_indexed"])
        complete = float(info[b"indexing"]) == 0 and share >= 1
        return IndexState(info[b"index_name"], int(info[b"num_docs"]), share, complete)
    except (TypeError, ValueError, KeyError) as error:
        raise CorruptDataError(f"unreadable reply to FT.INFO: {str(reply)[:200]}") from error


def read_index_form(keyspace: Keyspace, reply: Any) -> Searching | None:
    """The form of an index, from the reply to FT.INFO; None for an index of another version."""
    info = as_map(reply)
    name, vectors = info.get(b"index_name", b""), None
    for attribute in info.get(b"attributes", ()):
        field = as_map([*attribute, b""] if isinstance(attribute, list) and len(attribute) % 2 else attribute)
        if field.get(b"attribute") == VECTOR and field.get(b"type") == b"VECTOR":
            vectors = int(field[b"dim"])
    every = (Searching(language, vectors) for language in (*sorted(LANGUAGES), UNSTEMMED))
    return next((one for one in every if name.endswith(one.index(keyspace)[0])), None)


def is_refusal(error: Exception) -> bool:
    """Whether the server refused this command, and a retry would not help."""
    from redis.exceptions import ResponseError  # here, so that redis-py is imported by the first call

    from redis_history.store.operations.failures import is_transient

    return isinstance(error.__cause__, ResponseError) and not is_transient(error.__cause__)


def is_moving(error: object) -> bool:
    """Whether the error says that a slot of the cluster moves, so that two nodes have documents."""
    from redis.exceptions import AskError, TryAgainError

    return isinstance(error, AskError | TryAgainError)


def has_moved(reply: object) -> bool:
    """Whether it is the error that another node of the cluster has the slot."""
    from redis.exceptions import MovedError

    return isinstance(reply, MovedError)


def use_index(settings: Settings, *, lost: bool = False) -> Steps[None]:
    """Check whether the server can search, and create the index. With `lost`, create it on every node that lacks it.
    Raises CapabilityError if a required index cannot be created."""
    index = settings.index
    if index is None:
        return
    found = yield from _ensure_all(index, settings.database, anew=lost)
    index.why = found if isinstance(found, str) else ""
    if isinstance(found, str):
        if index.form.required:
            raise CapabilityError(
                f"search='require', but this server has no search ({found}): use Redis 8, Redis Stack or "
                "RediSearch, and database 0; or search='auto', which ranks the newest messages itself without it"
            )
        if index.works is not False:
            _logger.info("no search on this server (%s); the store ranks conversations itself", found)
    index.works = not isinstance(found, str)


def fill_index(settings: Settings, seconds: float, *, anew: bool = False) -> Steps[IndexState | None]:
    """Create the index if necessary, and wait up to `seconds` until the server has filled it. Returns its state, or
    None on a server without search. `anew`: see `_ensure_all`."""
    index = settings.index
    if index is None:
        return None
    found = yield from _ensure_all(index, settings.database, anew=anew)
    waited = 0.0
    while not isinstance(found, str) and not found.complete and waited < seconds:
        yield Pause(_CHECK_SECONDS)
        waited += _CHECK_SECONDS
        found = yield from _ensure_all(index, settings.database)
    return None if isinstance(found, str) else found


def _ensure_all(index: SearchIndex, database: int, *, anew: bool = False) -> Steps[IndexState | str]:
    """Create the index where it is missing. Returns the state of all nodes, or why this server cannot search.

    With `anew`, create it also where the server says that there is one: in a cluster of Redis 8, one node answers
    FT.INFO for all, and a node that has joined since lacks the index.
    """
    states: list[IndexState] = []
    settled = True
    if index.unusable:
        return index.unusable
    if database:  # RediSearch indexes database 0 alone, but shows its indexes in all
        return f"the store uses database {database}"
    if anew:
        index.nodes = None
    aliases = yield from find_indexes(index)
    replies = yield [plain(b"FT.INFO", alias, errors=True) for alias in aliases]
    for alias, reply in zip(aliases, replies, strict=True):
        name = alias + index.ending
        if is_moving(reply):
            index.nodes = None
            states.append(IndexState(name, 0, 0.0, False))
            continue
        state = None if isinstance(reply, Exception) else read_index_info(reply)
        if anew or state is None or state.name != name:
            found = yield from _ensure(alias, name, [index.create[0], name, *index.create[2:]])
            if not isinstance(found, str):
                state = found
            elif state is None or state.name != name:  # else this user may only search
                return found
        settled = settled and state.name == name
        states.append(state)
    index.settled = settled
    return together(states)


def find_indexes(index: SearchIndex) -> Steps[list[bytes]]:
    """The alias of each index. Without a coordinator (Redis before 8), each node of a cluster has its own, and commands
    must name it in a slot of this node. So the name has the tag of a bucket of the node, and is found by trying all
    its buckets."""
    if len(index.names) == 1:
        return index.names
    if index.nodes is None:
        keys = yield [plain(b"COMMAND", b"GETKEYS", b"FT.SEARCH", index.names[0], b"*", errors=True)]
        if "no key" in str(keys[0]):  # a coordinator: the node that is asked asks the others
            index.use_any_node()
            return index.names
    nodes = yield ByNode(index.names)
    if nodes != index.nodes:
        replies = yield [plain(b"FT.INFO", name, errors=True) for name in index.names]
        pairs = zip(index.names, replies, strict=True)
        there = {name: one for name, one in pairs if is_moving(one) or not isinstance(one, Exception)}
        for names in nodes:
            alias, *others = [name for name in names if name in there] or names[:1]
            index.aliases.update(dict.fromkeys(names, alias))
            for other in others:  # nodes have exchanged slots; one index of a node suffices
                if not isinstance(there[other], Exception):
                    yield [plain(b"FT.DROPINDEX", read_index_info(there[other]).name, errors=True)]
        index.nodes = nodes
    return [*dict.fromkeys(index.aliases.values())]


def _ensure(alias: bytes, name: bytes, command: list[bytes]) -> Steps[IndexState | str]:
    """Create one index if it is missing. Returns its state, or why this server cannot search."""
    try:
        yield from _unless_exists(*command)
        yield from _unless_exists(b"FT.ALIASADD", alias, name)
        state = yield from _state(alias)
        if state.name != name:
            state = yield from _move(alias, state.name, name)
    except BackendError as error:
        if not is_refusal(error):
            raise
        return str(error.__cause__)
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
        _logger.info("another process dropped the former search index %r: %s", former, error.__cause__)
    return state


def _state(name: bytes) -> Steps[IndexState]:
    return read_index_info((yield plain(b"FT.INFO", name)))


def _unless_exists(*command: bytes) -> Steps[None]:
    try:
        yield plain(*command)
    except BackendError as error:
        if not is_refusal(error) or "exists" not in str(error.__cause__):
            raise
