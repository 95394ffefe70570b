"""What to compress, when, and up to where. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from msgspec import Struct

from redis_history.model import Message
from redis_history.model.ranges import good_ends, stays
from redis_history.tokens import message_tokens

__all__ = ["Plan", "plan"]


class Plan(Struct, frozen=True):
    """`messages` are to be replaced by a summary, oldest first, a former summary among them; `through` is the last."""

    through: Message
    messages: tuple[Message, ...]
    reason: str


def plan(
    messages: Sequence[Message],
    *,
    max_tokens: int | None = None,
    max_entries: int | None = None,
    older_than: datetime | None = None,
    keep_recent: int = 4,
    tokens_of: Callable[[Message], int] = message_tokens,
    time_of: Callable[[Message], datetime | None] = lambda message: message.timestamp,
) -> Plan | None:
    """The shortest range whose summary brings the messages within the bounds, or the longest if none does; None: they
    are within, or nothing may leave.

    System messages stay, so do the `keep_recent` newest others, and no tool call is torn from its result.
    """
    tokens, count = sum(map(tokens_of, messages)), len(messages)
    old = [index for index, message in enumerate(messages) if _is_old(message, older_than, time_of)]
    reasons = []
    if max_tokens is not None and tokens > max_tokens:
        reasons.append(f"{tokens:,} tokens of at most {max_tokens:,}")
    if max_entries is not None and count > max_entries:
        reasons.append(f"{count:,} messages of at most {max_entries:,}")
    if old:
        reasons.append(f"{len(old):,} messages are older than {older_than}")
    if not reasons:
        return None
    body = [index for index, message in enumerate(messages) if not stays(message)]
    ends = good_ends(messages)
    last_old = old[-1] if old else -1
    chosen = None
    for place, index in enumerate(body[: max(0, len(body) - keep_recent)]):
        tokens -= tokens_of(messages[index])
        if not ends[index] or (place == 0 and messages[index].is_summary):
            continue
        chosen = index
        fits = (max_tokens is None or tokens <= max_tokens) and (max_entries is None or count - place <= max_entries)
        if fits and index >= last_old:
            break
    if chosen is None:
        return None
    leaving = tuple(messages[index] for index in body if index <= chosen)
    return Plan(messages[chosen], leaving, "; ".join(reasons))


def _is_old(message: Message, older_than: datetime | None, time_of: Callable[[Message], datetime | None]) -> bool:
    time = time_of(message)
    return (
        older_than is not None
        and not stays(message)
        and not message.is_summary
        and time is not None
        and time < older_than
    )
