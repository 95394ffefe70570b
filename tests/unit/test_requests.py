"""Arguments are checked before anything is sent, and errors name the parameter."""

import itertools
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial, reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from redis_history import (
    AsyncHistoryStore,
    Conversation,
    HistoryStore,
    PromptOptions,
    RetryPolicy,
    assistant,
    system,
    tool_use,
    user,
)
from redis_history.errors import (
    BatchTooLargeError,
    ConfigurationError,
    InvalidConversationIdError,
    InvalidCursorError,
    InvalidInputError,
    InvalidMessageError,
    InvalidTimestampError,
    MessageTooLargeError,
)
from redis_history.store.memory.backend import MemoryBackend
from redis_history.store.operations.append import MAX_BATCH_BYTES, MAX_BATCH_MESSAGES, Append
from redis_history.values import Position
from redis_history.values.beside import LARGE_BYTES
from redis_history.values.filters import make_filters
from redis_history.values.ids import owner_of, owner_text
from tests.property.strategies import microseconds

BOTTOM: Any = "x"
DEEP = reduce(lambda inner, _: [inner], range(2000), BOTTOM)
X = user("x")
BAD_REVISIONS: list[Any] = [-1, 2**53, 1.0, "1", True, [], float("nan")]
BAD_BOUNDS: list[Any] = ["", "yesterday", "1.2.3", "x.y", "2026", float("nan"), True, b"1.1", [], (1, 2), 1e18]
BAD_POSITIONS: list[Any] = [Position(*one) for one in [("a", "b"), (1.5, 2), (1, None), (True, 1)]]  # type: ignore[arg-type]
BAD_LISTS: list[Any] = [None, 5, "hello", [None], [5], ["hello"], [{"role": "user"}], X, {"a": 1}]
BAD_IDS: list[Any] = ["m1", None, 5, b"m1", [None], [5], [b"m"], [["m"]], [""], ["x" * 513], ["\ud800"]]
BAD_FILTERS: list[dict[str, Any]] = [
    *({"roles": one} for one in ("user", 5, [["user"]], ["human"])),
    *({"participant_ids": one} for one in ("ann", 5, [["ann"]], [1])),
    *({"scope": one} for one in ("room", ["dm"])),
]
SUMMARY: Any = {"metadata": {"is_summary": True}}
BAD_SUMMARIES = [system("x", **SUMMARY), user("\ud800", **SUMMARY), user(tool_use("1", "f"), **SUMMARY)]
BAD_METADATA: list[Any] = [{"n": 2**70}, {"n": float("nan")}, {1: "key"}]
BAD_RECORDS: list[dict[str, Any]] = [
    *({"title": 5}, {"user_id": True}, {"auditing_id": False}, {"user_id": 1.0}, {"user_id": b"ann"}),
    *({"user_id": 2**63}, {"auditing_id": -(2**63) - 1}, {"metadata": None}, {"metadata": {"a": object()}}),
    *({"metadata": {"a": (1, 2)}}, {"title": "\ud800"}, {"metadata": {"a": "x" * 200_000}}),
]

