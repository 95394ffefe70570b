"""Requests and responses: strict parsing, JSON, errors, streams, and the common headers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import orjson
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from redis_history._ids import check_conversation_id
from redis_history.errors import (
    BackendError,
    CapabilityError,
    ConflictError,
    InvalidInputError,
    MessageTooLargeError,
    NotFoundError,
    RedisHistoryError,
)
from redis_history.web._shape import dumps

_logger = logging.getLogger("redis_history")

#: The maximum number of messages or conversations for one request.
MOST: Final = 1000
#: Bytes of a body. A message that a person types is much shorter.
MAX_BODY: Final = 1_000_000
_MAX_FIELDS: Final = 32
_FLAGS: Final = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
_STATUS: Final[tuple[tuple[type[Exception], int, str], ...]] = (
    (MessageTooLargeError, 413, "too_large"),
    (InvalidInputError, 400, "bad_input"),
    (NotFoundError, 404, "not_found"),
    (CapabilityError, 409, "cannot"),
    (ConflictError, 409, "conflict"),
)
#: Sent first in a stream: sets the milliseconds before a reconnect, and shows the client that it is connected.
_OPENING: Final = b"retry: 2000\n: open\n\n"


class Refused(Exception):  # noqa: N818 -- a response rather than an error
    """Rejects a request with an error response."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.headers = status, code, message, headers


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON response."""
    return Response(dumps(value), status, headers, "application/json")


def answer_of_state(asked: Asked, value: Any, cursor: object) -> Response:
    """The response to a read of a conversation's state, with the ETag of that state; 304 if the client has it."""
    tag = f'"{cursor}"'
    known = {one.strip().removeprefix("W/") for one in asked.request.headers.get("if-none-match", "").split(",")}
    headers = {"ETag": tag}
    return Response(status_code=304, headers=headers) if tag in known else answer(value, headers=headers)


