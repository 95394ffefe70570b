"""The search index of a namespace and the documents in it. Pure: no I/O here.

Searches go through an alias. An index of another form (language, vectors) is built over the
same documents, and the alias moves when the server has filled it. Until then the former one answers."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final, NamedTuple

from redis.exceptions import AskError, ResponseError

from redis_history._words import LANGUAGES, UNSTEMMED
from redis_history.backends.redis.calls import (
    INDEX,
    MARK,
    PURGE,
    Call,
    DocumentOf,
    Pause,
    SearchIndex,
    Searching,
    Settings,
    Steps,
    as_is,
    change_header,
    plain,
)
from redis_history.backends.redis.failures import is_transient
from redis_history.backends.redis.keys import ConversationKeys, IndexPart, Keyspace, field_of, pack_keys
from redis_history.errors import BackendError, CapabilityError, CorruptDataError
from redis_history.operations import Append, Restore
from redis_history.requests.store_options import VectorField
from redis_history.search.redisearch import HALF_VECTOR, VECTOR, create_arguments
from redis_history.search.text import chunk_length

_logger = logging.getLogger("redis_history")

#: Raised with each change of what a document holds: then the index has another name, and documents are written anew.
DOCUMENT_VERSION: Final = 1

#: Seconds between looks at an index that the server is still filling.
_LOOK: Final = 0.05


class IndexState(NamedTuple):
    """`share` of the documents that are in the index, 0 to 1; `complete`: all of them. `each`: those of each part."""

    name: bytes
    documents: int
    share: float
    complete: bool
    each: tuple[int, ...] = ()


def together(states: Sequence[IndexState]) -> IndexState:
    """The parts of an index as one."""
    each, share = tuple(state.documents for state in states), min(state.share for state in states)
    return IndexState(states[0].name, sum(each), share, all(state.complete for state in states), each)


def create_index(part: IndexPart, searching: Searching) -> tuple[bytes, list[bytes]]:
    """The name of the index of this form, and the command that makes it."""
    command = create_arguments(
        b"", [part.documents], language=searching.language, vector=searching.vector, half=searching.half
    )
    form = hashlib.sha256(b"\0".join(command)).hexdigest()[:8].encode()
    name = b"%b:%d:%b" % (part.name, DOCUMENT_VERSION, form)
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


def read_index_form(part: IndexPart, reply: Any) -> Searching | None:
    """How the stores search whose index this is, from the reply to FT.INFO; None for an index of another version."""
    info = _fields(reply)
    name, vector = info.get(b"index_name"), None
    for attribute in info.get(b"attributes", ()):
        said = _fields([*attribute, b""] if isinstance(attribute, list) and len(attribute) % 2 else attribute)
        if said.get(b"attribute") in (VECTOR, HALF_VECTOR) and said.get(b"type") == b"VECTOR":
            algorithm, distance = said[b"algorithm"].decode().lower(), said[b"distance_metric"].decode().lower()
            vector = VectorField(int(said[b"dim"]), algorithm, distance)
    languages = (*sorted(LANGUAGES), UNSTEMMED)
    every = (Searching(language, vector, halved=halved) for language in languages for halved in (True, False))
    return next((one for one in every if create_index(part, one)[0] == name), None)


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
    found = yield from _ensure_all(index)
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
    None without search on this server."""
    index = settings.index
    if index is None:
        return None
    found = yield from _ensure_all(index)
    waited = 0.0
    while not isinstance(found, str) and not found.complete and waited < seconds:
        yield Pause(_LOOK)
        waited += _LOOK
        found = yield from _ensure_all(index)
    return None if isinstance(found, str) else found


def _ensure_all(index: SearchIndex) -> Steps[IndexState | str]:
    """Make what is missing of the index. Returns the state of all parts together, or why this server cannot search."""
    states: list[IndexState] = []
    settled = True
    replies = yield [plain(b"FT.INFO", part.name, errors=True) for part in index.parts]
    for part, reply in zip(index.parts, replies, strict=True):
        name, command = create_index(part, index.form)
        if isinstance(reply, AskError):  # its slot moves: documents are here and there
            states.append(IndexState(name, 0, 0.0, False))
            continue
        state = None if isinstance(reply, Exception) else read_index_info(reply)
        if state is None or state.name != name:
            found = yield from _ensure(part.name, name, command)
            if isinstance(found, str) and index.form.half and "vector" in found.lower():
                index.form = replace(index.form, halved=False)  # an older RediSearch, without 16-bit floats
                return (yield from _ensure_all(index))
            if isinstance(found, str):
                return found
            state = found
        settled = settled and state.name == name
        states.append(state)
    index.settled = settled
    return together(states)


