"""Messages as bytes: MessagePack maps that later versions can extend, with caps.

The stored form of a message, its *body*, is a MessagePack map of the fields that are not at their default, without
`timestamp` and `sequence`. The store keeps these separately, as the position: a *member* is the array
`[sequence, timestamp, body]`. So the body does not depend on where and when it was stored, and a repeated append is
recognised by its bytes.

Decoding tries the strict, fast decoder first. Bytes with fields or parts of a newer version go through the tolerant
decoder, which keeps them in `extra` and UnknownPart. The encoder writes them back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar, cast

import msgspec
from msgspec import inspect

from redis_history._ids import MAX_ID_BYTES
from redis_history._time import MAX_MICROSECONDS, from_microseconds
from redis_history.errors import CorruptDataError, InvalidMessageError, MessageTooLargeError
from redis_history.model._caps import MAX_DEPTH, MAX_ITEMS, MAX_MESSAGE_BYTES, check_caps, check_values
from redis_history.model.message import SCHEMA_VERSION, Message
from redis_history.model.parts import PART_TYPES, OpenStruct, TextPart, UnknownPart

__all__ = [
    "DIGEST_BYTES",
    "MAX_DEPTH",
    "MAX_ITEMS",
    "MAX_MESSAGE_BYTES",
    "body_digest",
    "decode_member",
    "encode_body",
    "encode_member",
    "from_map",
    "from_microseconds",
    "placed",
    "to_map",
]

#: Enough that two different bodies under one id never look equal by chance.
DIGEST_BYTES = 16

_encode = msgspec.msgpack.Encoder().encode
_decode_body = msgspec.msgpack.Decoder(Message).decode
_decode_member = msgspec.msgpack.Decoder(tuple[int, int, Message]).decode
_decode_any = msgspec.msgpack.Decoder().decode
_place = msgspec.structs.force_setattr
_S = TypeVar("_S", bound=OpenStruct)


def _fields(kind: type[OpenStruct]) -> dict[str, inspect.Type]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)  # noqa: S101
    return {field.name: field.type for field in info.fields}


def _within(kind: Any) -> list[Any]:
    """A type with the types of its items and alternatives."""
    inner = [*getattr(kind, "types", ()), *filter(None, [getattr(kind, "item_type", None)])]
    return [kind, *(found for one in inner for found in _within(one))]


def _is_free(kind: Any) -> bool:
    """Whether values of this type can be nested, or not finite."""
    return any(
        isinstance(one, inspect.AnyType | inspect.DictType | inspect.FloatType)
        or any(_is_free(field.type) for field in getattr(one, "fields", ()))
        for one in _within(kind)
    )


_free_of_message = attrgetter(*(name for name, kind in _fields(Message).items() if name != "parts" and _is_free(kind)))
_free_of_text = attrgetter(*(name for name, kind in _fields(TextPart).items() if _is_free(kind)))
#: The fields of a message that hold structs, and the classes of these.
_NESTED = {
    name: kinds
    for name, kind in _fields(Message).items()
    if (kinds := [one.cls for one in _within(kind) if isinstance(one, inspect.StructType)])
}


def _is_simple(message: Message) -> bool:
    """Whether a message has only text and no free-form values, as most. Runs for every message that is read."""
    for part in message.parts:
        if type(part) is not TextPart or _free_of_text(part) is not None:
            return False
    return not any(_free_of_message(message))


def encode_body(message: Message) -> bytes:
    """The stored bytes of `message`, proven readable.

    Raises InvalidMessageError for values that cannot be stored, MessageTooLargeError over the caps.
    """
    if type(message) is not Message:
        raise InvalidMessageError(f"a Message is needed, not {type(message).__name__}; see user(), assistant(), tool()")
    if message.timestamp is not None or message.sequence is not None:
        message = message.__copy__()  # type: ignore[attr-defined]
        _place(message, "timestamp", None)
        _place(message, "sequence", None)
    try:
        body = _encode(message)
        if len(body) > MAX_MESSAGE_BYTES:
            raise MessageTooLargeError(
                f"message {message.id[:64]!r} takes {len(body):,} bytes, the cap is {MAX_MESSAGE_BYTES:,}; "
                "keep large content elsewhere and attach a reference"
            )
        if not _is_simple(message) or not _comes_back(message, body) or len(message.id) > MAX_ID_BYTES // 4:
            body = _proven(message, body)
        elif len(body) > MAX_ITEMS:
            _check_readable(body)
        return body
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
        raise InvalidMessageError(f"message {str(message.id)[:64]!r} cannot be stored: {error}") from error


def _comes_back(message: Message, body: bytes) -> bool:
    try:
        return _decode_body(body) == message
    except msgspec.ValidationError:
        return False


def _proven(message: Message, body: bytes) -> bytes:
    """The bytes of a message that is not simple, after all checks and after reading them back."""
    if len(message.id.encode()) > MAX_ID_BYTES:
        raise InvalidMessageError(f"id must have at most {MAX_ID_BYTES} bytes in UTF-8, {message.id[:32]!r}… has more")
    check_values(message)
    if _has_unknown(message):
        body = _encode(to_map(message))
        if len(body) > MAX_MESSAGE_BYTES:
            raise MessageTooLargeError(f"message {message.id[:64]!r} takes {len(body):,} bytes; attach a reference")
        found = _message(_decode_any(body))
    else:
        try:
            found = _decode_body(body)  # an error says which field is wrong
        except msgspec.ValidationError:
            # An unknown part without content looks like a wrong field to the strict decoder.
            if not any(type(part) is UnknownPart for part in message.parts):
                raise
            found = _message(_decode_any(body))
    if found != message:
        raise InvalidMessageError(
            f"message {message.id[:64]!r} has values that cannot be stored: free-form values may be str, int, float, "
            "bool, None, bytes, aware datetimes, lists and dicts of these, but no tuples, sets or other objects"
        )
    _check_readable(body)
    return body


def _check_readable(body: bytes) -> None:
    """The checks of decoding must accept the written bytes."""
    try:
        check_caps(encode_member(1, 0, body))
    except CorruptDataError as error:
        raise MessageTooLargeError(f"the message is over a cap: {error}") from error


def body_digest(body: bytes) -> bytes:
    """The digest of a body. The same id with another digest is a conflict."""
    return hashlib.blake2b(body, digest_size=DIGEST_BYTES).digest()


def encode_member(sequence: int, timestamp: int, body: bytes) -> bytes:
    """The sorted-set member of a placed message. The fixed-width sequence first makes equal times sort by arrival."""
    return b"\x93\xcf" + sequence.to_bytes(8, "big") + b"\xd3" + timestamp.to_bytes(8, "big", signed=True) + body


def placed(message: Message, sequence: int, timestamp: int) -> Message:
    """A copy of the message with its position, without further checks."""
    message = message.__copy__()  # type: ignore[attr-defined]
    _place(message, "sequence", sequence)
    _place(message, "timestamp", from_microseconds(timestamp))
    return message


def decode_member(member: bytes) -> Message:
    """The message in a member, placed. Raises CorruptDataError for anything this package did not write."""
    try:
        if len(member) > MAX_ITEMS:  # no value has more items than bytes
            check_caps(member)
        try:
            sequence, timestamp, message = _decode_member(member)
            if not _is_simple(message):
                check_caps(member)  # free-form values may be nested deeper than is allowed; the decoder stops at 1,000
        except msgspec.ValidationError:
            check_caps(member)
            sequence, timestamp, fields = _decode_any(member)
            if type(sequence) is not int or type(timestamp) is not int:
                raise
            message = _message(fields)
        if not -MAX_MICROSECONDS <= timestamp <= MAX_MICROSECONDS:
            raise ValueError("its time is beyond what a score holds")
        _place(message, "sequence", sequence)
        _place(message, "timestamp", from_microseconds(timestamp))
    except (ValueError, TypeError, RecursionError, OverflowError, msgspec.MsgspecError, CorruptDataError) as error:
        raise CorruptDataError(f"{len(member)} stored bytes are not a message: {error}") from error
    return message


def to_map(message: Message) -> dict[str, Any]:
    """The fields of a message that are not at their default, also unknown ones, as plain values; `timestamp` is a
    datetime."""
    return _open(message) | _each_nested(message, _open)


def from_map(fields: dict[str, Any]) -> Message:
    """The message of such fields; what this version does not know is kept. Raises InvalidMessageError."""
    try:
        return _message(fields)
    except InvalidMessageError:
        raise
    except (ValueError, TypeError, RecursionError, OverflowError, msgspec.MsgspecError) as error:
        raise InvalidMessageError(f"{str(fields)[:80]!r} is not a message: {error}") from error


def _message(fields: dict[str, Any]) -> Message:
    if not isinstance(fields, dict):
        raise TypeError("not a map")
    known, extra = _split(fields, Message)
    for name, kinds in _NESTED.items():
        if (value := known.get(name)) is not None:
            make: Callable[[Any], Any] = _part if len(kinds) > 1 else partial(_struct, kind=cast(Any, kinds[0]))
            known[name] = make(value) if isinstance(value, dict) else tuple(map(make, value))
    message = Message(**known, extra=extra)
    # `Message(...)` checks no field types; a strict pass over the known fields does.
    _decode_body(_encode(msgspec.structs.replace(message, extra=None, **_each_nested(message, _bare))))
    return message


def _each_nested(message: Message, convert: Callable[[Any], Any]) -> dict[str, Any]:
    """The fields that hold structs, with each struct converted."""
    found: dict[str, Any] = {}
    for name in _NESTED:
        value = getattr(message, name)
        if value:
            found[name] = tuple(map(convert, value)) if isinstance(value, tuple) else convert(value)
    return found


def _bare(struct: Any) -> Any:
    """The known fields of a struct; an empty text for an unknown part."""
    return TextPart("") if isinstance(struct, UnknownPart) else msgspec.structs.replace(struct, extra=None)


def _part(fields: Any) -> Any:
    if isinstance(fields, msgspec.Struct):  # only from users; `Message` checks its type
        return fields
    if not isinstance(fields, dict) or not isinstance(fields.get("type"), str):
        raise TypeError("a part is a map with a type")
    kind = PART_TYPES.get(fields["type"])
    if kind is None:
        return UnknownPart(data=fields)
    return _struct({name: value for name, value in fields.items() if name != "type"}, kind)


def _struct(fields: Any, kind: type[_S]) -> _S:
    if not isinstance(fields, dict):
        raise TypeError(f"a {kind.__name__} is a map")
    known, extra = _split(fields, kind)
    return kind(**known, **({} if extra is None else {"extra": extra}))


def _split(fields: dict[str, Any], kind: type[OpenStruct]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    names = set(kind.__struct_fields__) - {"extra"}
    known = {name: value for name, value in fields.items() if name in names}
    extra = {name: value for name, value in fields.items() if name not in names}
    return known, extra or None


def _has_unknown(message: Message) -> bool:
    found: list[Any] = [message.extra]
    _each_nested(message, lambda struct: found.append(struct if type(struct) is UnknownPart else struct.extra))
    return any(one is not None for one in found)


def _open(struct: Any) -> dict[str, Any]:
    if isinstance(struct, UnknownPart):
        if not isinstance(struct.data, dict) or not isinstance(struct.data.get("type"), str):
            raise TypeError("the data of an unknown part is a map with a type")
        if struct.data["type"] in PART_TYPES:
            raise TypeError(f"a part of type {struct.data['type']!r} is not unknown; use its class")
        return struct.data
    known: dict[str, Any] = _decode_any(_encode(_bare(struct)))
    if struct.extra is None:
        return known
    if not isinstance(struct.extra, dict):
        raise TypeError("extra is a map of unknown fields")
    own = {*struct.__struct_fields__} - {"extra"} | ({"type"} if type(struct) in PART_TYPES.values() else set())
    if taken := sorted(own & struct.extra.keys()):
        raise TypeError(f"extra has {', '.join(taken)}, which is a field of its own")
    return {**known, **struct.extra}


assert SCHEMA_VERSION == 1  # noqa: S101 -- a new version adds its step here: how to read the one before
