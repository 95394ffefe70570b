"""The routes of the HTTP interface with the rights that they need, and the live view as an application."""

from __future__ import annotations

import asyncio
import base64
import logging
import re
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote, unquote, unquote_to_bytes

from msgspec import Struct
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import Mount, Route, Router, request_response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from redis_history.errors import InvalidCursorError, RedisHistoryError
from redis_history.store._async.store import AsyncHistoryStore
from redis_history.store.operations import ReadLife
from redis_history.values._validation import check_integer, check_seconds, check_store, check_text
from redis_history.values.events import BEGINNING, Cursor
from redis_history.web import _endpoints
from redis_history.web._events import frame
from redis_history.web._http import ApiRequest, EndSignals, EventStream, Refused, answer, bad_input
from redis_history.web._hub import Hub
from redis_history.web._openapi import document
from redis_history.web._prices import checked_prices
from redis_history.web._rights import ReadRights
from redis_history.web.access import Action, Authorize, Guarded, SignedIn, allow_all, holder

_logger = logging.getLogger("redis_history")

STATIC: Final = Path(__file__).parent / "static"
#: Sent first in a stream: sets the milliseconds before a reconnect, and shows the client that it is connected.
_OPENING: Final = b"retry: 2000\n: open\n\n"
#: Seconds after SIGINT or SIGTERM without new streams: browsers reconnect immediately, which would delay the shutdown.
_ENDING: Final = 5.0