def _ensure(alias: bytes, name: bytes, command: list[bytes]) -> Steps[IndexState | str]:
    """Make one index if it is missing. Returns its state, or why this server cannot search."""
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


#: Search documents written at once, and their text: some 15 ms of the server's time.
_DOCUMENTS: Final = 500

_DOCUMENTS_CHARACTERS: Final = 150_000

#: Search documents removed at once: some 3 ms of the server's time.
PURGED_AT_ONCE: Final = b"500"


def documents_of(op: Append | Restore, document: DocumentOf | None) -> list[bytes]:
    """The search documents to write together with the messages: all, or none for a large batch."""
    if document is None or _share(op, 0) < len(op.entries):
        return []
    return [part for place in range(len(op.entries)) for part in _document_fields(op, document, place)]


def _document_fields(op: Append | Restore, document: DocumentOf, place: int) -> list[bytes]:
    """How many fields and values the search document of a message has, and these."""
    fields = document(op.entries[place].message, op.vectors[place] if op.vectors else b"")
    return [b"%d" % len(fields), *fields]


def _share(op: Append | Restore, start: int) -> int:
    """Where to end if documents are written from `start` on."""
    sizes = (entry.characters for entry in islice(op.entries, start, None))
    return start + chunk_length(sizes, _DOCUMENTS, _DOCUMENTS_CHARACTERS)


def documents_later(
    op: Append | Restore, settings: Settings, document: DocumentOf | None, revision: int
) -> Steps[None]:
    """Writes the documents of a large batch after it, some at a time; until then its conversation is searched without
    the index, which tells that it has not all of them."""
    count, start = len(op.entries), 0
    if document is None or _share(op, 0) == count:
        return
    while start < count:
        places = range(start, _share(op, start))
        documents = [_document_fields(op, document, place) for place in places]
        ids = [op.entries[place].message.id for place in places]
        yield [write_documents(op.token, settings, op.conversation_id, revision, ids, documents)]
        start = places.stop


def write_documents(
    token: str,
    settings: Settings,
    conversation_id: str,
    revision: int,
    ids: Sequence[str],
    documents: Sequence[list[bytes]],
) -> Call:
    """Writes search documents of messages that have not changed since `revision`. How many those were."""
    keys = settings.keyspace.conversation(conversation_id)
    args = [*change_header(token, settings, keys), b"%d" % revision, b"%d" % len(ids)]
    for message_id in ids:
        args += (field_of(message_id), message_id.encode())
    for document in documents:
        args += document
    return Call(INDEX, keys.writing, args, as_is)


def purge_after(keys: ConversationKeys, reply: Any) -> Steps[None]:
    """The rest of the work after all messages were removed: removing many documents."""
    if type(reply) is list and (reply[0] == b"pending" or (reply[0] == 1 and len(reply) > 1)):
        for name in reply[-1].split():
            yield from _purge(keys.pending_work, name)


def mark(keys: ConversationKeys) -> Steps[None]:
    """Marks the documents whose messages moved to the archive or back, some at a time."""
    place: list[Any] = [b"", b"", 0]
    while place:
        revision, timestamp, sequence = place
        args = [b"=" + keys.name, revision, timestamp, b"%d" % sequence]
        [place] = yield [Call(MARK, pack_keys(keys.state, keys.messages, keys.pending_work), args, as_is)]


def finish_work(keyspace: Keyspace) -> Steps[None]:
    """Does what interrupted calls left: removes search documents, and marks those whose messages moved."""
    cursors = dict.fromkeys(keyspace.pending_work(), b"0")
    while cursors:
        replies = yield [plain(b"HSCAN", key, cursor, b"COUNT", b"100") for key, cursor in cursors.items()]
        cursors = dict(zip(cursors, (cursor for cursor, _ in replies), strict=True))
        for key, (_, fields) in zip(cursors, replies, strict=True):
            for name in fields[::2]:
                if name.startswith(b"="):
                    yield from mark(keyspace.keys_of(keyspace.name_to_id(name[1:])))
                else:
                    yield from _purge(key, name)
        cursors = {key: cursor for key, cursor in cursors.items() if cursor != b"0"}


def _purge(pending_work: bytes, name: bytes) -> Steps[None]:
    """Removes the documents of messages that were removed, some at a time."""
    keys = pack_keys(pending_work, pending_work + b":" + name)
    left = True
    while left:
        [left] = yield [Call(PURGE, keys, [name, PURGED_AT_ONCE], as_is)]
