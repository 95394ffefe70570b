"""HTTP responses: JSON, errors, and the common headers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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

__all__ = ["Refused", "Secured", "answer", "failure", "refusal"]

_logger = logging.getLogger("redis_history")

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


class Refused(Exception):  # noqa: N818 -- a response rather than an error
    """Rejects a request with an error response."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.headers = status, code, message, headers


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON response."""
    return Response(dumps(value), status, headers, "application/json")


def refusal(status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """An error response in JSON."""
    return answer({"error": {"code": code, "message": message}}, status, headers)


def failure(error: Exception) -> Response:
    """The response to a request that failed with an exception.

    Errors of the store's server are only logged, not sent, because they may name hosts.
    """
    if isinstance(error, Refused):
        return refusal(error.status, error.code, error.message, error.headers)
    if isinstance(error, HTTPException):
        code = {404: "not_found", 405: "method_not_allowed", 413: "too_large"}.get(error.status_code, "refused")
        return refusal(error.status_code, code, error.detail, error.headers)
    if isinstance(error, MessageTooLargeError):
        return refusal(413, "too_large", str(error))
    if isinstance(error, InvalidInputError):
        return refusal(400, "bad_input", str(error))
    if isinstance(error, NotFoundError):
        return refusal(404, "not_found", str(error))
    if isinstance(error, CapabilityError):
        return refusal(409, "cannot", str(error))
    if isinstance(error, ConflictError):
        return refusal(409, "conflict", str(error))
    if isinstance(error, BackendError):
        _logger.warning("the live view cannot reach the store: %s", error)
        message = "the store cannot be reached, or refuses; see the log of the application"
        return refusal(503, "no_server", message, {"Retry-After": "2"})
    if not isinstance(error, RedisHistoryError):
        _logger.error("the live view failed", exc_info=error)
    return refusal(500, "failed", "an internal error; see the log of the application")


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
