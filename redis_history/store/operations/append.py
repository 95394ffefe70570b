"""Append messages to a conversation, or replace all its messages."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from msgspec.structs import replace

from redis_history.errors import BatchTooLargeError, InvalidInputError, InvalidMessageError, MessageConflictError
from redis_history.store import refusals
from redis_history.store.changelog import Kind
from redis_history.store.claims import Asking
from redis_history.store.operations.base import Steps, T, Write, field_of, with_turn_keys
from redis_history.store.operations.documents import purge_after, write_documents
from redis_history.store.operations.drafts import drop_forks
from redis_history.store.operations.scripts import PLACES, WRITING, load_script
from redis_history.store.operations.settings import Settings
from redis_history.store.search.redisearch import document
from redis_history.store.search.text import chunk_length
from redis_history.store.writes import ANY, Appended, Entry, Precondition
from redis_history.values import Message, Role
from redis_history.values._caps import MAX_MESSAGE_BYTES
from redis_history.values._validation import check_list, refuse
from redis_history.values.approvals import may_ask
from redis_history.values.beside import LARGE_BYTES, script_bytes
from redis_history.values.helpers import MessageFields
from redis_history.values.ids import check_conversation_id, new_token
from redis_history.values.wire import STREAMING, encode_body, placed

if TYPE_CHECKING:
    from redis_history.store.memory.space import Space, StoredMessage

APPEND: Final = load_script("append", "_change", args="how most_messages totals *messages", keys="*further")
TRIM: Final = load_script("trim", *WRITING, *PLACES, "_trim", args="most_messages")

#: Limits of one atomic change: the server takes at most about 20 ms for it (docs/guarantees.md). Bytes without large
#: contents, which no script gets, and with them.
MAX_BATCH_MESSAGES: Final = 1000
MAX_BATCH_BYTES: Final = 4_000_000
MAX_BATCH_CONTENTS: Final = MAX_MESSAGE_BYTES

#: Search documents written together, which keeps a command below 3,500 arguments; and their characters: some 15 ms of
#: the server's time.
_DOCUMENTS: Final = 200
_DOCUMENTS_CHARACTERS: Final = 150_000

#: How many messages, and their characters and tokens.
_pack_totals: Final = struct.Struct(">HQQ").pack


class _Adding(Write[T], frozen=True):
    """A write that adds `entries`. `vectors` has one for each, or is empty."""

    entries: tuple[Entry, ...]
    vectors: tuple[bytes, ...] = ()
    #: The question, if it is a single message that asks for an answer.
    asking: Asking | None = None

    def _send(self, settings: Settings, how: bytes) -> Steps[Any]:
        """The steps of one call of the script. `how`: its argument of this name."""
        # A reply is indexed when it ends.
        begins = bool(self.entries and self.entries[0].flags & STREAMING)
        indexed = settings.indexed and not begins
        characters = tokens = 0
        rest: list[bytes] = []
        usages = b""
        packed = [entry.packed(zstd=settings.zstd) for entry in self.entries]
        for index, (entry, form) in enumerate(zip(self.entries, packed, strict=True), 1):
            if entry.usage:
                usages += b"%b%c%b" % (index.to_bytes(2, "big"), len(entry.usage), entry.usage)
            characters += entry.characters
            tokens += entry.tokens
            head = form.head
            if entry.timestamp is None:
                head += b"\0"
            else:
                time = b"%d" % entry.timestamp
                head += b"%b%c" % (time, len(time))
            rest += (field_of(entry.message.id), head, form.rest)
        if indexed and (len(self.entries) == 1 or self._chunk_end(0) == len(self.entries)):
            for index in range(len(self.entries)):
                fields = self._document(index)
                rest += (b"%d" % len(fields), *fields)
        most = b"" if settings.max_messages is None else b"%d" % settings.max_messages
        totals = _pack_totals(len(self.entries), characters, tokens)
        if self.asking is not None or usages:
            asking = b"" if self.asking is None else self.asking.packed(self.entries[0].message.id)
            totals += len(asking).to_bytes(2, "big") + asking + usages
        asks = any(may_ask(entry.tools) for entry in self.entries)
        args = APPEND.args(how=how + b"w" if asks else how, most_messages=most, totals=totals, messages=rest)
        upkeep = how == b"1" or (indexed and len(self.entries) > 1)
        after = partial(self._upkeep, settings, indexed) if upkeep else None
        drop = drop_forks if how == b"1" else None
        call = self.script_call(APPEND, settings, args, packed=packed, reply=self.token if begins else "")
        if self.asking is not None:
            call = with_turn_keys(call, self.conversation_id, self.asking.agent_name, settings)
        return self.send(call, settings, after, drop=drop)

    def _upkeep(self, settings: Settings, indexed: bool, reply: Any) -> Steps[None]:
        if type(reply[0]) is int or reply[0] in (b"stored", b"pending"):
            yield from purge_after(settings.keyspace.conversation(self.conversation_id), reply)
            if indexed and self._chunk_end(0) < len(self.entries):
                yield from self._documents_later(settings, self.revision_in(reply) or 0)

    def _document(self, index: int) -> list[bytes]:
        return document(self.entries[index].message, self.vectors[index] if self.vectors else b"")

    def _chunk_end(self, start: int) -> int:
        """The end of a chunk of documents that starts at `start`."""
        sizes = (entry.characters for entry in islice(self.entries, start, None))
        return start + chunk_length(sizes, _DOCUMENTS, _DOCUMENTS_CHARACTERS)

    def _documents_later(self, settings: Settings, revision: int) -> Steps[None]:
        """Writes the documents of a large batch in chunks. Until the last one, the index has fewer documents than the
        conversation has messages, so the conversation is searched without it."""
        start = 0
        while start < len(self.entries):
            chunk = range(start, self._chunk_end(start))
            documents = list(map(self._document, chunk))
            ids = [self.entries[index].message.id for index in chunk]
            yield [write_documents(self.token, settings, self.conversation_id, "", revision, ids, documents)]
            start = chunk.stop


class Append(_Adding[list[Appended]], frozen=True):
    """Add messages, in order. Messages that are already stored stay unchanged; without new messages nothing changes.
    Raises MessageConflictError for a stored id with other content. `vectors` has one for each message, or is empty."""

    @classmethod
    def of(cls, conversation_id: str, message: Message, condition: Precondition = ANY) -> Append:
        """Append one message. Raises as `batch`."""
        check_conversation_id(conversation_id)
        return cls(conversation_id, (Entry.of(message),), precondition=condition)

    @classmethod
    def batch(cls, conversation_id: str, messages: Iterable[Message], condition: Precondition = ANY) -> Batch:
        """Append `messages`. Raises InvalidConversationIdError, InvalidMessageError, BatchTooLargeError, or
        MessageConflictError for one id with two contents."""
        check_conversation_id(conversation_id)
        entries, order = _entries_of(messages)
        return Batch(cls(conversation_id, entries, precondition=condition), order)

    @classmethod
    def of_reply(cls, conversation_id: str, role: Role, fields: MessageFields) -> Append:
        """Begin a reply. Raises as `of`, and InvalidInputError for a time: the server gives it."""
        check_conversation_id(conversation_id)
        if fields.get("timestamp") is not None or "status" in fields:
            raise InvalidInputError("the timestamp and the status of a reply are given by the store; leave them out")
        given: dict[str, Any] = {name: value for name, value in fields.items() if name != "id" or value is not None}
        known = MessageFields.__annotations__
        if unknown := given.keys() - known.keys():
            refuse(min(unknown), "a field of a reply", f"one of {', '.join(known)}", InvalidInputError)
        message = replace(Message(role=role, **given), status="streaming")
        return cls(conversation_id, (Entry.of(message, live=True),))

    def steps(self, settings: Settings) -> Steps[list[Appended]]:
        return self._send(settings, b"0") if settings.max_messages is None else self._capped(settings)

    def _capped(self, settings: Settings) -> Steps[list[Appended]]:
        """If the conversation is far above its cap, removes the oldest messages before, in short changes."""
        outcome: list[Appended] | None = yield from self._send(settings, b"0")
        if outcome is not None:
            return outcome
        op, removed = self, 1
        while removed:
            trim = replace(op, token=new_token())
            args = TRIM.args(most_messages=b"%d" % (settings.max_messages or 0))
            revision, removed = yield from trim.send(trim.script_call(TRIM, settings, args, trim._trimmed), settings)
            if removed and op.precondition.expected_revision is not None:  # this call has made that change
                op = replace(op, precondition=replace(op.precondition, expected_revision=revision))
        return cast(list[Appended], (yield from op._send(settings, b"2")))

    def _trimmed(self, reply: list[Any]) -> tuple[int, int]:
        """The revision, and the number of removed messages."""
        if type(reply[0]) is bytes:
            self.refuse(reply)
        return reply[0], reply[1]

    def decode(self, reply: list[Any]) -> list[Appended] | None:
        """The outcome; None if messages must be removed before."""
        stored: dict[int, list[Any]] = {}
        if type(reply[0]) is bytes:
            if reply[0] == b"trim":
                return None
            if reply[0] != b"stored":
                self.refuse(reply)
            _, reply, items = reply
            stored = {item[0]: item for item in items}
        revision, sequence, clock, *pins = reply
        if pins:
            refusals.warn_of_pins(self.conversation_id)
        outcome = []
        for index, entry in enumerate(self.entries):
            if stored and (before := stored.get(index)) is not None:
                message = placed(entry.message, before[2], int(before[3])) if before[2] else entry.message
                outcome.append(Appended(before[1], message, not before[4]))
                continue
            timestamp = entry.timestamp
            if timestamp is None:
                timestamp = clock
                clock += 1
            outcome.append(Appended(revision, placed(entry.message, sequence, timestamp), False))
            sequence += 1
        return outcome

    def apply(self, space: Space) -> list[Appended]:
        conversation = space.find(self.conversation_id)
        before = [conversation.stored.get(entry.message.id) if conversation else None for entry in self.entries]
        for entry, stored in zip(self.entries, before, strict=True):
            if stored is not None and (
                stored.entry.body != entry.body or entry.timestamp not in (None, stored.position.timestamp)
            ):
                raise refusals.message_conflict(self.conversation_id, entry.message.id)
        if all(before) and self.precondition.held_at(cast("StoredMessage", before[-1]).revision):
            pairs = zip(self.entries, before, strict=True)
            return [stored.outcome(entry, self.token) for entry, stored in pairs if stored is not None]
        space.check(self.conversation_id, self.precondition)
        if self.asking is not None:
            space.turns.check_room(self.conversation_id, self.asking.agent_name)
        conversation = space.find_or_create(self.conversation_id, self.token)
        outcome, references, clock = [], [], space.now()
        for entry, stored in zip(self.entries, before, strict=True):
            if stored is not None:
                outcome.append(stored.outcome(entry, self.token))
                continue
            position = conversation.add(entry, self.token, clock)
            space.usage.count(conversation, entry, position.timestamp)
            references.append((entry.message.id, position.sequence))
            outcome.append(Appended(conversation.revision + 1, entry.placed(position), False))
        gone = space.trimmed(self.conversation_id, conversation)
        space.write(self, conversation, Kind.APPENDED, references=references, ids=gone)
        if self.asking is not None and references:
            space.turns.ask(space, self.conversation_id, self.asking, [references[0][0]])
        return outcome


class Batch(NamedTuple):
    """An append, and for each message the index of its outcome: a repeated id is sent once."""

    op: Append
    order: Sequence[int]


def append_messages(
    conversation_id: str, messages: Iterable[Message], condition: Precondition = ANY
) -> Steps[list[Appended]]:
    """Add messages as one change: see `HistoryStore.append_many`."""
    batch = Append.batch(conversation_id, messages, condition)
    if not batch.order:
        return []
    outcomes = yield batch.op
    return [outcomes[index] for index in batch.order]


class Restore(_Adding[int], frozen=True):
    """Replace all messages. The outcome is the revision."""

    @classmethod
    def of(cls, conversation_id: str, messages: Iterable[Message], expected_revision: int | None = None) -> Restore:
        """Raises as `Append.batch`."""
        check_conversation_id(conversation_id)
        return cls(conversation_id, _entries_of(messages)[0], precondition=Precondition.of(expected_revision))

    def steps(self, settings: Settings) -> Steps[int]:
        return self._send(settings, b"1")

    def decode(self, reply: list[Any]) -> int:
        if type(reply[0]) is bytes:
            if reply[0] != b"pending":
                self.refuse(reply)
            reply = reply[1]
        revision: int = reply[0]
        return revision

    def apply(self, space: Space) -> int:
        space.check(self.conversation_id, self.precondition)
        conversation = space.find_or_create(self.conversation_id, self.token)
        conversation.empty()
        space.drop_forks(self.conversation_id)
        clock, references = space.now(), []
        for entry in self.entries:
            position = conversation.add(entry, self.token, clock)
            space.usage.count(conversation, entry, position.timestamp)
            references.append((entry.message.id, position.sequence))
        gone = space.trimmed(self.conversation_id, conversation)
        return space.write(self, conversation, Kind.RESTORED, references=references, ids=gone)


def batches(messages: Iterable[Message], most: int = MAX_BATCH_MESSAGES) -> Iterator[list[Message]]:
    """The messages in batches that one atomic change holds: at most `most` messages, MAX_BATCH_BYTES and
    MAX_BATCH_CONTENTS. Raises InvalidMessageError."""
    batch: list[Message] = []
    left, left_whole = MAX_BATCH_BYTES, MAX_BATCH_CONTENTS
    for message in messages:
        body = encode_body(message)
        size = script_bytes(body)
        if batch and (size > left or len(body) > left_whole or len(batch) == most):
            yield batch
            batch, left, left_whole = [], MAX_BATCH_BYTES, MAX_BATCH_CONTENTS
        batch.append(message)
        left, left_whole = left - size, left_whole - len(body)
    if batch:
        yield batch


def _entries_of(messages: Iterable[Message]) -> tuple[tuple[Entry, ...], list[int]]:
    """The messages to store, each id once, and for each message the index of its id."""
    check_list(messages, "messages", InvalidMessageError)
    entries: dict[str, Entry] = {}
    indexes: dict[str, int] = {}
    order: list[int] = []
    size = size_whole = 0
    for message in messages:
        entry = Entry.of(message)
        known = entries.setdefault(message.id, entry)
        if known is entry:
            size += script_bytes(entry.body)
            size_whole += len(entry.body)
        elif known.body != entry.body or known.timestamp != entry.timestamp:
            raise MessageConflictError(
                f"the batch has two messages of id {message.id[:64]!r} with different content", message_id=message.id
            )
        order.append(indexes.setdefault(message.id, len(indexes)))
        too_large = size > MAX_BATCH_BYTES or size_whole > MAX_BATCH_CONTENTS
        if (len(entries) > MAX_BATCH_MESSAGES or too_large) and len(entries) > 1:
            raise BatchTooLargeError(
                f"one atomic change holds at most {MAX_BATCH_MESSAGES:,} messages and {MAX_BATCH_BYTES:,} bytes, or "
                f"{MAX_BATCH_CONTENTS:,} bytes with values of {LARGE_BYTES:,} bytes or more; append in several batches"
            )
    return tuple(entries.values()), order
