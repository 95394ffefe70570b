"""The routes of the HTTP interface with the rights that they need, and the live view as an application."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote, unquote_to_bytes

from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from redis_history.web import _endpoints
from redis_history.web._http import Asked, Refused, Secured, answer, failure, of_this_origin
from redis_history.web._openapi import document
from redis_history.web._view import View
from redis_history.web.access import Action

STATIC: Final = Path(__file__).parent / "static"
#: A browser revalidates its copy each time.
_KEPT: Final = {"cache-control": "no-cache"}


class Endpoint(NamedTuple):
    """The function of a path and method, and its requirements.

    `right`: the action for `authorize`. "list" is for requests without a conversation; if the request names one, it
    needs "read" instead. `parameters`: of the query. `fields`: of the body of a change; None: the endpoint changes
    nothing. `as_fields`: fields that need the right "append_as" instead of `right`.
    """

    run: Callable[[View, Asked], Awaitable[Response]]
    right: Action
    parameters: tuple[str, ...] = ()
    fields: tuple[str, ...] | None = None
    as_fields: tuple[str, ...] = ()


async def openapi(view: View, asked: Asked) -> Response:
    """The OpenAPI document of the HTTP interface."""
    return answer(document(API))


_CONVERSATION: Final = "/v1/conversations/{conversation}"
_MESSAGES: Final = f"{_CONVERSATION}/messages"
_MESSAGE: Final = f"{_MESSAGES}/{{message}}"

API: Final[dict[str, dict[str, Endpoint]]] = {
    "/v1/openapi.json": {"GET": Endpoint(openapi, "list")},
    "/v1/status": {"GET": Endpoint(_endpoints.status, "list")},
    "/v1/conversations": {
        "GET": Endpoint(_endpoints.conversations, "list", ("limit", "cursor", "user_id", "agent_name", "last")),
    },
    _CONVERSATION: {
        "GET": Endpoint(_endpoints.conversation, "read"),
        "PATCH": Endpoint(_endpoints.update_conversation, "rename", (), ("title",)),
        "DELETE": Endpoint(_endpoints.delete_conversation, "delete", (), ()),
    },
    _MESSAGES: {
        "GET": Endpoint(_endpoints.messages, "read", ("limit", "before", "since", "first", "include_archived")),
        "POST": Endpoint(_endpoints.append, "append", (), ("text", "id"), ("role", "participant")),
    },
    _MESSAGE: {
        "GET": Endpoint(_endpoints.message, "read"),
        "DELETE": Endpoint(_endpoints.delete_message, "delete", (), ()),
    },
    f"{_MESSAGE}/originals": {"GET": Endpoint(_endpoints.originals, "read", ("limit", "before"))},
    f"{_MESSAGE}/expand": {"POST": Endpoint(_endpoints.expand, "delete", (), ())},
    f"{_CONVERSATION}/events": {"GET": Endpoint(View.events, "read", ("after",))},
    "/v1/events": {"GET": Endpoint(View.events, "list")},
    "/v1/search": {
        "GET": Endpoint(
            _endpoints.search,
            "list",
            ("conversation", "q", "limit", "role", "participant", "tool", "since", "before"),
        ),
    },
}
_PATTERNS: Final = {tuple(path.split("/")[2:]): endpoints for path, endpoints in API.items()}


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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        segments = _segments(scope) if scope["type"] == "http" else []
        if segments[:1] == [b"v1"]:
            await self._api(scope, receive, send)
        else:
            await self._router(scope, receive, send)

    @cached_property
    def _router(self) -> Router:
        """The page and its files."""
        secured = [Middleware(Secured, _KEPT)]
        page = [
            Route("/", _index, methods=["GET"], middleware=secured),
            Mount("/static", StaticFiles(directory=STATIC), middleware=secured),
        ]
        return Router(page if self.page else [], lifespan=self.lifespan)

    @cached_property
    def _api(self) -> ASGIApp:
        async def run(scope: Scope, receive: Receive, send: Send) -> None:
            request = Request(scope, receive)
            try:
                response = await self._answer(request)
            except ClientDisconnect:
                raise
            except Exception as error:
                if isinstance(error, HTTPException) and "app" in scope:
                    raise  # of `authorize`: the application answers it
                response = failure(error)
            await response(scope, receive, send)

        return Secured(run)

    async def _answer(self, request: Request) -> Response:
        segments = _segments(request.scope)[1:]
        for pattern, endpoints in _PATTERNS.items():
            path = _match(pattern, segments)
            if path is None:
                continue
            endpoint = endpoints.get("GET" if request.method == "HEAD" else request.method)
            if endpoint is None:
                allowed = sorted({*endpoints, *(["HEAD"] if "GET" in endpoints else [])})
                raise Refused(405, "method_not_allowed", "not a method of this path", {"Allow": ", ".join(allowed)})
            return await endpoint.run(self, await _asked(self, endpoint, request, path))
        raise Refused(404, "not_found", "there is no such path; see v1 in the documentation of the HTTP interface")

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


def _segments(scope: Scope) -> list[bytes]:
    """The segments of the path below the mount point, still percent-encoded: an id may contain a slash."""
    raw = scope.get("raw_path") or quote(scope["path"]).encode()
    below = scope.get("root_path", "").strip("/")
    skipped = below.count("/") + 2 if below else 1
    return bytes(raw).split(b"?")[0].split(b"/")[skipped:]


def _match(pattern: tuple[str, ...], segments: list[bytes]) -> dict[str, str] | None:
    """The ids in the path, or None if it has another pattern. Raises Refused for an invalid id."""
    if len(pattern) != len(segments):
        return None
    path = {}
    for name, segment in zip(pattern, segments, strict=True):
        if name[0] == "{":
            path[name[1:-1]] = _id(segment)
        elif name.encode() != segment:
            return None
    return path


def _id(segment: bytes) -> str:
    """An id of a path: percent-encoded, or "~" and the id in base64url, for ids that the tools on the way change, such
    as ".."."""
    if not segment:
        raise Refused(400, "bad_input", "an id in the path is empty")
    try:
        if segment.startswith(b"~"):
            data = segment[1:].rstrip(b"=")
            return base64.b64decode(data + b"=" * (-len(data) % 4), b"-_", validate=True).decode()
        return unquote_to_bytes(segment).decode()
    except ValueError as error:
        raise Refused(
            400, "bad_input", 'an id in the path must be percent-encoded UTF-8, or "~" and base64url'
        ) from error


async def _asked(view: View, endpoint: Endpoint, request: Request, path: dict[str, str]) -> Asked:
    """The parsed and authorized request to an endpoint. Raises Refused."""
    asked = Asked(request, path)
    right, name = endpoint.right, asked.conversation_id
    if endpoint.fields is not None:
        if view.read_only:
            raise Refused(403, "read_only", "this view is read-only")
        if not of_this_origin(request):
            raise Refused(403, "wrong_origin", "a page of another origin sent this request")
        if request.method != "DELETE" or "content-type" in request.headers:
            await asked.read_body()
        if asked.body.keys() & set(endpoint.as_fields):
            right = "append_as"
    if "conversation" not in path and "conversation" not in endpoint.parameters:
        name = None
    if right == "list" and name is not None:
        right = "read"
    await view.access.check(request, name, right)
    asked.check_names(endpoint.parameters, (*(endpoint.fields or ()), *endpoint.as_fields))
    return asked


async def _index(request: Request) -> Response:
    return FileResponse(STATIC / "index.html", media_type="text/html")
