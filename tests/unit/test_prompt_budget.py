"""The budget of a prompt, and its summary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from redis_history import HistoryStore, Message, assemble_prompt, assistant, system, tool, tool_result, tool_use, user
from redis_history.errors import InvalidInputError
from tests.support.prompts import ANN, ids, prompt, shown

# Budget


def test_the_budget_is_filled_from_the_newest() -> None:
    talk = [user("x" * 40, id=str(n)) for n in range(10)]  # ten tokens each
    found = prompt(talk, token_budget=35)
    assert [message.id for message in found.messages] == ["7", "8", "9"]
    assert found.report.tokens == 30
    assert not found.report.over_budget
    assert found.report.ids("budget") == [str(n) for n in range(7)]
    assert len(prompt(talk, token_budget=None).messages) == 10


@pytest.mark.proves("prompts")
def test_what_is_always_inside() -> None:
    talk = [
        system("r" * 400, id="s"),
        user("z" * 400, id="y", metadata={"is_summary": True}),
        user("old", id="1"),
        user("x" * 400, id="2"),
    ]
    found = prompt(talk, token_budget=10, system_prompt="You help.")
    assert [message.id for message in found.messages] == ["system_prompt", "s", "y", "2"]
    assert found.report.over_budget
    assert found.report.system_tokens == 103
    assert found.report.summary_tokens == 108
    assert found.report.tokens == 103 + 108 + 100


def test_a_pair_is_cut_as_a_whole() -> None:
    talk = [
        assistant(tool_use("c", "find", {"q": "x" * 200}), id="call"),
        tool(tool_result("c", "ok"), id="result"),
        user("thanks", id="u"),
    ]
    found = prompt(talk, token_budget=20)
    assert [message.id for message in found.messages] == ["u"]
    assert found.report.ids("budget") == ["call", "result"]
    assert ids(talk[:2], token_budget=20) == ["call", "result"], "the newest turn, as a whole"


def test_a_counter_of_the_caller() -> None:
    talk = [
        user("one two three", id="1", participant=ANN),
        assistant(tool_use("c", "find", {"q": "a b"}), id="2"),
        tool(tool_result("c", [{"type": "text", "text": "x y"}]), id="3"),
    ]
    counted: list[str] = []

    def count(told: str) -> int:
        counted.append(told)
        return len(told.split())

    assert prompt(talk, token_counter=count).report.tokens == 9
    assert counted == ['find\n{"q":"a b"}', '[{"type":"text","text":"x y"}]', "Ann: one two three"]
    with pytest.raises(InvalidInputError, match="token_counter"):
        prompt(talk, token_counter=lambda told: -1)


# Summaries


def test_the_older_turns_are_summarised() -> None:
    talk = [system("rules", id="s"), *(user(f"m{n}", id=str(n)) for n in range(6)), system("note", id="n")]
    talk.insert(3, system("an old note", id="o"))
    given: list[list[str]] = []

    def summarize(messages: Sequence[Message], previous: str | None) -> str:
        given.append([message.id for message in messages])
        return "they talked"

    found = prompt(talk, rolling_summary_threshold=4, summarizer=summarize)
    assert given == [["0", "1"]]
    assert [message.id for message in found.messages] == ["s", "summary", "o", "2", "3", "4", "5", "n"]
    assert found.messages[1].text == "[Earlier conversation summary: they talked]"
    assert found.messages[1].role == "system"
    assert found.messages[1].is_summary
    assert found.report.ids("summarised") == ["0", "1"]
    assert ids(talk, rolling_summary_threshold=6, summarizer=summarize)[1] == "0"
    assert len(given) == 1


def test_an_earlier_summary_is_used_or_absorbed() -> None:
    earlier = user("they met", id="y", metadata={"is_summary": True})
    talk = [user("0", id="0"), earlier, *(user(str(n), id=str(n)) for n in range(1, 5))]
    assert shown(talk)[0] == ("user", "[Earlier conversation summary: they met]")
    given: list[Any] = []

    def summarize(messages: Sequence[Message], previous: str | None) -> str:
        given.extend([*(message.id for message in messages), previous])
        return "they met and talked"

    found = prompt(talk, rolling_summary_threshold=3, summarizer=summarize)
    assert given == ["0", "1", "they met"]
    assert [message.id for message in found.messages] == ["summary", "2", "3", "4"]
    assert found.report.ids("summarised") == ["0", "y", "1"]
    assert found.messages[0].text == "[Earlier conversation summary: they met and talked]"


def test_a_pair_is_not_split_by_a_summary() -> None:
    talk = [
        user("a", id="a"),
        assistant(tool_use("c", "find"), id="call"),
        tool(tool_result("c"), id="result"),
        user("b", id="b"),
    ]
    given: list[list[str]] = []
    for threshold in (1, 2, 3):
        prompt(
            talk,
            rolling_summary_threshold=threshold,
            summarizer=lambda messages, previous: given.append([message.id for message in messages]),
        )
    assert given == [["a", "call", "result"], ["a", "call", "result"], ["a"]]
    kept = ids(talk[:3], rolling_summary_threshold=1, summarizer=lambda messages, previous: "they met")
    assert kept == ["summary", "call", "result"], "the newest turn is not summarised, however long"


@pytest.mark.parametrize("nothing", [None, "", "  ", "[Earlier conversation summary: ]"])
def test_without_a_summary_the_older_are_left_to_the_budget(nothing: Any) -> None:
    talk = [user(str(n), id=str(n)) for n in range(50)]
    assert len(ids(talk, summarizer=lambda messages, previous: nothing)) == 50
    assert len(ids(talk)) == 50


def test_what_a_summarizer_does_wrong() -> None:
    talk = [user(str(n)) for n in range(50)]
    for wrong in (7, user("a message"), b"bytes"):
        with pytest.raises(InvalidInputError, match="summarizer"):
            prompt(talk, summarizer=lambda messages, previous, wrong=wrong: wrong)
    with pytest.raises(ZeroDivisionError):
        prompt(talk, summarizer=lambda messages, previous: 1 / 0)

    async def asynchronous(messages: Sequence[Message], previous: str | None) -> str:
        return "x"

    with pytest.raises(InvalidInputError, match="AsyncHistoryStore"):
        prompt(talk, summarizer=lambda messages, previous: asynchronous(messages, previous))
    with HistoryStore("memory://") as store, pytest.raises(InvalidInputError, match="AsyncHistoryStore"):
        assemble_prompt(store, "c", "a", "A", {}, asynchronous)
