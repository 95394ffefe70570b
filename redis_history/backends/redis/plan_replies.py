"""The steps for streaming replies: their growth, and reading messages with the text so far.

A reader that finds a reply of a dead writer ends it: the text so far, with the status "interrupted".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, cast

from msgspec.structs import replace

from redis_history.backends.redis.plan_reads import changes_call, find_call, head_call, log_call, page_call, readable
from redis_history.backends.redis.plan_writes import update
from redis_history.errors import CorruptDataError, OutcomeUnknownError, RedisHistoryError
from redis_history.events import Event
from redis_history.model import Message, Position
from redis_history.model.ids import new_token
from redis_history.model.replies import grown, read_records
from redis_history.operations import (
    Changes,
    FindMessage,
    GrowReply,
    Head,
    Page,
    ReadChanges,
    ReadHead,
    ReadLog,
    ReadPage,
    ReplyEnd,
    UpdateMessage,
    rules,
)
from redis_history.operations.base import (
    GROW,
    RENEW,
    REPLY,
    SENT,
    Call,
    Settings,
    Steps,
    as_is,
    change_header,
    stored_fence,
    with_extra_keys,
)
from redis_history.operations.base import read as read_call
from redis_history.operations.keys import field_of, pack_keys
from redis_history.requests import entry_of

_logger = logging.getLogger("redis_history")


class _Current(NamedTuple):
    """A message as it is now. `dead_size`: bytes of content of a dead writer; None if there is nothing to end."""

    message: Message
    dead_size: int | None = None


def _grow(op: GrowReply, settings: Settings) -> Steps[int]:
    keys = settings.keyspace.conversation(op.conversation_id)
    content = keys.reply(op.token)
    args = [b"%d" % op.offset, op.records]
    if op.tools or op.run is not None or settings.ringing.publishes:
        args.append(b"1" if settings.ringing.publishes else b"0")
    if op.tools or op.run is not None:
        args.append(b"" if op.run is None else stored_fence(op.run))
    if op.tools:
        args += (field_of(op.message_id), op.tools)
    # Every flush sends its keys, so the others are declared only where that matters.
    packed = pack_keys(content, keys.state, keys.log) if settings.cluster else pack_keys(content)
    size: int = yield Call(GROW, packed, args, partial(_grown, op))
    if op.lives and size >= 0:
        packed = pack_keys(keys.state, keys.messages, keys.log, keys.registry, content)
        renew = Call(RENEW, packed, change_header(new_token(), settings, keys), as_is, SENT)
        try:
            yield from with_extra_keys(renew)
        except OutcomeUnknownError as error:
            if not error.forgotten:
                raise  # else it was sent too long ago to count, and the writer does it again
    return size


def _grown(op: GrowReply, size: int) -> int:
    if size == -2:
        raise rules.run_lost(op.conversation_id)
    return size


def _with_content(message: Message, content: bytes, lives: float, settings: Settings) -> _Current:
    """A streaming message with its text so far; `lives`: for how long its writer counts as alive."""
    try:
        message = grown(message, read_records(content))
    except CorruptDataError as error:
        _logger.error("message %r: %s", message.id[:80], error)
    return (
        _Current(message)
        if lives > 0 or settings.outage.is_recent
        else _Current(replace(message, status="interrupted"), len(content))
    )


def read_replies(
    conversation_id: str, positions: Sequence[Position], settings: Settings
) -> Steps[list[_Current | None]]:
    """Messages that were streaming a moment ago."""
    keys = settings.keyspace.conversation(conversation_id)
    args = [b"%d" % number for position in positions for number in position]
    replies = yield from read_call(Call(REPLY, pack_keys(keys.state, keys.messages), args, as_is), settings)
    return [_current(reply, settings) for reply in replies]


def _current(reply: list[Any], settings: Settings) -> _Current | None:
    message = readable(reply[0]) if reply else None
    if message is None:
        return None
    return _Current(message) if len(reply) == 1 else _with_content(message, reply[1], reply[2], settings)


def _end_dead(conversation_id: str, found: Sequence[_Current | None], settings: Settings) -> Steps[list[bool | None]]:
    """End the replies of dead writers. Returns for each whether that was done; None: the server does not take its
    writer for dead."""
    done: list[bool | None] = []
    for one in found:
        if one is not None and one.dead_size is not None:
            try:
                op = UpdateMessage(conversation_id, entry_of(one.message), reply=ReplyEnd(size=one.dead_size))
                done.append((yield from update(op, settings)) is not None or None)
            except RedisHistoryError as error:
                _logger.info("reply %r could not be ended: %s", one.message.id[:80], error)
                done.append(False)
    return done


def _refreshed(conversation_id: str, positions: Sequence[Position], settings: Settings) -> Steps[list[Message | None]]:
    """Streaming messages as they are now, after the replies of dead writers were ended."""
    found = yield from read_replies(conversation_id, positions, settings)
    done = yield from _end_dead(conversation_id, found, settings)
    if not all(done):  # the writer is back, another reader ended it, or the server has just started
        found = yield from read_replies(conversation_id, positions, settings)
    return [one and _shown(one, done) for one in found]


def _shown(one: _Current, done: list[bool | None]) -> Message:
    """A reply that the server does not end yet goes on: after a restart its writer needs time to come back."""
    lives = one.dead_size is not None and None in done
    return replace(one.message, status="streaming") if lives else one.message


def _page(op: ReadPage, settings: Settings) -> Steps[Page]:
    call = page_call(op, settings)
    page: Page = (yield from read_call(call, settings)) if op.archived else (yield call)
    return (yield from joined_page(op.conversation_id, page, settings)) if page.live else page


def joined_page(conversation_id: str, page: Page, settings: Settings) -> Steps[Page]:
    indexes = [index for index, message in enumerate(page.messages) if message.status == "streaming"]
    positions = [cast(Position, page.messages[index].position) for index in indexes]
    found = dict(zip(indexes, (yield from _refreshed(conversation_id, positions, settings)), strict=True))
    kept = [index for index in range(len(page.messages)) if found.get(index, page) is not None]
    messages = [found.get(index) or page.messages[index] for index in kept]
    archived = tuple(page.archived[index] for index in kept) if page.archived else ()
    return replace(page, messages=messages, archived=archived)


def _find(op: FindMessage, settings: Settings) -> Steps[Message | None]:
    message: Message | None = yield from read_call(find_call(op, settings), settings)
    return (yield from _joined_message(op.conversation_id, message, settings))


def _joined_message(conversation_id: str, message: Message | None, settings: Settings) -> Steps[Message | None]:
    if message is None or message.status != "streaming":
        return message
    [found] = yield from _refreshed(conversation_id, [cast(Position, message.position)], settings)
    return found


def _head(op: ReadHead, settings: Settings) -> Steps[Head]:
    call = head_call(op, settings)
    head: Head
    head, replies = yield from read_call(call, settings)
    if not head.newest.live:
        return head
    joined = _joined_head(head, replies, settings)
    done = yield from _end_dead(op.conversation_id, joined, settings)
    if any(done):  # read the cursor of these messages
        head, replies = yield from read_call(call, settings)
        joined = _joined_head(head, replies, settings)
    return replace(head, newest=replace(head.newest, messages=[_shown(one, done) for one in joined]))


def _joined_head(head: Head, replies: dict[int, tuple[bytes, float]], settings: Settings) -> list[_Current]:
    return [
        _with_content(message, *replies.get(message.sequence or 0, (b"", 0.0)), settings)
        if message.status == "streaming"
        else _Current(message)
        for message in head.newest.messages
    ]


def _changes(op: ReadChanges, settings: Settings) -> Steps[Changes]:
    changes: Changes = yield from read_call(changes_call(op, settings), settings)
    if changes.dead:
        found = yield from read_replies(op.conversation_id, changes.dead, settings)
        if any((yield from _end_dead(op.conversation_id, found, settings))):
            changes = yield from read_call(changes_call(op, settings), settings)
    return changes


def _log(op: ReadLog, settings: Settings) -> Steps[list[Event]]:
    return read_call(log_call(op, settings), settings)


def read_together(reads: Sequence[Any], outcomes: list[Any], settings: Settings) -> Steps[list[Any]]:
    """Outcomes of reads, with the text so far of the replies in them."""
    for index, (read, outcome) in enumerate(zip(reads, outcomes, strict=True)):
        if isinstance(outcome, Page) and outcome.live:
            outcomes[index] = yield from joined_page(read.conversation_id, outcome, settings)
        elif isinstance(outcome, Message):
            outcomes[index] = yield from _joined_message(read.conversation_id, outcome, settings)
    return outcomes


PLANS: Final[dict[type, Callable[[Any, Settings], Steps[Any]]]] = {
    FindMessage: _find,
    GrowReply: _grow,
    ReadChanges: _changes,
    ReadHead: _head,
    ReadLog: _log,
    ReadPage: _page,
}
