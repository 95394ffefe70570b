"""Endpoints for messages: pages of a conversation, a single message, and the originals of a summary."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from starlette.responses import Response

from redis_history.errors import MessageNotFoundError
from redis_history.model import Message, Position
from redis_history.web._answers import answer
from redis_history.web._asking import MOST, Asked
from redis_history.web._shape import dumps, message_shape
from redis_history.web._view import View

__all__ = ["archived", "message", "messages"]

#: Messages read at once, and bytes after which a response is full and says that there are more.
_PAGE: Final = 200
_FULL: Final = 8_000_000
#: Pages that a response reads at most beyond those that its limit needs.
_FURTHER_PAGES: Final = 3


async def messages(view: View, asked: Asked) -> Response:
    name = asked.conversation
    limit = asked.number("limit", 200, 1, MOST)
    before, since = _position(asked, "before"), _position(asked, "since")
    archived, first = asked.flag("include_archived"), asked.flag("first")
    if since is not None and first:
        oldest = view.store.iter(
            name, batch=min(limit + 1, _PAGE), since=since, before=before, include_archived=archived
        )
        shapes, more = await _first(oldest, limit)
        return answer({"messages": shapes, "more": more, "cursor": None})
    cursor = None
    newest: list[Message] | None = None
    if before is None and since is None:
        snapshot = await view.store.snapshot(name, limit=min(limit, _PAGE) + 1)
        cursor = str(snapshot.cursor)
        newest = None if archived else snapshot.messages

    async def older(most: int, than: Position | None) -> list[Message]:
        return await view.store.get(name, limit=most, before=than, since=since, include_archived=archived)

    shapes, more, _ = await _gathered(older, limit, before, newest)
    return answer({"messages": shapes, "more": more, "cursor": cursor})


async def message(view: View, asked: Asked) -> Response:
    name = asked.conversation
    wanted = asked.needed("id")
    found = await view.store.get_message(name, wanted)
    if found is None:
        raise MessageNotFoundError(f"there is no message {wanted[:64]!r} in this conversation")
    return answer(message_shape(found, whole=True))


async def archived(view: View, asked: Asked) -> Response:
    """The originals of a summary: the archived messages up to its position, including earlier summaries."""
    name = asked.conversation
    wanted = asked.needed("summary")
    limit, before = asked.number("limit", MOST, 1, MOST), _position(asked, "before")
    summary = await view.store.get_message(name, wanted)
    if summary is None or summary.position is None or not summary.is_summary:
        raise MessageNotFoundError(f"there is no summary {wanted[:64]!r} in this conversation")
    upper = Position(summary.position.timestamp, summary.position.sequence + 1)
    standing = {summary.id}

    async def older(_: int, than: Position | None) -> list[Message]:
        page = await view.store.get(name, limit=_PAGE + 1, before=than, include_archived=True)
        # The summary did not replace live messages before it: system messages, and messages that were appended
        # later with an older time.
        first = page[0].position if page else None
        since = None if first is None else first._replace(sequence=first.sequence - 1)  # includes the first message
        live = await view.store.get(name, since=since, before=than) if page else []
        standing.update(one.id for one in live)
        return page

    start = upper if before is None else min(before, upper)
    shapes, more, place = await _gathered(older, limit, start, None, standing)
    return answer({"messages": shapes, "more": more, "before": str(place) if more else None})


async def _first(messages: AsyncIterator[Message], limit: int) -> tuple[list[dict[str, Any]], bool]:
    """The first `limit` messages, or as many as fit in a response; and whether there are more."""
    shapes: list[dict[str, Any]] = []
    size = 0
    async for one in messages:
        if len(shapes) == limit or size >= _FULL:
            return shapes, True
        shapes.append(message_shape(one))
        size += len(dumps(shapes[-1]))
    return shapes, False


async def _gathered(
    older: Callable[[int, Position | None], Awaitable[list[Message]]],
    limit: int,
    before: Position | None,
    newest: list[Message] | None,
    left_out: set[str] | None = None,
) -> tuple[list[dict[str, Any]], bool, Position | None]:
    """The newest `limit` messages before a position, or as many as fit in a response, ascending; whether there are
    more; and the position before which those are.

    `newest`: the messages of the first page, if known: one more than the page shows. `left_out`: ids to skip, filled
    while pages are read. With it, pages have `_PAGE` messages and their number is limited, so that many skipped
    messages do not delay the response.

    An earlier summary has the position of the last message that it replaced. A response contains all or none of the
    messages of one position, because the next request continues before that position.
    """
    shapes: list[dict[str, Any]] = []
    size, more = 0, True
    for _ in range(limit // _PAGE + _FURTHER_PAGES):
        if not more or len(shapes) >= limit or size >= _FULL:
            break
        most = _PAGE if left_out else min(limit - len(shapes), _PAGE)
        page = newest if newest is not None else await older(most + 1, before)
        newest = None
        more = len(page) > most
        if more:
            page = [one for one in page if one.position != page[0].position] or page
        for one in reversed(page):
            if one.position != before and (len(shapes) >= limit or size >= _FULL):
                more = True
                break
            before = one.position
            if not left_out or one.id not in left_out:
                shapes.append(message_shape(one))
                size += len(dumps(shapes[-1]))
    return shapes[::-1], more, before


def _position(asked: Asked, name: str) -> Position | None:
    text = asked.text(name)
    return None if text is None else Position.parse(text)
