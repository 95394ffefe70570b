"""Messages as one agent's model is to read them. Pure.

| who wrote it | role | text |
|---|---|---|
| a user | user | "display name: …" |
| this agent | assistant | as it is; tool calls, results and reasoning stay as they are |
| another agent | user | "name (agent): …" |
| the system | system | as it is |
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from typing import Any

from msgspec.structs import force_setattr, replace

from redis_history.model import (
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

__all__ = ["SUMMARY_START", "Voice", "as_summary", "project", "voice_of", "with_parts", "with_role"]

SUMMARY_START = "[Earlier conversation summary:"

#: Of a display name so many characters are shown: it is what users chose, and stands before everything they say.
_MAX_NAME = 80

_PRIVATE = (ToolUsePart, ToolResultPart, ReasoningPart)


class Voice(Enum):
    """Who speaks, seen by one agent."""

    USER = auto()
    SELF = auto()
    OTHER = auto()
    SYSTEM = auto()


def voice_of(message: Message, own_ids: frozenset[str]) -> Voice:
    """The participant decides; of a message without one, the role."""
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


def project(message: Message, voice: Voice) -> Message | None:
    """The message as this agent's model reads it; None if there is nothing to read."""
    if voice is Voice.SYSTEM or voice is Voice.SELF:
        if not _readable(message.parts):
            return None
        if voice is Voice.SYSTEM or message.role == "assistant":
            return message
        return _changed(message, "assistant", message.parts, {})
    prefix = _prefix(message.participant, voice)
    parts = message.parts
    if len(parts) == 1 and type(only := parts[0]) is TextPart and only.provider_meta is None and only.extra is None:
        if not only.text or only.text.isspace():
            return None
        shown: tuple[Part, ...] = (TextPart(prefix + only.text),) if prefix else parts
    else:
        kept = [part for part in parts if type(part) not in _PRIVATE]
        if voice is Voice.OTHER:
            # What a provider noted about them belongs to the other agent's model: here they are a user's words.
            kept = [TextPart(part.text) if type(part) is TextPart else part for part in kept]
            kept = [part for part in kept if type(part) is not UnknownPart]
        if not _readable(kept):
            return None
        shown = _prefixed(kept, prefix)
    return _changed(message, "user", shown, message.provider_meta if message.role == "user" else {})


def as_summary(message: Message) -> Message:
    """A stored summary, with the words that say what it is. One by the system stays as it is."""
    if message.role == "system" or message.text.startswith(SUMMARY_START):
        return message
    return _changed(message, "user", (TextPart(f"{SUMMARY_START} {message.text}]"),), {})


def with_parts(message: Message, parts: Iterable[Part]) -> Message:
    """The message with some of its parts."""
    return _changed(message, message.role, tuple(parts), message.provider_meta)


def with_role(message: Message, role: Role) -> Message:
    """The message in another role."""
    return _changed(message, role, message.parts, {})


def _changed(message: Message, role: Role, parts: tuple[Part, ...], meta: dict[str, Any]) -> Message:
    if role == message.role and parts is message.parts and meta is message.provider_meta:
        return message
    # Not `replace`: it checks all fields again, which is half the cost of a prompt, and they were checked when read.
    changed: Message = message.__copy__()  # type: ignore[attr-defined] # of every struct, for `copy.copy`
    force_setattr(changed, "parts", parts)
    if role != message.role:
        force_setattr(changed, "role", role)
    if meta is not message.provider_meta:
        force_setattr(changed, "provider_meta", meta)
    return changed


def _prefixed(parts: list[Part], prefix: str) -> tuple[Part, ...]:
    if not prefix:
        return tuple(parts)
    for at, part in enumerate(parts):
        if isinstance(part, TextPart):
            return (*parts[:at], replace(part, text=prefix + part.text), *parts[at + 1 :])
    return (TextPart(prefix.rstrip()), *parts)


def _readable(parts: Iterable[Part]) -> bool:
    return any(type(part) is not TextPart or (part.text and not part.text.isspace()) for part in parts)


def _prefix(who: Participant | None, voice: Voice) -> str:
    if who is None:
        return "An agent (agent): " if voice is Voice.OTHER else ""
    name = who.display_name or who.id
    if len(name) > _MAX_NAME or not name.isprintable():
        # A line break in a name would let its owner speak for others.
        name = " ".join("".join(letter if letter.isprintable() else " " for letter in name[:_MAX_NAME]).split())
    return f"{name} (agent): " if voice is Voice.OTHER else f"{name}: "
