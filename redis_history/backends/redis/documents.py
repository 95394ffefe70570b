"""Writes and removes search documents, some at a time. Pure: no I/O here."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

from redis_history.backends.redis.calls import Call, DocumentOf, Settings, Steps, as_is, change_header, plain
from redis_history.backends.redis.keys import ConversationKeys, Keyspace, pack_keys
from redis_history.backends.redis.scripts import INDEX, MARK, REAP
from redis_history.operations import Append, Restore
from redis_history.search.text import chunk_length

__all__ = ["documents_later", "documents_of", "finish_work", "mark", "reap_after", "write_documents"]

#: Search documents written at once, and their text: some 15 ms of the server's time.
_DOCUMENTS: Final = 150
_DOCUMENTS_CHARACTERS: Final = 150_000
#: Search documents removed at once: some 3 ms of the server's time.
REAPED: Final = b"500"


def documents_of(op: Append | Restore, document: DocumentOf | None) -> list[bytes]:
    """What is written of the search documents together with the messages: all, or nothing of a large batch."""
    if document is None or _share(op, 0) < len(op.entries):
        return []
    return [part for place in range(len(op.entries)) for part in _fields(op, document, place)]


def _fields(op: Append | Restore, document: DocumentOf, place: int) -> list[bytes]:
    """How many fields and values the search document of a message has, and these."""
    fields = document(op.entries[place].message, op.vectors[place] if op.vectors else b"")
    return [b"%d" % len(fields), *fields]


def _share(op: Append | Restore, start: int) -> int:
    """Where to end if documents are written from `start` on."""
    sizes = (entry.characters for entry in islice(op.entries, start, None))
    return start + chunk_length(sizes, _DOCUMENTS, _DOCUMENTS_CHARACTERS)


def documents_later(op: Append | Restore, settings: Settings, document: DocumentOf | None) -> Steps[None]:
    """Writes the documents of a large batch after it, some at a time; until then its conversation is searched without
    the index, which tells that it has not all of them."""
    count, start = len(op.entries), 0
    if document is None or _share(op, 0) == count:
        return
    while start < count:
        places = range(start, _share(op, start))
        entries = [(op.entries[place].message.id, op.entries[place].digest) for place in places]
        documents = [_fields(op, document, place) for place in places]
        yield [write_documents(op.token, settings, op.conversation_id, entries, documents)]
        start = places.stop


def write_documents(
    token: str,
    settings: Settings,
    conversation_id: str,
    entries: Sequence[tuple[str, bytes]],
    documents: Sequence[list[bytes]],
) -> Call:
    """Writes search documents of messages that are there; `entries` are their ids and digests. How many still were."""
    keys = settings.keyspace.conversation(conversation_id)
    args = [*change_header(token, settings, keys), b"%d" % len(entries)]
    for message_id, digest in entries:
        args += (b":" + message_id.encode(), digest)
    for document in documents:
        args += document
    return Call(INDEX, keys.writing, args, as_is)


def reap_after(keys: ConversationKeys, reply: Any) -> Steps[None]:
    """What is left after all messages went at once: documents to remove, if there were many."""
    if type(reply) is list and (reply[0] == b"buried" or (reply[0] == 1 and len(reply) > 1)):
        for name in reply[-1].split():
            yield from _reap(keys.graves, name)


def mark(keys: ConversationKeys) -> Steps[None]:
    """Marks the documents whose messages moved to the archive or back, some at a time."""
    place: list[Any] = [b"", b"", 0]
    while place:
        revision, timestamp, sequence = place
        args = [b"=" + keys.name, revision, timestamp, b"%d" % sequence]
        [place] = yield [Call(MARK, pack_keys(keys.state, keys.messages, keys.graves), args, as_is)]


def finish_work(keyspace: Keyspace) -> Steps[None]:
    """Does what interrupted calls left: removes search documents, and marks those whose messages moved."""
    cursors = dict.fromkeys(keyspace.graves(), b"0")
    while cursors:
        replies = yield [plain(b"HSCAN", key, cursor, b"COUNT", b"100") for key, cursor in cursors.items()]
        cursors = dict(zip(cursors, (cursor for cursor, _ in replies), strict=True))
        for key, (_, fields) in zip(cursors, replies, strict=True):
            for name in fields[::2]:
                if name.startswith(b"="):
                    yield from mark(keyspace.keys_of(keyspace.name_to_id(name[1:])))
                else:
                    yield from _reap(key, name)
        cursors = {key: cursor for key, cursor in cursors.items() if cursor != b"0"}


def _reap(graves: bytes, name: bytes) -> Steps[None]:
    """Removes the documents of messages that have left, some at a time."""
    left = True
    while left:
        [left] = yield [Call(REAP, pack_keys(graves, graves + b":" + name), [name, REAPED], as_is)]
