"""Lossless JSONL, the export format: every field of every message and of each conversation record.

The first line of a conversation is its record, and each further line is a message:

    {"type": "conversation", "version": 1, "conversation": {"conversation_id": …, …}}
    {"type": "message", "conversation_id": …, "timestamp": …, "message": {…}}

A message that was replaced by a summary also has `"archived": true`. The summary comes after it.
Messages have the form of `redis_history.json_form`, without their time and sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import orjson

from redis_history.errors import InvalidInputError, InvalidMessageError
from redis_history.importers.source import Source
from redis_history.importers.transcript import Transcript, need
from redis_history.json_form import message_from_json, message_to_json, value_from_json, value_to_json
from redis_history.model import Conversation, Message
from redis_history.model.message import RECORD_FIELDS
from redis_history.model.wire import encode_body

VERSION = 1


def record_line(conversation: Conversation) -> bytes:
    """The line for a conversation record, with its line feed."""
    fields = {name: getattr(conversation, name) for name in ("conversation_id", *RECORD_FIELDS)}
    given = {name: value for name, value in fields.items() if value not in (None, {})}
    return _line({"type": "conversation", "version": VERSION, "conversation": value_to_json(given)})


def message_line(conversation_id: str, message: Message, archived: bool = False) -> bytes:
    """The line for a message, with its line feed."""
    body = message_to_json(message)
    body.pop("sequence", None)
    time = body.pop("timestamp", None)
    mark = {"archived": True} if archived else {}
    return _line({"type": "message", "conversation_id": conversation_id, **mark, "timestamp": time, "message": body})


def _line(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)


def is_lossless(record: Any) -> bool:
    """Whether `record` is a line of a lossless file."""
    match record:
        case {"type": "conversation", "version": int(), "conversation": dict()}:
            return True
        case {"type": "message", "conversation_id": str(), "message": dict()}:
            return True
    return False


def lossless(source: Source) -> Iterator[Transcript]:
    """Import the conversations of a file, in order."""
    record: Conversation | None = None
    messages: list[Message] = []
    archived: set[str] = set()
    size, most = 0, source.limits.max_conversation_bytes
    for line, value in source.records():
        try:
            next_record, message = _read(value)
        except InvalidInputError as error:
            source.problem(line, str(error))
            continue
        if record is None or message is None or next_record.conversation_id != record.conversation_id:
            if record is not None:
                yield _transcript(record, messages, archived)
            record, messages, archived, size = next_record, [], set(), 0
        before, size = size, size + source.size
        if message is not None and size <= most:
            messages.append(message)
            if value.get("archived") is True:
                archived.add(message.id)
        elif message is not None and before <= most:
            subject = f"the conversation {record.conversation_id[:80]!r}"
            reason = source.limits.refusal("max_conversation_bytes", subject)
            source.problem(line, f"this and all further messages of it are left out: {reason}")
    if record is not None:
        yield _transcript(record, messages, archived)


def _transcript(record: Conversation, messages: list[Message], archived: set[str]) -> Transcript:
    return Transcript(
        conversation_id=record.conversation_id,
        format="redis_history",
        messages=tuple(messages),
        title=record.title,
        metadata=record.metadata,
        record=record,
        archived=frozenset(archived),
    )


def _read(value: Any) -> tuple[Conversation, Message | None]:
    """The record of a line, or the conversation's id as a record, and the message."""
    kind = need(value, "type", str)
    if kind == "message":
        fields = need(value, "message", dict) | {"timestamp": value.get("timestamp"), "sequence": None}
        message = message_from_json(fields)
        encode_body(message)  # raises an error for a message that cannot be stored
        return Conversation(need(value, "conversation_id", str)), message
    if kind != "conversation":
        raise InvalidMessageError(f"type must be conversation or message, not {kind[:40]!r}")
    version = need(value, "version", int)
    if version > VERSION:
        raise InvalidMessageError(f"version {version} of this format needs a newer redis_history: upgrade the package")
    fields = value_from_json(need(value, "conversation", dict))
    known = {name: fields.get(name) for name in ("conversation_id", *RECORD_FIELDS) if fields.get(name) is not None}
    try:
        return msgspec.convert(known, Conversation), None
    except msgspec.ValidationError as error:
        raise InvalidMessageError(f"the line is not a conversation record: {error}") from error
