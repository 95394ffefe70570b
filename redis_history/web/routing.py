"""The routes of the HTTP interface with the rights that they need, and the live view as an application."""

from __future__ import annotations

import asyncio
import base64
import logging
import re
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote, unquote_to_bytes

from msgspec import Struct
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from redis_history._async.store import AsyncHistoryStore
from redis_history._validation import check_integer, check_seconds
from redis_history.errors import InvalidCursorError, RedisHistoryError
from redis_history.events import Cursor
from redis_history.integrations._extras import check_store
from redis_history.web import _endpoints, _http
from redis_history.web._events import frame
from redis_history.web._http import HEADERS, ApiRequest, EndSignals, EventStream, Refused, answer, bad_input, failure
from redis_history.web._hub import Hub
from redis_history.web._openapi import document
from redis_history.web.access import Action, Authorize, Guarded, SignedIn, allow_all, holder

_logger = logging.getLogger("redis_history")

STATIC: Final = Path(__file__).parent / "static"
#: Sent first in a stream: sets the milliseconds before a reconnect, and shows the client that it is connected.
_OPENING: Final = b"retry: 2000\n: open\n\n"
#: Seconds after SIGINT or SIGTERM without new streams: browsers reconnect immediately, which would delay the shutdown.
_ENDING: Final = 5.0
#: Read rights of one client that are cached.
_MAX_CACHED: Final = 10_000


class Limits(Struct, frozen=True, kw_only=True):
    """Limits and times of the live view. Times are in seconds.

    `streams`: the maximum number of open streams; `streams_per_address`: of one client address. `heartbeat`: the
    longest silence of a stream; the page reports 2 s of silence. `patience`: ends a stream whose client accepts no data
    for this time. `reauthorize`: the interval in which a stream asks `authorize` again. `grace`: how long a
    subscription outlives its last stream.
    """

    streams: int = 1000
    streams_per_address: int = 100
    heartbeat: float = 0.8
    patience: float = 60.0
    reauthorize: float = 30.0
    grace: float = 5.0

    def __post_init__(self) -> None:
        for name in ("streams", "streams_per_address"):
            check_integer(getattr(self, name), name, 1)
        for name in ("heartbeat", "patience", "reauthorize", "grace"):
            check_seconds(getattr(self, name), name, 0, above=name != "grace")


