"""Arguments are checked and converted before anything is sent, and errors name the parameter."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_history import HistoryStore, requests
from redis_history._validation import check_batch, check_limit
from redis_history.errors import (
    BatchTooLargeError,
    ConfigurationError,
    InvalidInputError,
    InvalidMessageError,
    MessageTooLargeError,
)
from redis_history.model import Position, user
from redis_history.operations import Append, DeleteMessages, Precondition
from redis_history.requests import MAX_BATCH_BYTES, MAX_BATCH_MESSAGES, Batch
from tests.property.strategies import microseconds


def append(messages: Any, conversation_id: Any = "c", **options: Any) -> Batch:
    return requests.append(conversation_id, messages, **options)


def append_one(message: Any, conversation_id: Any = "c", **options: Any) -> Append:
    return requests.append_one(conversation_id, message, **options)


def delete(ids: Any, conversation_id: Any = "c", expected_revision: Any = None) -> DeleteMessages:
    return requests.delete_messages(conversation_id, ids, expected_revision=expected_revision)


def test_a_batch_up_to_its_caps() -> None:
    assert len(append(user("x") for _ in range(MAX_BATCH_MESSAGES)).op.entries) == MAX_BATCH_MESSAGES
    with pytest.raises(BatchTooLargeError):
        append(user("x") for _ in range(MAX_BATCH_MESSAGES + 1))
    half = "x" * (MAX_BATCH_BYTES // 2 - 100)
    assert len(append([user(half), user(half)]).op.entries) == 2
    with pytest.raises(BatchTooLargeError):
        append([user(half), user(half), user("x" * 200)])
    one = user("x" * (MAX_BATCH_BYTES - 100))
    assert len(append([one] * 5).op.entries) == 1, "what is sent once counts once"


def test_oversized_batches_are_rejected_while_they_are_read() -> None:
    with pytest.raises(BatchTooLargeError):
        append(user("x") for _ in itertools.count())
    with pytest.raises(MessageTooLargeError):
        append([user("x" * 5_000_000)])


@pytest.mark.parametrize("thing", [None, 5, "hello", [None], [5], ["hello"], [{"role": "user"}], user("x"), {"a": 1}])
def test_other_values_are_no_list_of_messages(thing: Any) -> None:
    with pytest.raises(InvalidMessageError):
        append(thing)


CALLS: list[Callable[..., Any]] = [
    lambda **options: append_one(user("x"), **options),
    lambda **options: append([user("x")], **options).op,
]


@pytest.mark.parametrize("call", CALLS)
def test_preconditions(call: Callable[..., Any]) -> None:
    assert call().precondition == Precondition()
    assert call(expected_revision=0).precondition == Precondition(0)
    assert call(expected_revision=7, must_exist=True).precondition == Precondition(7, True)
    assert call(must_not_exist=True).precondition == Precondition(None, False, True)
    with pytest.raises(InvalidInputError):
        call(must_exist=True, must_not_exist=True)


@pytest.mark.parametrize("call", [*CALLS, lambda **options: delete(["m"], **options)])
@pytest.mark.parametrize("wrong", [-1, 2**53, 1.0, "1", True, [], float("nan")])
def test_an_expected_revision_is_a_number_from_0(call: Callable[..., Any], wrong: Any) -> None:
    with pytest.raises(InvalidInputError, match="expected_revision"):
        call(expected_revision=wrong)


@pytest.mark.parametrize(
    "ids", ["m1", None, 5, b"m1", [None], [5], [b"m"], [["m"]], [""], ["x" * 513], ["\u00e9" * 257], ["\ud800"]]
)
def test_other_values_are_no_list_of_ids(ids: Any) -> None:
    with pytest.raises(InvalidInputError):
        delete(ids)


@pytest.mark.parametrize(
    ("bound", "position"),
    [
        (None, None),
        (Position(5, 3), Position(5, 3)),
        ("5.3", Position(5, 3)),
        ("-5.3", Position(-5, 3)),
        (1, Position(1_000_000, 0)),
        (1.5, Position(1_500_000, 0)),
        (datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC), Position(2_000_000, 0)),
        ("1970-01-01T00:00:02Z", Position(2_000_000, 0)),
        ("1970-01-01", Position(0, 0)),
        ("1970-01-01T00:00:00.5", Position(500_000, 0)),
        ("19700101T000000.5Z", Position(500_000, 0)),
    ],
    ids=str,
)
def test_forms_of_bounds(bound: Any, position: Position | None) -> None:
    filters = requests.make_filters(since=bound, before=bound)
    assert filters.before == position
    instant = position is not None and position.sequence == 0
    assert filters.since == (position._replace(sequence=2**53 - 1) if instant and position else position)


@given(microseconds, st.integers(1, 2**53 - 1))
def test_a_position_as_text_is_the_same_bound(timestamp: int, sequence: int) -> None:
    position = Position(timestamp, sequence)
    filters = requests.make_filters(since=str(position), before=str(position))
    assert filters.since == filters.before == position


BAD_BOUNDS = ["", "yesterday", "1.2.3", "x.y", "2026", float("nan"), True, b"1.1", [], (1, 2), 1e18]


@pytest.mark.parametrize(
    ("filters", "says"),
    [
        ({"roles": "user"}, "roles"),
        ({"roles": 5}, "roles"),
        ({"roles": [["user"]]}, "roles"),
        ({"roles": ["human"]}, "human"),
        ({"participant_ids": "ann"}, "participant_ids"),
        ({"participant_ids": 5}, "participant_ids"),
        ({"participant_ids": [1]}, "participant_ids"),
        ({"tool_names": "x"}, "tool_names"),
        ({"tool_names": [None]}, "tool_names"),
        ({"scope": "room"}, "room"),
        ({"scope": ["dm"]}, "scope"),
        ({"archived": 1}, "archived"),
        *(({name: bound}, ".") for name in ("since", "before") for bound in BAD_BOUNDS),
    ],
    ids=str,
)
def test_wrong_filters_are_rejected_by_name(filters: Any, says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        requests.make_filters(**filters)


def test_limits_and_sizes() -> None:
    for limit in (None, 0, 1, 10**9):
        check_limit(limit)
    for limit in (-1, 1.0, "1", True, [], float("inf")):
        with pytest.raises(InvalidInputError, match="limit"):
            check_limit(limit)  # type: ignore[arg-type]
    for size in (1, 100_000):
        check_batch(size, "size")
    for wrong in (None, 0, -1, 100_001, 1.0, "1", True):
        with pytest.raises(InvalidInputError, match="size"):
            check_batch(wrong, "size")  # type: ignore[arg-type]


@given(st.integers(-(2**63), 2**63 - 1) | st.text(st.characters(codec="utf-8")) | st.integers().map(str))
def test_the_text_of_an_owner_names_this_owner(owner: int | str) -> None:
    for each in (owner, f'"{owner}"', f'"{owner}', str(owner)):
        found = requests.owner_of(requests.owner_text(each))
        assert (type(found), found) == (type(each), each)


@pytest.mark.parametrize(
    ("text", "owner"),
    [
        ("1", 1), ("-1", -1), ("0", 0), (str(2**63 - 1), 2**63 - 1), (str(-(2**63)), -(2**63)),
        ("", ""), ("ann", "ann"), ("01", "01"), ("-0", "-0"), ("+1", "+1"), (" 1", " 1"), ("1.0", "1.0"), ("١", "١"),
        (str(2**63), str(2**63)), ('"1"', "1"), ('"a', '"a'), ('"', '"'), ('""', ""), ('"a"b"', '"a"b"'),
    ],
)  # fmt: skip
def test_how_an_owner_is_named(text: str, owner: int | str) -> None:
    found = requests.owner_of(text)
    assert (type(found), found) == (type(owner), owner)


@pytest.mark.parametrize("place", [("a", "b"), (float("nan"), 1), (1.5, 2), (1, None), (True, 1)])
def test_a_position_has_two_integers(place: Any) -> None:
    with HistoryStore("memory://") as store:
        store.append_many("c", [user("one"), user("two")])
        position = Position(*place)
        with pytest.raises(InvalidInputError, match="position"):
            store.compact("c", through=position, summary="s")
        for name in ("since", "before"):
            with pytest.raises(InvalidInputError, match="position"):
                store.get("c", **{name: position})
        assert len(store.get("c")) == 2


@pytest.mark.parametrize(
    "options",
    [
        {"log_length": 0},
        {"ttl": 0},
        {"ttl": 10**400},
        {"max_messages": 1.5},
        {"durability": "disk"},
        {"durability_timeout": float("nan")},
        {"search": True},
        {"doorbell": ["poll"]},
        {"language": ["english"]},
        {"embedder": "model", "vectors": 3},
    ],
    ids=str,
)
def test_an_error_names_the_option_and_the_value(options: Any) -> None:
    name, value = next(iter(options.items()))
    with pytest.raises(ConfigurationError, match=name) as caught:
        HistoryStore("memory://", **options)
    assert repr(value)[:40] in str(caught.value)
    assert len(str(caught.value)) < 400
