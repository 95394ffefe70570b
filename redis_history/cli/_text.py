"""Escapes untrusted text, and JSON, so that it cannot control a terminal."""

from __future__ import annotations

import re
from typing import Any, Final

import orjson

__all__ = ["counted", "json_line", "name", "one_line", "visible"]

# Characters that change the direction of the text around them, hide text (tags), or break lines in other ways than
# \n; and the C1 control characters, which include one-byte forms of ESC [. Not joiners: emoji and many scripts need
# them.
_BEYOND_ASCII: Final = (
    "\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f"
)
_STEERS: Final = re.compile(f"[\x00-\x08\x0b-\x1f{_BEYOND_ASCII}]")
_STEERS_OR_BREAKS: Final = re.compile(f"[\x00-\x1f{_BEYOND_ASCII}]")
_STEERS_IN_JSON: Final = re.compile(f"[{_BEYOND_ASCII}]")  # JSON escapes the others


def visible(text: str) -> str:
    """The text with its line breaks, and with visible signs for other control characters: ␛ for ESC."""
    return _STEERS.sub(_sign, text.replace("\r\n", "\n").expandtabs(4))


def name(text: str) -> str:
    """Like `visible`, for an id or another name: on one line, with all its blanks."""
    return _STEERS_OR_BREAKS.sub(_sign, text)


def one_line(text: str, width: int | None = None) -> str:
    """The text on one line, each run of whitespace as one blank, cut to `width` characters."""
    cut = text if width is None else text[: 4 * width]
    line = name(" ".join(cut.split()))
    if width is None or (len(line) <= width and len(cut) == len(text)):
        return line
    return line[: width - 1].rstrip() + "…"


def counted(count: int, what: str) -> str:
    """1 message, 2 messages."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def json_line(value: Any) -> bytes:
    """JSON in UTF-8, on one line."""
    return _STEERS_IN_JSON.sub(_escaped, orjson.dumps(value, default=str).decode()).encode()


def _sign(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _escaped(found: re.Match[str]) -> str:
    return "".join(f"\\u{unit:04x}" for unit in memoryview(found[0].encode("utf-16-le")).cast("H"))
