"""Cursors and events as values."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_history._ids import new_token
from redis_history.errors import InvalidCursorError, InvalidInputError
from redis_history.events import (
    BEGINNING,
    Change,
    ConversationDeleted,
    ConversationUpdated,
    Cursor,
    Event,
    HistoryCleared,
    HistoryCompacted,
    HistoryExpanded,
    HistoryRestored,
    MessagesAppended,
    MessagesDeleted,
    MessageUpdated,
    Reset,
    ResetReason,
)
from redis_history.model import user

tokens = st.text("0123456789abcdef", min_size=16, max_size=16)
cursors = st.builds(Cursor, epoch=tokens, revision=st.integers(0, 2**53 - 1), token=tokens)


@given(cursors)
def test_a_cursor_there_and_back(cursor: Cursor) -> None:
    assert Cursor.parse(str(cursor)) == cursor
    assert str(cursor) == f"{cursor.epoch}:{cursor.revision}:{cursor.token}"


def test_the_cursors_that_are_given_out() -> None:
    assert Cursor.parse(str(BEGINNING)) == BEGINNING
    made = Cursor(new_token(), 1, new_token())
    assert Cursor.parse(str(made)) == made


A = "0123456789abcdef"


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        ":",
        "::",
        A,
        f"{A}:1",
        f"{A}:1:",
        f":1:{A}",
        f"{A}::{A}",
        f"{A}:-1:{A}",
        f"{A}:+1:{A}",
        f"{A}:1.0:{A}",
        f"{A}:x:{A}",
        f"{A}: 1:{A}",
        f"{A}:1:{A}\n",
        f"\n{A}:1:{A}",
        f"{A.upper()}:1:{A}",
        f"{A}:1:{A[1:]}",
        f"{A}:1:{A}0",
        f"{A}:1:{A}:1",
        f"{A}:{'9' * 17}:{A}",
        f"{A}:\u0663:{A}",
        "0" * 100_000,
        "\ud800",
    ],
    ids=lambda wrong: repr(wrong)[:30],
)
def test_text_that_is_no_cursor(wrong: str) -> None:
    with pytest.raises(InvalidCursorError, match="cursor") as caught:
        Cursor.parse(wrong)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("wrong", [None, 5, b"x", [], Cursor(A, 1, A), f"{A}:1:{A}".encode()])
def test_what_is_not_even_text(wrong: Any) -> None:
    with pytest.raises(InvalidCursorError):
        Cursor.parse(wrong)


@given(st.text(max_size=60))
def test_nothing_but_a_cursor_is_taken_for_one(text: str) -> None:
    try:
        cursor = Cursor.parse(text)
    except InvalidInputError:
        return
    assert str(cursor) == text


def test_events_are_immutable_values() -> None:
    cursor = Cursor(A, 3, A)
    place: dict[str, Any] = {"conversation_id": "c", "revision": 3, "cursor": cursor}
    events: list[Event] = [
        MessagesAppended(messages=(user("x", id="m"),), **place),
        MessagesDeleted(message_ids=("m",), **place),
        MessageUpdated(message=user("x", id="m"), **place),
        HistoryCleared(**place),
        HistoryCompacted(summary=user("x", id="m"), count=2, **place),
        HistoryExpanded(summary_id="m", count=2, **place),
        HistoryRestored(messages=(user("x", id="m"),), **place),
        ConversationUpdated(fields={"title": "t"}, **place),
        ConversationDeleted(**place),
        Reset(reason="log_trimmed", **place),
    ]
    for event in events:
        assert isinstance(event, Change)
        assert (event.conversation_id, event.revision, event.cursor) == ("c", 3, cursor)
        with pytest.raises(AttributeError):
            event.revision = 4  # type: ignore[misc]
    assert len({type(event) for event in events}) == len(get_args(Event))


def test_the_reasons_of_a_reset_are_documented() -> None:
    assert Reset.__doc__ is not None
    for reason in get_args(ResetReason):
        assert f"`{reason}`" in Reset.__doc__
