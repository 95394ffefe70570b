"""Replace messages by a summary, which moves them to the archive."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final

from msgspec import Struct, structs

from redis_history.errors import InvalidInputError, InvalidMessageError, TornPairError
from redis_history.store import refusals
from redis_history.store.changelog import Kind
from redis_history.store.memory.space import Space
from redis_history.store.operations.base import Call, Steps, Write, as_is, field_of, plain, read, readable
from redis_history.store.operations.contents import FIND
from redis_history.store.operations.documents import mark
from redis_history.store.operations.keys import ConversationKeys
from redis_history.store.operations.page import FindMessage, page_of
from redis_history.store.operations.read_changes import ReadChanges
from redis_history.store.operations.scripts import PLACES, WRITING, load_script
from redis_history.store.operations.settings import Settings
from redis_history.store.operations.stream import read_replies
from redis_history.store.search.redisearch import document
from redis_history.store.writes import Entry, Precondition
from redis_history.values import Message, Position
from redis_history.values._validation import check_list, named, refuse
from redis_history.values.beside import split
from redis_history.values.events import BEGINNING, ConversationUpdated, Cursor, MessagesAppended
from redis_history.values.filters import check_position
from redis_history.values.ids import check_conversation_id, check_message_id
from redis_history.values.ranges import Ranges, good_ends, leaving, stays
from redis_history.values.sizes import estimate_tokens
from redis_history.values.wire import body_of, characters_of, digest_of

COMPACT: Final = load_script(
    "compact",
    *WRITING,
    *PLACES,
    args=(
        "epoch revision id head rest end_timestamp end_sequence held replaced characters tokens timestamp sequence "
        "newest_sequence sequences field usage kept *ranks"
    ),
)

#: Messages read together.
_PAGE: Final = 1000

#: Attempts, if others change the range at the same time.
_TRIES: Final = 50

#: System and pinned messages that stay in the range: the script moves them one by one.
_MOST_STAYING: Final = 1000


class Compacted(Struct, frozen=True):
    """The outcome of a compaction: its `revision`, the stored `summary`, and the `count` of messages it replaced,
    including a former summary.

    `changed` is false if an earlier call stored this summary (`count` is then the number of its messages that are
    still archived), or with nothing to compact (`summary` is then None, `revision` the present one).
    """

    revision: int
    summary: Message | None
    count: int
    changed: bool


class Compact(Write[Compacted], frozen=True):
    """Replace all messages up to `through` (inclusive), except system messages, by a summary at the position of the
    last of them. The replaced messages move to the archive. A former summary is replaced like any message.

    `seen`: ids and digests of the summarized messages. Raises CompactionConflictError if other messages would be
    replaced, and TornPairError if the range separates a tool call from its result. Changes nothing if an earlier call
    has stored this summary, or if only a summary could be replaced.
    """

    through: Position
    summary: Entry
    seen: tuple[tuple[str, bytes], ...] | None = None
    vectors: tuple[bytes, ...] = ()

    @classmethod
    def of(
        cls,
        conversation_id: str,
        through: Position,
        summary: Message | str,
        seen: Iterable[Message] | None = None,
        expected_revision: int | None = None,
    ) -> Compact:
        """A text becomes a message of role user that is a summary. Raises InvalidConversationIdError,
        InvalidMessageError, InvalidInputError."""
        check_conversation_id(conversation_id)
        if isinstance(summary, str):
            if not summary.strip():
                raise InvalidInputError("summary must not be blank")
            summary = Message(role="user", parts=summary, metadata={"is_summary": True})  # type: ignore[arg-type]
        elif not isinstance(summary, Message):
            refuse(summary, "summary", "a str or a Message", InvalidMessageError)
        elif not summary.is_summary or summary.role == "system" or summary.tool_uses or summary.tool_results:
            raise InvalidMessageError(
                "a summary is a message with metadata={'is_summary': True}, of another role than system, without tool "
                "calls"
            )
        digests = None
        if seen is not None:
            check_list(seen, "seen")
            seen = list(seen)
            for message in seen:
                if not isinstance(message, Message):
                    refuse(message, "an item of seen", "a Message", InvalidInputError)
            digests = tuple((one.id, digest_of(one)) for one in leaving(seen))
        condition = Precondition.of(expected_revision)
        return cls(conversation_id, through, Entry.of(summary), digests, precondition=condition)

    def steps(self, settings: Settings) -> Steps[Compacted]:
        keys = settings.keyspace.conversation(self.conversation_id)
        for _ in range(_TRIES):
            found = yield from self._read_range(settings, keys)
            for _ in range(_TRIES):
                outcome: Compacted | bytes = yield from self._commit(settings, keys, found)
                if isinstance(outcome, Compacted):
                    return outcome
                if outcome == b"stale" or not (yield from self._read_appended(settings, found)):
                    break
            else:
                break
        raise refusals.compaction_conflict(self.conversation_id, f"it was changed during each of {_TRIES} attempts")

    def _read_range(self, settings: Settings, keys: ConversationKeys) -> Steps[_Range]:
        entry = self.summary
        own, mark = field_of(entry.message.id), b"^" + entry.message.id.encode()
        [head] = yield [plain(b"HMGET", keys.state, b"e", b"r", b"x", b"q", b"s", own, mark)]
        epoch, revision, token, sequence, former, place, compaction = head
        found = _Range(epoch or b"", int(revision or 0), token or b"", int(sequence or 0))
        if place is not None and compaction is not None and self.precondition.held_at(int(compaction)):
            args = FIND.args(field=own, id=entry.message.id.encode())
            member = yield from read(Call(FIND, (keys.state, keys.messages), args, as_is), settings)
            if member is not None and body_of(member) == b"".join(split(entry.body)[:2]):
                return found  # done before: the script returns its outcome
        if self.precondition.expected_revision not in (None, found.revision):
            raise refusals.revision_conflict(self.conversation_id, found.revision, self.precondition.expected_revision)
        end = self.through._replace(sequence=self.through.sequence + 1)
        yield from _read_messages(found, keys, end)
        found.messages = yield from self._with_live_calls(settings, found.messages)
        found.leaving = self.replaced(found.messages)
        if not found.leaving:
            return found
        _measure(found)
        if former is not None:
            found.former = former.decode()
            [standing] = yield [plain(b"HGET", keys.state, field_of(former.decode()))]
            self.check_summary(None if standing is None else position_of(standing))
        yield from self._read_pairs(settings, found, keys, end)
        if place is not None:
            raise refusals.message_conflict(self.conversation_id, entry.message.id)
        return found

    def _with_live_calls(self, settings: Settings, messages: list[Message]) -> Steps[list[Message]]:
        """The messages; replies that are being written with their parts so far, because these may have tool calls."""
        positions = [one.position for one in messages if one.status == "streaming" and one.position is not None]
        if not positions:
            return messages
        found = yield from read_replies(self.conversation_id, positions, settings)
        parts = {at: one.message.parts for at, one in zip(positions, found, strict=True) if one is not None}
        return [
            structs.replace(one, parts=parts[one.position])
            if one.position in parts and one.status == "streaming"
            else one
            for one in messages
        ]

    def _read_pairs(self, settings: Settings, found: _Range, keys: ConversationKeys, end: Position) -> Steps[None]:
        """Reads on until all tool calls of the range are answered, or to the end of the conversation."""
        messages, count = list(found.messages), len(found.messages)
        ranges = Ranges(messages)
        after, size, more = end._replace(sequence=end.sequence - 1), _PAGE, True
        while more and (ranges.waits(count) or not ranges.is_whole(count)):  # if torn, to suggest another end
            [members] = yield [page_of(keys, size, newest=False, after=after, before=None)]
            later = [message for message in map(readable, members) if message is not None]
            later = yield from self._with_live_calls(settings, later)
            for message in later:
                ranges.add(message)
            messages += later
            more = len(members) == size
            if later:
                after, size = later[-1].position or after, _PAGE
            else:
                size *= 4
        if not ranges.is_whole(count):
            self.check_pairs(count, messages)
        if ranges.waits(count):
            known = Cursor(found.epoch.decode(), found.revision, found.token.hex() or BEGINNING.token)
            found.tail = _Tail(messages, ranges, known, found.sequence)

    def _read_appended(self, settings: Settings, found: _Range) -> Steps[bool]:
        """Adds new messages to the tail. Returns False if anything else changed, or the range is not whole any more."""
        tail = found.tail
        assert tail is not None  # noqa: S101
        more = True
        while more:
            changes = yield from read(ReadChanges(self.conversation_id, tail.known).call(settings), settings)
            more = changes.more
            for event in changes.events:
                if not isinstance(event, MessagesAppended | ConversationUpdated):
                    return False
                tail.known = event.cursor
                for message in event.messages if isinstance(event, MessagesAppended) else ():
                    tail.sequence = max(tail.sequence, message.sequence or 0)
                    _add(tail, message)
        return tail.ranges.is_whole(len(found.messages))

    def _commit(self, settings: Settings, keys: ConversationKeys, found: _Range) -> Steps[Compacted | bytes]:
        entry = self.summary
        leaving = found.leaving
        last = leaving[-1].position if leaving else Position(0, 0)
        assert last is not None  # noqa: S101
        runs = [rank for run in found.runs for rank in run] if leaving else []
        packed = entry.packed(zstd=settings.zstd)
        indexed = settings.indexed and bool(leaving)
        args = COMPACT.args(
            epoch=found.epoch,
            revision=b"%d" % found.revision,
            id=entry.message.id.encode(),
            head=packed.head,
            rest=packed.rest,
            end_timestamp=b"%d" % self.through.timestamp,
            end_sequence=b"%d" % (self.through.sequence + 1),
            held=b"%d" % found.held,
            replaced=b"%d" % len(leaving),
            characters=b"%d" % found.characters,
            tokens=b"%d" % found.tokens,
            timestamp=b"%d" % last.timestamp,
            sequence=b"%d" % last.sequence,
            newest_sequence=b"" if found.tail is None else b"%d" % found.tail.sequence,
            sequences=_sequences(leaving, found.former),
            field=field_of(entry.message.id),
            usage=entry.usage,
            kept=b"%d" % (len(runs) // 2),
            ranks=[b"%d" % rank for rank in runs],
        )
        if indexed:
            args += document(entry.message, self.vectors[0] if self.vectors else b"")
        call = self.script_call(COMPACT, settings, args, packed=[packed])
        return self.send(call, settings, partial(_marks, keys) if indexed else None)

    def decode(self, reply: list[Any]) -> Compacted | bytes:
        """The outcome, or b"stale" or b"appended" if other changes of the conversation prevented the compaction."""
        kind: bytes = reply[0]
        if kind in (b"stale", b"appended"):
            return kind
        if kind == b"nothing":
            return Compacted(reply[1], None, 0, False)
        if kind != b"stored":
            self.refuse(reply)
        _, revision, count, sequence, timestamp, own = reply
        return Compacted(revision, self.summary.placed(Position(int(timestamp), sequence)), count, bool(own))

    def apply(self, space: Space) -> Compacted:
        conversation, summary_id = space.find(self.conversation_id), self.summary.message.id
        before = None if conversation is None else conversation.stored.get(summary_id)
        if conversation is not None and before is not None and before.entry.body == self.summary.body:
            for archive in conversation.archives:
                if archive.summary_id == summary_id and self.precondition.held_at(archive.revision):
                    message, own = self.summary.placed(before.position), archive.token == self.token
                    return Compacted(archive.revision, message, len(archive.held), own)
        space.check(self.conversation_id, self.precondition)
        messages = (
            [] if conversation is None else [conversation.message(message_id) for _, message_id in conversation.live]
        )
        count = sum(one.position is not None and one.position <= self.through for one in messages)
        leaving = self.replaced(messages[:count])
        if conversation is None or not leaving:
            return Compacted(conversation.revision if conversation else 0, None, 0, False)
        if conversation.summary is not None:
            self.check_summary(conversation.stored[conversation.summary].position)
        self.check_pairs(count, messages)
        if before is not None:
            raise refusals.message_conflict(self.conversation_id, summary_id)
        conversation.compact(self.summary, [message.id for message in leaving], self.token)
        reference, through = conversation.reference(summary_id), conversation.stored[summary_id].position
        space.usage.count(conversation, self.summary, through.timestamp)
        known: dict[str, Any] = {"ids": (summary_id,), "count": len(leaving), "through": through}
        revision = space.write(self, conversation, Kind.COMPACTED, references=[reference], **known)
        message = self.summary.placed(through)
        return Compacted(revision, message, len(leaving), True)

    def replaced(self, messages: Sequence[Message]) -> list[Message]:
        """The live messages up to `through` that the summary replaces; empty if no message can be replaced.

        Raises CompactionConflictError if they differ from the seen ones.
        """
        gone = leaving(messages)
        if self.seen is not None:
            present = {message.id: digest_of(message) for message in gone}
            seen = dict(self.seen)
            if present != seen:
                raise refusals.compaction_conflict(self.conversation_id, _difference(present, seen))
        return [] if len(gone) == 1 and gone[0].is_summary else gone

    def check_summary(self, live: Position | None) -> None:
        """Raises CompactionConflictError if the live summary is after the range: there would be two summaries."""
        if live is not None and live > self.through:
            why = f"its summary is at {live}, and earlier messages can only be replaced together with it"
            raise refusals.compaction_conflict(self.conversation_id, why)

    def check_pairs(self, count: int, messages: Sequence[Message]) -> None:
        """Raises TornPairError if the range, the first `count` of the live messages, separates a tool call from its
        result."""
        ends = good_ends(messages)
        if count == 0 or ends[count - 1]:
            return
        gone = [index for index, message in enumerate(messages) if not stays(message)]
        if messages[gone[0]].is_summary:
            del gone[0]  # a summary alone is not compacted
        fitting = [index for index in gone if ends[index]]
        before = [index for index in fitting if index < count]
        after = [index for index in fitting if index >= count]
        if not before and not after:
            hint = "no other end is possible yet: wait for the result"
        else:
            better = messages[before[-1] if before else after[0]]
            hint = f"pass through={better.id[:64]!r}, at {better.position}"
        raise TornPairError(f"a tool call up to {self.through} has its result after it, or no result yet; {hint}")


def _difference(present: dict[str, bytes], seen: dict[str, bytes]) -> str:
    if gone := seen.keys() - present.keys():
        return f"message {min(gone)[:64]!r} was deleted"
    if new := present.keys() - seen.keys():
        return f"message {min(new)[:64]!r} is new"
    changed = min(message_id for message_id, digest in present.items() if seen[message_id] != digest)
    return f"message {changed[:64]!r} has other content"


def through_of(through: Position | Message | str) -> Position | str:
    """A position, or the id of the message that has it. Raises InvalidInputError."""
    if isinstance(through, Position):
        with named("through"):
            return check_position(through)
    if isinstance(through, Message):
        return through.position or through.id
    if not isinstance(through, str):
        refuse(through, "through", "a Message, its position or its id", InvalidInputError)
    return check_message_id(through, "through")


def compact_messages(
    conversation_id: str,
    through: Position | Message | str,
    summary: Message | str,
    seen: Iterable[Message] | None = None,
    expected_revision: int | None = None,
) -> Steps[Compacted]:
    """Replace messages by a summary: see `HistoryStore.compact`."""
    end = through_of(through)
    position = Position(0, 0) if isinstance(end, str) else end
    op = Compact.of(conversation_id, position, summary, seen, expected_revision)
    if isinstance(end, str):
        last = yield FindMessage(conversation_id, end, "none")
        if last is None or last.position is None:
            raise refusals.message_missing(conversation_id, end)
        op = structs.replace(op, through=last.position)
    return (yield op)  # type: ignore[no-any-return]


class _Tail(Struct):
    """A range with unanswered tool calls, and the messages after it. `ranges`: which ranges of `messages` are whole.
    `known`, `sequence`: the newest change and sequence that `messages` includes."""

    messages: list[Message]
    ranges: Ranges
    known: Cursor
    sequence: int


class _Range(Struct):
    """A range as it was read. `held`: the number of its members. `runs`: first and last ranks of messages that stay.
    `tail`: None if no later message matters. `former`: the id of the live summary."""

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
    former: str | None = None


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
        else:  # a page without a readable message does not end at a position
            size *= 4


def _measure(found: _Range) -> None:
    """Find the size of the leaving messages, and the ranks of the remaining ones."""
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
        raise refusals.too_many_staying(staying, _MOST_STAYING)


def _sequences(leaving: Sequence[Message], former: str | None) -> bytes:
    """The lowest and the highest sequence of these messages, and the position of the live summary among them."""
    sequences = [message.sequence or 0 for message in leaving] or [0]
    packed = min(sequences).to_bytes(4, "big") + max(sequences).to_bytes(4, "big")
    for message in leaving:
        if message.id == former and message.position is not None:
            timestamp, sequence = message.position
            packed += timestamp.to_bytes(7, "big", signed=True) + sequence.to_bytes(4, "big")
    return packed


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


def _marks(keys: ConversationKeys, reply: list[Any]) -> Steps[None]:
    if reply[0] == b"stored":
        yield from mark(keys)


def position_of(place: bytes) -> Position:
    """The position of a message, from its field in the state: see lua/_member.lua."""
    sequence = at = 0
    while place[10 + at] & 0x80:
        sequence |= (place[10 + at] & 0x7F) << 7 * at
        at += 1
    return Position(int.from_bytes(place[:7], "big", signed=True), sequence | place[10 + at] << 7 * at)
