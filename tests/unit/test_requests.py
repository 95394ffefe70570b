"""From arguments to operations: checked before anything is sent, and refused by name."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_history import HistoryStore, requests
from redis_history._ids import check_message_id
from redis_history._validation import check_batch, check_limit
from redis_history.errors import (
    BatchTooLargeError,
    ConfigurationError,
    InvalidConversationIdError,
    InvalidCursorError,
    InvalidInputError,
    InvalidMessageError,
    InvalidTimestampError,
    MessageConflictError,
    MessageTooLargeError,
)
from redis_history.events import BEGINNING, Cursor
from redis_history.model import Message, Participant, Position, Source, user
from redis_history.model.wire import body_digest, decode_member, encode_member
from redis_history.operations import Append, DeleteMessages, Precondition
from redis_history.requests import MAX_BATCH_BYTES, MAX_BATCH_MESSAGES, Batch
from redis_history.requests.options import Options
from redis_history.tokens import count_characters, estimate_tokens
from tests.property.strategies import conversation_ids, messages, microseconds

FREE: dict[str, Any] = {"expected_revision": None, "must_exist": False, "must_not_exist": False}


def append(messages: Any, conversation_id: Any = "c", **options: Any) -> Batch:
    return requests.append(conversation_id, messages, **{**FREE, **options})


def append_one(message: Any, conversation_id: Any = "c", **options: Any) -> Append:
    return requests.append_one(conversation_id, message, **{**FREE, **options})


def delete(ids: Any, conversation_id: Any = "c", expected_revision: Any = None) -> DeleteMessages:
    return requests.delete_messages(conversation_id, ids, expected_revision=expected_revision)


@given(conversation_ids, messages())
def test_an_entry_is_all_that_is_stored(conversation_id: str, message: Message) -> None:
    op = append_one(message, conversation_id)
    (entry,) = op.entries
    assert (op.conversation_id, entry.message) == (conversation_id, message)
    assert entry.digest == body_digest(entry.body)
    assert (entry.timestamp is None) == (message.timestamp is None)
    assert (entry.characters, entry.tokens) == (count_characters(message), estimate_tokens(entry.characters))
    read = decode_member(encode_member(1, entry.timestamp or 0, entry.body))
    assert msgspec.structs.replace(read, sequence=None, timestamp=message.timestamp) == message


def test_each_change_has_a_token_of_its_own() -> None:
    ops = [append_one(user("x")), append_one(user("x")), append([user("x")]).op, delete(["m"]), delete(["m"])]
    assert len({op.token for op in ops}) == len(ops)


def test_a_batch_in_its_order() -> None:
    given_ = [user("a", id="1"), user("b", id="2"), user("a", id="1"), user("c", id="3"), user("b", id="2")]
    batch = append(iter(given_))
    assert [entry.message.id for entry in batch.op.entries] == ["1", "2", "3"]
    assert [batch.op.entries[place].message.id for place in batch.order] == [message.id for message in given_]


def test_an_empty_batch() -> None:
    batch = append([])
    assert (list(batch.order), batch.op.entries) == ([], ())


@pytest.mark.parametrize(
    "other", [user("b", id="1"), user("a", id="1", timestamp=1), user("a", id="1", metadata={"x": 1})]
)
def test_one_id_with_two_contents(other: Message) -> None:
    with pytest.raises(MessageConflictError, match="'1'") as caught:
        append([user("a", id="1"), user("z"), other])
    assert caught.value.message_id == "1"


def test_a_batch_up_to_its_caps() -> None:
    assert len(append(user("x") for _ in range(MAX_BATCH_MESSAGES)).op.entries) == MAX_BATCH_MESSAGES
    with pytest.raises(BatchTooLargeError, match=r"1,000.*4,000,000"):
        append(user("x") for _ in range(MAX_BATCH_MESSAGES + 1))
    half = "x" * (MAX_BATCH_BYTES // 2 - 100)
    assert len(append([user(half), user(half)]).op.entries) == 2
    with pytest.raises(BatchTooLargeError):
        append([user(half), user(half), user("x" * 200)])
    one = user("x" * (MAX_BATCH_BYTES - 100))
    assert len(append([one] * 5).op.entries) == 1, "what is sent once counts once"


def test_an_endless_batch_is_refused_soon() -> None:
    def endless() -> Any:
        while True:
            yield user("x")

    with pytest.raises(BatchTooLargeError):
        append(endless())


def test_a_message_too_large_is_not_a_batch_too_large() -> None:
    with pytest.raises(MessageTooLargeError):
        append([user("x" * 5_000_000)])


@pytest.mark.parametrize("thing", [None, 5, "hello", [None], [5], ["hello"], [{"role": "user"}], user("x"), {"a": 1}])
def test_what_is_no_list_of_messages(thing: Any) -> None:
    with pytest.raises(InvalidMessageError):
        append(thing)


@pytest.mark.parametrize("conversation_id", ["", "x" * 513, None, 5, b"c", "\ud800"])
@pytest.mark.parametrize("call", [lambda c: append_one(user("x"), c), lambda c: append([], c), lambda c: delete([], c)])
def test_the_conversation_id_is_checked(call: Callable[[Any], Any], conversation_id: Any) -> None:
    with pytest.raises(InvalidConversationIdError):
        call(conversation_id)


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


def test_ids_to_delete() -> None:
    assert delete(["b", "a", "b"]).message_ids == ("b", "a"), "each once, in order"
    assert delete(iter(())).message_ids == ()
    assert delete(["m"], expected_revision=3).precondition == Precondition(3)
    assert len(delete([str(n) for n in range(MAX_BATCH_MESSAGES)] * 2).message_ids) == MAX_BATCH_MESSAGES
    with pytest.raises(BatchTooLargeError, match=r"1,000.*1,001"):
        delete(str(n) for n in range(MAX_BATCH_MESSAGES + 1))


@pytest.mark.parametrize("ids", ["m1", None, 5, b"m1", [None], [5], [b"m"], [["m"]], ["\ud800"], [user("x")]])
def test_what_is_no_list_of_ids(ids: Any) -> None:
    with pytest.raises(InvalidInputError):
        delete(ids)


@pytest.mark.parametrize("message_id", [None, 5, b"m", "\ud800", "", "x" * 513, "\u00e9" * 257])
def test_what_could_not_be_a_message_id(message_id: Any) -> None:
    with pytest.raises(InvalidInputError, match="message_id"):
        check_message_id(message_id)


@given(messages())
def test_every_id_of_a_message_can_be_asked_for(message: Message) -> None:
    assert check_message_id(message.id) == message.id


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
def test_bounds(bound: Any, position: Position | None) -> None:
    assert requests.before_of(bound) == position
    instant = position is not None and position.sequence == 0
    assert requests.after_of(bound) == (position._replace(sequence=2**53 - 1) if instant and position else position)


@given(microseconds, st.integers(1, 2**53 - 1))
def test_a_position_as_text_is_the_same_bound(timestamp: int, sequence: int) -> None:
    position = Position(timestamp, sequence)
    for bound_of in (requests.after_of, requests.before_of):
        assert bound_of(str(position)) == bound_of(position) == position


@pytest.mark.parametrize(
    "bound", ["", "yesterday", "1.2.3", "x.y", "2026", float("nan"), True, b"1.1", [], (1, 2), 1e18]
)
def test_what_is_no_bound(bound: Any) -> None:
    for bound_of in (requests.after_of, requests.before_of):
        with pytest.raises(InvalidInputError):
            bound_of(bound)


def test_an_instant_that_is_none_says_so() -> None:
    with pytest.raises(InvalidTimestampError, match="ISO 8601"):
        requests.after_of("2026-13-01T00:00:00")


def test_cursors() -> None:
    cursor = Cursor("a" * 16, 4, "b" * 16)
    assert requests.cursor_of(None) is None
    assert requests.cursor_of(cursor) == requests.cursor_of(str(cursor)) == cursor
    assert requests.cursor_of(str(BEGINNING)) == BEGINNING


@pytest.mark.parametrize("wrong", ["", "x", 5, 0, False, b"x", [], Position(1, 1)])
def test_what_is_no_cursor(wrong: Any) -> None:
    with pytest.raises(InvalidCursorError):
        requests.cursor_of(wrong)


ANN, BOT = Participant("user", "ann"), Participant("agent", "bot")
TALK = [
    user("1", participant=ANN, scope="dm"),
    Message(role="assistant", participant=BOT, scope="dm"),
    Message(role="tool", participant=BOT),
    user("4", sources=[Source("d")]),
]


@pytest.mark.parametrize(
    ("roles", "ids", "scope", "kept"),
    [
        (["user"], None, None, [0, 3]),
        (("user", "tool"), None, None, [0, 2, 3]),
        (iter(["tool"]), None, None, [2]),
        ([], None, None, []),
        (None, ["bot"], None, [1, 2]),
        (None, ["bot", "ann", "nobody"], None, [0, 1, 2]),
        (None, [], None, []),
        (None, None, "dm", [0, 1]),
        (None, None, "thread", []),
        (["assistant", "tool"], ["bot"], "dm", [1]),
        (["user"], ["bot"], None, []),
    ],
)
def test_filters_must_all_hold(roles: Any, ids: Any, scope: Any, kept: list[int]) -> None:
    wanted = requests.message_filter(roles, ids, scope)
    assert wanted is not None
    for _ in range(2):
        assert [index for index, message in enumerate(TALK) if wanted(message)] == kept


def test_no_filter_is_none() -> None:
    assert requests.message_filter(None, None, None) is None


@pytest.mark.parametrize(
    ("roles", "ids", "scope", "says"),
    [
        ("user", None, None, "roles"),
        (None, "ann", None, "participant_ids"),
        (5, None, None, "roles"),
        (None, 5, None, "participant_ids"),
        ([["user"]], None, None, "roles"),
        (["human"], None, None, "human"),
        (None, [["ann"]], None, "participant_ids"),
        (None, None, "room", "room"),
        (None, None, ["dm"], "scope"),
    ],
)
def test_filters_that_could_match_nothing(roles: Any, ids: Any, scope: Any, says: str) -> None:
    """A misspelled role must not look like an empty conversation."""
    with pytest.raises(InvalidInputError, match=says):
        requests.message_filter(roles, ids, scope)


@pytest.mark.parametrize("limit", [None, 0, 1, 10**9])
def test_limits(limit: int | None) -> None:
    check_limit(limit)


@pytest.mark.parametrize("limit", [-1, 1.0, "1", True, [], float("inf")])
def test_what_is_no_limit(limit: Any) -> None:
    with pytest.raises(InvalidInputError, match="limit"):
        check_limit(limit)


@pytest.mark.parametrize("size", [None, 0, -1, 100_001, 1.0, "1", True])
def test_what_is_no_batch_size(size: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"size.*1.*100,000"):
        check_batch(size, "size")
    check_batch(1, "size")
    check_batch(100_000, "size")


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


@pytest.mark.parametrize("log_length", [0, -1, 1.5, "1000", None, True])
def test_log_length(log_length: Any) -> None:
    with pytest.raises(ConfigurationError, match="log_length"):
        Options(log_length, 1)


@pytest.mark.parametrize("poll_interval", [0, -1, float("nan"), float("inf"), "3", None, [1]])
def test_poll_interval(poll_interval: Any) -> None:
    with pytest.raises(ConfigurationError, match="poll_interval"):
        Options(1, poll_interval)
    Options(1, 0.001)


@pytest.mark.parametrize("place", [("a", "b"), (float("nan"), 1), (1.5, 2), (1, None), (True, 1)])
def test_a_position_is_of_two_whole_numbers(place: Any) -> None:
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
    ("options", "value", "rules"),
    [
        ({"log_length": 0}, "0", "1"),
        ({"log_length": True}, "True", "integer"),
        ({"ttl": 0}, "0", "0.001"),
        ({"ttl": 10**400}, "1000", "3,155,760,000"),
        ({"poll_interval": True}, "True", "above 0"),
        ({"max_messages": 1.5}, "1.5", "None"),
        ({"durability": "disk"}, "disk", "fsync"),
        ({"durability_timeout": float("nan")}, "nan", "3,600"),
        ({"search": True}, "True", "require"),
        ({"doorbell": ["poll"]}, "poll", "keyspace"),
        ({"language": ["english"]}, "english", "none"),
        ({"embedder": "model", "vectors": 3}, "model", "function"),
    ],
    ids=str,
)
def test_an_error_names_the_option_the_value_and_the_rule(options: Any, value: str, rules: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        HistoryStore("memory://", **options)
    assert next(iter(options)) in str(caught.value)
    assert value in str(caught.value)
    assert rules in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("ask", "name"),
    [
        (lambda store: store.get("c", limit=-1), "limit"),
        (lambda store: list(store.iter("c", batch=0)), "batch"),
        (lambda store: store.snapshot("c", limit=0), "limit"),
        (lambda store: store.list_conversations(offset=-1), "offset"),
        (lambda store: store.list_conversations(limit=None), "limit"),
        (lambda store: store.search("c", "x", token_cap=-1), "token_cap"),
        (lambda store: store.search("c", "x", context=101), "context"),
        (lambda store: store.search("c", "x", archived=1), "archived"),
        (lambda store: store.append("c", user("x"), expected_revision=-1), "expected_revision"),
        (lambda store: store.create_conversation({"conversation_id": "c"}), "conversation"),
    ],
)
def test_an_error_names_the_parameter(ask: Callable[[Any], object], name: str) -> None:
    with HistoryStore("memory://") as store, pytest.raises(InvalidInputError) as caught:
        ask(store)
    assert str(caught.value).startswith(f"{name} must be ")
