"""Expansion on a server: what a summary replaced comes back. A few messages are moved by one script; of many, a copy is
prepared in steps, and put in place by it. Pure: no I/O here.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import msgspec

from redis_history.backends.redis.calls import AGAIN, Call, Settings, as_is, change_header, confirmed, refused
from redis_history.backends.redis.documents import write_documents
from redis_history.backends.redis.keys import ConversationKeys, pack_keys
from redis_history.backends.redis.moving import PAGE, Steps, marked, plain, position_of
from redis_history.backends.redis.reading import page_of, readable
from redis_history.backends.redis.scripts import COPY, EXPAND
from redis_history.model.wire import body_digest, encode_body
from redis_history.operations import Expand, Expanded

__all__ = ["expand"]

#: How often both parts of an expansion are copied in steps, members copied at once, and how long an unused copy stays.
_COPIES: Final = 4
_COPIED: Final = 500
_COPY_LASTS_MS: Final = b"60000"


def expand(op: Expand, settings: Settings) -> Steps:
    keys = settings.keyspace.conversation(op.conversation_id)
    outcome: tuple[Expanded | None, bytes] | None = None
    how = b""
    for attempt in range(_COPIES + 1):
        copied = (yield from _copy(op, keys)) if how == b"1" else [b"", b"", b""]
        sequences = (yield from _sequences(op, keys)) if settings.document is not None else []
        outcome = yield _expand_call(op, settings, keys, [how, *copied], sequences)
        if outcome is not None:
            break
        how = b"1" if attempt < _COPIES - 1 else b"2"
    assert outcome is not None  # noqa: S101 -- the last attempt does not depend on what others do
    expanded, former = outcome
    if former and settings.document is not None:
        yield from _document_again(op, settings, keys, former)
    return expanded


def _copy(op: Expand, keys: ConversationKeys) -> Steps:
    """Puts copies of what is live and of what comes back into one set; from which epoch, revision and sequence on."""
    [head] = yield [plain(b"HMGET", keys.state, b"e", b"r", b"q", b"^" + op.summary_id.encode())]
    epoch, revision, sequence, compaction = (part or b"0" for part in head)
    archive = keys.archive(int(compaction))
    copy = b"%b:%b" % (archive, op.token.encode())
    yield [plain(b"UNLINK", copy)]
    for source in (archive, keys.messages):
        start, count = 0, _COPIED
        while count == _COPIED:
            args = [b"%d" % start, b"%d" % (start + _COPIED - 1), _COPY_LASTS_MS]
            [count] = yield [Call(COPY, pack_keys(source, copy), args, as_is)]
            start += count
    return [epoch, revision, sequence]


def _sequences(op: Expand, keys: ConversationKeys) -> Steps:
    """Of what comes back, for its search documents."""
    [compaction] = yield [plain(b"HGET", keys.state, b"^" + op.summary_id.encode())]
    archive = keys.archive(int(compaction or 0))
    found: list[int] = []
    while True:
        start = len(found)
        [members] = yield [plain(b"ZRANGE", archive, b"%d" % start, b"%d" % (start + PAGE - 1))]
        found += [int.from_bytes(member[2:10], "big") for member in members]
        if len(members) < PAGE:
            return found


def _expand_call(
    op: Expand, settings: Settings, keys: ConversationKeys, prepared: list[bytes], sequences: list[int]
) -> Call:
    args = [*change_header(op.token, settings, keys, op.precondition), op.summary_id.encode()]
    args += [msgspec.msgpack.encode(op.summary_id), *prepared]
    follow = partial(marked, settings, op.conversation_id, sequences, b"0") if sequences else None
    return confirmed(Call(EXPAND, keys.writing, args, partial(_expanded, op), AGAIN, follow=follow), op, settings)


def _expanded(op: Expand, reply: list[Any]) -> tuple[Expanded | None, bytes] | None:
    if reply[0] == b"stale":
        return None
    if reply[0] == b"unknown":
        return None, b""
    if type(reply[0]) is bytes:
        refused(op, reply)
    return Expanded(reply[0], reply[1]), reply[3]


def _document_again(op: Expand, settings: Settings, keys: ConversationKeys, former: bytes) -> Steps:
    """A summary that had been absorbed had no document; it is live again."""
    assert settings.document is not None  # noqa: S101
    [place] = yield [plain(b"HGET", keys.state, b":" + former)]
    if place is None:
        return
    at = position_of(place)
    [members] = yield [page_of(keys, 1, newest=False, after=at._replace(sequence=at.sequence - 1), before=None)]
    message = readable(members[0]) if members else None
    if message is not None and message.id.encode() == former:
        fields = settings.document(message, b"")
        entries = [(message.id, body_digest(encode_body(message)))]
        yield write_documents(op.token, settings, op.conversation_id, entries, [[b"%d" % len(fields), *fields]])
