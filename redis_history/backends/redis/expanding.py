"""Expansion on a server: what a summary replaced comes back. A few messages are moved by one script; of many, a staging
copy is made in pages, and put in place by it. Pure: no I/O here.

The staging copy may end at any moment: it expires if the client is paused, and it can be evicted, or lost by a failover
with the writes that made it. So each page is added only to what the pages before have left (copy.lua), and the script
that puts the copy in place counts its members (expand.lua). A copy that is not whole is made again.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import msgspec

from redis_history.backends.redis.calls import (
    SENT,
    Call,
    DocumentOf,
    Settings,
    Steps,
    Upkeep,
    as_is,
    change_header,
    once,
    plain,
    refused,
    write,
)
from redis_history.backends.redis.compacting import position_of
from redis_history.backends.redis.documents import mark, write_documents
from redis_history.backends.redis.keys import ConversationKeys, pack_keys
from redis_history.backends.redis.reading import page_of, readable
from redis_history.backends.redis.scripts import COPY, EXPAND
from redis_history.model.wire import body_digest, encode_body
from redis_history.operations import Expand, Expanded

__all__ = ["expand"]

#: How often a staging copy is made, members copied at once, and how long an unused copy stays.
_COPIES: Final = 4
_COPIED: Final = 500
_COPY_LASTS_MS: Final = b"60000"


def expand(op: Expand, settings: Settings) -> Steps[Expanded | None]:
    keys = settings.keyspace.conversation(op.conversation_id)
    outcome: Expanded | bytes = yield from _expand(op, settings, keys, [b"", b"", b"", b"", b""])
    for attempt in range(_COPIES):
        if outcome != b"stale":
            break
        # A new name each time, so that late pages of an earlier copy cannot reach this one.
        token = b"%b.%d" % (op.token.encode(), attempt)
        [compaction] = yield [plain(b"HGET", keys.state, b"^" + op.summary_id.encode())]
        archive = keys.archive(int(compaction or 0))
        copy = b"%b:%b" % (archive, token)
        begun = yield from _copy(keys, archive, copy)
        if begun is not None:
            outcome = yield from _expand(op, settings, keys, [b"1", *begun, token])
        if outcome == b"stale":
            yield Upkeep(once([plain(b"UNLINK", copy)]))
    if outcome == b"stale":
        outcome = yield from _expand(op, settings, keys, [b"2", b"", b"", b"", b""])
    return outcome if isinstance(outcome, Expanded) else None


def _copy(keys: ConversationKeys, archive: bytes, copy: bytes) -> Steps[list[bytes] | None]:
    """Puts what comes back and what is live into one set. Returns the epoch, revision and sequence at which the first
    page was made; None if the copy was lost meanwhile."""
    begun: list[bytes] | None = None
    held = b""
    for source in (archive, keys.messages):
        start, count = 0, _COPIED
        while count == _COPIED:
            args = [b"%d" % start, b"%d" % (start + _COPIED - 1), _COPY_LASTS_MS, held]
            [reply] = yield [Call(COPY, pack_keys(source, copy, keys.state), args, as_is)]
            if reply[0] < 0:
                return None
            count, held = reply[0], b"%d" % reply[1]
            start += count
            begun = begun or reply[2:]
    return begun


def _expand(op: Expand, settings: Settings, keys: ConversationKeys, prepared: list[bytes]) -> Steps[Expanded | bytes]:
    args = [*change_header(op.token, settings, keys, op.precondition), op.summary_id.encode()]
    args += [msgspec.msgpack.encode(op.summary_id), *prepared]
    call = Call(EXPAND, keys.writing, args, partial(_expanded, op), SENT)
    document = settings.document
    after = None if document is None else partial(_documents_after, op, settings, keys, document)
    return write(op, settings, call, after)


def _expanded(op: Expand, reply: list[Any]) -> Expanded | bytes:
    """The outcome; or b"stale" or b"unknown" if nothing was changed."""
    kind = reply[0]
    if kind in (b"stale", b"unknown"):
        return bytes(kind)
    if type(kind) is bytes:
        refused(op, reply)
    return Expanded(kind, reply[1])


def _documents_after(
    op: Expand, settings: Settings, keys: ConversationKeys, document: DocumentOf, reply: list[Any]
) -> Steps[None]:
    if type(reply[0]) is not bytes:
        yield from mark(keys)
        if former := reply[3]:
            yield from _document_again(op, settings, keys, document, former)


def _document_again(
    op: Expand, settings: Settings, keys: ConversationKeys, document: DocumentOf, former: bytes
) -> Steps[None]:
    """Writes the document of a summary that had been absorbed, and so had none: it is live again."""
    [place] = yield [plain(b"HGET", keys.state, b":" + former)]
    if place is None:
        return
    at = position_of(place)
    [members] = yield [page_of(keys, 1, newest=False, after=at._replace(sequence=at.sequence - 1), before=None)]
    message = readable(members[0]) if members else None
    if message is None or message.id.encode() != former:
        return
    fields = document(message, b"")
    entries = [(message.id, body_digest(encode_body(message)))]
    yield [write_documents(op.token, settings, op.conversation_id, entries, [[b"%d" % len(fields), *fields]])]
