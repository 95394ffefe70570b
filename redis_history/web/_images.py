"""Images that stand in messages, as data URLs or as blocks of providers with base64. Pure."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_to_bytes

from redis_history.values import AttachmentPart, Message, Part, ToolResultPart
from redis_history.values._caps import MAX_DEPTH
from redis_history.values.contents import BEGINNINGS, CONTENT_KEYS, MIME_KEYS
from redis_history.values.parts import UnknownPart

#: Types that browsers show and that cannot contain a script or an address. SVG can.
_TYPES: Final = frozenset(("image/png", "image/jpeg", "image/gif", "image/webp", "image/avif"))
#: Images of one message that are shown.
_MOST: Final = 100
_URL: Final = re.compile(r"data:(image/[\w.+-]{1,40})(?:;[\w.=+-]{1,80}){0,4},", re.ASCII)


class Image(NamedTuple):
    """The type of an image, and its bytes, or these as base64. The message may have only the beginning of them, if it
    was read without its large contents."""

    mime_type: str
    data: str | bytes

    def content(self) -> bytes | None:
        """The bytes; None if they are damaged."""
        if isinstance(self.data, bytes):
            return self.data
        try:
            data = unquote_to_bytes(self.data).translate(_STANDARD, b" \r\n\t=")
            return base64.b64decode(data + b"=" * (-len(data) % 4), validate=True)
        except (binascii.Error, UnicodeEncodeError):
            return None


_STANDARD: Final = bytes.maketrans(b"-_", b"+/")


def image_numbers(message: Message) -> dict[int, list[int]]:
    """The numbers of the images in each part, by the index of the part. Parts without images are left out."""
    found: dict[int, list[int]] = {}
    for number, (at, _) in enumerate(_images(message)):
        found.setdefault(at, []).append(number)
    return found


def image_in(message: Message, number: int) -> Image | None:
    """The image of this number; None if there is none."""
    return next((image for at, (_, image) in enumerate(_images(message)) if at == number), None)


def _images(message: Message) -> Iterator[tuple[int, Image]]:
    left = _MOST
    for at, part in enumerate(message.parts):
        for image in _in(_shown_value(part), 0):
            yield at, image
            left -= 1
            if not left:
                return


def _shown_value(part: Part) -> Any:
    """The field of a part that may contain images."""
    if isinstance(part, AttachmentPart):
        return part.reference
    return part.content if isinstance(part, ToolResultPart) else part.data if isinstance(part, UnknownPart) else None


def _in(value: Any, depth: int) -> Iterator[Image]:
    if isinstance(value, str):
        if value.startswith("data:image/") and (url := _URL.match(value)) is not None:
            yield from _of(url[1], value[url.end() :])
    elif depth > MAX_DEPTH:
        return
    elif isinstance(value, Mapping):
        mime = next((value[name] for name in MIME_KEYS if isinstance(value.get(name), str)), None)
        data = next((value[name] for name in CONTENT_KEYS if isinstance(value.get(name), str | bytes)), None)
        made = value.get("result") if value.get("type") == "image_generation_call" else None
        if mime is not None and data and not str(data[:5]).startswith("data:"):
            yield from _of(mime, data)
        elif isinstance(made, str):
            yield from _of(next((kind for start, kind in BEGINNINGS.items() if made.startswith(start)), ""), made)
        else:
            for item in value.values():
                yield from _in(item, depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _in(item, depth + 1)


def _of(mime_type: str, data: str | bytes) -> Iterator[Image]:
    mime_type = mime_type.lower()
    mime_type = "image/jpeg" if mime_type == "image/jpg" else mime_type
    if data and mime_type in _TYPES:
        yield Image(mime_type, data)
