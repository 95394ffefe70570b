"""Find text, images, audio and files in the values of providers. Pure.

Parts that are kept opaque, tool results and tool inputs are JSON values of any form. A model reads their texts, and
looks at an image or listens to a recording, whose base64 is not text for it. `readable` finds these by the form that
providers and frameworks give them: OpenAI, Anthropic, Gemini, Mistral, Bedrock, MCP, the AI SDK, LangChain, Pydantic
AI.

Each value is visited once, to the depth that a message may have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from operator import is_
from typing import Any, Final, Literal, TypeGuard

from redis_history.values._caps import MAX_DEPTH

#: "data" is base64 of an unknown kind.
Media = Literal["image", "audio", "video", "file", "data"]

#: A word of at least this number of characters can be base64. The longest names, paths and URLs are shorter.
MIN_BASE64: Final = 1_024
_WINDOW: Final = MIN_BASE64 // 2
_ALPHABET: Final = r"A-Za-z0-9+/_\-"
_ONLY_BASE64: Final = re.compile(rf"[{_ALPHABET}]*={{0,2}}")
#: Line breaks in base64, also inside a text that is JSON.
_BREAK: Final = r"(?:\\[rn]|[\r\n]){1,2}"
_BREAKS: Final = re.compile(_BREAK)
_WITH_BREAKS: Final = re.compile(rf"[{_ALPHABET}\r\n\\]*={{0,2}}")
_MIME: Final = r"data:([\w.+-]{1,80}/[\w.+-]{1,80})(?:;[\w.=+-]{1,80}){0,8}"
#: Encoders of mail break lines after 60 to 76 characters.
_LINES: Final = rf"(?:[{_ALPHABET}]{{60,76}}{_BREAK}){{{MIN_BASE64 // 76},}}[{_ALPHABET}]{{0,76}}={{0,2}}"
_DATA_URL: Final = re.compile(rf"{_MIME},", re.ASCII)
#: Looks behind, so that each word is tried once, from its beginning.
_BASE64: Final = re.compile(
    rf"{_MIME};base64,(?:{_LINES}|[{_ALPHABET}%=]+)"
    rf"|(?<![{_ALPHABET}])(?:{_LINES}|[{_ALPHABET}]{{{MIN_BASE64},}}={{0,2}})",
    re.ASCII,
)
#: Minimum number of distinct letters at the start of base64: random bytes have all 64 there, and text without spaces,
#: such as "xxx…", has few.
_LETTERS: Final = 32
#: The beginnings of base64 of PNG, JPEG (also URL-safe), GIF, WebP and PDF, with their types.
BEGINNINGS: Final[Mapping[str, str]] = {
    "iVBORw0KGgo": "image/png",
    "/9j/": "image/jpeg",
    "_9j_": "image/jpeg",
    "R0lGOD": "image/gif",
    "UklGR": "image/webp",
    "JVBERi0": "application/pdf",
}

# Tuples, because a union would be made anew by each check; dict first, because it is quick to tell.
_NUMBERS, _LISTS, _MAPPINGS = (int, float), (list, tuple), (dict, Mapping)
_BINARY = (bytes, bytearray, memoryview)

_KINDS: Final = ("type", "block_type", "kind")
#: Keys of the type of a file.
MIME_KEYS: Final = ("mime_type", "mimeType", "media_type", "mediaType")
#: The types of blocks with an image or a file, and the keys that hold or name its content.
_BLOCKS: Final[Mapping[str, tuple[Media, tuple[str, ...]]]] = {
    "image": ("image", ("source", "data", "base64", "url", "image", "image_url", "file_id", "fileId")),
    "input_image": ("image", ("image_url", "file_id")),
    "image_url": ("image", ("image_url", "url")),
    "image_file": ("image", ("image_file",)),
    "image-data": ("image", ("data",)),
    "image-url": ("image", ("url",)),
    "image-file-id": ("image", ("fileId",)),
    "computer_screenshot": ("image", ("image_url", "file_id")),
    "image_generation_call": ("image", ("result",)),
    "audio": ("audio", ("source", "data", "base64", "url", "audio", "file_id")),
    "audio-url": ("audio", ("url",)),
    "input_audio": ("audio", ("input_audio", "data")),
    "video": ("video", ("source", "data", "base64", "url", "video", "file_id")),
    "video-url": ("video", ("url",)),
    "document": ("file", ("source", "data", "base64")),
    "document_url": ("file", ("document_url",)),
    "document-url": ("file", ("url",)),
    "input_file": ("file", ("file_data", "file_url", "file_id")),
    "file": ("file", ("file", "file_data", "data", "base64", "file_id", "fileId")),
    "file-data": ("file", ("data",)),
    "file-url": ("file", ("url",)),
    "file-id": ("file", ("fileId",)),
    "media": ("file", ("data", "url")),
    "binary": ("file", ("data", "url", "id")),
    "uri": ("file", ("uri",)),
    "container_upload": ("file", ("file_id",)),
}
#: Blocks that only their provider can read.
_ENCRYPTED: Final = frozenset(("redacted_thinking", "reasoning.encrypted"))
#: Gemini's names of blocks, which lack a type.
_INLINE: Final = frozenset(("inlineData", "inline_data", "fileData", "file_data"))
#: Bedrock's names of blocks with a file, which have a format and a source instead of a type.
_CONVERSE: Final[Mapping[str, Media]] = {"image": "image", "document": "file", "audio": "audio", "video": "video"}
_SOURCES: Final = frozenset(("bytes", "s3Location", "location"))
#: Keys of content next to the type of a file.
CONTENT_KEYS: Final = ("data", "blob", "bytes", "base64")
_SIGNATURES: Final = frozenset(
    (
        "signature", "thoughtSignature", "thought_signature", "encrypted_content", "encryptedContent",
        "reasoningEncryptedContent", "encrypted_index", "encrypted_stdout", "encrypted_data",
    )
)  # fmt: skip
#: A mapping without these keys belongs to none of the kinds above.
_SPECIAL: Final = frozenset((*_KINDS, *MIME_KEYS, *_INLINE, *_CONVERSE, *_SIGNATURES))
_MAY_BE_SPECIAL: Final = re.compile("|".join((*(f'"{key}"' for key in _SPECIAL), '"data:')).encode()).search
#: Keys whose texts are for programs: they are left out of `texts_in`.
_TECHNICAL: Final = frozenset(
    (*_KINDS, *MIME_KEYS, "id", "status", "role", "object", "index", "phase", "format", "caller")
)


def readable(value: Any) -> tuple[Any, list[Media]]:
    """The value with a marker such as "[image]" in the place of each image or file, and without signatures and
    encrypted content; and the kinds of the replaced content. A value without such content is returned itself."""
    reader = _Reader()
    return reader.read(value, 0), reader.media


def is_plain(dumped: str | bytes) -> TypeGuard[bytes]:
    """Whether a short value, dumped as JSON, is readable as it is. Takes a fraction of the time of reading it."""
    return isinstance(dumped, bytes) and len(dumped) < MIN_BASE64 and _MAY_BE_SPECIAL(dumped) is None


def readable_text(text: str) -> tuple[str, list[Media]]:
    """The same for a text: base64 and data URLs in it are replaced by markers."""
    if is_readable(text):  # most texts
        return text, []
    reader = _Reader()
    return reader.text(text), reader.media


def texts_in(value: Any) -> Iterator[str]:
    """The texts of a readable value for people: without ids, types and keys."""
    if isinstance(value, str):
        if value.strip():
            yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str) or not (key in _TECHNICAL or key.endswith(("_id", "Id"))):
                yield from texts_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts_in(item)


def kind_of_base64(word: str) -> Media | None:
    """The kind of content of a long base64 word, or None for any other word."""
    start = _BREAKS.sub("", word[: 2 * MIN_BASE64])[:MIN_BASE64]
    letters = set(start)
    if len(letters) < _LETTERS or _ONLY_BASE64.fullmatch(start) is None:
        return None
    if not all(any(first <= letter <= last for letter in letters) for first, last in ("AZ", "az", "09")):
        return None
    return next((_of_mime(mime) for beginning, mime in BEGINNINGS.items() if word.startswith(beginning)), "data")


class _Reader:
    def __init__(self) -> None:
        self.media: list[Media] = []

    def read(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return value if is_readable(value) else self.text(value)
        if value is None or isinstance(value, _NUMBERS) or depth > MAX_DEPTH:
            return value
        if isinstance(value, _MAPPINGS):
            return self._mapping(value, depth + 1)
        if isinstance(value, _LISTS):
            items = [self.read(item, depth + 1) for item in value]
            return value if all(map(is_, items, value)) else items
        return self._marker("data") if isinstance(value, _BINARY) else value

    def text(self, text: str) -> str:
        if text.startswith("data:") and (url := _DATA_URL.match(text)) is not None and " " not in text[:MIN_BASE64]:
            return self._marker(_of_mime(url[1]))
        if len(text) < MIN_BASE64:
            return text
        return _BASE64.sub(self._replaced, text)

    def _replaced(self, found: re.Match[str]) -> str:
        if found[1] is not None:
            return self._marker(_of_mime(found[1]))
        kind = kind_of_base64(found[0])
        return found[0] if kind is None else self._marker(kind)

    def _marker(self, kind: Media) -> str:
        self.media.append(kind)
        return f"[{kind}]"

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> Mapping[Any, Any]:
        if _SPECIAL.isdisjoint(value):
            items = [self.read(item, depth) for item in value.values()]
            return value if all(map(is_, items, value.values())) else dict(zip(value, items, strict=True))
        kind, keys = _content_of(value)
        if _kind_of(value) in _ENCRYPTED and _is_opaque(value.get("data")):
            return {key: item for key, item in value.items() if key != "data"}
        changed = False
        out: dict[Any, Any] = {}
        for key, item in value.items():
            if key in keys:
                if key == keys[0]:  # others name the same content
                    out[key] = self._marker(kind or "file")
            elif key in _INLINE and isinstance(item, Mapping):
                out[key] = self._marker(_of_mime(_mime_of(item)))
            elif key in _CONVERSE and _is_converse(item):
                out[key] = self._marker(_CONVERSE[key])
            elif key in _SIGNATURES and _is_opaque(item):
                changed = True
                continue
            else:
                out[key] = self.read(item, depth)
            changed = changed or out.get(key) is not item
        return out if changed else value


def _kind_of(value: Mapping[Any, Any]) -> str | None:
    for name in _KINDS:
        if isinstance(found := value.get(name), str):
            return found
    return None


def _mime_of(value: Mapping[Any, Any]) -> str | None:
    for name in MIME_KEYS:
        if isinstance(found := value.get(name), str) and "/" in found:
            return found
    return None


def _of_mime(mime: str | None) -> Media:
    start = (mime or "").partition("/")[0].lower()
    return start if start in ("image", "audio", "video") else "file"  # type: ignore[return-value]


def _content_of(value: Mapping[Any, Any]) -> tuple[Media | None, tuple[str, ...]]:
    """The kind of the image or file that a mapping is, and the keys with its content; (None, ()) for any other."""
    block = _BLOCKS.get(_kind_of(value) or "")
    mime = _mime_of(value)
    if block is None:
        if mime is None or mime.startswith("text/"):
            return None, ()
        found = tuple(key for key in CONTENT_KEYS if _is_encoded(value.get(key)))
        return (_of_mime(mime), found) if found else (None, ())
    kind, keys = block
    if kind == "file" and mime is not None:
        kind, keys = _of_mime(mime), (*keys, "url")
    return kind, tuple(key for key in keys if _names_content(value.get(key)))


def _is_converse(item: Any) -> bool:
    source = item.get("source") if isinstance(item, Mapping) and "format" in item else None
    return isinstance(source, Mapping) and not _SOURCES.isdisjoint(source)


def _is_encoded(content: Any) -> bool:
    if isinstance(content, str):
        return bool(content) and _WITH_BREAKS.fullmatch(content, 0, 256) is not None
    return isinstance(content, _BINARY)


def _names_content(content: Any) -> bool:
    """Whether this is the content of a file, its URL or its id. A document of Anthropic can also have text."""
    if isinstance(content, Mapping):
        return content.get("type") not in ("text", "content")
    return bool(content) and isinstance(content, (str, *_BINARY))


def _is_opaque(item: Any) -> bool:
    """Whether this can be a signature or encrypted: one long word."""
    return isinstance(item, bytes) or (isinstance(item, str) and " " not in item)


def is_readable(text: str) -> bool:
    """Whether a text is free of data URLs and of long words that can be base64. Usual text has a space near the end of
    the range that a long word would fill, so looking for it costs next to nothing."""
    if text[:5] == "data:":
        return False
    if len(text) < MIN_BASE64:
        return True
    if ";base64," in text:
        return False
    last_space, end = text.rfind, len(text) - _WINDOW
    at = 0
    while at <= end:
        space = last_space(" ", at, at + MIN_BASE64)
        if space >= 0:
            at = space + 1
        elif _WITH_BREAKS.fullmatch(text, at, at + _WINDOW) is not None:
            return False
        else:
            at += _WINDOW
    return True
