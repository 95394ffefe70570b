"""Counting the tokens of a history, and choosing from its entries."""

from __future__ import annotations

from typing import Any

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

from redis_history import (
    AttachmentPart,
    History,
    assistant,
    system,
    tiktoken_counter,
    tool,
    tool_result,
    tool_use,
    user,
)
from redis_history.errors import ConfigurationError
from redis_history.model.pairs import groups
from tests.property.strategies import TURNS

# Counting


def test_counting() -> None:
    history = History([user("a" * 10), assistant("b" * 3, tool_use("1", "find", {"q": 1}))])
    assert history.size == 10 + 3 + 4 + len('{"q":1}')
    assert history.total_estimated_tokens == 3 + 4
    calls: list[str] = []

    def words(counted: str) -> int:
        calls.append(counted)
        return len(counted.split())

    history = History([user("one two", AttachmentPart(name="a b"))], token_counter=words)
    assert history.total_estimated_tokens == history.total_estimated_tokens == 4
    assert calls == ["one two", "a b"]


def test_counting_with_tiktoken() -> None:
    encoding = tiktoken.Encoding(
        "letters",
        pat_str=r"\w+|\s+|[^\w\s]+",
        mergeable_ranks={bytes([number]): number for number in range(256)} | {b"ab": 256},
        special_tokens={"<|end|>": 257},
    )
    history = History([user("ab ab")], token_counter=tiktoken_counter(encoding))
    assert history.total_estimated_tokens == 3
    assert history.count_tokens(user("<|end|>")) == 7
    with pytest.raises(ConfigurationError):
        tiktoken_counter("no such model")


# Selectors


def test_selectors() -> None:
    report = AttachmentPart(name="report.pdf")
    history = History(
        [
            system("s"),
            user("Here", report),
            assistant("Thanks", tool_use("1", "f")),
            user(tool_result("1", "42")),
            assistant("Done"),
            tool(tool_result("2", [{"type": "text", "text": "late"}])),
        ]
    )
    entries = history.entries
    assert history.last_user() is entries[1]
    assert history.last_assistant() is entries[4]
    assert history.range(from_end=3, to_end=1) == entries[3:5]
    assert history.range(from_end=2) == entries[4:]
    assert history.range(from_end=100, to_end=5) == entries[:1]
    assert history.range(from_end=100, to_end=50) == []
    assert history.recent(2) == entries[4:]
    assert history.recent(0) == []
    assert history.recent(100) == entries
    lines = ["System: s", "User: Here", "File: report.pdf", "Assistant: Thanks", "Tool: 42", "Assistant: Done"]
    assert history.recent_text(100) == "\n".join([*lines, "Tool: late"])
    assert history.recent_text(2) == "Assistant: Done\nTool: late"


def test_the_newest_are_without_results_whose_call_was_cut_off() -> None:
    far, near = tool_use("1", "f"), tool_use("2", "f")
    history = History(
        [
            assistant(far),
            assistant(near),
            tool(tool_result("2", "x"), tool_result("1", "y")),
            tool(tool_result("3", "answers nothing")),
            user("q"),
        ]
    )
    entries = history.entries
    assert history.recent(5) == entries
    four = history.recent(4)
    assert [four[0], *four[2:]] == [entries[1], *entries[3:]]
    assert four[1].parts == entries[2].parts[:1]
    assert history.recent(3) == entries[3:]
    assert history.recent(2) == entries[3:]


def test_the_newest_that_fit() -> None:
    history = History([user("a" * 40), user("b" * 8), user("c" * 4)])
    assert [entry.text[0] for entry in history.by_tokens(3)] == ["b", "c"]
    assert history.by_tokens(0) == []
    assert len(history.by_tokens(13)) == 3
    assert len(history.by_tokens(12)) == 2


@given(turns=TURNS, budget=st.integers(0, 12))
def test_selected_by_tokens_is_a_whole_suffix(turns: Any, budget: int) -> None:
    history = History()
    for role, parts in turns:
        history.add_message(role, parts)
    chosen = history.by_tokens(budget)
    entries = history.entries
    start = len(entries) - len(chosen)
    assert chosen == entries[start:]
    assert sum(map(history.count_tokens, chosen)) <= budget
    assert all(root >= start for root in groups(entries)[start:])
