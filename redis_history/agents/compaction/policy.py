"""Decide which messages of a conversation to summarize, so that its limits hold."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from redis_history.agents.compaction.summaries import SUMMARY_TOKENS, SummaryTooLongError, shortest_tokens
from redis_history.errors import InvalidInputError
from redis_history.values import Message
from redis_history.values._validation import check_function, check_integer, check_share
from redis_history.values.pairing import only_results
from redis_history.values.pairs import pairs_of
from redis_history.values.ranges import good_ends, pinned_groups, stays
from redis_history.values.sizes import TokenCounter, message_tokens
from redis_history.values.times import Instant, cutoff

#: Messages that stay if the limits allow it, without system messages. About three turns with a tool call each.
KEEP_RECENT: Final = 10


class Plan(Struct, frozen=True):
    """The messages to summarize. `seen` contains all of them, ascending: the `previous` summary, if there is one, and
    the other `messages`. The new summary replaces both.

    `reason` says in words which limit is exceeded. `enough`: whether the limits hold afterwards if the summary has the
    expected size. If False, the messages that must stay already exceed a limit. `tokens`: tokens of the messages.

    To execute the plan: `store.compact(conversation_id, through=plan.through, summary=..., seen=plan.seen)`.
    """

    seen: tuple[Message, ...]
    reason: str
    enough: bool
    tokens: int = 0

    @property
    def through(self) -> Message:
        """The last message that is replaced."""
        return self.seen[-1]

    @property
    def previous(self) -> Message | None:
        """The previous summary, or None."""
        return next((message for message in self.seen if message.is_summary), None)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages since the previous summary."""
        previous = self.previous
        return tuple(message for message in self.seen if message is not previous)


