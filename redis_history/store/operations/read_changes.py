"""Read the present state of a conversation, and its changes since a cursor."""

from __future__ import annotations

import dataclasses
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Struct, UnsetType, field
from msgspec.structs import replace

from redis_history.store.changelog import (
    Changes,
    Kind,
    LiveReply,
    LogEntry,
    break_of,
    events_of,
    is_gone,
    owned,
    recover,
)
from redis_history.store.operations.base import (
    UNREADABLE,
    Call,
    OnConversation,
    Op,
    Pause,
    Steps,
    as_is,
    decoded,
    read,
    readable,
)
from redis_history.store.operations.contents import entries_with_contents, with_contents, with_contents_at_once
from redis_history.store.operations.keys import ConversationKeys
from redis_history.store.operations.page import Page, page_of_members
from redis_history.store.operations.record import RECORD_KEYS, decode_value
from redis_history.store.operations.run import bury_run, read_run
from redis_history.store.operations.scripts import PLACES, load_script
from redis_history.store.operations.settings import Settings
from redis_history.store.operations.stream import Current, end_dead, judge, read_replies, shown, with_text
from redis_history.store.operations.turn import read_turns
from redis_history.values import Message, Position
from redis_history.values._caps import MAX_MESSAGE_BYTES
from redis_history.values._validation import check_batch
from redis_history.values.beside import Needed, check_needed
from redis_history.values.events import ANEW, BEGINNING, Cursor, Event
from redis_history.values.ids import check_conversation_id
from redis_history.values.replies import Progress
from redis_history.values.runs import RunInfo
from redis_history.values.turns import Turn
from redis_history.values.wire import decode_member

if TYPE_CHECKING:
    from redis_history.store.memory.space import Change, ConversationState, Reply, Space

CHANGES: Final = load_script(
    "changes",
    "_head",
    "_declared",
    "_member",
    "_live",
    "_archive",
    *PLACES,
    args="first most_entries most_bytes *replies",
    keys="state log messages *further",
    asks=True,
)
HEAD: Final = load_script(
    "head", "_head", "_member", "_live", args="newest cluster?", keys="state log messages *further", asks=True
)

#: A read of changes stops after this many bytes, which bounds a subscriber's memory.
CHANGES_BYTES: Final = b"1000000"
#: Attempts to read a head of one moment, if the large contents of its messages leave in the meantime.
_TRIES: Final = 5
#: The values of entries that are arrays; behind them is who made the change, if that was said.
SIZES: Final = {
    Kind.APPENDED: 4, Kind.RESTORED: 4, Kind.UPDATED: 3, Kind.REPLY_ENDED: 3, Kind.DELETED: 2, Kind.COMPACTED: 4,
    Kind.EXPANDED: 2, Kind.ENDED: 1,
}  # fmt: skip
#: Kinds of changes that remove messages, which their entries name.
_REMOVING: Final = (Kind.APPENDED, Kind.RESTORED, Kind.DELETED)


class Head(Struct, frozen=True):
    """The present state of a conversation: its newest change, its totals, and its newest messages if requested.

    The totals of an unknown conversation are zero, and its cursor precedes its first change.
    """

    cursor: Cursor
    message_count: int = 0
    characters: int = 0
    tokens: int = 0
    newest: Page = field(default_factory=lambda: Page([]))


