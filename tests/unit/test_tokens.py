"""Sizes in characters and estimated tokens."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_history.store.operations.append import Append
from redis_history.values import AttachmentPart, Part, ReasoningPart, UnknownPart, text, tool_result, tool_use, user
from redis_history.values.sizes import MEDIA_TOKENS, count_characters, estimate_tokens


@pytest.mark.parametrize(
    ("part", "characters"),
    [
        (text("hello"), 5),
        (text("你好👋"), 3),
        (text(""), 0),
        (ReasoningPart("hmm", signature="not read by a model"), 3),
        (tool_use("id", "find"), 4),
        (tool_use("id", "find", {"q": "x"}), 4 + len('{"q":"x"}')),
        (tool_use("id", "find", '{"q": '), 4 + 6),
        (tool_result("id", "found"), 5),
        (tool_result("id", [{"text": "a"}]), len('[{"text":"a"}]')),
        (tool_result("id", None), 0),
        (AttachmentPart(id="f", name="report.pdf", reference="s3://bucket/key"), 10 + 4 * MEDIA_TOKENS["file"]),
        (AttachmentPart(name="report.pdf"), 10),
        (AttachmentPart(), 0),
        (UnknownPart({"type": "new", "text": "who knows"}), len('{"type":"new","text":"who knows"}')),
    ],
    ids=lambda value: type(value).__name__,
)
def test_characters_of_a_part(part: Part, characters: int) -> None:
    assert count_characters(user(part)) == characters


def test_characters_add_up() -> None:
    assert count_characters(user("four", "seven", tool_result("c", "ten"))) == 4 + 5 + 3
    assert count_characters(user()) == 0


@given(st.integers(0, 10**9))
def test_tokens_are_a_quarter_rounded_up(characters: int) -> None:
    tokens = estimate_tokens(characters)
    assert 4 * tokens - 4 < characters <= 4 * tokens


@pytest.mark.parametrize("value", [{b"k": 1}, {(1, 2): 3}, {None: 1}, {1.5: 2}, b"\xff", [b"\xff"], 2**64 - 1, 1.5])
def test_all_storable_values_are_counted(value: Any) -> None:
    entry = Append.of("c", user(tool_use("c", "n", value))).entries[0]
    assert entry.characters > 1
    assert entry.tokens == estimate_tokens(entry.characters)
