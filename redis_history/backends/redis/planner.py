"""From an operation to a call of the server, and from its reply to the outcome. Pure: no I/O here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NoReturn, TypeVar, cast

import msgspec
from msgspec import Struct
from msgspec.structs import astuple

from redis_history._time import from_microseconds
from redis_history.backends import refusals
from redis_history.backends.compacting import cut_page
from redis_history.backends.redis.durability import Confirmation, confirming
from redis_history.backends.redis.keys import ConversationKeys, Keyspace, pack_keys
from redis_history.backends.redis.scripts import (
    APPEND,
    CHANGES,
    CLEAR,
    DELETE,
    DELETE_CONVERSATION,
    FIND,
    HEAD,
    INDEX,
    PAGE,
    PAGE_ARCHIVED,
    REAP,
    RECORD,
    UPDATE,
    Script,
)
from redis_history.changelog import LogEntry, recover
from redis_history.errors import (
    CorruptDataError,
)
from redis_history.events import Cursor
from redis_history.model import Conversation, Message, Position
from redis_history.model.wire import decode_member, placed
from redis_history.operations import (
    ANY,
    Append,
    Appended,
    Changes,
    Clear,
    DeleteConversation,
    DeleteMessages,
    FindMessage,
    Head,
    Op,
    Page,
    Precondition,
    ReadChanges,
    ReadConversation,
    ReadHead,
    ReadPage,
    Restore,
    UpdateMessage,
    Write,
    WriteRecord,
)
from redis_history.search.text import MAX_CHARACTERS

__all__ = [
    "AGAIN",
    "Call",
    "Settings",
    "as_is",
    "change_header",
    "confirmed",
    "page_of",
    "plan",
    "readable",
    "reap",
    "refused",
    "write_documents",
]

T = TypeVar("T")
encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder().decode
_logger = logging.getLogger("redis_history")

#: How long the change log of a deleted conversation stays for those who watch it: several poll intervals.
_LOG_OUTLIVES_MS: Final = b"60000"
#: Payload after which a read of changes stops: bounds a subscriber's memory to this and one entry.
_CHANGES_BYTES: Final = b"1000000"
#: Search documents written at once, and their text: some 15 ms of the server's time.
DOCUMENTS: Final = 150
DOCUMENTS_CHARACTERS: Final = 150_000
#: Search documents removed at once: some 3 ms of the server's time.
_REAPED: Final = b"500"


#: The record's fields in the state, each a MessagePack value.
RECORD_KEYS: Final = {"user_id": b"U", "agent_name": b"A", "title": b"T", "auditing_id": b"D", "metadata": b"M"}
#: What is read of a state to tell a conversation: revision, totals, times, record.
STATE_FIELDS: Final = (b"r", b"n", b"c", b"k", b"b", b"u", *RECORD_KEYS.values())

#: Which argument of every writing script says that it may have run before.
AGAIN: Final = 6


@dataclass(frozen=True, slots=True)
class Settings:
    """What a store fixes for all its calls. `log_length`: changes kept per conversation, at least. `ttl`: seconds.
    `doorbell`: how changes are heard of, as in `requests.DOORBELLS`.
    `confirm`: what every write is to be confirmed by; None: by its reply alone. `document`: the fields and values of
    the search document of a message and its vector; None: without search.
    """

    keyspace: Keyspace
    log_length: int
    database: int = 0
    ttl: float | None = None
    max_messages: int | None = None
    confirm: Confirmation | None = None
    document: Callable[[Message, bytes], list[bytes]] | None = None
    doorbell: str = "auto"

    def doorbell_channel(self, keys: ConversationKeys) -> bytes:
        """The channel that rings when the conversation's change log changes."""
        return self._channel(keys.log)

    @property
    def doorbell_pattern(self) -> bytes:
        """The channels of all conversations."""
        return self._channel(self.keyspace.logs)

    def _channel(self, log: bytes) -> bytes:
        # A notification of the server's own, or a channel named as the log, to which the writing scripts publish.
        return log if self.doorbell == "publish" else b"__keyspace@%d__:%b" % (self.database, log)


