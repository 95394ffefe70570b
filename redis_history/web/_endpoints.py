"""The endpoints of the HTTP interface."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from msgspec import UNSET
from msgspec.structs import replace
from starlette.responses import Response

from redis_history._version import __version__
from redis_history.backends.rules import FIRST_MESSAGES, preview
from redis_history.compaction.summaries import summary_text
from redis_history.errors import ConversationNotFoundError, MessageNotFoundError
from redis_history.json_form import message_of
from redis_history.model import Message, Position
from redis_history.operations import Preview
from redis_history.requests import owner_of
from redis_history.search.hits import SearchHits
from redis_history.web._http import MOST, Asked, Refused, answer, answer_of_state
from redis_history.web._shape import conversation_shape, dumps, glimpse, hit_shape, message_shape
from redis_history.web._view import View

_MOST_HITS: Final = 100
#: How many conversations one response examines, if a filter or missing rights may exclude some.
_EXAMINED: Final = 500
#: The largest offset: each response reads all records up to its end.
_LIST_END: Final = 10_000
#: Messages read at once, and bytes after which a response is full and says that there are more.
_PAGE: Final = 200
_FULL: Final = 8_000_000
#: Pages that a response reads at most beyond those that its limit needs.
_FURTHER_PAGES: Final = 3


async def status(view: View, asked: Asked) -> Response:
    found = await view.store.capabilities
    return answer(
        {
            "version": __version__,
            "namespace": view.store.namespace,
            "address": view.address,
            "read_only": view.read_only,
            # Only what a page needs. The rest describes the server, and is for its operator.
            "capabilities": {name: getattr(found, name) for name in ("backend", "mode", "search", "doorbell")},
            "summary_prefix": summary_text("").removesuffix("]"),
        }
    )


async def conversations(view: View, asked: Asked) -> Response:
    limit, offset = asked.number("limit", 50, 1, MOST), asked.number("cursor", 0, 0, _LIST_END)
    named, agent = asked.text("user_id"), asked.text("agent_name")
    owner = None if named is None else owner_of(named)
    count = limit if view.access.open else _EXAMINED
    found = await view.store.list_previews(user_id=owner, agent_name=agent, limit=count + 1, offset=offset)
    kept: list[Preview] = []
    examined = 0
    for one in found[:count]:
        if len(kept) == limit:
            break
        examined += 1
        if await view.access.allows(asked.request, one.conversation.conversation_id, "read"):
            kept.append(one)
    shapes = [conversation_shape(one.conversation) | {"label": one.title} for one in kept]
    if asked.flag("last"):
        shapes = [shape | {"last": glimpse(one.last_message)} for shape, one in zip(shapes, kept, strict=True)]
    offset += examined
    more = examined < len(found) and offset <= _LIST_END
    total = None
    if view.access.open and None in (owner, agent):  # both would take a read of all of them
        total = await view.store.count_conversations(user_id=owner, agent_name=agent)
    return answer({"conversations": shapes, "next": str(offset) if more else None, "total": total})


async def conversation(view: View, asked: Asked) -> Response:
    name = asked.conversation
    cursor = (await view.store.snapshot(name, limit=1)).cursor
    found = await view.store.get_conversation(name)
    if found is None:
        raise _unknown(name)
    first: list[Message] = []
    if not found.title:
        async for message in view.store.iter(name, batch=FIRST_MESSAGES):
            first.append(message)
            if len(first) == FIRST_MESSAGES:
                break
    shape = conversation_shape(found) | {"label": preview(found, first, []).title, "cursor": str(cursor)}
    return answer_of_state(asked, shape, cursor)


async def search(view: View, asked: Asked) -> Response:
    name = asked.conversation_id
    limit, query = asked.number("limit", 20, 1, _MOST_HITS), asked.text("q") or ""
    options: dict[str, Any] = {"since": asked.text("since"), "before": asked.text("before"), "highlight": True}
    options |= {"token_cap": None, "limit": limit if name is not None or view.access.open else _MOST_HITS}
    if (role := asked.text("role")) is not None:
        options["roles"] = [role]
    if (participant := asked.text("participant")) is not None:
        options["participant_ids"] = [participant]
    if (tool := asked.text("tool")) is not None:
        options["tool_names"] = [tool]
    if name is not None:
        hits = await view.store.search(name, query, **options)
    else:
        permitted = view.permits(asked.request)
        hits = await view.store.search_all(query, **options)
        if not view.access.open:
            allowed = [hit for hit in hits if await permitted(hit.conversation_id)]
            hits = SearchHits(allowed, len(allowed))
    return answer({"hits": list(map(hit_shape, hits[:limit])), "total": hits.total})


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
    page = {"messages": shapes, "more": more, "cursor": cursor}
    return answer(page) if cursor is None else answer_of_state(asked, page, cursor)


async def message(view: View, asked: Asked) -> Response:
    name = asked.conversation
    wanted = asked.needed("message")
    found = await view.store.get_message(name, wanted)
    if found is None:
        raise MessageNotFoundError(f"there is no message {wanted[:64]!r} in this conversation")
    return answer(message_shape(found, whole=True))


async def originals(view: View, asked: Asked) -> Response:
    """The originals of a summary: the archived messages up to its position, including earlier summaries."""
    name = asked.conversation
    wanted = asked.needed("message")
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


async def append(view: View, asked: Asked) -> Response:
    """Append a message, with the role and participant of the body (needs the right `append_as`), or else with role
    `user` and the signed-in participant. A repeated request with the same id stores the message once."""
    fields = {key: value for key, value in asked.body.items() if value is not None and key != "text"}
    if not isinstance(asked.body.get("text"), str):
        raise Refused(400, "bad_input", "text is missing: it must be a string")
    message = message_of({"role": "user", **fields, "parts": [asked.body["text"]]})
    if not asked.body.keys() & {"role", "participant"}:
        message = replace(message, participant=await view.signed_in(asked.request))
    done = await view.store.append(asked.conversation, message)
    return answer(
        {"revision": done.revision, "message": message_shape(done.message), "duplicate": done.duplicate},
        200 if done.duplicate else 201,
    )


async def update_conversation(view: View, asked: Asked) -> Response:
    changed = await view.store.update_conversation(asked.conversation, title=asked.body.get("title", UNSET))
    return answer(conversation_shape(changed))


async def delete_conversation(view: View, asked: Asked) -> Response:
    if not await view.store.delete_conversation(asked.conversation):
        raise _unknown(asked.conversation)
    return Response(status_code=204)


async def delete_message(view: View, asked: Asked) -> Response:
    wanted = asked.needed("message")
    if not await view.store.delete_messages(asked.conversation, [wanted]):
        raise MessageNotFoundError(f"there is no message {wanted[:64]!r} in this conversation")
    return Response(status_code=204)


async def expand(view: View, asked: Asked) -> Response:
    done = await view.store.expand(asked.conversation, asked.needed("message"))
    return answer({"revision": done.revision, "count": done.count})


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


def _unknown(conversation_id: str) -> ConversationNotFoundError:
    return ConversationNotFoundError(f"there is no conversation {conversation_id[:80]!r}")
