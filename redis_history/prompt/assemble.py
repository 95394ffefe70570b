"""`assemble_prompt`: reads a store once, sync or async, and assembles the prompt."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar, overload

from redis_history._ids import check_conversation_id
from redis_history._validation import check_function
from redis_history.compaction.summaries import Summarizer, call_summarizer, in_thread
from redis_history.errors import InvalidInputError
from redis_history.model import Message, Scope
from redis_history.prompt.assembly import Selection, compose, select, summary_message
from redis_history.prompt.options import AssembledPrompt, PromptOptions, check_agent, prompt_options
from redis_history.tokens import count_characters

T = TypeVar("T")

#: Messages with more characters than this are processed in a thread instead of the event loop.
_INLINE: Final = 200_000


class Reads(Protocol):
    """The methods of a HistoryStore that a prompt needs."""

    def get(self, conversation_id: str, *, limit: int, scope: Scope | None) -> Sequence[Message]: ...


class AsyncReads(Protocol):
    """The methods of an AsyncHistoryStore that a prompt needs."""

    async def get(self, conversation_id: str, *, limit: int, scope: Scope | None) -> Sequence[Message]: ...


@overload
def assemble_prompt(
    store: AsyncReads,
    conversation_id: str,
    agent_id: str,
    agent_name: str | None = None,
    options: PromptOptions | Mapping[str, Any] | None = None,
    summarizer: Summarizer | None = None,
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
    """Assemble the next prompt of an agent from a conversation. Await the result if the store is asynchronous.

    Reads the newest messages once, leaves out messages that are too old or not for this agent, lets `summarizer`
    replace older messages if there are many, and fills the token budget starting with the newest message. Tool calls
    stay together with their results. See docs/how-to/prompts.md. With an asynchronous store, `summarizer` may be a
    coroutine function; a plain function is called in a thread.

    Raises InvalidInputError, ConfigurationError, and the errors of the store and the summarizer.
    """
    check_conversation_id(conversation_id)
    check_agent(agent_id, agent_name)
    check_function(summarizer, "summarizer", "a function of messages", error=InvalidInputError)
    chosen = prompt_options(options)
    get = getattr(store, "get", None)
    if get is None or isinstance(store, Mapping):
        raise InvalidInputError(f"store must be a HistoryStore or AsyncHistoryStore, not {type(store).__name__}")
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
    """Like `assemble_prompt`, for messages that are already loaded, in ascending order. Uses the newest
    `max_turns_to_load` of them."""
    check_agent(agent_id, agent_name)
    check_function(summarizer, "summarizer", "a function of messages", error=InvalidInputError)
    chosen = prompt_options(options)
    selection = select(list(messages), agent_id, agent_name, chosen)
    summary: object = None
    if summarizer is not None and selection.older:
        summary = summarizer(*selection.to_summarise)
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
    summarizer: Summarizer | None,
) -> AssembledPrompt:
    messages = await found
    short = sum(map(count_characters, messages)) <= _INLINE

    async def run(function: Callable[..., T], *arguments: Any) -> T:
        return function(*arguments) if short else await in_thread(function, *arguments)

    selection: Selection = await run(select, messages, agent_id, agent_name, options)
    summary: object = None
    if summarizer is not None and selection.older:
        summary = await call_summarizer(summarizer, *selection.to_summarise)
    return await run(compose, selection, summary_message(summary), options)
