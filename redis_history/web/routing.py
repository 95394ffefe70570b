"""The routes of the live view, for an application of Starlette or FastAPI."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from redis_history._async.store import AsyncHistoryStore
from redis_history.web import _messages, _reading, _writing
from redis_history.web._answers import Secured, failure
from redis_history.web._view import Limits, View
from redis_history.web.access import Authorize

__all__ = ["routes", "routes_of"]

STATIC: Final = Path(__file__).parent / "static"
#: A browser asks each time whether its copy is still good.
_KEPT: Final = {"cache-control": "no-cache"}

_Endpoint = Callable[[View, Request], Awaitable[Response]]


API: Final[dict[str, dict[str, _Endpoint]]] = {
    "/api/status": {"GET": _reading.status},
    "/api/conversations": {"GET": _reading.conversations},
    "/api/conversation": {
        "GET": _reading.conversation,
        "PATCH": _writing.update_conversation,
        "DELETE": _writing.delete_conversation,
    },
    "/api/messages": {"GET": _messages.messages, "POST": _writing.append, "DELETE": _writing.delete_messages},
    "/api/message": {"GET": _messages.message},
    "/api/archived": {"GET": _messages.archived},
    "/api/search": {"GET": _reading.search},
    "/api/events": {"GET": View.events},
    "/api/expand": {"POST": _writing.expand},
}


def routes(
    store: AsyncHistoryStore,
    *,
    authorize: Authorize | None = None,
    read_only: bool = True,
    page: bool = True,
    address: str | None = None,
    limits: Limits | None = None,
) -> list[BaseRoute]:
    """The routes of the live view of a store, to be mounted: `Mount("/history", routes=routes(store, authorize=...))`.

    `authorize(request, conversation_id, action)`, plain or async, says whether this request may do that; see `Action`.
    It is asked with every request, for every conversation in a list, and again while a stream goes on. None: whoever
    reaches these routes may; what stands before them decides. `read_only=False` adds what changes conversations.
    `page=False` leaves out the page and its files. `address` is shown as where the store is.

    The store stays the caller's to close. Raises ConfigurationError for anything but an AsyncHistoryStore: a
    HistoryStore would hold up the event loop.
    """
    view = View(store, authorize=authorize, read_only=read_only, address=address, limits=limits or Limits())
    return routes_of(view, page=page)


def routes_of(view: View, *, page: bool) -> list[BaseRoute]:
    """The routes of a view."""

    def route(path: str, endpoints: dict[str, _Endpoint]) -> Route:
        """One for all methods of a path, so that whoever uses another one is told of them all."""

        async def run(request: Request) -> Response:
            method = "GET" if request.method == "HEAD" else request.method
            try:
                return await endpoints[method](view, request)
            except (HTTPException, ClientDisconnect):
                raise
            except Exception as error:  # noqa: BLE001 -- told as JSON, and logged
                return failure(error)

        return Route(path, run, methods=[*endpoints], name=path.rpartition("/")[2], middleware=[Middleware(Secured)])

    found: list[BaseRoute] = [route(path, endpoints) for path, endpoints in API.items()]
    if page:
        secured = [Middleware(Secured, _KEPT)]
        found.append(Route("/", _index, methods=["GET"], middleware=secured))
        found.append(Mount("/static", StaticFiles(directory=STATIC), middleware=secured))
    return found


async def _index(request: Request) -> Response:
    return FileResponse(STATIC / "index.html", media_type="text/html")
