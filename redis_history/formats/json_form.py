"""The JSON form of messages, conversations, events and search hits: for histories, exports, the CLI and the web view.

A message is an object of its fields, with the names of `Message`. A part has its fields and its `type`. Times are
ISO 8601 in UTC, positions and cursors are text. A free-form value that JSON cannot represent becomes an object with one
key that begins with "&": `{"&bytes": base64}`, `{"&time": ISO 8601}`, `{"&ext": [code, base64]}`,
`{"&map": [[key, value], …]}`. An object with one key that begins with "&" gets a second "&" before it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import orjson
from msgspec import Struct
from msgspec.msgpack import Ext

from redis_history.errors import InvalidMessageError, MessageConflictError
from redis_history.values import Message, Position, UnknownPart
from redis_history.values.events import Cursor
from redis_history.values.rows import NAMES
from redis_history.values.sizes import message_tokens
from redis_history.values.wire import encode_body, from_map, to_map


def to_json(value: Any) -> Any:
    """All fields of a message, conversation, event or search hit, or the JSON form of another value.

    A message also has `position`, `text`, `is_summary` and `estimated_tokens`. Fields of newer versions are left out.
    """
    if isinstance(value, UnknownPart):
        return value_to_json(value.data)
    if isinstance(value, Position | Cursor):
        return str(value)
    if isinstance(value, Struct):
        config = value.__struct_config__
        fields: dict[str, Any] = {}
        if config.tag is not None:  # of an event, or of a part, whose number is for the stored form only
            fields[config.tag_field or ""] = config.tag if isinstance(config.tag, str) else value.type  # type: ignore[attr-defined]
        names = NAMES if type(value) is Message else value.__struct_fields__
        fields |= {name: to_json(getattr(value, name)) for name in names if name != "extra"}
        if type(value) is Message:
            fields |= {"position": to_json(value.position), "text": value.text, "is_summary": value.is_summary}
            fields["estimated_tokens"] = message_tokens(value)
        return fields
    if isinstance(value, datetime):
        return _time(value)
    if type(value) is tuple:
        return [to_json(item) for item in value]
    return value_to_json(value)


def dumps(value: Any) -> bytes:
    """The value, and all that has a JSON form in it, as JSON text on one line that every client can read."""
    try:
        return orjson.dumps(value, default=to_json)
    except TypeError:  # for integers above 64 bits and lone surrogates, which stored JSON text may have
        text = json.dumps(value, default=to_json)
    return json.dumps(json.loads(text, parse_constant=lambda _: None), separators=(",", ":")).encode()


def message_to_json(message: Message) -> dict[str, Any]:
    """A message without loss: the fields that are not at their default, also those of newer versions.

    Raises InvalidMessageError for fields that cannot be stored.
    """
    fields = {name: value_to_json(value) for name, value in to_map(message).items()}
    if message.timestamp is not None:
        fields["timestamp"] = _time(message.timestamp)
    return fields


def message_from_json(value: Any) -> Message:
    """The message that `message_to_json` converted. Raises InvalidMessageError for other values."""
    return message_of(value_from_json(value))


def value_to_json(value: Any) -> Any:
    """The JSON form of a free-form value, without loss."""
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            escape = "&" if len(value) == 1 and next(iter(value)).startswith("&") else ""
            return {escape + key: value_to_json(item) for key, item in value.items()}
        return {"&map": [[value_to_json(key), value_to_json(item)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return [value_to_json(item) for item in value]
    if isinstance(value, bytes):
        return {"&bytes": base64.b64encode(value).decode()}
    if isinstance(value, datetime):
        return {"&time": _iso(value)}
    if isinstance(value, Ext):
        return {"&ext": [value.code, base64.b64encode(bytes(value.data)).decode()]}
    return value


def value_from_json(value: Any) -> Any:
    """The free-form value that `value_to_json` converted. Raises InvalidMessageError for other values."""
    try:
        return _untagged(value)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidMessageError(f"a value cannot be read: {error}") from error


def dump_messages(messages: Iterable[Message]) -> str:
    """Messages as an array in JSON text, without loss. Raises InvalidMessageError for values that JSON cannot carry."""
    try:
        return orjson.dumps([message_to_json(message) for message in messages]).decode()
    except (TypeError, RecursionError) as error:  # orjson's own error is a TypeError
        raise InvalidMessageError(f"a message cannot be written as JSON: {error}") from error


def load_messages(text: str | bytes) -> list[Message]:
    """The messages of such an array. Raises InvalidMessageError for anything else."""
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidMessageError(f"the text must be JSON: {error}") from error
    if not isinstance(found, list):
        raise InvalidMessageError(f"the JSON must be an array of messages, not {type(found).__name__}")
    return [message_from_json(item) for item in found]


def message_of(value: Any) -> Message:
    """A message: the given one, or of a dict of its fields, where `content` may stand for `parts`.

    Raises InvalidMessageError.
    """
    if type(value) is Message:
        return value
    if not isinstance(value, dict):
        raise InvalidMessageError(f"an entry must be a Message or a dict, not {type(value).__name__}; see user()")
    fields = dict(value)
    if "content" in fields and "parts" not in fields:
        fields["parts"] = fields.pop("content")
    parts = fields.pop("parts", None)
    if parts is not None:
        parts = [parts] if isinstance(parts, str | dict | Struct) else parts
        if not isinstance(parts, list | tuple):
            raise InvalidMessageError(f"parts must be text or parts, not {type(parts).__name__}")
        fields["parts"] = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    return from_map(fields)


def messages_of(messages: Iterable[Message | dict[str, Any]]) -> list[Message]:
    """Messages that can be stored, each id once. Raises InvalidMessageError, MessageConflictError."""
    if isinstance(messages, str | bytes | dict) or not isinstance(messages, Iterable):
        raise InvalidMessageError(f"messages must be a list of messages, not {type(messages).__name__}")
    found: dict[str, Message] = {}
    for item in messages:
        message = message_of(item)
        body = encode_body(message)
        if encode_body(found.setdefault(message.id, message)) != body:
            raise MessageConflictError(
                f"there are two messages of id {message.id[:64]!r} with different content", message_id=message.id
            )
    return list(found.values())


def _time(value: datetime) -> str:
    return _iso(value.astimezone(UTC))


def _iso(value: datetime) -> str:
    text = value.isoformat()
    return f"{text[:-6]}Z" if text.endswith("+00:00") else text


def _untagged(value: Any) -> Any:
    if isinstance(value, list):
        return [_untagged(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        match value:
            case {"&bytes": str(data)}:
                return base64.b64decode(data, validate=True)
            case {"&time": str(time)}:
                return datetime.fromisoformat(time)
            case {"&ext": [int(code), str(data)]}:
                return Ext(code, base64.b64decode(data, validate=True))
            case {"&map": list(items)}:
                return {_untagged(key): _untagged(item) for key, item in items}
            case {"&bytes": _} | {"&time": _} | {"&ext": _} | {"&map": _}:
                raise ValueError(f"{str(value)[:80]!r} represents no value")
        if (key := next(iter(value))).startswith("&&"):
            return {key[1:]: _untagged(value[key])}
    return {key: _untagged(item) for key, item in value.items()}
