"""Endpoints that read: the status of the view, the list of conversations, one conversation, and search."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from redis_history._version import __version__
from redis_history.compaction.summaries import summary_text
from redis_history.errors import ConversationNotFoundError
from redis_history.model import Conversation
from redis_history.requests import owner_of
from redis_history.web._answers import answer
from redis_history.web._asking import MOST, Asked
from redis_history.web._shape import conversation_shape, glimpse, hit_shape, writer
from redis_history.web._view import View
from redis_history.web.access import Permits

__all__ = ["conversation", "conversations", "search", "status"]

_MOST_HITS: Final = 100
#: How many conversations one response examines, if a filter or missing rights may exclude some.
_LOOKED_AT: Final = 500
#: The largest offset: each response reads all records up to its end.
_LIST_END: Final = 10_000


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
    limit, offset = asked.number("limit", 50, 1, MOST), asked.number("offset", 0, 0, _LIST_END)
    named, agent = asked.text("user_id"), asked.text("agent_name")
    owner = None if named is None else owner_of(named)
    count = limit if view.access.open and owner is None and agent is None else _LOOKED_AT
    found = await view.store.list_conversations(limit=count + 1, offset=offset)
    kept: list[Conversation] = []
    looked_at = 0
    for one in found[:count]:
        if len(kept) == limit:
            break
        looked_at += 1
        if (
            (owner is None or (owner == one.user_id and type(owner) is type(one.user_id)))
            and (agent is None or agent == one.agent_name)
            and await view.access.allows(asked.request, one.conversation_id, "read")
        ):
            kept.append(one)
    shapes = list(map(conversation_shape, kept))
    if asked.flag("last"):
        newest = await view.store.newest_messages([one.conversation_id for one in kept])
        shapes = [
            shape | {"last": glimpse(last), "writer": writer(last)} for shape, last in zip(shapes, newest, strict=True)
        ]
    offset += looked_at
    more = looked_at < len(found) and offset <= _LIST_END
    return answer({"conversations": shapes, "more": more, "next_offset": offset})


async def conversation(view: View, asked: Asked) -> Response:
    name = asked.conversation
    cursor = (await view.store.snapshot(name, limit=1)).cursor
    found = await view.store.get_conversation(name)
    if found is None:
        raise ConversationNotFoundError(f"there is no conversation {name[:80]!r}")
    return answer(conversation_shape(found) | {"cursor": str(cursor)})


async def search(view: View, asked: Asked) -> Response:
    name = asked.conversation_id
    limit, query = asked.number("limit", 20, 1, _MOST_HITS), asked.text("q") or ""
    options: dict[str, Any] = {"since": asked.text("since"), "before": asked.text("before"), "highlight": True}
    options |= {"token_cap": None, "limit": limit if name is not None or view.access.open else _MOST_HITS}
    if (role := asked.text("role")) is not None:
        options["roles"] = [role]
    if (participant := asked.text("participant")) is not None:
        options["participant_ids"] = [participant]
    if name is not None:
        hits = await view.store.search(name, query, **options)
    else:
        permitted = Permits(view.access, asked.request, view.limits.reauthorize)
        hits = [hit for hit in await view.store.search_all(query, **options) if await permitted(hit.conversation_id)]
    return answer({"hits": list(map(hit_shape, hits[:limit]))})
