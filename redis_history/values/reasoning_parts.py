"""Which reasoning belongs to which part of a message. Pure.

*Reasoning* belongs to the item after it in its message, and stays or goes with it. Parallel calls are one item here,
because Anthropic requires the reasoning before those that are left, as OpenAI does if they have ids. If a call with a
`signature` in its notes goes, the next call of its message gets it, because Gemini signs only the first of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from msgspec.structs import replace

from redis_history.values.message import Message
from redis_history.values.pairing import pairing
from redis_history.values.parts import Part, ReasoningPart, TextPart, ToolUsePart


def only_reasoning(message: Message) -> bool:
    """Whether a message consists only of reasoning, as when a model's reply is stored block by block. In a request it
    belongs into the next message of the agent."""
    if message.role != "assistant" or not message.parts or type(message.parts[0]) is not ReasoningPart:
        return False
    return all(type(part) is ReasoningPart or is_blank(part) for part in message.parts)


def has_reasoning(message: Message) -> bool:
    for part in message.parts:  # noqa: SIM110 -- half the time of any(), and this runs for every message of a prompt
        if type(part) is ReasoningPart:
            return True
    return False


def with_reasoning(message: Message, gone: Collection[int]) -> set[int]:
    """The indices of parts that go, and of the reasoning that belongs to them."""
    out = set(gone)
    parts = message.parts
    reasoning: list[int] = []
    for at, part in enumerate(parts) if gone else ():
        if type(part) is ReasoningPart:
            reasoning.append(at)
        elif reasoning and not is_blank(part):
            item = [at]  # parallel calls are one item
            while pairing(part).opens and item[-1] + 1 < len(parts) and pairing(parts[item[-1] + 1]).opens:
                item.append(item[-1] + 1)
            if out.issuperset(item):
                out.update(reasoning)
            reasoning = []
    return out


def last_reasoning(message: Message, gone: Collection[int]) -> set[int]:
    """The reasoning at the end of a message without anything after it."""
    found = set()
    for at in range(len(message.parts) - 1, -1, -1):
        part = message.parts[at]
        if type(part) is ReasoningPart and at not in gone:
            found.add(at)
        elif at not in gone and not is_blank(part):
            break
    return found


def is_blank(part: Part) -> bool:
    """Whether this is a text without content or data of the provider, such as Gemini's signatures. Anthropic rejects a
    blank text with its own data, too."""
    if type(part) is not TextPart or part.text.strip() or part.extra:
        return False
    return (part.provider_meta or {}).keys() <= {"anthropic"}


def without_parts(message: Message, gone: Collection[int]) -> tuple[Part, ...]:
    """The parts of a message that stay, with the signature of a call that goes on the next call of the message."""
    kept: list[Part] = []
    signatures: dict[str, Any] = {}
    for at, part in enumerate(message.parts):
        if type(part) is ToolUsePart:
            own = _signatures(part)
            if at in gone:
                signatures |= own
            elif signatures:
                meta = dict(part.provider_meta or {})
                for form, signature in (signatures | own).items():
                    meta[form] = {**(meta.get(form) or {}), "signature": signature}
                part, signatures = replace(part, provider_meta=meta), {}
        if at not in gone:
            kept.append(part)
    return tuple(kept)


def _signatures(part: ToolUsePart) -> dict[str, Any]:
    """The signatures in the notes of a call, by provider."""
    notes = (part.provider_meta or {}).items()
    return {form: note["signature"] for form, note in notes if isinstance(note, Mapping) and note.get("signature")}