class Call(Struct, frozen=True):
    """A command for the server; `decode` reads its reply.

    With a script, `keys` are its KEYS and their number, packed (RESP), and `args` its ARGV; without, `args` is all of
    the command. `retry_at`: the argument to set to "1" when the call is sent again and might have run before.
    `follow`: from its reply, the call that is left to do after it, if any; it has no outcome of its own.
    `confirm`: the command that is sent right after; `decode` then takes both replies.
    """

    script: Script | None
    keys: bytes
    args: list[bytes]
    decode: Callable[[Any], Any]
    retry_at: int | None = None
    follow: Callable[[Any], Call | None] | None = None
    confirm: Confirmation | None = None

    def pack(self, *, teach: bool = False, again: bool = False) -> bytes:
        """The bytes to send. `teach` sends the script's source along; `again` marks a repeated call."""
        args = self.args
        if again and self.retry_at is not None:
            args = [*args]
            args[self.retry_at] = b"1"
        packed = b"".join([b"$%d\r\n%b\r\n" % (len(arg), arg) for arg in args])
        if self.script is None:
            return b"*%d\r\n%b" % (len(args), packed)
        # Beside the arguments: the command, the script, the number of keys (the first that follows) and they.
        parts = len(args) + 3 + int(self.keys[4 : self.keys.index(b"\r", 4)])
        packed = b"*%d\r\n%b%b%b" % (parts, self.script.teach if teach else self.script.call, self.keys, packed)
        return packed if self.confirm is None else packed + self.confirm.command


def _change(op: Write, settings: Settings, keys: ConversationKeys) -> list[bytes]:
    return change_header(op.token, settings, keys, op.precondition)


def change_header(
    token: str, settings: Settings, keys: ConversationKeys, precondition: Precondition = ANY
) -> list[bytes]:
    """The arguments with which every writing script begins."""
    ttl = b"" if settings.ttl is None else b"%d" % round(settings.ttl * 1000)
    length = b"%d" % settings.log_length
    kept = b"" if settings.confirm is None else b"1"
    channel = keys.log if settings.doorbell == "publish" else b""
    return [token.encode(), *_condition(precondition), length, keys.name, ttl, b"0", channel, kept]


def _condition(precondition: Precondition) -> tuple[bytes, bytes]:
    if precondition is ANY:
        return b"", b""
    expected = precondition.expected_revision
    existence = b"exists" if precondition.must_exist else b"absent" if precondition.must_not_exist else b""
    return (b"" if expected is None else b"%d" % expected), existence


def refused(op: Write, reply: list[Any]) -> NoReturn:
    """Raises what a writing script returned in place of an outcome."""
    kind = reply[0]
    if kind == b"conflict":
        raise refusals.message_conflict(op.conversation_id, reply[1].decode())
    if kind == b"missing":
        raise refusals.conversation_missing(op.conversation_id)
    if kind == b"exists":
        raise refusals.conversation_exists(op.conversation_id, reply[1])
    raise refusals.revision_conflict(op.conversation_id, reply[1], op.precondition.expected_revision)


def _append(op: Append, settings: Settings) -> Call:
    keys = settings.keyspace.conversation(op.conversation_id)
    args = _added(op, settings, keys, b"0")
    follow = partial(_after, op, settings, keys) if len(op.entries) > 1 and settings.document is not None else None
    return Call(APPEND, keys.writing, args, partial(_appended, op), AGAIN, follow=follow)


def _after(op: Append | Restore, settings: Settings, keys: ConversationKeys, reply: Any) -> Call | None:
    """What is left to do after many messages were written."""
    if type(reply) is list and reply[0] not in (b"stored", b"buried"):
        return None
    later = _documents_later(op, settings, 0)
    reaping = _reap(keys, reply)
    return later if reaping is None else _then(reaping, later)


def _then(call: Call, last: Call | None) -> Call:
    """A call, those that follow it, and then one more."""

    def follow(reply: Any) -> Call | None:
        following = call.follow(reply) if call.follow else None
        return last if following is None else _then(following, last)

    return msgspec.structs.replace(call, follow=follow)


def _added(op: Append | Restore, settings: Settings, keys: ConversationKeys, replace: bytes) -> list[bytes]:
    characters = tokens = 0
    rest: list[bytes] = []
    for message, body, digest, timestamp, its_characters, its_tokens, tools in map(astuple, op.entries):
        characters += its_characters
        tokens += its_tokens
        what = its_characters.to_bytes(4, "big") + its_tokens.to_bytes(4, "big") + digest + tools
        rest += (b":" + message.id.encode(), b"" if timestamp is None else b"%d" % timestamp, what, body)
    if _share(op, 0) == len(op.entries):
        for place in range(len(op.entries)):
            rest += _document(op, settings, place)
    most = b"" if settings.max_messages is None else b"%d" % settings.max_messages
    numbers = [b"%d" % number for number in (characters, tokens, len(op.entries))]
    return [*_change(op, settings, keys), replace, most, *numbers, *rest]


