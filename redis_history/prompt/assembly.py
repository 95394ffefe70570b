"""Assemble the prompt of one agent from messages. Pure: the same messages give the same prompt.

There are two steps, so that a summarizer can run between them: `select` chooses the candidates, `compose` builds the
prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import attrgetter

from msgspec import Struct

from redis_history._quoting import normalized
from redis_history._time import from_microseconds, to_microseconds
from redis_history._validation import check_integer
from redis_history._words import is_unspaced
from redis_history.compaction.summaries import read_summary, summary_text, without_frame
from redis_history.errors import InvalidInputError
from redis_history.model import Message, TextPart, system
from redis_history.prompt.options import (
    Addressed,
    AddressedReason,
    AssembledPrompt,
    LeftOut,
    LeftOutReason,
    PromptOptions,
    PromptReport,
)
from redis_history.prompt.projection import Names, Turn, Voice, as_summary, project, turns_of, with_hints, with_role
from redis_history.tokens import TokenCounter, message_tokens, texts


class Selection(Struct):
    """The candidates for a prompt, and the messages already left out (`outside` the scope, or in `left_out` by index).

    `older`: the turns that a summarizer replaces, together with the stored `summaries`. `addressed`: why a message is
    addressed to the agent, by index.
    """

    loaded: int
    leading: list[Turn]
    summaries: list[Turn]
    older: list[Turn]
    recent: list[Turn]
    outside: list[LeftOut]
    left_out: dict[int, LeftOut]
    addressed: dict[int, Addressed]
    names: Names

    @property
    def to_summarise(self) -> tuple[list[Message], str | None]:
        """The arguments for a summarizer: the older messages as stored, and the text of the stored summaries."""
        texts = [read_summary(turn.sources[0]).strip() for turn in self.summaries]
        return [message for turn in self.older for message in turn.sources], "\n\n".join(filter(None, texts)) or None


def select(messages: Sequence[Message], agent_id: str, agent_name: str | None, options: PromptOptions) -> Selection:
    """Choose the candidates for the prompt, without regard to the budget."""
    outside: list[LeftOut] = []
    if options.scope is not None:  # a store has already filtered by scope
        outside = [LeftOut(message.id, "scope") for message in messages if message.scope != options.scope]
        messages = [message for message in messages if message.scope == options.scope]
    outside += [LeftOut(message.id, "streaming") for message in messages if message.status == "streaming"]
    messages = [message for message in messages if message.status != "streaming"]
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
    addressed: dict[int, Addressed] = {}
    if options.addressed_only_mode:
        agent = Addressing(agent_id, agent_name, options.agent_aliases)
        leading = _addressed(leading, agent, options, left_out, addressed)
        turns = _addressed(turns, agent, options, left_out, addressed)
        for turn in summaries:
            _note(turn, "summary", addressed)
    older, recent = _split(turns, options.rolling_summary_threshold)
    names = Names(messages, own_ids, filter(None, (agent_id, agent_name, *options.agent_aliases)))
    return Selection(len(messages), leading, summaries, older, recent, outside, left_out, addressed, names)


def compose(selection: Selection, summary: Message | None, options: PromptOptions) -> AssembledPrompt:
    """Build the prompt. A `summary` replaces the older turns and the stored summaries."""
    left_out = selection.left_out
    count = partial(_tokens, counter=options.token_counter)
    instructions = [] if not options.system_prompt else [system(options.system_prompt, id="system_prompt")]
    instructions += [message for turn in selection.leading for message in _project(turn, selection.names, left_out)]
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
        shown = _project(turn, selection.names, left_out)
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
            tuple(selection.addressed[index] for index in sorted(selection.addressed)),
        ),
    )


def summary_message(text: object) -> Message | None:
    """The answer of a summarizer as a system message; None for None and blank text. Raises InvalidInputError unless it
    is text or None."""
    if text is None:
        return None
    if not isinstance(text, str):
        raise InvalidInputError(f"the summarizer must return text or None, not {type(text).__name__}")
    text = without_frame(text)
    return system(summary_text(text), id="summary", metadata={"is_summary": True}) if text else None


def _in_window(turns: list[Turn], options: PromptOptions, left_out: dict[int, LeftOut]) -> list[Turn]:
    if options.time_window_minutes is None:
        return turns
    now = datetime.now(UTC) if options.now is None else from_microseconds(to_microseconds(options.now))
    since = now - timedelta(minutes=options.time_window_minutes)

    def fits(turn: Turn) -> bool:
        at = turn.sources[-1].timestamp
        return at is None or at > since

    return _sifted(turns, fits, "time_window", left_out)


def _addressed(
    turns: list[Turn],
    agent: Addressing,
    options: PromptOptions,
    left_out: dict[int, LeftOut],
    addressed: dict[int, Addressed],
) -> list[Turn]:
    others = {
        None if (who := turn.sources[0].participant) is None else (who.kind, who.id)
        for turn in turns
        if turn.voice is Voice.USER or turn.voice is Voice.OTHER
    }
    alone = len(others) == 1

    def why(turn: Turn) -> AddressedReason | None:
        message = turn.sources[0]
        if turn.voice is Voice.SELF:
            return "own"
        if options.addressed_only_mode == "strict":
            if agent.mentioned(message):
                return "mention"
        elif turn.voice is Voice.SYSTEM:
            return "system"
        elif alone and message.scope is None and not message.mentions:
            return "two_party"  # with two participants, names are not needed
        elif reason := agent.why(message):
            return reason
        if options.also_addressed is not None and options.also_addressed(message):
            return "also_addressed"
        return None

    def fits(turn: Turn) -> bool:
        reason = why(turn)
        if reason is not None:
            _note(turn, reason, addressed)
        return reason is not None

    return _sifted(turns, fits, "not_addressed", left_out)


def _split(turns: list[Turn], threshold: int | None) -> tuple[list[Turn], list[Turn]]:
    """Split into older and recent turns. System messages are neither summarised nor counted."""
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


def _project(turn: Turn, names: Names, left_out: dict[int, LeftOut]) -> tuple[Message, ...]:
    first = project(turn.shown[0], turn.voice, names)
    if first is None:
        _leave(turn, "empty", left_out)
        return ()
    if len(turn.shown) == 1:
        return (first,)
    results = [with_hints(one if one.role in ("tool", "user") else with_role(one, "tool")) for one in turn.shown[1:]]
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


def _note(turn: Turn, reason: AddressedReason, addressed: dict[int, Addressed]) -> None:
    for index, message in zip(turn.indices or (turn.first,), turn.sources, strict=True):
        addressed[index] = Addressed(message.id, reason)


def _tokens(message: Message, counter: TokenCounter | None) -> int:
    """Tokens of a message: of its whole text by `counter`, or estimated."""
    if counter is None:
        return message_tokens(message)
    tokens = counter("\n".join(filter(None, texts(message))))
    check_integer(tokens, "the result of token_counter", error=InvalidInputError)
    return tokens


# Whether a message is addressed to an agent


class Addressing:
    """Recognises messages that are addressed to an agent.

    A message is addressed to it if its scope is `dm`, if its `mentions` contain the id, the name or an alias, or if its
    text contains the name or an alias as separate words, or the id after an @. Case, character width and Unicode
    normalization make no difference.
    """

    def __init__(self, agent_id: str, agent_name: str | None, aliases: Iterable[str]) -> None:
        names = [name for name in (agent_name, *aliases) if name]
        self._ids = {_plain(name) for name in (agent_id, *names)}
        # An id such as "1" is common in texts, so ids only match after an @.
        self._spoken = tuple(dict.fromkeys([*map(_folded, names), "@" + _folded(agent_id)]))
        self._blanks = any(" " in name for name in self._spoken)

    def mentioned(self, message: Message) -> bool:
        """Whether the message's metadata mentions this agent."""
        return any(isinstance(one, str) and _plain(one) in self._ids for one in message.mentions)

    def named(self, text: str) -> bool:
        """Whether a text contains a name of this agent."""
        folded = _folded(text) if self._blanks or not text.isascii() else text.casefold()
        for name in self._spoken:  # noqa: SIM110 -- faster, and it runs for every message of a prompt
            if name in folded and _stands_alone(name, folded):
                return True
        return False

    def why(self, message: Message) -> AddressedReason | None:
        """Why the message itself is addressed to this agent; None if it is not."""
        if "mentions" in message.metadata and self.mentioned(message):
            return "mention"
        if message.scope == "dm":
            return "dm"
        parts = message.parts
        text = parts[0].text if len(parts) == 1 and type(parts[0]) is TextPart else message.text
        return "named" if self.named(text) else None


