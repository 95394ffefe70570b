"""From limits and the messages of a conversation to what is to be summarised, or to nothing."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from msgspec import Struct

from redis_history._time import Instant, cutoff
from redis_history.compaction.summaries import shortest_tokens
from redis_history.errors import InvalidInputError
from redis_history.model import Message
from redis_history.model.ranges import good_ends, stays
from redis_history.tokens import TokenCounter, message_tokens

__all__ = ["KEEP_RECENT", "SUMMARY_TOKENS", "Plan", "Policy", "due_at", "older_at"]

#: Messages that always stay, but for system messages; about three turns with a tool each.
KEEP_RECENT: Final = 10
#: What a summary is thought to take, in tokens.
SUMMARY_TOKENS: Final = 500


class Plan(Struct, frozen=True):
    """What is to be summarised: all messages that leave, `seen`, ascending; in other words the `previous` summary, if
    there is one, which the new one absorbs, and the other `messages`.

    `reason` says which limit is exceeded, in words. `enough`: whether the limits will hold afterwards, if the summary
    takes no more than the policy thinks; if not, what must stay is too much by itself.

    To carry it out: `store.compact(conversation_id, through=plan.through, summary=..., seen=plan.seen)`.
    """

    seen: tuple[Message, ...]
    reason: str
    enough: bool

    @property
    def through(self) -> Message:
        """The last message that leaves."""
        return self.seen[-1]

    @property
    def previous(self) -> Message | None:
        """The summary of what was said before."""
        return next((message for message in self.seen if message.is_summary), None)

    @property
    def messages(self) -> tuple[Message, ...]:
        """What is new since the previous summary."""
        previous = self.previous
        return tuple(message for message in self.seen if message is not previous)


class Policy(Struct, frozen=True, kw_only=True):
    """When a conversation is to be compacted, and how far. At least one of the first three must be given.

     `max_tokens` and `max_entries` count all messages, system messages too. `older_than` is an instant, or an age:
    what is older is to leave.

     The newest `keep_recent` messages stay, system messages not counted, whatever the limits say. When a limit is
    exceeded so much leaves that `target` of it is left, so that not every further message exceeds it again.
    `summary_tokens` is what a summary is thought to take. `counter` gives the tokens of a text; by default they are
    estimated. Nothing leaves unless it has, beside a former summary, more tokens than the shortest summary that says
    anything: 16, or `summary_tokens` if that is less.

    Raises InvalidInputError, InvalidTimestampError.
    """

    max_tokens: int | None = None
    max_entries: int | None = None
    older_than: Instant | timedelta | None = None
    keep_recent: int = KEEP_RECENT
    target: float = 0.5
    summary_tokens: int = SUMMARY_TOKENS
    counter: TokenCounter | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is None and self.max_entries is None and self.older_than is None:
            raise InvalidInputError("a policy needs max_tokens, max_entries or older_than: else there is nothing to do")
        for name, least in (("max_tokens", 1), ("max_entries", 1), ("keep_recent", 0), ("summary_tokens", 0)):
            value = getattr(self, name)
            optional = name.startswith("max")
            if not (optional and value is None) and not _is_number(value, least):
                raise InvalidInputError(f"{name} is a number from {least}{', or None' * optional}, not {value!r}")
        if not isinstance(self.target, int | float) or isinstance(self.target, bool) or not 0 < self.target <= 1:
            raise InvalidInputError(f"target is a share above 0 and up to 1, not {self.target!r}")
        if self.older_than is not None:
            cutoff(self.older_than)
        if self.counter is not None and not callable(self.counter):
            raise InvalidInputError(f"a counter is a function of a text, not {self.counter!r}")

    def plan(self, messages: Sequence[Message], *, now: datetime | None = None) -> Plan | None:
        """What of a conversation is to be summarised; None: nothing, because all limits hold, or nothing that would
        help may leave.

        `messages` are all live messages, ascending. `now` is for an age. What leaves is the oldest; system messages
        stay, and so does a tool call whose result would stay, or is still awaited.
        """
        messages = list(messages)
        leaving = [index for index, message in enumerate(messages) if not stays(message)]
        ends = good_ends(messages)
        # What is before a summary leaves only with it; and a summary in place of it alone is no gain.
        first = max((index for index in leaving if messages[index].is_summary), default=-1)
        first += first == leaving[0] if leaving else 0
        may = [index for index in leaving[: max(0, len(leaving) - self.keep_recent)] if ends[index] and index >= first]
        sizes = self._sizes(messages, leaving)
        oldest = self._oldest(messages, leaving, now)
        may = [index for index in may if sizes.gains(index)]
        by_size = sizes.end(may)
        by_age = max((index for index in may if oldest is not None and index <= oldest), default=None)
        reasons = [] if by_size is None else [*sizes.reasons]
        if by_age is not None:
            reasons.append("some are older than allowed")
        if not reasons:
            return None
        end = max(index for index in (by_size, by_age) if index is not None)
        gone = tuple(messages[index] for index in leaving if index <= end)
        enough = sizes.hold(end, 1.0) and (oldest is None or end >= oldest)
        return Plan(gone, "; ".join(reasons), enough)

    def _sizes(self, messages: list[Message], leaving: list[int]) -> _Sizes:
        tokens = [message_tokens(message, self.counter) for message in messages]
        before, new, numbers = 0, 0, {}
        for number, index in enumerate(leaving, 1):
            before += tokens[index]
            new += 0 if messages[index].is_summary else tokens[index]
            numbers[index] = number, before, new
        least = min(self.summary_tokens, shortest_tokens(self.counter))
        return _Sizes(self, len(messages), sum(tokens), numbers, least)

    def _oldest(self, messages: list[Message], leaving: list[int], now: datetime | None) -> int | None:
        """The index of the last of the oldest messages that are all too old; None if there is none but a summary."""
        if self.older_than is None:
            return None
        instant = cutoff(self.older_than, now)
        last = None
        for index in leaving:
            timestamp = messages[index].timestamp
            if timestamp is None or timestamp >= instant:
                break
            if not messages[index].is_summary:
                last = index
        return last


class _Sizes(NamedTuple):
    """A conversation beside the limits of its policy. `leaving`: of each message that could leave, by index, how many
    leave with it, their tokens, and those without a former summary, of which there must be more than `least`."""

    policy: Policy
    entries: int
    tokens: int
    leaving: dict[int, tuple[int, int, int]]
    least: int

    @property
    def too_long(self) -> bool:
        return self.policy.max_tokens is not None and self.tokens > self.policy.max_tokens

    @property
    def too_many(self) -> bool:
        return self.policy.max_entries is not None and self.entries > self.policy.max_entries

    @property
    def reasons(self) -> Iterator[str]:
        if self.too_long:
            yield f"{self.tokens:,} tokens, {self.policy.max_tokens:,} allowed"
        if self.too_many:
            yield f"{self.entries:,} messages, {self.policy.max_entries:,} allowed"

    def gains(self, index: int) -> bool:
        """Whether a summary of all up to a message can be shorter than they are."""
        _, _, new = self.leaving[index]
        return new > self.least

    def end(self, may: list[int]) -> int | None:
        """The first of the places where enough has left, or the last where that helps at all."""
        best = None
        for index in may:
            number, tokens, _ = self.leaving[index]
            # If a summary were no less than what leaves, compacting would go on for ever.
            if (self.too_long and tokens > self.policy.summary_tokens) or (self.too_many and number > 1):
                best = index
                if self.hold(index, self.policy.target):
                    break
        return best

    def hold(self, index: int, share: float) -> bool:
        """Whether this share of the limits holds when all up to a message has become a summary."""
        number, tokens, _ = self.leaving[index]
        entries, left = self.entries - number + 1, self.tokens - tokens + self.policy.summary_tokens
        most_tokens, most_entries = self.policy.max_tokens, self.policy.max_entries
        return (most_tokens is None or left <= most_tokens * share) and (
            most_entries is None or entries <= max(1, most_entries * share)
        )


def due_at(messages: Sequence[Message], policy: Policy, now: datetime) -> datetime | None:
    """When something of a conversation of which nothing may leave now may leave, because more of it is old then; None:
    never, as it is."""
    times = _ages(messages, policy, now)
    if not times or policy.plan(messages, now=times[-1]) is None:
        return None
    # The more is old, the more may leave.
    return times[bisect_left(times, True, key=lambda time: policy.plan(messages, now=time) is not None)]


def older_at(messages: Sequence[Message], policy: Policy, now: datetime) -> datetime | None:
    """When the next message gets too old; None: none will."""
    return next(iter(_ages(messages, policy, now)), None)


def _ages(messages: Sequence[Message], policy: Policy, now: datetime) -> list[datetime]:
    """When those get too old that are not."""
    age = policy.older_than
    if not isinstance(age, timedelta):
        return []
    times = sorted(
        message.timestamp + age + timedelta(microseconds=1)
        for message in messages
        if not stays(message) and message.timestamp is not None
    )
    return times[bisect_left(times, now) :]


def _is_number(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