def _document(op: Append | Restore, settings: Settings, place: int) -> list[bytes]:
    """How many fields and values the search document of a message has, and these; nothing without search."""
    if settings.document is None:
        return []
    document = settings.document(op.entries[place].message, op.vectors[place] if op.vectors else b"")
    return [b"%d" % len(document), *document]


def _share(op: Append | Restore, start: int) -> int:
    """Where to end if documents are written from `start` on."""
    end, left = start, DOCUMENTS_CHARACTERS
    while end < len(op.entries) and end < start + DOCUMENTS:
        left -= min(op.entries[end].characters, MAX_CHARACTERS)
        if left < 0 and end > start:
            break
        end += 1
    return end


def _documents_later(op: Append | Restore, settings: Settings, start: int) -> Call | None:
    """Writes the documents of a large batch after it, some at a time; until then its conversation is searched without
    the index, which tells that it has not all of them."""
    end = _share(op, start)
    places = range(start, end)
    if settings.document is None or not places or (start == 0 and end == len(op.entries)):
        return None
    entries = [(op.entries[place].message.id, op.entries[place].digest) for place in places]
    documents = [_document(op, settings, place) for place in places]
    call = write_documents(op.token, settings, op.conversation_id, entries, documents)
    return msgspec.structs.replace(call, follow=lambda _: _documents_later(op, settings, end))


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


def _appended(op: Append, reply: bytes | list[Any]) -> list[Appended]:
    stored: dict[int, list[Any]] = {}
    if type(reply) is list:
        if reply[0] != b"stored":
            refused(op, reply)
        stored = {item[0]: item for item in reply[2]}
        reply = reply[1]
    revision, sequence, stamp = map(int, cast(bytes, reply).split())
    outcome = []
    for index, entry in enumerate(op.entries):
        if stored and (before := stored.get(index)) is not None:
            message = placed(entry.message, before[2], int(before[3])) if before[2] else entry.message
            outcome.append(Appended(before[1], message, not before[4]))
            continue
        timestamp = entry.timestamp
        if timestamp is None:
            timestamp = stamp
            stamp += 1
        outcome.append(Appended(revision, placed(entry.message, sequence, timestamp), False))
        sequence += 1
    return outcome


def _delete(op: DeleteMessages, settings: Settings) -> Call:
    keys = settings.keyspace.conversation(op.conversation_id)
    args = [*_change(op, settings, keys), *(message_id.encode() for message_id in op.message_ids)]
    return Call(DELETE, keys.writing, args, partial(_deleted, op), retry_at=AGAIN)


def _deleted(op: DeleteMessages, reply: list[Any]) -> int:
    if type(reply[0]) is bytes:
        refused(op, reply)
    return cast(int, reply[1])


def _delete_conversation(op: DeleteConversation, settings: Settings) -> Call:
    keys = settings.keyspace.conversation(op.conversation_id)
    # Of those who look, or listen at another node, the server cannot know.
    channel = b"" if settings.doorbell in ("publish", "poll") else settings.doorbell_channel(keys)
    args = [*_change(op, settings, keys), _LOG_OUTLIVES_MS, channel]
    return Call(
        DELETE_CONVERSATION, keys.writing, args, partial(_conversation_deleted, op), follow=partial(_reap, keys)
    )


def _conversation_deleted(op: DeleteConversation, reply: list[Any]) -> bool:
    if type(reply[0]) is bytes:
        refused(op, reply)
    return bool(reply[0])


def _restore(op: Restore, settings: Settings) -> Call:
    keys = settings.keyspace.conversation(op.conversation_id)
    args = _added(op, settings, keys, b"1")
    return Call(APPEND, keys.writing, args, partial(_restored, op), AGAIN, follow=partial(_after, op, settings, keys))


def _restored(op: Restore, reply: bytes | list[Any]) -> int:
    if type(reply) is list:
        if reply[0] != b"buried":
            refused(op, reply)
        reply = reply[1]
    return int(cast(bytes, reply).split()[0])


def _clear(op: Clear, settings: Settings) -> Call:
    keys = settings.keyspace.conversation(op.conversation_id)
    args = _change(op, settings, keys)
    return Call(CLEAR, keys.writing, args, partial(_revised, op), AGAIN, follow=partial(_reap, keys))


def _revised(op: Write, reply: int | list[Any]) -> int:
    if type(reply) is list:
        if reply[0] != b"buried":
            refused(op, reply)
        reply = reply[1]
    return cast(int, reply)


