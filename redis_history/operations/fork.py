"""Forks: snapshots of a conversation under another id. Generators without I/O: they yield operations, and receive the
outcomes; errors of these are raised at the `yield`.

A snapshot is read in pages, while others write; then the change log says what has changed since, until nothing has. It
is written as a draft, which becomes a conversation in one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from redis_history import events
from redis_history import operations as ops
from redis_history.errors import ConversationNotFoundError, RedisHistoryError
from redis_history.model import Conversation, Message, Position
from redis_history.model.ids import new_token
from redis_history.model.message import ForkedFrom
from redis_history.model.pairs import OpenCalls, tool_parts
from redis_history.operations import refusals
from redis_history.operations.base import Entry, Steps, T
from redis_history.operations.changelog import is_gone
from redis_history.operations.page import next_page

#: Messages read together; messages and bytes written together: some 2 ms of the server's time.
_PAGE: Final = 500
_WRITTEN: Final = 250
_WRITTEN_BYTES: Final = 1_000_000
#: Attempts, if the conversation is compacted or replaced, or the draft lost, at the same time.
_TRIES: Final = 20


class DraftLostError(Exception):
    """The server has lost the draft."""


class _StaleError(Exception):
    """The conversation has changed in another way than by writes of messages."""


class _Staged:
    """A message of a draft: where it is, and what it counts."""

    __slots__ = ("archive", "characters", "position", "tokens")

    def __init__(self, archive: int, entry: ops.Entry) -> None:
        self.archive = archive
        self.position = Position(entry.timestamp or 0, entry.message.sequence or 0)
        self.characters = entry.characters
        self.tokens = entry.tokens


class Draft:
    """Writes a conversation that nobody sees before it is published. `revision`: that of the conversation."""

    def __init__(self, conversation_id: str, revision: int = 0) -> None:
        self.conversation_id = conversation_id
        self.revision = revision
        self.messages: dict[str, _Staged] = {}
        self._token = new_token()
        self._page = 0
        self._archives: dict[int, None] = {}

    def begin(self, archives: int) -> None:
        """Prepare a fork with this number of archives for its first message."""
        self.revision = archives + 1

    def add(self, archive: int, messages: Iterable[Message]) -> Steps[None]:
        """Add messages, which have their positions, or replace them. Raises DraftLostError."""
        entries = [Entry.of(message) for message in messages]
        for chunk in _chunks(entries):
            known = [(entry.message.id, self.messages.get(entry.message.id)) for entry in chunk]
            yield from self._write(archive, chunk, [(name, one.position) for name, one in known if one is not None])
            self.messages.update((entry.message.id, _Staged(archive, entry)) for entry in chunk)

    def remove(self, message_ids: Iterable[str]) -> Steps[None]:
        """Remove messages; unknown ones are ignored. Raises DraftLostError."""
        gone: dict[int, list[tuple[str, Position]]] = {}
        for message_id in message_ids:
            staged = self.messages.pop(message_id, None)
            if staged is not None:
                gone.setdefault(staged.archive, []).append((message_id, staged.position))
        for archive, removed in gone.items():
            for start in range(0, len(removed), _WRITTEN):
                yield from self._write(archive, [], removed[start : start + _WRITTEN])

    def _write(self, archive: int, entries: list[ops.Entry], removed: list[tuple[str, Position]]) -> Steps[None]:
        self._page += 1
        self._archives[archive] = None
        written = yield ops.WriteDraft(
            self.conversation_id,
            token=self._token,
            page=self._page,
            revision=self.revision,
            archive=archive,
            entries=tuple(entries),
            removed=tuple(removed),
        )
        if not written:
            raise DraftLostError

    def publish(self, snapshot: Snapshot) -> Steps[None]:
        """Make it the conversation, as the snapshot says. Raises ConversationExistsError, DraftLostError."""
        if not self._page:
            yield from self._write(0, [], [])
        groups: dict[int, list[_Staged]] = {}
        for staged in self.messages.values():
            groups.setdefault(staged.archive, []).append(staged)
        kept = []
        for archive in snapshot.archives:
            summary, former, held = archive.summary_id, archive.former, groups.get(archive.number, [])
            if former is not None and getattr(self.messages.get(former), "archive", None) != archive.number:
                former = None
            if summary not in self.messages:
                summary = None
            if held or summary is not None:
                kept.append((replace(archive, summary_id=summary, former=former), _held(held)))
        published = yield ops.Publish(
            self.conversation_id,
            token=self._token,
            precondition=ops.Precondition(must_not_exist=True),
            page=self._page,
            record=replace(snapshot.record, conversation_id=self.conversation_id, revision=self.revision),
            live=_held(groups.get(0, [])),
            archives=tuple(kept),
            sequence=max([snapshot.sequence, *(staged.position.sequence for staged in self.messages.values())]),
            ttl=snapshot.ttl,
        )
        if not published:
            raise DraftLostError

    def drop(self) -> Steps[None]:
        """Remove what was written, if anything was. Errors are ignored: the server removes it later."""
        with suppress(RedisHistoryError):
            if self._page:
                yield ops.DropDraft(self.conversation_id, self._token, tuple(filter(None, self._archives)))


def _chunks(entries: list[ops.Entry]) -> Iterator[list[ops.Entry]]:
    chunk: list[ops.Entry] = []
    size = 0
    for entry in entries:
        if chunk and (len(chunk) == _WRITTEN or size + len(entry.body) > _WRITTEN_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(entry)
        size += len(entry.body)
    if chunk:
        yield chunk


def _held(staged: list[_Staged]) -> ops.Held:
    times = [one.position.timestamp for one in staged]
    characters, tokens = sum(one.characters for one in staged), sum(one.tokens for one in staged)
    return ops.Held(len(staged), characters, tokens, (min(times), max(times)) if times else None)


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


def fork(conversation_id: str, new_id: str, through: Position | str | None) -> Steps[Conversation]:
    """Make a fork, and return its record."""
    present = yield ops.ReadConversation(new_id)
    if present is not None:
        raise refusals.conversation_exists(new_id, present.revision)
    yield from _retried(conversation_id, lambda: _copy(conversation_id, new_id, through))
    made = yield ops.ReadConversation(new_id)
    if made is None:
        raise refusals.conversation_missing(new_id)
    return made  # type: ignore[no-any-return]


def _retried(conversation_id: str, attempt: Callable[[], Steps[T]]) -> Steps[T]:
    """The outcome of the first attempt that nobody has disturbed. Raises CompactionConflictError."""
    for left in reversed(range(_TRIES)):
        try:
            return (yield from attempt())
        except (DraftLostError, _StaleError) as error:
            if not left:
                raise refusals.fork_conflict(conversation_id, _TRIES) from error
    raise AssertionError


def _copy(conversation_id: str, new_id: str, through: Position | str | None) -> Steps[None]:
    """One attempt to make a fork."""
    draft = Draft(new_id)
    try:
        if isinstance(through, str):
            last = yield ops.FindMessage(conversation_id, through)
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
        yield from draft.publish(snapshot._replace(record=record, sequence=0))
    except (DraftLostError, _StaleError, RedisHistoryError):
        yield from draft.drop()
        raise


class _Everything(_Cut):
    """Also replies that are being written, with what they have now."""

    def wants(self, message: Message) -> bool:
        return True


class Collected:
    """Collects the messages of a snapshot as `encode` returns them, by id."""

    def __init__(self, encode: Callable[[Message, int], bytes]) -> None:
        self._encode = encode
        self.messages: dict[str, CollectedMessage] = {}

    def begin(self, archives: int) -> None:
        """Nothing to prepare."""

    def add(self, archive: int, messages: Iterable[Message]) -> Steps[None]:
        for message in messages:
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
    """The record of a conversation at one revision, its archives, numbered from 1, its own time to live, and its
    highest sequence, which a removed message may have had."""

    record: Conversation
    archives: list[ops.Archive]
    ttl: float | None = None
    sequence: int = 0


def collect(
    conversation_id: str, encode: Callable[[Message, int], bytes]
) -> Steps[tuple[Snapshot, list[CollectedMessage]] | None]:
    """All messages of one revision, those of each archive first. None if there is no such conversation."""

    def attempt() -> Steps[tuple[Snapshot, list[CollectedMessage]]]:
        found = Collected(encode)
        snapshot = yield from _Reading(conversation_id, _Everything(None), found).read()
        return snapshot, sorted(found.messages.values(), key=lambda one: (one.archive or 1 << 60, one.position))

    try:
        return (yield from _retried(conversation_id, attempt))
    except ConversationNotFoundError:
        return None


def publish(snapshot: Snapshot, archive_of: Mapping[str, int], messages: Sequence[Message]) -> Steps[None]:
    """Make a conversation that was exported. Raises ConversationExistsError."""
    record = snapshot.record
    groups: dict[int, list[Message]] = {}
    for message in messages:
        groups.setdefault(archive_of.get(message.id, 0), []).append(message)

    def attempt() -> Steps[None]:
        draft = Draft(record.conversation_id, max(record.revision, len(snapshot.archives) + 1))
        try:
            for number, group in groups.items():
                yield from draft.add(number, group)
            yield from draft.publish(snapshot)
        except (DraftLostError, RedisHistoryError):
            yield from draft.drop()
            raise

    yield from _retried(record.conversation_id, attempt)


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
        numbered = [replace(archive, number=number) for number, archive in enumerate(kept, 1)]
        for archive, new in zip(kept, numbered, strict=True):
            op: ops.ReadPage | None = ops.ReadPage(self.conversation_id, _PAGE, newest=False, archive=archive.number)
            while op is not None:
                page = yield op
                yield from draft.add(new.number, page.messages)
                op = next_page(op, page, _PAGE)
        summaries = {archive.summary_id for archive in opened}
        op = ops.ReadPage(self.conversation_id, _PAGE, newest=False, archived=bool(opened))
        while op is not None:
            page = yield op
            fresh = (one for one in page.messages if one.id not in draft.messages and one.id not in summaries)
            yield from draft.add(0, filter(cut.wants, fresh))
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
        return Snapshot(record, list(present), layout.ttl, layout.sequence)

    def _kept(self, layout: ops.Layout, end: Position | None) -> Steps[tuple[ops.Archive, ...]]:
        """The archives of the fork: those whose summaries quote no message behind the end. The messages of the others
        are live in the fork. A later archive may be of earlier messages, which were added with times of the past."""
        if end is None:
            return layout.archives
        kept, inner = [], set[str]()
        for archive in reversed(layout.archives):
            last = None
            if archive.summary_id not in inner:  # whose archive is kept, too
                if archive.summary_id is not None:
                    last = yield ops.FindMessage(self.conversation_id, archive.summary_id)
                if last is None:
                    page = yield ops.ReadPage(self.conversation_id, 1, newest=True, archive=archive.number)
                    last = page.messages[-1] if page.messages else None
            if last is None or last.position is None or last.position <= end:
                kept.append(archive)
                if archive.former is not None:
                    inner.add(archive.former)
        return tuple(reversed(kept))

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
            groups: dict[int, list[Message]] = {}
            for archive, message in added.values():
                groups.setdefault(archive, []).append(message)
            for archive, messages in groups.items():
                yield from self.draft.add(archive, messages)
            more = changes.more
        return known

    def _repeat(self, added: dict[str, tuple[int, Message]], removed: dict[str, None], event: events.Event) -> None:
        """Note what an event adds or replaces, and removes. Raises _StaleError."""
        messages: tuple[Message | None, ...] = ()
        gone: tuple[str, ...] = ()
        match event:
            case events.MessagesAppended():
                messages, gone = event.messages, event.removed_ids
            case events.MessageUpdated():
                messages = (event.message,)
            case events.ReplyEnded() if not self.cut.left_results:
                messages = (event.message,)
            case events.MessagesDeleted():
                gone = event.message_ids
            case events.ConversationUpdated() | events.ReplyGrew() | events.RunChanged():
                pass
            case _:
                raise _StaleError
        for message in filter(None, messages):
            staged = None if message.id in removed else self.draft.messages.get(message.id)
            if message.id in added:
                added[message.id] = added[message.id][0], message
            elif staged is not None:
                added[message.id] = staged.archive, message
            elif self.cut.wants(message):
                added[message.id] = 0, message
        for message_id in gone:
            added.pop(message_id, None)
            removed[message_id] = None