def refusal(status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """An error response: Problem Details (RFC 9457) with a `code`."""
    problem = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": message}
    return Response(dumps(problem | {"code": code}), status, headers, "application/problem+json")


def failure(error: Exception) -> Response:
    """The response to a request that failed with an exception.

    Errors of the store's server are only logged, not sent, because they may name hosts.
    """
    if isinstance(error, Refused):
        return refusal(error.status, error.code, error.message, error.headers)
    if isinstance(error, HTTPException):
        code = {404: "not_found", 405: "method_not_allowed", 413: "too_large"}.get(error.status_code, "refused")
        return refusal(error.status_code, code, error.detail, error.headers)
    for kind, status, code in _STATUS:
        if isinstance(error, kind):
            return refusal(status, code, str(error))
    if isinstance(error, BackendError):
        _logger.warning("the live view cannot reach the store: %s", error)
        message = "the store cannot be reached, or refuses; see the log of the application"
        return refusal(503, "no_server", message, {"Retry-After": "2"})
    if not isinstance(error, RedisHistoryError):
        _logger.error("the live view failed", exc_info=error)
    return refusal(500, "failed", "an internal error; see the log of the application")


class Asked:
    """The parameters of a request, in its path and in its query, each given at most once, and the body of a change.

    `conversation_id` is None if the request names no conversation. Raises Refused for an invalid query string.
    """

    def __init__(self, request: Request, path: Mapping[str, str]) -> None:
        self.request = request
        self.body: dict[str, Any] = {}
        try:
            raw = request.scope["query_string"].decode("ascii")
            pairs = parse_qsl(raw, keep_blank_values=True, errors="strict", max_num_fields=_MAX_FIELDS)
        except ValueError as error:
            most = f"at most {_MAX_FIELDS} parameters in percent-encoded UTF-8"
            raise Refused(400, "bad_input", f"the query of the URL must be {most}") from error
        self._fields = dict(pairs)
        if len(self._fields) != len(pairs):
            raise Refused(400, "bad_input", "a parameter of the URL is given twice")
        if twice := self._fields.keys() & path.keys():
            raise Refused(400, "bad_input", f"unknown parameter: {min(twice)} is a part of the path")
        self._fields |= path
        self._path = path
        self.conversation_id = self.text("conversation")
        if self.conversation_id is not None:
            check_conversation_id(self.conversation_id)

    def text(self, name: str) -> str | None:
        """A parameter; None if missing or empty."""
        return self._fields.get(name) or None

    def needed(self, name: str) -> str:
        found = self.text(name)
        if found is None:
            raise Refused(400, "bad_input", f"the parameter {name} is missing")
        return found

    @property
    def conversation(self) -> str:
        return self.needed("conversation")

    def number(self, name: str, default: int, least: int, most: int) -> int:
        text = self.text(name)
        if text is None:
            return default
        if not text.isascii() or not text.isdigit() or len(text) > 9 or not least <= int(text) <= most:
            raise Refused(400, "bad_input", f"{name} must be a whole number from {least} to {most}, not {text[:20]!r}")
        return int(text)

    def flag(self, name: str) -> bool:
        text = self.text(name) or "0"
        if text not in _FLAGS:
            raise Refused(400, "bad_input", f"{name} must be 1 or 0, not {text[:20]!r}")
        return _FLAGS[text]

    def check_names(self, parameters: Iterable[str], fields: Iterable[str]) -> None:
        """Raises Refused for other parameters of the URL, or fields of the body, than these."""
        asked = self._fields.keys() - self._path.keys()
        for kind, given, known in (("parameter", asked, parameters), ("field of the body", self.body.keys(), fields)):
            if unknown := sorted(given - set(known)):
                names = ", ".join(sorted(known)) or "none"
                raise Refused(400, "bad_input", f"unknown {kind}: {', '.join(unknown)[:80]}; known here: {names}")

    async def read_body(self) -> None:
        """Parse the JSON object of a change into `body`; {} for an empty body."""
        kind = self.request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Refused(415, "bad_input", "a change needs the header Content-Type: application/json")
        received = bytearray()
        async for chunk in self.request.stream():
            received += chunk
            if len(received) > MAX_BODY:
                raise Refused(413, "too_large", f"the body must have at most {MAX_BODY:,} bytes")
        try:
            self.body = orjson.loads(received or b"{}")
        except (orjson.JSONDecodeError, RecursionError) as error:
            raise Refused(400, "bad_input", "the body is not JSON") from error
        if not isinstance(self.body, dict):
            raise Refused(400, "bad_input", "the body is not a JSON object")


def of_this_origin(request: Request) -> bool:
    """Whether no page of another origin sent this request, according to either of two headers of the browser."""
    origin = request.headers.get("origin")
    if origin is not None:
        try:
            host = urlsplit(origin).netloc.lower()
        except ValueError:
            return False
        if not host or host != request.headers.get("host", "").lower():
            return False
    return request.headers.get("sec-fetch-site", "none") in ("none", "same-origin")


class EventStream(Response):
    """A response with server-sent events. Sends `chunks` until they end, the client disconnects, or it accepts no data
    for `patience` seconds.

    Does not use sse-starlette. That package replaces a method of uvicorn's server for the whole process, with a flag
    that is never reset; leaves behind a task that polls every half second; and creates four tasks for each client. Here
    each event is formatted once for all clients, and heartbeats come from the ring.
    """

    media_type = "text/event-stream"

    def __init__(
        self, chunks: AsyncGenerator[bytes, None], *, patience: float, when_over: Callable[[], object]
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"Cache-Control": "no-store, no-transform", "X-Accel-Buffering": "no"})
        self._chunks, self._patience, self._when_over = chunks, patience, when_over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            if scope["method"] == "HEAD":
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            else:
                await self._stream(receive, send)
        finally:
            self._when_over()
            await self._chunks.aclose()

    async def _stream(self, receive: Receive, send: Send) -> None:
        tasks = [asyncio.ensure_future(self._send_all(send)), asyncio.ensure_future(_disconnected(receive))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        if isinstance(outcomes[0], Exception) and not isinstance(outcomes[0], TimeoutError | OSError):
            raise outcomes[0]

    async def _send_all(self, send: Send) -> None:
        await self._send(send, _OPENING)
        async for chunk in self._chunks:
            await self._send(send, chunk)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, chunk: bytes) -> None:
        async with asyncio.timeout(self._patience):
            await send({"type": "http.response.body", "body": chunk, "more_body": True})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Secured:
    """Middleware that adds the headers to all responses, except for headers that are already set."""

    def __init__(self, app: ASGIApp, headers: Mapping[str, str] | None = None) -> None:
        self.app = app
        self._headers = {**_HEADERS, **(headers or {})}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
            await send(message)

        await self.app(scope, receive, secured if scope["type"] == "http" else send)
