"""Drafts: conversations that are written in several parts, and become visible in one step."""

from __future__ import annotations

import time
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from redis_history.model import Conversation, Position
from redis_history.model.message import RECORD_FIELDS
from redis_history.model.times import to_microseconds
from redis_history.model.wire import encode_member
from redis_history.operations.base import Call, Entry, OnConversation, Op, Space, Steps, Write, field_of, plain
from redis_history.operations.changelog import Kind
from redis_history.operations.keys import ConversationKeys
from redis_history.operations.record import RECORD_KEYS
from redis_history.operations.scripts import WRITING, load_script
from redis_history.operations.settings import Settings

ARCHIVES: Final = load_script("archives", "_declared", "_member", "_archive")
DRAFT: Final = load_script("draft", "_member", "_locate")
PUBLISH: Final = load_script("publish", *WRITING, "_empty")

#: Until a draft that nobody continues is removed.
_DRAFT_LASTS_MS: Final = b"600000"


class Archive(Struct, frozen=True):
    """The messages that the summary `summary_id` replaced, of which `former` is the summary before it (None: there was
    none, or it was removed). Archives are numbered in the order of their compactions."""

    number: int
    summary_id: str | None = None
    former: str | None = None


class Layout(Struct, frozen=True):
    """The archives of a conversation, oldest first, its own time to live in seconds, and its highest sequence."""

    archives: tuple[Archive, ...] = ()
    ttl: float | None = None
    sequence: int = 0


class ReadLayout(OnConversation, Op[Layout | None], frozen=True):
    """The archives of a conversation, or None if the conversation does not exist."""

    def steps(self, settings: Settings) -> Steps[Layout | None]:
        keys = settings.keyspace.conversation(self.conversation_id)
        layout: Layout | None = yield Call(ARCHIVES, (keys.state,), [], _layout)
        return layout

    def apply(self, space: Space) -> Layout | None:
        conversation = space.find(self.conversation_id)
        if conversation is None:
            return None
        archives = (Archive(one.revision, one.summary_id or None, one.former) for one in conversation.archives)
        return Layout(tuple(archives), conversation.ttl, conversation.sequence)


class WriteDraft(OnConversation, Op[bool], frozen=True, kw_only=True):
    """Add messages to a draft of a conversation, which nobody sees before it is published. `token` is that of the
    `Publish` to come, `revision` its revision. `archive`: the number of the archive; 0: live messages. The messages of
    `entries` have their positions. Before, the messages `removed` are removed, each an id and a position.

    `page` counts 1, 2, 3 … A repeated page has the same effect. False: earlier pages are lost, because the draft was
    not continued for minutes or the server lost it. In this case nothing was done.
    """

    token: str
    page: int
    revision: int
    archive: int = 0
    entries: tuple[Entry, ...] = ()
    removed: tuple[tuple[str, Position], ...] = ()

    def steps(self, settings: Settings) -> Steps[Any]:
        keys = settings.keyspace.conversation(self.conversation_id)
        args = [b"%d" % self.page, _DRAFT_LASTS_MS, b"%d" % len(self.removed)]
        for message_id, (timestamp, sequence) in self.removed:
            args += (b"%d" % timestamp, b"%d" % sequence, field_of(message_id))
        mark = bytes.fromhex(self.token[:6])
        for entry in self.entries:
            timestamp, sequence = entry.timestamp or 0, entry.message.sequence or 0
            place = timestamp.to_bytes(7, "big", signed=True) + mark + _packed(sequence) + _packed(self.revision)
            args += (b"%d" % timestamp, _member(entry, settings), field_of(entry.message.id), place + entry.tools)
        return (yield Call(DRAFT, (keys.draft(self.token), _set_of(keys, self.token, self.archive)), args, bool))

    def apply(self, space: Space) -> bool:
        draft = space.draft(self.token)
        if draft.page not in (self.page, self.page - 1):
            return False
        held = draft.sets.setdefault(self.archive, {})
        for _, position in self.removed:
            held.pop(position, None)
        for entry in self.entries:
            held[Position(entry.timestamp or 0, entry.message.sequence or 0)] = entry
        draft.page, draft.touched = self.page, time.time()
        space.drafts[self.token] = draft
        return True


class DropDraft(OnConversation, Op[None], frozen=True):
    """Remove a draft with these archives, if it exists."""

    token: str
    archives: tuple[int, ...]

    def steps(self, settings: Settings) -> Steps[Any]:
        keys = settings.keyspace.conversation(self.conversation_id)
        sets = (_set_of(keys, self.token, archive) for archive in (0, *self.archives))
        yield plain(b"UNLINK", keys.draft(self.token), *sets)

    def apply(self, space: Space) -> None:
        space.drafts.pop(self.token, None)


class Held(Struct, frozen=True):
    """The number of some messages, their totals, and their earliest and latest timestamp."""

    messages: int = 0
    characters: int = 0
    tokens: int = 0
    times: tuple[int, int] | None = None


