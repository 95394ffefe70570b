"""Summarizers: their interface, calls of them, and the conversion of their answers to messages."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar

from redis_history.errors import SummaryError
from redis_history.values import Message, TextPart
from redis_history.values._validation import refuse
from redis_history.values.sizes import TokenCounter, estimate_tokens, message_tokens

T = TypeVar("T")

SUMMARY_START: Final = "[Earlier conversation summary:"

#: Maximum size of every summary, because each later turn includes it.
MAX_SUMMARY_TOKENS: Final = 8_000
#: The expected size of a summary, in tokens.
SUMMARY_TOKENS: Final = 500
#: Tokens that a summary may always have if `max_tokens` holds without it.
_ALWAYS_SHORT: Final = 100
#: The shortest useful summary.
_SHORTEST: Final = "They said one thing and another."


class SummaryTooLongError(SummaryError):
    """The summary exceeds its limit. `tokens` is its size."""

    def __init__(self, message: str, tokens: int) -> None:
        super().__init__(message)
        self.tokens = tokens


class NoGainError(SummaryTooLongError):
    """The summary is not shorter than the messages it would replace."""


class Summarizer(Protocol):
    """A plain or coroutine function that summarizes messages, for prompts, compressors and compression plugins.

    `messages` are the messages to replace, oldest first, without system messages and the earlier summary.
    `previous_summary` is the text of the earlier summary, or None. The new summary replaces both, so it must include
    the content of the previous one. Return plain text without the surrounding brackets. Without a
    summary (None or blank text), a prompt keeps older messages as far as its budget allows, and a compression fails
    with SummaryError.

    Asynchronous callers run a plain function in a thread; several calls run concurrently if several conversations are
    compressed. If the function raises, the conversation does not change.
    """

    def __call__(
        self, messages: Sequence[Message], previous_summary: str | None, /
    ) -> str | Awaitable[str | None] | None: ...


def check_summarizer(summarizer: object) -> None:
    """Raises ConfigurationError unless `summarizer` is a function or a callable object. A class is rejected."""
    if not callable(summarizer) or isinstance(summarizer, type):
        rule = "a function (messages, previous_summary) -> str, such as redis_history.extractive_summarizer()"
        refuse(summarizer, "summarizer", rule)


def summary_text(summary: str) -> str:
    """A summary in its frame: `[Earlier conversation summary: …]`."""
    return f"{SUMMARY_START} {summary}]"


def without_frame(text: str) -> str:
    """The text of a summary, without its frame and without surrounding whitespace."""
    text = text.strip()
    if text.startswith(SUMMARY_START) and text.endswith("]"):
        text = text[len(SUMMARY_START) : -1].strip()
    return text


def summary_message(summary: str) -> Message:
    """A summary as a message with role `user` and `metadata["is_summary"]`."""
    return Message(role="user", parts=(TextPart(text=summary_text(summary)),), metadata={"is_summary": True})


def read_summary(message: Message) -> str:
    """The text of a summary message, without its frame."""
    text = message.text
    return without_frame(text) if text.lstrip().startswith(SUMMARY_START) else text


def shortest_tokens(counter: TokenCounter | None = None) -> int:
    """Tokens of the shortest useful summary, including its frame."""
    return message_tokens(summary_message(_SHORTEST), counter)


def expected_tokens(max_tokens: int | None, counter: TokenCounter | None = None) -> int:
    """The expected size of a summary in a conversation of at most `max_tokens` tokens."""
    share = SUMMARY_TOKENS if max_tokens is None else min(SUMMARY_TOKENS, max_tokens // 4)
    return max(shortest_tokens(counter), share)


def summary_limit(
    messages: Iterable[Message],
    replaced: Iterable[Message],
    max_tokens: int | None,
    tokens_of: Callable[[Message], int] = message_tokens,
    shortest: int | None = None,
) -> int:
    """Maximum tokens of a summary that replaces `replaced` of all `messages`, so that `max_tokens` holds.

    If no useful summary can make it hold, any that is shorter than the replaced messages will do. If it holds already,
    a summary may be longer than the few words it replaces, because the other bounds do not depend on tokens.
    """
    total, before = sum(map(tokens_of, messages)), sum(map(tokens_of, replaced))
    if max_tokens is None:
        return min(max(before - 1, _ALWAYS_SHORT), MAX_SUMMARY_TOKENS)
    room = max_tokens - (total - before)
    if room < (shortest_tokens() if shortest is None else shortest):
        room = MAX_SUMMARY_TOKENS
    return max(0, min(max(before - 1, _ALWAYS_SHORT if total <= max_tokens else 0), MAX_SUMMARY_TOKENS, room))


def usable(
    answer: object,
    replaced: Sequence[Message],
    limit: int | None = None,
    tokens_of: Callable[[Message], int] = message_tokens,
) -> Message:
    """Convert the answer of a summarizer to a message of at most `limit` tokens; see `summary_limit`. Without a limit,
    it must be shorter than the replaced messages.

    Raises SummaryError if it is not text, SummaryTooLongError if it is too long, and NoGainError if it is not shorter
    than the replaced messages, because then the conversation would grow with each compaction.
    """
    if not isinstance(answer, str):
        raise SummaryError(f"the summarizer must return text, not {type(answer).__name__}")
    text = without_frame(answer)  # a model may imitate the frame of the previous summary
    if not text:
        raise SummaryError("the summarizer returned no text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SummaryError(f"the summarizer returned text that is not valid UTF-8: {error}") from error
    message = summary_message(text)
    before = sum(map(tokens_of, replaced))
    if limit is None:
        limit = min(before - 1, MAX_SUMMARY_TOKENS)
    # A tokenizer would need minutes for an extremely long answer.
    endless = len(text) > 16 * MAX_SUMMARY_TOKENS
    after = estimate_tokens(len(text)) if endless else tokens_of(message)
    if after > limit or endless:
        raise (NoGainError if after >= before and not endless else SummaryTooLongError)(
            f"the summary of {len(replaced):,} messages ({before:,} tokens) has {after:,} tokens, but at most "
            f"{limit:,} are allowed: make the summarizer return a shorter one",
            after,
        )
    return message


def describe_error(error: BaseException) -> str:
    """The type and text of an error from a user's function. Never raises, even if the error's `__str__` does."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 -- its own __str__
        return name
    return f"{name}: {text}" if text else name


def summary_error(error: BaseException) -> SummaryError:
    """An error of a summarizer as a SummaryError: itself, or a new one with it as the cause."""
    if isinstance(error, SummaryError):
        return error
    made = SummaryError(f"the summarizer raised {describe_error(error)}")
    made.__cause__ = error
    return made


def is_interrupt(error: BaseException) -> bool:
    """Whether the error may be Ctrl-C, which interrupts the main thread anywhere, also inside a summarizer."""
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


async def try_in_thread(function: Callable[..., Any], *arguments: Any) -> tuple[Any, BaseException | None]:
    """Call a function in a thread, and return its result and its error. The error is returned because a future cannot
    hold every exception. Unlike with `asyncio.to_thread`, closing the event loop does not wait for the thread."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()

    def settle(given: Any, error: BaseException | None) -> None:
        if not done.done():
            done.set_result((given, error))
        elif inspect.iscoroutine(given):  # nobody will await it
            given.close()

    def run() -> None:
        try:
            outcome: tuple[Any, BaseException | None] = context.run(function, *arguments), None
        except BaseException as error:  # noqa: BLE001 -- the caller raises it
            outcome = None, error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits for the outcome
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, name="redis_history-attempt", daemon=True).start()
    return await done