def _reap(keys: ConversationKeys, reply: Any) -> Call | None:
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

    return Call(REAP, pack_keys(graves, graves + b":" + name), [name, _REAPED], as_is, follow=more)


def as_is(reply: Any) -> Any:
    return reply


def _update(op: UpdateMessage, settings: Settings) -> Call:
    keys = settings.keyspace.conversation(op.conversation_id)
    entry = op.entry
    what = entry.characters.to_bytes(4, "big") + entry.tokens.to_bytes(4, "big") + entry.digest + entry.tools
    args = [*_change(op, settings, keys), b":" + entry.message.id.encode(), what, entry.body]
    if settings.document is not None:
        args += settings.document(entry.message, op.vectors[0] if op.vectors else b"")
    return Call(UPDATE, keys.writing, args, partial(_updated, op), retry_at=AGAIN)


def _updated(op: UpdateMessage, reply: bytes | list[Any]) -> Appended | None:
    if type(reply) is list:
        if reply[0] == b"unknown":
            return None
        refused(op, reply)
    revision, sequence, timestamp = map(int, cast(bytes, reply).split())
    return Appended(revision, placed(op.entry.message, sequence, timestamp), False)


def _write_record(op: WriteRecord, settings: Settings) -> Call:
    keys = settings.keyspace.conversation(op.conversation_id)
    args = [*_change(op, settings, keys), encode(op.fields)]
    for name, value in op.fields.items():
        args += (RECORD_KEYS[name], encode(value))
    return Call(RECORD, keys.writing, args, partial(_revised, op), retry_at=AGAIN)


def _read_conversation(op: ReadConversation, settings: Settings) -> Call:
    state = settings.keyspace.conversation(op.conversation_id).state
    return Call(None, b"", [b"HMGET", state, *STATE_FIELDS], partial(conversation_of, op.conversation_id))


def conversation_of(conversation_id: str, values: list[bytes | None]) -> Conversation | None:
    """The conversation whose STATE_FIELDS have these values; None if there is none."""
    if values[0] is None:
        return None
    try:
        revision, count, characters, tokens, created, updated = (int(value or 0) for value in values[:6])
        named = zip(RECORD_KEYS, values[6:], strict=True)
        return msgspec.convert(
            {
                "conversation_id": conversation_id,
                **{name: decode(value) for name, value in named if value is not None},
                "message_count": count,
                "characters": characters,
                "tokens": tokens,
                "created_at": from_microseconds(created),
                "updated_at": from_microseconds(updated),
                "revision": revision,
            },
            type=Conversation,
        )
    except (ValueError, msgspec.MsgspecError) as error:
        raise CorruptDataError(f"the record of conversation {conversation_id[:80]!r} is unreadable: {error}") from error


def _find(op: FindMessage, settings: Settings) -> Call:
    keys = settings.keyspace.conversation(op.conversation_id)
    return Call(FIND, pack_keys(keys.state, keys.messages), [op.message_id.encode()], _found)


def _found(reply: bytes | None) -> Message | None:
    return None if reply is None else decode_member(reply)


def _page(op: ReadPage, settings: Settings) -> Call:
    keys = settings.keyspace.conversation(op.conversation_id)
    if op.archived:
        packed = pack_keys(keys.state, keys.messages)
        return Call(PAGE_ARCHIVED, packed, _window(op), partial(_members_of_all, op))
    call = page_of(keys, op.limit, newest=op.newest, since=op.since, after=op.after, before=op.before)
    return msgspec.structs.replace(call, decode=partial(_members, op.conversation_id))


def page_of(
    keys: ConversationKeys,
    limit: int,
    *,
    newest: bool,
    since: Position | None = None,
    after: Position | None = None,
    before: Position | None = None,
) -> Call:
    """Reads live members, as they are."""
    if since is None and after is None and before is None:
        first, last = (-limit, -1) if newest else (0, limit - 1)
        return Call(None, b"", [b"ZRANGE", keys.messages, b"%d" % first, b"%d" % last], as_is)
    window = _window(ReadPage("", limit, newest, since, after, before))
    return Call(PAGE, pack_keys(keys.messages), window, as_is)


def _window(op: ReadPage) -> list[bytes]:
    lower = op.since
    if op.after is not None:
        behind = op.after._replace(sequence=op.after.sequence + 1)
        lower = behind if lower is None else max(lower, behind)
    args = [b"%d" % op.limit, b"1" if op.newest else b"0"]
    for bound in (lower, op.before):
        args += (b"", b"") if bound is None else (b"%d" % bound.timestamp, b"%d" % bound.sequence)
    return args


