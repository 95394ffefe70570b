"""Compaction on a server: what is to leave is read in pages, then one short script moves it. Pure: no I/O here.

The script changes nothing unless all that was read is still so. It knows by the revision of the newest change that
was no append, and by how many messages there are before the end of the range.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import Struct

from redis_history.backends import refusals
from redis_history.backends.compacting import check_pairs, check_summary, replaced
from redis_history.backends.redis.calls import AGAIN, Call, Settings, as_is, change_header, confirmed, refused
from redis_history.backends.redis.documents import write_documents
from redis_history.backends.redis.keys import ConversationKeys, pack_keys
from redis_history.backends.redis.reading import page_of, readable
from redis_history.backends.redis.scripts import COMPACT, COPY, EXPAND, MARK
from redis_history.model import Message, Position
from redis_history.model.ranges import stays, touched_calls, unanswered
from redis_history.model.wire import body_digest, encode_body, placed
from redis_history.operations import Compact, Compacted, Entry, Expand, Expanded

__all__ = ["STEPWISE"]

#: Messages read at once.
_PAGE: Final = 1000
#: How often the reading begins again because somebody edits, deletes or inserts meanwhile.
_TRIES: Final = 50
#: How often both parts of an expansion are copied in steps, members copied at once, and how long an unused copy stays.
_COPIES: Final = 4
_COPIED: Final = 500
_COPY_LASTS_MS: Final = b"60000"
#: Search documents marked at once: some 15 ms of the server's time.
_MARKED: Final = 100
#: Runs of system messages that stay, and messages in them: the script moves them one by one.
_MOST_STAYING: Final = 1000

#: Yields a call, or several that do no harm when repeated; is sent the outcome, or the outcomes.
_Steps = Generator[Any, Any, Any]


class _Range(Struct):
    """What was read of a range. `held`: its members; `runs`: the first and last ranks of those that stay."""

    epoch: bytes = b""
    revision: int = 0
    held: int = 0
    messages: list[Message] = []
    leaving: list[Message] = []
    runs: list[list[int]] = []
    characters: int = 0
    tokens: int = 0
    former: str | None = None


def _compact(op: Compact, settings: Settings) -> _Steps:
    keys = settings.keyspace.conversation(op.conversation_id)
    for _ in range(_TRIES):
        found = yield from _read(op, keys)
        outcome: Compacted | None = yield _flip(op, settings, keys, found)
        if outcome is not None:
            return outcome
    raise refusals.compaction_conflict(op.conversation_id, f"it was changed during each of {_TRIES} attempts")


def _read(op: Compact, keys: ConversationKeys) -> _Steps:
    entry = op.summary
    own, mark = b":" + entry.message.id.encode(), b"^" + entry.message.id.encode()
    [head] = yield [_plain(b"HMGET", keys.state, b"e", b"r", b"s", own, mark)]
    epoch, revision, former, place, compaction = head
    found = _Range(epoch or b"", int(revision or 0))
    if place is not None and compaction is not None and place[27:] == _what(entry):
        return found  # done already: the script tells what it did, unless the precondition forbids
    if op.precondition.expected_revision not in (None, found.revision):
        raise refusals.revision_conflict(op.conversation_id, found.revision, op.precondition.expected_revision)
    end = op.through._replace(sequence=op.through.sequence + 1)
    yield from _read_messages(found, keys, end)
    found.leaving = replaced(op, found.messages)
    if not found.leaving:
        return found
    if former is not None:
        found.former = former.decode()
        [standing] = yield [_plain(b"HGET", keys.state, b":" + former)]
        check_summary(op, None if standing is None else _position(standing))
    yield from _check_pairs(op, found, keys, end)
    if place is not None:
        raise refusals.message_conflict(op.conversation_id, entry.message.id)
    return found


def _read_messages(found: _Range, keys: ConversationKeys, end: Position) -> _Steps:
    """All up to the end of the range, in pages, and what they count in the totals."""
    after: Position | None = None
    size = _PAGE
    while True:
        [members] = yield [page_of(keys, size, newest=False, after=after, before=end)]
        more, decoded = len(members) == size, list(map(readable, members))
        while more and decoded and decoded[-1] is None:
            decoded.pop()  # the next page begins behind the last readable message
        messages = []
        for rank, message in enumerate(decoded, found.held):
            if message is None:
                continue
            messages.append(message)
            if stays(message):
                if found.runs and found.runs[-1][1] == rank - 1:
                    found.runs[-1][1] = rank
                else:
                    found.runs.append([rank, rank])
        found.messages += messages
        if ids := [message.id for message in messages if not stays(message)]:
            [places] = yield [_plain(b"HMGET", keys.state, *(b":" + one.encode() for one in ids))]
            for place in filter(None, places):
                found.characters += int.from_bytes(place[27:31], "big")
                found.tokens += int.from_bytes(place[31:35], "big")
        found.held += len(decoded)
        if not more:
            break
        if messages:
            after, size = messages[-1].position, _PAGE
        else:  # a page without a readable message tells no place: read more at once
            size *= 4
    staying = sum(last - first + 1 for first, last in found.runs)
    if staying > _MOST_STAYING:
        raise refusals.too_many_staying(staying, _MOST_STAYING)


def _check_pairs(op: Compact, found: _Range, keys: ConversationKeys, end: Position) -> _Steps:
    """Reads on until all calls of the range are answered."""
    waiting = unanswered(found.messages)
    messages = list(found.messages)
    after, size, more = end._replace(sequence=end.sequence - 1), _PAGE, True
    torn = False
    while more and (waiting or torn):
        [members] = yield [page_of(keys, size, newest=False, after=after, before=None)]
        later = [message for message in map(readable, members) if message is not None]
        for message in later:
            waiting -= touched_calls(message)
        messages += later
        more = len(members) == size
        if later:
            after, size = later[-1].position or after, _PAGE
        else:
            size *= 4
        if not waiting and not torn:
            torn = True
            try:
                check_pairs(op, len(found.messages), messages)
                return
            except ValueError:
                continue  # read all, to name a place that would do
    check_pairs(op, len(found.messages), messages)


def _flip(op: Compact, settings: Settings, keys: ConversationKeys, found: _Range) -> Call:
    entry = op.summary
    leaving = found.leaving
    last = leaving[-1].position if leaving else Position(0, 0)
    assert last is not None  # noqa: S101
    runs = [rank for run in found.runs for rank in run] if leaving else []
    numbers = (
        op.through.timestamp,
        op.through.sequence + 1,
        found.held,
        len(leaving),
        found.characters,
        found.tokens,
        *last,
        len(runs) // 2,
        *runs,
    )
    args = [
        *change_header(op.token, settings, keys, op.precondition),
        found.epoch,
        b"%d" % found.revision,
        entry.message.id.encode(),
        _what(entry),
        entry.body,
        *(b"%d" % number for number in numbers),
    ]
    follow = None
    if settings.document is not None and leaving:
        args += settings.document(entry.message, op.vectors[0] if op.vectors else b"")
        originals = [message.sequence or 0 for message in leaving if message.id != found.former]
        follow = partial(_marked, settings, op.conversation_id, originals, b"1")
    call = Call(COMPACT, keys.writing, args, partial(_compacted, op), AGAIN, follow=follow)
    return confirmed(call, op, settings)


def _compacted(op: Compact, reply: list[Any]) -> Compacted | None:
    kind = reply[0]
    if kind == b"stale":
        return None
    if kind == b"nothing":
        return Compacted(reply[1], None, 0, False)
    if kind != b"stored":
        refused(op, reply)
    _, revision, count, sequence, timestamp, own = reply
    return Compacted(revision, placed(op.summary.message, sequence, int(timestamp)), count, bool(own))


def _expand(op: Expand, settings: Settings) -> _Steps:
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


def _copy(op: Expand, keys: ConversationKeys) -> _Steps:
    """Puts copies of what is live and of what comes back into one set; from which epoch, revision and sequence on."""
    [head] = yield [_plain(b"HMGET", keys.state, b"e", b"r", b"q", b"^" + op.summary_id.encode())]
    epoch, revision, sequence, compaction = (part or b"0" for part in head)
    archive = keys.archive(int(compaction))
    copy = b"%b:%b" % (archive, op.token.encode())
    yield [_plain(b"UNLINK", copy)]
    for source in (archive, keys.messages):
        start, count = 0, _COPIED
        while count == _COPIED:
            args = [b"%d" % start, b"%d" % (start + _COPIED - 1), _COPY_LASTS_MS]
            [count] = yield [Call(COPY, pack_keys(source, copy), args, as_is)]
            start += count
    return [epoch, revision, sequence]


def _sequences(op: Expand, keys: ConversationKeys) -> _Steps:
    """Of what comes back, for its search documents."""
    [compaction] = yield [_plain(b"HGET", keys.state, b"^" + op.summary_id.encode())]
    archive = keys.archive(int(compaction or 0))
    found: list[int] = []
    while True:
        start = len(found)
        [members] = yield [_plain(b"ZRANGE", archive, b"%d" % start, b"%d" % (start + _PAGE - 1))]
        found += [int.from_bytes(member[2:10], "big") for member in members]
        if len(members) < _PAGE:
            return found


def _expand_call(
    op: Expand, settings: Settings, keys: ConversationKeys, prepared: list[bytes], sequences: list[int]
) -> Call:
    args = [*change_header(op.token, settings, keys, op.precondition), op.summary_id.encode()]
    args += [msgspec.msgpack.encode(op.summary_id), *prepared]
    follow = partial(_marked, settings, op.conversation_id, sequences, b"0") if sequences else None
    return confirmed(Call(EXPAND, keys.writing, args, partial(_expanded, op), AGAIN, follow=follow), op, settings)


def _expanded(op: Expand, reply: list[Any]) -> tuple[Expanded | None, bytes] | None:
    if reply[0] == b"stale":
        return None
    if reply[0] == b"unknown":
        return None, b""
    if type(reply[0]) is bytes:
        refused(op, reply)
    return Expanded(reply[0], reply[1]), reply[3]


def _document_again(op: Expand, settings: Settings, keys: ConversationKeys, former: bytes) -> _Steps:
    """A summary that had been absorbed had no document; it is live again."""
    assert settings.document is not None  # noqa: S101
    [place] = yield [_plain(b"HGET", keys.state, b":" + former)]
    if place is None:
        return
    at = _position(place)
    [members] = yield [page_of(keys, 1, newest=False, after=at._replace(sequence=at.sequence - 1), before=None)]
    message = readable(members[0]) if members else None
    if message is not None and message.id.encode() == former:
        fields = settings.document(message, b"")
        entries = [(message.id, body_digest(encode_body(message)))]
        yield write_documents(op.token, settings, op.conversation_id, entries, [[b"%d" % len(fields), *fields]])


def _marked(
    settings: Settings, conversation_id: str, sequences: list[int], archived: bytes, reply: list[Any]
) -> Call | None:
    """Tells the search documents of messages, some at a time, where their messages are now; if these have moved."""
    if type(reply[0]) is bytes and reply[0] != b"stored":
        return None
    keys = settings.keyspace.conversation(conversation_id)

    def chunk(start: int, life: bytes) -> Call | None:
        share = sequences[start : start + _MARKED]
        if not share:
            return None
        prefix = settings.keyspace.documents_of(conversation_id, life)
        packed = pack_keys(keys.state, *(b"%b%d" % (prefix, sequence) for sequence in share))
        return Call(MARK, packed, [life, archived], as_is, follow=lambda _: chunk(start + _MARKED, life))

    def begin(life: bytes | None) -> Call | None:
        return None if life is None else chunk(0, life)

    return Call(None, b"", [b"HGET", keys.state, b"i"], as_is, follow=begin)


def _what(entry: Entry) -> bytes:
    return entry.characters.to_bytes(4, "big") + entry.tokens.to_bytes(4, "big") + entry.digest + entry.tools


def _position(place: bytes) -> Position:
    return Position(int.from_bytes(place[11:19], "big", signed=True), int.from_bytes(place[2:10], "big"))


def _plain(*command: bytes) -> Call:
    return Call(None, b"", [*command], as_is)


STEPWISE: Final[dict[Any, Callable[[Any, Settings], _Steps]]] = {Compact: _compact, Expand: _expand}
