"""Turns of a conversation, and their view for one agent's model. Pure.

A turn is kept or left out as a whole: a tool call with its results.

| author | role | text |
|---|---|---|
| a user | user | "display name: …"; with the id if the name is ambiguous |
| this agent | assistant | unchanged, with tool calls, results and reasoning |
| another agent | user | "name (agent): …" |
| the system | system | unchanged |

As soon as one speaker has a name, every message with the role user begins with a name, and all its other lines begin
with "| ". So a text cannot begin a line like a speaker, whatever it contains. An attachment without a reference cannot
be sent, and is replaced by text such as "File: report.pdf".
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from enum import Enum, auto
from hashlib import sha256
from typing import Final

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from redis_history import values as model
from redis_history.agents.compaction.summaries import SUMMARY_START, summary_text
from redis_history.agents.prompt.options import LeftOut, LeftOutReason
from redis_history.formats._pairing import has_own_results, paired
from redis_history.values.pairing import in_pair, is_result, pairing
from redis_history.values.pairs import has_tools, pairs_of, unfit
from redis_history.values.quoting import file_hint, plain_name
from redis_history.values.reasoning_parts import has_reasoning, is_blank, only_reasoning, without_parts

#: Names of roles. A participant with such a name is always shown with its id.
_ROLES: Final = frozenset(("user", "human", "assistant", "ai", "agent", "system", "developer", "tool", "function"))
#: All characters that begin a line for `str.splitlines`.
_BREAK: Final = re.compile("\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_MARGIN: Final = "| "

_PRIVATE = (model.ToolUsePart, model.ToolResultPart, model.ReasoningPart)
#: Unknown parts of another agent belong to its model.
_OF_OTHERS = (*_PRIVATE, model.UnknownPart)


class Voice(Enum):
    """The author of a message, from the view of one agent."""

    USER = auto()
    SELF = auto()
    OTHER = auto()
    SYSTEM = auto()


def voice_of(message: model.Message, own_ids: frozenset[str]) -> Voice:
    """The voice of a message, from its participant; without a participant, from its role."""
    role = message.role
    if role == "system":
        return Voice.SYSTEM
    who = message.participant
    if who is not None:
        if who.kind == "agent":
            return Voice.SELF if who.id in own_ids else Voice.OTHER
        if who.kind == "user":
            return Voice.USER
    return Voice.SELF if role == "assistant" else Voice.USER


class Names:
    """Unambiguous labels for the speakers of a prompt, and texts that cannot be taken for a label.

    `own` are the names of the agent that reads the prompt.
    """

    def __init__(self, messages: Iterable[model.Message], own_ids: frozenset[str], own: Iterable[str]) -> None:
        taken: dict[str, set[tuple[str, str]]] = {_folded(name): {("", "")} for name in (*_ROLES, *own)}
        shown: dict[tuple[str, str, str | None], str] = {}
        for message in messages:
            who = message.participant
            if who is None or (key := (who.kind, who.id, who.display_name)) in shown:
                continue
            voice = voice_of(message, own_ids)
            if voice is Voice.USER or voice is Voice.OTHER:
                shown[key] = _shown_name(who, voice)
                taken.setdefault(_folded(shown[key]), set()).add((who.kind, who.id))
        # Letters of other alphabets may look like Latin ones, so next to Latin names they do not identify a
        # participant.
        latin = any(map(_is_latin, shown.values()))
        self._labels = {
            key: f"{name}: "
            if len(taken[_folded(name)]) == 1 and (_is_latin(name) or not latin)
            else f"{name} [{_shown_id(key[1])}]: "
            for key, name in shown.items()
        }

    def label(self, message: model.Message) -> str:
        """The beginning of the text of a message. Empty if no speaker of the prompt has a name."""
        if not self._labels:
            return ""
        who = message.participant
        if who is None:
            return "Tool: " if message.role == "tool" else "User: "
        return self._labels[who.kind, who.id, who.display_name]

    def within(self, text: str) -> str:
        """A text with the margin at the beginning of each line but the first."""
        return _BREAK.sub(lambda found: found[0] + _MARGIN, text) if self._labels else text


def _shown_name(who: model.Participant, voice: Voice) -> str:
    name = plain_name(who.display_name or "") or plain_name(who.id) or who.kind
    return f"{name} (agent)" if voice is Voice.OTHER else name


def _shown_id(identity: str) -> str:
    """An id, with a digest if some of it cannot be shown."""
    plain = plain_name(identity)
    return plain if plain == identity else f"{plain[:40]} {sha256(identity.encode()).hexdigest()[:16]}".strip()


def _folded(name: str) -> str:
    """A name without case, accents, width, blanks and punctuation."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKD", plain_name(name).casefold())))


