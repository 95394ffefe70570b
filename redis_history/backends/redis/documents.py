"""Writes and removes search documents, some at a time. Pure: no I/O here."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

import msgspec

from redis_history.backends.redis.calls import Call, Settings, as_is, change_header
from redis_history.backends.redis.keys import ConversationKeys, pack_keys
from redis_history.backends.redis.scripts import INDEX, REAP
from redis_history.operations import Append, Restore
from redis_history.search.chunks import chunk_length

__all__ = ["documents_later", "documents_of", "reap", "reap_after", "write_documents"]

#: Search documents written at once, and their text: some 15 ms of the server's time.
_DOCUMENTS: Final = 150
_DOCUMENTS_CHARACTERS: Final = 150_000
#: Search documents removed at once: some 3 ms of the server's time.
REAPED: Final = b"500"


def documents_of(op: Append | Restore, settings: Settings) -> list[bytes]:
    """What is written of the search documents together with the messages: all, or nothing of a large batch."""
    if settings.document is None or _share(op, 0) < len(op.entries):
        return []
    return [part for place in range(len(op.entries)) for part in _document(op, settings, place)]


def _document(op: Append | Restore, settings: Settings, place: int) -> list[bytes]:
    """How many fields and values the search document of a message has, and these; nothing without search."""
    if settings.document is None:
        return []
    document = settings.document(op.entries[place].message, op.vectors[place] if op.vectors else b"")
    return [b"%d" % len(document), *document]


def _share(op: Append | Restore, start: int) -> int:
    """Where to end if documents are written from `start` on."""
    sizes = (entry.characters for entry in islice(op.entries, start, None))
    return start + chunk_length(sizes, _DOCUMENTS, _DOCUMENTS_CHARACTERS)


def documents_later(op: Append | Restore, settings: Settings, start: int) -> Call | None:
    """Writes the documents of a large batch after it, some at a time; until then its conversation is searched without
    the index, which tells that it has not all of them."""
    end = _share(op, start)
    places = range(start, end)
    if settings.document is None or not places or (start == 0 and end == len(op.entries)):
        return None
    entries = [(op.entries[place].message.id, op.entries[place].digest) for place in places]
    documents = [_document(op, settings, place) for place in places]
    call = write_documents(op.token, settings, op.conversation_id, entries, documents)
    return msgspec.structs.replace(call, follow=lambda _: documents_later(op, settings, end))


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


def reap_after(keys: ConversationKeys, reply: Any) -> Call | None:
    """What is left after all messages went at once: documents to remove, if there were many."""
    if type(reply) is list and (reply[0] == b"buried" or (reply[0] == 1 and len(reply) > 1)):
        return reap(keys.graves, *reply[-1].split())
    return None


def reap(graves: bytes, name: bytes, *others: bytes) -> Call:
    """Removes some documents of messages that have left, and follows itself until there are none in any of the
    graves."""

    def more(left: int) -> Call | None:
        if left:
            return reap(graves, name, *others)
        return reap(graves, *others) if others else None

    return Call(REAP, pack_keys(graves, graves + b":" + name), [name, REAPED], as_is, follow=more)
