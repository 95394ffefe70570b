"""Turns of a conversation, and their view for one agent's model. Pure.

A turn is kept or left out as a whole: a tool call with its results.

| author | role | text |
|---|---|---|
| a user | user | "display name: …"; with the id if the name is ambiguous |
| this agent | assistant | unchanged, with tool calls, results and reasoning |
| another agent | user | "name (agent): …" |
| the system | system | unchanged |

A line of text that begins with such a name is quoted: "> Bob: …". An attachment without a reference cannot be
sent, and is replaced by text such as "File: report.pdf".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import Final

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from redis_history._quoting import normalized, plain_name
from redis_history.compaction.summaries import SUMMARY_START, summary_text
from redis_history.model import (
    AttachmentPart,
    Message,
    Part,
    Participant,
    ReasoningPart,
    Role,
    TextPart,
    ToolResultPart,
    ToolUsePart,
    UnknownPart,
)
from redis_history.model.pairs import Pairs, has_tools, pairs_of
from redis_history.prompt.options import LeftOut, LeftOutReason

#: Names of roles. A participant with such a name is always shown with its id.
_ROLES: Final = frozenset(("user", "human", "assistant", "ai", "agent", "system", "developer", "tool", "function"))
_BREAKS: Final = "\n\r\v\f\x1c-\x1e\x85\u2028\u2029"
_BREAK: Final = re.compile(f"[{_BREAKS}]")
_COLONS: Final = ":\uff1a\ufe13\ufe55"
#: Text before a colon at the beginning of a line.
_SPEAKER: Final = re.compile(f"(?:^|(?<=[{_BREAKS}]))[^{_BREAKS}{_COLONS}]{{1,200}}(?=[{_COLONS}])")

_TOOLS = (ToolUsePart, ToolResultPart)
_PRIVATE = (*_TOOLS, ReasoningPart)
#: Unknown parts of another agent belong to its model.
_OF_OTHERS = (*_PRIVATE, UnknownPart)


class Voice(Enum):
    """The author of a message, from the view of one agent."""

    USER = auto()
    SELF = auto()
    OTHER = auto()
    SYSTEM = auto()


def voice_of(message: Message, own_ids: frozenset[str]) -> Voice:
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
    """Unambiguous names for the participants of a prompt.

    `own` are the names of the agent that reads the prompt.
    """

    def __init__(self, messages: Iterable[Message], own_ids: frozenset[str], own: Iterable[str]) -> None:
        taken: dict[str, set[tuple[str, str]]] = {_folded(name): {("", "")} for name in (*_ROLES, *own)}
        shown: dict[tuple[str, str, str | None], tuple[str, Voice]] = {}
        for message in messages:
            who = message.participant
            if who is None or (key := (who.kind, who.id, who.display_name)) in shown:
                continue
            voice = voice_of(message, own_ids)
            name = _shown_name(who, voice)
            shown[key] = name, voice
            taken.setdefault(_folded(name), set()).add((who.kind, who.id))
        self._prefixes: dict[tuple[str, str, str | None], str] = {}
        for one, (name, voice) in shown.items():
            if len(taken[_folded(name)]) > 1 and voice is not Voice.SELF:
                name = f"{name} [{plain_name(one[1])}]"
            self._prefixes[one] = f"{name}: "
        self._folded = frozenset((*taken, *(_folded(prefix[:-2]) for prefix in self._prefixes.values())))

    def prefix(self, who: Participant | None, voice: Voice) -> str:
        """The prefix for the text of a participant; may be empty."""
        if who is None:
            return "An agent (agent): " if voice is Voice.OTHER else ""
        return self._prefixes[who.kind, who.id, who.display_name]

    def quoted(self, text: str, *, follows: bool) -> str:
        """The text with "> " before each line that begins like a name. `follows`: the text comes after a prefix."""
        if not self._prefixes or (follows and _BREAK.search(text) is None):
            return text

        def quote(found: re.Match[str]) -> str:
            name = _folded(found[0])
            is_name = name in self._folded or name.endswith("(agent)")
            return f"> {found[0]}" if is_name and (found.start() or not follows) else found[0]

        return _SPEAKER.sub(quote, text)


def _shown_name(who: Participant, voice: Voice) -> str:
    name = plain_name(who.display_name or "") or plain_name(who.id) or who.kind
    if voice is Voice.OTHER:
        return f"{name} (agent)"
    if "(agent)" in _folded(name):
        name = " ".join(normalized(name).replace("(", " ").replace(")", " ").split())
    return name


def _folded(name: str) -> str:
    visible = "".join(letter for letter in normalized(name) if letter.isprintable() or letter.isspace())
    return " ".join(visible.casefold().split()).strip("*_`#\"' ")


def project_turn(turn: Turn, names: Names) -> tuple[Message, ...]:
    """The messages of a turn in the view of this agent's model; empty if nothing in it is for the model."""
    first = _project(turn.shown[0], turn.voice, names)
    if first is None:
        return ()
    if len(turn.shown) == 1:
        return (first,)
    results = [_with_hints(one) for one in turn.shown[1:]]
    return (first, *(one if one.role in ("tool", "user") else _changed(one, one.parts, "tool") for one in results))