class Limits(Struct, frozen=True, kw_only=True):
    """Limits and times of the live view. Times are in seconds.

    `streams`: the maximum number of open streams. `streams_per_address`: the same for a single client address.
    `heartbeat`: the longest silence of a stream; the page reports a lost connection after 2 s of silence. `patience`:
    ends a stream whose client accepts no data for this time, and a request whose client sends none (status 408).
    `reauthorize`: the interval in which a stream asks `authorize` again. `grace`: how long a subscription outlives its
    last stream.
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
    the address of the store to show on the page. `limits`: see `Limits`. `sign_in`: the address to which visitors are
    sent who open the page without the right "list", and to which the page leads when a session has ended.

    `prices`: what a million tokens of a model cost, as `{"m-1": (2.5, 10.0)}`: those of the input and the output, and
    if given, those of the input that a cache provided. The page then shows what messages without a reported cost have
    cost. A name also stands for the same name with a date, such as "m-1-2026-01-31". Totals do not say which models
    were used: those without a reported cost have the price of "*".

    `origins`: the origins of pages elsewhere that may use the HTTP interface, such as "https://app.example.com".
    `hosts`: the host names of the application, such as "history.example.com" or `"*.example.com"`. Requests that name
    others are rejected. localhost and IP addresses are always accepted; without `hosts`, all names are, or with
    `allow_all`, those without a dot, which nobody outside can own.

    Streams end with `aclose`, and when the process gets SIGINT or SIGTERM. Pass `lifespan` to the application, or use
    `async with` in its lifespan; otherwise open streams delay servers that stop without a signal.

    The caller closes the store. Raises ConfigurationError for a HistoryStore, which would block the event loop, for
    any other store than an AsyncHistoryStore, for an `authorize` or `participant` that is not callable, and for prices
    that are not numbers.
    """

    place = "the live view"

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
        origins: Iterable[str] = (),
        hosts: Iterable[str] = (),
        sign_in: str | None = None,
        prices: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        check_store(store, "LiveView", AsyncHistoryStore)
        check_text(sign_in, "sign_in", optional=True)
        super().__init__(authorize, participant, origins, hosts)
        self.store, self.read_only, self.address = store, read_only, address
        self.limits = limits or Limits()
        #: Whether the answer of `authorize` does not depend on the conversation.
        self.open_to_all = authorize in (allow_all, holder)
        self._hub = Hub(store, heartbeat=self.limits.heartbeat, grace=self.limits.grace)
        self._streams: Counter[str] = Counter()  # the number of open streams of each client address
        self._signaled = -_ENDING  # the time of the last SIGINT or SIGTERM
        self._signals = EndSignals(self._end_streams)
        self.sign_in, self.prices = sign_in, checked_prices(prices or {})
        self._page = page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._pages(scope, receive, send)
            return
        http = Request(scope, receive)
        if (path_of(scope) + b"/").startswith(b"/v1/"):
            await self._serve_api(http, self.protected(http, send))
            return
        # A browser revalidates its copy of a page each time.
        send = self.protected(http, send, **{"cache-control": "no-cache"})
        try:
            response: ASGIApp = self.preflight(http) or self._pages
        except Refused as refused:
            response = refused.response
        # In the form in which routers of Starlette find what is below a mount point.
        path = unquote(path_of(scope).decode("ascii", "replace"))
        try:
            await response({**scope, "path": scope.get("root_path", "") + path}, receive, send)
        except HTTPException as error:  # there is no such file
            await self._refuse(http, error, send)

    @cached_property
    def _pages(self) -> Router:
        routes = [Route("/", self._index, methods=["GET"]), Mount("/static", StaticFiles(directory=STATIC))]
        return Router(routes if self._page else [], lifespan=self.lifespan)

    async def _index(self, request: Request) -> Response:
        if self.sign_in is not None and not await self.allows(request, None, "list"):
            return RedirectResponse(self.sign_in, 303)
        return FileResponse(STATIC / "index.html", media_type="text/html")

    async def aclose(self) -> None:
        """End all streams, and reject new ones. Other requests are still answered."""
        self._closed = True
        await self._hub.aclose()

    def read_rights(self, request: Request) -> ReadRights:
        """Return the rights of the client to read. They are cached for a while."""
        if self.open_to_all:
            return ReadRights(self.store, None)
        return ReadRights(self.store, lambda name: self.allows(request, name, "read"), self.limits.reauthorize)

    async def _serve_api(self, http: Request, send: Send) -> None:
        try:
            response = self.preflight(http) or await self._answer(http)
        except ClientDisconnect:
            return  # the client has disconnected
        except HTTPException as error:  # of `authorize`
            await self._refuse(http, error, send)
            return
        except Exception as error:  # noqa: BLE001 -- each becomes a response
            response = self.failure(error)
        await response(http.scope, http.receive, send)

    async def _refuse(self, http: Request, error: HTTPException, send: Send) -> None:
        """Answer with an exception: as the application does, if there is one, and with the headers of all responses."""

        async def refuse(request: Request) -> Response:
            if "app" in http.scope:
                raise error
            return self.failure(error)

        await request_response(refuse)(http.scope, http.receive, send)

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
            request = await self._check(endpoint, http, ids)
            response = await endpoint.run(self, request)
            reads = endpoint.fields is None and not isinstance(response, EventStream)
            if reads and request.conversation_id is not None and not self.open_to_all:
                # Between the first question and the read, another user may have created the conversation.
                await self.check(http, request.conversation_id, "read")
            return response
        raise Refused(404, "not_found", "there is no such path; see v1 in the documentation of the HTTP interface")

    async def _check(self, endpoint: Endpoint, http: Request, path: dict[str, str]) -> ApiRequest:
        """The parsed and authorized request to an endpoint. Rights are asked before the body is read. Raises
        Refused."""
        request = ApiRequest(http, path)
        if endpoint.fields is not None and self.read_only:
            raise Refused(403, "read_only", "this view is read-only")
        name, right = request.conversation_id, endpoint.right
        if right == "list" and name is not None:
            right = "read"
        # The body decides which of two rights is needed, so either right is sufficient for reading the body.
        await self.check(http, name, right, *(("append_as",) if endpoint.as_fields else ()))
        for further in endpoint.also:
            await self.check(http, name, further)
        if endpoint.fields is not None and (http.method != "DELETE" or "content-type" in http.headers):
            await request.read_body(self.limits.patience)
        request.check_names(endpoint.parameters, (*(endpoint.fields or ()), *endpoint.as_fields))
        if request.body.keys() & set(endpoint.as_fields):
            right = "append_as"
        elif endpoint.as_fields:
            request.user = await self.signed_in(http)
        if endpoint.fields is not None:
            request.life = await self.confirm(http, name, right, *endpoint.also)
            if request.life == BEGINNING.epoch and not endpoint.begins:
                # Another user may create the conversation now, of which nobody has asked.
                raise _endpoints.unknown_conversation(request.path["conversation"])
        return request

    async def confirm(self, http: Request, name: str | None, *rights: Action) -> str | None:
        """Check all rights to a change again, immediately before it. A client may send its body slowly, and a right
        may have been withdrawn, or the conversation may belong to another user by then. Returns the life of the
        conversation to which the answers apply, None if they apply to all. Raises Refused."""
        read = None if name is None or self.open_to_all else ReadLife(name)
        known: object = ...
        while (life := None if read is None else await self.store.backend.execute(read)) != known:
            for right in rights:
                await self.check(http, name, right)
            known = life
        return life

    async def events(self, request: ApiRequest) -> Response:
        """The stream of one conversation, or of the list of all conversations."""
        http, name = request.http, request.conversation_id
        opening = _OPENING
        if name is None:
            chunks = self._hub.follow_all(self.read_rights(http))
        else:
            cursor, reset = await self._first_cursor(request, name)
            opening += reset
            chunks = self._hub.follow(name, cursor, self.read_rights(http))
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
        now = (await self.store.snapshot(name, limit=1, contents=False)).cursor
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
    nothing. `as_fields`: fields that need the right "append_as" instead of `right`. `also`: further rights. `begins`:
    whether the change may precede its conversation; others are for one that exists.
    """

    run: Callable[[LiveView, ApiRequest], Awaitable[Response]]
    right: Action
    answer: str | None
    parameters: tuple[str, ...] = ()
    fields: tuple[str, ...] | None = None
    as_fields: tuple[str, ...] = ()
    also: tuple[Action, ...] = ()
    begins: bool = False


async def openapi(view: LiveView, request: ApiRequest) -> Response:
    """The OpenAPI document of the HTTP interface."""
    return answer(document(API))


_CONVERSATION: Final = "/v1/conversations/{conversation}"
_MESSAGES: Final = f"{_CONVERSATION}/messages"
_MESSAGE: Final = f"{_MESSAGES}/{{message}}"
_LIST: Final = ("limit", "cursor", "user_id", "agent_name", "forked_from", "last")
_TURNS: Final = ("limit", "status", "user_id", "agent_name")
_PAGE: Final = ("limit", "before", "since", "first", "include_archived")
_APPENDED: Final = ("text", "id", "ask", "agent_name")
_APPROVALS: Final = ("limit", "user_id", "agent_name")
_SEARCH: Final = ("conversation", "user_id", "q", "limit", "role", "participant", "tool", "since", "before")
_USAGE: Final = ("user_id", "agent_name", "since", "until", "by")

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
    f"{_CONVERSATION}/approvals/{{call}}": {
        "POST": Endpoint(_endpoints.decide, "decide", "Decided", (), ("approved", "reason")),
    },
    f"{_CONVERSATION}/run": {"GET": Endpoint(_endpoints.run, "read", "CurrentRun")},
    f"{_CONVERSATION}/stop": {
        "POST": Endpoint(_endpoints.stop, "stop", "Stopping", (), ("run_id", "reason"), begins=True),
    },
    f"{_CONVERSATION}/turns": {"GET": Endpoint(_endpoints.turns, "read", "Turns")},
    f"{_CONVERSATION}/retry": {"POST": Endpoint(_endpoints.retry_turn, "append", "Changed", (), ("agent_name",))},
    f"{_CONVERSATION}/drop": {"POST": Endpoint(_endpoints.drop_turn, "stop", "Changed", (), ("agent_name",))},
    _MESSAGES: {
        "GET": Endpoint(_endpoints.messages, "read", "Messages", _PAGE),
        "POST": Endpoint(_endpoints.append, "append", "Appended", (), _APPENDED, ("role", "participant"), begins=True),
    },
    _MESSAGE: {
        "GET": Endpoint(_endpoints.message, "read", "Message"),
        "PATCH": Endpoint(_endpoints.pin, "pin", "Message", (), ("pinned",)),
        "DELETE": Endpoint(_endpoints.delete_message, "delete", None, (), ()),
    },
    f"{_MESSAGE}/edit": {"POST": Endpoint(_endpoints.edit, "edit", "Message", (), ("text",))},
    f"{_MESSAGE}/images/{{image}}": {"GET": Endpoint(_endpoints.image, "read", "Image")},
    f"{_MESSAGE}/retry": {
        "POST": Endpoint(_endpoints.ask_again, "append", "Changed", (), ("agent_name",), also=("delete",)),
    },
    f"{_MESSAGE}/originals": {"GET": Endpoint(_endpoints.originals, "read", "Messages", ("limit", "before"))},
    f"{_MESSAGE}/expand": {"POST": Endpoint(_endpoints.expand, "delete", "Expanded", (), ())},
    f"{_CONVERSATION}/events": {"GET": Endpoint(LiveView.events, "read", "Event", ("after",))},
    "/v1/users/{user}": {"DELETE": Endpoint(_endpoints.erase, "erase", "Erased", (), ())},
    "/v1/approvals": {"GET": Endpoint(_endpoints.approvals, "list", "Approvals", _APPROVALS)},
    "/v1/rights": {"GET": Endpoint(_endpoints.rights, "list", "Rights", ("conversation",))},
    "/v1/usage": {"GET": Endpoint(_endpoints.usage, "usage", "Totals", _USAGE)},
    "/v1/events": {"GET": Endpoint(LiveView.events, "list", "Event")},
    "/v1/turns": {"GET": Endpoint(_endpoints.list_turns, "list", "Turns", _TURNS)},
    "/v1/search": {"GET": Endpoint(_endpoints.search, "list", "Hits", _SEARCH)},
}
#: The segments of ids are still percent-encoded, so they contain no slash.
_PATTERNS: Final = {
    re.compile(re.sub(r"{(\w+)}", r"(?P<\1>[^/]*)", path.replace(".", r"\.")).encode()): endpoints
    for path, endpoints in API.items()
}


def path_of(scope: Scope) -> bytes:
    """The path below the mount point, still percent-encoded: an id may contain a slash.

    A proxy may pass the path with the `root_path` of the application (as ASGI says, and `uvicorn --root-path` sends it)
    or without it (as `FastAPI(root_path=…)` expects it). Below a mount, both have the path of the mount.
    """
    path, root = scope["path"], scope.get("root_path", "")
    raw = bytes(scope.get("raw_path") or quote(path).encode()).partition(b"?")[0]
    whole = unquote(raw.decode("ascii", "replace"))
    segments = raw.split(b"/")
    if whole != path and whole.endswith(path):  # a middleware has taken something off the path alone
        segments = segments[whole.removesuffix(path).count("/") :]
    mounted = root.removeprefix(scope.get("app_root_path", root))
    below = next((one for one in (root, mounted) if one and f"{path}/".startswith(f"{one}/")), "")
    return b"/" + b"/".join(segments[below.count("/") + 1 :])


def path_id(segment: bytes) -> str:
    """An id of a path: percent-encoded, or "=" and the id in base64url, for ids that the tools on the way change, such
    as "..". Unlike "~", a "=" in an id is percent-encoded by every client, and decoded by no proxy."""
    if not segment.removeprefix(b"=").rstrip(b"="):
        raise bad_input("an id in the path is empty")
    try:
        if segment.startswith(b"="):
            data = segment[1:].rstrip(b"=")
            return base64.b64decode(data + b"=" * (-len(data) % 4), b"-_", validate=True).decode()
        return unquote_to_bytes(segment).decode()
    except ValueError as error:
        raise bad_input('an id in the path must be percent-encoded UTF-8, or "=" and base64url') from error