class ReadHead(OnConversation, Op[Head], frozen=True):
    """The head and the `messages` newest messages, ascending, as of one moment, with the large contents that are
    needed."""

    messages: int = 0
    contents: Needed = "all"

    def steps(self, settings: Settings) -> Steps[Head]:
        keys = settings.keyspace.conversation(self.conversation_id)
        args = HEAD.args(newest=b"%d" % self.messages)
        call = Call(HEAD, _read_keys(keys, settings), args, self._decode)
        for _ in range(_TRIES):
            head: Head
            head, replies = yield from read(call, settings)
            if head.newest.live:
                head = yield from self._with_replies(head, replies, call, settings)
            messages = head.newest.messages
            if not head.newest.partial or self.contents == "none":
                return head
            found = yield from with_contents_at_once(self.conversation_id, messages, settings, self.contents)
            if found is not None:
                return replace(head, newest=replace(head.newest, messages=found))
        present = yield from with_contents(self.conversation_id, messages, settings, self.contents)
        return replace(head, newest=replace(head.newest, messages=[one for one in present if one is not None]))

    def _with_replies(
        self, head: Head, replies: dict[int, tuple[bytes, float]], call: Call, settings: Settings
    ) -> Steps[Head]:
        joined, pause = judge(self.conversation_id, _joined_head(head, replies), settings)
        if pause:
            yield Pause(pause)
            head, replies = yield from read(call, settings)
            joined, _ = judge(self.conversation_id, _joined_head(head, replies), settings)
        done = yield from end_dead(self.conversation_id, joined, settings)
        if any(done):  # read the cursor of these messages
            head, replies = yield from read(call, settings)
            joined, _ = judge(self.conversation_id, _joined_head(head, replies), settings)
        messages = [shown(one, done) for one in joined if one is not None]
        return replace(head, newest=replace(head.newest, messages=messages))

    def _decode(self, reply: list[Any]) -> tuple[Head, dict[int, tuple[bytes, float]]]:
        """The head; and by sequence, the content of streaming replies and how long their writers count as alive."""
        _, _, _, count, characters, tokens, members, live = reply
        replies = {sequence: (content, lives) for sequence, content, lives in live}
        newest = page_of_members(self.conversation_id, members)
        return Head(_cursor(reply), count, characters, tokens, newest), replies

    def apply(self, space: Space) -> Head:
        conversation = space.find(self.conversation_id)
        if conversation is None:
            return Head(space.deleted_head(self.conversation_id))
        newest = conversation.live[-self.messages :] if self.messages else []
        return Head(
            conversation.head,
            len(conversation.live),
            conversation.characters,
            conversation.tokens,
            Page([conversation.message(name, self.contents) for _, name in newest]),
        )


def _read_keys(keys: ConversationKeys, settings: Settings) -> tuple[bytes, ...]:
    """The registry is read if the conversation does not exist. In a cluster, it may not exist either, so that its
    declaration could stop the call while its slot moves."""
    known = (keys.state, keys.log, keys.messages)
    return known if settings.cluster else (*known, keys.registry)


def _joined_head(head: Head, replies: dict[int, tuple[bytes, float]]) -> list[Current]:
    return [
        with_text(message, *replies.get(message.sequence or 0, (b"", 0.0)))
        if message.status == "streaming"
        else Current(message)
        for message in head.newest.messages
    ]


class ReadChanges(OnConversation, Op[Changes], frozen=True):
    """At most `limit` changes after `after`; or a single Reset if the log no longer has all of them. Then the growth of
    replies that are being written; `replies` is how much of each the reader has, by sequence. Last the newest run, if
    it differs from `run`, the run that the reader knows (UNSET: it has not read before), and the turns, if they
    differ from `turns`."""

    after: Cursor
    limit: int = 100
    replies: dict[int, Progress] = field(default_factory=dict)
    run: RunInfo | UnsetType | None = UNSET
    turns: tuple[Turn, ...] = ()

    def steps(self, settings: Settings) -> Steps[Changes]:
        changes = yield from self._read(settings)
        if changes.dead:
            found = yield from read_replies(self.conversation_id, changes.dead, settings)
            judged, _ = judge(self.conversation_id, found, settings)
            if any((yield from end_dead(self.conversation_id, judged, settings))):
                changes = yield from self._read(settings)
        if changes.dead_run is not None:
            yield from bury_run(self.conversation_id, changes.dead_run, settings)
        return changes

    def _read(self, settings: Settings) -> Steps[Changes]:
        call = self.call(settings)
        reply = yield from read(replace(call, decode=as_is), settings)
        entries = decoded(replace(call, decode=_entries), reply)
        entries = yield from entries_with_contents(self.conversation_id, entries, settings)
        changes: Changes = decoded(replace(call, decode=partial(self._decode, settings, entries)), reply)
        return changes

    def call(self, settings: Settings) -> Call:
        """The call alone reads messages without their large contents."""
        keys = settings.keyspace.conversation(self.conversation_id)
        args = CHANGES.args(
            first=b"%d" % self.after.revision,
            most_entries=b"%d" % (self.limit + 1),
            most_bytes=CHANGES_BYTES,
            replies=[b"%d" % number for at, progress in self.replies.items() for number in (at, progress.size)],
        )
        return Call(CHANGES, _read_keys(keys, settings), args, partial(self._decode, settings, None))

    def _decode(self, settings: Settings, entries: list[LogEntry] | None, reply: list[Any]) -> Changes:
        entries = _entries(reply) if entries is None else entries
        found = _Found(*reply)
        replies = [
            LiveReply(Position(int(timestamp), sequence), message_id.decode(), content, size, lives / 1000)
            for sequence, timestamp, message_id, content, size, lives in found.replies
        ]
        run, expires, dead = read_run(self.conversation_id, settings, found.run, found.queue, found.now)
        changes = recover(
            self.conversation_id,
            self.after,
            _cursor(reply),
            entries,
            self.limit,
            former=former_of(found.former),
            replies=replies,
            had=self.replies,
            run=run,
            expires=expires,
            known_run=self.run,
            turns=read_turns(self.conversation_id, found.turns, found.owner),
            known_turns=self.turns,
        )
        return replace(changes, dead_run=dead).of_owner(_owner(reply))

    def apply(self, space: Space) -> Changes:
        conversation = space.find(self.conversation_id)
        head = conversation.head if conversation else space.deleted_head(self.conversation_id)
        log = conversation.log if conversation else space.deleted_logs.get(self.conversation_id, ())
        changes = [change for change in log if change.entry.revision >= self.after.revision][: self.limit + 1]
        entries = [_with_content(change, conversation, list(log)) for change in changes]
        replies = [self._reply(conversation, reply) for reply in conversation.replies.values()] if conversation else []
        run, expires = space.run_now(self.conversation_id)
        recovered = recover(
            self.conversation_id,
            self.after,
            head,
            entries,
            self.limit,
            former=conversation.former if conversation else "",
            replies=replies,
            had=self.replies,
            run=run,
            expires=expires,
            known_run=self.run,
            turns=space.turns.of(space, self.conversation_id),
            known_turns=self.turns,
        )
        return recovered.of_owner(conversation.record.get("user_id") if conversation else UNSET)

    def _reply(self, conversation: ConversationState, reply: Reply) -> LiveReply:
        position = conversation.stored[reply.message_id].position
        had = self.replies.get(position.sequence, Progress()).size
        content = bytes(reply.content[had:])
        return LiveReply(position, reply.message_id, content, len(reply.content), reply.ends - time.time())


