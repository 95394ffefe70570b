"""Cursors and events as values."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_history._ids import new_token
from redis_history.changelog import token_of
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
    ReplyEnded,
    ReplyGrew,
    Reset,
    ResetReason,
)
from redis_history.model import Position, text, user

tokens = st.text("0123456789abcdef", min_size=16, max_size=16)
cursors = st.builds(Cursor, epoch=tokens, revision=st.integers(0, 2**53 - 1), token=tokens.map(token_of))


@given(cursors | st.just(BEGINNING) | st.builds(lambda: Cursor(new_token(), 1, token_of(new_token()))))
def test_cursors_survive_their_text_form(cursor: Cursor) -> None:
    assert Cursor.parse(str(cursor)) == cursor
    assert str(cursor) == f"{cursor.epoch}:{cursor.revision}:{cursor.token}"


A, T = "0123456789abcdef", "0123456789abcdef0123"


WRONG_TEXTS = [
    *("", ":", "::", A, "0" * 100_000, "\ud800", f"{A}:1", f"{A}:1:", f":1:{T}", f"{A}:1:{T}:1", f"{A.upper()}:1:{T}"),
    *(f"{A}:{revision}:{T}" for revision in ("", "-1", "+1", "1.0", "x", " 1", "9" * 17, "\u0663")),
    *(f"{A}:1:{T}\n", f"\n{A}:1:{T}", f"{A}:1:{T[1:]}", f"{A}:1:{T}0"),
]


@pytest.mark.parametrize(
    "wrong", [*WRONG_TEXTS, None, 5, b"x", [], Cursor(A, 1, T), f"{A}:1:{T}".encode()], ids=lambda one: repr(one)[:30]
)
def test_other_values_are_no_cursors(wrong: Any) -> None:
    with pytest.raises(InvalidCursorError) as caught:
        Cursor.parse(wrong)
    assert len(str(caught.value)) < 250


@given(st.text(max_size=60))
def test_parsed_texts_are_those_of_cursors(text: str) -> None:
    try:
        cursor = Cursor.parse(text)
    except InvalidInputError:
        return
    assert str(cursor) == text


def test_events_are_immutable_values() -> None:
    cursor = Cursor(A, 3, T)
    place: dict[str, Any] = {"conversation_id": "c", "revision": 3, "cursor": cursor}
    events: list[Event] = [
        MessagesAppended(messages=(user("x", id="m"),), **place),
        MessagesDeleted(message_ids=("m",), **place),
        MessageUpdated(message_id="m", message=user("x", id="m"), **place),
        ReplyGrew(message_id="m", offset=0, delta="x", parts=(text("x"),), **place),
        ReplyEnded(message_id="m", message=None, offset=0, delta="", **place),
        HistoryCleared(**place),
        HistoryCompacted(summary_id="m", summary=None, through=Position(5, 6), count=2, **place),
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
