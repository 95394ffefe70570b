"""From a search operation to calls of the server, and what its search index is like. Pure: no I/O here."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from redis.exceptions import ResponseError

from redis_history.backends.redis.calls import Call, Settings, as_is
from redis_history.backends.redis.documents import write_documents
from redis_history.backends.redis.keys import Keyspace, pack_keys
from redis_history.backends.redis.scripts import FETCH, SEARCH
from redis_history.errors import CorruptDataError
from redis_history.model import Message
from redis_history.model.wire import body_digest, decode_member, encode_body
from redis_history.operations import (
    Fetch,
    Fetched,
    Found,
    MakeIndex,
    Place,
    Search,
    SearchAll,
    SweepDocuments,
    WriteDocuments,
)
from redis_history.search.languages import LANGUAGES, UNSTEMMED
from redis_history.search.ranking import Matches
from redis_history.search.redisearch import (
    ARCHIVED,
    NAMESPACE,
    VECTOR,
    count_command,
    create_arguments,
    document,
    nearest_command,
    read_found,
    read_matches,
    search_commands,
)
from redis_history.search.vectors import VectorField

__all__ = [
    "SEARCHES",
    "IndexState",
    "Searching",
    "create_index",
    "is_lost_index",
    "is_unanswered",
    "plan_fetch",
    "plan_search",
    "plan_search_all",
    "read_index_form",
    "read_index_info",
]

_logger = logging.getLogger("redis_history")

#: Raised with each change of what a document holds: then the index has another name, and documents are written anew.
DOCUMENT_VERSION: Final = 1
#: Stands for the conversation in a search, until the script knows the life of its documents.
_SCOPE: Final = "the-conversation"
_LANGUAGE: Final = b"search language"


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


def is_lost_index(error: Exception) -> bool:
    """Whether the index is not there (any more), or no search at all."""
    text = str(error).lower()
    return "no such index" in text or "unknown index" in text or "unknown command" in text or "unknown redis" in text


def is_unanswered(error: Exception) -> bool:
    """Whether the server gave up a search, such as one that took too long."""
    return isinstance(error, ResponseError) and "timeout" in str(error).lower()


def plan_search(op: Search, settings: Settings, searching: Searching) -> Call:
    """One look at one conversation: what each term matches, or None if not all messages have documents."""
    index = settings.keyspace.index
    scope = [_SCOPE]
    commands = [count_command(index, scope)]
    terms = search_commands(index, scope, op.query, op.filters, language=searching.language, depth=op.depth)
    commands += terms
    if op.vector is not None and not op.filters.impossible:
        commands.append(nearest_command(index, scope, op.vector, op.filters))
    args = [_SCOPE.encode()]
    for command in commands:
        args += (b"%d" % len(command), *command)
    keys = pack_keys(settings.keyspace.conversation(op.conversation_id).state)
    return Call(SEARCH, keys, args, partial(_found, op, len(terms)))


def _found(op: Search, terms: int, reply: list[Any]) -> Found | None:
    life, count, documents, *replies = reply
    if count != documents:
        return None

    whose = (op.conversation_id, life)
    found = [
        Matches(total, {whose: dict(zip(map(int, listed[::2]), map(float, listed[1::2]), strict=True))})
        for total, listed in zip(replies[::2], map(bytes.split, replies[1::2]), strict=True)
    ]
    nearest = None
    if op.vector is not None:
        nearest = [Place(*whose, sequence) for last in found[terms:] for sequence in last.scores[whose]]
    single = len(op.query.terms)
    if not replies:  # a conversation without messages
        return Found([Matches(0, {})] * single, None, 0, nearest)
    return Found(found[:single], found[single] if terms > single else None, count, nearest)


def plan_search_all(op: SearchAll, settings: Settings, searching: Searching) -> list[Call]:
    """Commands to send together; `read_all` takes their replies."""
    index = settings.keyspace.index
    commands = search_commands(index, NAMESPACE, op.query, op.filters, language=searching.language, depth=op.depth)
    if op.vector is not None and not op.filters.impossible:
        commands.append(nearest_command(index, NAMESPACE, op.vector, op.filters))
    return [Call(None, b"", command, as_is) for command in commands]


def read_all(op: SearchAll, settings: Settings, replies: list[Any]) -> Found:
    """What each term matches in the namespace."""
    keyspace = settings.keyspace

    def place(key: bytes) -> tuple[tuple[str, bytes], int] | None:
        where = keyspace.document_of(key)
        return None if where is None else ((where.conversation_id, where.life), where.sequence)

    terms = len(replies) - (op.vector is not None and not op.filters.impossible)
    matches, together = read_matches(replies[:terms], op.query, place)
    return Found(matches, together, None, _nearest(replies[terms:], keyspace))


def _nearest(replies: list[Any], keyspace: Keyspace) -> list[Place] | None:
    if not replies:
        return None
    places = (keyspace.document_of(key) for key, _ in read_found(replies[0]).documents)
    return [place for place in places if place is not None]


def plan_fetch(op: Fetch, settings: Settings) -> Call:
    """Reads messages that were found."""
    keys = settings.keyspace.conversation(op.conversation_id)
    prefix = settings.keyspace.documents_of(op.conversation_id, op.life)
    packed = pack_keys(keys.state, keys.messages, *(b"%b%d" % (prefix, sequence) for sequence in op.sequences))
    args = [op.life, b"%d" % op.around, *(b"%d" % sequence for sequence in op.sequences)]
    return Call(FETCH, packed, args, partial(_fetched, op.conversation_id))


def _fetched(conversation_id: str, reply: list[Any]) -> list[Fetched | None]:
    found: list[Fetched | None] = []
    for item in reply:
        try:
            if not item:
                found.append(None)
                continue
            messages = [decode_member(member) for member in item[0]]
            at = item[1]
            found.append(Fetched(messages[at], messages[:at], messages[at + 1 :], bool(item[2])))
        except CorruptDataError as error:
            _logger.error("skipped an unreadable message of conversation %r: %s", conversation_id[:80], error)
            found.append(None)
    return found


def plan_documents(op: WriteDocuments, settings: Settings, searching: Searching) -> Call:
    """Writes documents of messages that were read."""
    documents = []
    for position, message in enumerate(op.messages):
        fields = searching.document(message, op.vectors[position] if op.vectors else b"")
        if op.archived and op.archived[position]:
            fields = [*fields, ARCHIVED, b"1"]
        documents.append([b"%d" % len(fields), *fields])
    entries = [(message.id, body_digest(encode_body(message))) for message in op.messages]
    return write_documents(op.token, settings, op.conversation_id, entries, documents)


def scan_documents(cursor: int, settings: Settings) -> Call:
    """Some keys of documents of the namespace."""
    pattern = settings.keyspace.documents + b"*"
    return Call(None, b"", [b"SCAN", b"%d" % cursor, b"MATCH", pattern, b"COUNT", b"200"], as_is)


SEARCHES: Final = frozenset({Search, SearchAll, Fetch, WriteDocuments, SweepDocuments, MakeIndex})
