"""Forks: snapshots of a conversation under another id. Generators without I/O: they yield operations, and receive the
outcomes; errors of these are raised at the `yield`.

A snapshot is read in pages while others write, and then updated from the change log until it is current. It is written
as a draft, which becomes a conversation in one step.

A fork under way must not bring back messages that were removed for good. Its source and the new conversation may be on
different nodes, so no script sees both. Instead:

1. A fork is noted in its source (`NoteFork`) before it reads anything. If the source is gone by then, the fork fails.
2. `erase`, `clear`, `restore` and `delete_conversation`, and with that `erase_user`, find the note in the script that
   removes. Before they return, they drop the drafts of all forks noted there (`DropDraft`): a draft that was dropped
   takes no more pages, and is never published. The note outlives the messages, so a repeated call finds it again.
3. The fork is published only if its draft was not dropped, which the script that publishes it checks.

Say a removal has returned, and a fork with removed messages is published later. It has read them before the removal's
script, so it was noted before (1), so its draft was dropped before the removal returned (2): it cannot be published
(3). A fork that is published before its draft is dropped was made before the removal: neither call had returned. The
draft of a killed fork is dropped in the same way. An expired source is read as gone, and its note expires with it: a
fork that has read all before that was made before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from redis_history.errors import ConversationNotFoundError, RedisHistoryError
from redis_history.store import operations as ops
from redis_history.store import refusals
from redis_history.store.changelog import is_gone
from redis_history.store.operations.base import Steps, T
from redis_history.store.operations.compact import through_of
from redis_history.store.operations.contents import portions
from redis_history.store.operations.keys import content_name
from redis_history.store.operations.page import next_page
from redis_history.store.operations.searching import document_all
from redis_history.store.writes import Entry
from redis_history.values import Conversation, Message, Position, events
from redis_history.values._validation import check_owner
from redis_history.values.approvals import OpenRequest, may_ask, note_requests
from redis_history.values.beside import PartialMessage, split
from redis_history.values.folding import fold_of
from redis_history.values.ids import check_conversation_id, new_token
from redis_history.values.ids import new_id as new_message_id
from redis_history.values.message import ForkedFrom
from redis_history.values.pairs import OpenCalls, tool_parts
from redis_history.values.usage import NOTHING, Numbers, added, day_of, usage_numbers

#: Messages and archives read together; messages and bytes written together: some 2 ms of the server's time.
_PAGE: Final = 500
_TOGETHER: Final = 25
_WRITTEN: Final = 250
_WRITTEN_BYTES: Final = 1_000_000
#: Attempts, if the conversation is compacted or replaced, or the draft lost, at the same time.
_TRIES: Final = 20


class DraftLostError(Exception):
    """The server has lost the draft."""


class _StaleError(Exception):
    """The conversation has changed in another way than by writes of messages."""


class _Staged:
    """A message of a draft, with its place and size."""

    __slots__ = ("archive", "characters", "contents", "position", "tokens", "tools")

    def __init__(self, archive: int, entry: ops.Entry) -> None:
        self.archive = archive
        self.contents = tuple(content_name(entry.message.id, one.digest) for one in split(entry.body)[2])
        self.position = Position(entry.timestamp or 0, entry.message.sequence or 0)
        self.characters = entry.characters
        self.tokens = entry.tokens
        self.tools = entry.tools


class Draft:
    """Writes a conversation that readers do not see before it is published. `revision` is the revision of the
    conversation."""

    def __init__(self, conversation_id: str, revision: int = 0, *, counts: bool = False) -> None:
        """`counts`: the usage of its messages counts in totals."""
        self._counts, self._noted, self._usage = counts, False, dict[int, Numbers]()
        self.conversation_id = conversation_id
        self.revision = revision
        self.token = new_token()
        self.messages: dict[str, _Staged] = {}
        self._page = 0
        self._archives = 0

    def begin(self, archives: int) -> None:
        """Prepare a draft with the archives 1, 2, 3 … up to this number for its first message."""
        self.revision = max(self.revision, archives + 1)
        self._archives = archives

    def add(self, messages: Iterable[tuple[int, Message]]) -> Steps[None]:
        """Add messages, each with the number of its archive (0: it is live), or replace them. They have their
        positions. Raises DraftLostError."""
        entries = [(archive, Entry.of(message)) for archive, message in messages]
        for chunk in _chunks(entries):
            known = [(entry.message.id, self.messages.get(entry.message.id)) for _, entry in chunk]
            removed = [(name, one) for name, one in known if one is not None]
            yield from self._write(chunk, removed)
            self.messages.update((entry.message.id, _Staged(archive, entry)) for archive, entry in chunk)
            for entry in (entry for _, entry in chunk if entry.usage):
                self._noted = True
                if self._counts:
                    day = day_of(entry.timestamp or 0)
                    self._usage[day] = added(self._usage.get(day, NOTHING), usage_numbers(entry.usage))

    def remove(self, message_ids: Iterable[str]) -> Steps[None]:
        """Remove messages; unknown ones are ignored. Raises DraftLostError."""
        removed = []
        for message_id in message_ids:
            staged = self.messages.pop(message_id, None)
            if staged is not None:
                removed.append((message_id, staged))
        for start in range(0, len(removed), _WRITTEN):
            yield from self._write([], removed[start : start + _WRITTEN])

    def _write(self, entries: list[tuple[int, ops.Entry]], removed: list[tuple[str, _Staged]]) -> Steps[None]:
        self._page += 1
        written = yield ops.WriteDraft(
            self.conversation_id,
            token=self.token,
            page=self._page,
            revision=self.revision,
            archives=self._archives,
            counts=self._counts,
            entries=tuple(entries),
            removed=tuple((one.archive, message_id, one.position) for message_id, one in removed),
            gone=tuple(name for _, one in removed for name in one.contents),
        )
        if not written:
            raise DraftLostError

    def publish(self, snapshot: Snapshot) -> Steps[None]:
        """Make it the conversation, as the snapshot says. Raises ConversationExistsError, DraftLostError."""
        if not self._page:
            yield from self._write([], [])
        groups: dict[int, list[_Staged]] = {}
        for staged in self.messages.values():
            groups.setdefault(staged.archive, []).append(staged)
        kept, live_summary = [], None
        for archive in snapshot.archives:
            held = _held(groups.get(archive.number, []))
            summary, former = self.messages.get(archive.summary_id or ""), self.messages.get(archive.former or "")
            if former is not None and former.archive != archive.number:
                former = None
            if summary is not None and summary.archive == 0:
                live_summary = archive.summary_id
            if held.messages or summary is not None:
                names = {"summary_id": summary and archive.summary_id, "former": former and archive.former}
                places = {"summary": summary and summary.position, "former": former and former.position}
                kept.append((replace(archive, **names), replace(held, **places)))
        published = yield ops.Publish(
            self.conversation_id,
            token=self.token,
            precondition=ops.Precondition(must_not_exist=True),
            page=self._page,
            record=replace(snapshot.record, conversation_id=self.conversation_id, revision=self.revision),
            live=_held(groups.get(0, [])),
            archives=tuple(kept),
            contents=tuple(name for staged in self.messages.values() for name in staged.contents),
            summary=live_summary,
            sequence=max([snapshot.sequence, *(staged.position.sequence for staged in self.messages.values())]),
            ttl=snapshot.ttl,
            requests=self._requests(),
            usage=self._days(snapshot) if self._noted or snapshot.usage is not None else None,
            noted=self._noted,
        )
        if not published:
            raise DraftLostError

    def _requests(self) -> tuple[OpenRequest, ...]:
        """The open requests for approval."""
        found: list[OpenRequest] = []
        marked = [(one.position, message_id, one.tools) for message_id, one in self.messages.items() if one.tools]
        if any(may_ask(tools) for _, _, tools in marked):
            for position, message_id, tools in sorted(marked):
                note_requests(found, message_id, tools, position)
        return tuple(found)

    def _days(self, snapshot: Snapshot) -> dict[int, Numbers]:
        """The totals of the conversation: of an import as they were, also for messages that were removed."""
        if not self._counts:
            return {}
        return self._usage if snapshot.usage is None else dict(snapshot.usage)

    def drop(self) -> Steps[None]:
        """Remove the written pages, if any. Errors are ignored, because the server removes the draft later."""
        with suppress(RedisHistoryError):
            if self._page:
                yield ops.DropDraft(self.conversation_id, self.token)


def _chunks(entries: list[tuple[int, ops.Entry]]) -> Iterator[list[tuple[int, ops.Entry]]]:
    chunk: list[tuple[int, ops.Entry]] = []
    size = 0
    for one in entries:
        length = len(one[1].body)
        if chunk and (len(chunk) == _WRITTEN or size + length > _WRITTEN_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(one)
        size += length
    if chunk:
        yield chunk


def _held(staged: list[_Staged]) -> ops.Held:
    characters, tokens = sum(one.characters for one in staged), sum(one.tokens for one in staged)
    if not staged:
        return ops.Held()
    times, sequences = zip(*(one.position for one in staged), strict=True)
    return ops.Held(len(staged), characters, tokens, (min(times), max(times)), (min(sequences), max(sequences)))


class _Cut:
    """Which messages are in a fork, as `wants` says: those up to `end`, without replies that are being written; and the
    results of their calls. Takes the messages in order."""

    def __init__(self, end: Position | None) -> None:
        self.end = end
        #: Whether results of a reply that is being written were left out.
        self.left_results = False
        # The open calls; False: of a reply that is being written.
        self._calls: OpenCalls[bool] = OpenCalls()

    @property
    def waits(self) -> bool:
        """Whether a message behind the end may have a result of a call before it."""
        return any(self._calls)

    def wants(self, message: Message) -> bool:
        live = message.status == "streaming"
        within = self.end is None or (message.position is not None and message.position <= self.end)
        own: list[tuple[str | bytes, Any]] = []
        answers = set()
        for _, (is_call, call_id, agent) in tool_parts(message):
            if is_call:
                own.append((call_id, agent))
            elif (call_id, agent) in own:
                own.remove((call_id, agent))
            else:
                answers.add(self._calls.answer(call_id, agent))
        if not live and False in answers:
            self.left_results = True
            return False
        wanted = not live and (within or True in answers)
        if wanted or live:
            for call_id, agent in own:
                self._calls.call(call_id, agent, wanted)
        return wanted


def fork(
    conversation_id: str,
    new_id: str | None = None,
    through: Position | Message | str | None = None,
    owner: int | str | UnsetType | None = UNSET,
) -> Steps[Conversation]:
    """Make a fork with its search documents, and return its record: see `HistoryStore.fork`. `owner`: UNSET is that of
    the source."""
    check_conversation_id(conversation_id)
    name = new_message_id() if new_id is None else new_id
    check_conversation_id(name, "new_id")
    check_owner(None if owner is UNSET else owner, "user_id")
    end = None if through is None else through_of(through)
    present = yield ops.ReadConversation(name)
    if present is not None:
        raise refusals.conversation_exists(name, present.revision)
    yield from _retried(conversation_id, lambda: _copy(conversation_id, name, end, owner))
    made = yield ops.ReadConversation(name)
    if made is None:
        raise refusals.conversation_missing(name)
    yield from document_all(name)
    return made  # type: ignore[no-any-return]


def _retried(conversation_id: str, attempt: Callable[[], Steps[T]]) -> Steps[T]:
    """Return the outcome of the first undisturbed attempt. Raises CompactionConflictError."""
    for left in reversed(range(_TRIES)):
        try:
            return (yield from attempt())
        except (DraftLostError, _StaleError) as error:
            if not left:
                raise refusals.fork_conflict(conversation_id, _TRIES) from error
    raise AssertionError


def _copy(
    conversation_id: str, new_id: str, through: Position | str | None, owner: int | str | UnsetType | None
) -> Steps[None]:
    """One attempt to make a fork."""
    draft = Draft(new_id)
    note = ops.NoteFork(conversation_id, new_id=new_id, token=draft.token, begins=True)
    if not (yield note):
        raise refusals.conversation_missing(conversation_id)
    try:
        if isinstance(through, str):
            last = yield ops.FindMessage(conversation_id, through, "none")
            if last is None or last.position is None:
                raise refusals.message_missing(conversation_id, through)
            end: Position | None = last.position
        else:
            end = through
        snapshot = yield from _Reading(conversation_id, _Cut(end), draft).read()
        live = [(one.position, name) for name, one in draft.messages.items() if not one.archive]
        origin = ForkedFrom(conversation_id, snapshot.record.revision, max(live)[1] if live else None)
        times = dict.fromkeys(("created_at", "updated_at", "first_message_at", "last_message_at"))
        record = replace(snapshot.record, forked_from=origin, **times)
        if owner is not UNSET:
            record = replace(record, user_id=owner)
        yield from draft.publish(snapshot._replace(record=record, sequence=0, usage={}))
    except (DraftLostError, _StaleError, RedisHistoryError):
        yield from draft.drop()
        yield from _forget(note)
        raise
    yield from _forget(note)


def _forget(note: ops.NoteFork) -> Steps[None]:
    with suppress(RedisHistoryError):  # a later fork does it
        yield replace(note, begins=False)


class _Everything(_Cut):
    """Includes streaming replies, with their present content."""

    def wants(self, message: Message) -> bool:
        return True


class Collected:
    """Collects the messages of a snapshot as `encode` returns them, by id."""

    def __init__(self, encode: Callable[[Message, int], bytes]) -> None:
        self._encode = encode
        self.messages: dict[str, CollectedMessage] = {}

    def begin(self, archives: int) -> None:
        """Do nothing: this reader needs no preparation."""

    def add(self, messages: Iterable[tuple[int, Message]]) -> Steps[None]:
        for archive, message in messages:
            at = message.position or Position(0, 0)
            self.messages[message.id] = CollectedMessage(archive, at, self._encode(message, archive))
        yield from ()

    def remove(self, message_ids: Iterable[str]) -> Steps[None]:
        for message_id in message_ids:
            self.messages.pop(message_id, None)
        yield from ()


class CollectedMessage(NamedTuple):
    archive: int
    position: Position
    encoded: bytes


class Snapshot(NamedTuple):
    """The record of a conversation at one revision, its archives, numbered from 1, its own time to live, its highest
    sequence, which a removed message may have had, and its usage by day."""

    record: Conversation
    archives: list[ops.Archive]
    ttl: float | None = None
    sequence: int = 0
    usage: Mapping[int, Numbers] | None = None


def collect(
    conversation_id: str, encode: Callable[[Message, int], bytes]
) -> Steps[tuple[Snapshot, list[CollectedMessage]] | None]:
    """All messages of one revision, those of each archive first, or None if the conversation does not exist."""

    def attempt() -> Steps[tuple[Snapshot, list[CollectedMessage]]]:
        found = Collected(encode)
        snapshot = yield from _Reading(conversation_id, _Everything(None), found).read()
        return snapshot, sorted(found.messages.values(), key=lambda one: (one.archive or 1 << 60, one.position))

    try:
        return (yield from _retried(conversation_id, attempt))
    except ConversationNotFoundError:
        return None


def publish(snapshot: Snapshot, archive_of: Mapping[str, int], messages: Sequence[Message]) -> Steps[None]:
    """Make a conversation that was exported, with its search documents. Raises ConversationExistsError."""
    record = snapshot.record

    def attempt() -> Steps[None]:
        draft = Draft(record.conversation_id, record.revision, counts=True)
        draft.begin(max((archive.number for archive in snapshot.archives), default=0))
        try:
            yield from draft.add((archive_of.get(message.id, 0), message) for message in messages)
            yield from draft.publish(snapshot)
        except (DraftLostError, RedisHistoryError):
            yield from draft.drop()
            raise

    yield from _retried(record.conversation_id, attempt)
    yield from document_all(record.conversation_id)


class _Reading:
    """Reads the messages of one revision that `cut` wants into `draft`."""

    def __init__(self, conversation_id: str, cut: _Cut, draft: Draft | Collected) -> None:
        self.conversation_id = conversation_id
        self.draft = draft
        self.cut = cut
        self._removed: set[str] = set()

    def read(self) -> Steps[Snapshot]:
        """Raises _StaleError, ConversationNotFoundError."""
        end, cut, draft = self.cut.end, self.cut, self.draft
        known = first = (yield ops.ReadHead(self.conversation_id)).cursor
        layout = yield ops.ReadLayout(self.conversation_id)
        if is_gone(known) or layout is None:
            raise refusals.conversation_missing(self.conversation_id)
        kept = yield from self._kept(layout, end)
        opened = [archive for archive in layout.archives if archive not in kept]
        draft.begin(len(kept))
        numbered = [ops.Archive(number, one.summary_id, one.former) for number, one in enumerate(kept, 1)]
        for start in range(0, len(kept), _TOGETHER):
            yield from self._read_archives(kept[start : start + _TOGETHER], start + 1)
        summaries = {archive.summary_id for archive in opened}
        op: ops.ReadPage | None
        op = ops.ReadPage(self.conversation_id, _PAGE, newest=False, archived=bool(opened), contents="none")
        while op is not None:
            page = yield op
            fresh = (one for one in page.messages if one.id not in draft.messages and one.id not in summaries)
            yield from self._add((0, message) for message in filter(cut.wants, fresh))
            op = next_page(op, page, _PAGE)
            if end is not None and page.messages and page.messages[-1].position > end and not cut.waits:
                break
        record = None
        while record is None or record.revision != known.revision:
            known = yield from self._catch_up(known)
            if known.revision != first.revision:  # a change may have another time to live, or a new sequence
                layout = (yield ops.ReadLayout(self.conversation_id)) or layout
            record = yield ops.ReadConversation(self.conversation_id)
            if record is None:
                raise refusals.conversation_missing(self.conversation_id)
        # A summary that was removed during the read does not count, even if its id was appended again.
        present = (one if one.summary_id not in self._removed else replace(one, summary_id=None) for one in numbered)
        return Snapshot(record, list(present), layout.ttl, layout.sequence, layout.usage)

    def _read_archives(self, archives: Sequence[ops.StoredArchive], number: int) -> Steps[None]:
        """Read archives into those of the draft that begin with this number, several together, as most are small."""
        first = ops.ReadPage(self.conversation_id, _PAGE // _TOGETHER, newest=False, contents="none")
        reads = [replace(first, archive=archive) for archive in archives]
        pages = yield ops.ReadTogether(tuple(reads))
        found = []
        for own, (op, page) in enumerate(zip(reads, pages, strict=True), number):
            found += [(own, message) for message in page.messages]
            following = next_page(op, page, _PAGE)
            while following is not None:
                yield from self._add(found)
                page = yield following
                found = [(own, message) for message in page.messages]
                following = next_page(following, page, _PAGE)
        yield from self._add(found)

    def _add(self, found: Iterable[tuple[int, Message]]) -> Steps[None]:
        """Add messages that were read without their large contents. Those that were removed since are in the log."""
        given = list(found)
        archives = {message.id: archive for archive, message in given}
        for portion in portions(message for _, message in given):
            messages = portion
            if any(type(message) is PartialMessage for message in portion):
                messages = yield ops.ReadContents(self.conversation_id, tuple(portion))
            yield from self.draft.add((archives[one.id], one) for one in messages if one is not None)

    def _kept(self, layout: ops.Layout, end: Position | None) -> Steps[tuple[ops.StoredArchive, ...]]:
        """The archives of the fork: those whose summaries quote no message behind the end. The messages of the others
        are live in the fork. A later archive may be of earlier messages, which were added with times of the past.

        At most one summary is live in a fork, as in its source. Several could be live after the deletion of a summary
        whose archive is not kept: then the summary before it would be live together with a later summary. The summary
        at the latest position stays, and the originals of the others are live.
        """
        if end is None:
            return layout.archives
        kept, roots, inner = dict[int, ops.StoredArchive](), list[tuple[Position, ops.StoredArchive]](), set[str]()
        for archive in reversed(layout.archives):
            last = archive.position
            if archive.summary_id in inner:  # whose archive is kept, too
                last = None
            elif last is None:
                page = yield ops.ReadPage(self.conversation_id, 1, newest=True, archive=archive, contents="none")
                last = page.messages[-1].position if page.messages else None
            elif last <= end:
                roots.append((last, archive))
            if last is None or last <= end:
                kept[archive.number] = archive
                if archive.former is not None:
                    inner.add(archive.former)
        by_summary = {archive.summary_id: archive for archive in kept.values()}
        stays = max(roots, key=lambda root: root[0], default=None)
        for root in roots:
            opened: ops.StoredArchive | None = None if root is stays else root[1]
            while opened is not None:
                del kept[opened.number]
                opened = by_summary.get(opened.former) if opened.former is not None else None
        return tuple(archive for archive in layout.archives if archive.number in kept)

    def _catch_up(self, known: events.Cursor) -> Steps[events.Cursor]:
        """Repeat the changes since `known` in the draft. Returns the newest change. Raises _StaleError."""
        more = True
        while more:
            changes: ops.Changes = yield ops.ReadChanges(self.conversation_id, known)
            added: dict[str, tuple[int, Message]] = {}
            removed: dict[str, None] = {}
            for event in changes.events:
                self._repeat(added, removed, event)
                known = event.cursor
            yield from self.draft.remove(removed)
            self._removed.update(removed)
            yield from self.draft.add(added.values())
            more = changes.more
        return known

    def _repeat(self, added: dict[str, tuple[int, Message]], removed: dict[str, None], event: events.Event) -> None:
        """Note what an event adds or replaces, and removes. Raises _StaleError."""
        fold = fold_of(event)
        if fold is None or fold.clears or (isinstance(event, events.ReplyEnded) and self.cut.left_results):
            raise _StaleError
        for message in (*fold.added, *fold.ended, *fold.changed):
            staged = None if message.id in removed else self.draft.messages.get(message.id)
            if message.id in added:
                added[message.id] = added[message.id][0], message
            elif staged is not None:
                added[message.id] = staged.archive, message
            elif self.cut.wants(message):
                added[message.id] = 0, message
        for message_id in fold.removed:
            added.pop(message_id, None)
            removed[message_id] = None
