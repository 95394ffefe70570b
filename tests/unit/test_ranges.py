"""Which ranges may leave together: those that tear no tool call from its result."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from redis_history import Message, assistant, system, tool, tool_result, tool_use, user
from redis_history.values.ranges import Ranges, good_ends, tears
from tests.property.strategies import ANN, BOB, tool_messages
from tests.support.pairs import naive_pairs


def test_a_removed_call_separates_its_result() -> None:
    messages = [assistant(tool_use("1", "f"), id="a"), user("q", id="q"), tool(tool_result("1", "r"), id="t")]
    assert tears(messages, {"a"})
    assert tears(messages, {"a", "q"})
    assert not tears(messages, {"a", "t"})
    assert not tears(messages, {"q"})
    assert not tears(messages[:2], {"a"})


def test_ranges_are_known_message_by_message() -> None:
    ranges = Ranges()
    for message in (user("q"), assistant(tool_use("1", "f")), user("w"), assistant("x")):
        ranges.add(message)
    assert ranges.waits(2)
    assert not ranges.waits(1)
    assert ranges.is_whole(3)
    ranges.add(tool(tool_result("1", "r")))
    assert not ranges.waits(5)
    assert [ranges.is_whole(count) for count in range(6)] == [True, True, False, False, False, True]
    assert ranges.ends() == [True, False, False, False, True]


@given(st.lists(tool_messages([user, assistant, assistant, tool, tool, system], [None, ANN, BOB]), max_size=14))
@settings(max_examples=100)
def test_no_range_separates_a_pair(messages: list[Message]) -> None:
    """All other ranges are allowed, except those with waiting calls."""
    found = naive_pairs(messages)
    taken = {(index, at) for index, at, _, _ in found}
    pairs = [(index, answer) for index, _, answer, _ in found]
    awaited = [
        index
        for index, message in enumerate(messages)
        for place, part in enumerate(message.parts)
        if message.role != "system"
        and part in message.tool_uses
        and (index, place) not in taken
        and not _given_up(messages, index)
    ]
    expected = [
        not any(call <= end < answer for call, answer in pairs) and not any(index <= end for index in awaited)
        for end in range(len(messages))
    ]
    assert good_ends(messages) == expected


def _given_up(messages: list[Message], index: int) -> bool:
    def speaker(message: Message) -> Any:
        return message.role, message.participant and message.participant.id

    heard = False
    for message in messages[index + 1 :]:
        if message.role == "system":
            continue
        if speaker(message) != speaker(messages[index]):
            heard = True
        elif heard:
            return True
    return False
