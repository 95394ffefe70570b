"""Errors of writes, and warnings, for all backends."""

from __future__ import annotations

import logging
from functools import lru_cache

from redis_history import errors
from redis_history.values.turns import MAX_TURNS

_logger = logging.getLogger("redis_history")


def message_conflict(conversation_id: str, message_id: str) -> errors.MessageConflictError:
    return errors.MessageConflictError(
        f"conversation {_named(conversation_id)} has a message {message_id!r} already, with other content; "
        "use another id, or update_message to change it",
        message_id=message_id,
    )


def message_missing(conversation_id: str, message_id: str) -> errors.MessageNotFoundError:
    return errors.MessageNotFoundError(f"conversation {_named(conversation_id)} has no message {message_id[:64]!r}")


def conversation_missing(conversation_id: str) -> errors.ConversationNotFoundError:
    return errors.ConversationNotFoundError(f"there is no conversation {_named(conversation_id)}")


def conversation_exists(conversation_id: str, revision: int) -> errors.ConversationExistsError:
    return errors.ConversationExistsError(
        f"conversation {_named(conversation_id)} exists already, at revision {revision}"
    )


def run_lost(conversation_id: str) -> errors.RunLostError:
    return errors.RunLostError(
        f"this run of conversation {_named(conversation_id)} has ended or expired, and somebody else may have taken "
        "over; nothing was written"
    )


def not_fenced(conversation_id: str) -> errors.RunLostError:
    return errors.RunLostError(
        f"this exclusive store does not make conversation {_named(conversation_id)}: forks and imports of exports "
        "have no run; use the store that it was made of"
    )


def too_many_turns(conversation_id: str) -> errors.ConflictError:
    return errors.ConflictError(
        f"conversation {_named(conversation_id)} has turns of {MAX_TURNS} agents already; wait until one is answered, "
        "or drop it"
    )


def revision_conflict(conversation_id: str, current: int, expected: int | None) -> errors.RevisionConflictError:
    return errors.RevisionConflictError(
        f"conversation {_named(conversation_id)} is at revision {current}, not at {expected}; read it again",
        current_revision=current,
        expected_revision=expected,
    )


def reply_unfinished(conversation_id: str, revision: int) -> errors.RevisionConflictError:
    return errors.RevisionConflictError(
        f"in conversation {_named(conversation_id)} a reply is being written, which this history does not show; "
        "rewrite it when the reply has ended",
        current_revision=revision,
        expected_revision=revision,
    )


def reply_not_pinned(conversation_id: str, message_id: str) -> errors.ConflictError:
    return errors.ConflictError(
        f"message {message_id[:64]!r} of conversation {_named(conversation_id)} is being written; pin it when it has "
        "ended, or begin it with stream(metadata={'pinned': True})"
    )


def summary_not_pinned(conversation_id: str, message_id: str) -> errors.ConflictError:
    return errors.ConflictError(
        f"message {message_id[:64]!r} of conversation {_named(conversation_id)} is a summary, which the next "
        "compaction replaces; pin messages before they are compacted, or append one with the text and pin that"
    )


def compaction_conflict(conversation_id: str, why: str) -> errors.CompactionConflictError:
    return errors.CompactionConflictError(
        f"conversation {_named(conversation_id)} was not compacted: {why}; read and summarize it again"
    )


def fork_conflict(conversation_id: str, attempts: int) -> errors.CompactionConflictError:
    return errors.CompactionConflictError(
        f"conversation {_named(conversation_id)} was not forked: it was compacted or replaced, or the server lost the "
        f"copy, during each of {attempts} attempts; call it again"
    )


@lru_cache(1000)  # once
def warn_of_pins(conversation_id: str) -> None:
    _logger.warning(
        "conversation %s has more messages than max_messages allows: all of them are pinned", _named(conversation_id)
    )


def too_many_staying(count: int, limit: int) -> errors.InvalidInputError:
    return errors.InvalidInputError(
        f"the range has {count:,} system and pinned messages, which a compaction keeps; the limit is {limit:,}. "
        "Compact it in several steps, or unpin some"
    )


def _named(conversation_id: str) -> str:
    return repr(conversation_id[:80])
