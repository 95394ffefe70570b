"""What can be read beside messages: how the view is set, the list, conversations, and what is found."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from redis_history._version import __version__
from redis_history.compaction.summaries import summary_text
from redis_history.errors import ConversationNotFoundError
from redis_history.model import Conversation
from redis_history.search.hits import SearchHit
from redis_history.web._answers import answer
from redis_history.web._asking import MOST, Asked
from redis_history.web._overview import newest_of
from redis_history.web._shape import conversation_shape, glimpse, hit_shape, writer
from redis_history.web._view import View

__all__ = ["conversation", "conversations", "search", "status"]

_MOST_HITS: Final = 100
#: How often the list or a search is asked again for what this reader may see.
_ROUNDS: Final = 10


async def status(view: View, request: Request) -> Response:
    await view.access.check(request, None, "list")
    found = await view.store.capabilities
    return answer(
        {
            "version": __version__,
            "namespace": view.store.namespace,
            "address": view.address,
            "read_only": view.read_only,
            # What a page needs to know; the rest is about the server, and its operator's business.
            "capabilities": {name: getattr(found, name) for name in ("backend", "mode", "search", "doorbell")},
            "summary_prefix": summary_text("").removesuffix("]"),
        }
    )


async def conversations(view: View, request: Request) -> Response:
    asked = Asked(request)
    await view.access.check(request, None, "list")
    limit, offset = asked.number("limit", 50, 1, MOST), asked.number("offset", 0, 0, 10**6)
    owner, agent = asked.text("user_id"), asked.text("agent_name")
    kept: list[Conversation] = []
    more, rounds = True, 0
    while more and len(kept) < limit and rounds < _ROUNDS:
        found = await view.store.list_conversations(user_id=owner, agent_name=agent, limit=limit + 1, offset=offset)
        more = len(found) > limit
        rounds += 1
        for one in found[:limit]:
            if len(kept) == limit:
                more = True
                break
            offset += 1
            if await view.access.allows(request, one.conversation_id, "read"):
                kept.append(one)
    shapes = list(map(conversation_shape, kept))
    if asked.flag("last"):
        for shape in shapes:
            newest = await newest_of(view.store, shape["id"])
            shape |= {"last": glimpse(newest), "writer": writer(newest)}
    return answer({"conversations": shapes, "more": more, "next_offset": offset})


async def conversation(view: View, request: Request) -> Response:
    name = Asked(request).conversation()
    await view.access.check(request, name, "read")
    cursor = (await view.store.snapshot(name, limit=1)).cursor
    found = await view.store.get_conversation(name)
    if found is None:
        raise ConversationNotFoundError(f"there is no conversation {name[:80]!r}")
    return answer(conversation_shape(found) | {"cursor": str(cursor)})


async def search(view: View, request: Request) -> Response:
    asked = Asked(request)
    name = None if asked.text("conversation") is None else asked.conversation()
    await view.access.check(request, name, "list" if name is None else "read")
    limit, query = asked.number("limit", 20, 1, _MOST_HITS), asked.text("q") or ""
    options: dict[str, Any] = {"since": asked.text("since"), "before": asked.text("before"), "highlight": True}
    options |= {"token_cap": None, "limit": limit}
    if (role := asked.text("role")) is not None:
        options["roles"] = [role]
    if (participant := asked.text("participant")) is not None:
        options["participant_ids"] = [participant]
    hits: list[SearchHit] = []
    if name is not None:
        hits = await view.store.search(name, query, **options)
    else:
        for offset in range(0, _ROUNDS * limit, limit):
            found = await view.store.search_all(query, offset=offset, **options)
            hits += [hit for hit in found if await view.access.allows(request, hit.conversation_id, "read")]
            if view.access.open or len(found) < limit or len(hits) >= limit:
                break
    return answer({"hits": list(map(hit_shape, hits[:limit]))})
