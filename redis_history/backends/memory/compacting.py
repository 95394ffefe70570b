"""Compaction in memory: a summary in place of messages, and back."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from redis_history.backends import refusals
from redis_history.backends.compacting import check_pairs, check_summary, replaced
from redis_history.backends.memory.space import Space, held_then
from redis_history.backends.memory.state import ConversationState, placed_at
from redis_history.changelog import COMPACTED, EXPANDED, encode_compacted, encode_expanded
from redis_history.operations import Compact, Compacted, Expand, Expanded

__all__ = ["COMPACTIONS"]


def _compact(space: Space, op: Compact) -> Compacted:
    conversation, summary_id = space.find(op.conversation_id), op.summary.message.id
    before = None if conversation is None else conversation.stored.get(summary_id)
    if conversation is not None and before is not None and before.entry.digest == op.summary.digest:
        for archive in conversation.archives:
            if archive.summary_id == summary_id and held_then(op.precondition, archive.revision):
                message, own = placed_at(op.summary, before.position), archive.token == op.token
                return Compacted(archive.revision, message, len(archive.held), own)
    space.check(op.conversation_id, op.precondition)
    if conversation is None:
        conversation = ConversationState(op.token, deque())
    messages = [conversation.read(position) for position in conversation.order]
    count = bisect_right(conversation.order, op.through)
    leaving = replaced(op, messages[:count])
    if not leaving:
        return Compacted(conversation.revision, None, 0, False)
    if conversation.summary is not None:
        check_summary(op, conversation.stored[conversation.summary].position)
    check_pairs(op, count, messages)
    if before is not None:
        raise refusals.message_conflict(op.conversation_id, summary_id)
    member = conversation.compact(op.summary, [message.id for message in leaving], op.token)
    revision = space.write(op, conversation, COMPACTED, encode_compacted(len(leaving), member))
    message = placed_at(op.summary, conversation.stored[summary_id].position)
    return Compacted(revision, message, len(leaving), True)


def _expand(space: Space, op: Expand) -> Expanded | None:
    space.check(op.conversation_id, op.precondition)
    conversation = space.find(op.conversation_id)
    if conversation is None or op.summary_id != conversation.summary:
        return None
    [archive] = [one for one in conversation.archives if one.summary_id == op.summary_id]
    count = conversation.expand(archive)
    return Expanded(space.write(op, conversation, EXPANDED, encode_expanded(op.summary_id, count)), count)


COMPACTIONS: Final[dict[type, Callable[[Space, Any], Any]]] = {Compact: _compact, Expand: _expand}
