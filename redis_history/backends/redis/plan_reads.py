"""The calls of reading operations."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

import msgspec
from msgspec import structs

from redis_history.backends.redis.plan_runs import read_run
from redis_history.errors import CorruptDataError
from redis_history.events import BEGINNING, Cursor, Event
from redis_history.model import Conversation, Message, Position
from redis_history.model.times import from_microseconds
from redis_history.model.wire import decode_member, decode_members, has_live
from redis_history.operations import (
    Changes,
    FindMessage,
    Head,
    Page,
    ReadChanges,
    ReadConversation,
    ReadHead,
    ReadLog,
    ReadPage,
)
from redis_history.operations.base import CHANGES, FIND, HEAD, PAGE, PAGE_ARCHIVED, Call, Settings, as_is, plain
from redis_history.operations.changelog import Kind, LiveReply, LogEntry, events_of, is_gone, recover
from redis_history.operations.keys import ConversationKeys, field_of, pack_keys
from redis_history.operations.rules import cut_page

_logger = logging.getLogger("redis_history")

_decode_value = msgspec.msgpack.Decoder().decode

#: The record's fields in the state, each a MessagePack value.
RECORD_KEYS: Final = {"user_id": b"U", "agent_name": b"A", "title": b"T", "auditing_id": b"D", "metadata": b"M"}
#: The fields of the state for a Conversation: revision, totals, times, origin of a fork, record.
STATE_FIELDS: Final = (b"r", b"n", b"c", b"k", b"b", b"u", b"F", b"B", b"C", *RECORD_KEYS.values())
#: A read of changes stops after so many bytes, which bounds a subscriber's memory.
CHANGES_BYTES: Final = b"1000000"


def find_call(op: FindMessage, settings: Settings) -> Call:
    keys = settings.keyspace.conversation(op.conversation_id)
    args = [field_of(op.message_id), op.message_id.encode()]
    return Call(FIND, pack_keys(keys.state, keys.messages), args, _found)


def _found(reply: bytes | None) -> Message | None:
    return None if reply is None else decode_member(reply)


def page_call(op: ReadPage, settings: Settings) -> Call:
    keys = settings.keyspace.conversation(op.conversation_id)
    if op.archive is not None:
        keys = keys._replace(messages=keys.archive(op.archive))
    elif op.archived:
        packed = pack_keys(keys.state, keys.messages)
        return Call(PAGE_ARCHIVED, packed, _window(op), partial(_members_of_all, op))
    call = page_of(keys, op.limit, newest=op.newest, after=op.after, before=op.before)
    return msgspec.structs.replace(call, decode=partial(_members, op.conversation_id))


def page_of(
    keys: ConversationKeys,
    limit: int,
    *,
    newest: bool,
    after: Position | None = None,
    before: Position | None = None,
) -> Call:
    if after is None and before is None:
        first, last = (-limit, -1) if newest else (0, limit - 1)
        return plain(b"ZRANGE", keys.messages, b"%d" % first, b"%d" % last)
    window = _window(ReadPage("", limit, newest, after, before))
    return Call(PAGE, pack_keys(keys.messages), window, as_is)


def _window(op: ReadPage) -> list[bytes]:
    lower = None if op.after is None else op.after._replace(sequence=op.after.sequence + 1)
    args = [b"%d" % op.limit, b"1" if op.newest else b"0"]
    for bound in (lower, op.before):
        args += (b"", b"") if bound is None else (b"%d" % bound.timestamp, b"%d" % bound.sequence)
    return args


def _members_of_all(op: ReadPage, reply: list[Any]) -> Page:
    """A page from the live messages and each archive; `limit` members were read of each set."""
    if len(reply) == 3 and reply[0] == 0 and len(reply[2]) <= op.limit:  # nothing to merge
        page = _members(op.conversation_id, reply[2])
        return structs.replace(page, archived=(False,) * len(page.messages))
    sets = [(reply[at] or 2**63, reply[at + 1], reply[at + 2]) for at in range(0, len(reply), 3)]
    found: list[tuple[Position, bool, Message]] = []
    unreadable = 0
    for order, _, members in sorted(sets):  # a live summary follows archived messages of its position
        page = _members(op.conversation_id, members)
        unreadable += page.unreadable
        found += [(cast(Position, one.position), order < 2**63, one) for one in page.messages]
    return cut_page(op, found, unreadable, frozenset(former.decode() for _, former, _ in sets if former))


def readable(member: bytes) -> Message | None:
    """The message in a member. None, with a log line, if it cannot be decoded."""
    try:
        return decode_member(member)
    except CorruptDataError as error:
        _logger.error("skipped an unreadable message: %s", error)
        return None


def _members(conversation_id: str, reply: list[bytes]) -> Page:
    messages, errors = decode_members(reply)
    for error in errors:
        _logger.error("skipped an unreadable message of conversation %r: %s", conversation_id[:80], error)
    return Page(messages, len(errors), live=has_live(reply))


def head_call(op: ReadHead, settings: Settings) -> Call:
    keys = settings.keyspace.conversation(op.conversation_id)
    return Call(HEAD, pack_keys(keys.state, keys.log, keys.messages), [b"%d" % op.messages], partial(_read_head, op))


def _read_head(op: ReadHead, reply: list[Any]) -> tuple[Head, dict[int, tuple[bytes, float]]]:
    """The head; and by sequence, the content of streaming replies and how long their writers count as alive."""
    cursor = _cursor(reply)
    replies = {sequence: (content, lives) for sequence, content, lives in reply[7]}
    return Head(cursor, reply[3], reply[4], reply[5], _members(op.conversation_id, reply[6])), replies


def changes_call(op: ReadChanges, settings: Settings) -> Call:
    keys = settings.keyspace.conversation(op.conversation_id)
    args = [b"%d" % op.after.revision, b"%d" % (op.limit + 1), CHANGES_BYTES]
    for sequence, progress in op.replies.items():
        args += (b"%d" % sequence, b"%d" % progress.size)
    return Call(CHANGES, pack_keys(keys.state, keys.log, keys.messages), args, partial(_read_changes, op, settings))


def log_call(op: ReadLog, settings: Settings) -> Call:
    call = changes_call(ReadChanges(op.conversation_id, Cursor("", op.after, ""), op.limit), settings)
    return msgspec.structs.replace(call, decode=partial(_read_log, op))


def _read_log(op: ReadLog, reply: list[Any]) -> list[Event]:
    if is_gone(_cursor(reply)):
        return []
    entries = [_log_entry(revision, *raw) for revision, raw in enumerate(reply[5], reply[4])]
    entries = [entry for entry in entries if entry.revision > op.after]
    return events_of(op.conversation_id, reply[0].decode(), entries[: op.limit])


def _cursor(reply: list[Any]) -> Cursor:
    return Cursor(reply[0].decode(), reply[1], reply[2].hex() or BEGINNING.token)


def _read_changes(op: ReadChanges, settings: Settings, reply: list[Any]) -> Changes:
    entries = [_log_entry(revision, *raw) for revision, raw in enumerate(reply[5], reply[4])]
    replies = [
        LiveReply(Position(int(timestamp), sequence), message_id.decode(), content, size, lives / 1000)
        for sequence, timestamp, message_id, content, size, lives in reply[6]
    ]
    run, expires = read_run(op.conversation_id, *reply[7:10], outage=settings.outage.is_recent)
    return recover(
        op.conversation_id,
        op.after,
        _cursor(reply),
        entries,
        op.limit,
        former="log" if reply[3] == b"log" else reply[3].hex(),
        replies=replies,
        had=op.replies,
        run=run,
        expires=expires,
        known_run=op.run,
    )


def _log_entry(revision: int, raw: bytes, content: list[Any]) -> LogEntry:
    """An entry (format: lua/_change.lua) with the content that lua/changes.lua read."""
    if len(raw) < 10:
        return LogEntry(revision, "", 0)  # unreadable
    token, kind, rest = raw[:10].hex(), raw[0] >> 4, raw[10:]
    if not rest and kind != Kind.CLEARED:  # the entry of the subscriber's cursor has no content
        return LogEntry(revision, token, kind)
    # The contents of a change of the record are values, of all others they are messages.
    messages: tuple[Message, ...] = ()
    if kind != Kind.RECORD:
        messages = tuple(filter(None, (readable(item) for item in content if type(item) is bytes)))
    gone = tuple(item[0].decode() for item in content if type(item) is list and item)
    try:
        if kind == Kind.RECORD:
            return LogEntry(revision, token, kind, fields=_fields(rest, content))
        if kind in (Kind.APPENDED, Kind.RESTORED):
            return LogEntry(revision, token, kind, messages, gone, tuple(_decode_value(rest)[2]))
        if kind == Kind.DELETED:
            return LogEntry(revision, token, kind, ids=tuple(_decode_value(rest)[0]))
        if kind in (Kind.UPDATED, Kind.REPLY_ENDED, Kind.COMPACTED):
            message_id, *place, count = (*_decode_value(rest), 0)[:4]
            return LogEntry(revision, token, kind, messages, gone, (message_id,), count, Position(*place))
        if kind == Kind.EXPANDED:
            summary_id, count = _decode_value(rest)
            return LogEntry(revision, token, kind, ids=(summary_id,), count=count)
    except (msgspec.MsgspecError, TypeError, ValueError, IndexError, RecursionError):
        return LogEntry(revision, token, 0)
    return LogEntry(revision, token, kind, messages, gone)


def _fields(names: bytes, values: list[Any]) -> dict[str, Any]:
    known = {key: name for name, key in RECORD_KEYS.items()}
    pairs = zip((names[at : at + 1] for at in range(len(names))), values, strict=False)
    return {known[key]: _decode_value(value) for key, value in pairs if key in known and type(value) is bytes}


def read_conversation(op: ReadConversation, settings: Settings) -> Call:
    state = settings.keyspace.conversation(op.conversation_id).state
    return plain(b"HMGET", state, *STATE_FIELDS, decode=partial(conversation_of, op.conversation_id))


def conversation_of(conversation_id: str, values: list[bytes | None]) -> Conversation | None:
    """The conversation with these values of STATE_FIELDS; None if there is none."""
    if values[0] is None:
        return None
    try:
        revision, count, characters, tokens, created, updated = (int(value or 0) for value in values[:6])
        named = zip(RECORD_KEYS, values[9:], strict=True)
        times = [values[6][:7], values[6][7:]] if values[6] else []
        first, last = [from_microseconds(int.from_bytes(time, "big", signed=True)) for time in times] or (None, None)
        return msgspec.convert(
            {
                "conversation_id": conversation_id,
                **{name: _decode_value(value) for name, value in named if value is not None},
                "message_count": count,
                "characters": characters,
                "tokens": tokens,
                "created_at": from_microseconds(created),
                "updated_at": from_microseconds(updated),
                "first_message_at": first,
                "last_message_at": last,
                "revision": revision,
                "forked_from": _origin(values[7], values[8]),
            },
            type=Conversation,
        )
    except (ValueError, IndexError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise CorruptDataError(f"the record of conversation {conversation_id[:80]!r} is unreadable: {error}") from error


def _origin(conversation_id: bytes | None, rest: bytes | None) -> dict[str, Any] | None:
    if conversation_id is None or rest is None:
        return None
    revision, message_id = _decode_value(rest)
    return {"conversation_id": _decode_value(conversation_id), "revision": revision, "message_id": message_id}


CALLS: Final[dict[type, Callable[[Any, Settings], Call]]] = {
    FindMessage: find_call,
    ReadConversation: read_conversation,
    ReadPage: page_call,
}
