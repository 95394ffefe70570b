"""Whether a message is for an agent."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from redis_history.model import Message, TextPart
from redis_history.search.text import is_unspaced

__all__ = ["Addressing"]


class Addressing:
    """The names of an agent, and who addresses it by them.

    A message addresses it if it was said in a dm; if its `mentions` have the id, the name or an alias; or if its text
    has the name or an alias as words of their own, or the id after an @. Case, width and accents' spelling make no
    difference.
    """

    def __init__(self, agent_id: str, agent_name: str | None, aliases: Iterable[str]) -> None:
        names = [name for name in (agent_name, *aliases) if name]
        self._ids = {_plain(name) for name in (agent_id, *names)}
        # An id such as "1" stands in many texts without meaning the agent: it needs the @.
        self._spoken = tuple(dict.fromkeys([*map(_folded, names), "@" + _folded(agent_id)]))
        self._blanks = any(" " in name for name in self._spoken)

    def mentioned(self, message: Message) -> bool:
        """Whether its metadata say that this agent is meant."""
        return any(isinstance(one, str) and _plain(one) in self._ids for one in message.mentions)

    def named(self, text: str) -> bool:
        """Whether a text has one of the names."""
        folded = _folded(text) if self._blanks or not text.isascii() else text.casefold()
        for name in self._spoken:  # noqa: SIM110 -- as fast as can be: this runs for every message of a prompt
            if name in folded and _stands_alone(name, folded):
                return True
        return False

    def addresses(self, message: Message) -> bool:
        """Whether the message is for this agent, going by nothing but itself."""
        if message.scope == "dm" or ("mentions" in message.metadata and self.mentioned(message)):
            return True
        parts = message.parts
        return self.named(parts[0].text if len(parts) == 1 and type(parts[0]) is TextPart else message.text)


def _folded(text: str) -> str:
    text = text if text.isascii() else unicodedata.normalize("NFKC", text)
    folded = text.casefold()
    return " ".join(folded.split()) if "\n" in folded or "  " in folded or "\t" in folded else folded


def _plain(mention: str) -> str:
    """A mention without the signs that platforms put around it: `@ann`, `<@U123>`."""
    return _folded(mention.strip().strip("<>").lstrip("@!"))


def _stands_alone(name: str, text: str) -> bool:
    at = text.find(name)
    while at >= 0:
        end = at + len(name)
        before, after = text[:at][-2:], text[end : end + 2]
        if not (_joins(before[-1:], name[0]) or _joins(after[:1], name[-1])) and not (
            _hyphen(before[::-1]) or _hyphen(after)
        ):
            return True
        at = text.find(name, at + 1)
    return False


def _joins(neighbour: str, edge: str) -> bool:
    """Whether two characters belong to one word; in scripts without blanks between words that cannot be said."""
    return _is_letter(neighbour) and _is_letter(edge)


def _is_letter(character: str) -> bool:
    return (character.isalnum() or character == "_") and not is_unspaced(character)


def _hyphen(beside: str) -> bool:
    """Whether a hyphen joins it to another word, as in plan-b."""
    return len(beside) == 2 and beside[0] == "-" and _is_letter(beside[1])
