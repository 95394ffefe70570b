"""The steps of compaction and expansion."""

from __future__ import annotations

from bisect import bisect_left
from functools import partial
from typing import Any, Final

from msgspec import Struct, structs

from redis_history.backends.redis.plan_reads import changes_call, page_of, readable
from redis_history.backends.redis.plan_replies import read_replies
from redis_history.backends.redis.plan_writes import packed_message
from redis_history.backends.redis.search_index import counted_fields, mark, write_documents
from redis_history.events import BEGINNING, ConversationUpdated, Cursor, MessagesAppended
from redis_history.model import Message, Position
from redis_history.model.ranges import Ranges
from redis_history.model.wire import body_of, characters_of, placed
from redis_history.operations import Compact, Compacted, Expand, Expanded, ReadChanges, rules
from redis_history.operations.base import (
    COMPACT,
    COPY,
    EXPAND,
    FIND,
    Call,
    DocumentOf,
    Settings,
    Steps,
    Upkeep,
    as_is,
    once,
    plain,
    refused,
    write,
    write_call,
)
from redis_history.operations.base import read as read_call
from redis_history.operations.keys import ConversationKeys, field_of, pack_keys
from redis_history.operations.rules import check_pairs, check_summary, replaced
from redis_history.tokens import estimate_tokens

#: Messages read at once.
_PAGE: Final = 1000

#: Attempts, if others change the range at the same time.
_TRIES: Final = 50

#: System and pinned messages that stay in the range: the script moves them one by one.
_MOST_STAYING: Final = 1000


class _Tail(Struct):
    """A range with unanswered tool calls, and the messages after it. `ranges`: which ranges of `messages` are whole.
    `known`, `sequence`: the newest change and sequence that `messages` includes."""

    messages: list[Message]
    ranges: Ranges
    known: Cursor
    sequence: int


class _Range(Struct):
    """A range as it was read. `held`: the number of its members. `runs`: first and last ranks of messages that stay.
    `tail`: None if no later message matters."""

    epoch: bytes = b""
    revision: int = 0
    token: bytes = b""
    sequence: int = 0
    held: int = 0
    tail: _Tail | None = None
    messages: list[Message] = []
    members: list[tuple[int, int]] = []  # rank and characters of each message
    leaving: list[Message] = []
    runs: list[list[int]] = []
    characters: int = 0
    tokens: int = 0


def compact(op: Compact, settings: Settings) -> Steps[Compacted]:
    keys = settings.keyspace.conversation(op.conversation_id)
    for _ in range(_TRIES):
        found = yield from _read_range(op, settings, keys)
        for _ in range(_TRIES):
            outcome: Compacted | bytes = yield from _commit(op, settings, keys, found)
            if isinstance(outcome, Compacted):
                return outcome
            if outcome == b"stale" or not (yield from _read_appended(op, settings, found)):
                break
        else:
            break
    raise rules.compaction_conflict(op.conversation_id, f"it was changed during each of {_TRIES} attempts")


def _read_range(op: Compact, settings: Settings, keys: ConversationKeys) -> Steps[_Range]:
    entry = op.summary
    own, mark = field_of(entry.message.id), b"^" + entry.message.id.encode()
    [head] = yield [plain(b"HMGET", keys.state, b"e", b"r", b"x", b"q", b"s", own, mark)]
    epoch, revision, token, sequence, former, place, compaction = head
    found = _Range(epoch or b"", int(revision or 0), token or b"", int(sequence or 0))
    if place is not None and compaction is not None:
        args = [own, entry.message.id.encode()]
        [member] = yield [Call(FIND, pack_keys(keys.state, keys.messages), args, as_is)]
        if member is not None and body_of(member) == entry.body:
            return found  # done before: the script returns its outcome, or refuses the precondition
    if op.precondition.expected_revision not in (None, found.revision):
        raise rules.revision_conflict(op.conversation_id, found.revision, op.precondition.expected_revision)
    end = op.through._replace(sequence=op.through.sequence + 1)
    yield from _read_messages(found, keys, end)
    found.messages = yield from _with_live_calls(op, settings, found.messages)
    found.leaving = replaced(op, found.messages)
    if not found.leaving:
        return found
    _measure(found)
    if former is not None:
        [standing] = yield [plain(b"HGET", keys.state, field_of(former.decode()))]
        check_summary(op, None if standing is None else position_of(standing))
    yield from _check_pairs(op, settings, found, keys, end)
    if place is not None:
        raise rules.message_conflict(op.conversation_id, entry.message.id)
    return found


def _with_live_calls(op: Compact, settings: Settings, messages: list[Message]) -> Steps[list[Message]]:
    """The messages; replies that are being written with their parts so far, because these may have tool calls."""
    positions = [one.position for one in messages if one.status == "streaming" and one.position is not None]
    if not positions:
        return messages
    found = yield from read_replies(op.conversation_id, positions, settings)
    parts = {at: one.message.parts for at, one in zip(positions, found, strict=True) if one is not None}
    return [
        structs.replace(one, parts=parts[one.position]) if one.position in parts and one.status == "streaming" else one
        for one in messages
    ]