class LiveView(Guarded):
    """The live view of a store as an application to mount: `Mount("/history", LiveView(store, authorize=...))`.

    `authorize(request, conversation_id, action)`, plain or async, returns whether the request may do the action; see
    `Action`. It is called for every request, for every conversation in a list, and regularly during a stream.
    `allow_all` allows everything. `read_only=False` enables changes of conversations. `participant(request)` returns
    the signed-in user, the author of appended messages. `page=False` serves no page and no static files. `address`:
    the address of the store to show on the page. `limits`: see `Limits`.

    Streams end with `aclose`, and when the process gets SIGINT or SIGTERM. Pass `lifespan` to the application, or use
    `async with` in its lifespan; otherwise open streams delay servers that stop without a signal.

    The caller closes the store. Raises ConfigurationError for a HistoryStore, which would block the event loop, for
    any other store than an AsyncHistoryStore, and for an `authorize` or `participant` that is not callable.
    """

    def __init__(
        self,
        store: AsyncHistoryStore,
        *,
        authorize: Authorize,
        participant: SignedIn | None = None,
        read_only: bool = True,
        page: bool = True,
        address: str | None = None,
        limits: Limits | None = None,
    ) -> None:
        check_store(store, "LiveView", AsyncHistoryStore)
        super().__init__(authorize, participant)
        self.store, self.read_only, self.address = store, read_only, address
        self.limits = limits or Limits()
        #: Whether the answer of `authorize` does not depend on the conversation.
        self.open_to_all = authorize in (allow_all, holder)
        self._hub = Hub(store, heartbeat=self.limits.heartbeat, grace=self.limits.grace)
        self._streams: Counter[str] = Counter()  # the number of open streams of each client address
        self._signaled = -_ENDING  # the time of the last SIGINT or SIGTERM
        self._signals = EndSignals(self._end_streams)
        self._page = page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (path_of(scope) + b"/").startswith(b"/v1/"):
            await self._serve_api(scope, receive, _http.with_headers(send, HEADERS))
        else:  # a browser revalidates its copy each time
            await self._pages(scope, receive, _http.with_headers(send, HEADERS | {"cache-control": "no-cache"}))

    @cached_property
    def _pages(self) -> Router:
        routes = [Route("/", _index, methods=["GET"]), Mount("/static", StaticFiles(directory=STATIC))]
        return Router(routes if self._page else [], lifespan=self.lifespan)

    async def aclose(self) -> None:
        """End all streams, and reject new ones. Other requests are still answered."""
        self._closed = True
        await self._hub.aclose()

    def read_rights(self, request: Request) -> Callable[[str], Awaitable[bool]]:
        """A function that returns whether the client may read a conversation, and caches its answers for a while."""
        cache: dict[str, tuple[bool, float]] = {}  # with the time when the answer expires

        async def may_read(conversation_id: str) -> bool:
            if self.open_to_all:
                return True
            allowed, expires = cache.get(conversation_id, (False, 0.0))
            if expires <= time.monotonic():
                while len(cache) >= _MAX_CACHED:
                    del cache[next(iter(cache))]
                allowed = await self.allows(request, conversation_id, "read")
                cache[conversation_id] = allowed, time.monotonic() + self.limits.reauthorize
            return allowed

        return may_read

    async def _serve_api(self, scope: Scope, receive: Receive, send: Send) -> None:
        http = Request(scope, receive)
        try:
            response = await self._answer(http)
        except ClientDisconnect:
            return  # nobody is there to answer
        except Exception as error:
            if isinstance(error, HTTPException) and "app" in scope:
                raise  # of `authorize`: the application answers it
            response = failure(error)
        await response(scope, receive, send)

    async def _answer(self, http: Request) -> Response:
        path = path_of(http.scope)
        for pattern, endpoints in _PATTERNS.items():
            if (found := pattern.fullmatch(path)) is None:
                continue
            endpoint = endpoints.get("GET" if http.method == "HEAD" else http.method)
            if endpoint is None:
                allowed = sorted({*endpoints, *(["HEAD"] if "GET" in endpoints else [])})
                raise Refused(405, "method_not_allowed", "not a method of this path", {"Allow": ", ".join(allowed)})
            ids = {name: path_id(segment) for name, segment in found.groupdict().items()}
            return await endpoint.run(self, await self._check(endpoint, http, ids))
        raise Refused(404, "not_found", "there is no such path; see v1 in the documentation of the HTTP interface")

    async def _check(self, endpoint: Endpoint, http: Request, path: dict[str, str]) -> ApiRequest:
        """The parsed and authorized request to an endpoint. Raises Refused."""
        request = ApiRequest(http, path)
        right = endpoint.right
        if endpoint.fields is not None:
            if self.read_only:
                raise Refused(403, "read_only", "this view is read-only")
            if http.method != "DELETE" or "content-type" in http.headers:
                await request.read_body()
            if request.body.keys() & set(endpoint.as_fields):
                right = "append_as"
        request.check_names(endpoint.parameters, (*(endpoint.fields or ()), *endpoint.as_fields))
        if right == "list" and request.conversation_id is not None:
            right = "read"
        await self.check(http, request.conversation_id, right)
        return request

    async def events(self, request: ApiRequest) -> Response:
        """The stream of one conversation, or of the list of all conversations."""
        http, name = request.http, request.conversation_id
        opening = _OPENING
        if name is None:
            chunks = self._hub.follow_all(self.read_rights(http))
        else:
            cursor, reset = await self._first_cursor(request, name)
            opening += reset
            chunks = self._hub.follow(name, cursor)
        if self._closed or time.monotonic() - self._signaled < _ENDING:
            raise Refused(503, "ending", "the live view is ending", {"Retry-After": "5"})
        client = http.client.host if http.client else ""
        if self._streams.total() >= self.limits.streams:
            raise Refused(503, "too_many_streams", "there are too many open streams", {"Retry-After": "10"})
        if self._streams[client] >= self.limits.streams_per_address:
            raise Refused(429, "too_many_streams", "this address has too many open streams", {"Retry-After": "10"})
        self._streams[client] += 1
        self._signals.watch()

        def end() -> None:
            self._streams[client] -= 1
            self._streams += Counter()  # drops addresses without streams
            if not self._streams:
                self._signals.unwatch()

        async def allowed() -> bool:
            return await self.allows(http, name, "list" if name is None else "read")

        checked = self._while_allowed(opening, chunks, allowed)
        return EventStream(checked, patience=self.limits.patience, on_end=end)

    async def _first_cursor(self, request: ApiRequest, name: str) -> tuple[str, bytes]:
        """The cursor after which a client reads: that of the Last-Event-ID header, which is newer, or of the URL, or
        now. And a `reset` event if the header is invalid, because a browser cannot correct its header."""
        after = request.text("after")
        if after is not None:
            Cursor.parse(after)
        seen = request.http.headers.get("last-event-id") or after
        if seen is not None:
            with suppress(InvalidCursorError):
                return str(Cursor.parse(seen)), b""
        now = (await self.store.snapshot(name, limit=1)).cursor
        data = {"conversation": name, "cursor": str(now), "revision": now.revision, "reason": "cursor_invalid"}
        return str(now), b"" if seen is None else frame("reset", data, str(now))

    async def _while_allowed(
        self, opening: bytes, chunks: AsyncGenerator[bytes, None], allowed: Callable[[], Awaitable[bool]]
    ) -> AsyncGenerator[bytes, None]:
        """The chunks, while regular checks of `allowed` succeed. Ends after an error: the client reconnects, and gets
        the error response."""
        check_at = time.monotonic() + self.limits.reauthorize
        yield opening
        async with aclosing(chunks):
            try:
                async for chunk in chunks:
                    if time.monotonic() >= check_at:
                        if not await allowed():
                            return
                        check_at = time.monotonic() + self.limits.reauthorize
                    yield chunk
            except HTTPException:
                return
            except RedisHistoryError as error:
                _logger.warning("a stream of the live view ended: %s", error)
            except Exception:
                _logger.exception("a stream of the live view failed")

    def _end_streams(self) -> None:
        self._signaled = time.monotonic()
        self._ending = asyncio.create_task(self._hub.aclose())


