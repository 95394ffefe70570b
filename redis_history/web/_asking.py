"""What a request asks for: parameters and bodies, read strictly."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import orjson
from starlette.requests import Request

from redis_history._ids import check_conversation_id
from redis_history.web._answers import Refused

__all__ = ["MAX_BODY", "MOST", "Asked", "body_of", "of_this_origin"]

#: What one request may ask for at most: messages, conversations.
MOST: Final = 1000
#: Bytes of a body. A message that people write by hand is far shorter.
MAX_BODY: Final = 1_000_000
_MAX_FIELDS: Final = 32


class Asked:
    """The parameters of a request. Each may be given once; what is no UTF-8 is refused, not replaced."""

    def __init__(self, request: Request) -> None:
        try:
            raw = request.scope["query_string"].decode("ascii")
            pairs = parse_qsl(raw, keep_blank_values=True, errors="strict", max_num_fields=_MAX_FIELDS)
        except ValueError as error:
            most = f"at most {_MAX_FIELDS} parameters in percent-encoded UTF-8"
            raise Refused(400, "bad_input", f"the query of the URL cannot be read: it is {most}") from error
        self._fields = dict(pairs)
        if len(self._fields) != len(pairs):
            raise Refused(400, "bad_input", "a parameter of the URL is given twice")

    def text(self, name: str) -> str | None:
        """A parameter; None if it is not given, or empty."""
        return self._fields.get(name) or None

    def needed(self, name: str) -> str:
        found = self.text(name)
        if found is None:
            raise Refused(400, "bad_input", f"the parameter {name} is missing")
        return found

    def conversation(self) -> str:
        found = self.needed("conversation")
        check_conversation_id(found)
        return found

    def number(self, name: str, default: int, least: int, most: int) -> int:
        text = self.text(name)
        if text is None:
            return default
        if not text.isascii() or not text.isdigit() or len(text) > 9 or not least <= int(text) <= most:
            raise Refused(400, "bad_input", f"{name} is a whole number from {least} to {most}, not {text[:20]!r}")
        return int(text)

    def flag(self, name: str) -> bool:
        return self.text(name) in ("1", "true", "yes")


async def body_of(request: Request) -> dict[str, Any]:
    """The JSON object in the body of a request; {} if there is no body."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(415, "bad_input", "a change needs the header Content-Type: application/json")
    received = bytearray()
    async for chunk in request.stream():
        received += chunk
        if len(received) > MAX_BODY:
            raise Refused(413, "too_large", f"a body has at most {MAX_BODY:,} bytes")
    try:
        value = orjson.loads(received or b"{}")
    except (orjson.JSONDecodeError, RecursionError) as error:
        raise Refused(400, "bad_input", "the body is not JSON") from error
    if not isinstance(value, dict):
        raise Refused(400, "bad_input", "the body is not a JSON object")
    return value


def of_this_origin(request: Request) -> bool:
    """Whether no page of another origin sent this: a browser says so, in either of two headers."""
    origin = request.headers.get("origin")
    if origin is not None:
        try:
            host = urlsplit(origin).netloc.lower()
        except ValueError:
            return False
        if not host or host != request.headers.get("host", "").lower():
            return False
    return request.headers.get("sec-fetch-site", "none") in ("none", "same-origin")
