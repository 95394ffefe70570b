"""Replies that are being written, as calls: their growth, and reading messages together with the text so far. Pure: no
I/O here.

A reader that finds a reply whose writer has died writes its end: the text so far, with the status "interrupted".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, cast

from msgspec.structs import replace

from redis_history.backends.redis.calls import GROW, RENEW, REPLY, Call, Settings, Steps, as_is, change_header
from redis_history.backends.redis.keys import pack_keys
from redis_history.backends.redis.plan_reads import changes_call, find_call, head_call, page_call, readable
from redis_history.backends.redis.plan_writes import update
from redis_history.errors import CorruptDataError, RedisHistoryError
from redis_history.model import Message, Position
from redis_history.model.replies import grown, read_records
from redis_history.operations import (
    Changes,
    FindMessage,
    GrowReply,
    Head,
    Page,
    ReadChanges,
    ReadHead,
    ReadPage,
    ReplyEnd,
    UpdateMessage,
)
from redis_history.requests import entry_of

_logger = logging.getLogger("redis_history")


class _Found(NamedTuple):
    """A message as it is now. `left`: bytes of content that a dead writer left; None: it lives, or the message has
    ended."""

    message: Message
    left: int | None = None


def _grow(op: GrowReply, settings: Settings) -> Steps[int]:
    keys = settings.keyspace.conversation(op.conversation_id)
    content = keys.reply(op.token)
    args = [b"%d" % op.offset, op.records, *([b"1"] if settings.doorbell == "publish" else [])]
    call = Call(GROW, pack_keys(content), args, as_is)
    if not op.lives:
        return cast(int, (yield call))
    packed = pack_keys(keys.state, keys.messages, keys.log, keys.registry, content)
    _, size = yield [Call(RENEW, packed, change_header(op.token, settings, keys), as_is), call]
    return cast(int, size)


def _joined(message: Message, content: bytes, lives: float) -> _Found:
    try:
        message = grown(message, read_records(content))
    except CorruptDataError as error:
        _logger.error("message %r: %s", message.id[:80], error)
    return _Found(message) if lives > 0 else _Found(replace(message, status="interrupted"), len(content))


def _read(conversation_id: str, positions: Sequence[Position], settings: Settings) -> Steps[list[_Found | None]]:
    """Messages that were being written a moment ago."""
    keys = settings.keyspace.conversation(conversation_id)
    args = [b"%d" % number for position in positions for number in position]
    replies = yield Call(REPLY, pack_keys(keys.state, keys.messages), args, as_is)
    return [_found(reply) for reply in replies]


def _found(reply: list[Any]) -> _Found | None:
    message = readable(reply[0]) if reply else None
    if message is None:
        return None
    if len(reply) == 1:
        return _Found(message)
    return _joined(message, reply[1], reply[2])


def _settle(conversation_id: str, found: _Found, settings: Settings) -> Steps[bool]:
    """Write the end of a reply for its dead writer; whether that was done."""
    try:
        entry = entry_of(found.message)
        op = UpdateMessage(conversation_id, entry, reply=ReplyEnd(size=found.left or 0))
        return (yield from update(op, settings)) is not None
    except RedisHistoryError as error:
        _logger.info("reply %r could not be ended: %s", found.message.id[:80], error)
        return False


def _refreshed(conversation_id: str, positions: Sequence[Position], settings: Settings) -> Steps[list[Message | None]]:
    """The same as messages, after those of dead writers were ended."""
    found = yield from _read(conversation_id, positions, settings)
    settled = True
    for one in found:
        if one is not None and one.left is not None:
            settled = (yield from _settle(conversation_id, one, settings)) and settled
    if not settled:  # a writer has returned, or somebody else was faster; or it is not allowed
        found = yield from _read(conversation_id, positions, settings)
    return [one and one.message for one in found]


def _page(op: ReadPage, settings: Settings) -> Steps[Page]:
    page: Page = yield page_call(op, settings)
    return (yield from joined_page(op.conversation_id, page, settings)) if page.live else page


def joined_page(conversation_id: str, page: Page, settings: Settings) -> Steps[Page]:
    """The page with the text so far of the replies in it."""
    indexes = [index for index, message in enumerate(page.messages) if message.status == "streaming"]
    positions = [cast(Position, page.messages[index].position) for index in indexes]
    found = dict(zip(indexes, (yield from _refreshed(conversation_id, positions, settings)), strict=True))
    kept = [index for index in range(len(page.messages)) if found.get(index, page) is not None]
    messages = [found.get(index) or page.messages[index] for index in kept]
    archived = tuple(page.archived[index] for index in kept) if page.archived else ()
    return replace(page, messages=messages, archived=archived)


def _find(op: FindMessage, settings: Settings) -> Steps[Message | None]:
    message: Message | None = yield find_call(op, settings)
    if message is None or message.status != "streaming":
        return message
    [found] = yield from _refreshed(op.conversation_id, [cast(Position, message.position)], settings)
    return found


def _head(op: ReadHead, settings: Settings) -> Steps[Head]:
    call = head_call(op, settings)
    head: Head
    head, replies = yield call
    if not head.newest.live:
        return head
    joined, settled = _joined_head(head, replies), False
    for one in joined:
        if one.left is not None:
            settled = (yield from _settle(op.conversation_id, one, settings)) or settled
    if settled:  # the cursor must be that of these messages
        head, replies = yield call
        joined = _joined_head(head, replies)
    return replace(head, newest=replace(head.newest, messages=[one.message for one in joined]))


def _joined_head(head: Head, replies: dict[int, tuple[bytes, float]]) -> list[_Found]:
    return [
        _joined(message, *replies.get(message.sequence or 0, (b"", 0.0)))
        if message.status == "streaming"
        else _Found(message)
        for message in head.newest.messages
    ]


def _changes(op: ReadChanges, settings: Settings) -> Steps[Changes]:
    changes: Changes = yield changes_call(op, settings)
    if changes.dead:
        found = yield from _read(op.conversation_id, changes.dead, settings)
        settled = False
        for one in found:
            if one is not None and one.left is not None:
                settled = (yield from _settle(op.conversation_id, one, settings)) or settled
        if settled:
            changes = yield changes_call(op, settings)
    return changes


def read_together(reads: Sequence[Any], outcomes: list[Any], settings: Settings) -> Steps[list[Any]]:
    """Outcomes of reads, with the text so far of the replies in them."""
    for index, (read, outcome) in enumerate(zip(reads, outcomes, strict=True)):
        if isinstance(outcome, Page) and outcome.live:
            outcomes[index] = yield from joined_page(read.conversation_id, outcome, settings)
        elif isinstance(outcome, Message) and outcome.status == "streaming":
            position = cast(Position, outcome.position)
            [outcomes[index]] = yield from _refreshed(read.conversation_id, [position], settings)
    return outcomes


PLANS: Final[dict[type, Callable[[Any, Settings], Steps[Any]]]] = {
    FindMessage: _find,
    GrowReply: _grow,
    ReadChanges: _changes,
    ReadHead: _head,
    ReadPage: _page,
}