class Policy(Struct, frozen=True, kw_only=True):
    """When to compact a conversation, and how far. The first, second or third limit is required.

    `max_tokens` and `max_messages` count all messages, including system messages. `older_than` is an instant or an age;
    older messages are replaced.

    After a compaction the limits hold whenever a summary can achieve this. These messages always stay: system and
    pinned messages, the turn in progress (from the newest user message until the assistant answers without a tool
    call), and tool calls that wait for a result. A call is never separated from its result. If `max_tokens` or
    `max_messages` is exceeded, the conversation shrinks to `target` times the limit, so that the next message does not
    exceed it again. The newest `keep_recent` messages (without system messages) stay if the limits allow it, even if
    `target` is then missed.

    `summary_tokens` is the expected size of a summary. `counter` returns the tokens of a text. The default is an
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
        """The oldest messages, to summarize; None if all limits hold, or if replacing messages cannot help.

        `messages` are all live messages, ascending. If `older_than` is an age, it counts back from `now`.
        """
        messages = list(messages)
        return make_plan(self, messages, [message_tokens(message, self.counter) for message in messages], now)


def make_plan(
    policy: Policy, messages: Sequence[Message], tokens: Sequence[int], now: datetime | None = None
) -> Plan | None:
    """`Policy.plan`; `tokens` has the tokens of each message."""
    max_tokens, max_messages = policy.max_tokens, policy.max_messages
    older_than = None if policy.older_than is None else cutoff(policy.older_than, now)

    def is_old(message: Message) -> bool:
        return older_than is not None and message.timestamp is not None and message.timestamp < older_than

    pins = pinned_groups(messages)
    leaving = [index for index, message in enumerate(messages) if not pins[index] and not stays(message)]
    present = _Choice(0, len(messages), sum(tokens), 0, False)
    choices = list(_choices(policy, messages, tokens, leaving, is_old))
    chosen = max((choice for choice in choices if choice.only_old), default=present)
    if not present.meets(policy):
        best = _best(policy, present, choices, len(leaving))
        chosen = max(chosen, best)
    if chosen is present:
        return None
    reasons = []
    if max_tokens is not None and present.tokens > max_tokens:
        reasons.append(f"{present.tokens:,} tokens, {max_tokens:,} allowed")
    if max_messages is not None and present.messages > max_messages:
        reasons.append(f"{present.messages:,} messages, {max_messages:,} allowed")
    seen = tuple(messages[index] for index in leaving[: chosen.number])
    if any(is_old(message) for message in seen if not message.is_summary):
        reasons.append("some are older than allowed")
    old_left = any(is_old(messages[index]) for index in leaving[chosen.number : chosen.number + 1])
    gone = sum(tokens[index] for index in leaving[: chosen.number])
    return Plan(seen, "; ".join(reasons), chosen.meets(policy) and not old_left, gone)


class _Choice(NamedTuple):
    """The choice to replace the oldest `number` messages. `messages` and `tokens`: size of the conversation afterwards.
    `new`: tokens of the replaced messages without an earlier summary. `only_old`: whether all of these are too old."""

    number: int
    messages: int
    tokens: int
    new: int
    only_old: bool

    def meets(self, policy: Policy, share: float = 1) -> bool:
        """Whether the conversation then fits into this share of the limits."""
        return (policy.max_tokens is None or self.tokens <= policy.max_tokens * share) and (
            policy.max_messages is None or self.messages <= max(1, policy.max_messages * share)
        )


def _choices(
    policy: Policy,
    messages: Sequence[Message],
    tokens: Sequence[int],
    leaving: Sequence[int],
    is_old: Callable[[Message], bool],
) -> Iterator[_Choice]:
    """All possible choices. Each includes the earlier summary, because there is at most one."""
    ends, turn = good_ends(messages), turn_in_progress(messages)
    earlier = max((n for n, index in enumerate(leaving, 1) if messages[index].is_summary), default=0)
    total, gone, new = sum(tokens), 0, 0
    only_old, has_new = True, False
    for number, index in enumerate(leaving, 1):
        message = messages[index]
        gone += tokens[index]
        if not message.is_summary:
            has_new = True
            new += tokens[index]
            only_old = only_old and is_old(message)
        if ends[index] and index < turn and number >= earlier and (has_new or number > 1):
            after = total - gone + policy.summary_tokens
            yield _Choice(number, len(messages) - number + 1, after, new, only_old and has_new)


def _best(policy: Policy, present: _Choice, choices: Sequence[_Choice], count: int) -> _Choice:
    """The best choice if a limit is exceeded: it meets the target and leaves `keep_recent` of `count` messages if it
    can. If no choice meets the limits, as many messages as possible are replaced."""
    aimed = [choice for choice in choices if choice.meets(policy, policy.target)]
    meeting = [choice for choice in choices if choice.meets(policy)]
    keeping = [choice for choice in choices if choice.number <= count - policy.keep_recent]
    if aimed and aimed[0] in keeping:
        return aimed[0]
    if meeting and keeping and keeping[-1] in meeting:
        return keeping[-1]
    if aimed or meeting:
        return (aimed or meeting)[0]
    too_many = policy.max_messages is not None and present.messages > policy.max_messages
    too_long = policy.max_tokens is not None and present.tokens > policy.max_tokens
    gain = min(policy.summary_tokens, shortest_tokens(policy.counter))
    helping = [
        choice
        for choice in choices
        if (too_many and choice.messages < present.messages) or (too_long and choice.new > gain)
    ]
    return helping[-1] if helping else present


def turn_in_progress(messages: Sequence[Message]) -> int:
    """The index of the first message of the turn in progress; `len(messages)` if the last turn has ended.

    A turn begins with a user message and ends with an assistant message without open tool calls. In a conversation
    without user messages, it is the newest tool call with its results.
    """
    spoken = [index for index, message in enumerate(messages) if not stays(message) and not message.is_summary]
    if not spoken:
        return len(messages)
    newest = messages[spoken[-1]]
    if newest.role == "assistant" and not pairs_of([newest]).waits:
        return len(messages)
    for index in reversed(spoken):
        if messages[index].role == "user" and not only_results(messages[index]):
            return index
    return next((index for index in reversed(spoken) if not only_results(messages[index])), spoken[0])


def wider(policy: Policy, choose: Callable[[Policy], Plan | None]) -> Generator[Plan, SummaryTooLongError, None]:
    """The plan, if there is one. If its summary is too long, send the error: the next plan replaces more messages, for
    which it may fit. Raises the error if no further plan exists."""
    plan = choose(policy)
    while plan is not None:
        error = yield plan
        policy = replace(policy, summary_tokens=max(policy.summary_tokens, error.tokens))
        more = choose(policy)
        if more is None or len(more.seen) <= len(plan.seen):
            raise error
        plan = more
