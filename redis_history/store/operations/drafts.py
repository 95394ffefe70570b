"""Drafts: conversations that are written in several parts, and become visible in one step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from redis_history.store.changelog import Kind
from redis_history.store.memory.space import Space
from redis_history.store.memory.usage import owner_of
from redis_history.store.operations.archives import Archive
from redis_history.store.operations.base import (
    TTL,
    Call,
    OnConversation,
    Op,
    Steps,
    Write,
    as_is,
    field_of,
    plain,
    with_contents,
    with_extra_keys,
)
from redis_history.store.operations.keys import ConversationKeys
from redis_history.store.operations.record import RECORD_KEYS
from redis_history.store.operations.scripts import WRITING, load_script
from redis_history.store.operations.settings import Settings
from redis_history.store.writes import Entry, Packed
from redis_history.values import Conversation, Position
from redis_history.values.approvals import OpenRequest
from redis_history.values.message import RECORD_FIELDS
from redis_history.values.times import to_microseconds
from redis_history.values.usage import Numbers, day_of, pack_days, usage_numbers
from redis_history.values.wire import encode_member

DRAFT: Final = load_script(
    "draft",
    "_declared",
    "_member",
    "_contents",
    "_locate",
    args="page lasts archives removed *changes",
    keys="state *sets",
)
DROP: Final = load_script("drop", args="how lasts", keys="state")
FORKS: Final = load_script("forks", args="begins id token lasts", keys="state")
PUBLISH: Final = load_script(
    "publish",
    *WRITING,
    "_empty",
    args="page created_at updated_at revision live_count archive_count *counts",
    keys="draft live *archives",
)

#: Milliseconds until an abandoned draft is removed.
_DRAFT_LASTS_MS: Final = b"600000"
#: Milliseconds until an abandoned fork is forgotten: its draft has expired, and a late page cannot bring it back.
_FORK_LASTS_MS: Final = b"1200000"
#: Microseconds: as in lua/_change.lua, LIFETIME.
_FAR_AHEAD: Final = 60_000_000
#: Archives in a block of the index: see lua/_archive.lua.
_IN_BLOCK: Final = 50
#: Fields of the index that are written together, and their bytes; and keys that are removed together.
_FIELDS: Final = 500
_FIELDS_BYTES: Final = 100_000
_UNLINKED: Final = 500


class NoteFork(OnConversation, Op[bool], frozen=True, kw_only=True):
    """Note in a conversation that a fork begins, or that it has ended: the id of the new conversation, and the token of
    its draft. False if the conversation does not exist."""

    new_id: str
    token: str
    begins: bool

    def steps(self, settings: Settings) -> Steps[bool]:
        keys = settings.keyspace.conversation(self.conversation_id)
        begins = b"1" if self.begins else b"0"
        args = FORKS.args(begins=begins, id=self.new_id.encode(), token=self.token.encode(), lasts=_FORK_LASTS_MS)
        return (yield Call(FORKS, (keys.state,), args, bool))  # type: ignore[no-any-return]

    def apply(self, space: Space) -> bool:
        exists = space.find(self.conversation_id) is not None
        if self.begins and exists:
            draft = space.draft(self.token)
            draft.source, draft.touched = self.conversation_id, time.time()
            space.drafts[self.token] = draft
        return exists


def _page(page: int, archives: int, removed: int, changes: list[bytes]) -> list[bytes]:
    numbers = {"archives": b"%d" % archives, "removed": b"%d" % removed}
    return DRAFT.args(page=b"%d" % page, lasts=_DRAFT_LASTS_MS, **numbers, changes=changes)


def drop_forks(forks: bytes, settings: Settings) -> Steps[None]:
    """Drop the drafts of these forks, which are under way: field N of the state (see forks.lua)."""
    for new_id, token, _ in msgspec.msgpack.decode(forks):
        yield from DropDraft(new_id, token, refuses=True).steps(settings)


class WriteDraft(OnConversation, Op[bool], frozen=True, kw_only=True):
    """Add messages to a draft of a conversation, which readers do not see before it is published. `token` and
    `revision` are those of the later `Publish`. `archives` is the number of archives of the draft. Each of the
    `entries` has the number of its archive, 0 for a live message, and a message with its position. With `counts`, their
    usage counts in totals; otherwise it counts where they come from. The messages `removed` are removed first. Each has
    an archive, an id and a position.

    `page` counts 1, 2, 3 … A repeated page has the same effect. False if the draft was dropped, or if earlier pages
    are lost because the draft was not continued for minutes or the server lost it. In these cases nothing is written.
    `gone`: the names of the large contents of the removed messages (`content_names`).
    """

    token: str
    page: int
    revision: int
    archives: int = 0
    counts: bool = False
    entries: tuple[tuple[int, Entry], ...] = ()
    removed: tuple[tuple[int, str, Position], ...] = ()
    gone: tuple[bytes, ...] = ()

    def steps(self, settings: Settings) -> Steps[Any]:
        keys = settings.keyspace.conversation(self.conversation_id)
        used = [archive for archive, _, _ in self.removed] + [archive for archive, _ in self.entries]
        sets = list(dict.fromkeys(used))
        at = {archive: b"%d" % number for number, archive in enumerate(sets, 2)}
        changes: list[bytes] = []
        for archive, message_id, (timestamp, sequence) in self.removed:
            changes += (at[archive], b"%d" % timestamp, b"%d" % sequence, field_of(message_id))
        ledger = [(field_of(one.message.id)[1:], self._counted(one)) for _, one in self.entries if one.usage]
        changes += (b"0", b"%d" % len(ledger), *(part for pair in ledger for part in pair))
        packed: list[Packed] = []
        mark = bytes.fromhex(self.token[:6])
        for archive, entry in self.entries:
            timestamp, sequence = entry.timestamp or 0, entry.message.sequence or 0
            place = timestamp.to_bytes(7, "big", signed=True) + mark + _packed(sequence) + _packed(self.revision)
            form = entry.packed(zstd=settings.zstd)
            packed.append(form)
            member = encode_member(sequence, entry.characters, form.flags, timestamp, form.body)
            changes += (at[archive], b"%d" % timestamp, member, field_of(entry.message.id), place + entry.tools)
        args = _page(self.page, self.archives, len(self.removed), changes)
        draft = keys.draft(self.token)
        call = Call(DRAFT, (draft, *(_set_of(keys, self.token, one) for one in sets)), args, as_is)
        call = with_contents(call, keys, packed, settings, self.token)
        more = [ledger_of(keys, self.token)] if ledger else []
        if call.contents or self.gone:
            more = [*(keys.content(name, self.token) for name in self.gone), keys.draft_contents(self.token), *more]
        return bool((yield from with_extra_keys(replace(call, keys=(*call.keys, *more)))))

    def _counted(self, entry: Entry) -> bytes:
        """The entry of a message in the ledger of usage: see lua/_usage.lua."""
        day = day_of(entry.timestamp or 0)
        return day.to_bytes(3, "big", signed=True) + entry.usage if self.counts else b""

    def apply(self, space: Space) -> bool:
        draft = space.draft(self.token)
        if draft.page not in (self.page, self.page - 1):
            return False
        for archive, _, position in self.removed:
            draft.sets.get(archive, {}).pop(position, None)
        for archive, entry in self.entries:
            position = Position(entry.timestamp or 0, entry.message.sequence or 0)
            draft.sets.setdefault(archive, {})[position] = entry
            if entry.usage:
                day = day_of(entry.timestamp or 0)
                draft.ledger[entry.message.id] = (day, usage_numbers(entry.usage)) if self.counts else None
        draft.page, draft.touched = self.page, time.time()
        space.drafts[self.token] = draft
        return True


class DropDraft(OnConversation, Op[None], frozen=True):
    """Remove a draft, unless it was published. `refuses`: its writer may not know, so pages that it still writes are
    refused."""

    token: str
    refuses: bool = False

    def steps(self, settings: Settings) -> Steps[Any]:
        keys = settings.keyspace.conversation(self.conversation_id)
        how = b"refuse" if self.refuses else b"drop"
        call = Call(DROP, (keys.draft(self.token),), DROP.args(how=how, lasts=_DRAFT_LASTS_MS), as_is)
        [archives] = yield [call]
        sets = [] if archives is None else [_set_of(keys, self.token, number) for number in range(archives + 1)]
        if sets:
            sets.append(ledger_of(keys, self.token))
        for start in range(0, len(sets), _UNLINKED):
            yield [plain(b"UNLINK", *sets[start : start + _UNLINKED])]
        names = keys.draft_contents(self.token)
        [beside] = yield [plain(b"ZRANGE", names, b"0", b"-1")]
        for start in range(0, len(beside), _UNLINKED):
            some = beside[start : start + _UNLINKED]
            yield [plain(b"UNLINK", *(keys.content(name, self.token) for name in some))]
        if beside:
            yield [plain(b"UNLINK", names)]
        if sets and not self.refuses:
            yield [replace(call, args=DROP.args(how=b"end", lasts=_DRAFT_LASTS_MS))]

    def apply(self, space: Space) -> None:
        space.drop_draft(self.token, refuses=self.refuses)


class Held(Struct, frozen=True):
    """The number of some messages, their totals, their earliest and latest timestamp, and their lowest and highest
    sequence. For an archive, they include the positions of its summary and of the summary before it, if they exist."""

    messages: int = 0
    characters: int = 0
    tokens: int = 0
    times: tuple[int, int] | None = None
    sequences: tuple[int, int] | None = None
    summary: Position | None = None
    former: Position | None = None


class Publish(Write[bool], frozen=True, kw_only=True):
    """Make a draft the conversation, which must not exist. `page`: its last page. `record` has the record, the origin
    of a fork and the revision, and optionally `created_at`, `updated_at`, `first_message_at` and `last_message_at`,
    which may be times of removed messages. `live` and `archives` are the contents of the draft, `contents` the names of
    its large contents, `summary` is the id of the live summary, and `sequence` is the highest sequence. `ttl`: the time
    to live in seconds, for a store without a ttl. `requests`: the open requests for approval. `usage`: the totals of
    the conversation by day, empty if those of its messages count elsewhere; None if no message has usage. `noted`:
    whether the draft has a ledger of usage. False if the draft is lost."""

    page: int
    record: Conversation
    live: Held
    archives: tuple[tuple[Archive, Held], ...] = ()
    contents: tuple[bytes, ...] = ()
    summary: str | None = None
    sequence: int = 0
    ttl: float | None = None
    requests: tuple[OpenRequest, ...] = ()
    usage: dict[int, Numbers] | None = None
    noted: bool = False

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
        if self.archives:
            documents = sum(held.messages - (held.former is not None) for _, held in self.archives)
            fields |= {b"m": b"%d" % documents, b"a": b"0"}
        if self.contents:
            fields[b"&"] = b"0"
        if self.summary is not None:
            fields[b"s"] = self.summary.encode()
        if self.usage is not None:
            fields[b"%"] = pack_days(self.usage)
        ttl = b"" if self.ttl is None or settings.ttl is not None else b"%d" % round(self.ttl * 1000)
        if self.requests:
            fields[b"?"] = b"".join(one.stored(field_of(one.message)) for one in self.requests)
        moments = (record.created_at, record.updated_at)
        draft, page = keys.draft(self.token), self.page
        for index in self._index():
            # A part of the draft, so that the script that publishes it has little to do. If it is refused, so is that,
            # or an earlier copy of this call has published the draft.
            page += 1
            changes = [b"%d" % len(index), *(part for pair in index for part in pair), b"0"]
            yield Call(DRAFT, (draft,), _page(page, len(self.archives), 0, changes), bool)
        filled = [(archive, held) for archive, held in self.archives if held.messages]
        created, updated = (b"" if time is None else b"%d" % to_microseconds(time) for time in moments)
        args = PUBLISH.args(
            page=b"%d" % page,
            created_at=created,
            updated_at=updated,
            revision=b"%d" % record.revision,
            live_count=b"%d" % self.live.messages,
            archive_count=b"%d" % len(filled),
            counts=[
                *(b"%d" % held.messages for _, held in filled),
                b"1" if self.noted else b"0",
                *(part for pair in fields.items() for part in pair),
            ],
        )
        call = self.script_call(PUBLISH, settings, args)
        if ttl:
            call.args[TTL] = ttl
        sets = [draft, *(_set_of(keys, self.token, number) for number in (0, *(one.number for one, _ in filled)))]
        if self.noted:
            sets.append(ledger_of(keys, self.token))
        if self.contents:
            sets.append(keys.draft_contents(self.token))
            sets += [keys.content(name, draft) for draft in (self.token, "") for name in self.contents]
        return bool((yield from self.send(replace(call, keys=(*call.keys, *sets)), settings)))

    def _times(self) -> tuple[int, int] | None:
        """Those of the first and of the last message."""
        held = (self.live, *(one for _, one in self.archives))
        times = [time for one in held for time in one.times or ()]
        given = self.record.first_message_at, self.record.last_message_at
        times += [to_microseconds(time) for time in given if time is not None]
        return (min(times), max(times)) if times else None

    def _index(self) -> Iterator[list[tuple[bytes, bytes]]]:
        """The fields of the index of the archives (see lua/_archive.lua) and of that of the large contents (see
        lua/_contents.lua), those that are written together."""
        fields, size, blocks = list[tuple[bytes, bytes]](), 0, b""
        named: dict[bytes, bytes] = {}
        for name in self.contents:
            named[b"&" + name[:2]] = named.get(b"&" + name[:2], b"") + name
        if named:
            yield [*named.items()]
        for start in range(0, len(self.archives), _IN_BLOCK):
            records = [self._record(*one) for one in self.archives[start : start + _IN_BLOCK]]
            first = records[0][0]
            blocks += first.to_bytes(6, "big") + len(records).to_bytes(2, "big")
            for at, choose, width in ((1, min, 7), (2, max, 7), (3, min, 4), (4, max, 4)):
                blocks += choose(record[at] for record in records).to_bytes(width, "big", signed=width == 7)
            packed = b"".join(record[8].encode() + record[0].to_bytes(6, "big") for record in records)
            packed += b"".join(map(msgspec.msgpack.encode, records))
            fields.append((b"w%d" % first, packed))
            fields += ((b"^" + record[9].encode(), b"%d" % record[0]) for record in records if record[9])
            size += len(packed)
            if len(fields) > _FIELDS or size > _FIELDS_BYTES:
                yield fields
                fields, size = [], 0
        if blocks:
            yield [*fields, (b"w", blocks)]

    def _record(self, archive: Archive, held: Held) -> list[Any]:
        """A record of the index. The time of its last message is that of its summary, also if that one was removed."""
        places = [place for place in (held.summary, held.former) if place is not None]
        times = [*(held.times or ()), *(place.timestamp for place in places)] or [0]
        sequences = [*(held.sequences or ()), *(place.sequence for place in places)] or [0]
        record: list[Any] = [archive.number, min(times), max(times), min(sequences), max(sequences)]
        record += [held.messages, held.characters, held.tokens, self.token]
        record += (archive.summary_id, held.summary.sequence) if archive.summary_id and held.summary else ("", 0)
        if archive.former is not None:
            record += (archive.former, *(held.former or ()))
        return record

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
            conversation.summary = self.summary
        conversation.times = self._times()
        conversation.sequence = self.sequence
        conversation.requests = list(self.requests)
        # Messages without a time come after the newest message, unless its time is far ahead of the clock.
        latest = conversation.times[1] if conversation.times else 0
        conversation.stamp = max(latest, 0) if latest < space.now() + _FAR_AHEAD else 0
        given = {name: getattr(record, name) for name in RECORD_FIELDS}
        conversation.record = {name: value for name, value in given.items() if value not in (None, {})}
        conversation.forked_from = record.forked_from
        if self.usage is not None:
            conversation.ledger, conversation.spent = draft.ledger, dict(self.usage)
            space.usage.move(self.usage, None, owner_of(conversation.record))
        conversation.ttl = self.ttl
        conversation.revision = record.revision - 1
        space.write(self, conversation, Kind.PUBLISHED)
        if record.created_at is not None:
            conversation.created = to_microseconds(record.created_at)
        if record.updated_at is not None:
            conversation.updated = min(to_microseconds(record.updated_at), conversation.updated)
        return True


def _set_of(keys: ConversationKeys, token: str, archive: int) -> bytes:
    """The set of the live messages of a draft (0), or of an archive, which has its final name from the beginning."""
    return keys.archive(token, archive) if archive else keys.draft(token) + b":0"


def ledger_of(keys: ConversationKeys, token: str) -> bytes:
    """The ledger of usage of a draft."""
    return keys.draft(token) + b":k"


def _packed(number: int) -> bytes:
    """As `pack_number` of lua/_change.lua."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)