class Publish(Write[bool], frozen=True, kw_only=True):
    """Make a draft the conversation, which must not exist. `page`: its last page. `record` has the record, the origin
    of a fork and the revision, and optionally `created_at`, `updated_at`, `first_message_at` and `last_message_at`,
    which may be times of removed messages. `live` and `archives`: what the draft has. `sequence`: the highest one.
    `ttl`: the time to live in seconds, if the store has none. False: the draft is lost."""

    page: int
    record: Conversation
    live: Held
    archives: tuple[tuple[Archive, Held], ...] = ()
    sequence: int = 0
    ttl: float | None = None

    def steps(self, settings: Settings) -> Steps[bool]:
        keys, record = settings.keyspace.conversation(self.conversation_id), self.record
        times = self._times()
        fields: dict[bytes, bytes] = {
            b"c": b"%d" % self.live.characters,
            b"k": b"%d" % self.live.tokens,
            b"q": b"%d" % self.sequence,
        }
        if times is not None:
            fields[b"F"] = b"".join(time.to_bytes(7, "big", signed=True) for time in times)
        for name in RECORD_FIELDS:
            if (value := getattr(record, name)) not in (None, {}):
                fields[RECORD_KEYS[name]] = msgspec.msgpack.encode(value)
        if record.forked_from is not None:
            fields[b"B"] = msgspec.msgpack.encode(record.forked_from.conversation_id)
            fields[b"C"] = msgspec.msgpack.encode((record.forked_from.revision, record.forked_from.message_id))
        fields |= self._fields_of_archives()
        ttl = b"" if self.ttl is None or settings.ttl is not None else b"%d" % round(self.ttl * 1000)
        moments = (record.created_at, record.updated_at)
        args = [
            b"%d" % self.page,
            *(b"" if time is None else b"%d" % to_microseconds(time) for time in moments),
            b"%d" % record.revision,
            b"%d" % self.live.messages,
            b"%d" % len(self.archives),
            *(b"%d" % held.messages for _, held in self.archives),
            *(part for pair in fields.items() for part in pair),
        ]
        call = self.script_call(PUBLISH, settings, args)
        if ttl:
            call.args[5] = ttl
        sets = [keys.draft(self.token), _set_of(keys, self.token, 0)]
        for archive, _ in self.archives:
            sets += (_set_of(keys, self.token, archive.number), keys.archive(archive.number))
        return self.send(replace(call, keys=(*call.keys, *sets)), settings)

    def _times(self) -> tuple[int, int] | None:
        """Those of the first and of the last message."""
        held = (self.live, *(one for _, one in self.archives))
        times = [time for one in held for time in one.times or ()]
        given = self.record.first_message_at, self.record.last_message_at
        times += [to_microseconds(time) for time in given if time is not None]
        return (min(times), max(times)) if times else None

    def _fields_of_archives(self) -> dict[bytes, bytes]:
        """The fields of the state: see lua/_archive.lua."""
        if not self.archives:
            return {}
        fields, listed, documents = {}, b"", 0
        for archive, held in self.archives:
            first, last = held.times or (0, 0)
            listed += b"%d %d %d;" % (archive.number, first, last)
            size = f"{held.messages} {held.characters} {held.tokens} {self.token}"
            if archive.former is not None:
                size += f" {archive.former}"
                documents -= 1
            documents += held.messages
            fields[b"#%d" % archive.number] = size.encode()
            if archive.summary_id is not None:
                fields[b"^" + archive.summary_id.encode()] = b"%d" % archive.number
        newest = self.archives[-1][0].summary_id
        if newest is not None:
            fields[b"s"] = newest.encode()
        return fields | {b"w": listed, b"m": b"%d" % documents, b"a": b"0"}

    def decode(self, reply: int | list[Any]) -> bool:
        if type(reply) is list:
            if reply[0] == b"lost":
                return False
            self.refuse(reply)
        return True

    def apply(self, space: Space) -> bool:
        space.check(self.conversation_id, self.precondition)
        draft, record = space.draft(self.token), self.record
        space.drafts.pop(self.token, None)
        held = {0: self.live.messages} | {archive.number: one.messages for archive, one in self.archives}
        if draft.page != self.page or any(len(draft.sets.get(at, ())) != count for at, count in held.items()):
            return False
        conversation = space.find_or_create(self.conversation_id, self.token)
        for position, entry in sorted(draft.sets.get(0, {}).items()):
            conversation.store(entry, position, self.record.revision, self.token)
            conversation.insert_live(entry.message.id)
        for archive, _ in self.archives:
            messages = []
            for position, entry in sorted(draft.sets.get(archive.number, {}).items()):
                conversation.store(entry, position, self.record.revision, self.token)
                messages.append((position, entry.message.id))
            conversation.add_archive(archive.number, archive.summary_id or "", self.token, archive.former, messages)
        if self.archives:
            conversation.summary = self.archives[-1][0].summary_id
        times = [stored.position.timestamp for stored in conversation.stored.values()]
        conversation.times = self._times()
        conversation.sequence = self.sequence
        conversation.stamp = max([time for time in times if time <= space.now()], default=0)
        given = {name: getattr(record, name) for name in RECORD_FIELDS}
        conversation.record = {name: value for name, value in given.items() if value not in (None, {})}
        conversation.forked_from = record.forked_from
        conversation.ttl = self.ttl
        conversation.revision = record.revision - 1
        space.write(self, conversation, Kind.PUBLISHED)
        if record.created_at is not None:
            conversation.created = to_microseconds(record.created_at)
        if record.updated_at is not None:
            conversation.updated = min(to_microseconds(record.updated_at), conversation.updated)
        return True


def _layout(reply: list[bytes]) -> Layout | None:
    if not reply:
        return None
    ttl, sequence, *rest = reply
    archives = (
        Archive(int(rest[at]), rest[at + 1].decode() or None, rest[at + 2].decode() or None)
        for at in range(0, len(rest), 3)
    )
    return Layout(tuple(archives), int(ttl) / 1000 if ttl else None, int(sequence))


def _set_of(keys: ConversationKeys, token: str, archive: int) -> bytes:
    return b"%b:%d" % (keys.draft(token), archive)


def _member(entry: Entry, settings: Settings) -> bytes:
    flags, body = entry.packed(settings)
    return encode_member(entry.message.sequence or 0, entry.characters, flags, entry.timestamp or 0, body)


def _packed(number: int) -> bytes:
    """As `pack_number` of lua/_change.lua."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)
