"""Filters of a search."""

from typing import Any

import pytest
from msgspec.structs import replace

from redis_history import Message, Participant, Position, tool_result, tool_use, user
from redis_history.values.filters import ANYTHING, make_filters, tool_names_of

CALL = Message(
    id="m",
    role="assistant",
    parts=(tool_use("1", "weather", {}), tool_result("0", "", name="clock"), tool_result("2", "")),
    participant=Participant("agent", "a|b"),
    scope="thread",
    timestamp="1970-01-01T00:00:00.000020Z",
    sequence=7,
)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, True),
        ({"roles": ["assistant", "user"]}, True),
        ({"roles": ["user"]}, False),
        ({"roles": []}, False),
        ({"participant_ids": ["a|b"]}, True),
        ({"participant_ids": ["a", "b"]}, False),
        ({"scope": "thread"}, True),
        ({"scope": "dm"}, False),
        ({"tool_names": ["weather"]}, True),
        ({"tool_names": ("clock", "x")}, True),
        ({"tool_names": ["x"]}, False),
        ({"since": Position(20, 6)}, True),
        ({"since": Position(20, 7)}, False),
        ({"since": Position(20, 2**53 - 1)}, False),
        ({"since": Position(19, 2**53 - 1), "before": Position(21, 0)}, True),
        ({"before": Position(20, 7)}, False),
        ({"before": Position(20, 8), "since": Position(20, 0)}, True),
        ({"archived": True}, True),
    ],
)
def test_wants(options: Any, wanted: bool) -> None:
    filters = make_filters(**options)
    assert filters.wants(CALL) is wanted
    assert filters.impossible is (options == {"roles": []})


@pytest.mark.parametrize(
    ("since", "before", "impossible"),
    [
        (Position(30, 0), Position(20, 0), True),
        (Position(20, 2**53 - 1), Position(20, 0), True),
        (Position(20, 7), Position(20, 7), True),
        (Position(20, 7), Position(20, 8), True),
        (Position(20, 7), Position(20, 9), False),
        (Position(20, 2**53 - 1), Position(21, 0), True),
        (Position(20, 2**53 - 1), Position(21, 1), False),
        (Position(20, 2**60), Position(20, 2**61), True),
    ],
)
def test_bounds_with_no_position_between_them_are_impossible(
    since: Position, before: Position, impossible: bool
) -> None:
    assert make_filters(since=since, before=before).impossible is impossible


def test_a_message_without_the_filtered_field() -> None:
    bare = user("text")
    assert ANYTHING.wants(bare)
    for options in ({"participant_ids": [""]}, {"scope": "dm"}, {"tool_names": ["x"]}, {"since": Position(0, 0)}):
        assert not make_filters(**options).wants(bare)  # type: ignore[arg-type]
    assert make_filters(since=Position(-1, 0)).wants(replace(bare, timestamp=0, sequence=1))
    assert tool_names_of(CALL) == {"weather", "clock"}
