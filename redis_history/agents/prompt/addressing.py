"""Whether a message is addressed to an agent. Pure."""

from __future__ import annotations

from redis_history.agents.prompt.options import AddressedReason, PromptOptions
from redis_history.agents.prompt.projection import Turn, Voice
from redis_history.store.search.words import is_unspaced
from redis_history.values import Message, TextPart
from redis_history.values.quoting import normalized


class Addressing:
    """Recognizes messages that are addressed to an agent.

    A message is addressed to it if its scope is `dm`, if its `mentions` contain the id, the name or an alias, or if its
    text contains the name or an alias as separate words, or the id after an @. Case, character width and Unicode
    normalization make no difference.
    """

    def __init__(self, agent_id: str, agent_name: str | None, options: PromptOptions) -> None:
        names = [name for name in (agent_name, *options.agent_aliases) if name]
        self._options = options
        self._ids = {_plain(name) for name in (agent_id, *names)}
        # An id such as "1" is common in texts, so ids only match after an @.
        self._spoken = tuple(dict.fromkeys([*map(_folded, names), "@" + _folded(agent_id)]))
        self._blanks = any(" " in name for name in self._spoken)

    def reason(self, turn: Turn, two_party: bool) -> AddressedReason | None:
        """Why a turn is addressed to this agent, or None. `two_party`: only one other participant talks."""
        message = turn.sources[0]
        if turn.voice is Voice.SELF:
            return "own"
        if self._options.addressed_only_mode == "strict":
            if self._mentioned(message):
                return "mention"
        elif turn.voice is Voice.SYSTEM:
            return "system"
        elif two_party and message.scope is None and not message.mentions:
            return "two_party"
        elif reason := self.why(message):
            return reason
        also_addressed = self._options.also_addressed
        return "also_addressed" if also_addressed is not None and also_addressed(message) else None

    def why(self, message: Message) -> AddressedReason | None:
        """Why the message itself is addressed to this agent, or None."""
        if "mentions" in message.metadata and self._mentioned(message):
            return "mention"
        if message.scope == "dm":
            return "dm"
        parts = message.parts
        text = parts[0].text if len(parts) == 1 and type(parts[0]) is TextPart else message.text
        return "named" if self.named(text) else None

    def named(self, text: str) -> bool:
        """Whether a text contains a name of this agent."""
        folded = _folded(text) if self._blanks or not text.isascii() else text.casefold()
        return any(name in folded and _stands_alone(name, folded) for name in self._spoken)

    def _mentioned(self, message: Message) -> bool:
        return any(isinstance(one, str) and _plain(one) in self._ids for one in message.mentions)


def _folded(text: str) -> str:
    folded = normalized(text).casefold()
    return " ".join(folded.split()) if "\n" in folded or "  " in folded or "\t" in folded else folded


def _plain(mention: str) -> str:
    """A mention without the markup of platforms, such as `@ann` and `<@U123>`."""
    return _folded(mention.strip().strip("<>").lstrip("@!"))


def _stands_alone(name: str, text: str) -> bool:
    """Whether the name is a word of the text, and not part of a word or of a compound such as plan-b."""
    at = text.find(name)
    while at >= 0:
        end = at + len(name)
        before, after = text[max(0, at - 2) : at], text[end : end + 2]
        in_word = (_is_letter(before[-1:]) and _is_letter(name[0])) or (_is_letter(after[:1]) and _is_letter(name[-1]))
        if not in_word and not _hyphenated(before[::-1]) and not _hyphenated(after):
            return True
        at = text.find(name, at + 1)
    return False


def _hyphenated(beside: str) -> bool:
    return len(beside) == 2 and beside[0] == "-" and _is_letter(beside[1])


def _is_letter(character: str) -> bool:
    """Whether it is part of a word. False in scripts that do not separate words by spaces."""
    return (character.isalnum() or character == "_") and not is_unspaced(character)
