"""Decide whether a message is addressed to an agent."""

from __future__ import annotations

from collections.abc import Iterable

from redis_history._quoting import normalized
from redis_history._words import is_unspaced
from redis_history.model import Message, TextPart
from redis_history.prompt.report import AddressedReason

__all__ = ["Addressing"]


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
