"""`assemble_prompt`: one read of a store, sync or async, then `assembly`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Protocol, overload

from redis_history._ids import check_conversation_id
from redis_history.errors import InvalidInputError
from redis_history.model import Message, Scope
from redis_history.prompt.assembly import compose, select, summary_message
from redis_history.prompt.options import PromptOptions, check_agent, prompt_options
from redis_history.prompt.report import AssembledPrompt

__all__ = ["AsyncReads", "AsyncSummarizer", "Reads", "Summarizer", "assemble_messages", "assemble_prompt"]

Summary = str | Message | None
#: Takes the messages to summarise, as they are stored: an earlier summary first, if there is one.
Summarizer = Callable[[list[Message]], Summary]
AsyncSummarizer = Callable[[list[Message]], Awaitable[Summary]]


class Reads(Protocol):
    """What a prompt needs of a HistoryStore."""

    def get(self, conversation_id: str, *, limit: int, scope: Scope | None) -> Sequence[Message]: ...


class AsyncReads(Protocol):
    """What a prompt needs of an AsyncHistoryStore."""

    async def get(self, conversation_id: str, *, limit: int, scope: Scope | None) -> Sequence[Message]: ...


@overload
def assemble_prompt(
    store: AsyncReads,
    conversation_id: str,
    agent_id: str,
    agent_name: str | None = None,
    options: PromptOptions | Mapping[str, Any] | None = None,
    summarizer: Summarizer | AsyncSummarizer | None = None,
) -> Coroutine[Any, Any, AssembledPrompt]: ...
@overload
def assemble_prompt(
    store: Reads,
    conversation_id: str,
    agent_id: str,
    agent_name: str | None = None,
    options: PromptOptions | Mapping[str, Any] | None = None,
    summarizer: Summarizer | None = None,
) -> AssembledPrompt: ...
def assemble_prompt(
    store: Any,
    conversation_id: str,
    agent_id: str,
    agent_name: str | None = None,
    options: PromptOptions | Mapping[str, Any] | None = None,
    summarizer: Any = None,
) -> AssembledPrompt | Coroutine[Any, Any, AssembledPrompt]:
    """The next prompt of an agent, from what a conversation has; to be awaited if the store is asynchronous.

    Reads the newest messages once, leaves out what is too old or not for this agent, lets `summarizer` replace what
    is many, and fills the token budget from the newest; a tool call stays together with its results. See
    docs/how-to/prompts.md. With an asynchronous store the summarizer may be a coroutine function. What the store and
    the summarizer raise goes through. Raises InvalidInputError, ConfigurationError.
    """
    check_conversation_id(conversation_id)
    check_agent(agent_id, agent_name)
    _check_summarizer(summarizer)
    chosen = prompt_options(options)
    get = getattr(store, "get", None)
    if get is None or isinstance(store, Mapping):
        raise InvalidInputError(f"a prompt is assembled from a store, not {type(store).__name__}")
    found = get(conversation_id, limit=chosen.max_turns_to_load, scope=chosen.scope)
    if inspect.isawaitable(found):
        return _finish(found, agent_id, agent_name, chosen, summarizer)
    if inspect.iscoroutinefunction(summarizer):
        raise InvalidInputError("an asynchronous summarizer needs an AsyncHistoryStore")
    return assemble_messages(found, agent_id, agent_name, chosen, summarizer)


def assemble_messages(
    messages: Iterable[Message],
    agent_id: str,
    agent_name: str | None = None,
    options: PromptOptions | Mapping[str, Any] | None = None,
    summarizer: Summarizer | None = None,
) -> AssembledPrompt:
    """As `assemble_prompt`, of messages that are at hand, in order. The newest `max_turns_to_load` of them are used."""
    check_agent(agent_id, agent_name)
    _check_summarizer(summarizer)
    chosen = prompt_options(options)
    selection = select(list(messages), agent_id, agent_name, chosen)
    summary: object = None
    if summarizer is not None and (older := selection.to_summarise):
        summary = summarizer(older)
        if inspect.isawaitable(summary):
            if inspect.iscoroutine(summary):
                summary.close()
            raise InvalidInputError("an asynchronous summarizer needs an AsyncHistoryStore")
    return compose(selection, summary_message(summary), chosen)


async def _finish(
    found: Awaitable[Sequence[Message]],
    agent_id: str,
    agent_name: str | None,
    options: PromptOptions,
    summarizer: Summarizer | AsyncSummarizer | None,
) -> AssembledPrompt:
    selection = select(await found, agent_id, agent_name, options)
    summary: object = None
    if summarizer is not None and (older := selection.to_summarise):
        summary = summarizer(older)
        if inspect.isawaitable(summary):
            summary = await summary
    return compose(selection, summary_message(summary), options)


def _check_summarizer(summarizer: object) -> None:
    if summarizer is not None and not callable(summarizer):
        raise InvalidInputError(f"a summarizer is a function of messages, not {summarizer!r}")