class ReadLog(OnConversation, Op[list[Event]], frozen=True):
    """At most `limit` changes after the cursor `after` (None: all), the oldest that the log still has first. May
    return fewer, but an empty list only at the end of the log. Returns a single Reset if the log does not continue
    from the cursor."""

    after: Cursor | None
    limit: int

    def steps(self, settings: Settings) -> Steps[list[Event]]:
        call = ReadChanges(self.conversation_id, self.after or ANEW, self.limit).call(settings)
        reply = yield from read(replace(call, decode=as_is), settings)
        entries = decoded(replace(call, decode=_entries), reply)
        entries = yield from entries_with_contents(self.conversation_id, entries, settings)
        head, owner = (decoded(replace(call, decode=part), reply) for part in (_cursor, _owner))
        events = self._events(head, entries, former_of(_Found(*reply).former))
        return owned(events, None if owner is UNSET else owner)

    def apply(self, space: Space) -> list[Event]:
        conversation = space.find(self.conversation_id)
        head = conversation.head if conversation else space.deleted_head(self.conversation_id)
        log = list(conversation.log if conversation else space.deleted_logs.get(self.conversation_id, ()))
        first = 0 if self.after is None else self.after.revision
        changes = [change for change in log if change.entry.revision >= first][: self.limit + 1]
        entries = [_with_content(change, conversation, log) for change in changes]
        events = self._events(head, entries, conversation.former if conversation else "")
        return owned(events, conversation.record.get("user_id") if conversation else None)

    def _events(self, head: Cursor, entries: list[LogEntry], former: str) -> list[Event]:
        if self.after is None:
            return [] if is_gone(head) else events_of(self.conversation_id, head.epoch, entries[: self.limit])
        if reset := break_of(self.conversation_id, self.after, head, entries, former):
            return reset
        fresh = [entry for entry in entries if entry.revision > self.after.revision]
        return events_of(self.conversation_id, self.after.epoch if is_gone(head) else head.epoch, fresh[: self.limit])


class Snapshot(Struct, frozen=True):
    """The newest `messages` of a conversation, ascending, and the `cursor` of exactly that state:
    `subscribe(after=cursor)` continues from it without gap or overlap. `message_count` counts all messages."""

    messages: list[Message]
    cursor: Cursor
    message_count: int


def take_snapshot(conversation_id: str, limit: int = 1000, contents: bool | Literal["texts"] = True) -> Steps[Snapshot]:
    """The newest messages, and the cursor of exactly that state: see `HistoryStore.snapshot`."""
    check_conversation_id(conversation_id)
    check_batch(limit, "limit")
    head = yield ReadHead(conversation_id, limit, check_needed(contents))
    return Snapshot(head.newest.messages, head.cursor, head.message_count)


class _Found(NamedTuple):
    """The reply of changes.lua. `former`, `run`, `queue`, `turns` and `owner` are fields of the state, or empty;
    `first` is the revision of the first entry."""

    epoch: bytes
    revision: int
    head: bytes
    former: bytes
    first: int
    entries: list[Any]
    replies: list[Any]
    run: bytes
    queue: bytes
    now: int
    turns: bytes
    owner: bytes


