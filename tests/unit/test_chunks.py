"""How many texts are handled at once."""

from __future__ import annotations

import pytest

from redis_history.search.text import MAX_CHARACTERS, chunk_length


@pytest.mark.parametrize(
    ("sizes", "length"),
    [
        ([], 0),
        ([5, 5, 5], 2),
        ([5, 6], 1),
        ([1, 1, 1, 1], 3),
        ([11], 1),  # at least one, or the work would never end
        ([0, 11], 1),
    ],
)
def test_what_goes_together(sizes: list[int], length: int) -> None:
    assert chunk_length(iter(sizes), 3, 10) == length


def test_of_a_long_text_only_what_a_search_looks_at_counts() -> None:
    assert chunk_length([MAX_CHARACTERS * 9, 1], 3, MAX_CHARACTERS + 1) == 2
