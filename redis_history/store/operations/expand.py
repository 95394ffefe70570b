"""Restore the messages that the live summary replaced."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from msgspec import Struct

from redis_history.errors import MessageNotFoundError
from redis_history.store.changelog import Kind
from redis_history.store.memory.space import Space
from redis_history.store.operations.archives import scrub
from redis_history.store.operations.base import Call, Steps, Upkeep, Write, as_is, field_of, once, plain, readable
from redis_history.store.operations.compact import position_of
from redis_history.store.operations.contents import with_content
from redis_history.store.operations.documents import mark, write_documents
from redis_history.store.operations.keys import ConversationKeys
from redis_history.store.operations.page import page_of
from redis_history.store.operations.scripts import PLACES, WRITING, load_script
from redis_history.store.operations.settings import Settings
from redis_history.store.search.redisearch import document
from redis_history.store.writes import Precondition
from redis_history.values.ids import check_conversation_id, check_message_id

COPY: Final = load_script("copy", args="first last lasts held token", keys="source state copy")
EXPAND: Final = load_script("expand", *WRITING, *PLACES, args="id field how epoch revision sequence copy_token")

#: Attempts to make a staging copy, members copied together, and how long an unused copy stays.
_COPIES: Final = 4
_COPIED: Final = 500
_COPY_LASTS_MS: Final = b"60000"


class Expanded(Struct, frozen=True):
    """The outcome of an expansion: its `revision`, and the `count` of restored messages."""

    revision: int
    count: int


class Expand(Write[Expanded | None], frozen=True):
    """Restore the messages that the live summary replaced; None: its id is another one."""

    summary_id: str

    def steps(self, settings: Settings) -> Steps[Expanded | None]:
        keys = settings.keyspace.conversation(self.conversation_id)
        outcome: Expanded | bytes = yield from self._attempt(settings, keys, b"")
        for attempt in range(_COPIES):
            if isinstance(outcome, Expanded) or outcome == b"unknown":
                break
            # A new token each time, so that late pages of an earlier copy cannot reach this one.
            token = b"%b.%d" % (self.token.encode(), attempt)
            begun = yield from _make_copy(keys, outcome, token)
            if begun is not None:
                outcome = yield from self._attempt(settings, keys, b"1", begun, token)
            if isinstance(outcome, bytes):
                yield Upkeep(once([plain(b"UNLINK", keys.copy)]))
        if isinstance(outcome, bytes) and outcome != b"unknown":
            outcome = yield from self._attempt(settings, keys, b"2")
        return outcome if isinstance(outcome, Expanded) else None

    def _attempt(
        self,
        settings: Settings,
        keys: ConversationKeys,
        how: bytes,
        begun: Sequence[bytes] = (b"", b"", b""),
        token: bytes = b"",
    ) -> Steps[Expanded | bytes]:
        own, (epoch, revision, sequence) = self.summary_id.encode(), begun
        copy = {"epoch": epoch, "revision": revision, "sequence": sequence, "copy_token": token}
        args = EXPAND.args(id=own, field=field_of(self.summary_id), how=how, **copy)
        call = self.script_call(EXPAND, settings, args)
        after = partial(self._index_after, settings, keys) if settings.indexed else None
        outcome: Expanded | bytes = yield from self.send(call, settings, after)
        while outcome == b"unfinished":
            yield from scrub(keys)
            outcome = yield from self.send(call, settings, after)
        return outcome

    def decode(self, reply: list[Any]) -> Expanded | bytes:
        """The outcome. If the script changed nothing: b"unknown", b"unfinished", or the key of the archive that must
        be copied first."""
        kind = reply[0]
        if kind == b"stale":
            return bytes(reply[1])
        if kind in (b"unfinished", b"unknown"):
            return bytes(kind)
        if type(kind) is bytes:
            self.refuse(reply)
        return Expanded(kind, reply[1])

    def _index_after(self, settings: Settings, keys: ConversationKeys, reply: list[Any]) -> Steps[None]:
        if type(reply[0]) is not bytes:
            yield from mark(keys)
            if former := reply[3]:
                yield from self._index_former(settings, keys, former)

    def _index_former(self, settings: Settings, keys: ConversationKeys, former: bytes) -> Steps[None]:
        [[epoch, revision, place]] = yield [plain(b"HMGET", keys.state, b"e", b"r", field_of(former.decode()))]
        if place is None:
            return
        at = position_of(place)
        [members] = yield [page_of(keys, 1, newest=False, after=at._replace(sequence=at.sequence - 1), before=None)]
        message = readable(members[0]) if members else None
        message = yield from with_content(self.conversation_id, message, settings)
        if message is None or message.id.encode() != former:
            return
        read_at = epoch.decode(), int(revision)
        documents = [document(message)]
        yield [write_documents(self.token, settings, self.conversation_id, *read_at, [message.id], documents)]

    def apply(self, space: Space) -> Expanded | None:
        conversation = space.check(self.conversation_id, self.precondition)
        if conversation is None or self.summary_id != conversation.summary:
            return None
        [archive] = [one for one in conversation.archives if one.summary_id == self.summary_id]
        count = conversation.expand(archive)
        return Expanded(space.write(self, conversation, Kind.EXPANDED, ids=(self.summary_id,), count=count), count)


def _make_copy(keys: ConversationKeys, archive: bytes, token: bytes) -> Steps[list[bytes] | None]:
    """Copies the archived and the live messages into one set. Returns the epoch, revision and sequence of the first
    page; None if the copy was lost in the meantime."""
    begun: list[bytes] | None = None
    held = b""
    for source in (archive, keys.messages):
        start, count = 0, _COPIED
        while count == _COPIED:
            first, last = b"%d" % start, b"%d" % (start + _COPIED - 1)
            args = COPY.args(first=first, last=last, lasts=_COPY_LASTS_MS, held=held, token=token)
            [reply] = yield [Call(COPY, (source, keys.state, keys.copy), args, as_is)]
            if reply[0] < 0:
                return None
            count, held = reply[0], b"%d" % reply[1]
            start += count
            begun = begun or reply[2:]
    return begun


def expand_summary(conversation_id: str, summary_id: str, expected_revision: int | None = None) -> Steps[Expanded]:
    """Put back the messages that a summary replaced: see `HistoryStore.expand`."""
    check_conversation_id(conversation_id)
    condition = Precondition.of(expected_revision)
    expanded = yield Expand(conversation_id, check_message_id(summary_id, "summary_id"), precondition=condition)
    if expanded is None:
        raise MessageNotFoundError(
            f"{summary_id[:64]!r} is not the live summary of conversation {conversation_id[:80]!r}"
        )
    return expanded  # type: ignore[no-any-return]
