"""Checks before a write, and their errors, for all backends."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from redis_history.errors import (
    CompactionConflictError,
    ConversationExistsError,
    ConversationNotFoundError,
    InvalidInputError,
    MessageConflictError,
    MessageNotFoundError,
    RevisionConflictError,
    RunLostError,
    TornPairError,
)
from redis_history.model import Conversation, Message, Position
from redis_history.model.ranges import good_ends, leaving, stays
from redis_history.model.wire import body_digest, encode_body
from redis_history.operations import Compact, Page, Preview, ReadPage

_logger = logging.getLogger("redis_history")


def message_conflict(conversation_id: str, message_id: str) -> MessageConflictError:
    return MessageConflictError(
        f"conversation {_named(conversation_id)} has a message {message_id!r} already, with other content; "
        "use another id, or update_message to change it",
        message_id=message_id,
    )


def message_missing(conversation_id: str, message_id: str) -> MessageNotFoundError:
    return MessageNotFoundError(f"conversation {_named(conversation_id)} has no message {message_id[:64]!r}")


def conversation_missing(conversation_id: str) -> ConversationNotFoundError:
    return ConversationNotFoundError(f"there is no conversation {_named(conversation_id)}")


def conversation_exists(conversation_id: str, revision: int) -> ConversationExistsError:
    return ConversationExistsError(f"conversation {_named(conversation_id)} exists already, at revision {revision}")


def run_lost(conversation_id: str) -> RunLostError:
    return RunLostError(
        f"this run of conversation {_named(conversation_id)} has ended or expired, and somebody else may have taken "
        "over; nothing was written"
    )


def revision_conflict(conversation_id: str, current: int, expected: int | None) -> RevisionConflictError:
    return RevisionConflictError(
        f"conversation {_named(conversation_id)} is at revision {current}, not at {expected}; read it again",
        current_revision=current,
        expected_revision=expected,
    )


def reply_unfinished(conversation_id: str, revision: int) -> RevisionConflictError:
    return RevisionConflictError(
        f"in conversation {_named(conversation_id)} a reply is being written, which this history does not show; "
        "rewrite it when the reply has ended",
        current_revision=revision,
        expected_revision=revision,
    )


def compaction_conflict(conversation_id: str, why: str) -> CompactionConflictError:
    return CompactionConflictError(
        f"conversation {_named(conversation_id)} was not compacted: {why}; read and summarize it again"
    )


def fork_conflict(conversation_id: str, attempts: int) -> CompactionConflictError:
    return CompactionConflictError(
        f"conversation {_named(conversation_id)} was not forked: it was compacted or replaced, or the server lost the "
        f"copy, during each of {attempts} attempts; call it again"
    )


@lru_cache(1000)  # once
def warn_of_pins(conversation_id: str) -> None:
    _logger.warning(
        "conversation %s has more messages than max_messages allows: all of them are pinned", _named(conversation_id)
    )


def too_many_staying(count: int, limit: int) -> InvalidInputError:
    return InvalidInputError(
        f"the range has {count:,} system and pinned messages, which a compaction keeps; the limit is {limit:,}. "
        "Compact it in several steps, or unpin some"
    )


def _named(conversation_id: str) -> str:
    return repr(conversation_id[:80])


def replaced(op: Compact, messages: Sequence[Message]) -> list[Message]:
    """Which of the live messages up to `through` the summary replaces; empty: there is nothing to do.

    Raises CompactionConflictError if they differ from the seen ones.
    """
    gone = leaving(messages)
    if op.seen is not None:
        present = {message.id: body_digest(encode_body(message)) for message in gone}
        seen = dict(op.seen)
        if present != seen:
            raise compaction_conflict(op.conversation_id, _difference(present, seen))
    return [] if len(gone) == 1 and gone[0].is_summary else gone


def _difference(present: dict[str, bytes], seen: dict[str, bytes]) -> str:
    if gone := seen.keys() - present.keys():
        return f"message {min(gone)[:64]!r} was deleted"
    if new := present.keys() - seen.keys():
        return f"message {min(new)[:64]!r} is new"
    changed = min(message_id for message_id, digest in present.items() if seen[message_id] != digest)
    return f"message {changed[:64]!r} has other content"


#: Messages to read from the start of a conversation to find a title.
FIRST_MESSAGES: Final = 4


def preview_of(conversation: Conversation, first: Iterable[Message], newest: Sequence[Message]) -> Preview:
    """The preview of a conversation, from its first messages and the newest one."""
    text = next((" ".join(one.text.split()) for one in first if one.role == "user" and not one.is_summary), "")
    title = conversation.title or (text if len(text) <= 80 else text[:79].rstrip() + "…")
    return Preview(conversation, title, newest[-1] if newest else None)


def check_summary(op: Compact, live: Position | None) -> None:
    """Raises CompactionConflictError if the live summary is after the range: there would be two summaries."""
    if live is not None and live > op.through:
        why = f"its summary is at {live}, and earlier messages can only be replaced together with it"
        raise compaction_conflict(op.conversation_id, why)


def check_pairs(op: Compact, count: int, messages: Sequence[Message]) -> None:
    """Raises TornPairError if the range, the first `count` of the live messages, separates a tool call from its
    result."""
    ends = good_ends(messages)
    if count == 0 or ends[count - 1]:
        return
    gone = [index for index, message in enumerate(messages) if not stays(message)]
    if messages[gone[0]].is_summary:
        del gone[0]  # a summary alone is not compacted
    fitting = [index for index in gone if ends[index]]
    before = [index for index in fitting if index < count]
    after = [index for index in fitting if index >= count]
    if not before and not after:
        hint = "no other end is possible yet: wait for the result"
    else:
        better = messages[before[-1] if before else after[0]]
        hint = f"pass through={better.id[:64]!r}, at {better.position}"
    raise TornPairError(f"a tool call up to {op.through} has its result after it, or no result yet; {hint}")


def cut_page(
    op: ReadPage,
    found: list[tuple[Position, bool, Message]],
    unreadable: int = 0,
    former_summaries: frozenset[str] = frozenset(),
) -> Page:
    """A page of (position, archived, message) items. It has all or none of the messages at a position, in the given
    order."""
    found.sort(key=lambda one: one[0])
    if len(found) > op.limit:
        edge = found[-op.limit if op.newest else op.limit - 1][0]
        found = [one for one in found if (one[0] >= edge if op.newest else one[0] <= edge)]
    archived = tuple(archived for _, archived, _ in found)
    return Page([message for _, _, message in found], unreadable, archived, former_summaries)
