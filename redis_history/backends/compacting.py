"""What every backend checks before it compacts, so that all refuse alike. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from redis_history.backends import refusals
from redis_history.errors import TornPairError
from redis_history.model import Message, Position
from redis_history.model.ranges import good_ends, stays
from redis_history.model.wire import body_digest, encode_body
from redis_history.operations import Compact, Page, ReadPage

__all__ = ["check_pairs", "check_summary", "cut_page", "replaced"]


def replaced(op: Compact, messages: Sequence[Message]) -> list[Message]:
    """Of the live messages up to `through`, those that leave; none: there is nothing to do.

    Raises CompactionConflictError unless they are those that were seen.
    """
    leaving = [message for message in messages if not stays(message)]
    if op.seen is not None:
        here = {message.id: body_digest(encode_body(message)) for message in leaving}
        seen = dict(op.seen)
        if here != seen:
            raise refusals.compaction_conflict(op.conversation_id, _difference(here, seen))
    return [] if len(leaving) == 1 and leaving[0].is_summary else leaving


def _difference(here: dict[str, bytes], seen: dict[str, bytes]) -> str:
    if gone := seen.keys() - here.keys():
        return f"message {min(gone)[:64]!r} is not there any more"
    if new := here.keys() - seen.keys():
        return f"message {min(new)[:64]!r} is there as well"
    changed = min(message_id for message_id, digest in here.items() if seen[message_id] != digest)
    return f"message {changed[:64]!r} has other content"


def check_summary(op: Compact, standing: Position | None) -> None:
    """Raises CompactionConflictError if the live summary stands behind the range, so that there would be two."""
    if standing is not None and standing > op.through:
        raise refusals.compaction_conflict(
            op.conversation_id,
            f"its summary stands at {standing}, and what is before it can only leave together with it",
        )


def check_pairs(op: Compact, count: int, messages: Sequence[Message]) -> None:
    """Raises TornPairError if the range, the first `count` of the live messages, tears a tool call from its
    result."""
    ends = good_ends(messages)
    if count == 0 or ends[count - 1]:
        return
    leaving = [index for index, message in enumerate(messages) if not stays(message)]
    if messages[leaving[0]].is_summary:
        del leaving[0]  # alone it is nothing to do
    fitting = [index for index in leaving if ends[index]]
    before = [index for index in fitting if index < count]
    after = [index for index in fitting if index >= count]
    if not before and not after:
        hint = "there is no other place yet: wait for the result"
    else:
        better = messages[before[-1] if before else after[0]]
        hint = f"pass through={better.id[:64]!r}, at {better.position}"
    raise TornPairError(f"a tool call up to {op.through} has its result behind it, or has none yet; {hint}")


def cut_page(
    op: ReadPage,
    found: list[tuple[Position, bool, Message]],
    unreadable: int = 0,
    former_summaries: frozenset[str] = frozenset(),
) -> Page:
    """A page of messages, each with its position and whether it is archived; of those at one position, in the order
    they have here, all or none."""
    found.sort(key=lambda one: one[0])
    if len(found) > op.limit:
        edge = found[-op.limit if op.newest else op.limit - 1][0]
        found = [one for one in found if (one[0] >= edge if op.newest else one[0] <= edge)]
    archived = tuple(archived for _, archived, _ in found)
    return Page([message for _, _, message in found], unreadable, archived, former_summaries)
