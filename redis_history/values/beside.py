"""Large contents stand beside the messages.

A script takes the server 6 ms for each megabyte that it gets, a plain SET almost nothing. So texts, bytes, lists and
maps of at least `LARGE_BYTES` leave the stored form of a message: each is a key of its own, and the message keeps its
beginning, its size and its digest. The stored form then has the flag BESIDE, and ends with a table: for each content
where its beginning is (4 bytes, from the id on) and how long (2), its size (4) and its digest (32 hexadecimal digits),
and last their number (2).

The digest is a part of the key, so a content never changes, and it is checked when the content is read.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from redis_history.errors import CorruptDataError, InvalidInputError
from redis_history.values import _zstd
from redis_history.values._validation import refuse
from redis_history.values.contents import kind_of_base64
from redis_history.values.message import Message

#: Values of at least this many bytes stand beside their message. From here on, a script that gets the value costs the
#: server more than the SET, the GETRANGE and the commands of the script that links it: see docs/operations.md.
LARGE_BYTES: Final = 32_000
#: The bytes of a content that its message keeps: enough for a preview, and to see that it is base64 (`MIN_BASE64`).
BEGINNING_BYTES: Final = 1_200

_ENTRY: Final = struct.Struct(">IHI32s")
_COUNT: Final = struct.Struct(">H")
#: The first byte of a stored content: it is as it is, or one frame of zstd.
_PLAIN: Final = b"\0"
_COMPRESSED: Final = b"\1"

#: Fields of a body, from the id on, that may have large values: parts, metadata, sources, provider_meta, extra and what
#: follows. The others are read by filters and lists.
_PARTS: Final = 2
_SOURCES: Final = 6
_SMALL_FIELDS: Final = frozenset({0, 1, 3, 4, 7, 9, 11})
#: The first field of a part, by the number of its type, that may be large: not the id and the name of a tool call. And
#: the field that may be taken as a whole: the input of a call, or the content of a result.
_FIRST_FIELD: Final = {3: 3, 4: 2}
#: Keys of maps that say what a part is, so they stay.
_STAYING_KEYS: Final = frozenset({b"\xa4pair", b"\xa4type"})

#: The bytes with which MessagePack begins bytes, and longer texts, and how many bytes precede their content.
_BYTES: Final = frozenset({0xC4, 0xC5, 0xC6})
_SIZED: Final = {0xC4: 2, 0xC5: 3, 0xC6: 5, 0xD9: 2, 0xDA: 3, 0xDB: 5}

_items = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_encode = msgspec.msgpack.Encoder().encode


class Content(NamedTuple):
    """A large value of a message: the digest of its bytes, and these."""

    digest: str
    data: bytes


class Reference(NamedTuple):
    """Where the beginning of a content is, from the id of its message on; the bytes of the beginning and of the
    content; and the digest."""

    at: int
    length: int
    size: int
    digest: str


class PartialMessage(Message, frozen=True, kw_only=True):
    """A message without its large contents: each text, base64 or bytes of 32,000 bytes or more is cut after the first
    1,200, and the input of a tool call, the content of a result, and lists and maps in these are empty if they are so
    large. `stored` is its stored form. It cannot be stored again; `get` and `get_message` return it whole."""

    stored: bytes = b""

    def __repr__(self) -> str:
        return f"PartialMessage(id={self.id!r}, role={self.role!r}, parts={self.parts!r})"


def partial(message: Message, stored: bytes) -> PartialMessage:
    """The message that was decoded from its stored form alone."""
    fields = {name: getattr(message, name) for name in Message.__struct_fields__}
    # The constructor of Message would check and convert what the decoder has checked.
    made: PartialMessage = msgspec.StructMeta.__call__(PartialMessage, **fields, stored=stored)
    return made


def digest_of(data: bytes) -> str:
    """The first half of the SHA-256, in hexadecimal. Many processors compute that fastest."""
    return hashlib.sha256(data).hexdigest()[:32]


def split(body: bytes) -> tuple[bytes, bytes, list[Content]]:
    """A body without its large values, the table that follows it, and these values. Most bodies have no such values."""
    if len(body) < LARGE_BYTES:
        return body, b"", []
    found: list[tuple[int, int, int]] = []  # where a value begins, where its bytes begin, and where it ends
    at = 1
    for index, item in enumerate(_items(bytes((body[0] - 2,)) + body[1:])):  # without sequence and time
        field = memoryview(item)
        if len(field) >= LARGE_BYTES and index == _PARTS:
            for start, part in _values_in(field):
                _find_in_part(part, at + start, found)
        elif len(field) >= LARGE_BYTES and index not in _SMALL_FIELDS:
            _find(field, at, found, within=index != _SOURCES)
        at += len(field)
    if not found:
        return body, b"", []
    pieces, entries, contents = list[bytes](), list[bytes](), dict[str, Content]()
    end = length = 0  # of the body, and of the pieces so far
    for begins, inside, ends in found:
        data = body[inside:ends]
        beginning = _beginning(body[begins], data)
        pieces += (body[end:begins], beginning)
        length += begins - end
        content = Content(digest_of(data), data)
        contents[content.digest] = content
        entries.append(_ENTRY.pack(length - 1, len(beginning), len(data), content.digest.encode()))
        length += len(beginning)
        end = ends
    pieces.append(body[end:])
    return b"".join(pieces), b"".join(entries) + _COUNT.pack(len(entries)), list(contents.values())


def script_bytes(body: bytes) -> int:
    """The bytes of a body that a script gets, without compression."""
    return len(body) if len(body) < LARGE_BYTES else sum(map(len, split(body)[:2]))


def _find_in_part(row: memoryview, at: int, found: list[tuple[int, int, int]]) -> None:
    """Find the large values of a part, a list of its type and its fields."""
    first = 0
    for index, (start, data) in enumerate(_values_in(row, every=True)):
        if index == 0:
            first = _FIRST_FIELD.get(data[0], 0)
        elif len(data) >= LARGE_BYTES and index >= first:
            _find(data, at + start, found, whole=index == first, within=True)


def _find(
    data: memoryview, at: int, found: list[tuple[int, int, int]], *, whole: bool = False, within: bool = False
) -> int:
    """Find the large values in an encoded value that begins at `at` of the body, and return the bytes that they take. A
    list or map is one if `whole`, and it is large without those inside it, or if it is inside another, and `within`."""
    head = data[0]
    if 0xA0 <= head < 0xC0 or head in _SIZED:
        begins = _SIZED.get(head, 1)
        if len(data) - begins < LARGE_BYTES:
            return 0
        found.append((at, at + begins, at + len(data)))
        return len(data)
    before, taken = len(found), 0
    for start, inside in _values_in(data):
        taken += _find(inside, at + start, found, whole=within, within=within)
    if whole and len(data) - taken >= LARGE_BYTES and 0x80 <= head <= 0xDF:
        found[before:] = [(at, at, at + len(data))]
        return len(data)
    return taken


def _values_in(data: memoryview, *, every: bool = False) -> Iterator[tuple[int, memoryview]]:
    """The items of a list, and the values of a map without those that stay, and where they begin. Only large ones,
    unless `every` one is asked for."""
    head = data[0]
    values: memoryview | bytes = data
    if 0x90 <= head < 0xA0 or head in (0xDC, 0xDD):
        at, is_map = 1 if head < 0xA0 else 3 if head == 0xDC else 5, False
    elif 0x80 <= head < 0x90 or head in (0xDE, 0xDF):  # read as a list of keys and values
        at, is_map = 1 if head < 0x90 else 3 if head == 0xDE else 5, True
        count = head & 0x0F if at == 1 else int.from_bytes(data[1:at], "big")
        values = b"\xdd" + (2 * count).to_bytes(4, "big") + data[at:]
    else:
        return
    stays = False
    for index, item in enumerate(_items(values)):
        inside = memoryview(item)
        if is_map and index % 2 == 0:
            stays = bytes(inside[:5]) in _STAYING_KEYS
        elif (every or len(inside) >= LARGE_BYTES) and not stays:
            yield at, inside
        at += len(inside)


def _beginning(head: int, data: bytes) -> bytes:
    """The encoded beginning of a text, which ends between two characters, or of bytes. Lists and maps have none."""
    if 0x90 <= head < 0xA0 or head in (0xDC, 0xDD):
        return b"\x90"
    if head < 0x90 or head in (0xDE, 0xDF):
        return b"\x80"
    start = data[:BEGINNING_BYTES]
    return _encode(start if head in _BYTES else start.decode(errors="ignore"))


def table_bytes(data: bytes) -> int:
    """The bytes of the table at the end of a body or member. Raises CorruptDataError."""
    size = _COUNT.unpack(data[-_COUNT.size :])[0] * _ENTRY.size + _COUNT.size
    if len(data) < size:
        raise CorruptDataError("a message has no whole table of its large contents")
    return int(size)


def references_in(data: bytes) -> list[Reference]:
    """The large contents of a body or member with the flag BESIDE. Raises CorruptDataError."""
    entries = _ENTRY.iter_unpack(data[-table_bytes(data) : -_COUNT.size])
    return [Reference(at, length, size, digest.decode("ascii", "replace")) for at, length, size, digest in entries]


#: The contents that a reader needs: all, none, or the texts, lists and maps, but not base64 and bytes.
Needed = Literal["all", "texts", "none"]


def check_needed(contents: object) -> Needed:
    """The contents that a caller needs. Raises InvalidInputError."""
    if contents is True or contents is False:
        return "all" if contents else "none"
    if contents != "texts":
        refuse(contents, "contents", 'True, False or "texts"', InvalidInputError)
    return "texts"


#: In place of a content that is not needed: its beginning stays.
KEPT: Final = True
Value = bytes | None | Literal[True]


def are_texts(array: bytes, id_at: int, references: Sequence[Reference]) -> list[bool]:
    """Which of the contents are texts, lists or maps. Raises CorruptDataError."""
    found = []
    for at, length, _, _ in references:
        try:
            beginning = msgspec.msgpack.decode(array[id_at + at : id_at + at + length])
        except (msgspec.MsgspecError, ValueError) as error:
            raise CorruptDataError("the table of the large contents of a message is damaged") from error
        if isinstance(beginning, str):
            found.append(not beginning.startswith("data:") and kind_of_base64(beginning) is None)
        else:
            found.append(not isinstance(beginning, bytes))
    return found


def missing_in_parts(array: bytes, id_at: int, references: Sequence[Reference]) -> dict[int | None, int]:
    """The bytes that each part lacks, by its index; None: other fields. Raises CorruptDataError."""
    spans: list[tuple[int, int]] = []
    at = 1
    try:
        for index, item in enumerate(_items(array)):
            data = memoryview(item)
            if index == 2 + _PARTS:
                spans = [(at + start, at + start + len(part)) for start, part in _values_in(data, every=True)]
            at += len(data)
    except (msgspec.MsgspecError, ValueError) as error:
        raise CorruptDataError("the stored bytes of a message are damaged") from error
    missing: dict[int | None, int] = {}
    for start, length, size, _ in references:
        own = (number for number, (first, end) in enumerate(spans) if first <= id_at + start < end)
        part = next(own, None)
        missing[part] = missing.get(part, 0) + max(size - length, 0)
    return missing


def joined(array: bytes, id_at: int, references: Sequence[Reference], values: Sequence[Value]) -> bytes:
    """The whole array of a message. A value that is None is missing or damaged, and a note takes its place. Raises
    CorruptDataError."""
    pieces, end = list[bytes](), 0
    for (at, length, size, _), value in zip(references, values, strict=True):
        begins = id_at + at
        if not end <= begins < begins + length <= len(array):
            raise CorruptDataError("the table of the large contents of a message is damaged")
        kind = array[begins]
        is_bytes = kind in _BYTES
        pieces.append(array[end:begins])
        if value is True:
            pieces.append(array[begins : begins + length])
        elif value is None:
            note = f"[a content of {size:,} bytes is missing or damaged]"
            pieces.append(_encode({0x80: {"note": note}, 0x90: [note]}.get(kind, note.encode() if is_bytes else note)))
        elif kind in (0x80, 0x90):
            pieces.append(value)
        else:
            pieces += (_header(len(value), is_bytes=is_bytes), value)
        end = begins + length
    return b"".join([*pieces, array[end:]])


def _header(size: int, *, is_bytes: bool) -> bytes:
    """The header of a text, or of bytes, of this size."""
    if size < 32 and not is_bytes:
        return bytes((0xA0 | size,))
    width = 1 if size < 256 else 2 if size < 65_536 else 4
    return bytes(((0xC4 if is_bytes else 0xD9) + width // 2,)) + size.to_bytes(width, "big")


def packed(content: Content, *, zstd: bool) -> bytes:
    """A content as it is stored, compressed if the store does that and it becomes smaller. Raises MissingExtraError."""
    if zstd and len(frame := _zstd.compress(content.data)) < len(content.data):
        return _COMPRESSED + frame
    return _PLAIN + content.data


def unpacked(data: bytes | None, size: int, digest: str) -> bytes | None:
    """The bytes of a stored content; None if it is missing or damaged. Raises MissingExtraError."""
    if not data or data[:1] not in (_PLAIN, _COMPRESSED):
        return None
    try:
        value = _zstd.decompress(data[1:], size) if data[:1] == _COMPRESSED else data[1:]
    except CorruptDataError:
        return None
    return value if len(value) == size and digest_of(value) == digest else None
