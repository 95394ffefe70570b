"""Cursors and events as values."""

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_history.errors import InvalidCursorError
from redis_history.store.changelog import token_of
from redis_history.values.events import BEGINNING, Cursor, Reset, ResetReason
from redis_history.values.ids import new_token

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
def test_other_values_are_not_cursors(wrong: Any) -> None:
    with pytest.raises(InvalidCursorError) as caught:
        Cursor.parse(wrong)
    assert len(str(caught.value)) < 250


def test_the_reasons_of_a_reset_are_documented() -> None:
    assert Reset.__doc__ is not None
    for reason in get_args(ResetReason):
        assert f"`{reason}`" in Reset.__doc__
