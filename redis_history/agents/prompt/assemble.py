"""Assemble the prompt of one agent: from a store, which is read once, or from messages.

`Assembly` is pure: the same messages give the same prompt. A summarizer may run between its two steps.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from redis_history.agents.compaction.summaries import Summarizer, read_summary, summary_text, without_frame
from redis_history.agents.prompt.addressing import Addressing
from redis_history.agents.prompt.options import (
    Addressed,
    AddressedReason,
    AssembledPrompt,
    LeftOut,
    LeftOutReason,
    PromptOptions,
    PromptReport,
    prompt_options,
)
from redis_history.agents.prompt.projection import Names, Turn, Voice, as_summary, project_turn, turns_of
from redis_history.errors import InvalidInputError
from redis_history.store._sync.store import HistoryStore
from redis_history.store.operations import ReadContents, Steps, read_messages
from redis_history.store.operations.page import with_needed
from redis_history.store.operations.tasks import Ask, Executes, R, Work
from redis_history.values import Message, system
from redis_history.values._validation import check_function, check_integer, check_text, is_coroutine_function
from redis_history.values.beside import PartialMessage
from redis_history.values.filters import make_filters
from redis_history.values.ids import check_conversation_id
from redis_history.values.sizes import TokenCounter, message_tokens
from redis_history.values.times import cutoff

_NEEDS_LOOP: Final = "an asynchronous summarizer needs an AsyncHistoryStore"


def assemble_prompt(
    store: Executes[AssembledPrompt, R],
    conversation_id: str,
    agent_id: str,
    agent_name: str | None = None,
    options: PromptOptions | Mapping[str, Any] | None = None,
    summarizer: Summarizer | None = None,
) -> R:
    """Assemble the next prompt of an agent from a conversation. Await the result if the store is asynchronous.

    Reads the newest messages once, leaves out messages that are too old or not for this agent, lets `summarizer`
    replace older messages if there are many, and fills the token budget starting with the newest message. Tool calls
    stay together with their results. See docs/how-to/prompts.md. With an asynchronous store, `summarizer` may be a
    coroutine function. A plain function is called in a thread.

    Raises InvalidInputError, ConfigurationError, and the errors of the store and the summarizer.
    """
    check_conversation_id(conversation_id)
    chosen = _checked(agent_id, agent_name, options, summarizer)
    if not hasattr(store, "execute"):
        raise InvalidInputError(f"store must be a HistoryStore or AsyncHistoryStore, not {type(store).__name__}")
    if isinstance(store, HistoryStore) and is_coroutine_function(summarizer):
        raise InvalidInputError(_NEEDS_LOOP)
    return store.execute(_assemble(conversation_id, agent_id, agent_name, chosen, summarizer))


def assemble_messages(
    messages: Iterable[Message],
    agent_id: str,
    agent_name: str | None = None,
    options: PromptOptions | Mapping[str, Any] | None = None,
    summarizer: Summarizer | None = None,
) -> AssembledPrompt:
    """Like `assemble_prompt`, for messages that are already loaded, in ascending order. Uses the newest
    `max_turns_to_load` of them."""
    assembly = Assembly(messages, agent_id, agent_name, _checked(agent_id, agent_name, options, summarizer))
    summary: object = None
    if summarizer is not None and assembly.older:
        summary = summarizer(*assembly.to_summarize)
    return assembly.compose(summary)


def _assemble(
    conversation_id: str, agent_id: str, agent_name: str | None, options: PromptOptions, summarizer: Any
) -> Steps[AssembledPrompt]:
    # Images and files count the same whatever they contain, so only those in the prompt are read.
    scope = make_filters(scope=options.scope)
    found = yield from read_messages(conversation_id, options.max_turns_to_load, scope, contents="texts")
    assembly = Assembly(found, agent_id, agent_name, options)
    summary: object = None
    if summarizer is not None and assembly.older:
        older, former = assembly.to_summarize
        arguments = ((yield from with_needed(conversation_id, older, "all")), former)
        is_asynchronous = is_coroutine_function(summarizer)
        summary = yield Ask(summarizer, arguments) if is_asynchronous else Work(partial(summarizer, *arguments))
    while True:
        prompt = assembly.compose(summary)
        left_out = {one.message_id for one in prompt.report.left_out if not one.partial}
        lacking = [one for one in found if type(one) is PartialMessage and one.id not in left_out]
        if not lacking:
            return prompt
        # Again with these: what was removed or edited since makes room for others, or needs it.
        now = dict(zip((one.id for one in lacking), (yield ReadContents(conversation_id, tuple(lacking))), strict=True))
        found = [message for one in found if (message := now.get(one.id, one)) is not None]
        assembly = Assembly(found, agent_id, agent_name, options)


def _checked(agent_id: object, agent_name: object, options: Any, summarizer: object) -> PromptOptions:
    check_text(agent_id, "agent_id", error=InvalidInputError)
    check_text(agent_name, "agent_name", optional=True, error=InvalidInputError)
    check_function(summarizer, "summarizer", "a function of messages", error=InvalidInputError)
    return prompt_options(options)


class Assembly:
    """Selects the messages for a prompt, without regard to the budget; `compose` builds the prompt.

    `older`: the turns that a summarizer replaces, together with the stored summaries.
    """

    def __init__(
        self, messages: Iterable[Message], agent_id: str, agent_name: str | None, options: PromptOptions
    ) -> None:
        self._options = options
        self._outside: list[LeftOut] = []
        #: By the index of the message.
        self._left_out: dict[int, LeftOut] = {}
        self._addressed: dict[int, Addressed] = {}
        loaded: list[Message] = []
        for message in messages:
            if options.scope is not None and message.scope != options.scope:  # a store has already filtered by scope
                self._outside.append(LeftOut(message.id, "scope"))
            elif message.status == "streaming":
                self._outside.append(LeftOut(message.id, "streaming"))
            else:
                loaded.append(message)
        loaded = loaded[-options.max_turns_to_load :]
        self._loaded = len(loaded)
        self._own_ids = own_ids = frozenset((agent_id, *options.agent_aliases))
        self._names = Names(loaded, own_ids, filter(None, (agent_id, agent_name, *options.agent_aliases)))
        every = turns_of(loaded, own_ids, self._left_out)
        self._summaries = [turn for turn in every if turn.is_summary]
        self._leading = [turn for turn in every if turn.leading and not turn.is_summary]
        turns = [turn for turn in every if not (turn.leading or turn.is_summary)]
        if options.time_window_minutes is not None:
            now = datetime.now(UTC) if options.now is None else cutoff(options.now)
            since = now - timedelta(minutes=options.time_window_minutes)

            def fits(turn: Turn) -> bool:
                return turn.is_pinned or (at := turn.newest.timestamp) is None or at > since

            turns = self._filter(turns, "time_window", fits)
        if options.addressed_only_mode:
            turns = self._filter_addressed(turns, Addressing(agent_id, agent_name, options))
        self.older, self._recent = _split(turns, options.rolling_summary_threshold)

    @property
    def to_summarize(self) -> tuple[list[Message], str | None]:
        """The arguments for a summarizer: the older messages as stored, and the text of the stored summaries."""
        texts = [read_summary(turn.sources[0]).strip() for turn in self._summaries]
        return [message for turn in self.older for message in turn.sources], "\n\n".join(filter(None, texts)) or None

    def compose(self, summary: object) -> AssembledPrompt:
        """Build the prompt. `summary` is the answer of the summarizer, if there was one. The budget decides about the
        older messages if it is blank. Raises InvalidInputError unless it is text or None."""
        options = self._options
        instructions = [system(options.system_prompt, id="system_prompt")] if options.system_prompt else []
        instructions += [message for turn in self._leading for message in self._project(turn)]
        summaries, turns = self._summarized(summary)
        counter = options.token_counter
        count = message_tokens if counter is None else partial(message_tokens, counter=_checked_counter(counter))
        system_tokens = sum(map(count, instructions))
        summary_tokens = sum(map(count, summaries))
        tokens = system_tokens + summary_tokens
        chosen: dict[int, tuple[Message, ...]] = {}
        newest_first = sorted(turns, key=lambda turn: turn.last, reverse=True)
        newest = next(filter(self._project, newest_first), None)
        newest_first.sort(key=lambda turn: (turn is not newest, not turn.is_pinned))
        for number, turn in enumerate(newest_first):
            shown = self._project(turn)
            if not shown:
                continue
            size = count(shown[0]) if len(shown) == 1 else sum(map(count, shown))
            full = options.token_budget is not None and tokens + size > options.token_budget
            if chosen and full and not turn.is_pinned:
                for other in newest_first[number:]:
                    self._leave_out(other, "budget")
                break
            tokens += size
            chosen[turn.first] = shown
        return AssembledPrompt(
            (*instructions, *summaries, *(message for first in sorted(chosen) for message in chosen[first])),
            PromptReport(
                self._loaded,
                (*self._outside, *(self._left_out[index] for index in sorted(self._left_out))),
                tokens,
                options.token_budget,
                system_tokens,
                summary_tokens,
                tuple(self._addressed[index] for index in sorted(self._addressed)),
            ),
        )

    def _summarized(self, summary: object) -> tuple[list[Message], list[Turn]]:
        """The summaries of the prompt, and its other turns."""
        if inspect.iscoroutine(summary):
            summary.close()
            raise InvalidInputError(_NEEDS_LOOP)
        if summary is not None and not isinstance(summary, str):
            raise InvalidInputError(f"the summarizer must return text or None, not {type(summary).__name__}")
        if text := without_frame(summary or ""):
            for turn in (*self._summaries, *self.older):
                self._leave_out(turn, "summarized")
            return [system(summary_text(text), id="summary", metadata={"is_summary": True})], self._recent
        summaries = self._filter(self._summaries, "empty", lambda turn: bool(turn.shown[0].text.strip()))
        return [as_summary(turn.shown[0], self._names) for turn in summaries], self.older + self._recent

    def _filter_addressed(self, turns: list[Turn], addressing: Addressing) -> list[Turn]:
        others = {
            None if (who := turn.sources[0].participant) is None else (who.kind, who.id)
            for turn in turns
            if turn.voice is Voice.USER or turn.voice is Voice.OTHER
        }

        def addressed(turn: Turn) -> bool:
            reason: AddressedReason | None = "summary"
            if not turn.is_summary:
                reason = addressing.reason(turn, len(others) == 1) or ("pinned" if turn.is_pinned else None)
            if reason is not None:
                for index, message in zip(turn.indices, turn.sources, strict=True):
                    self._addressed[index] = Addressed(message.id, reason)
            return reason is not None

        self._summaries = self._filter(self._summaries, "not_addressed", addressed)
        self._leading = self._filter(self._leading, "not_addressed", addressed)
        return self._filter(turns, "not_addressed", addressed)

    def _filter(self, turns: list[Turn], reason: LeftOutReason, fits: Callable[[Turn], bool]) -> list[Turn]:
        kept = []
        for turn in turns:
            if fits(turn):
                kept.append(turn)
            else:
                self._leave_out(turn, reason)
        return kept

    def _leave_out(self, turn: Turn, reason: LeftOutReason) -> None:
        for index, message in zip(turn.indices, turn.sources, strict=True):
            self._left_out[index] = LeftOut(message.id, reason)

    def _project(self, turn: Turn) -> tuple[Message, ...]:
        shown = project_turn(turn, self._own_ids, self._names)
        if not shown:
            self._leave_out(turn, "empty")
        return shown


def _checked_counter(counter: TokenCounter) -> TokenCounter:
    def count(text: str) -> int:
        tokens = counter(text)
        check_integer(tokens, "the result of token_counter", error=InvalidInputError)
        return tokens

    return count


def _split(turns: list[Turn], threshold: int | None) -> tuple[list[Turn], list[Turn]]:
    """Split into older and recent turns. System and pinned messages are neither summarized nor counted."""
    said = [turn for turn in turns if turn.voice is not Voice.SYSTEM and not turn.is_pinned]
    if threshold is None or sum(len(turn.sources) for turn in said) <= threshold:
        return [], turns
    recent: set[int] = set()
    room = threshold
    for turn in sorted(said, key=lambda turn: turn.last, reverse=True):
        room -= len(turn.sources)
        if room < 0 and recent:
            break
        recent.add(turn.first)
    older = {turn.first for turn in said} - recent
    return [turn for turn in turns if turn.first in older], [turn for turn in turns if turn.first not in older]
