"""Requests and responses: strict parsing, JSON, errors, streams, and security headers."""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from types import FrameType
from typing import Any, Final
from urllib.parse import parse_qsl

import orjson
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from redis_history import errors
from redis_history.formats.json_form import dumps
from redis_history.values import Participant, Position

_logger = logging.getLogger("redis_history")

#: The maximum number of messages or conversations for one request.
MOST: Final = 1000
#: Bytes of a body. A message that a person types is much shorter.
MAX_BODY: Final = 1_000_000
_MAX_PARAMETERS: Final = 32
_FLAGS: Final = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
#: Security headers of all responses.
HEADERS: Final = {
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
    (errors.MessageTooLargeError, 413, "too_large"),
    (errors.InvalidInputError, 400, "bad_input"),
    (errors.NotFoundError, 404, "not_found"),
    (errors.CapabilityError, 409, "cannot"),
    (errors.ConflictError, 409, "conflict"),
)


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON response."""
    return Response(dumps(value), status, headers, "application/json")


def problem(status: int, code: str, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """An error response: Problem Details (RFC 9457) with a `code`."""
    value = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    return Response(dumps(value | {"code": code}), status, headers, "application/problem+json")


class Refused(Exception):  # noqa: N818 -- a response rather than an error
    """Rejects a request with an error response. The arguments are those of `problem`."""

    def __init__(self, status: int, code: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.response = problem(status, code, detail, headers)


def bad_input(detail: str) -> Refused:
    return Refused(400, "bad_input", detail)


def failure(error: Exception, place: str) -> Response:
    """The response to a request that failed with an exception. `place`: its name in the log.

    Errors of the store's server are logged and not sent, because they may name hosts.
    """
    if isinstance(error, Refused):
        return error.response
    if isinstance(error, HTTPException):
        code = {404: "not_found", 405: "method_not_allowed", 413: "too_large"}.get(error.status_code, "refused")
        return problem(error.status_code, code, error.detail, error.headers)
    if isinstance(error, errors.BudgetExceededError):
        return _used_up(error.budget.resets_at)
    for kind, status, code in _STATUS:
        if isinstance(error, kind):
            return problem(status, code, str(error))
    if isinstance(error, errors.EventLoopError):
        _logger.error("%s runs in another event loop than its store: %s", place, error)
        return problem(500, "wrong_event_loop", str(error))
    if isinstance(error, errors.BackendError):
        _logger.warning("%s cannot reach its store: %s", place, error)
        detail = "the store cannot be reached, or refuses; see the log of the application"
        return problem(503, "no_server", detail, {"Retry-After": "2"})
    if not isinstance(error, errors.RedisHistoryError):
        _logger.error("%s failed", place, exc_info=error)
    return problem(500, "failed", "an internal error; see the log of the application")


def _used_up(resets_at: datetime | None) -> Response:
    """The response to a user without a budget. Not 429: several clients repeat such requests within seconds."""
    if resets_at is None:
        return problem(402, "budget_exceeded", "the budget is used up")
    wait = max(1, math.ceil((resets_at - datetime.now(UTC)).total_seconds()))
    detail = f"the budget is used up until {resets_at:%Y-%m-%d %H:%M} UTC"
    return problem(402, "budget_exceeded", detail, {"Retry-After": str(wait)})


class ApiRequest:
    """A request to the HTTP interface: the ids in its `path`, the parameters of its query, the `body` of a change, the
    signed-in `user` if it appends as this user, and the `life` of the conversation that it may change, or None if it
    may change all.

    `conversation_id` is None if the request names no conversation. Raises Refused for an invalid query.
    """

    def __init__(self, http: Request, path: Mapping[str, str]) -> None:
        self.http, self.path = http, path
        self.body: dict[str, Any] = {}
        self.user: Participant | None = None
        self.life: str | None = None
        try:
            query = http.scope["query_string"].decode("ascii")
            pairs = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=_MAX_PARAMETERS)
        except ValueError as error:
            most = f"at most {_MAX_PARAMETERS} parameters in percent-encoded UTF-8"
            raise bad_input(f"the query of the URL must be {most}") from error
        self._query = dict(pairs)
        if len(self._query) != len(pairs):
            raise bad_input("a parameter of the URL is given twice")
        self.conversation_id = path.get("conversation") or self.text("conversation")

    def text(self, name: str) -> str | None:
        """A parameter; None if missing or empty."""
        return self._query.get(name) or None

    def number(self, name: str, default: int, least: int, most: int) -> int:
        text = self.text(name) or str(default)
        if not text.isascii() or not text.isdigit() or len(text) > 9 or not least <= int(text) <= most:
            raise bad_input(f"{name} must be a whole number from {least} to {most}, not {text[:20]!r}")
        return int(text)

    def flag(self, name: str) -> bool:
        text = self.text(name) or "0"
        if text not in _FLAGS:
            raise bad_input(f"{name} must be 1 or 0, not {text[:20]!r}")
        return _FLAGS[text]

    def position(self, name: str) -> Position | None:
        text = self.text(name)
        return None if text is None else Position.parse(text)

    def check_names(self, parameters: Iterable[str], fields: Iterable[str]) -> None:
        """Raises Refused for other parameters of the query, or other fields of the body, than these."""
        for kind, given, known in (("parameter", self._query, parameters), ("field of the body", self.body, fields)):
            if unknown := sorted(given.keys() - set(known)):
                names = ", ".join(sorted(known)) or "none"
                raise bad_input(f"unknown {kind}: {', '.join(unknown)[:80]}; known here: {names}")

    async def read_body(self, patience: float) -> None:
        """Parse the JSON object of a change into `body`; {} for an empty body. `patience`: as for the function."""
        self.body = await json_body(self.http, MAX_BODY, empty=b"{}", patience=patience)
        if not isinstance(self.body, dict):
            raise bad_input("the body is not a JSON object")

    def answer_with_etag(self, value: Any, cursor: object) -> Response:
        """The response to a read of a conversation's state, with the ETag of that state; 304 if the client has it."""
        tag = f'"{cursor}"'
        known = {one.strip().removeprefix("W/") for one in self.http.headers.get("if-none-match", "").split(",")}
        headers = {"ETag": tag}
        return Response(status_code=304, headers=headers) if tag in known else answer(value, headers=headers)