def _is_latin(name: str) -> bool:
    return _folded(name).isascii()


def project_turn(turn: Turn, own_ids: frozenset[str], names: Names) -> tuple[model.Message, ...]:
    """The messages of a turn in the view of this agent's model; empty if the turn is without content for the model."""
    first = _project(turn.shown[0], turn.voice, names)
    if first is None:
        return ()
    results = [_project_result(one, voice_of(one, own_ids), names) for one in turn.shown[1:]]
    if has_own_results(first) or not all(_only_answers(one.parts) for one in results):
        return tuple(paired([first, *results]))
    return (first, *results)


def _project_result(message: model.Message, voice: Voice, names: Names) -> model.Message:
    """A message with results of calls. Other parts of it are shown to the model in a message of the user, unless the
    model wrote them, or its provider: results of tools that it runs itself."""
    message = _with_hints(message)
    said = voice is Voice.USER or voice is Voice.OTHER
    parts = _labeled(message, message.parts, names) if said else message.parts
    own = message.role == "assistant" and not said and not _only_answers(parts)
    return _changed(message, parts, None if own or message.role == "user" else "tool")


def _only_answers(parts: Iterable[model.Part]) -> bool:
    """Whether these are results, but not of tools that the model's provider runs itself."""
    return all(is_result(part) and not pairing(part).hosted for part in parts)


def _project(message: model.Message, voice: Voice, names: Names) -> model.Message | None:
    message = _with_hints(message)
    if voice is Voice.SYSTEM or voice is Voice.SELF:
        if not _readable(message.parts):
            return None
        return message if voice is Voice.SYSTEM else _changed(message, message.parts, "assistant")
    hidden = _PRIVATE if voice is Voice.USER else _OF_OTHERS
    parts = [part for part in message.parts if type(part) not in hidden]
    if not _readable(parts):
        return None
    return _changed(message, _labeled(message, parts, names, foreign=voice is Voice.OTHER), "user")


def _labeled(
    message: model.Message, parts: Iterable[model.Part], names: Names, *, foreign: bool = False
) -> tuple[model.Part, ...]:
    """The parts, with the label of the speaker before the first text. `foreign`: the provider's data in texts belongs
    to the model of another agent."""
    start = label = names.label(message)
    shown: list[model.Part] = []
    for part in parts:
        if type(part) is model.TextPart:
            text = start + names.within(part.text)
            start = label and _MARGIN
            if foreign or (part.provider_meta is None and part.extra is None):
                part = model.TextPart(text)
            elif text != part.text:
                part = replace(part, text=text)
        shown.append(part)
    if start == label and label and not all(map(is_result, shown)):  # no text
        shown.insert(0, model.TextPart(label.rstrip()))
    return tuple(shown)


def _readable(parts: Iterable[model.Part]) -> bool:
    return any(type(part) is not model.TextPart or part.text.strip() for part in parts)


def as_summary(message: model.Message, names: Names) -> model.Message:
    """A stored summary in its frame. A summary with role `system` stays unchanged."""
    if message.role == "system":
        return message
    text = message.text if message.text.startswith(SUMMARY_START) else summary_text(message.text)
    return _changed(message, (model.TextPart(names.within(text)),), "user")


