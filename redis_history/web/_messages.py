"""Messages of a conversation: by pages, one whole, and what a summary stands for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from redis_history.errors import MessageNotFoundError
from redis_history.model import Message, Position
from redis_history.web._answers import answer
from redis_history.web._asking import MOST, Asked
from redis_history.web._shape import dumps, message_shape
from redis_history.web._view import View

__all__ = ["archived", "message", "messages"]

#: Messages read at once, and bytes after which an answer is full: then it says that there is more.
_PAGE: Final = 200
_FULL: Final = 8_000_000


async def messages(view: View, request: Request) -> Response:
    asked = Asked(request)
    name = asked.conversation()
    await view.access.check(request, name, "read")
    limit = asked.number("limit", 200, 1, MOST)
    before, since = _position(asked, "before"), _position(asked, "since")
    archived = asked.flag("include_archived")
    if since is not None and asked.flag("first"):
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

    shapes, more = await _gathered(older, limit, before, newest)
    return answer({"messages": shapes, "more": more, "cursor": cursor})


async def message(view: View, request: Request) -> Response:
    asked = Asked(request)
    name = asked.conversation()
    await view.access.check(request, name, "read")
    wanted = asked.needed("id")
    found = await view.store.get_message(name, wanted)
    if found is None:
        raise MessageNotFoundError(f"there is no message {wanted[:64]!r} in this conversation")
    return answer(message_shape(found, whole=True))


async def archived(view: View, request: Request) -> Response:
    """What a summary stands for: the archived messages up to its place, former summaries among them."""
    asked = Asked(request)
    name = asked.conversation()
    await view.access.check(request, name, "read")
    wanted = asked.needed("summary")
    limit, before = asked.number("limit", MOST, 1, MOST), _position(asked, "before")
    summary = await view.store.get_message(name, wanted)
    if summary is None or summary.position is None or not summary.is_summary:
        raise MessageNotFoundError(f"there is no summary {wanted[:64]!r} in this conversation")
    upper = Position(summary.position.timestamp, summary.position.sequence + 1)
    # What stands before a summary was never replaced by it: system messages, and what came with an older time since.
    standing = {one.id for one in await view.store.get(name, before=upper)} | {summary.id}

    async def older(most: int, than: Position | None) -> list[Message]:
        return await view.store.get(name, limit=most, before=than, include_archived=True)

    start = upper if before is None else min(before, upper)
    shapes, more = await _gathered(older, limit, start, None, lambda one: one.id not in standing)
    return answer({"messages": shapes, "more": more})


async def _first(messages: AsyncIterator[Message], limit: int) -> tuple[list[dict[str, Any]], bool]:
    """The first of some messages, `limit` or as many as an answer should carry; whether there are more."""
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
    wanted: Callable[[Message], bool] = lambda _: True,
) -> tuple[list[dict[str, Any]], bool]:
    """The newest `limit` messages before a position, or as many as an answer should carry, ascending; whether there are
    more. `newest` are those of the first page, if they are known: one more than it shows.

    A former summary has the place of the last message that it replaced: of such messages, all or none are given,
    because the next request goes on before that place.
    """
    shapes: list[dict[str, Any]] = []
    size, more = 0, True
    while more and len(shapes) < limit and size < _FULL:
        most = min(limit - len(shapes), _PAGE)
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
            if wanted(one):
                shapes.append(message_shape(one))
                size += len(dumps(shapes[-1]))
    return shapes[::-1], more


def _position(asked: Asked, name: str) -> Position | None:
    text = asked.text(name)
    return None if text is None else Position.parse(text)