def _folded(text: str) -> str:
    folded = normalized(text).casefold()
    return " ".join(folded.split()) if "\n" in folded or "  " in folded or "\t" in folded else folded


def _plain(mention: str) -> str:
    """A mention without the markup of platforms, such as `@ann` and `<@U123>`."""
    return _folded(mention.strip().strip("<>").lstrip("@!"))


def _stands_alone(name: str, text: str) -> bool:
    at = text.find(name)
    while at >= 0:
        end = at + len(name)
        before, after = text[max(0, at - 2) : at], text[end : end + 2]
        if not (_joins(before[-1:], name[0]) or _joins(after[:1], name[-1])) and not (
            _hyphen(before[::-1]) or _hyphen(after)
        ):
            return True
        at = text.find(name, at + 1)
    return False


def _joins(neighbour: str, edge: str) -> bool:
    """Whether two characters belong to one word. False in scripts that do not separate words by spaces."""
    return _is_letter(neighbour) and _is_letter(edge)


def _is_letter(character: str) -> bool:
    return (character.isalnum() or character == "_") and not is_unspaced(character)


def _hyphen(beside: str) -> bool:
    """Whether a hyphen joins the name to another word, as in plan-b."""
    return len(beside) == 2 and beside[0] == "-" and _is_letter(beside[1])
