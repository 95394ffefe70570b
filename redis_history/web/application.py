"""The live view as a standalone application with token authentication, for `redis-history serve`."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from redis_history.errors import ConfigurationError
from redis_history.web._http import HEADERS, failure, problem, with_headers
from redis_history.web._origins import is_known_host, is_same_origin
from redis_history.web.access import SIGNED_IN_UNTIL
from redis_history.web.routing import LiveView

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~-]{16,256}")
#: Seconds after which a cookie expires, is renewed, and is no longer renewed; and after which an invitation expires.
_EXPIRES: Final = 12 * 3600
_RENEW_AFTER: Final = 3600
_SIGN_IN_AGAIN: Final = 7 * 24 * 3600
_INVITED: Final = 60
_now = time.time
_PAGE: Final = "<!doctype html><html lang=en><meta charset=utf-8><title>redis_history</title>"
_LOGIN: Final = (
    f"{_PAGE}<h1>Not signed in</h1><p>Open the address that <code>redis-history serve</code> printed, or enter its "
    "token. If you just did, <a href='./'>go on</a>.</p><form method=post action='./'><label>Token "
    "<input type=password name=token autocomplete=current-password required></label> <button>Sign in</button></form>"
    "</html>"
)
#: Forms are forbidden elsewhere. Without a referrer, browsers send no origin with a form.
_LOGIN_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "referrer-policy": "same-origin",
}
#: Bytes of a form with a token, and seconds to send it.
_FORM: Final = 2_000
_FORM_WAITS: Final = 10.0
#: After a link from another site, a redirect would not send a strict cookie. A navigation by this page sends it.
_ENTER: Final = f"{_PAGE}<meta http-equiv=refresh content='0;url=./'><p><a href='./'>Go on</a></p></html>"


def check_token(token: str) -> str:
    """Raises ConfigurationError for a token that is too short, or that a URL cannot contain."""
    if not _TOKEN.fullmatch(token):
        raise ConfigurationError("REDIS_HISTORY_TOKEN must have 16 to 256 characters of A-Z a-z 0-9 . _ ~ -")
    return token


class Invitation:
    """Signs in one browser without the token: a code for the URL that works once, within a minute."""

    def __init__(self) -> None:
        self.code = secrets.token_urlsafe(32)
        self._expires = _now() + _INVITED

    def redeem(self, code: str) -> bool:
        if _now() >= self._expires or not hmac.compare_digest(_digest(code), _digest(self.code)):
            return False
        self._expires = 0.0
        return True


def application(view: LiveView, **options: Any) -> ASGIApp:
    """The application, with the options of `Gate`."""
    app = Starlette(exception_handlers={HTTPException: _failed, Exception: _failed})
    app.router.default = view  # unlike a Mount, it takes line feeds in paths
    return Gate(app, **options)


async def _failed(request: Request, error: Exception) -> Response:
    return failure(error, LiveView.place)


class Gate:
    """Middleware that requires `token`, a request from the same origin, and a host name: `localhost`, an IP address or
    a name in `hosts`.

    The check of the Host header prevents DNS rebinding; see `is_known_host`.

    A cookie is random, and signed with a key made from the token. It contains its time of creation, after which it
    expires, and the time of the sign-in, which limits how often it is renewed. `secure`: whether it is sent only over
    https; None: if the sign-in used https.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str,
        hosts: Iterable[str] = (),
        secure: bool | None = None,
        invitation: Invitation | None = None,
    ) -> None:
        self._app = app
        self._token = _digest(check_token(token))
        # Browsers share cookies between the ports of a host.
        self._cookie_name = f"redis_history_{self._token.hex()[:12]}"
        self._key = hmac.digest(token.encode(), b"redis_history cookie", "sha256")
        self._hosts = {"localhost", *(host.lower().rstrip(".") for host in hosts)}
        self._secure = secure
        self._invitation = invitation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        else:
            request, send = Request(scope), with_headers(send, HEADERS)
            response = self._check_source(request) or await self._sign_in(request, receive)
            if response is None and not self._has_token(request):
                if session := self._session(request):
                    signed_in, created = session
                    if _now() - created >= _RENEW_AFTER:
                        created = _now()
                        send = with_headers(send, {"set-cookie": self._cookie(request, signed_in)})
                    scope[SIGNED_IN_UNTIL] = created + _RENEW_AFTER
                else:
                    response = _unauthorized(request)
            await (response or self._app)(scope, receive, send)

    def _check_source(self, request: Request) -> Response | None:
        """The error response to a request with an unknown host name, or from another origin."""
        hosts = request.headers.getlist("host")
        if len(hosts) != 1 or not is_known_host(hosts[0], self._hosts):
            return problem(403, "wrong_host", "unknown host name: allow it with --allowed-host")
        is_link = request.headers.get("sec-fetch-mode") == "navigate" and "origin" not in request.headers
        # A link from another site may only open the page.
        if not is_same_origin(request) and not (_is_entry(request) and is_link):
            return problem(403, "wrong_origin", "requests from pages of other origins are rejected")
        return None

    async def _sign_in(self, request: Request, receive: Receive) -> Response | None:
        """The response to a URL with a token or a code, which it removes from the address bar and from the server's
        log, or to a form with a token."""
        if request.scope["path"] == "/" and request.method == "POST":
            fields: Mapping[str, str] = await _form(Request(request.scope, receive))
            if "token" not in fields:
                return problem(405, "method_not_allowed", "only a form with a token is posted here")
        elif not _is_entry(request):
            return None
        else:
            fields = request.query_params
        if "token" in fields:
            allowed = hmac.compare_digest(_digest(fields["token"]), self._token)
            response: Response = RedirectResponse("./", 303)
        elif "code" in fields:
            allowed = self._invitation is not None and self._invitation.redeem(fields["code"])
            response = Response(_ENTER, 200, media_type="text/html")
        else:
            return None
        request.scope["query_string"] = b""
        if not allowed:
            return _unauthorized(request)
        response.headers["set-cookie"] = self._cookie(request, _now())
        return response

    def _cookie(self, request: Request, signed_in: float) -> str:
        value = f"{signed_in:.0f}.{_now():.0f}.{secrets.token_urlsafe(16)}"
        secure = self._secure
        if secure is None:  # proxies set the header, and a client that forges it affects only its own cookie
            secure = "https" in (request.scope["scheme"], request.headers.get("x-forwarded-proto"))
        attributes = f"Max-Age={_EXPIRES}; Path=/; HttpOnly; SameSite=Strict{'; Secure' if secure else ''}"
        return f"{self._cookie_name}={value}.{self._signature(value)}; {attributes}"

    def _session(self, request: Request) -> tuple[float, float] | None:
        """The times of the sign-in and of the cookie's creation; None without a valid cookie."""
        value, _, signature = request.cookies.get(self._cookie_name, "").rpartition(".")
        if not hmac.compare_digest(signature.encode(errors="replace"), self._signature(value).encode()):
            return None
        signed_in, created = map(float, value.split(".")[:2])
        return (signed_in, created) if _now() < min(created + _EXPIRES, signed_in + _SIGN_IN_AGAIN) else None

    def _signature(self, value: str) -> str:
        return hmac.new(self._key, value.encode(errors="replace"), "sha256").hexdigest()

    def _has_token(self, request: Request) -> bool:
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and hmac.compare_digest(_digest(token.strip()), self._token)


def _unauthorized(request: Request) -> Response:
    headers = {"WWW-Authenticate": "Bearer"}
    if "text/html" in request.headers.get("accept", ""):
        return Response(_LOGIN, 401, headers | _LOGIN_HEADERS, "text/html")
    detail = "a token is needed: the header Authorization: Bearer TOKEN, or the address that serve printed"
    return problem(401, "no_token", detail, headers)


async def _form(request: Request) -> dict[str, str]:
    """The fields of a small form; none if it is large, slow, or no form."""
    if request.headers.get("content-type", "").partition(";")[0] != "application/x-www-form-urlencoded":
        return {}
    body = b""
    try:
        async with asyncio.timeout(_FORM_WAITS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > _FORM:
                    return {}
        return dict(parse_qsl(body.decode(errors="replace"), max_num_fields=10))
    except (TimeoutError, ClientDisconnect, ValueError):  # ValueError: more fields
        return {}


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="replace")).digest()


def _is_entry(request: Request) -> bool:
    return request.scope["path"] == "/" and request.method in ("GET", "HEAD")
