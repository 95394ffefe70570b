"""The routes of the HTTP interface with the rights that they need, and the live view as an application."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from redis_history.web import _endpoints
from redis_history.web._http import Asked, Refused, Secured, failure, of_this_origin
from redis_history.web._view import View
from redis_history.web.access import Action

__all__ = ["LiveView"]

STATIC: Final = Path(__file__).parent / "static"
#: A browser revalidates its copy each time.
_KEPT: Final = {"cache-control": "no-cache"}


class Endpoint(NamedTuple):
    """The function of a path and method, and its requirements.

    `right`: the action for `authorize`. "list" is for requests without a conversation; if the request names one, it
    needs "read" instead. `parameters`: of the URL; "conversation" is required unless `right` is "list". `fields`: of
    the body of a change; None: the endpoint changes nothing. `as_fields`: fields that need the right "append_as"
    instead of `right`.
    """

    run: Callable[[View, Asked], Awaitable[Response]]
    right: Action
    parameters: tuple[str, ...] = ()
    fields: tuple[str, ...] | None = None
    as_fields: tuple[str, ...] = ()


_ONE: Final = ("conversation",)

API: Final[dict[str, dict[str, Endpoint]]] = {
    "/api/status": {"GET": Endpoint(_endpoints.status, "list")},
    "/api/conversations": {
        "GET": Endpoint(_endpoints.conversations, "list", ("limit", "offset", "user_id", "agent_name", "last")),
    },
    "/api/conversation": {
        "GET": Endpoint(_endpoints.conversation, "read", _ONE),
        "PATCH": Endpoint(_endpoints.update_conversation, "rename", _ONE, ("title",)),
        "DELETE": Endpoint(_endpoints.delete_conversation, "delete", _ONE, ()),
    },
    "/api/messages": {
        "GET": Endpoint(_endpoints.messages, "read", (*_ONE, "limit", "before", "since", "first", "include_archived")),
        "POST": Endpoint(_endpoints.append, "append", _ONE, ("text", "id"), ("role", "participant")),
        "DELETE": Endpoint(_endpoints.delete_messages, "delete", _ONE, ("ids",)),
    },
    "/api/message": {"GET": Endpoint(_endpoints.message, "read", (*_ONE, "id"))},
    "/api/archived": {"GET": Endpoint(_endpoints.archived, "read", (*_ONE, "summary", "limit", "before"))},
    "/api/search": {
        "GET": Endpoint(_endpoints.search, "list", (*_ONE, "q", "limit", "role", "participant", "since", "before")),
    },
    "/api/events": {"GET": Endpoint(View.events, "list", (*_ONE, "after"))},
    "/api/expand": {"POST": Endpoint(_endpoints.expand, "delete", _ONE, ("summary",))},
}


class LiveView(View):
    """The live view of a store as an application to mount: `Mount("/history", LiveView(store, authorize=...))`.

    `authorize(request, conversation_id, action)`, plain or async, returns whether the request may do the action; see
    `Action`. It is called for every request, for every conversation in a list, and regularly during a stream.
    `allow_all` allows everything. `read_only=False` enables changes of conversations. `participant(request)` returns
    the signed-in user, the author of appended messages. `page=False` serves no page and no static files. `address`:
    the address of the store to show on the page.

    Streams end with `aclose`, and when the process gets SIGINT or SIGTERM. Pass `lifespan` to the application, or use
    `async with` in its lifespan; otherwise open streams delay servers that stop without a signal.

    The caller closes the store. Raises ConfigurationError for a HistoryStore, which would block the event loop, for
    any other store than an AsyncHistoryStore, and for an `authorize` or `participant` that is not callable.
    """

    @cached_property
    def _router(self) -> Router:
        return Router(routes_of(self, page=self.page), lifespan=self.lifespan)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._router(scope, receive, send)

    async def __aenter__(self) -> LiveView:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncIterator[None]:
        """A `lifespan` for an application that has none."""
        async with self:
            yield


def routes_of(view: View, *, page: bool) -> list[BaseRoute]:
    """The routes of a view."""

    def route(path: str, endpoints: dict[str, Endpoint]) -> Route:
        """One route for all methods of a path, so that the response to an unknown method lists them all."""

        async def run(request: Request) -> Response:
            endpoint = endpoints["GET" if request.method == "HEAD" else request.method]
            try:
                return await endpoint.run(view, await _asked(view, endpoint, request))
            except (HTTPException, ClientDisconnect):
                raise
            except Exception as error:  # noqa: BLE001 -- sent as JSON, and logged
                return failure(error)

        return Route(path, run, methods=[*endpoints], name=path.rpartition("/")[2], middleware=[Middleware(Secured)])

    found: list[BaseRoute] = [route(path, endpoints) for path, endpoints in API.items()]
    if page:
        secured = [Middleware(Secured, _KEPT)]
        found.append(Route("/", _index, methods=["GET"], middleware=secured))
        found.append(Mount("/static", StaticFiles(directory=STATIC), middleware=secured))
    return found


async def _asked(view: View, endpoint: Endpoint, request: Request) -> Asked:
    """The parsed and authorized request to an endpoint. Raises Refused."""
    asked = Asked(request)
    right = endpoint.right
    if endpoint.fields is not None:
        if view.read_only:
            raise Refused(403, "read_only", "this view is read-only")
        if not of_this_origin(request):
            raise Refused(403, "wrong_origin", "a page of another origin sent this request")
        await asked.read_body()
        if asked.body.keys() & set(endpoint.as_fields):
            right = "append_as"
    name = asked.conversation_id if "conversation" in endpoint.parameters else None
    if right == "list" and name is not None:
        right = "read"
    elif right != "list":
        name = asked.conversation
    await view.access.check(request, name, right)
    asked.check_names(endpoint.parameters, (*(endpoint.fields or ()), *endpoint.as_fields))
    return asked


async def _index(request: Request) -> Response:
    return FileResponse(STATIC / "index.html", media_type="text/html")
