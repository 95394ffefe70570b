"""Decide which messages of a conversation to summarise, so that its limits hold."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from redis_history._time import Instant, cutoff
from redis_history._validation import check_function, check_integer, check_share
from redis_history.compaction.summaries import SummaryTooLongError, shortest_tokens
from redis_history.errors import InvalidInputError
from redis_history.model import Message, ToolResultPart
from redis_history.model.ranges import good_ends, stays
from redis_history.tokens import TokenCounter, message_tokens

T = TypeVar("T")

#: Messages that stay if the limits allow it, without system messages. About three turns with a tool call each.
KEEP_RECENT: Final = 10
#: The expected size of a summary, in tokens.
SUMMARY_TOKENS: Final = 500


class Plan(Struct, frozen=True):
    """The messages to summarise. `seen` contains all of them, ascending: the `previous` summary, if there is one, and
    the other `messages`. The new summary replaces both.

    `reason` says in words which limit is exceeded. `enough`: whether the limits hold afterwards if the summary has the
    expected size. If False, the messages that must stay already exceed a limit.

    To execute the plan: `store.compact(conversation_id, through=plan.through, summary=..., seen=plan.seen)`.
    """

    seen: tuple[Message, ...]
    reason: str
    enough: bool

    @property
    def through(self) -> Message:
        """The last message that is replaced."""
        return self.seen[-1]

    @property
    def previous(self) -> Message | None:
        """The previous summary; None if there is none."""
        return next((message for message in self.seen if message.is_summary), None)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages since the previous summary."""
        previous = self.previous
        return tuple(message for message in self.seen if message is not previous)


class Policy(Struct, frozen=True, kw_only=True):
    """When to compact a conversation, and how far. At least one of the first three limits is required.

    `max_tokens` and `max_messages` count all messages, including system messages. `older_than` is an instant or an age;
    older messages are replaced.

    After a compaction the limits hold whenever a summary can achieve this. These messages always stay: system messages,
    the turn in progress (from the newest user message until the assistant answers without a tool call), and tool calls
    that wait for a result; a call is never separated from its result. If `max_tokens` or `max_messages` is exceeded,
    the conversation shrinks to `target` times the limit, so that the next message does not exceed it again. The newest
    `keep_recent` messages (without system messages) stay if the limits allow it, even if `target` is then missed.

    `summary_tokens` is the expected size of a summary. `counter` returns the tokens of a text; the default is an
    estimate. If the limits cannot be met, messages are still replaced if this helps. To save tokens, there must be
    more new tokens to replace than the shortest useful summary has: 16, or `summary_tokens` if that is less.

    Raises InvalidInputError, InvalidTimestampError.
    """

    max_tokens: int | None = None
    max_messages: int | None = None
    older_than: Instant | timedelta | None = None
    keep_recent: int = KEEP_RECENT
    target: float = 0.5
    summary_tokens: int = SUMMARY_TOKENS
    counter: TokenCounter | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is None and self.max_messages is None and self.older_than is None:
            raise InvalidInputError("a policy requires max_tokens, max_messages or older_than")
        for name, least in (("max_tokens", 1), ("max_messages", 1), ("keep_recent", 0), ("summary_tokens", 0)):
            optional = name.startswith("max")
            check_integer(getattr(self, name), name, least, optional=optional, error=InvalidInputError)
        check_share(self.target, "target", InvalidInputError)
        if self.older_than is not None:
            cutoff(self.older_than)
        check_function(self.counter, "counter", "a function from a str to an int", error=InvalidInputError)

    def plan(self, messages: Sequence[Message], *, now: datetime | None = None) -> Plan | None:
        """The oldest messages, to summarise; None if all limits hold, or if replacing messages cannot help.

        `messages` are all live messages, ascending. If `older_than` is an age, it counts back from `now`.
        """
        messages = list(messages)
        tokens = [message_tokens(message, self.counter) for message in messages]
        bounds = _Bounds.of(self, now)
        seen = oldest_to_replace(self, messages, tokens, now)
        if not seen:
            return None
        total = sum(tokens)
        reasons = []
        if self.max_tokens is not None and total > self.max_tokens:
            reasons.append(f"{total:,} tokens, {self.max_tokens:,} allowed")
        if self.max_messages is not None and len(messages) > self.max_messages:
            reasons.append(f"{len(messages):,} messages, {self.max_messages:,} allowed")
        if any(bounds.older(message) for message in seen if not message.is_summary):
            reasons.append("some are older than allowed")
        leaving = [index for index, message in enumerate(messages) if not stays(message)]
        gone = sum(tokens[index] for index in leaving[: len(seen)])
        after = _Choice(len(seen), len(messages) - len(seen) + 1, total - gone + self.summary_tokens, 0, False)
        old_left = any(bounds.older(messages[index]) for index in leaving[len(seen) : len(seen) + 1])
        return Plan(tuple(seen), "; ".join(reasons), after.meets(bounds, 1) and not old_left)


