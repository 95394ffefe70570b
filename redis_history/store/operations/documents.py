"""Search documents: write them, mark those of messages that moved to the archive or back, remove the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct, field

from redis_history.store.operations.base import (
    ByNode,
    Call,
    OnConversation,
    Op,
    Steps,
    as_is,
    change_header,
    field_of,
    plain,
)
from redis_history.store.operations.fetch import Fetch
from redis_history.store.operations.keys import ConversationKeys
from redis_history.store.operations.scripts import PLACES, WRITING, load_script
from redis_history.store.operations.settings import Settings
from redis_history.store.search.redisearch import document
from redis_history.values import Message
from redis_history.values.ids import new_token

DOCUMENTS: Final = load_script("documents", *WRITING, *PLACES, args="epoch revision count *messages", keys="unfinished")
MARK: Final = load_script(
    "mark",
    "_declared",
    "_member",
    "_archive",
    "_locate",
    args="name revision timestamp sequence",
    keys="state messages unfinished",
)
PURGE: Final = load_script("purge", "_declared", "_member", args="name most", keys="work removed")

#: Search documents removed together: some 3 ms of the server's time.
PURGED_AT_ONCE: Final = b"500"
#: Documents that a sweep checks in one step.
_SWEPT: Final = 200


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
    messages: list[bytes] = []
    for message_id in ids:
        messages += (field_of(message_id), message_id.encode())
    for fields in documents:
        messages += (b"%d" % len(fields), *fields)
    args = DOCUMENTS.args(epoch=epoch.encode(), revision=b"%d" % revision, count=b"%d" % len(ids), messages=messages)
    return Call(DOCUMENTS, keys.writing, [*change_header(token, settings, keys), *args], as_is)


def purge_after(keys: ConversationKeys, reply: Any) -> Steps[None]:
    """Upkeep after all messages were removed: removes their documents, if these are many."""
    if type(reply) is list and reply[0] in (b"pending", 1) and type(reply[-1]) is bytes:
        for name in reply[-1].split():
            yield from _purge(keys.pending_work, name)


def mark(keys: ConversationKeys) -> Steps[None]:
    """Marks the documents of messages that moved to the archive or back, in chunks."""
    progress: list[Any] = [b"", b"", 0]
    extra: list[bytes] = []
    while progress:
        revision, timestamp, sequence = progress
        name = b"=" + keys.name
        args = MARK.args(name=name, revision=revision, timestamp=timestamp, sequence=b"%d" % sequence)
        [reply] = yield [Call(MARK, (keys.state, keys.messages, keys.pending_work, *extra), args, as_is)]
        if reply and reply[0] == b"keys":
            extra += reply[1:]
        else:
            progress, extra = reply, [key for key in extra if not key.startswith(b"rhd2")]  # the archive stays


def finish_work(settings: Settings) -> Steps[None]:
    """Finishes the work of interrupted calls: removes search documents, marks those of moved messages, and lets those
    of conversations with a new time to live end with them."""
    keyspace = settings.keyspace
    cursors = dict.fromkeys(keyspace.pending_work(), b"0")
    while cursors:
        replies = yield [plain(b"HSCAN", key, cursor, b"COUNT", b"100") for key, cursor in cursors.items()]
        cursors = dict(zip(cursors, (cursor for cursor, _ in replies), strict=True))
        for key, (_, fields) in zip(cursors, replies, strict=True):
            for name in fields[::2]:
                if name.startswith(b"="):
                    yield from mark(keyspace.keys_of(keyspace.name_to_id(name[1:])))
                elif name.startswith(b"+"):
                    yield from _renew(name, settings)
                else:
                    yield from _purge(key, name)
        cursors = {key: cursor for key, cursor in cursors.items() if cursor != b"0"}


def _renew(name: bytes, settings: Settings) -> Steps[None]:
    """Lets the documents of a long conversation end with it, in chunks."""
    keys = settings.keyspace.keys_of(settings.keyspace.name_to_id(name[1:]))
    args = DOCUMENTS.args(epoch=b"", revision=b"0", count=b"0", messages=[name])
    args = [*change_header(new_token(), settings, keys), *args]
    left = True
    while left:
        [left] = yield [Call(DOCUMENTS, (*keys.writing, keys.pending_work), args, as_is)]


def _purge(pending_work: bytes, name: bytes) -> Steps[None]:
    """Removes the documents of removed messages, in chunks."""
    keys = (pending_work, pending_work + b":" + name)
    left = True
    while left:
        [left] = yield [Call(PURGE, keys, PURGE.args(name=name, most=PURGED_AT_ONCE), as_is)]


class WriteDocuments(OnConversation, Op[int | None], frozen=True):
    """Write the search documents of messages that were read in `epoch` at `revision` or later. The outcome is the
    number of those that had not changed since."""

    messages: tuple[Message, ...]
    epoch: str
    revision: int
    vectors: tuple[bytes, ...] = ()
    token: str = field(default_factory=new_token)

    def steps(self, settings: Settings) -> Steps[int | None]:
        if not settings.indexed:
            return None
        vectors = self.vectors or [b""] * len(self.messages)
        documents = list(map(document, self.messages, vectors))
        ids = [message.id for message in self.messages]
        written: int = yield write_documents(
            self.token, settings, self.conversation_id, self.epoch, self.revision, ids, documents
        )
        return written


class SweepDocuments(Struct, Op[int | None], frozen=True):
    """Remove the documents without a message. The outcome is their number."""

    def steps(self, settings: Settings) -> Steps[int | None]:
        if not settings.indexed:
            return None
        removed = 0
        for [key, *_] in (yield ByNode(settings.keyspace.registries())):
            cursor = b"0"
            while True:
                pattern = settings.keyspace.documents + b"*"
                count = b"%d" % _SWEPT
                cursor, keys = yield plain(b"SCAN", cursor, b"MATCH", pattern, b"COUNT", count, beside=key)
                for gone in (yield from self._without_message(keys, settings)):
                    yield plain(b"UNLINK", gone)
                    removed += 1
                if cursor == b"0":
                    break
        return removed

    def _without_message(self, keys: list[bytes], settings: Settings) -> Steps[list[bytes]]:
        generations: dict[tuple[str, bytes], list[tuple[int, bytes]]] = {}
        gone = []
        for key in keys:
            found = settings.keyspace.document_of(key)
            if found is None:
                gone.append(key)
            else:
                generations.setdefault(found[0], []).append((found[1], key))
        for (conversation_id, generation), documents in generations.items():
            sequences = tuple(sequence for sequence, _ in documents)
            messages = yield from Fetch(conversation_id, generation, sequences, contents=False).steps(settings)
            gone += [key for (_, key), message in zip(documents, messages, strict=True) if message is None]
        return gone
