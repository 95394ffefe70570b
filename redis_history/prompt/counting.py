"""Tokens of messages, as the caller counts them."""

from __future__ import annotations

from collections.abc import Callable

from redis_history.errors import InvalidInputError
from redis_history.model import Message, TextPart
from redis_history.tokens import count_characters, estimate_tokens, texts

__all__ = ["Count", "text_of"]


class Count:
    """How many tokens a message takes: of its text by `counter`, or estimated by its characters."""

    def __init__(self, counter: Callable[[str], int] | None) -> None:
        self._counter = counter

    def __call__(self, message: Message) -> int:
        if self._counter is None:
            parts = message.parts
            if len(parts) == 1 and type(parts[0]) is TextPart:  # nearly always
                return estimate_tokens(len(parts[0].text))
            return estimate_tokens(count_characters(message))
        tokens = self._counter(text_of(message))
        if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 0:
            raise InvalidInputError(f"the token_counter returns a number of tokens from 0, not {tokens!r}")
        return tokens


def text_of(message: Message) -> str:
    """All that a model reads of a message, as one text: what `count_characters` counts."""
    return "\n".join(filter(None, texts(message)))
