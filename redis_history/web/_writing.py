"""Endpoints that change conversations."""

from __future__ import annotations

from msgspec import UNSET
from msgspec.structs import replace
from starlette.responses import Response

from redis_history.errors import ConversationNotFoundError
from redis_history.json_form import message_of
from redis_history.web._answers import Refused, answer
from redis_history.web._asking import Asked
from redis_history.web._shape import conversation_shape, message_shape
from redis_history.web._view import View

__all__ = ["append", "delete_conversation", "delete_messages", "expand", "update_conversation"]


async def append(view: View, asked: Asked) -> Response:
    """Append a message, with the role and participant of the body (needs the right `append_as`), or else with role
    `user` and the signed-in participant."""
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
        raise ConversationNotFoundError(f"there is no conversation {asked.conversation[:80]!r}")
    return answer({"deleted": True})


async def delete_messages(view: View, asked: Asked) -> Response:
    ids = asked.body.get("ids")
    if not isinstance(ids, list) or not all(isinstance(one, str) for one in ids):
        raise Refused(400, "bad_input", "ids must be a list of message ids")
    return answer({"deleted": await view.store.delete_messages(asked.conversation, ids)})


async def expand(view: View, asked: Asked) -> Response:
    summary = asked.body.get("summary")
    if not isinstance(summary, str):
        raise Refused(400, "bad_input", "summary must be the id of a summary")
    done = await view.store.expand(asked.conversation, summary)
    return answer({"revision": done.revision, "count": done.count})
