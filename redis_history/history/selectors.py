"""Choosing messages for a prompt: pure functions over a sequence of messages, oldest first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from redis_history._validation import check_integer
from redis_history.compaction.policy import only_results
from redis_history.errors import InvalidInputError
from redis_history.model import AttachmentPart, Message, TextPart, ToolResultPart
from redis_history.model.message import content_text
from redis_history.model.pairs import groups, without_cut_results
from redis_history.tokens import message_tokens


def last_user(messages: Sequence[Message]) -> Message | None:
    """The newest user message with more than tool results, or None."""
    return next((one for one in reversed(messages) if one.role == "user" and not only_results(one)), None)


def last_assistant(messages: Sequence[Message]) -> Message | None:
    """The newest message of role assistant, or None."""
    return next((one for one in reversed(messages) if one.role == "assistant"), None)


def range_from_end(messages: Sequence[Message], from_end: int, to_end: int = 0) -> list[Message]:
    """Messages counted from the end: the `from_end` newest without the `to_end` newest, oldest first.

    Raises InvalidInputError unless from_end > to_end >= 0.
    """
    for value, name in ((from_end, "from_end"), (to_end, "to_end")):
        check_integer(value, name, error=InvalidInputError)
    if from_end <= to_end:
        raise InvalidInputError(f"from_end must be more than to_end, not {from_end} and {to_end}")
    size = len(messages)
    return list(messages[max(0, size - from_end) : max(0, size - to_end)])


def recent(messages: Sequence[Message], count: int) -> list[Message]:
    """The `count` newest messages, oldest first, without results whose call is not among them."""
    check_integer(count, "count", error=InvalidInputError)
    return without_cut_results(messages, max(0, len(messages) - count))


def by_tokens(
    messages: Sequence[Message], max_tokens: int, tokens_of: Callable[[Message], int] = message_tokens
) -> list[Message]:
    """The newest messages with at most `max_tokens` tokens, oldest first, without a gap and without results whose call
    does not fit."""
    check_integer(max_tokens, "max_tokens", error=InvalidInputError)
    start, left = len(messages), max_tokens
    while start > 0 and (left := left - tokens_of(messages[start - 1])) >= 0:
        start -= 1
    group = groups(messages)
    for index in range(start, len(messages)):
        if group[index] < start:
            start = index + 1
    return list(messages[start:])


def recent_text(messages: Sequence[Message], count: int) -> str:
    """The `count` newest messages as lines: `User: …`, `File: report.pdf`, `Assistant: …`, `Tool: …`, `System: …`."""
    lines: list[str] = []
    check_integer(count, "count", error=InvalidInputError)
    for message in messages[max(0, len(messages) - count) :]:
        for part in message.parts:
            if isinstance(part, TextPart):
                lines.append(f"{message.role.capitalize()}: {part.text}")
            elif isinstance(part, ToolResultPart):
                lines.append(f"Tool: {content_text(part.content)}")
            elif isinstance(part, AttachmentPart):
                lines.append(f"File: {part.name or part.id or part.reference or 'unnamed'}")
    return "\n".join(lines)
