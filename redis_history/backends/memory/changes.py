"""Writing operations in memory."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast

import msgspec

from redis_history.engine.space import ConversationState, Space, StoredMessage, held_then, now, placed_at
from redis_history.model.replies import LEASE_SECONDS
from redis_history.operations import (
    Append,
    Appended,
    Clear,
    Compact,
    Compacted,
    DeleteConversation,
    DeleteMessages,
    EraseMessages,
    Expand,
    Expanded,
    GrowReply,
    Precondition,
    ReplyEnd,
    Restore,
    UpdateMessage,
    WriteRecord,
    rules,
)
from redis_history.operations.changelog import Kind, token_of
from redis_history.requests import entry_of


def _append(space: Space, op: Append) -> list[Appended]:
    conversation = space.find(op.conversation_id)
    before = [conversation.stored.get(entry.message.id) if conversation else None for entry in op.entries]
    for entry, stored in zip(op.entries, before, strict=True):
        if stored is not None and (
            stored.entry.body != entry.body or entry.timestamp not in (None, stored.position.timestamp)
        ):
            raise rules.message_conflict(op.conversation_id, entry.message.id)
    if all(before) and held_then(op.precondition, cast(StoredMessage, before[-1]).revision):
        return [_repeated(stored, op.token) for stored in before if stored is not None]
    space.check(op.conversation_id, op.precondition)
    conversation = space.find_or_create(op.conversation_id, op.token)
    outcome, references, clock = [], [], now()
    for entry, stored in zip(op.entries, before, strict=True):
        if stored is not None:
            outcome.append(_repeated(stored, op.token))
            continue
        position = conversation.add(entry, op.token, clock)
        references.append((entry.message.id, position.sequence))
        outcome.append(Appended(conversation.revision + 1, placed_at(entry, position), False))
    space.write(
        op, conversation, Kind.APPENDED, references=references, ids=space.trimmed(op.conversation_id, conversation)
    )
    return outcome


def _restore(space: Space, op: Restore) -> int:
    space.check(op.conversation_id, op.precondition)
    conversation = space.find_or_create(op.conversation_id, op.token)
    conversation.empty()
    clock = now()
    references = [(entry.message.id, conversation.add(entry, op.token, clock).sequence) for entry in op.entries]
    return space.write(
        op, conversation, Kind.RESTORED, references=references, ids=space.trimmed(op.conversation_id, conversation)
    )


def _clear(space: Space, op: Clear) -> int:
    space.check(op.conversation_id, op.precondition)
    conversation = space.find(op.conversation_id)
    if conversation is None or not (conversation.live or conversation.archives):
        return conversation.revision if conversation else 0
    conversation.empty()
    return space.write(op, conversation, Kind.CLEARED)


def _update(space: Space, op: UpdateMessage) -> Appended | None:
    conversation = space.find(op.conversation_id)
    stored = None if conversation is None else conversation.stored.get(op.entry.message.id)
    if conversation is not None and stored is not None and stored.entry.body == op.entry.body:
        expected = op.precondition.expected_revision
        if expected in (None, conversation.revision, stored.revision - 1):
            return Appended(stored.revision, placed_at(op.entry, stored.position), False)
    space.check(op.conversation_id, op.precondition)
    if conversation is None or stored is None or op.entry.message.id in conversation.archived:
        return None
    token = conversation.reply_token(op.entry.message.id)
    revision = conversation.revision + 1
    if op.reply is not None and op.reply.token:
        # The writer also ends a reply that a reader took for dead, unless the message was changed since then.
        settled = conversation.settled.pop(op.reply.token, None)
        if token != op.reply.token and settled != stored.revision:
            return None
    elif op.reply is not None:
        if token is None:
            return None
        reply = conversation.replies[token]
        if reply.ends > time.monotonic() or len(reply.content) != op.reply.size:
            return None
        conversation.settled[token] = revision
    conversation.replies.pop(token or "", None)
    conversation.count(stored.entry, -1)
    conversation.count(op.entry, 1)
    conversation.stored[op.entry.message.id] = StoredMessage(op.entry, stored.position, revision, op.token)
    reference = conversation.reference(op.entry.message.id)
    kind = Kind.REPLY_ENDED if token else Kind.UPDATED
    space.write(op, conversation, kind, references=[reference], ids=(op.entry.message.id,), through=stored.position)
    return Appended(revision, placed_at(op.entry, stored.position), False)


def grow(space: Space, op: GrowReply) -> int:
    """See `GrowReply`."""
    if op.run is not None:
        space.check(op.conversation_id, Precondition(run=op.run))
    conversation = space.find(op.conversation_id)
    reply = conversation and conversation.replies.get(op.token)
    if not reply:
        return -1
    if len(reply.content) == op.offset:
        reply.content += op.records
        if op.tools and conversation is not None:
            stored = conversation.stored[reply.message_id]
            stored.entry = msgspec.structs.replace(stored.entry, tools=stored.entry.tools + op.tools)
    if op.lives:
        reply.ends = time.monotonic() + LEASE_SECONDS
    return len(reply.content)


def end_dead_replies(space: Space, conversation_id: str) -> bool:
    """End the replies of dead writers; returns whether there were any."""
    conversation = space.find(conversation_id)
    dead = [reply for reply in conversation.replies.values() if reply.ends <= time.monotonic()] if conversation else []
    for reply in dead:
        assert conversation is not None  # noqa: S101
        message = conversation.message(reply.message_id)
        end = ReplyEnd(size=len(reply.content))
        _update(space, UpdateMessage(conversation_id, entry_of(message), reply=end))
    return bool(dead)


def _delete(space: Space, op: DeleteMessages) -> int:
    space.check(op.conversation_id, op.precondition)
    conversation = space.find(op.conversation_id)
    found = [message_id for message_id in op.message_ids if conversation and message_id in conversation.stored]
    if conversation is None or not found:
        return 0
    for message_id in found:
        conversation.remove(message_id)
    space.write(op, conversation, Kind.DELETED, ids=tuple(found))
    return len(found)


def _erase(space: Space, op: EraseMessages) -> int | str:
    space.check(op.conversation_id, op.precondition)
    conversation = space.find(op.conversation_id)
    stored = {} if conversation is None else conversation.stored
    found = [message_id for message_id in op.message_ids if message_id in stored]
    if conversation is None or not found:
        return 0
    earliest = min(stored[message_id].position for message_id in found)
    # A summary has the position of the last message it replaced, so an earlier one cannot quote these messages.
    summaries = {conversation.summary, *(archive.former for archive in conversation.archives)} - {None, *found}
    quoting = sorted(one for one in summaries if one in stored and stored[one].position >= earliest)
    if conversation.summary in quoting and not op.forced:
        return conversation.summary
    for message_id in (*found, *quoting):
        conversation.remove(message_id)
    space.write(op, conversation, Kind.DELETED, ids=(*found, *quoting))
    return len(found)


def _delete_conversation(space: Space, op: DeleteConversation) -> bool:
    space.check(op.conversation_id, op.precondition)
    conversation = space.find(op.conversation_id)
    if conversation is None:
        return False
    if op.conversation_id in space.watchers or space.watchers_of_all:
        space.drop_old_logs()
        space.write(op, conversation, Kind.ENDED)
        space.deleted_logs[op.conversation_id] = conversation.log
        space.deleted[op.conversation_id] = time.monotonic()
    space.end(op.conversation_id, token_of(op.token))
    return True


def _write_record(space: Space, op: WriteRecord) -> int:
    space.check(op.conversation_id, op.precondition)
    conversation = space.find_or_create(op.conversation_id, op.token)
    conversation.record.update(msgspec.msgpack.decode(msgspec.msgpack.encode(op.fields)))
    return space.write(op, conversation, Kind.RECORD, fields=op.fields)


def _repeated(stored: StoredMessage, token: str) -> Appended:
    return Appended(stored.revision, placed_at(stored.entry, stored.position), stored.token != token)


def _compact(space: Space, op: Compact) -> Compacted:
    conversation, summary_id = space.find(op.conversation_id), op.summary.message.id
    before = None if conversation is None else conversation.stored.get(summary_id)
    if conversation is not None and before is not None and before.entry.body == op.summary.body:
        for archive in conversation.archives:
            if archive.summary_id == summary_id and held_then(op.precondition, archive.revision):
                message, own = placed_at(op.summary, before.position), archive.token == op.token
                return Compacted(archive.revision, message, len(archive.held), own)
    space.check(op.conversation_id, op.precondition)
    if conversation is None:
        conversation = ConversationState(op.token, deque())
    messages = [conversation.message(message_id) for _, message_id in conversation.live]
    count = sum(position <= op.through for position, _ in conversation.live)
    leaving = rules.replaced(op, messages[:count])
    if not leaving:
        return Compacted(conversation.revision, None, 0, False)
    if conversation.summary is not None:
        rules.check_summary(op, conversation.stored[conversation.summary].position)
    rules.check_pairs(op, count, messages)
    if before is not None:
        raise rules.message_conflict(op.conversation_id, summary_id)
    conversation.compact(op.summary, [message.id for message in leaving], op.token)
    reference, through = conversation.reference(summary_id), conversation.stored[summary_id].position
    known: dict[str, Any] = {"ids": (summary_id,), "count": len(leaving), "through": through}
    revision = space.write(op, conversation, Kind.COMPACTED, references=[reference], **known)
    message = placed_at(op.summary, through)
    return Compacted(revision, message, len(leaving), True)


def _expand(space: Space, op: Expand) -> Expanded | None:
    space.check(op.conversation_id, op.precondition)
    conversation = space.find(op.conversation_id)
    if conversation is None or op.summary_id != conversation.summary:
        return None
    [archive] = [one for one in conversation.archives if one.summary_id == op.summary_id]
    count = conversation.expand(archive)
    return Expanded(space.write(op, conversation, Kind.EXPANDED, ids=(op.summary_id,), count=count), count)


WRITES: Final[dict[type, Callable[[Space, Any], Any]]] = {
    Append: _append,
    Clear: _clear,
    Compact: _compact,
    DeleteConversation: _delete_conversation,
    DeleteMessages: _delete,
    EraseMessages: _erase,
    Expand: _expand,
    Restore: _restore,
    UpdateMessage: _update,
    WriteRecord: _write_record,
}
