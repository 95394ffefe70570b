"""Drafts in memory: conversations that are written in several parts, and become visible at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from redis_history.engine.space import Archive, ConversationState, Draft, Space, StoredMessage, now
from redis_history.model import Position
from redis_history.model.message import RECORD_FIELDS
from redis_history.model.times import to_microseconds
from redis_history.operations import Archive as ArchiveOf
from redis_history.operations import DropDraft, Layout, Publish, ReadLayout, WriteDraft
from redis_history.operations.changelog import Kind

#: Seconds until a draft that nobody continues is removed.
_LASTS: Final = 600.0


def _read_layout(space: Space, op: ReadLayout) -> Layout | None:
    conversation = space.find(op.conversation_id)
    if conversation is None:
        return None
    archives = (ArchiveOf(one.revision, one.summary_id or None, one.former) for one in conversation.archives)
    return Layout(tuple(archives), conversation.ttl)


def _write_draft(space: Space, op: WriteDraft) -> bool:
    clock = time.monotonic()
    for token in [token for token, draft in space.drafts.items() if draft.touched < clock - _LASTS]:
        del space.drafts[token]
    draft = space.drafts.get(op.token, Draft())
    if draft.page not in (op.page, op.page - 1):
        return False
    held = draft.sets.setdefault(op.archive, {})
    for _, position in op.removed:
        held.pop(position, None)
    for entry in op.entries:
        held[Position(entry.timestamp or 0, entry.message.sequence or 0)] = entry
    draft.page, draft.touched = op.page, clock
    space.drafts[op.token] = draft
    return True


def _drop_draft(space: Space, op: DropDraft) -> None:
    space.drafts.pop(op.token, None)


def publish(space: Space, op: Publish) -> bool:
    """See `Publish`."""
    space.check(op.conversation_id, op.precondition)
    draft, record = space.drafts.pop(op.token, Draft()), op.record
    held = {0: op.live.messages} | {archive.number: one.messages for archive, one in op.archives}
    if draft.page != op.page or any(len(draft.sets.get(at, ())) != count for at, count in held.items()):
        return False
    conversation = space.find_or_create(op.conversation_id, op.token)
    for position, entry in sorted(draft.sets.get(0, {}).items()):
        _store(conversation, op, position, entry)
        conversation.insert_live(entry.message.id)
    for archive, _ in op.archives:
        messages = []
        for position, entry in sorted(draft.sets[archive.number].items()):
            _store(conversation, op, position, entry)
            messages.append((position, entry.message.id))
        one = Archive(archive.number, archive.summary_id or "", op.token, archive.former, messages)
        conversation.archives.append(one)
        conversation.archived.update(dict.fromkeys((name for _, name in messages), one))
    if op.archives:
        conversation.summary = op.archives[-1][0].summary_id
    times = [stored.position.timestamp for stored in conversation.stored.values()]
    conversation.times = (min(times), max(times)) if times else None
    conversation.sequence, conversation.stamp = op.sequence, max([time for time in times if time <= now()], default=0)
    given = {name: getattr(record, name) for name in RECORD_FIELDS}
    conversation.record = {name: value for name, value in given.items() if value not in (None, {})}
    conversation.forked_from = record.forked_from
    conversation.ttl = op.ttl
    conversation.revision = record.revision - 1
    space.write(op, conversation, Kind.PUBLISHED)
    if record.created_at is not None:
        conversation.created = to_microseconds(record.created_at)
    if record.updated_at is not None:
        conversation.updated = min(to_microseconds(record.updated_at), conversation.updated)
    return True


def _store(conversation: ConversationState, op: Publish, position: Position, entry: Any) -> None:
    conversation.stored[entry.message.id] = StoredMessage(entry, position, op.record.revision, op.token)


DRAFTS: Final[dict[type, Callable[[Space, Any], Any]]] = {
    DropDraft: _drop_draft,
    Publish: publish,
    ReadLayout: _read_layout,
    WriteDraft: _write_draft,
}
