"""Why a write was refused, as the errors that every backend raises alike."""

from __future__ import annotations

from redis_history.errors import (
    CompactionConflictError,
    ConversationExistsError,
    ConversationNotFoundError,
    InvalidInputError,
    MessageConflictError,
    RevisionConflictError,
)

__all__ = [
    "compaction_conflict",
    "conversation_exists",
    "conversation_missing",
    "message_conflict",
    "revision_conflict",
    "too_many_staying",
]


def message_conflict(conversation_id: str, message_id: str) -> MessageConflictError:
    return MessageConflictError(
        f"conversation {_named(conversation_id)} has a message {message_id!r} already, with other content; "
        "use another id, or update_message to change it",
        message_id=message_id,
    )


def conversation_missing(conversation_id: str) -> ConversationNotFoundError:
    return ConversationNotFoundError(f"there is no conversation {_named(conversation_id)}")


def conversation_exists(conversation_id: str, revision: int) -> ConversationExistsError:
    return ConversationExistsError(f"conversation {_named(conversation_id)} exists already, at revision {revision}")


def revision_conflict(conversation_id: str, current: int, expected: int | None) -> RevisionConflictError:
    return RevisionConflictError(
        f"conversation {_named(conversation_id)} is at revision {current}, not at {expected}; "
        "read it again and decide anew",
        current_revision=current,
        expected_revision=expected,
    )


def compaction_conflict(conversation_id: str, why: str) -> CompactionConflictError:
    return CompactionConflictError(
        f"conversation {_named(conversation_id)} was not compacted: {why}; read it again and summarise anew"
    )


def too_many_staying(staying: int, most: int) -> InvalidInputError:
    return InvalidInputError(
        f"the range has {staying:,} system messages, which stay where they are; at most {most:,} can. "
        "Compact it in several steps, or give them another role"
    )


def _named(conversation_id: str) -> str:
    return repr(conversation_id[:80])
