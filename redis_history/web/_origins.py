"""The host names of an application, and the origins whose pages may send it requests."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from redis_history.errors import ConfigurationError
from redis_history.values._validation import check_names, refuse
from redis_history.web._http import Refused

#: A name or an address (IPv6 in brackets) and an optional port, without other characters.
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s\[\]:/@?#\\]+)(:[0-9]{1,5})?")
#: Valid values of `hosts`: a name, all names below a name, or all names.
_NAME: Final = re.compile(r"\*|(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?")
#: Valid values of `origins`, as browsers send them. Pages of applications have their own schemes.
_ORIGIN: Final = re.compile(r"([a-z][a-z0-9+.-]*)://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?/?")
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}
_METHODS: Final = "GET, HEAD, POST, PATCH, DELETE"
#: Response headers that pages of other origins may read. They can read Content-Type in any case.
_EXPOSED: Final = "ETag, Retry-After"
#: Seconds for which a browser need not ask again whether a page may send a request.
_PREFLIGHT_LASTS: Final = "600"


def is_known_host(host: str, names: Collection[str], *, local: bool = False) -> bool:
    """Whether a Host header has an IP address, a name in `names`, or with `local`, any name without a dot.

    In DNS rebinding, a page of `evil.example` makes this name resolve to the server, and may then read from it like a
    page of the server itself. An IP address cannot be rebound, and attackers outside cannot own a name without a dot.
    """
    if not _HOST.fullmatch(host):
        return False
    try:
        name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        parents = [f"*.{name.split('.', at)[at]}" for at in range(1, name.count(".") + 1)]
        return (local and "." not in name) or not {"*", name, *parents}.isdisjoint(names)
    return True


def is_same_origin(request: Request) -> bool:
    """Whether no page of another origin sent this request, according to two headers of the browser."""
    origin = request.headers.get("origin")
    if origin is not None:
        try:
            scheme, host, *_ = urlsplit(origin.lower())
        except ValueError:
            return False
        if scheme not in ("http", "https") or not host or host != request.headers.get("host", "").lower():
            return False
    return request.headers.get("sec-fetch-site", "none") in ("none", "same-origin")


class Callers:
    """The options `origins` and `hosts` of an application. `is_open`: whether it answers without a sign-in. Then a name
    that an attacker may own is rejected unless `hosts` contains it.

    Raises ConfigurationError.
    """

    def __init__(self, origins: Iterable[str], hosts: Iterable[str], *, is_open: bool) -> None:
        self._origins = frozenset(map(_origin, check_names(origins, "origins")))
        names = [_name(one) for one in check_names(hosts, "hosts")]
        self._names = {"localhost", "*.localhost", *names} if names or is_open else {"*"}
        self._local = not names

    def check_host(self, request: Request) -> None:
        """Raises Refused for a request that names another host."""
        hosts = request.headers.getlist("host")
        if "*" in self._names:
            return
        if len(hosts) != 1 or not is_known_host(hosts[0], self._names, local=self._local):
            shown = ", ".join(hosts)[:80]
            detail = f"unknown host name {shown!r}: if it leads to this application, name it with hosts=[…]"
            raise Refused(403, "wrong_host", detail)

    def check_origin(self, request: Request) -> None:
        """Raises Refused for a change that a page of another origin requests, because browsers send the user's cookies
        with it."""
        if request.method not in ("GET", "HEAD") and not (self.is_named(request) or is_same_origin(request)):
            detail = "a page of another origin sent this request: if it may, name its origin with origins=[…]"
            raise Refused(403, "wrong_origin", detail)

    def preflight(self, request: Request) -> Response | None:
        """The answer to a browser that asks whether a page of a named origin may send a request; None for others."""
        asks = request.method == "OPTIONS" and "access-control-request-method" in request.headers
        if not asks or not self.is_named(request):
            return None
        headers = {"Access-Control-Allow-Methods": _METHODS, "Access-Control-Max-Age": _PREFLIGHT_LASTS}
        if asked := request.headers.get("access-control-request-headers"):
            headers["Access-Control-Allow-Headers"] = asked
        return Response(status_code=204, headers=headers)

    def headers(self, request: Request) -> dict[str, str]:
        """Headers of each response, so that pages of the named origins can read it."""
        if not self._origins:
            return {}
        if not self.is_named(request):
            return {"vary": "Origin"}
        return {
            "access-control-allow-origin": request.headers["origin"],
            "access-control-allow-credentials": "true",
            "access-control-expose-headers": _EXPOSED,
            "vary": "Origin",
        }

    def is_named(self, request: Request) -> bool:
        """Whether a page of an origin in `origins` sent this request."""
        return request.headers.get("origin") in self._origins


def _origin(text: str) -> str:
    """Return the origin in the form in which browsers send it."""
    found = _ORIGIN.fullmatch(text.lower())
    if found is None:
        rule = "origins such as 'https://chat.example.com' or 'http://localhost:3000': no path, no '*'"
        refuse(text, "origins", rule, ConfigurationError)
    scheme, host, port = found.groups()
    return f"{scheme}://{host}{'' if port in (None, _DEFAULT_PORTS.get(scheme)) else port}"


def _name(text: str) -> str:
    name = text.lower()
    if not _NAME.fullmatch(name):
        rule = "host names such as 'chat.example.com', '*.example.com' or '*', without scheme and port"
        refuse(text, "hosts", rule, ConfigurationError)
    return name.rstrip(".")