def _project(message: Message, voice: Voice, names: Names) -> Message | None:
    message = _with_hints(message)
    if voice is Voice.SYSTEM or voice is Voice.SELF:
        if not _readable(message.parts):
            return None
        return message if voice is Voice.SYSTEM else _changed(message, message.parts, "assistant")
    hidden = _PRIVATE if voice is Voice.USER else _OF_OTHERS
    parts = [part for part in message.parts if type(part) not in hidden]
    if not _readable(parts):
        return None
    prefix = names.prefix(message.participant, voice)
    shown: list[Part] = []
    for part in parts:
        if type(part) is TextPart:
            text = prefix + names.quoted(part.text, follows=bool(prefix))
            prefix = ""
            if voice is Voice.OTHER or (part.provider_meta is None and part.extra is None):
                part = TextPart(text)  # provider_meta belongs to the model of the other agent
            elif text != part.text:
                part = replace(part, text=text)
        shown.append(part)
    return _changed(message, (TextPart(prefix.rstrip()), *shown) if prefix else tuple(shown), "user")


def _readable(parts: Iterable[Part]) -> bool:
    for part in parts:  # noqa: SIM110 -- faster than any(), and it runs for every message of a prompt
        if type(part) is not TextPart or (part.text and not part.text.isspace()):
            return True
    return False


def as_summary(message: Message) -> Message:
    """A stored summary in its frame. A summary with role `system` stays unchanged."""
    if message.role == "system" or message.text.startswith(SUMMARY_START):
        return message
    return _changed(message, (TextPart(summary_text(message.text)),), "user")


def _with_hints(message: Message) -> Message:
    """The message with each attachment that has no reference replaced by text, because it cannot be sent."""
    for part in message.parts:
        if type(part) is AttachmentPart and part.reference is None:
            return _changed(message, tuple(map(_hinted, message.parts)))
    return message


def _hinted(part: Part) -> Part:
    if type(part) is not AttachmentPart or part.reference is not None:
        return part
    # File names come from users. On one line and without a colon, a name cannot imitate a speaker.
    return TextPart(f"File: {plain_name(part.name or '') or part.modality or 'unnamed'}")


def _changed(message: Message, parts: tuple[Part, ...], role: Role | None = None) -> Message:
    """The message with these parts, and in another role without `provider_meta`, which belongs to the former role."""
    if parts == message.parts and (role is None or role == message.role):
        return message
    # `replace` would validate all fields again, which takes half the time of a prompt. They were validated when read.
    changed: Message = message.__copy__()  # type: ignore[attr-defined] # of every struct, for `copy.copy`
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
    sources: tuple[Message, ...]
    shown: tuple[Message, ...]
    leading: bool = False
    is_summary: bool = False

    @property
    def first(self) -> int:
        return self.indices[0]

    @property
    def last(self) -> int:
        return max(self.indices)

    @property
    def newest(self) -> Message:
        return self.sources[-1]


