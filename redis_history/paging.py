"""Reads of several pages. Generators without I/O: they yield an operation and receive its outcome."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from redis_history.model import Message
from redis_history.operations import Op, Page, ReadPage

T = TypeVar("T")
Reads = Generator[Op[Any], Any, T]

#: Messages read at once. Larger reads go page by page, so that no single one holds the server for long.
PAGE: Final = 2000


def next_page(op: ReadPage, page: Page, size: int) -> ReadPage | None:
    """The read of `size` messages after `page`, which `op` has read; None: that was all. A page without readable
    messages has no end position, so a larger one is read instead."""
    if len(page.messages) + page.unreadable < op.limit:
        return None
    if not page.messages:
        return replace(op, limit=4 * op.limit)
    if op.newest:
        return replace(op, limit=size, before=page.messages[0].position)
    return replace(op, limit=size, after=page.messages[-1].position)


def newest_messages(
    first: ReadPage, limit: int | None, wanted: Callable[[Message], bool] | None
) -> Reads[list[Message]]:
    """The newest `limit` messages that pass the filter `wanted`, or all, ascending. `first` reads the newest page."""
    pages: list[list[Message]] = []
    found = 0
    op: ReadPage | None = first
    if wanted is None and limit is not None:
        op = replace(first, limit=min(PAGE, limit))
    while op is not None and (limit is None or found < limit):
        page = yield op
        messages = page.messages if wanted is None else list(filter(wanted, page.messages))
        if messages:
            pages.append(messages)
            found += len(messages)
        op = next_page(op, page, PAGE if wanted is not None or limit is None else min(PAGE, limit - found))
    pages.reverse()
    every = pages[0] if len(pages) == 1 else [message for one in pages for message in one]
    return every if limit is None or found <= limit else every[found - limit :]
