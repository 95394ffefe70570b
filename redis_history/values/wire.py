"""The stored form of messages.

A *member* of the sorted set is a prefix of 8 bytes (sequence, characters, flags), then one MessagePack array:
the fields of `Message` in their order, without those at the end that have their default. The client encodes the *body*:
the array without sequence and timestamp, which the store inserts after the header byte. So a repeated append is
recognized by its bytes.

A newer version stores its fields in `extra`, by name. Values behind that are ignored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final, get_args

import msgspec

from redis_history.errors import CorruptDataError, InvalidMessageError, MessageTooLargeError
from redis_history.values import _zstd, beside
from redis_history.values._caps import (
    MAX_DEPTH,
    MAX_ITEMS,
    MAX_MESSAGE_BYTES,
    MAX_REST_BYTES,
    check_caps,
    check_values,
)
from redis_history.values.beside import PartialMessage
from redis_history.values.ids import MAX_ID_BYTES
from redis_history.values.message import Message, Participant, Role
from redis_history.values.notes import without_stale_notes
from redis_history.values.parts import TextPart
from redis_history.values.rows import NAMES, known_fields, map_of, name_fields, row_of
from redis_history.values.times import from_microseconds as from_microseconds  # for custom backends
from redis_history.values.usage import Usage

#: Enough that two different bodies under one id never look equal by chance.
DIGEST_BYTES: Final = 16
#: Sequence (4 bytes), characters (3) and flags (1), big-endian. Scripts write and read it.
PREFIX_BYTES: Final = 8
#: Flags of a member: it has free-form values, which are checked before they are decoded; its body is compressed; it is
#: a reply that is being written, whose content is elsewhere; it has large contents (`values.beside`).
FREE_FORM: Final = 1
COMPRESSED: Final = 2
STREAMING: Final = 4
BESIDE: Final = 8

#: A body is compressed if it has more bytes than this after the id. Transcripts of Claude Code take 1.18 times the
#: bytes of their JSON at 1,000, 0.98 at 400, and 0.96 at 200.
_MIN_COMPRESSED: Final = 400
_DIGEST_OF_REST: Final = 12
#: Members that are decoded in one call. Larger blocks of memory are slower: the allocator takes them from the system.
_CHUNK: Final = 100
#: The last second, exclusive, of a timestamp of 64 bits in MessagePack.
_SECONDS_64: Final = 1 << 34
_POSITION: Final = b"\xce\0\0\0\1\xd7\xff\0\0\0\0\0\0\0\0"  # sequence 1, in 1970

#: Characters that take at most MAX_ID_BYTES.
_SHORT_ID: Final = MAX_ID_BYTES // 4
_ROLES: Final = frozenset(get_args(Role))

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Message).decode
_decode_list = msgspec.msgpack.Decoder(list[Message]).decode
_set = msgspec.structs.force_setattr
_flags = itemgetter(PREFIX_BYTES - 1)
_array = itemgetter(slice(PREFIX_BYTES, None))
_ERRORS = (ValueError, TypeError, RecursionError, OverflowError, IndexError, msgspec.MsgspecError, CorruptDataError)


def _free_form(message: Message) -> int:
    """The flag FREE_FORM, unless the message has only text, as most."""
    for part in message.parts:
        if type(part) is not TextPart or part.provider_meta is not None or part.extra is not None:
            return FREE_FORM
    author = message.participant
    if message.metadata or message.sources or message.provider_meta or message.extra is not None:
        return FREE_FORM
    if message.usage is not None and message.usage.extra is not None:
        return FREE_FORM
    return FREE_FORM if author is not None and (type(author) is not Participant or author.extra is not None) else 0


def encode_body(message: Message) -> bytes:
    """The stored bytes of `message`. Raises as `encode`."""
    return encode(message)[0]


def encode(message: Message) -> tuple[bytes, int]:
    """The stored bytes of `message` and its flags, after a check that they can be read.

    Raises InvalidMessageError for values that cannot be stored, MessageTooLargeError over the caps.
    """
    if type(message) is not Message:
        _check_whole(message)
        raise InvalidMessageError(f"a Message is needed, not {type(message).__name__}; see user(), assistant(), tool()")
    try:
        row = _plain_row(message)
        encoded = b"" if row is None else _encode(row)
        if row is None or len(encoded) > MAX_ITEMS:
            return _checked_body(message)
        return encoded[:1] + encoded[3:], 0  # as `_body`
    except RecursionError as error:
        raise MessageTooLargeError(f"message {message.id[:64]!r} is nested deeper than {MAX_DEPTH} levels") from error
    except UnicodeEncodeError as error:
        raise InvalidMessageError(
            f"a text of the message has a lone surrogate at index {error.start}, which UTF-8 cannot carry; "
            "clean it with text.encode('utf-8', 'replace').decode()"
        ) from error
    except OverflowError as error:
        raise InvalidMessageError("an integer in the message is beyond 64 bits; store it as a string") from error
    except InvalidMessageError:
        raise
    except (msgspec.MsgspecError, AttributeError, TypeError, ValueError, CorruptDataError) as error:
        reason = name_fields(str(error), message)
        raise InvalidMessageError(f"message {str(message.id)[:64]!r} cannot be stored: {reason}") from error


def _check_whole(message: Message) -> None:
    if isinstance(message, PartialMessage):
        raise InvalidMessageError(
            f"message {message.id[:64]!r} was read without its large contents, which a write would remove; read it "
            "with get_message, or with contents=True"
        )


def _checked_body(message: Message) -> tuple[bytes, int]:
    if type(message.parts) is not tuple or type(message.sources) is not tuple:
        raise TypeError("parts and sources are tuples; msgspec.structs.replace converts nothing: parts=(text('x'),)")
    if message.usage is not None:
        if type(message.usage) is not Usage:
            raise TypeError("usage is a Usage; msgspec.structs.replace converts nothing: usage=Usage(1200, 80)")
        Usage.of(message.usage)
    message = without_stale_notes(message)
    flags = _free_form(message) | (STREAMING if message.status == "streaming" else 0)
    if flags or len(message.id) > _SHORT_ID:
        if len(message.id.encode()) > MAX_ID_BYTES:
            raise InvalidMessageError(f"id must have at most {MAX_ID_BYTES} bytes in UTF-8, not {message.id[:32]!r}…")
        check_values(message)
    body = _body(message)
    if len(body) > MAX_MESSAGE_BYTES:
        raise MessageTooLargeError(
            f"message {message.id[:64]!r} takes {len(body):,} bytes, the cap is {MAX_MESSAGE_BYTES:,}; "
            "keep large content elsewhere and attach a reference"
        )
    if len(body) > MAX_REST_BYTES and (size := sum(map(len, beside.split(body)[:2]))) > MAX_REST_BYTES:
        raise MessageTooLargeError(
            f"message {message.id[:64]!r} takes {size:,} bytes without its values of {beside.LARGE_BYTES:,} bytes or "
            f"more, the cap is {MAX_REST_BYTES:,}; keep large content elsewhere and attach a reference"
        )
    if flags or len(body) > MAX_ITEMS:
        try:
            check_caps(_array_of(body))  # as decoding does
        except CorruptDataError as error:
            raise MessageTooLargeError(f"the message is over a cap: {error}") from error
    if _read_back(message, body) != message:
        raise InvalidMessageError(
            f"message {message.id[:64]!r} has values that cannot be stored: free-form values may be str, int, "
            "float, bool, None, bytes, aware datetimes, lists and dicts of these, but no tuples, sets or other "
            "objects"
        )
    return body, flags


def _array_of(body: bytes) -> bytes:
    """The array of a body, at an arbitrary position."""
    return body[:1] + _POSITION + body[1:]


def _read_back(message: Message, body: bytes) -> Message:
    """The message in the encoded bytes, at the position of `message`."""
    found = _decode(_array_of(body))
    _set(found, "sequence", message.sequence)
    _set(found, "timestamp", message.timestamp)
    return found


def _plain_row(message: Message) -> list[Any] | None:
    """The fields of a message of only a short id, a role and texts, as most are; None for any other. Their types are
    checked here, so the encoded bytes need not be read back, which takes longer than all else."""
    if message.participant is not None or message.scope is not None or message.trace_id is not None:
        return None
    if message.metadata != {} or message.sources != () or message.provider_meta != {} or message.extra is not None:
        return None
    if message.usage is not None:
        return None
    if message.status != "complete" or message.role not in _ROLES or type(message.parts) is not tuple:
        return None
    if type(message.id) is not str or not 0 < len(message.id) <= _SHORT_ID:
        return None
    parts = []
    for part in message.parts:
        if type(part) is not TextPart or part.provider_meta is not None or part.extra is not None:
            return None
        if type(part.text) is not str:
            return None
        parts.append([1, part.text])
    return [0, None, message.id, message.role, parts] if parts else [0, None, message.id, message.role]


def _body(message: Message) -> bytes:
    encoded = _encode(row_of(message))
    return encoded[:1] + encoded[3:]  # without sequence and timestamp, which take a byte each


def body_digest(body: bytes) -> bytes:
    """The digest of a body. The same id with another digest has other content."""
    return hashlib.blake2b(body, digest_size=DIGEST_BYTES).digest()


def compress_body(body: bytes, table: bytes = b"") -> bytes | None:
    """The body of a member with the flag COMPRESSED; None if that is not smaller. Raises MissingExtraError.

    All after the id becomes one frame of zstd, behind a digest, by which scripts compare it: releases of zstd write
    different frames. The `table` of large contents follows as it is, because scripts read it.
    """
    end = _after_id(body, 1)
    rest = body[end:]
    if len(rest) <= _MIN_COMPRESSED:
        return None
    digest = hashlib.sha1(rest + table, usedforsecurity=False).digest()
    frame = digest[:_DIGEST_OF_REST] + _zstd.compress(rest)
    return body[:end] + frame + table if len(frame) < len(rest) else None


def _after_id(data: bytes, at: int) -> int:
    head = data[at]
    if 0xA0 <= head <= 0xBF:
        return at + 1 + (head & 0x1F)
    if head == 0xD9:
        return at + 2 + data[at + 1]
    if head == 0xDA:
        return at + 3 + int.from_bytes(data[at + 1 : at + 3], "big")
    raise CorruptDataError("a compressed message has no id")


def encode_member(sequence: int, characters: int, flags: int, timestamp: int, body: bytes) -> bytes:
    """The sorted-set member of a message. The sequence comes first, so equal times sort by arrival."""
    seconds, microseconds = divmod(timestamp, 1_000_000)
    if 0 <= seconds < _SECONDS_64:
        time = b"\xd7\xff" + (microseconds * 1000 << 34 | seconds).to_bytes(8, "big")
    else:
        time = b"\xc7\x0c\xff" + (microseconds * 1000).to_bytes(4, "big") + seconds.to_bytes(8, "big", signed=True)
    number = sequence.to_bytes(4, "big")
    return number + characters.to_bytes(3, "big") + bytes((flags,)) + body[:1] + b"\xce" + number + time + body[1:]


def body_of(member: bytes) -> bytes:
    """The body in a member, uncompressed, with the table of its large contents. Raises CorruptDataError,
    MissingExtraError."""
    try:
        array, table = _uncompressed(member), b""
        if member[PREFIX_BYTES - 1] & BESIDE:
            table = member[-beside.table_bytes(member) :]
        return array[:1] + array[_id_at(array) :] + table
    except _ERRORS as error:
        raise CorruptDataError(f"{len(member)} stored bytes are not a message: {error}") from error


def characters_of(member: bytes) -> int:
    return int.from_bytes(member[4:7], "big")


def placed(message: Message, sequence: int, timestamp: int) -> Message:
    """A copy of the message with its position, without further checks."""
    message = message.__copy__()  # type: ignore[attr-defined]
    _set(message, "sequence", sequence)
    _set(message, "timestamp", from_microseconds(timestamp))
    return message


def digest_of(message: Message) -> bytes:
    """The digest of the stored form of a message, which may be without its large contents. Raises as `encode`."""
    if isinstance(message, PartialMessage):
        return body_digest(body_of(message.stored))
    return body_digest(b"".join(beside.split(encode_body(message))[:2]))


def needed_of(message: PartialMessage, needed: beside.Needed) -> list[bool]:
    """Which of the large contents are needed, in the order of `beside.references_in`. Raises CorruptDataError,
    MissingExtraError."""
    references = beside.references_in(message.stored)
    if needed != "texts":
        return [needed == "all"] * len(references)
    array = _uncompressed(message.stored)
    return beside.are_texts(array, _id_at(array), references)


def missing_in_parts(message: Message) -> dict[int | None, int]:
    """The bytes of base64 and bytes that each part lacks, by its index; None: other fields. Raises CorruptDataError,
    MissingExtraError."""
    if not isinstance(message, PartialMessage):
        return {}
    array, references = _uncompressed(message.stored), beside.references_in(message.stored)
    are_texts = beside.are_texts(array, _id_at(array), references)
    missing = [one for one, is_text in zip(references, are_texts, strict=True) if not is_text]
    return beside.missing_in_parts(array, _id_at(array), missing)


def whole(message: PartialMessage, values: Sequence[beside.Value]) -> Message:
    """The message with its large contents, in the order of `beside.references_in`; still a PartialMessage if some of
    them are KEPT. Raises CorruptDataError, MissingExtraError."""
    member = message.stored
    try:
        array = _uncompressed(member)
        array = beside.joined(array, _id_at(array), beside.references_in(member), values)
        check_caps(array)
        found = _decode(array)
        return beside.partial(found, member) if True in values else found
    except _ERRORS as error:
        raise CorruptDataError(f"{len(member)} stored bytes are not a message: {error}") from error


def decode_member(member: bytes, most: int = MAX_REST_BYTES) -> Message:
    """The message in a member of at most about `most` bytes, with its position; a PartialMessage if it has large
    contents.

    Raises CorruptDataError for anything this package did not write, MissingExtraError for a compressed message without
    a library of zstd.
    """
    try:
        message = _decode(_checked(member, most))
        return beside.partial(message, member) if member[PREFIX_BYTES - 1] & BESIDE else message
    except _ERRORS as error:
        raise CorruptDataError(f"{len(member)} stored bytes are not a message: {error}") from error


def decode_members(members: Sequence[bytes]) -> tuple[list[Message], list[CorruptDataError]]:
    """The messages in members, in order, and the errors of corrupt members. Raises MissingExtraError."""
    messages: list[Message] = []
    errors: list[CorruptDataError] = []
    for start in range(0, len(members), _CHUNK):
        some = members[start : start + _CHUNK]
        try:
            data = b"".join(map(_array, some))
            flags = max(map(_flags, some))
            if flags or len(data) > MAX_ITEMS:
                data = b"".join(map(_checked, some))
            found = _decode_list(b"\xdc" + len(some).to_bytes(2, "big") + data)
            if flags >= BESIDE:
                found = [
                    beside.partial(one, member) if _flags(member) & BESIDE else one
                    for one, member in zip(found, some, strict=True)
                ]
            messages += found
        except _ERRORS:
            for member in some:
                try:
                    messages.append(decode_member(member))
                except CorruptDataError as error:
                    errors.append(error)
    return messages, errors


def incomplete(members: Sequence[bytes]) -> tuple[bool, bool]:
    """Whether a reply among them is being written, and whether a message has large contents."""
    try:
        if max(map(_flags, members), default=0) < STREAMING:
            return False, False
    except IndexError:  # a damaged one
        pass
    flags = [_flags(member) for member in members if len(member) >= PREFIX_BYTES]
    return any(one & STREAMING for one in flags), any(one & BESIDE for one in flags)


def _checked(member: bytes, most: int = MAX_REST_BYTES) -> bytes:
    """The uncompressed array of a member, within the caps."""
    flags = member[PREFIX_BYTES - 1]
    if flags > FREE_FORM:
        array = _uncompressed(member)
        check_caps(array, most=most)
        return array
    # No value has more items than bytes. The decoder itself stops at about 1,000 levels.
    if flags or len(member) > MAX_ITEMS:
        check_caps(member, PREFIX_BYTES, most)
    return member[PREFIX_BYTES:]


def _uncompressed(member: bytes) -> bytes:
    flags = member[PREFIX_BYTES - 1]
    array = member[PREFIX_BYTES:]
    if flags & ~(FREE_FORM | COMPRESSED | STREAMING | BESIDE):
        raise CorruptDataError(f"its flags {flags:#x} are of a newer version")
    if flags & BESIDE:
        array = array[: -beside.table_bytes(member)]
    if flags & COMPRESSED:
        end = _after_id(array, _id_at(array))
        array = array[:end] + _zstd.decompress(array[end + _DIGEST_OF_REST :], MAX_REST_BYTES)
    return array


def _id_at(array: bytes) -> int:
    """Where the id begins: after header, sequence and timestamp."""
    return 16 if array[6] == 0xD7 else 21


def to_map(message: Message) -> dict[str, Any]:
    """The fields of a message that are not at their default, also unknown ones, as plain values; `timestamp` is a
    datetime. Raises InvalidMessageError for fields that cannot be stored."""
    _check_whole(message)
    try:
        return map_of(message, NAMES)
    except (TypeError, AttributeError) as error:
        raise InvalidMessageError(f"message {str(message.id)[:64]!r} cannot be stored: {error}") from error


def from_map(fields: dict[str, Any]) -> Message:
    """The message of such fields; unknown fields are kept. Raises InvalidMessageError."""
    message = None
    try:
        message = Message(**known_fields(fields))
        return _read_back(message, _body(message))  # `Message(...)` does not check the types of fields
    except InvalidMessageError:
        raise
    except _ERRORS as error:
        reason = str(error) if message is None else name_fields(str(error), message)
        raise InvalidMessageError(f"{str(fields)[:80]!r} is not a message: {reason}") from error
