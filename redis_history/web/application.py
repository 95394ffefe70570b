"""The live view as an application of its own, behind a token: what `redis-history serve` runs."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from redis_history.errors import ConfigurationError
from redis_history.web._answers import Secured, failure, refusal
from redis_history.web._asking import of_this_origin
from redis_history.web._view import View
from redis_history.web.routing import routes_of

__all__ = ["application", "check_token"]

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~-]{16,256}")
_LOCAL: Final = frozenset(("localhost",))
_LOGIN: Final = (
    "<!doctype html><html lang=en><meta charset=utf-8><title>redis_history</title>"
    "<h1>Not signed in</h1><p>Open the address that <code>redis-history serve</code> printed: it has a token. "
    "If you just did, <a href='./'>go on</a>.</p></html>"
)


def check_token(token: str) -> str:
    """Raises ConfigurationError for a token that is short, or not fit for a URL."""
    if not _TOKEN.fullmatch(token):
        raise ConfigurationError("a token is 16 to 256 characters of A-Z a-z 0-9 . _ ~ -")
    return token


def application(view: View, *, token: str, hosts: Iterable[str] = ()) -> ASGIApp:
    """The application. Asks for `token`; answers to `localhost`, to addresses, and to the names in `hosts`."""
    inside = Starlette(
        routes=routes_of(view, page=True),
        middleware=[Middleware(Gate, token=check_token(token), hosts=hosts)],
        exception_handlers={HTTPException: _failed, Exception: _failed},
    )
    return Secured(inside)


async def _failed(request: Request, error: Exception) -> Response:
    return failure(error)


class Gate:
    """Lets through who has the token, asks for this host by its name, and is no page of another origin.

    A name that leads here only because somebody's name server says so (DNS rebinding) is in the Host header: an address
    never is such a name.
    """

    def __init__(self, app: ASGIApp, *, token: str, hosts: Iterable[str]) -> None:
        self._app = app
        self._token = _digest(token)
        # Browsers do not keep the cookies of two ports of a host apart.
        self.cookie = f"redis_history_{self._token.hex()[:12]}"
        self._value = hmac.new(token.encode(), b"redis_history cookie", hashlib.sha256).hexdigest()
        self._hosts = _LOCAL | {host.lower().rstrip(".") for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            else:
                await send({"type": "websocket.close", "code": 1008})
            return
        refused = self._check(Request(scope))
        await (self._app if refused is None else refused)(scope, receive, send)

    def _check(self, request: Request) -> Response | None:
        hosts = request.headers.getlist("host")
        if len(hosts) != 1 or not self._known(hosts[0]):
            return refusal(403, "wrong_host", "this host name is not served here; see --allowed-host")
        entry = request.scope["path"] == "/" and request.method in ("GET", "HEAD")
        followed = request.headers.get("sec-fetch-mode") == "navigate" and "origin" not in request.headers
        if not of_this_origin(request) and not (entry and followed):  # a link from elsewhere leads to the page only
            return refusal(403, "wrong_origin", "pages of other origins get nothing here")
        given = _token_of_url(request) if entry else None
        if given is not None:
            if not hmac.compare_digest(_digest(given), self._token):
                return self._unknown(request)
            response = RedirectResponse("./", 303)
            response.set_cookie(self.cookie, self._value, path="/", httponly=True, samesite="strict")
            return response
        return None if self._signed_in(request) else self._unknown(request)

    def _known(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if re.search(r"[\s/@?#\\]", host):
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name.rstrip(".") in self._hosts
        return True

    def _signed_in(self, request: Request) -> bool:
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return hmac.compare_digest(_digest(given.strip()), self._token)
        value = request.cookies.get(self.cookie, "")
        return hmac.compare_digest(value.encode(errors="replace"), self._value.encode())

    def _unknown(self, request: Request) -> Response:
        if "text/html" in request.headers.get("accept", ""):
            return Response(_LOGIN, 401, {"WWW-Authenticate": "Bearer"}, "text/html")
        message = "a token is needed: the header Authorization: Bearer TOKEN, or the address that serve printed"
        return refusal(401, "no_token", message, {"WWW-Authenticate": "Bearer"})


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="replace")).digest()


def _token_of_url(request: Request) -> str | None:
    query = request.scope["query_string"].decode("latin-1")
    return dict(parse_qsl(query, keep_blank_values=True)).get("token")