class Endpoint(NamedTuple):
    """The function of a path and method, its requirements, and the schema of its answer.

    `right`: the action for `authorize`. "list" is for requests without a conversation; if the request names one, it
    needs "read" instead. `parameters`: of the query. `fields`: of the body of a change; None: the endpoint changes
    nothing. `as_fields`: fields that need the right "append_as" instead of `right`.
    """

    run: Callable[[LiveView, ApiRequest], Awaitable[Response]]
    right: Action
    answer: str | None
    parameters: tuple[str, ...] = ()
    fields: tuple[str, ...] | None = None
    as_fields: tuple[str, ...] = ()


async def openapi(view: LiveView, request: ApiRequest) -> Response:
    """The OpenAPI document of the HTTP interface."""
    return answer(document(API))


_CONVERSATION: Final = "/v1/conversations/{conversation}"
_MESSAGES: Final = f"{_CONVERSATION}/messages"
_MESSAGE: Final = f"{_MESSAGES}/{{message}}"
_LIST: Final = ("limit", "cursor", "user_id", "agent_name", "forked_from", "last")
_PAGE: Final = ("limit", "before", "since", "first", "include_archived")
_SEARCH: Final = ("conversation", "q", "limit", "role", "participant", "tool", "since", "before")

API: Final[dict[str, dict[str, Endpoint]]] = {
    "/v1/openapi.json": {"GET": Endpoint(openapi, "list", "Any")},
    "/v1/status": {"GET": Endpoint(_endpoints.status, "list", "Status")},
    "/v1/conversations": {"GET": Endpoint(_endpoints.conversations, "list", "Conversations", _LIST)},
    _CONVERSATION: {
        "GET": Endpoint(_endpoints.conversation, "read", "Conversation"),
        "PATCH": Endpoint(_endpoints.update_conversation, "rename", "Conversation", (), ("title",)),
        "DELETE": Endpoint(_endpoints.delete_conversation, "delete", None, (), ()),
    },
    f"{_CONVERSATION}/fork": {"POST": Endpoint(_endpoints.fork, "fork", "Conversation", (), ("through",))},
    f"{_CONVERSATION}/run": {"GET": Endpoint(_endpoints.run, "read", "CurrentRun")},
    f"{_CONVERSATION}/stop": {"POST": Endpoint(_endpoints.stop, "stop", "Stopping", (), ("run_id", "reason"))},
    _MESSAGES: {
        "GET": Endpoint(_endpoints.messages, "read", "Messages", _PAGE),
        "POST": Endpoint(_endpoints.append, "append", "Appended", (), ("text", "id"), ("role", "participant")),
    },
    _MESSAGE: {
        "GET": Endpoint(_endpoints.message, "read", "Message"),
        "PATCH": Endpoint(_endpoints.pin, "pin", "Message", (), ("pinned",)),
        "DELETE": Endpoint(_endpoints.delete_message, "delete", None, (), ()),
    },
    f"{_MESSAGE}/originals": {"GET": Endpoint(_endpoints.originals, "read", "Messages", ("limit", "before"))},
    f"{_MESSAGE}/expand": {"POST": Endpoint(_endpoints.expand, "delete", "Expanded", (), ())},
    f"{_CONVERSATION}/events": {"GET": Endpoint(LiveView.events, "read", "Event", ("after",))},
    "/v1/users/{user}": {"DELETE": Endpoint(_endpoints.erase, "erase", "Erased", (), ())},
    "/v1/events": {"GET": Endpoint(LiveView.events, "list", "Event")},
    "/v1/search": {"GET": Endpoint(_endpoints.search, "list", "Hits", _SEARCH)},
}
#: The segments of ids are still percent-encoded, so they contain no slash.
_PATTERNS: Final = {
    re.compile(re.sub(r"{(\w+)}", r"(?P<\1>[^/]*)", path.replace(".", r"\.")).encode()): endpoints
    for path, endpoints in API.items()
}


def path_of(scope: Scope) -> bytes:
    """The path below the mount point, still percent-encoded: an id may contain a slash."""
    path = bytes(scope.get("raw_path") or quote(scope["path"]).encode()).partition(b"?")[0]
    mount = scope.get("root_path", "").strip("/")
    return b"/" + b"/".join(path.split(b"/")[mount.count("/") + 2 if mount else 1 :])


def path_id(segment: bytes) -> str:
    """An id of a path: percent-encoded, or "~" and the id in base64url, for ids that the tools on the way change, such
    as ".."."""
    if not segment:
        raise bad_input("an id in the path is empty")
    try:
        if segment.startswith(b"~"):
            data = segment[1:].rstrip(b"=")
            if not data:
                raise bad_input("an id in the path is empty")
            return base64.b64decode(data + b"=" * (-len(data) % 4), b"-_", validate=True).decode()
        return unquote_to_bytes(segment).decode()
    except ValueError as error:
        raise bad_input('an id in the path must be percent-encoded UTF-8, or "~" and base64url') from error


async def _index(request: Request) -> Response:
    return FileResponse(STATIC / "index.html", media_type="text/html")