#: By the method of a store: calls that must fail, the arguments after the conversation's id.
BAD_CALLS: dict[str, list[Any]] = {
    "append": [
        *(((one,), {}) for one in ("text", None, user("lone \ud800"), user("x", id="\ud800"), user("x", id="i" * 513))),
        *(((user("x", metadata=one),), {}) for one in BAD_METADATA),
        *(((one,), {}) for one in (user("x", metadata={"f": object()}), user("x", metadata={"deep": DEEP}))),
        *(((one,), {}) for one in (user("x" * 64_000_001), assistant(tool_use("1", "f", DEEP)))),
        *(((one,), {}) for one in (replace(X, participant="bob"), replace(X, trace_id=7), replace(X, metadata=["k"]))),
        *(((X,), {"expected_revision": one}) for one in BAD_REVISIONS),
        ((X,), {"must_exist": True, "must_not_exist": True}),
    ],
    "append_many": [
        *(((one,), {}) for one in BAD_LISTS),
        (([user("good"), user("\ud800")],), {}),
        (((user("x") for _ in itertools.count()),), {}),
        (([user("x" * (LARGE_BYTES - 100)) for _ in range(MAX_BATCH_BYTES // (LARGE_BYTES - 100) + 1)],), {}),
        *((([X],), {"expected_revision": one}) for one in BAD_REVISIONS),
    ],
    "restore": [*(((one,), {}) for one in BAD_LISTS), (([user("x") for _ in range(1001)],), {})],
    "update_message": [((user("\ud800", id="m"),), {}), ((None,), {})],
    "delete_messages": [
        *(((one,), {}) for one in BAD_IDS),
        (([str(number) for number in range(1001)],), {}),
        *(((["m"],), {"expected_revision": one}) for one in BAD_REVISIONS),
    ],
    "update_conversation": [((), {}), *(((), one) for one in BAD_RECORDS)],
    "merge_metadata": [
        *(((one,), {}) for one in (None, {}, [], "ab", [("a", 1)], {1: 2}, {None: 1}, {"\ud800": 1}, {"a": "\ud800"})),
        *(((one,), {}) for one in ({"a": object()}, {"a": (1, 2)}, {"a": DEEP}, {"a": 2**64}, {"a": "x" * 200_000})),
    ],
    "compact": [((), {"through": one, "summary": "s"}) for one in [*BAD_POSITIONS, 5, ""]]
    + [((), {"through": "m", "summary": one}) for one in ("", " ", 5, None, b"x", X, *BAD_SUMMARIES)]
    + [((), {"through": "m", "summary": "s", "seen": one}) for one in ("m", [5], ["m"], X)],
    "stream": [
        *(((), one) for one in ({"timestamp": 5}, {"status": "complete"}, {"role": "god"}, {"nonsense": 1})),
        *(((), {"interval": one}) for one in (-1, 11, "1", None)),
    ],
    "get": [
        *(((), {"limit": one}) for one in (-1, 1.0, "1", True, float("inf"))),
        *(((), {name: one}) for name in ("since", "before") for one in BAD_BOUNDS + BAD_POSITIONS),
        *(((), one) for one in BAD_FILTERS),
    ],
    "iter": [((), {"batch": one}) for one in (None, 0, -1, 100_001, 1.0, "1", True)],
    "get_message": [((one,), {}) for one in (None, 5, "", "\ud800", "x" * 513)],
    "snapshot": [((), {"limit": one}) for one in (0, 100_001, None)],
    "search": [
        *(((one,), {}) for one in (None, 5, b"bytes", ["list"])),
        *((("x",), {"limit": one}) for one in (-1, None)),
        *((("x",), one) for one in ({"offset": -1}, {"token_cap": -1}, {"context": -1}, {"context": 101})),
        *((("x",), one) for one in ({"token_counter": 5}, {"token_counter": "words"}, {"archived": 1})),
        *((("x",), {"tool_names": one}) for one in ("f", [None])),
        *((("x",), one) for one in BAD_FILTERS),
        *((("x",), {"since": one}) for one in BAD_BOUNDS),
    ],
    "subscribe": [((), {"after": one}) for one in ("", "0", "a:b:c", "0:0:0", 5, f"{'0' * 16}:-1:{'0' * 16}")],
}


@pytest.mark.proves("checked-first")
@pytest.mark.parametrize("method", BAD_CALLS)
def test_wrong_arguments_are_rejected_before_anything_is_written(method: str) -> None:
    with HistoryStore("memory://") as store:
        store.append("c", user("x", id="m"))
        before = store.get_conversation("c")
        for arguments, options in BAD_CALLS[method]:
            with pytest.raises(InvalidInputError) as caught:
                tuple(getattr(store, method)("c", *arguments, **options))
            if options and method != "subscribe":  # whose errors name a cursor
                assert any(name in str(caught.value) for name in (*options, "text of the message"))
        assert store.get_conversation("c") == before
        assert len(store.list_conversations()) == 1


CALLS: list[Callable[[HistoryStore, Any], object]] = [
    lambda store, name: store.append(name, X),
    lambda store, name: store.append_many(name, [X]),
    lambda store, name: store.restore(name, [X]),
    lambda store, name: store.update_message(name, X),
    lambda store, name: store.delete_messages(name, ["m"]),
    lambda store, name: store.create_conversation(Conversation(name)),
    lambda store, name: store.update_conversation(name, title="x"),
    lambda store, name: store.merge_metadata(name, {"a": 1}),
    lambda store, name: store.delete_conversation(name),
    lambda store, name: store.clear(name),
    lambda store, name: store.erase(name),
    lambda store, name: store.compact(name, through="m", summary="s"),
    lambda store, name: store.expand(name, "m"),
    lambda store, name: store.stream(name),
    lambda store, name: store.get(name),
    lambda store, name: list(store.iter(name)),
    lambda store, name: store.get_message(name, "m"),
    lambda store, name: store.get_conversation(name),
    lambda store, name: store.snapshot(name),
    lambda store, name: store.search(name, "x"),
    lambda store, name: store.search_all("x", conversation_ids=[name]),
    lambda store, name: store.subscribe(name),
    lambda store, name: store.subscribe_all(after={name: f"{'0' * 16}:0:{'0' * 20}"}),
]


@pytest.mark.parametrize("name", ["", "x" * 513, "é" * 257, "lone \ud800", 7, None])
def test_bad_conversation_ids(name: Any) -> None:
    with HistoryStore("memory://") as store:
        for call in CALLS:
            with pytest.raises(InvalidInputError, match="conversation_id"):
                call(store, name)


@pytest.mark.parametrize(
    ("name", "call"),
    {
        "new_id": lambda store, wrong: store.fork("c", wrong),
        "through": lambda store, wrong: store.fork("c", through=wrong),
        "summary_id": lambda store, wrong: store.expand("c", wrong),
        "forked_from": lambda store, wrong: store.list_conversations(forked_from=wrong),
        "now": lambda store, wrong: PromptOptions(now=wrong),
    }.items(),
)
def test_an_error_names_the_parameter_that_is_wrong(name: str, call: Callable[[HistoryStore, Any], object]) -> None:
    with HistoryStore("memory://") as store:
        store.append("c", X)
        for wrong in (b"x", "\ud800"):
            with pytest.raises(InvalidInputError, match=name):
                call(store, wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"limit": -1}, {"limit": None}, {"offset": None}, {"limit": "5"}, {"offset": -1}, {"user_id": True}),
        *({"user_id": 1.0}, {"user_id": 2**63}, {"user_id": ["a"]}, {"agent_name": ["a"]}),
        *({"user_id": "\ud800"}, {"agent_name": "\ud800"}),
    ],
    ids=str,
)
def test_wrong_arguments_of_lists(wrong: Any) -> None:
    with HistoryStore("memory://") as store:
        calls: list[Any] = [
            store.list_conversations,
            partial(store.list_conversations, preview=True),
            partial(store.search_all, "x"),
        ]
        for call in calls:
            with pytest.raises(InvalidInputError, match=next(iter(wrong))):
                call(**wrong)
        with pytest.raises(InvalidInputError):
            store.create_conversation("c")  # type: ignore[arg-type]
        with pytest.raises(InvalidCursorError):
            store.subscribe_all(after="")  # type: ignore[arg-type]


@pytest.mark.usefixtures("small_caps")
def test_errors_have_kinds() -> None:
    with HistoryStore("memory://") as store:
        for kind, call in (
            (InvalidConversationIdError, lambda: store.get("")),
            (InvalidMessageError, lambda: store.append("c", user("\ud800"))),
            (InvalidTimestampError, lambda: store.get("c", since=float("nan"))),
            (MessageTooLargeError, lambda: store.append("c", user("x" * 5_000_000))),
            (BatchTooLargeError, lambda: store.append_many("c", (user("x") for _ in itertools.count()))),
        ):
            with pytest.raises(kind):
                call()


def test_a_batch_up_to_its_caps() -> None:
    assert len(Append.batch("c", (user("x") for _ in range(MAX_BATCH_MESSAGES))).op.entries) == MAX_BATCH_MESSAGES
    half = "x" * (MAX_BATCH_BYTES // 2 - 100)
    assert len(Append.batch("c", [user(half), user(half)]).op.entries) == 2
    one = user("x" * (MAX_BATCH_BYTES - 100))
    assert len(Append.batch("c", [one] * 5).op.entries) == 1, "a message that is sent once counts once"


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
    filters = make_filters(since=bound, before=bound)
    assert filters.before == position
    instant = position is not None and position.sequence == 0
    assert filters.since == (position._replace(sequence=2**53 - 1) if instant and position else position)


@given(microseconds, st.integers(1, 2**53 - 1))
def test_a_position_as_text_is_the_same_bound(timestamp: int, sequence: int) -> None:
    position = Position(timestamp, sequence)
    filters = make_filters(since=str(position), before=str(position))
    assert filters.since == filters.before == position


@given(st.integers(-(2**63), 2**63 - 1) | st.text(st.characters(codec="utf-8")) | st.integers().map(str))
def test_the_text_of_an_owner_names_this_owner(owner: int | str) -> None:
    for each in (owner, f'"{owner}"', f'"{owner}', str(owner)):
        found = owner_of(owner_text(each))
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
    found = owner_of(text)
    assert (type(found), found) == (type(owner), owner)


OPTIONS: list[dict[str, Any]] = [
    *({"log_length": one} for one in (-1, 1.5, "1000", None, True, 2**63)),
    *({"poll_interval": one} for one in (-1, float("nan"), float("inf"), "3", None, [1], True)),
    *({"durable_server": one} for one in (True, 1, "yes", None)),
    *({"durability_timeout": one} for one in (0, float("inf"), "5")),
    *({"log_length": 0}, {"ttl": 0}, {"ttl": "1"}, {"ttl": float("nan")}, {"ttl": 10**400}, {"poll_interval": 0}),
    *({"max_messages": 0}, {"max_messages": 1.5}, {"max_messages": "5"}, {"max_messages": True}),
    *({"durability": "disk"}, {"durability": "fsync"}, {"durability_timeout": float("nan")}),
    *({"search": True}, {"search": "require"}, {"language": ["english"]}, {"language": "klingon"}),
    *({"embedder": "model", "vectors": 3}, {"embedder": len}),
    *({"retry": 5}, {"codec": "zstd"}, {"codec": "gzip"}, {"max_conversations": -1}),
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_an_error_names_the_option_and_the_value(options: dict[str, Any]) -> None:
    name, value = next(iter(options.items()))
    with pytest.raises(ConfigurationError, match=name) as caught:
        HistoryStore("memory://", **options)
    assert repr(value)[:40] in str(caught.value) or value is len
    assert len(str(caught.value)) < 400
    with pytest.raises(ConfigurationError):
        AsyncHistoryStore("redis://localhost", max_conversations=5)


@pytest.mark.parametrize(
    "options",
    [{"url": "memory://"}, {"ttl": 5}, {"max_messages": 5}, {"max_conversations": None}, {"retry": RetryPolicy()}],
)
def test_a_backend_has_its_own_options(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        HistoryStore(**options, backend=MemoryBackend())
