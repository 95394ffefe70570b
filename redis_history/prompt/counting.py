"""Count the tokens of messages with the caller's counter."""

from __future__ import annotations

from collections.abc import Callable

from redis_history._validation import check_integer
from redis_history.errors import InvalidInputError
from redis_history.model import Message, TextPart
from redis_history.tokens import count_characters, estimate_tokens, texts

__all__ = ["Count", "text_of"]


class Count:
    """Counts the tokens of a message: its text with `counter`, or an estimate from its characters."""

    def __init__(self, counter: Callable[[str], int] | None) -> None:
        self._counter = counter

    def __call__(self, message: Message) -> int:
        if self._counter is None:
            parts = message.parts
            if len(parts) == 1 and type(parts[0]) is TextPart:  # nearly always
                return estimate_tokens(len(parts[0].text))
            return estimate_tokens(count_characters(message))
        tokens = self._counter(text_of(message))
        check_integer(tokens, "the result of token_counter", error=InvalidInputError)
        return tokens


def text_of(message: Message) -> str:
    """The text of a message that a model reads, the same that `count_characters` counts."""
    return "\n".join(filter(None, texts(message)))