def former_of(field: bytes) -> str:
    """`former` of `recover`, from the field o of the state."""
    return "log" if field == b"log" else field.hex()


def _entries(reply: list[Any]) -> list[LogEntry]:
    found = _Found(*reply)
    return [_log_entry(revision, *raw) for revision, raw in enumerate(found.entries, found.first)]


def _owner(reply: list[Any]) -> int | str | UnsetType | None:
    """The owner of the conversation in a reply of changes.lua; UNSET if it does not exist."""
    found = _Found(*reply)
    if found.epoch == BEGINNING.epoch.encode():
        return UNSET
    return decode_value(found.owner) if found.owner else None


def _cursor(reply: list[Any]) -> Cursor:
    return Cursor(reply[0].decode(), reply[1], reply[2].hex() or BEGINNING.token)


def _log_entry(revision: int, raw: bytes, content: list[Any]) -> LogEntry:
    """An entry (format: lua/_change.lua) with the content that changes.lua read."""
    if len(raw) < 10:
        return LogEntry(revision, "", 0)  # unreadable
    token, kind, rest = raw[:10].hex(), raw[0] >> 4, raw[10:]
    if not rest and kind != Kind.CLEARED:  # the entry of the subscriber's cursor is empty
        return LogEntry(revision, token, kind)
    by: str | None = None
    # The contents of a change of the record are values, of all others they are messages.
    messages: tuple[Message, ...] = ()
    if kind != Kind.RECORD:
        messages = tuple(filter(None, (readable(item) for item in content if type(item) is bytes)))
    gone = tuple(item[0].decode() for item in content if type(item) is list and item)
    try:
        if kind in (Kind.RECORD, Kind.CLEARED, Kind.PUBLISHED):
            names, _, said = rest.partition(b"\0")
            by = said.decode() or None
            return LogEntry(revision, token, kind, fields=_fields(names, content), by=by)
        if (size := SIZES.get(kind)) is not None:
            values = decode_value(rest)
            values, by = values[:size], values[size] if len(values) > size else None
        if kind in (Kind.APPENDED, Kind.RESTORED):
            return LogEntry(revision, token, kind, messages, gone, tuple(values[2]), by=by)
        if kind == Kind.DELETED:
            return LogEntry(revision, token, kind, ids=tuple(values[0]), by=by)
        if kind in (Kind.UPDATED, Kind.REPLY_ENDED, Kind.COMPACTED):
            message_id, *place, count = (*values, 0)[:4]
            return LogEntry(revision, token, kind, messages, gone, (message_id,), count, Position(*place), by=by)
        if kind == Kind.EXPANDED:
            summary_id, count = values
            return LogEntry(revision, token, kind, ids=(summary_id,), count=count, by=by)
    except UNREADABLE:
        return LogEntry(revision, token, 0)
    return LogEntry(revision, token, kind, messages, gone, by=by)


def _fields(names: bytes, values: list[Any]) -> dict[str, Any]:
    known = {key: name for name, key in RECORD_KEYS.items()}
    pairs = zip((names[at : at + 1] for at in range(len(names))), values, strict=False)
    return {known[key]: decode_value(value) for key, value in pairs if key in known and type(value) is bytes}


def _with_content(change: Change, conversation: ConversationState | None, log: list[Change]) -> LogEntry:
    """The entry of a change, with its present messages and fields."""
    messages, gone = [], []
    for message_id, sequence in change.references:
        stored = conversation.stored.get(message_id) if conversation else None
        if conversation and stored is not None and stored.position.sequence == sequence:
            messages.append(decode_member(conversation.member_of(message_id), MAX_MESSAGE_BYTES))
        elif change.entry.kind in (Kind.UPDATED, Kind.REPLY_ENDED, Kind.COMPACTED) or _has_left(
            message_id, change.entry.revision, log
        ):
            gone.append(message_id)
    fields = {name: conversation.record[name] for name in change.fields if conversation and name in conversation.record}
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(fields))
    return dataclasses.replace(change.entry, messages=tuple(messages), gone_ids=tuple(gone), fields=fields)


def _has_left(message_id: str, revision: int, log: list[Change]) -> bool:
    """Whether a message of the change of this revision was removed since, but not together with all others."""
    for entry in (change.entry for change in log if change.entry.revision >= revision):
        if entry.kind in (Kind.CLEARED, Kind.RESTORED) and entry.revision > revision:
            return False
        if entry.kind in _REMOVING and message_id in entry.ids:
            return True
    return False