def _with_hints(message: model.Message) -> model.Message:
    """The message with text in place of each attachment without a reference, because it cannot be sent, and without
    blank texts next to other parts, such as the line breaks that models write before a call: some APIs reject them."""
    parts = tuple(map(_hinted, message.parts))
    return _changed(message, parts if len(parts) < 2 else tuple(part for part in parts if not is_blank(part)))


def _hinted(part: model.Part) -> model.Part:
    if type(part) is not model.AttachmentPart or part.reference is not None:
        return part
    return model.TextPart(file_hint(part))


def _changed(message: model.Message, parts: tuple[model.Part, ...], role: model.Role | None = None) -> model.Message:
    """The message with these parts, and in another role without `provider_meta`, which belongs to the former role."""
    if parts == message.parts and (role is None or role == message.role):
        return message
    # `replace` would validate all fields again, which takes half the time of a prompt. They were validated when read.
    changed: model.Message = message.__copy__()  # type: ignore[attr-defined] # of every struct, for `copy.copy`
    force_setattr(changed, "parts", parts)
    if role is not None and role != message.role:
        force_setattr(changed, "role", role)
        force_setattr(changed, "provider_meta", {})
    return changed


# Turns


class Turn(Struct, gc=False):
    """Messages that stay together in a prompt: a call and its results, or one message.

    `sources`: the messages as stored, and `indices`: their indices. `shown`: the messages for the prompt before
    projection, with results directly after their call. `leading`: a system message before all other messages.
    """

    voice: Voice
    indices: tuple[int, ...]
    sources: tuple[model.Message, ...]
    shown: tuple[model.Message, ...]
    leading: bool = False
    is_summary: bool = False

    @property
    def first(self) -> int:
        return self.indices[0]

    @property
    def last(self) -> int:
        return max(self.indices)

    @property
    def newest(self) -> model.Message:
        return self.sources[-1]

    @property
    def is_pinned(self) -> bool:
        return any(message.metadata and message.is_pinned for message in self.sources)


def turns_of(messages: Sequence[model.Message], own_ids: frozenset[str], left_out: dict[int, LeftOut]) -> list[Turn]:
    """The turns, ordered by their first message. Adds messages that cannot be shown to `left_out`, by index."""
    turns: list[Turn] = []
    calls: _Calls | None = None
    leading = True
    reasoning: Turn | None = None  # for the next turn of this agent
    for index, message in enumerate(messages):
        voice = voice_of(message, own_ids)
        if message.metadata and message.is_summary:
            spoken = tuple(part for part in message.parts if not in_pair(part))
            turn = Turn(voice, (index,), (message,), (_changed(message, spoken),), is_summary=True)
        elif message.role == "tool" and not has_tools(message):
            left_out[index] = LeftOut(message.id, "pair")
            continue
        elif not _is_one_text(message) and (has_tools(message) or has_reasoning(message)):
            calls = calls or _Calls(messages, own_ids)
            found = calls.turn(index, voice, left_out)
            if found is None:
                continue
            turn = found
        else:
            turn = Turn(voice, (index,), (message,), (message,))
        leading = leading and (voice is Voice.SYSTEM or turn.is_summary)
        turn.leading = leading and voice is Voice.SYSTEM
        if voice is Voice.SELF and not turn.is_summary:
            if only_reasoning(turn.shown[0]):
                reasoning = turn if reasoning is None else _joined(reasoning, turn)
                continue
            if reasoning is not None and _readable(turn.shown[0].parts):
                turn = _joined(reasoning, turn)
            elif reasoning is not None:
                for at, one in zip(reasoning.indices, reasoning.sources, strict=True):
                    left_out[at] = LeftOut(one.id, "pair")
            reasoning = None
        turns.append(turn)
    return turns


def _is_one_text(message: model.Message) -> bool:
    """Whether this is a text, as most messages are. The other checks of a message take longer."""
    return len(message.parts) == 1 and type(message.parts[0]) is model.TextPart


