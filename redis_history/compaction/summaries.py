"""What a summariser is, and what is made of its answer. Pure."""

from __future__ import annotations

import re
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from redis_history.errors import ConfigurationError, SummaryError
from redis_history.model import Message, TextPart
from redis_history.tokens import TokenCounter, estimate_tokens, message_tokens

__all__ = [
    "MAX_SUMMARY_TOKENS",
    "NoGainError",
    "Summarizer",
    "check_summarizer",
    "is_interrupt",
    "read_summary",
    "shortest_tokens",
    "summary_error",
    "summary_limit",
    "summary_message",
    "summary_text",
    "told",
    "usable",
]

_FORM: Final = re.compile(r"\s*\[Earlier conversation summary:\s*(.*?)\s*\]\s*", re.DOTALL)


#: No summary is longer, whatever it replaces: it is read with every turn from then on.
MAX_SUMMARY_TOKENS: Final = 8_000


#: A summary that says less says nothing.
_SHORTEST: Final = "They said one thing and another."


class NoGainError(SummaryError):
    """The summary is no shorter than what it would replace."""


class Summarizer(Protocol):
    """Any function like this, plain or a coroutine function.

    `messages` are those to be replaced, oldest first, without system messages and without an earlier summary;
    `previous_summary` is the text of that, None if there is none. The new summary takes the place of both, so it must
    keep what the previous one says. Plain text; the brackets around it are not the summariser's business.

    A plain function is called in a thread, several at once if several conversations are compressed. Whatever it raises
    leaves the conversation as it is.
    """

    def __call__(self, messages: Sequence[Message], previous_summary: str | None, /) -> str | Awaitable[str]: ...


def check_summarizer(summarizer: object) -> None:
    """Raises ConfigurationError for what cannot be called."""
    if not callable(summarizer) or isinstance(summarizer, type):
        raise ConfigurationError(
            f"a summarizer is a function (messages, previous_summary) -> str, plain or async, not {summarizer!r}; "
            "see redis_history.extractive_summarizer()"
        )


def summary_text(summary: str) -> str:
    """A summary as it stands in a conversation: `[Earlier conversation summary: …]`."""
    return f"[Earlier conversation summary: {summary}]"


def summary_message(summary: str) -> Message:
    """A summary as a message: role user, with `metadata["is_summary"]`."""
    return Message(role="user", parts=(TextPart(text=summary_text(summary)),), metadata={"is_summary": True})


def read_summary(message: Message) -> str:
    """The text of a summary, without the brackets if it has them."""
    found = _FORM.fullmatch(message.text)
    return found[1] if found is not None else message.text


def shortest_tokens(counter: TokenCounter | None = None) -> int:
    """Tokens of the shortest summary that says anything, with the words around it."""
    return message_tokens(summary_message(_SHORTEST), counter)


def summary_limit(before: int, most: int | None) -> int:
    """The most tokens of a summary of so many, if `most` are allowed."""
    return max(0, min(before - 1, MAX_SUMMARY_TOKENS, MAX_SUMMARY_TOKENS if most is None else most))


def usable(
    answer: object,
    replaced: Sequence[Message],
    most: int | None = None,
    tokens_of: Callable[[Message], int] = message_tokens,
) -> Message:
    """The answer of a summariser as a message: if it is text, and shorter than what it replaces and than `most` and
    MAX_SUMMARY_TOKENS tokens.

    Raises SummaryError; NoGainError if it is not shorter than what it replaces. A summary as long as the conversation
    would make it longer with every round.
    """
    if not isinstance(answer, str):
        raise SummaryError(f"the summariser gave {type(answer).__name__}, not text")
    text = answer.strip()
    if found := _FORM.fullmatch(text):  # it imitates what it was shown
        text = found[1]
    if not text:
        raise SummaryError("the summariser gave no text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SummaryError(f"the summariser gave text that UTF-8 cannot carry: {error}") from error
    message = summary_message(text)
    before = sum(map(tokens_of, replaced))
    limit = summary_limit(before, most)
    # Of an endless answer a tokenizer would count for minutes.
    endless = len(text) > 16 * MAX_SUMMARY_TOKENS
    after = estimate_tokens(len(text)) if endless else tokens_of(message)
    if after > limit or endless:
        raise (NoGainError if after >= before and not endless else SummaryError)(
            f"the summary of {len(replaced):,} messages of {before:,} tokens has {after:,}, and may have "
            f"{limit:,}: ask the summariser for a shorter one"
        )
    return message


def told(error: BaseException) -> str:
    """An error of a user's function in words; not even telling it may fail."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 -- its own __str__
        return name
    return f"{name}: {text}" if text else name


def summary_error(error: BaseException) -> SummaryError:
    """What a summariser raised, as an error to raise: itself, or one that was made of it."""
    if isinstance(error, SummaryError):
        return error
    made = SummaryError(f"the summariser raised {told(error)}")
    made.__cause__ = error
    return made


def is_interrupt(error: BaseException) -> bool:
    """Whether it may be Ctrl-C, which comes wherever the main thread is, also amid a summariser."""
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()
