"""Messages as JSON text, without loss.

JSON has no form for bytes and instants, which free-form values may hold: they become objects with one odd key. An
object that has such a key itself is wrapped once more.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from datetime import datetime
from typing import Any, cast

import orjson
from msgspec import Struct

from redis_history._time import from_microseconds, to_microseconds
from redis_history.errors import InvalidMessageError, MessageConflictError
from redis_history.model import Message, Part
from redis_history.model.wire import encode_body, from_map, to_map

__all__ = ["from_json", "message_of", "messages_of", "to_json"]

_BYTES, _TIME, _OBJECT = "&bytes", "&time", "&object"
_OWN = {_BYTES, _TIME, _OBJECT}


def to_json(messages: Iterable[Message]) -> str:
    """An array of messages. Raises InvalidMessageError for a value that JSON cannot carry, such as a number as key."""
    try:
        return orjson.dumps([_fields(message) for message in messages]).decode()
    except (TypeError, RecursionError) as error:  # orjson's own error is a TypeError
        raise InvalidMessageError(f"a message cannot be written as JSON: {error}") from error


def from_json(text: str | bytes) -> list[Message]:
    """The messages of such an array. Raises InvalidMessageError for anything else."""
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidMessageError(f"this is not JSON: {error}") from error
    if not isinstance(found, list):
        raise InvalidMessageError(f"a history in JSON is an array of messages, not {type(found).__name__}")
    return [message_of(_rich(item)) for item in found]


def message_of(value: Any) -> Message:
    """A message, or one from a dict of its fields, where `content` may stand for `parts`.

    Raises InvalidMessageError.
    """
    if type(value) is Message:
        return value
    if not isinstance(value, dict):
        raise InvalidMessageError(
            f"an entry is a Message or a dict, not {type(value).__name__}; see user(), assistant()"
        )
    fields = dict(value)
    if "content" in fields and "parts" not in fields:
        fields["parts"] = fields.pop("content")
    parts = fields.pop("parts", None)
    if parts is not None:
        parts = [parts] if isinstance(parts, str | dict | Struct) else parts
        if not isinstance(parts, list | tuple):
            raise InvalidMessageError(f"parts are text or parts, not {type(parts).__name__}")
        fields["parts"] = [_part(part) for part in parts]
    if fields.get("timestamp") is not None:
        fields["timestamp"] = from_microseconds(to_microseconds(fields["timestamp"]))
    return from_map(fields)


def messages_of(messages: Iterable[Message | dict[str, Any]]) -> list[Message]:
    """Messages that could be stored, each id once. Raises InvalidMessageError, MessageConflictError."""
    if isinstance(messages, str | bytes | dict) or not isinstance(messages, Iterable):
        raise InvalidMessageError(f"a list of messages is needed, not {type(messages).__name__}")
    found: dict[str, Message] = {}
    for item in messages:
        message = message_of(item)
        body = encode_body(message)
        if message.id in found and encode_body(found[message.id]) != body:
            raise MessageConflictError(
                f"there are two messages of id {message.id[:64]!r} with different content", message_id=message.id
            )
        found.setdefault(message.id, message)
    return list(found.values())


def _part(part: Any) -> Any:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, Struct):
        return part
    # As it stands in a message: with what a newer version added to it.
    return to_map(Message(id="-", role="user", parts=(cast(Part, part),)))["parts"][0]


def _fields(message: Message) -> dict[str, Any]:
    fields = {name: _plain(value) for name, value in to_map(message).items()}
    if message.timestamp is not None:
        fields["timestamp"] = message.timestamp.isoformat()
    return fields


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {_BYTES: base64.b64encode(value).decode()}
    if isinstance(value, datetime):
        return {_TIME: value.isoformat()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        plain = {key: _plain(item) for key, item in value.items()}
        return {_OBJECT: plain} if len(plain) == 1 and _OWN & plain.keys() else plain
    return value


def _rich(value: Any) -> Any:
    if isinstance(value, list):
        return [_rich(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        [(key, item)] = value.items()
        try:
            if key == _BYTES:
                return base64.b64decode(item, validate=True)
            if key == _TIME:
                return datetime.fromisoformat(item)
        except (TypeError, ValueError) as error:
            raise InvalidMessageError(f"{str(value)[:80]!r} stands for no value") from error
        if key == _OBJECT and isinstance(item, dict):
            return {name: _rich(inner) for name, inner in item.items()}
    return {key: _rich(item) for key, item in value.items()}