async def read_body(
    http: Request,
    most: int,
    remedy: str = "",
    *,
    grow: Callable[[int], None] = lambda size: None,
    patience: float | None = None,
) -> bytearray:
    """The body of a request with JSON, of at most `most` bytes. Raises Refused; `remedy` says what to do then.

    `grow` gets the size after each chunk, and may raise Refused. `patience`: how many seconds the client may send
    nothing."""
    kind = http.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(415, "bad_input", "this request needs the header Content-Type: application/json")
    too_large = f"the body must have at most {most:,} bytes" + (f"; {remedy}" if remedy else "")
    announced = http.headers.get("content-length", "")
    if announced.isdecimal() and (len(announced) > 18 or int(announced) > most):
        raise Refused(413, "too_large", too_large)
    received, chunks = bytearray(), http.stream()
    while True:
        try:
            async with asyncio.timeout(patience):
                chunk = await anext(chunks, None)
        except TimeoutError as error:
            raise Refused(408, "too_slow", f"the client has sent nothing for {patience:g} seconds") from error
        if chunk is None:
            return received
        received += chunk
        if len(received) > most:
            raise Refused(413, "too_large", too_large)
        grow(len(received))


async def json_body(http: Request, most: int, empty: bytes = b"", patience: float | None = None) -> Any:
    """The JSON in the body of a request of at most `most` bytes; `empty` stands for an empty one. Raises Refused."""
    try:
        return orjson.loads(await read_body(http, most, patience=patience) or empty)
    except (orjson.JSONDecodeError, RecursionError) as error:
        raise bad_input("the body is not JSON") from error


class EventStream(StreamingResponse):
    """A response with server-sent events. Sends `chunks` until they end, the client disconnects, or it accepts no data
    for `patience` seconds. `is_cut()`: whether the chunks have ended too early. Then `farewell` follows, an event
    that notifies the client: ASGI cannot abort a response, and servers log a response without an end as an error.

    `on_end` is called as soon as no more chunks are needed. A client that accepts no data gets the end of the response
    when it reads again.

    Does not use sse-starlette, which replaces a method of uvicorn's server for the whole process, leaves behind a task
    that polls every half second, and creates four tasks for each client.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        *,
        patience: float,
        on_end: Callable[[], object],
        is_cut: Callable[[], bool] = lambda: False,
        farewell: bytes = b"",
    ) -> None:
        super().__init__(chunks, headers={"Cache-Control": "no-store, no-transform", "X-Accel-Buffering": "no"})
        self._chunks, self._patience, self._on_end = chunks, patience, on_end
        self._is_cut, self._farewell = is_cut, farewell

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused: Message | None = None  # the message that the client did not accept in time

        async def send_in_time(message: Message) -> None:
            nonlocal refused
            if not message.get("more_body", True) and self._is_cut():
                message = {**message, "body": self._farewell}
            refused = message
            async with asyncio.timeout(self._patience):
                await send(message)
            refused = None

        try:
            if scope["method"] == "HEAD":
                await self._chunks.aclose()
            with suppress(ClientDisconnect, OSError):
                await super().__call__(scope, receive, send_in_time)
        finally:
            self._on_end()
            await self._chunks.aclose()
        if refused is None:
            return
        with suppress(OSError):  # the client has left
            if refused["type"] == "http.response.start":
                await send(refused)
            if refused.get("more_body", True):
                refused = {"type": "http.response.body", "body": self._farewell, "more_body": False}
            await send(refused)


def with_headers(send: Send, added: Mapping[str, str]) -> Send:
    """A `send` that adds these headers to a response, unless it has headers of these names."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in added.items():
                headers.setdefault(name, value)
        await send(message)

    return send_with_headers


class EndSignals:
    """Calls `end` in the event loop when the process gets SIGINT or SIGTERM, and then the signal's former handler.

    A server such as uvicorn waits until open streams have ended, and only then ends the application's lifespan. It
    sends no message to open streams, so this class handles the signal. It is active while there are streams, in the
    main thread, and only for signals that already have a handler in Python.
    """

    def __init__(self, end: Callable[[], object]) -> None:
        self._end = end
        self._handlers: dict[int, tuple[Callable[..., object], Callable[..., object]]] = {}  # ours and the former one

    def watch(self) -> None:
        if self._handlers or threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            former = signal.getsignal(number)
            if callable(former):
                handler = partial(self._handle, asyncio.get_running_loop(), former)
                signal.signal(number, handler)
                self._handlers[number] = handler, former

    def unwatch(self) -> None:
        for number, (handler, former) in self._handlers.items():
            if signal.getsignal(number) is handler:
                signal.signal(number, former)
        self._handlers.clear()

    def _handle(
        self, loop: asyncio.AbstractEventLoop, former: Callable[..., object], number: int, frame: FrameType | None
    ) -> None:
        with suppress(RuntimeError):  # the event loop is closed, and with it its streams
            loop.call_soon_threadsafe(self._end)
        former(number, frame)