def _read_messages(found: _Range, keys: ConversationKeys, end: Position) -> Steps[None]:
    """Reads all messages of the range, in pages, with their characters and tokens."""
    after: Position | None = None
    size = _PAGE
    while True:
        [members] = yield [page_of(keys, size, newest=False, after=after, before=end)]
        more, decoded = len(members) == size, list(map(readable, members))
        while more and decoded and decoded[-1] is None:
            decoded.pop()  # the next page begins after the last readable message
        messages = []
        for rank, message in enumerate(decoded, found.held):
            if message is None:
                continue
            messages.append(message)
            found.members.append((rank, characters_of(members[rank - found.held])))
        found.messages += messages
        found.held += len(decoded)
        if not more:
            break
        if messages:
            after, size = messages[-1].position, _PAGE
        else:  # without a readable message there is no position to continue from
            size *= 4


def _measure(found: _Range) -> None:
    """Finds what the leaving messages count, and the ranks of those that stay."""
    leaving = {message.id for message in found.leaving}
    for message, (rank, characters) in zip(found.messages, found.members, strict=True):
        if message.id in leaving:
            found.characters += characters
            found.tokens += estimate_tokens(characters)
        elif found.runs and found.runs[-1][1] == rank - 1:
            found.runs[-1][1] = rank
        else:
            found.runs.append([rank, rank])
    staying = len(found.messages) - len(leaving)
    if staying > _MOST_STAYING:
        raise rules.too_many_staying(staying, _MOST_STAYING)


def _check_pairs(op: Compact, settings: Settings, found: _Range, keys: ConversationKeys, end: Position) -> Steps[None]:
    """Reads on until all tool calls of the range are answered, or to the end of the conversation."""
    messages, count = list(found.messages), len(found.messages)
    ranges = Ranges(messages)
    after, size, more = end._replace(sequence=end.sequence - 1), _PAGE, True
    while more and (ranges.waits(count) or not ranges.is_whole(count)):  # if torn, to suggest another end
        [members] = yield [page_of(keys, size, newest=False, after=after, before=None)]
        later = [message for message in map(readable, members) if message is not None]
        later = yield from _with_live_calls(op, settings, later)
        for message in later:
            ranges.add(message)
        messages += later
        more = len(members) == size
        if later:
            after, size = later[-1].position or after, _PAGE
        else:
            size *= 4
    if not ranges.is_whole(count):
        check_pairs(op, count, messages)
    if ranges.waits(count):
        known = Cursor(found.epoch.decode(), found.revision, found.token.hex() or BEGINNING.token)
        found.tail = _Tail(messages, ranges, known, found.sequence)


def _read_appended(op: Compact, settings: Settings, found: _Range) -> Steps[bool]:
    """Adds new messages to the tail. Returns False if anything else changed, or the range is not whole any more."""
    tail = found.tail
    assert tail is not None  # noqa: S101
    more = True
    while more:
        changes = yield from read_call(changes_call(ReadChanges(op.conversation_id, tail.known), settings), settings)
        more = changes.more
        for event in changes.events:
            if not isinstance(event, MessagesAppended | ConversationUpdated):
                return False
            tail.known = event.cursor
            for message in event.messages if isinstance(event, MessagesAppended) else ():
                tail.sequence = max(tail.sequence, message.sequence or 0)
                _add(tail, message)
    return tail.ranges.is_whole(len(found.messages))


def _add(tail: _Tail, message: Message) -> None:
    """Adds a message in order, unless it is present. Nearly always it is the last one."""
    messages = tail.messages
    if _key(message) > _key(messages[-1]):
        messages.append(message)
        tail.ranges.add(message)
        return
    at = bisect_left(messages, _key(message), key=_key)
    if _key(messages[at]) != _key(message):
        messages.insert(at, message)
        tail.ranges = Ranges(messages)


def _key(message: Message) -> Position:
    return message.position or Position(0, 0)


