"""From the messages of a conversation to a prompt of one agent. Pure: the same messages give the same prompt.

In two steps, because between them a summarizer may be asked: `select` says what could be in the prompt, `compose` makes
it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter

from msgspec import Struct

from redis_history._time import from_microseconds, to_microseconds
from redis_history.errors import InvalidInputError
from redis_history.model import Message, system, user
from redis_history.prompt.addressing import Addressing
from redis_history.prompt.counting import Count
from redis_history.prompt.options import PromptOptions
from redis_history.prompt.projection import SUMMARY_START, Voice, as_summary, project, with_role
from redis_history.prompt.report import AssembledPrompt, LeftOut, LeftOutReason, PromptReport
from redis_history.prompt.turns import Turn, turns_of

__all__ = ["Selection", "compose", "select", "summary_message"]


class Selection(Struct):
    """What could be in a prompt, and what not (`outside` the scope; `left_out`, by index).

    `older` are the turns that a summarizer is to replace, together with the stored `summaries`.
    """

    loaded: int
    leading: list[Turn]
    summaries: list[Turn]
    older: list[Turn]
    recent: list[Turn]
    outside: list[LeftOut]
    left_out: dict[int, LeftOut]

    @property
    def to_summarise(self) -> list[Message]:
        """The earlier summaries first, then the older messages, as they are stored; none if nothing is to be."""
        if not self.older:
            return []
        turns = [*self.summaries, *self.older]
        return [message for turn in turns for message in turn.sources]


def select(messages: Sequence[Message], agent_id: str, agent_name: str | None, options: PromptOptions) -> Selection:
    """Everything up to the question which of it fits into the budget."""
    outside: list[LeftOut] = []
    if options.scope is not None:  # a store has seen to it already
        outside = [LeftOut(message.id, "scope") for message in messages if message.scope != options.scope]
        messages = [message for message in messages if message.scope == options.scope]
    messages = messages[-options.max_turns_to_load :]
    left_out: dict[int, LeftOut] = {}
    own_ids = frozenset((agent_id, *options.agent_aliases))
    leading: list[Turn] = []
    summaries: list[Turn] = []
    turns: list[Turn] = []
    for turn in turns_of(messages, own_ids, left_out):
        if turn.sources[0].is_summary:
            summaries.append(turn)
        elif turn.leading:
            leading.append(turn)
        else:
            turns.append(turn)
    turns = _in_window(turns, options, left_out)
    if options.addressed_only_mode:
        turns = _addressed(turns, Addressing(agent_id, agent_name, options.agent_aliases), options, left_out)
    older, recent = _split(turns, options.rolling_summary_threshold)
    return Selection(len(messages), leading, summaries, older, recent, outside, left_out)


def compose(selection: Selection, summary: Message | None, options: PromptOptions) -> AssembledPrompt:
    """The prompt. With a `summary`, in place of the older turns and of the summaries there were."""
    left_out = selection.left_out
    count = Count(options.token_counter)
    instructions = [] if not options.system_prompt else [system(options.system_prompt, id="system_prompt")]
    instructions += [message for turn in selection.leading for message in _project(turn, left_out)]
    turns = selection.recent
    if summary is None:
        summaries = []
        for turn in selection.summaries:
            if turn.shown[0].text.strip():
                summaries.append(as_summary(turn.shown[0]))
            else:
                _leave(turn, "empty", left_out)
        turns = selection.older + turns
    else:
        summaries = [summary]
        for turn in [*selection.summaries, *selection.older]:
            _leave(turn, "summarised", left_out)
    system_tokens = sum(map(count, instructions))
    summary_tokens = sum(map(count, summaries))
    tokens = system_tokens + summary_tokens
    chosen: dict[int, tuple[Message, ...]] = {}
    newest_first = sorted(turns, key=attrgetter("last"), reverse=True)
    for place, turn in enumerate(newest_first):
        shown = _project(turn, left_out)
        if not shown:
            continue
        size = count(shown[0]) if len(shown) == 1 else sum(map(count, shown))
        if chosen and options.token_budget is not None and tokens + size > options.token_budget:
            for other in newest_first[place:]:
                _leave(other, "budget", left_out)
            break
        tokens += size
        chosen[turn.first] = shown
    return AssembledPrompt(
        (*instructions, *summaries, *(message for first in sorted(chosen) for message in chosen[first])),
        PromptReport(
            selection.loaded,
            (*selection.outside, *(left_out[index] for index in sorted(left_out))),
            tokens,
            options.token_budget,
            system_tokens,
            summary_tokens,
        ),
    )


def summary_message(made: object) -> Message | None:
    """What a summarizer gave: text, or a message. None if it is empty. Raises InvalidInputError for anything else."""
    if isinstance(made, Message):
        return as_summary(made) if made.text.strip() else None
    if made is None or (isinstance(made, str) and not made.strip()):
        return None
    if isinstance(made, str):
        return user(f"{SUMMARY_START} {made.strip()}]", id="summary", metadata={"is_summary": True})
    raise InvalidInputError(f"a summarizer returns text, a Message or None, not {type(made).__name__}")


def _in_window(turns: list[Turn], options: PromptOptions, left_out: dict[int, LeftOut]) -> list[Turn]:
    if options.time_window_minutes is None:
        return turns
    now = datetime.now(UTC) if options.now is None else from_microseconds(to_microseconds(options.now))
    since = now - timedelta(minutes=options.time_window_minutes)

    def fits(turn: Turn) -> bool:
        at = turn.sources[-1].timestamp
        return at is None or at >= since

    return _sifted(turns, fits, "time_window", left_out)


def _addressed(
    turns: list[Turn], agent: Addressing, options: PromptOptions, left_out: dict[int, LeftOut]
) -> list[Turn]:
    others = {
        None if (who := turn.sources[0].participant) is None else (who.kind, who.id)
        for turn in turns
        if turn.voice is Voice.USER or turn.voice is Voice.OTHER
    }
    alone = len(others) == 1

    def fits(turn: Turn) -> bool:
        if turn.voice is Voice.SELF or turn.voice is Voice.SYSTEM:
            return True
        message = turn.sources[0]
        if alone and message.scope is None and not message.mentions:
            return True  # two who talk with each other need no names
        if agent.addresses(message):
            return True
        return options.also_addressed is not None and bool(options.also_addressed(message))

    return _sifted(turns, fits, "not_addressed", left_out)


def _split(turns: list[Turn], threshold: int | None) -> tuple[list[Turn], list[Turn]]:
    """The older and the recent. Messages of the system are not summarised, and not counted."""
    said = [turn for turn in turns if turn.voice is not Voice.SYSTEM]
    if threshold is None or sum(len(turn.sources) for turn in said) <= threshold:
        return [], turns
    recent: set[int] = set()
    room = threshold
    for turn in sorted(said, key=attrgetter("last"), reverse=True):
        room -= len(turn.sources)
        if room < 0 and recent:
            break
        recent.add(turn.first)
    older = [turn for turn in said if turn.first not in recent]
    return older, [turn for turn in turns if turn.voice is Voice.SYSTEM or turn.first in recent]


def _project(turn: Turn, left_out: dict[int, LeftOut]) -> tuple[Message, ...]:
    first = project(turn.shown[0], turn.voice)
    if first is None:
        _leave(turn, "empty", left_out)
        return ()
    if len(turn.shown) == 1:
        return (first,)
    results = [one if one.role in ("tool", "user") else with_role(one, "tool") for one in turn.shown[1:]]
    return (first, *results)


def _sifted(
    turns: list[Turn], fits: Callable[[Turn], bool], reason: LeftOutReason, left_out: dict[int, LeftOut]
) -> list[Turn]:
    kept = []
    for turn in turns:
        if fits(turn):
            kept.append(turn)
        else:
            _leave(turn, reason, left_out)
    return kept


def _leave(turn: Turn, reason: LeftOutReason, left_out: dict[int, LeftOut]) -> None:
    if not turn.indices:
        left_out[turn.first] = LeftOut(turn.sources[0].id, reason)
    for index, message in zip(turn.indices, turn.sources, strict=False):
        left_out[index] = LeftOut(message.id, reason)
