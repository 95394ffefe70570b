"""Reading operations in memory, and leases."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter
from typing import Any, Final

import msgspec

from redis_history.backends.memory.runs import run_now
from redis_history.engine.space import Change, ConversationState, Reply, Space
from redis_history.events import Event
from redis_history.model import Conversation, Message, Position
from redis_history.model.replies import Progress
from redis_history.model.times import from_microseconds
from redis_history.model.wire import decode_member
from redis_history.operations import (
    Changes,
    FindMessage,
    Head,
    ListConversations,
    Page,
    ReadChanges,
    ReadConversation,
    ReadHead,
    ReadLog,
    ReadPage,
    ScanConversations,
    Scanned,
)
from redis_history.operations.changelog import Kind, LiveReply, LogEntry, events_of, recover
from redis_history.operations.rules import cut_page

#: Kinds of changes that remove messages, which their entries name.
_REMOVING: Final = (Kind.APPENDED, Kind.RESTORED, Kind.DELETED)
_EPOCH: Final = from_microseconds(0)


def _read_conversation(space: Space, op: ReadConversation) -> Conversation | None:
    conversation = space.find(op.conversation_id)
    if conversation is None:
        return None
    return Conversation(
        op.conversation_id,
        **msgspec.msgpack.decode(msgspec.msgpack.encode(conversation.record)),
        message_count=len(conversation.live),
        characters=conversation.characters,
        tokens=conversation.tokens,
        created_at=from_microseconds(conversation.created),
        updated_at=from_microseconds(conversation.updated),
        first_message_at=from_microseconds(conversation.times[0]) if conversation.times else None,
        last_message_at=from_microseconds(conversation.times[1]) if conversation.times else None,
        revision=conversation.revision,
        forked_from=conversation.forked_from,
    )


def _list(space: Space, op: ListConversations) -> list[Conversation]:
    found = [_read_conversation(space, ReadConversation(name)) for name in list(space.conversations)]
    wanted = [conversation for conversation in found if conversation is not None and op.has(conversation)]
    wanted.sort(key=lambda conversation: conversation.updated_at or _EPOCH, reverse=True)
    return wanted[op.offset : op.offset + op.limit]


def _scan(space: Space, op: ScanConversations) -> Scanned:
    names = sorted(name for name in space.conversations if op.cursor is None or name > op.cursor)[: op.limit]
    found = [_read_conversation(space, ReadConversation(name)) for name in names]
    cursor = names[-1] if len(names) == op.limit else None
    return Scanned([one for one in found if one is not None and op.has(one)], cursor)


def _find(space: Space, op: FindMessage) -> Message | None:
    conversation = space.find(op.conversation_id)
    stored = conversation and conversation.stored.get(op.message_id)
    return conversation.message(op.message_id) if conversation and stored else None


def _page(space: Space, op: ReadPage) -> Page:
    conversation = space.find(op.conversation_id)
    if conversation is None:
        return Page([])
    if op.archived:
        return _page_of_all(op, conversation)
    live, position_of = conversation.live, itemgetter(0)
    if op.archive is not None:
        live = next((archive.held for archive in conversation.archives if archive.revision == op.archive), [])
    first = 0 if op.after is None else bisect_right(live, op.after, key=position_of)
    last = len(live) if op.before is None else bisect_left(live, op.before, key=position_of)
    if op.newest:
        first = max(first, last - op.limit)
    else:
        last = min(last, first + op.limit)
    return _messages(conversation, live[first:last])


def _messages(conversation: ConversationState, live: list[tuple[Position, str]]) -> Page:
    return Page([conversation.message(message_id) for _, message_id in live])


def _page_of_all(op: ReadPage, conversation: ConversationState) -> Page:
    held = [(position, True, name) for archive in conversation.archives for position, name in archive.held]
    held += [(position, False, name) for position, name in conversation.live]
    found = [
        (position, archived, conversation.message(name))
        for position, archived, name in held
        if (op.after is None or op.after < position) and (op.before is None or position < op.before)
    ]
    former = frozenset(archive.former for archive in conversation.archives if archive.former is not None)
    return cut_page(op, found, former_summaries=former)


def _read_head(space: Space, op: ReadHead) -> Head:
    conversation = space.find(op.conversation_id)
    if conversation is None:
        return Head(space.deleted_head(op.conversation_id))
    newest = conversation.live[-op.messages :] if op.messages else []
    return Head(
        conversation.head,
        len(conversation.live),
        conversation.characters,
        conversation.tokens,
        _messages(conversation, newest),
    )


def _changes(space: Space, op: ReadChanges) -> Changes:
    conversation = space.find(op.conversation_id)
    head = conversation.head if conversation else space.deleted_head(op.conversation_id)
    log = conversation.log if conversation else space.deleted_logs.get(op.conversation_id, ())
    changes = [change for change in log if change.entry.revision >= op.after.revision][: op.limit + 1]
    entries = [_with_content(change, conversation, list(log)) for change in changes]
    replies = [_reply(op, conversation, reply) for reply in conversation.replies.values()] if conversation else []
    run, expires = run_now(space, op.conversation_id)
    return recover(
        op.conversation_id,
        op.after,
        head,
        entries,
        op.limit,
        former=conversation.former if conversation else "",
        replies=replies,
        had=op.replies,
        run=run,
        expires=expires,
        known_run=op.run,
    )


def _reply(op: ReadChanges, conversation: ConversationState, reply: Reply) -> LiveReply:
    position = conversation.stored[reply.message_id].position
    had = op.replies.get(position.sequence, Progress()).size
    content = bytes(reply.content[had:])
    return LiveReply(position, reply.message_id, content, len(reply.content), reply.ends - time.monotonic())


def _with_content(change: Change, conversation: ConversationState | None, log: list[Change]) -> LogEntry:
    """The entry of a change, with its present messages and fields."""
    messages, gone = [], []
    for message_id, sequence in change.references:
        stored = conversation.stored.get(message_id) if conversation else None
        if conversation and stored is not None and stored.position.sequence == sequence:
            messages.append(decode_member(conversation.member_of(message_id)))
        elif change.entry.kind in (Kind.UPDATED, Kind.REPLY_ENDED, Kind.COMPACTED) or any(
            message_id in one.entry.ids
            for one in log
            if one.entry.revision >= change.entry.revision and one.entry.kind in _REMOVING
        ):
            gone.append(message_id)
    fields = {name: conversation.record[name] for name in change.fields if conversation and name in conversation.record}
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(fields))
    return replace(change.entry, messages=tuple(messages), gone_ids=tuple(gone), fields=fields)


def _read_log(space: Space, op: ReadLog) -> list[Event]:
    conversation = space.find(op.conversation_id)
    if conversation is None:
        return []
    changes = [change for change in conversation.log if change.entry.revision > op.after][: op.limit]
    entries = (_with_content(change, conversation, list(conversation.log)) for change in changes)
    return events_of(op.conversation_id, conversation.epoch, entries)


READS: Final[dict[type, Callable[[Space, Any], Any]]] = {
    FindMessage: _find,
    ListConversations: _list,
    ReadChanges: _changes,
    ReadConversation: _read_conversation,
    ReadHead: _read_head,
    ReadLog: _read_log,
    ReadPage: _page,
    ScanConversations: _scan,
}
