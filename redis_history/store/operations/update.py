"""Replace the content of a message, and end a reply that was written piece by piece."""

from __future__ import annotations

import time
from typing import Any, Final, cast

from msgspec import Struct

from redis_history.store import refusals
from redis_history.store.changelog import Kind
from redis_history.store.memory.space import ConversationState, Space, StoredMessage
from redis_history.store.operations.base import CONDITION, Steps, Write, field_of, said_by
from redis_history.store.operations.scripts import PLACES, WRITING, load_script
from redis_history.store.operations.settings import Settings
from redis_history.store.search.redisearch import document
from redis_history.store.writes import Appended, Entry, Precondition
from redis_history.values import Message, Position
from redis_history.values.ids import check_conversation_id

UPDATE: Final = load_script("update", *WRITING, *PLACES, args="field id head rest usage *document")


class ReplyEnd(Struct, frozen=True):
    """Marks an update as the end of a reply. `token` is that of the append that began it; "": a reader ends the reply,
    because its writer has died and left `size` bytes of content."""

    token: str = ""
    size: int = 0


class Decides(Struct, frozen=True):
    """Marks an update as the decision on a request for approval, of the call with this digest, in the content of the
    revision `changed`."""

    changed: int
    call: bytes

    def is_open(self, conversation: ConversationState, stored: StoredMessage) -> bool:
        """Whether the request is open, and the content is this one."""
        asked = (one.mark[: len(self.call)] for one in conversation.requests if one.message == stored.entry.message.id)
        return self.changed == stored.revision and self.call in asked


class UpdateMessage(Write[Appended | None], frozen=True):
    """Replace the content of a message, which keeps its position. The outcome is None for an unknown id. Writing the
    same content again changes nothing. With `reply`, the outcome is also None if the message is not this reply, or its
    writer is alive. With `decides`, it is None if that cannot be decided any more."""

    entry: Entry
    vectors: tuple[bytes, ...] = ()
    reply: ReplyEnd | None = None
    decides: Decides | None = None

    @classmethod
    def of(cls, conversation_id: str, message: Message, expected_revision: int | None = None) -> UpdateMessage:
        """Raises InvalidConversationIdError, InvalidMessageError."""
        check_conversation_id(conversation_id)
        return cls(conversation_id, Entry.of(message), precondition=Precondition.of(expected_revision))

    def steps(self, settings: Settings) -> Steps[Appended | None]:
        message = self.entry.message
        packed = self.entry.packed(zstd=settings.zstd)
        args = UPDATE.args(
            field=field_of(message.id),
            id=message.id.encode(),
            head=packed.head,
            rest=packed.rest,
            usage=self.entry.usage,
            document=document(message, self.vectors[0] if self.vectors else b"") if settings.indexed else (),
        )
        reply = self.reply.token if self.reply is not None else ""
        call = self.script_call(UPDATE, settings, args, packed=[packed], reply=reply)
        what = b""  # in place of 'exists', 'absent' or a lease
        if self.reply is not None:
            what = b"reply:%b" % self.reply.token.encode() if self.reply.token else b"settle:%d" % self.reply.size
        elif self.decides is not None:
            what = b"decide:%d.%b" % (self.decides.changed, self.decides.call.hex().encode())
        if what:
            call.args[CONDITION] = what + b";" + call.args[CONDITION] if call.args[CONDITION] else what
        return self.send(call, settings)

    def decode(self, reply: bytes | list[Any]) -> Appended | None:
        if type(reply) is list:
            if reply[0] == b"unknown":
                return None
            self.refuse(reply)
        revision, sequence, timestamp = map(int, cast(bytes, reply).split())
        return Appended(revision, self.entry.placed(Position(timestamp, sequence)), False)

    def apply(self, space: Space) -> Appended | None:
        conversation = space.find(self.conversation_id)
        stored = None if conversation is None else conversation.stored.get(self.entry.message.id)
        if conversation is not None and stored is not None and stored.entry.body == self.entry.body:
            expected = self.precondition.expected_revision
            if expected in (None, conversation.revision, stored.revision - 1):
                return Appended(stored.revision, self.entry.placed(stored.position), False)
        space.check(self.conversation_id, self.precondition)
        if conversation is None or stored is None or self.entry.message.id in conversation.archived:
            return None
        if self.decides is not None and not self.decides.is_open(conversation, stored):
            return None
        token = conversation.reply_token(self.entry.message.id)
        revision = conversation.revision + 1
        if self.reply is not None and self.reply.token:
            # The writer also ends a reply that a reader took for dead, unless the message was changed since then.
            settled = conversation.settled.pop(self.reply.token, None)
            if token != self.reply.token and settled != stored.revision:
                return None
        elif self.reply is not None:
            if token is None:
                return None
            reply = conversation.replies[token]
            if reply.ends > time.time() or len(reply.content) != self.reply.size:
                return None
            conversation.settled[token] = revision
        conversation.replies.pop(token or "", None)
        conversation.count(stored.entry, -1)
        conversation.count(self.entry, 1)
        conversation.store(self.entry, stored.position, revision, self.token)
        conversation.note_requests(self.entry, stored.position, None if token else stored.entry)
        space.usage.count(conversation, self.entry, stored.position.timestamp)
        reference = conversation.reference(self.entry.message.id)
        kind = Kind.REPLY_ENDED if token else Kind.UPDATED
        space.write(
            self, conversation, kind, references=[reference], ids=(self.entry.message.id,), through=stored.position
        )
        return Appended(revision, self.entry.placed(stored.position), False)


def change_message(
    conversation_id: str, message: Message, expected_revision: int | None = None, by: str | None = None
) -> Steps[Appended]:
    """Replace the content of a message: see `HistoryStore.update_message`."""
    updated = yield said_by(UpdateMessage.of(conversation_id, message, expected_revision), by)
    if updated is None:
        raise refusals.message_missing(conversation_id, message.id)
    return updated  # type: ignore[no-any-return]