def _commit(op: Compact, settings: Settings, keys: ConversationKeys, found: _Range) -> Steps[Compacted | bytes]:
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
    )
    args = [
        found.epoch,
        b"%d" % found.revision,
        entry.message.id.encode(),
        *packed_message(entry, settings),
        *(b"%d" % number for number in numbers),
        b"" if found.tail is None else b"%d" % found.tail.sequence,
        field_of(entry.message.id),
        b"%d" % (len(runs) // 2),
        *(b"%d" % rank for rank in runs),
    ]
    document = settings.document if leaving else None
    if document is not None:
        args += document(entry.message, op.vectors[0] if op.vectors else b"")
    call = write_call(COMPACT, op, settings, args, _compacted)
    return write(op, settings, call, None if document is None else partial(_marks, keys))


def _marks(keys: ConversationKeys, reply: list[Any]) -> Steps[None]:
    if reply[0] == b"stored":
        yield from mark(keys)


def _compacted(op: Compact, reply: list[Any]) -> Compacted | bytes:
    """The outcome; b"stale" or b"appended" if others changed the conversation, so that nothing was done."""
    kind: bytes = reply[0]
    if kind in (b"stale", b"appended"):
        return kind
    if kind == b"nothing":
        return Compacted(reply[1], None, 0, False)
    if kind != b"stored":
        refused(op, reply)
    _, revision, count, sequence, timestamp, own = reply
    return Compacted(revision, placed(op.summary.message, sequence, int(timestamp)), count, bool(own))


def position_of(place: bytes) -> Position:
    """The position of a message, from its field in the state: see lua/_member.lua."""
    sequence = at = 0
    while place[10 + at] & 0x80:
        sequence |= (place[10 + at] & 0x7F) << 7 * at
        at += 1
    return Position(int.from_bytes(place[:7], "big", signed=True), sequence | place[10 + at] << 7 * at)


#: Attempts to make a staging copy, members copied at once, and how long an unused copy stays.
_COPIES: Final = 4
_COPIED: Final = 500
_COPY_LASTS_MS: Final = b"60000"


def expand(op: Expand, settings: Settings) -> Steps[Expanded | None]:
    keys = settings.keyspace.conversation(op.conversation_id)
    outcome: Expanded | bytes = yield from _expand(op, settings, keys, [b"", b"", b"", b"", b""])
    for attempt in range(_COPIES):
        if outcome != b"stale":
            break
        # A new token each time, so that late pages of an earlier copy cannot reach this one.
        token = b"%b.%d" % (op.token.encode(), attempt)
        [compaction] = yield [plain(b"HGET", keys.state, b"^" + op.summary_id.encode())]
        archive = keys.archive(int(compaction or 0))
        begun = yield from _make_copy(keys, archive, token)
        if begun is not None:
            outcome = yield from _expand(op, settings, keys, [b"1", *begun, token])
        if outcome == b"stale":
            yield Upkeep(once([plain(b"UNLINK", keys.copy)]))
    if outcome == b"stale":
        outcome = yield from _expand(op, settings, keys, [b"2", b"", b"", b"", b""])
    return outcome if isinstance(outcome, Expanded) else None


def _make_copy(keys: ConversationKeys, archive: bytes, token: bytes) -> Steps[list[bytes] | None]:
    """Copies the archived and the live messages into one set. Returns the epoch, revision and sequence of the first
    page; None if the copy was lost meanwhile."""
    begun: list[bytes] | None = None
    held = b""
    for source in (archive, keys.messages):
        start, count = 0, _COPIED
        while count == _COPIED:
            args = [b"%d" % start, b"%d" % (start + _COPIED - 1), _COPY_LASTS_MS, held, token]
            [reply] = yield [Call(COPY, pack_keys(source, keys.state, keys.copy), args, as_is)]
            if reply[0] < 0:
                return None
            count, held = reply[0], b"%d" % reply[1]
            start += count
            begun = begun or reply[2:]
    return begun


def _expand(op: Expand, settings: Settings, keys: ConversationKeys, prepared: list[bytes]) -> Steps[Expanded | bytes]:
    args = [op.summary_id.encode(), field_of(op.summary_id), *prepared]
    call = write_call(EXPAND, op, settings, args, _expanded)
    document = settings.document
    after = None if document is None else partial(_index_after, op, settings, keys, document)
    return write(op, settings, call, after)


def _expanded(op: Expand, reply: list[Any]) -> Expanded | bytes:
    """The outcome; b"stale" or b"unknown" if nothing was changed."""
    kind = reply[0]
    if kind in (b"stale", b"unknown"):
        return bytes(kind)
    if type(kind) is bytes:
        refused(op, reply)
    return Expanded(kind, reply[1])


def _index_after(
    op: Expand, settings: Settings, keys: ConversationKeys, document: DocumentOf, reply: list[Any]
) -> Steps[None]:
    if type(reply[0]) is not bytes:
        yield from mark(keys)
        if former := reply[3]:
            yield from _index_former(op, settings, keys, document, former)


def _index_former(
    op: Expand, settings: Settings, keys: ConversationKeys, document: DocumentOf, former: bytes
) -> Steps[None]:
    [[epoch, revision, place]] = yield [plain(b"HMGET", keys.state, b"e", b"r", field_of(former.decode()))]
    if place is None:
        return
    at = position_of(place)
    [members] = yield [page_of(keys, 1, newest=False, after=at._replace(sequence=at.sequence - 1), before=None)]
    message = readable(members[0]) if members else None
    if message is None or message.id.encode() != former:
        return
    documents = [counted_fields(document, message, b"")]
    read_at = epoch.decode(), int(revision)
    yield [write_documents(op.token, settings, op.conversation_id, *read_at, [message.id], documents)]