def oldest_to_replace(
    policy: Policy, messages: Sequence[Message], tokens: Sequence[int], now: datetime | None = None
) -> list[Message]:
    """The oldest messages that a summary must replace so that the limits of the policy hold. Empty if they already
    hold, or if replacing messages cannot help. `tokens` has the tokens of each message.

    The result has no system messages, but contains an earlier summary. If no choice meets the limits, as many messages
    as possible are replaced.
    """
    bounds = _Bounds.of(policy, now)
    gain = min(policy.summary_tokens, shortest_tokens(policy.counter))
    leaving = [index for index, message in enumerate(messages) if not stays(message)]
    total = sum(tokens)
    ends, turn = good_ends(messages), turn_in_progress(messages)
    earlier = max((n for n, index in enumerate(leaving, 1) if messages[index].is_summary), default=0)
    choices: list[_Choice] = []
    spoken = False
    old, gone, new = bounds.older_than is not None, 0, 0
    for number, index in enumerate(leaving, 1):
        message = messages[index]
        gone += tokens[index]
        if not message.is_summary:
            spoken = True
            new += tokens[index]
            old = old and bounds.older(message)
        has_new = number > 1 or not message.is_summary
        if ends[index] and index < turn and number >= earlier and has_new:
            after = total - gone + policy.summary_tokens
            choices.append(_Choice(number, len(messages) - number + 1, after, new, old and spoken))
    chosen = max((choice.number for choice in choices if choice.old), default=0)
    present = _Choice(0, len(messages), total, 0, False)
    if not present.meets(bounds, 1):
        aimed = [choice for choice in choices if choice.meets(bounds, policy.target)]
        meeting = [choice for choice in choices if choice.meets(bounds, 1)]
        polite = [choice for choice in choices if choice.number <= len(leaving) - policy.keep_recent]
        helping = [choice for choice in choices if choice.helps(bounds, present, gain)]
        if aimed and aimed[0] in polite:
            best = aimed[0]
        elif meeting and polite and polite[-1] in meeting:
            best = polite[-1]
        else:
            best = next(iter(aimed or meeting or helping[-1:]), present)
        chosen = max(chosen, best.number)
    return [messages[index] for index in leaving[:chosen]]


def turn_in_progress(messages: Sequence[Message]) -> int:
    """The index of the first message of the turn in progress; `len(messages)` if the last turn has ended.

    A turn begins with a user message and ends with an assistant message without open tool calls. In a conversation
    without user messages, it is the newest tool call with its results.
    """
    spoken = [index for index, message in enumerate(messages) if not stays(message) and not message.is_summary]
    if not spoken:
        return len(messages)
    newest = messages[spoken[-1]]
    answered = {part.tool_use_id for part in newest.tool_results}
    if newest.role == "assistant" and all(part.id in answered for part in newest.tool_uses):
        return len(messages)
    for index in reversed(spoken):
        if messages[index].role == "user" and not _only_results(messages[index]):
            return index
    return next((index for index in reversed(spoken) if not _only_results(messages[index])), spoken[0])


def due_at(messages: Sequence[Message], policy: Policy, now: datetime) -> datetime | None:
    """When `plan` will no longer return None, because more messages are too old by then. None if it never will."""
    times = _ages(messages, policy, now)
    if not times or policy.plan(messages, now=times[-1]) is None:
        return None
    # As more messages become too old, more can be replaced.
    return times[bisect_left(times, True, key=lambda time: policy.plan(messages, now=time) is not None)]


def older_at(messages: Sequence[Message], policy: Policy, now: datetime) -> datetime | None:
    """When the next message becomes too old; None if none will."""
    return next(iter(_ages(messages, policy, now)), None)


def _ages(messages: Sequence[Message], policy: Policy, now: datetime) -> list[datetime]:
    """The times at which the remaining messages become too old."""
    age = policy.older_than
    if not isinstance(age, timedelta):
        return []
    times = sorted(
        message.timestamp + age + timedelta(microseconds=1)
        for message in messages
        if not stays(message) and message.timestamp is not None
    )
    return times[bisect_left(times, now) :]


class _Bounds(NamedTuple):
    """Bounds of a conversation; None means no bound. `older_than` is an instant."""

    max_tokens: int | None
    max_messages: int | None
    older_than: datetime | None

    @staticmethod
    def of(policy: Policy, now: datetime | None) -> _Bounds:
        older_than = None if policy.older_than is None else cutoff(policy.older_than, now)
        return _Bounds(policy.max_tokens, policy.max_messages, older_than)

    def older(self, message: Message) -> bool:
        time = message.timestamp
        return self.older_than is not None and time is not None and time < self.older_than


class _Choice(NamedTuple):
    """The choice to replace the oldest `number` messages. `entries` and `tokens`: size of the conversation afterwards.
    `new`: tokens of the replaced messages, without an earlier summary. `old`: whether all of these are too old."""

    number: int
    entries: int
    tokens: int
    new: int
    old: bool

    def meets(self, bounds: _Bounds, share: float) -> bool:
        """Whether the conversation then fits into this share of the bounds."""
        return (bounds.max_tokens is None or self.tokens <= bounds.max_tokens * share) and (
            bounds.max_messages is None or self.entries <= max(1, bounds.max_messages * share)
        )

    def helps(self, bounds: _Bounds, now: _Choice, gain: int) -> bool:
        """Whether the choice reduces the excess over a bound."""
        too_many = bounds.max_messages is not None and now.entries > bounds.max_messages
        too_long = bounds.max_tokens is not None and now.tokens > bounds.max_tokens
        return (too_many and self.entries < now.entries) or (too_long and self.new > gain)


def wider(
    policy: Policy, choose: Callable[[Policy], T | None], size: Callable[[T], int]
) -> Generator[T, SummaryTooLongError, None]:
    """The messages to replace, if any. If their summary is too long, send the error: the next choice replaces more
    messages, for which it may fit. Raises the error if there are no more."""
    found = choose(policy)
    while found:
        error = yield found
        policy = replace(policy, summary_tokens=max(policy.summary_tokens, error.tokens))
        more = choose(policy)
        if not more or size(more) <= size(found):
            raise error
        found = more


def _only_results(message: Message) -> bool:
    return bool(message.parts) and all(isinstance(part, ToolResultPart) for part in message.parts)
