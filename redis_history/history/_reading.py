"""What can be asked of a history."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from redis_history import json_form
from redis_history._validation import check_function
from redis_history.history import selectors
from redis_history.model import Message, Part
from redis_history.model.parts import TextPart, ToolResultPart
from redis_history.tokens import TokenCounter, count_characters, message_tokens

__all__ = ["Reading", "Tokens"]


class Tokens:
    """Tokens of messages, each counted once: a tokenizer may be slow."""

    def __init__(self, counter: TokenCounter | None) -> None:
        check_function(counter, "token_counter", "a function from a str to an int")
        self.counter = counter
        self._known: dict[str, tuple[tuple[Part, ...], int]] = {}

    def of(self, message: Message) -> int:
        known = self._known.get(message.id)
        if known is not None and (known[0] is message.parts or known[0] == message.parts):
            return known[1]
        tokens = message_tokens(message, self.counter)
        self._known[message.id] = (message.parts, tokens)
        return tokens

    def shown(self, message: Message) -> int:
        """Of a message that may have the id of an entry and other content: not remembered."""
        known = self._known.get(message.id)
        if known is not None and known[0] is message.parts:
            return known[1]
        return message_tokens(message, self.counter)

    def keep(self, messages: list[Message]) -> None:
        """Forget all others, if they have become many."""
        if len(self._known) > 2 * len(messages) + 100:
            self._known = {one.id: self._known[one.id] for one in messages if one.id in self._known}


class Reading:
    """The part of a history that changes nothing. Selectors read what `get_entries` gives."""

    _tokens: Tokens

    def get_snapshot(self) -> tuple[Message, ...]:
        raise NotImplementedError

    def get_entries(self) -> list[Message]:
        raise NotImplementedError

    @property
    def entries(self) -> list[Message]:
        """All entries, oldest first, as they were added: no plugin has changed them. A new list each time."""
        return list(self.get_snapshot())

    def __len__(self) -> int:
        return len(self.get_snapshot())

    def __iter__(self) -> Iterator[Message]:
        return iter(self.get_snapshot())

    def __bool__(self) -> bool:
        return True  # an empty history is a history

    @property
    def size(self) -> int:
        """Characters of all entries: texts, reasoning, names and inputs of tools, results, names of attachments."""
        return sum(map(count_characters, self.get_snapshot()))

    @property
    def total_estimated_tokens(self) -> int:
        """Tokens of all entries, by `token_counter`."""
        return sum(map(self._tokens.of, self.get_snapshot()))

    def count_tokens(self, message: Message) -> int:
        """Tokens of a message, by `token_counter`."""
        return self._tokens.shown(message)

    def last_entry(self) -> Message | None:
        """The newest entry, or None."""
        entries = self.get_snapshot()
        return entries[-1] if entries else None

    def get_system_message(self) -> str | None:
        """The text of the first system entry, or None."""
        for entry in self.get_snapshot():
            if entry.role == "system":
                return "\n".join(part.text for part in entry.parts if isinstance(part, TextPart))
        return None

    def get_messages_without_system(self) -> list[Message]:
        """What `get_entries` gives, without system entries."""
        return [entry for entry in self.get_entries() if entry.role != "system"]

    def get_tool_result(self, tool_use_id: str, occurrence: int | None = None) -> Any:
        """The content of a tool result as it was added, whatever plugins show; None if there is none.

        Where an id came back, the newest; or which `occurrence` of it, from 1.
        """
        found = None
        number = 0
        for entry in self.get_snapshot():
            for part in entry.parts:
                if type(part) is ToolResultPart and part.tool_use_id == tool_use_id:
                    number += 1
                    if occurrence in (None, number):
                        found = part.content
        return found

    def to_json(self) -> str:
        """All entries as JSON text, without loss; see `from_json`."""
        return json_form.dump_messages(self.get_snapshot())

    def last_user(self) -> Message | None:
        """The newest message of role user that is more than results of tools, or None."""
        return selectors.last_user(self.get_entries())

    def last_assistant(self) -> Message | None:
        """The newest message of role assistant, or None."""
        return selectors.last_assistant(self.get_entries())

    def range(self, from_end: int, to_end: int = 0) -> list[Message]:
        """The `from_end` newest messages without the `to_end` newest, oldest first.

        Raises InvalidInputError unless from_end > to_end >= 0.
        """
        return selectors.range_from_end(self.get_entries(), from_end, to_end)

    def recent(self, count: int) -> list[Message]:
        """The `count` newest messages, oldest first, without results whose call is not among them."""
        return selectors.recent(self.get_entries(), count)

    def by_tokens(self, max_tokens: int) -> list[Message]:
        """The newest messages that fit into so many tokens, oldest first. No tool result without its call."""
        return selectors.by_tokens(self.get_entries(), max_tokens, self._tokens.shown)

    def recent_text(self, count: int) -> str:
        """The `count` newest messages as lines: `User: …`, `File: report.pdf`, `Assistant: …`."""
        return selectors.recent_text(self.get_entries(), count)