def _joined(reasoning: Turn, turn: Turn) -> Turn:
    """A turn with the reasoning before it, which was stored as a separate message."""
    first, *rest = turn.shown
    turn.shown = (_changed(first, reasoning.shown[0].parts + first.parts), *rest)
    turn.indices = reasoning.indices + turn.indices
    turn.sources = reasoning.sources + turn.sources
    return turn


class _Calls:
    """The turns of messages with calls, results or reasoning."""

    def __init__(self, messages: Sequence[model.Message], own_ids: frozenset[str]) -> None:
        self._messages = messages
        self._own_ids = own_ids
        self._pairs = pairs_of(messages)
        self._unfit = unfit(messages, self._pairs)
        self._known: dict[int, tuple[list[int], list[int], LeftOutReason | None]] = {}

    def turn(self, index: int, voice: Voice, left_out: dict[int, LeftOut]) -> Turn | None:
        """The turn that begins with a message, or None if a turn does not begin there."""
        message = self._messages[index]
        shown, earlier, reason = self._shown(index)
        own = [at for at in shown if at not in earlier] if earlier else shown
        calls = any((index, at) in self._pairs.opening for at in own)
        begins = index not in self._pairs.going_on and (calls or (bool(own) and not earlier and message.role != "tool"))
        if reason is not None:
            left_out[index] = LeftOut(message.id, reason, partial=begins or bool(earlier))
        if not begins:
            return None
        turn = Turn(voice, (index,), (message,), (self._with(index, own),))
        if calls:
            self._add_results(turn, index)
        return turn

    def _shown(self, index: int) -> tuple[list[int], list[int], LeftOutReason | None]:
        """The parts of a message that this agent's model may see, those of them that answer an earlier message, and so
        are shown with it, and why others are left out."""
        if (known := self._known.get(index)) is not None:
            return known
        message, gone, pairs = self._messages[index], self._unfit.get(index, ()), self._pairs
        voice = voice_of(message, self._own_ids)
        shown: list[int] = []
        earlier: list[int] = []
        reason: LeftOutReason | None = None
        for at in range(len(message.parts)):
            place = (index, at)
            call = pairs.call_of.get(place)
            if call is None:
                is_of_other = place in pairs.opening and voice is not Voice.SELF
            else:
                is_of_other = voice_of(self._messages[call[0]], self._own_ids) is not Voice.SELF
            if is_of_other:
                reason = "other_agent_tools"
            elif at in gone:
                reason = "pair"
            else:
                shown.append(at)
                if call is not None and call[0] != index:
                    earlier.append(at)
        self._known[index] = shown, earlier, reason
        return shown, earlier, reason

    def _with(self, index: int, shown: Collection[int]) -> model.Message:
        """A message with these of its parts."""
        message = self._messages[index]
        if len(shown) == len(message.parts):
            return message
        return _changed(message, without_parts(message, set(range(len(message.parts))).difference(shown)))

    def _add_results(self, turn: Turn, called: int) -> None:
        """Add the results of the calls of a message to its turn, and the calls made by code in the message."""
        pairs = self._pairs
        by_message: dict[int, set[int]] = {}
        for index, at in pairs.results.get(called, ()):
            by_message.setdefault(index, set()).add(at)
        for index, results in by_message.items():
            message = self._messages[index]
            shown, earlier, _ = self._shown(index)
            results.intersection_update(shown)
            if index in turn.indices or not results:
                continue
            if index not in pairs.going_on and len(shown) > len(results):
                # Other parts of the message go with its last result, unless the message also calls tools.
                last = earlier[-1] in results
                rest = last and pairs.opening.isdisjoint((index, at) for at in shown)
                shown = [at for at in shown if at in results or (rest and (index, at) not in pairs.call_of)]
            turn.indices = (*turn.indices, index)
            turn.sources = (*turn.sources, message)
            turn.shown = (*turn.shown, self._with(index, shown))
            if index in pairs.going_on:
                self._add_results(turn, index)
