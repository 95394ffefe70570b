"""What can be changed, where that is allowed."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from redis_history.errors import ConversationNotFoundError
from redis_history.history._json import message_of
from redis_history.web._answers import Refused, answer
from redis_history.web._asking import Asked, body_of, of_this_origin
from redis_history.web._shape import conversation_shape, message_shape
from redis_history.web._view import View

__all__ = ["append", "delete_conversation", "delete_messages", "expand", "update_conversation"]

_FIELDS = {"role", "text", "id", "participant"}


async def append(view: View, request: Request) -> Response:
    name, body = await _begin(view, request, _FIELDS)
    if not isinstance(body.get("text"), str):
        raise Refused(400, "bad_input", "a message needs a text")
    fields = {key: body[key] for key in ("role", "id", "participant") if body.get(key) is not None}
    message = message_of({"role": "user", **fields, "parts": [body["text"]]})
    done = await view.store.append(name, message)
    return answer(
        {"revision": done.revision, "message": message_shape(done.message), "duplicate": done.duplicate},
        200 if done.duplicate else 201,
    )


async def update_conversation(view: View, request: Request) -> Response:
    name, body = await _begin(view, request, {"title"})
    changed = await view.store.update_conversation(name, title=body.get("title", UNSET))
    return answer(conversation_shape(changed))


async def delete_conversation(view: View, request: Request) -> Response:
    name, _ = await _begin(view, request, set())
    if not await view.store.delete_conversation(name):
        raise ConversationNotFoundError(f"there is no conversation {name[:80]!r}")
    return answer({"deleted": True})


async def delete_messages(view: View, request: Request) -> Response:
    name, body = await _begin(view, request, {"ids"})
    ids = body.get("ids")
    if not isinstance(ids, list) or not all(isinstance(one, str) for one in ids):
        raise Refused(400, "bad_input", "ids is a list of message ids")
    return answer({"deleted": await view.store.delete_messages(name, ids)})


async def expand(view: View, request: Request) -> Response:
    name, body = await _begin(view, request, {"summary"})
    summary = body.get("summary")
    if not isinstance(summary, str):
        raise Refused(400, "bad_input", "summary is the id of a summary")
    done = await view.store.expand(name, summary)
    return answer({"revision": done.revision, "count": done.count})


async def _begin(view: View, request: Request, known: set[str]) -> tuple[str, dict[str, Any]]:
    """Which conversation, and the body, of a change that is allowed. Raises Refused."""
    if view.read_only:
        raise Refused(403, "read_only", "this view is read-only")
    if not of_this_origin(request):
        raise Refused(403, "wrong_origin", "this was sent by a page of another origin")
    name = Asked(request).conversation()
    await view.access.check(request, name, "write")
    body = await body_of(request)
    if unknown := sorted(body.keys() - known):
        raise Refused(400, "bad_input", f"the body has fields that are not known here: {', '.join(unknown)[:80]}")
    return name, body
