"""Reads that take several pages, by hand: all messages come once and in order, whatever cannot be read between them."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from redis_history.model import Message, user
from redis_history.model.wire import placed
from redis_history.operations import Page, ReadPage
from redis_history.operations import page as paging


def _read(op: ReadPage, stored: list[Message | None]) -> Page:
    """The messages of a backend; None: an unreadable message."""
    numbered = list(enumerate(stored, 1))
    if op.before is not None:
        numbered = [one for one in numbered if one[0] < op.before.sequence]
    if op.after is not None:
        numbered = [one for one in numbered if one[0] > op.after.sequence]
    page = numbered[-op.limit :] if op.newest else numbered[: op.limit]
    return Page([message for _, message in page if message], sum(message is None for _, message in page))


def _stored(readable: list[bool]) -> list[Message | None]:
    return [placed(user("x"), n, n) if there else None for n, there in enumerate(readable, 1)]


readable = st.lists(st.booleans(), max_size=40)


@given(readable, st.none() | st.integers(0, 50), st.none() | st.integers(1, 3), st.integers(1, 9))
def test_the_newest_matching_messages(readable: list[bool], limit: int | None, each: int | None, size: int) -> None:
    stored = _stored(readable)

    def wanted(message: Message) -> bool:
        return (message.sequence or 0) % (each or 1) == 0

    steps: Any = paging.newest_messages(ReadPage("c", size, newest=True), limit, None if each is None else wanted)
    try:
        op = next(steps)
        while True:
            op = steps.send(_read(op, stored))
    except StopIteration as end:
        found = end.value
    expected = [message for message in stored if message and wanted(message)]
    assert found == (expected if limit is None else expected[max(0, len(expected) - limit) :])


@given(readable, st.integers(1, 9), st.booleans())
def test_page_after_page(readable: list[bool], size: int, newest: bool) -> None:
    stored, pages = _stored(readable), []
    op: ReadPage | None = ReadPage("c", size, newest=newest)
    while op is not None:
        page = _read(op, stored)
        assert len(page.messages) <= op.limit
        pages.append(page.messages)
        op = paging.next_page(op, page, size)
    if newest:
        pages.reverse()
    assert [message for page in pages for message in page] == [message for message in stored if message]
