"""Write a reply piece by piece, and read replies that are being written."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from redis_history.errors import (
    CorruptDataError,
    InvalidMessageError,
    MessageTooLargeError,
    OutcomeUnknownError,
    RedisHistoryError,
)
from redis_history.store import refusals
from redis_history.store.leases import Contact
from redis_history.store.memory.space import Space
from redis_history.store.operations.base import (
    SENT,
    Call,
    OnConversation,
    Op,
    Pause,
    Steps,
    as_is,
    change_header,
    field_of,
    read,
    readable,
    with_extra_keys,
)
from redis_history.store.operations.contents import with_content
from redis_history.store.operations.scripts import WRITING, load_script
from redis_history.store.operations.settings import Settings
from redis_history.store.operations.update import ReplyEnd, UpdateMessage
from redis_history.store.writes import Entry, Precondition, RunFence
from redis_history.values import Message, Part, Position, TextPart
from redis_history.values._caps import MAX_REST_BYTES
from redis_history.values._validation import refuse
from redis_history.values.ids import new_token
from redis_history.values.replies import LEASE_SECONDS, counts_as_alive, grown, read_records
from redis_history.values.wire import encode_body

GROW: Final = load_script("grow", args="offset records publishing? fence? field? marks?", keys="content state log")
RENEW: Final = load_script("renew", *WRITING, keys="content")
REPLY: Final = load_script("reply", "_member", "_live", "_locate", args="*positions", keys="state messages", asks=True)
_logger = logging.getLogger("redis_history")


class GrowReply(OnConversation, Op[int], frozen=True):
    """Append `records` (see model.replies) to the reply `message_id` that the append of `token` began, if its content
    has `offset` bytes. `tools`: the marks of the tool calls and results in them (`values.pairs.marks`). `lives` renews
    the lease of its writer. The outcome is the size of the content; -1: the reply has ended. With a `run` that is not
    the present one, RunLostError.
    """

    token: str
    offset: int
    records: bytes
    lives: bool
    run: RunFence | None = None
    message_id: str = ""
    tools: bytes = b""

    def steps(self, settings: Settings) -> Steps[int]:
        keys = settings.keyspace.conversation(self.conversation_id)
        content = keys.reply(self.token)
        needed: dict[str, bytes] = {}
        if self.tools or self.run is not None or settings.publishes:
            needed["publishing"] = settings.publishing
        if self.tools or self.run is not None:
            needed["fence"] = b"" if self.run is None else self.run.stored
        if self.tools:
            needed |= {"field": field_of(self.message_id), "marks": self.tools}
        args = GROW.args(offset=b"%d" % self.offset, records=self.records, **needed)
        size: int = yield Call(GROW, (content, keys.state, keys.log), args, self._decode, renews=True)
        if self.lives and size >= 0:
            written = (keys.state, keys.messages, keys.log, keys.registry, content)
            renew = Call(RENEW, written, change_header(new_token(), settings, keys), as_is, SENT)
            try:
                yield from with_extra_keys(renew, settings.lists)
            except OutcomeUnknownError as error:
                if not error.forgotten:
                    raise  # else it was sent too long ago to count, and the writer does it again
        return size

    def _decode(self, size: int) -> int:
        if size == -2:
            raise refusals.run_lost(self.conversation_id)
        return size

    def apply(self, space: Space) -> int:
        if self.run is not None:
            space.check(self.conversation_id, Precondition(run=self.run))
        conversation = space.find(self.conversation_id)
        reply = None if conversation is None else conversation.replies.get(self.token)
        if conversation is None or reply is None:
            return -1
        if len(reply.content) == self.offset:
            reply.content += self.records
            if self.tools:
                stored = conversation.stored[reply.message_id]
                stored.entry = msgspec.structs.replace(stored.entry, tools=stored.entry.tools + self.tools)
        if self.lives:
            reply.ends = time.time() + LEASE_SECONDS
            space.renew(conversation)
        return len(reply.content)


def part_of(part: Any) -> Part:
    """One part, or the part of a dict. Raises InvalidMessageError."""
    parts = () if isinstance(part, str) else Message(role="assistant", parts=part).parts
    if len(parts) != 1:
        refuse(part, "part", "a part; text is for write", InvalidMessageError)
    return parts[0]


def check_size(part: Part, before: int) -> int:
    """The size of a reply of `before` bytes with this part. Raises InvalidMessageError, MessageTooLargeError."""
    size = before + len(encode_body(Message(id="-", role="assistant", parts=(part,))))
    if type(part) is TextPart and part.provider_meta is None and part.extra is None:
        size -= _AROUND_TEXT  # it is joined with the text before it
    if size > MAX_REST_BYTES - _RESERVE:
        raise MessageTooLargeError(
            f"the reply would have more than {MAX_REST_BYTES:,} bytes; end it, and go on in another message"
        )
    return size


#: Bytes of a message without its text, and the reserve for joining the text and changing the status.
_AROUND_TEXT: Final = len(encode_body(Message(id="-", role="assistant", parts=(TextPart(text=""),))))
_RESERVE: Final = 1_000


class Current(NamedTuple):
    """A message as it is now. `dead_size`: the bytes of its content, if the lease of its writer expired `over` seconds
    ago; None if it does not need to be ended."""

    message: Message
    dead_size: int | None = None
    over: float = 0.0


def with_text(message: Message, content: bytes, lives: float) -> Current:
    """A streaming message with its text so far; `lives`: milliseconds for which its writer counts as alive."""
    try:
        message = grown(message, read_records(content))
    except CorruptDataError as error:
        _logger.error("message %r: %s", message.id[:80], error)
    seconds = lives / 1000
    return Current(message) if counts_as_alive(seconds) else Current(message, len(content), -seconds)


class Judged(NamedTuple):
    """Messages as they are now. Those of dead writers are interrupted, and have a `dead_size`. `pause`: the seconds
    after which to read again, because a writer must not be taken for alive without certainty."""

    found: list[Current | None]
    pause: float


def judge(conversation_id: str, found: Sequence[Current | None], settings: Settings) -> Judged:
    """Decide which writers are dead."""
    judged, pause = list[Current | None](), 0.0
    for one in found:
        if one is None or one.dead_size is None:
            judged.append(one)
            continue
        lease, contact = (conversation_id, one.message.id), _contact(conversation_id, settings)
        if one.over >= 0 and contact.spares(lease, one.over):
            pause = max(pause, contact.pause(lease, one.over, LEASE_SECONDS))
            judged.append(Current(one.message))
        else:
            judged.append(one._replace(message=replace(one.message, status="interrupted")))
    return Judged(judged, pause)


def _contact(conversation_id: str, settings: Settings) -> Contact:
    return settings.contact_of(settings.keyspace.conversation(conversation_id).state)


def read_replies(
    conversation_id: str, positions: Sequence[Position], settings: Settings
) -> Steps[list[Current | None]]:
    """Messages that were streaming a moment ago."""
    keys = settings.keyspace.conversation(conversation_id)
    args = REPLY.args(positions=[b"%d" % number for position in positions for number in position])
    replies = yield from read(Call(REPLY, (keys.state, keys.messages), args, as_is), settings)
    found = [_current(reply) for reply in replies]
    for at, one in enumerate(found):
        if one is not None:
            message = yield from with_content(conversation_id, one.message, settings)
            found[at] = None if message is None else one._replace(message=message)
    return found


def _current(reply: list[Any]) -> Current | None:
    message = readable(reply[0]) if reply else None
    if message is None:
        return None
    return Current(message) if len(reply) == 1 else with_text(message, reply[1], reply[2])


def end_dead(conversation_id: str, found: Sequence[Current | None], settings: Settings) -> Steps[list[bool | None]]:
    """End the replies of dead writers. Returns for each whether that was done; None: the server does not take its
    writer for dead."""
    done: list[bool | None] = []
    for one in found:
        if one is not None and one.dead_size is not None:
            try:
                op = UpdateMessage(conversation_id, Entry.of(one.message), reply=ReplyEnd(size=one.dead_size))
                # A reader does not let a conversation of others expire.
                done.append((yield from op.steps(dataclasses.replace(settings, ttl=None))) is not None or None)
            except RedisHistoryError as error:
                _logger.info("reply %r could not be ended: %s", one.message.id[:80], error)
                done.append(False)
    return done


def refreshed(conversation_id: str, positions: Sequence[Position], settings: Settings) -> Steps[list[Message | None]]:
    """Streaming messages as they are now, after the replies of dead writers were ended."""
    found, pause = judge(conversation_id, (yield from read_replies(conversation_id, positions, settings)), settings)
    if pause:
        yield Pause(pause)
        found, _ = judge(conversation_id, (yield from read_replies(conversation_id, positions, settings)), settings)
    done = yield from end_dead(conversation_id, found, settings)
    if not all(done):  # the writer is back, or another reader ended it
        found, _ = judge(conversation_id, (yield from read_replies(conversation_id, positions, settings)), settings)
    return [one and shown(one, done) for one in found]


def shown(one: Current, done: list[bool | None]) -> Message:
    """A reply that the server does not end goes on: its writer has come back in the meantime."""
    lives = one.dead_size is not None and None in done
    return replace(one.message, status="streaming") if lives else one.message
