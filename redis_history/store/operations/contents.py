"""Read the large contents of messages, which are stored separately: see `values.beside` and lua/_contents.lua."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from redis_history.errors import CorruptDataError
from redis_history.store.changelog import LogEntry
from redis_history.store.memory.space import Space
from redis_history.store.operations.base import (
    Call,
    OnConversation,
    Op,
    Steps,
    as_is,
    field_of,
    plain,
    read_all,
    readable,
)
from redis_history.store.operations.keys import ConversationKeys, content_name
from redis_history.store.operations.scripts import PLACES, load_script
from redis_history.store.operations.settings import Settings
from redis_history.values import Message
from redis_history.values.beside import KEPT, Needed, PartialMessage, Reference, Value, references_in, unpacked
from redis_history.values.wire import needed_of, whole

FIND: Final = load_script(
    "find", "_declared", "_member", "_archive", *PLACES, args="field id", keys="state messages", asks=True
)

#: Bytes of contents that are read together: some 2 ms of the server's time.
_READ_BYTES: Final = 4_000_000
#: Attempts, if a message is changed while its contents are read.
_TRIES: Final = 5
#: Bytes of contents that a reader of many messages holds together; and after which a read of changes stops, which
#: bounds a subscriber's memory.
PORTION_BYTES: Final = 16_000_000
_CHANGES_BYTES: Final = 1_000_000

_logger = logging.getLogger("redis_history")


class _Wanted(NamedTuple):
    """A content to read, and its key; b"" if it is not needed."""

    key: bytes
    reference: Reference


def with_contents(
    conversation_id: str, messages: Sequence[Message], settings: Settings, needed: Needed = "all"
) -> Steps[list[Message | None]]:
    """The messages, with the large contents that are `needed`. One that was changed in the meantime is as it is now;
    None: it was removed. A content that is missing or damaged is replaced by a note, and logged."""
    found: list[Message | None] = [*messages]
    left: list[Message | None] = [*messages]
    for _ in range(_TRIES):
        found, changed = yield from _attempt(conversation_id, found, settings, needed)
        if not changed:
            return found
        left = found
    _logger.error("messages of conversation %r change again and again while they are read", conversation_id[:80])
    return [None if type(one) is PartialMessage and needed == "all" else one for one in left]


def with_contents_at_once(
    conversation_id: str, messages: Sequence[Message], settings: Settings, needed: Needed
) -> Steps[list[Message] | None]:
    """The same; None if a message was changed or removed in the meantime, so the messages are no longer of one
    moment."""
    found, changed = yield from _attempt(conversation_id, messages, settings, needed)
    return None if changed else [one for one in found if one is not None]


def _attempt(
    conversation_id: str, messages: Sequence[Message | None], settings: Settings, needed: Needed
) -> Steps[tuple[list[Message | None], bool]]:
    """The messages with their contents, and whether some were changed or removed since they were read: these are as
    they are now, without contents."""
    found: list[Message | None] = [*messages]
    waiting = {at: message for at, message in enumerate(messages) if type(message) is PartialMessage}
    if not waiting or needed == "none":
        return found, False
    keys = settings.keyspace.conversation(conversation_id)
    wanted = [_wanted(keys, message, needed) for message in waiting.values()]
    values = dict(zip(waiting, (yield from _read(wanted)), strict=True))
    doubtful = [at for at, given in values.items() if None in given]
    changed = False
    if doubtful:  # its contents have left with it, were replaced, or are lost
        present = yield from _find(keys, [waiting[at].id for at in doubtful], settings)
        for at, now in zip(doubtful, present, strict=True):
            if type(now) is PartialMessage and now.stored == waiting[at].stored:
                continue
            changed = True
            # If its sequence differs, another message has its id.
            found[at] = now if now is not None and now.sequence == waiting[at].sequence else None
            del waiting[at]
    for at, message in waiting.items():
        found[at] = _joined(conversation_id, message, values[at])
    return found, changed


def with_content(
    conversation_id: str, message: Message | None, settings: Settings, needed: Needed = "all"
) -> Steps[Message | None]:
    """The same for one message."""
    if type(message) is not PartialMessage:
        return message
    [found] = yield from with_contents(conversation_id, [message], settings, needed)
    return found


def entries_with_contents(conversation_id: str, entries: list[LogEntry], settings: Settings) -> Steps[list[LogEntry]]:
    """Entries of the change log, their messages with their large contents. Fewer, if these are many bytes."""
    if not any(type(message) is PartialMessage for entry in entries for message in entry.messages):
        return entries
    size, kept = 0, list[LogEntry]()
    for entry in entries:
        own = sum(one.size for message in entry.messages for one in _references(message))
        if kept and kept[-1].messages and size + own > _CHANGES_BYTES:
            break
        size += own
        kept.append(entry)
    messages = [message for entry in kept for message in entry.messages]
    found = iter((yield from with_contents(conversation_id, messages, settings)))
    whole_entries = []
    for entry in kept:
        now = [(message.id, next(found)) for message in entry.messages]
        gone = tuple(message_id for message_id, one in now if one is None)
        present = tuple(one for _, one in now if one is not None)
        whole_entries.append(dataclasses.replace(entry, messages=present, gone_ids=(*entry.gone_ids, *gone)))
    return whole_entries


class ReadContents(OnConversation, Op[list[Message | None]], frozen=True):
    """The messages, which were read without their large contents, with those that are needed; None: it was removed
    since."""

    messages: tuple[Message, ...]
    needed: Needed = "all"

    def steps(self, settings: Settings) -> Steps[list[Message | None]]:
        return with_contents(self.conversation_id, self.messages, settings, self.needed)

    def apply(self, space: Space) -> list[Message | None]:
        conversation = space.find(self.conversation_id)
        stored = {} if conversation is None else conversation.stored
        return [
            message
            if type(message) is not PartialMessage
            else conversation.message(message.id, self.needed)
            if conversation is not None and message.id in stored
            else None
            for message in self.messages
        ]


def portions(messages: Iterable[Message], most: int = PORTION_BYTES) -> Iterator[list[Message]]:
    """Messages in portions whose large contents have at most `most` bytes together, or one message."""
    portion: list[Message] = []
    size = 0
    for message in messages:
        own = sum(one.size for one in _references(message))
        if portion and own and size + own > most:
            yield portion
            portion, size = [], 0
        portion.append(message)
        size += own
    if portion:
        yield portion


def _references(message: Message | None) -> list[Reference]:
    if not isinstance(message, PartialMessage):
        return []
    try:
        return references_in(message.stored)
    except CorruptDataError:
        return []


def _wanted(keys: ConversationKeys, message: PartialMessage, needed: Needed) -> list[_Wanted]:
    """The contents of a message with their keys, or without if they are not needed."""
    try:
        which = needed_of(message, needed)
    except CorruptDataError:
        return []
    names = [keys.content(content_name(message.id, one.digest)) for one in _references(message)]
    return [
        _Wanted(key if is_needed else b"", one)
        for key, is_needed, one in zip(names, which, _references(message), strict=True)
    ]


def _joined(conversation_id: str, message: PartialMessage, values: Sequence[Value]) -> Message | None:
    if None in values:
        _logger.error(
            "message %r of conversation %r lacks a content, which is missing or damaged",
            message.id[:80],
            conversation_id[:80],
        )
    try:
        return whole(message, values)
    except CorruptDataError as error:
        _logger.error("message %r of conversation %r: %s", message.id[:80], conversation_id[:80], error)
        return None


def _find(keys: ConversationKeys, ids: Sequence[str], settings: Settings) -> Steps[list[Message | None]]:
    """The messages as they are now."""
    calls = []
    for one in ids:
        args = FIND.args(field=field_of(one), id=one.encode())
        calls.append(Call(FIND, (keys.state, keys.messages), args, as_is))
    members = yield from read_all(calls, settings)
    return [None if member is None else readable(member) for member in members]


def _read(wanted: Sequence[Sequence[_Wanted]]) -> Steps[list[list[Value]]]:
    """The contents of each message, checked."""
    sizes = {key: reference.size for one in wanted for key, reference in one if key}
    stored: dict[bytes, Any] = {}
    together: list[bytes] = []
    left = _READ_BYTES
    for key, size in sizes.items():
        if size > _READ_BYTES:
            stored[key] = yield from _read_long(key)
            continue
        if together and size > left:
            stored |= zip(together, (yield from _read_whole(together)), strict=True)
            together, left = [], _READ_BYTES
        together.append(key)
        left -= size
    if together:
        stored |= zip(together, (yield from _read_whole(together)), strict=True)
    return [
        [unpacked(stored[key], reference.size, reference.digest) if key else KEPT for key, reference in one]
        for one in wanted
    ]


def _read_whole(keys: list[bytes], first: int = 0, last: int = -1) -> Steps[list[bytes | None]]:
    """The bytes of contents from `first` to `last`; None: another program has put something else there."""
    try:
        return (yield [plain(b"GETRANGE", key, b"%d" % first, b"%d" % last) for key in keys])  # type: ignore[no-any-return]
    except CorruptDataError:
        if len(keys) == 1:
            return [None]
    found = []
    for key in keys:
        found += yield from _read_whole([key], first, last)
    return found


def _read_long(key: bytes) -> Steps[bytes | None]:
    """A content in pieces, so that no command takes long."""
    pieces, start = list[bytes](), 0
    while True:
        [piece] = yield from _read_whole([key], start, start + _READ_BYTES - 1)
        if piece is None:
            return None
        pieces.append(piece)
        start += len(piece)
        if len(piece) < _READ_BYTES:
            return b"".join(pieces)
