"""Which result answers which call, and what a cap takes, also if agents number their calls alike."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_history import Message, Participant, assistant, system, tool, tool_result, tool_use, user
from redis_history.values.pairs import groups, marks, oldest_with_results, pairs_of, without_lone_results
from tests.property.strategies import ANN, BOB, tool_messages
from tests.support.pairs import conversations, counted, naive_groups, naive_pairs, true_calls


def call(by: Participant | None = None, id: str = "1") -> Message:
    return assistant(tool_use(id, "f"), participant=by)


def result(by: Participant | None = None, id: str = "1") -> Message:
    return tool(tool_result(id, "x"), participant=by)


def answered(*messages: Message) -> dict[int, int]:
    """The message of each result that answers a call: that of the call."""
    return {place[0]: of[0] for place, of in pairs_of(messages).call_of.items()}


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([call(), result()], {1: 0}),
        ([result(), call()], {}),
        ([call(), call(), result(), result()], {2: 1, 3: 0}),
        ([call(), result(), call(), result()], {1: 0, 3: 2}),
        ([call(), result(), result()], {1: 0}),
        ([call(ANN), call(BOB), result(ANN), result(BOB)], {2: 0, 3: 1}),
        ([call(ANN), call(BOB), result(BOB), result(ANN)], {2: 1, 3: 0}),
        ([call(ANN), call(ANN), result(ANN)], {2: 1}),
        ([call(ANN), result()], {1: 0}),
        ([call(), result(ANN)], {1: 0}),
        ([call(ANN), result(BOB)], {1: 0}),
        # Ann's call is gone, so her result seems to answer Bob's, until his own comes.
        ([call(BOB), result(ANN), result(BOB)], {2: 0}),
        ([call(BOB), result(), result(BOB)], {1: 0}),
        # Others answer the calls of Ann, so they have answered the first one for good.
        ([call(ANN), result(BOB), call(ANN, "2"), result(BOB, "2"), result(ANN)], {1: 0, 3: 2}),
        ([call(ANN), result(Participant("user", "ann"))], {1: 0}),
        ([system(tool_use("1", "f")), result()], {}),
        ([assistant(tool_use("1", "f"), metadata={"is_summary": True}), result()], {}),
    ],
)  # fmt: skip
def test_which_result_answers_which_call(messages: list[Message], expected: dict[int, int]) -> None:
    assert answered(*messages) == expected


def test_parts_of_a_message_are_paired_in_order() -> None:
    messages = [
        assistant(tool_use("1", "f"), tool_use("2", "f"), tool_use("1", "g")),
        tool(tool_result("1", "x"), tool_result("2", "x")),
        user(tool_result("1", "x"), "and?"),
    ]
    assert pairs_of(messages).call_of == {(1, 0): (0, 2), (1, 1): (0, 1), (2, 0): (0, 0)}
    assert groups(messages) == [0, 0, 0]


def removed(messages: list[Message], most: int) -> set[int]:
    """The messages that a cap removes, by the definition."""
    gone: set[int] = set()
    for group in naive_groups(messages):
        if len(messages) - len(gone) > most:
            gone |= group
    return gone


def capped(messages: list[Message], most: int) -> list[Message]:
    """The messages that a cap leaves."""
    gone = set(oldest_with_results(map(marks, messages), len(messages) - most))
    assert gone == removed(messages, most)
    return [one for index, one in enumerate(messages) if index not in gone]


@pytest.mark.proves("max-messages", "pairs")
@pytest.mark.parametrize("named", [True, False])
def test_no_cap_separates_a_pair(named: bool) -> None:
    """Every interleaving, every cap, and after every append: every result keeps its call."""
    for messages in conversations(named=named):
        for most in range(1, len(messages)):
            kept: list[Message] = []
            for count, message in enumerate(messages, 1):
                before = [*kept, message]
                kept = capped(before, most)
                ids, ids_before = {one.id for one in kept}, {one.id for one in before}
                assert len(ids) <= most
                if named:
                    whole = [pair for pair in true_calls(messages[:count]) if ids_before.issuperset(pair)]
                    assert [(use, answer) for use, answer in whole if (use in ids) != (answer in ids)] == []
                else:
                    left = {key: number for key, number in counted(before).items() if key[0] in ids}
                    assert counted(kept) == left


@pytest.mark.proves("max-messages")
def test_a_cap_removes_no_more_than_it_must() -> None:
    messages = [call(), user("a"), user("b"), result(), user("c")]
    assert oldest_with_results(map(marks, messages), 1) == [0, 3]
    assert oldest_with_results(map(marks, messages), 2) == [0, 3]
    assert oldest_with_results(map(marks, messages), 3) == [0, 1, 3]
    assert oldest_with_results(map(marks, messages), 0) == []
    assert oldest_with_results(map(marks, messages), 9) == [0, 1, 2, 3, 4]
    both = tool(tool_result("1", "x"), tool_result("2", "x"))
    messages = [call(id="1"), call(id="2"), call(id="3"), result(id="3"), both]
    assert oldest_with_results(map(marks, messages), 1) == [0, 1, 4], "two calls with results in one message"


AUTHORS = [None, ANN, BOB, Participant("user", "ann")]
MESSAGES = st.lists(tool_messages([user, assistant, tool, assistant, tool, system], AUTHORS), max_size=14)


@given(MESSAGES)
def test_pairs_and_groups_are_those_of_the_definition(messages: list[Message]) -> None:
    last: dict[tuple[int, int], tuple[int, int]] = {}
    for index, at, answer, place in naive_pairs(messages):
        last[index, at] = answer, place
    pairs = pairs_of(messages)
    assert pairs.answered == last
    assert pairs.call_of == {answer: of for of, answer in last.items()}
    assert {index: sorted(places) for index, places in pairs.results.items() if places} == {
        index: sorted(answer for of, answer in last.items() if of[0] == index) for index, _ in last
    }
    first = groups(messages)
    assert [min(group) for index in range(len(messages)) for group in naive_groups(messages) if index in group] == first


@given(MESSAGES, st.integers(1, 14))
def test_what_stays_keeps_its_calls(messages: list[Message], excess: int) -> None:
    gone = set(oldest_with_results(map(marks, messages), excess))
    here = [index for index in range(len(messages)) if index not in gone]
    after = dict(zip(here, groups([messages[index] for index in here]), strict=True))
    for index, _, answer, _ in naive_pairs(messages):
        assert (index in gone) == (answer in gone)
        assert answer in gone or after[index] == after[answer]
    assert gone == removed(messages, len(messages) - excess)


def test_results_without_a_call_are_removed() -> None:
    messages = [
        result(id="0"),
        tool(tool_result("0", "x"), "and a text", id="mixed"),
        call(),
        user("w"),
        result(),
        result(),
    ]
    left = without_lone_results(messages)
    assert left[1:] == messages[2:5]
    assert (left[0].id, left[0].text, left[0].tool_results) == ("mixed", "and a text", ())
    assert without_lone_results(left) == left