def turns_of(messages: Sequence[Message], own_ids: frozenset[str], left_out: dict[int, LeftOut]) -> list[Turn]:
    """The turns, ordered by their first message. Adds messages that cannot be shown to `left_out`, by index."""
    turns: list[Turn] = []
    pairs: Pairs | None = None
    leading = True
    for index, message in enumerate(messages):
        voice = voice_of(message, own_ids)
        if message.metadata and message.is_summary:
            spoken = tuple(part for part in message.parts if type(part) not in _TOOLS)
            turn = Turn(voice, (index,), (message,), (_changed(message, spoken),), is_summary=True)
        elif has_tools(message):
            pairs = pairs or pairs_of(messages)
            found = _tool_turn(messages, index, voice, pairs, left_out, own_ids)
            if found is None:
                continue
            turn = found
        elif message.role == "tool":  # a tool message without a result
            left_out[index] = LeftOut(message.id, "pair")
            continue
        else:
            turn = Turn(voice, (index,), (message,), (message,))
        leading = leading and (voice is Voice.SYSTEM or turn.is_summary)
        turn.leading = leading and voice is Voice.SYSTEM
        turns.append(turn)
    return turns


def _tool_turn(
    messages: Sequence[Message],
    index: int,
    voice: Voice,
    pairs: Pairs,
    left_out: dict[int, LeftOut],
    own_ids: frozenset[str],
) -> Turn | None:
    """The turn that begins with a message with tool calls or results; None if the message does not begin a turn."""
    message = messages[index]
    kept: list[Part] = []
    reason: LeftOutReason | None = None
    calls = answers = False  # answers: it has a result of an earlier call, which is shown with that call
    for at, part in enumerate(message.parts):
        if type(part) is ToolUsePart:
            if voice is Voice.SELF and (index, at) in pairs.answered:
                calls = True
                kept.append(part)
            else:
                reason = "pair" if voice is Voice.SELF else "other_agent_tools"
        elif type(part) is ToolResultPart:
            call = pairs.call_of.get((index, at))
            if call is None:
                reason = "pair"
            elif voice_of(messages[call[0]], own_ids) is not Voice.SELF:
                reason = "other_agent_tools"
            elif call[0] == index:  # the provider ran the tool itself
                kept.append(part)
            else:
                answers = True
        else:
            kept.append(part)
    begins_turn = calls or (bool(kept) and not answers and message.role != "tool")
    if reason is not None:
        left_out[index] = LeftOut(message.id, reason, partial=begins_turn or answers)
    if not begins_turn:
        return None
    turn = Turn(voice, (index,), (message,), (_changed(message, tuple(kept)),))
    if calls:
        _add_results(turn, messages, pairs)
    return turn


def _add_results(turn: Turn, messages: Sequence[Message], pairs: Pairs) -> None:
    by_message: dict[int, set[int]] = {}
    for index, at in pairs.results[turn.first]:
        if index != turn.first:
            by_message.setdefault(index, set()).add(at)
    for index, results in by_message.items():
        message = messages[index]
        # Other parts of the message go with its last result, unless the message also calls tools.
        last = max(at for at in range(len(message.parts)) if (index, at) in pairs.call_of) in results
        rest = last and not any((index, at) in pairs.answered for at in range(len(message.parts)))
        parts = [part for at, part in enumerate(message.parts) if at in results or (rest and type(part) not in _TOOLS)]
        turn.indices = (*turn.indices, index)
        turn.sources = (*turn.sources, message)
        turn.shown = (*turn.shown, _changed(message, tuple(parts)))
