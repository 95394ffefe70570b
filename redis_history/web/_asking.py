"""Strict parsing of the parameters and bodies of requests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import orjson
from starlette.requests import Request

from redis_history._ids import check_conversation_id
from redis_history.web._answers import Refused

__all__ = ["MAX_BODY", "MOST", "Asked", "of_this_origin"]

#: The maximum number of messages or conversations for one request.
MOST: Final = 1000
#: Bytes of a body. A message that a person types is much shorter.
MAX_BODY: Final = 1_000_000
_MAX_FIELDS: Final = 32
_FLAGS: Final = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


class Asked:
    """The parameters of a request, each given at most once, and the body of a change.

    `conversation_id` is None if the request names no conversation. Raises Refused for an invalid query string.
    """

    body: dict[str, Any]

    def __init__(self, request: Request) -> None:
        self.request = request
        self.body = {}
        try:
            raw = request.scope["query_string"].decode("ascii")
            pairs = parse_qsl(raw, keep_blank_values=True, errors="strict", max_num_fields=_MAX_FIELDS)
        except ValueError as error:
            most = f"at most {_MAX_FIELDS} parameters in percent-encoded UTF-8"
            raise Refused(400, "bad_input", f"the query of the URL must be {most}") from error
        self._fields = dict(pairs)
        if len(self._fields) != len(pairs):
            raise Refused(400, "bad_input", "a parameter of the URL is given twice")
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

    async def read_body(self) -> None:
        """Parse the JSON object of a change into `body`."""
        self.body = await _body_of(self.request)

    def check_names(self, parameters: Iterable[str], fields: Iterable[str]) -> None:
        """Raises Refused for other parameters of the URL, or fields of the body, than these."""
        for kind, given, known in (("parameter", self._fields, parameters), ("field of the body", self.body, fields)):
            if unknown := sorted(given.keys() - set(known)):
                names = ", ".join(sorted(known)) or "none"
                raise Refused(400, "bad_input", f"unknown {kind}: {', '.join(unknown)[:80]}; known here: {names}")

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


async def _body_of(request: Request) -> dict[str, Any]:
    """The JSON object in the body of a request; {} for an empty body."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(415, "bad_input", "a change needs the header Content-Type: application/json")
    received = bytearray()
    async for chunk in request.stream():
        received += chunk
        if len(received) > MAX_BODY:
            raise Refused(413, "too_large", f"the body must have at most {MAX_BODY:,} bytes")
    try:
        value = orjson.loads(received or b"{}")
    except (orjson.JSONDecodeError, RecursionError) as error:
        raise Refused(400, "bad_input", "the body is not JSON") from error
    if not isinstance(value, dict):
        raise Refused(400, "bad_input", "the body is not a JSON object")
    return value


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
