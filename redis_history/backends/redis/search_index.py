"""The steps for the search index of a namespace and its documents.

Searches use an alias. If the form changes (language, vectors), a new index is built over the same documents, and the
alias moves to it when the server has filled it. Until then the former index answers."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from redis.exceptions import AskError, ResponseError, TryAgainError

from redis_history.engine.server_info import as_map
from redis_history.errors import BackendError, CapabilityError, CorruptDataError
from redis_history.model import Message
from redis_history.operations import Append, Restore
from redis_history.operations.base import (
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
from redis_history.operations.failures import is_transient
from redis_history.operations.keys import ConversationKeys, IndexPart, Keyspace, field_of, pack_keys
from redis_history.search.redisearch import VECTOR, create_arguments
from redis_history.search.text import chunk_length
from redis_history.search.words import LANGUAGES, UNSTEMMED

_logger = logging.getLogger("redis_history")

#: Raised when the fields of documents change: the index then has another name, and documents are written again.
DOCUMENT_VERSION: Final = 1

#: Seconds between checks of an index that the server is still filling.
_CHECK_SECONDS: Final = 0.05


class IndexState(NamedTuple):
    """`share`: of documents in the index, 0 to 1; `complete`: all are. `each`: the documents of each part."""

    name: bytes
    documents: int
    share: float
    complete: bool
    each: tuple[int, ...] = ()


def together(states: Sequence[IndexState]) -> IndexState:
    each, share = tuple(state.documents for state in states), min(state.share for state in states)
    return IndexState(states[0].name, sum(each), share, all(state.complete for state in states), each)


def create_index(part: IndexPart, searching: Searching) -> tuple[bytes, list[bytes]]:
    """The name of the index with this form, and the command that creates it."""
    command = create_arguments(b"", [part.documents], language=searching.language, vectors=searching.vectors)
    form = hashlib.sha256(b"\0".join(command)).hexdigest()[:8].encode()
    name = b"%b:%d:%b" % (part.name, DOCUMENT_VERSION, form)
    command[1] = name
    return name, command


def read_index_info(reply: Any) -> IndexState:
    """The reply to FT.INFO, RESP2 or RESP3."""
    try:
        info = as_map(reply)
        share = float(info[b"percent_indexed"])
        complete = float(info[b"indexing"]) == 0 and share >= 1
        return IndexState(info[b"index_name"], int(info[b"num_docs"]), share, complete)
    except (TypeError, ValueError, KeyError) as error:
        raise CorruptDataError(f"unreadable reply to FT.INFO: {str(reply)[:200]}") from error


def read_index_form(part: IndexPart, reply: Any) -> Searching | None:
    """The form of an index, from the reply to FT.INFO; None for an index of another version."""
    info = as_map(reply)
    name, vectors = info.get(b"index_name"), None
    for attribute in info.get(b"attributes", ()):
        field = as_map([*attribute, b""] if isinstance(attribute, list) and len(attribute) % 2 else attribute)
        if field.get(b"attribute") == VECTOR and field.get(b"type") == b"VECTOR":
            vectors = int(field[b"dim"])
    every = (Searching(language, vectors) for language in (*sorted(LANGUAGES), UNSTEMMED))
    return next((one for one in every if create_index(part, one)[0] == name), None)


def is_refusal(error: Exception) -> bool:
    """Whether the server refused this command, and a retry would not help."""
    return isinstance(error.__cause__, ResponseError) and not is_transient(error.__cause__)


def use_index(settings: Settings, *, lost: bool = False) -> Steps[None]:
    """Check whether the server can search, and create the index. With `lost`, create it on every node that lacks it.
    Raises CapabilityError if a required index cannot be created."""
    index = settings.index
    if index is None:
        return
    found = yield from _ensure_all(index, anew=lost)
    if isinstance(found, str):
        if index.form.required:
            raise CapabilityError(
                f"search='require', but this server has no search ({found}): use Redis 8, Redis Stack or "
                "RediSearch, and database 0; or search='auto', which ranks one conversation at a time without it"
            )
        if index.works is not False:
            _logger.info("no search on this server (%s); the store ranks conversations itself", found)
    index.works = not isinstance(found, str)


def fill_index(settings: Settings, seconds: float, *, anew: bool = False) -> Steps[IndexState | None]:
    """Create the index if necessary, and wait up to `seconds` until the server has filled it. Returns its state; None
    if this server has no search. `anew`: see `_ensure_all`."""
    index = settings.index
    if index is None:
        return None
    found = yield from _ensure_all(index, anew=anew)
    waited = 0.0
    while not isinstance(found, str) and not found.complete and waited < seconds:
        yield Pause(_CHECK_SECONDS)
        waited += _CHECK_SECONDS
        found = yield from _ensure_all(index)
    return None if isinstance(found, str) else found


def _ensure_all(index: SearchIndex, *, anew: bool = False) -> Steps[IndexState | str]:
    """Create the missing parts of the index. Returns the state of all parts, or why this server cannot search.

    With `anew`, create also the parts that the server says it has. In a cluster of Redis 8, where one node answers for
    all, a node that has joined since has no index, and FT.INFO does not tell.
    """
    states: list[IndexState] = []
    settled = True
    replies = yield [plain(b"FT.INFO", part.name, errors=True) for part in index.parts]
    for part, reply in zip(index.parts, replies, strict=True):
        name, command = create_index(part, index.form)
        if isinstance(reply, AskError | TryAgainError):  # its slot moves: two nodes have documents
            states.append(IndexState(name, 0, 0.0, False))
            continue
        state = None if isinstance(reply, Exception) else read_index_info(reply)
        if anew or state is None or state.name != name:
            found = yield from _ensure(part.name, name, command)
            if not isinstance(found, str):
                state = found
            elif state is None or state.name != name:  # else this user may only search
                return found
        settled = settled and state.name == name
        states.append(state)
    index.settled = settled
    return together(states)


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


#: Search documents written at once, and their characters: some 15 ms of the server's time.
_DOCUMENTS: Final = 500
_DOCUMENTS_CHARACTERS: Final = 150_000

#: Search documents removed at once: some 3 ms of the server's time.
PURGED_AT_ONCE: Final = b"500"


def documents_of(op: Append | Restore, document: DocumentOf | None) -> list[bytes]:
    """The search documents to write together with the messages: all, or none for a large batch."""
    if document is None or _chunk_end(op, 0) < len(op.entries):
        return []
    return [part for index in range(len(op.entries)) for part in _document_fields(op, document, index)]


def _document_fields(op: Append | Restore, document: DocumentOf, index: int) -> list[bytes]:
    return counted_fields(document, op.entries[index].message, op.vectors[index] if op.vectors else b"")


def counted_fields(document: DocumentOf, message: Message, vector: bytes) -> list[bytes]:
    """The search document of a message for the scripts: the number of fields and values, and these."""
    fields = document(message, vector)
    return [b"%d" % len(fields), *fields]


def _chunk_end(op: Append | Restore, start: int) -> int:
    """The end of a chunk of documents that starts at `start`."""
    sizes = (entry.characters for entry in islice(op.entries, start, None))
    return start + chunk_length(sizes, _DOCUMENTS, _DOCUMENTS_CHARACTERS)


def documents_later(
    op: Append | Restore, settings: Settings, document: DocumentOf | None, revision: int
) -> Steps[None]:
    """Writes the documents of a large batch in chunks. Until the last one, the index has fewer documents than the
    conversation has messages, so the conversation is searched without it."""
    count, start = len(op.entries), 0
    if document is None or _chunk_end(op, 0) == count:
        return
    while start < count:
        chunk = range(start, _chunk_end(op, start))
        documents = [_document_fields(op, document, index) for index in chunk]
        ids = [op.entries[index].message.id for index in chunk]
        yield [write_documents(op.token, settings, op.conversation_id, "", revision, ids, documents)]
        start = chunk.stop


def write_documents(
    token: str,
    settings: Settings,
    conversation_id: str,
    epoch: str,
    revision: int,
    ids: Sequence[str],
    documents: Sequence[list[bytes]],
) -> Call:
    """Writes search documents of messages that have not changed since `revision`, and that were read in this `epoch`,
    or, if that is empty, appended with this token. The outcome is their number."""
    keys = settings.keyspace.conversation(conversation_id)
    args = [*change_header(token, settings, keys), epoch.encode(), b"%d" % revision, b"%d" % len(ids)]
    for message_id in ids:
        args += (field_of(message_id), message_id.encode())
    for document in documents:
        args += document
    return Call(INDEX, keys.writing, args, as_is)


def purge_after(keys: ConversationKeys, reply: Any) -> Steps[None]:
    """Upkeep after all messages were removed: removes their documents, if these are many."""
    if type(reply) is list and (reply[0] == b"pending" or (reply[0] == 1 and len(reply) > 1)):
        for name in reply[-1].split():
            yield from _purge(keys.pending_work, name)


def mark(keys: ConversationKeys) -> Steps[None]:
    """Marks the documents of messages that moved to the archive or back, in chunks."""
    progress: list[Any] = [b"", b"", 0]
    extra: list[bytes] = []
    while progress:
        revision, timestamp, sequence = progress
        args = [b"=" + keys.name, revision, timestamp, b"%d" % sequence]
        packed = pack_keys(keys.state, keys.messages, keys.pending_work, *extra)
        [reply] = yield [Call(MARK, packed, args, as_is)]
        if reply and reply[0] == b"keys":
            extra += reply[1:]
        else:
            progress, extra = reply, [key for key in extra if not key.startswith(b"rhd2")]  # the archive stays


def finish_work(keyspace: Keyspace) -> Steps[None]:
    """Finishes the work of interrupted calls: removes search documents, and marks those of moved messages."""
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
    """Removes the documents of removed messages, in chunks."""
    keys = pack_keys(pending_work, pending_work + b":" + name)
    left = True
    while left:
        [left] = yield [Call(PURGE, keys, [name, PURGED_AT_ONCE], as_is)]