def _members_of_all(op: ReadPage, reply: list[Any]) -> Page:
    """Of the live messages and those of archives, which were read as many of each as are wanted of all."""
    sets = [(reply[at] or 2**63, reply[at + 1], reply[at + 2]) for at in range(0, len(reply), 3)]
    found: list[tuple[Position, bool, Message]] = []
    unreadable = 0
    for order, _, members in sorted(sets):  # at one position the live summary comes last
        page = _members(op.conversation_id, members)
        unreadable += page.unreadable
        found += [(cast(Position, one.position), order < 2**63, one) for one in page.messages]
    return cut_page(op, found, unreadable, frozenset(former.decode() for _, former, _ in sets if former))


def readable(member: bytes) -> Message | None:
    """The message in a member; None, and a line in the log, if it cannot be decoded."""
    try:
        return decode_member(member)
    except CorruptDataError as error:
        _logger.error("skipped an unreadable message: %s", error)
        return None


def _members(conversation_id: str, reply: list[bytes]) -> Page:
    try:
        return Page([decode_member(member) for member in reply])
    except CorruptDataError:
        pass
    messages, unreadable = [], 0
    for member in reply:
        try:
            messages.append(decode_member(member))
        except CorruptDataError as error:
            unreadable += 1
            _logger.error("skipped an unreadable message of conversation %r: %s", conversation_id[:80], error)
    return Page(messages, unreadable)


def _head(op: ReadHead, settings: Settings) -> Call:
    keys = settings.keyspace.conversation(op.conversation_id)
    return Call(HEAD, pack_keys(keys.state, keys.log, keys.messages), [b"%d" % op.messages], partial(_read_head, op))


def _read_head(op: ReadHead, reply: list[Any]) -> Head:
    cursor = Cursor(reply[0].decode(), reply[1], reply[2].decode())
    return Head(cursor, reply[3], reply[4], reply[5], _members(op.conversation_id, reply[6]))


def _changes(op: ReadChanges, settings: Settings) -> Call:
    keys = settings.keyspace.conversation(op.conversation_id)
    args = [b"%d" % op.after.revision, b"%d" % (op.limit + 1), _CHANGES_BYTES]
    return Call(CHANGES, pack_keys(keys.state, keys.log), args, partial(_read_changes, op))


def _read_changes(op: ReadChanges, reply: list[Any]) -> Changes:
    head = Cursor(reply[0].decode(), reply[1], reply[2].decode())
    return recover(op.conversation_id, op.after, head, [_log_entry(*raw) for raw in reply[3]], op.limit)


def _log_entry(entry_id: bytes, fields: list[bytes]) -> LogEntry:
    revision = int(entry_id.partition(b"-")[0])
    if len(fields) == 6 and fields[0] == b"t" and fields[2] == b"k" and fields[4] == b"p":  # as nearly all are
        return LogEntry(revision, fields[1].decode(errors="replace"), fields[3].decode(errors="replace"), fields[5])
    named = dict(zip(fields[::2], fields[1::2], strict=False))
    token, kind = (named.get(name, b"").decode(errors="replace") for name in (b"t", b"k"))
    return LogEntry(revision, token, kind, named.get(b"p", b""), b"o" in named, named.get(b"g", b""))


_PLANS: Final[dict[type, Callable[[Any, Settings], Call]]] = {
    Append: _append,
    Clear: _clear,
    DeleteConversation: _delete_conversation,
    DeleteMessages: _delete,
    FindMessage: _find,
    ReadConversation: _read_conversation,
    ReadChanges: _changes,
    ReadHead: _head,
    ReadPage: _page,
    Restore: _restore,
    UpdateMessage: _update,
    WriteRecord: _write_record,
}


def plan(op: Op[T], settings: Settings) -> Call:
    """The call that carries out `op`; its `decode` gives the outcome of `op`."""
    call = _PLANS[type(op)](op, settings)
    return confirmed(call, op, settings) if isinstance(op, Write) else call


def confirmed(call: Call, op: Write, settings: Settings) -> Call:
    """The call of a write, with what is to confirm it."""
    if settings.confirm is None:
        return call
    decode = confirming(op, call.decode, settings.confirm)
    follow = None if call.follow is None else partial(_following, call.follow)
    return msgspec.structs.replace(call, confirm=settings.confirm, decode=decode, follow=follow)


def _following(follow: Callable[[Any], Call | None], replies: tuple[Any, Any]) -> Call | None:
    return follow(replies[0])
