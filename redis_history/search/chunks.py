"""How many texts are handled at once, so that no step of a long work takes the server long."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from redis_history.search.text import MAX_CHARACTERS

__all__ = ["chunk_length"]


def chunk_length(sizes: Iterable[int], most: int, most_characters: int) -> int:
    """How many of the next texts, of these numbers of characters, go together: `most`, and at least one, if any.

    Of each text only so many characters count as a search looks at.
    """
    length, left = 0, most_characters
    for size in islice(sizes, most):
        left -= min(size, MAX_CHARACTERS)
        if left < 0 and length:
            break
        length += 1
    return length
