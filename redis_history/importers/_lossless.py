"""Lossless JSONL, the export format: every field of every message and of each conversation record.

The first line of a conversation is its record, and each further line is a message:

    {"type": "conversation", "version": 1, "conversation": {"conversation_id": …, …}}
    {"type": "message", "conversation_id": …, "timestamp": …, "message": {…}}

A message that was replaced by a summary also has `"archived": true`; the summary comes after it.
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
    fields = {name: getattr(conversation, name) for name in RECORD_FIELDS}
    given = {name: value for name, value in fields.items() if value not in (None, {})}
    known = {"conversation_id": conversation.conversation_id, **given}
    return _dumped({"type": "conversation", "version": VERSION, "conversation": value_to_json(known)})


def message_line(conversation_id: str, message: Message, archived: bool = False) -> bytes:
    """The line for a message, with its line feed."""
    body = message_to_json(message)
    body.pop("sequence", None)
    time = body.pop("timestamp", None)
    mark = {"archived": True} if archived else {}
    return _dumped({"type": "message", "conversation_id": conversation_id, **mark, "timestamp": time, "message": body})


def _dumped(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)


def is_lossless(record: Any) -> bool:
    """Whether `record` is a line of a lossless file."""
    match record:
        case {"type": "conversation", "version": int(), "conversation": dict()}:
            return True
        case {"type": "message", "conversation_id": str(), "message": dict()}:
            return True
    return False


class _Open:
    """A conversation whose lines are being read."""

    def __init__(self, record: Conversation) -> None:
        self.record = record
        self.messages: list[Message] = []
        self.archived: set[str] = set()
        self.size = 0

    def transcript(self) -> Transcript:
        return Transcript(
            conversation_id=self.record.conversation_id,
            format="redis_history",
            messages=tuple(self.messages),
            title=self.record.title,
            metadata=self.record.metadata,
            record=self.record,
            archived=frozenset(self.archived),
        )


def lossless(source: Source) -> Iterator[Transcript]:
    """Import the conversations of a file, in order."""
    current: _Open | None = None
    most = source.limits.max_conversation_bytes
    for line, value in source.records():
        try:
            record, message = _read(value)
        except InvalidInputError as error:
            source.problem(line, str(error))
            continue
        if current is None or message is None or record.conversation_id != current.record.conversation_id:
            if current is not None:
                yield current.transcript()
            current = _Open(record)
        before, current.size = current.size, current.size + source.size
        if message is None:
            continue
        if current.size <= most:
            current.messages.append(message)
            if value.get("archived") is True:
                current.archived.add(message.id)
        elif before <= most:
            reason = source.limits.refusal(
                "max_conversation_bytes", f"the conversation {record.conversation_id[:80]!r}"
            )
            source.problem(line, f"this and all further messages of it are left out: {reason}")
    if current is not None:
        yield current.transcript()


def _read(value: Any) -> tuple[Conversation, Message | None]:
    """The record of a line, or the conversation's id as a record, and the message."""
    kind = need(value, "type", str)
    if kind == "conversation":
        return _record(value), None
    if kind == "message":
        return Conversation(need(value, "conversation_id", str)), _message(value)
    raise InvalidMessageError(f"type must be conversation or message, not {kind[:40]!r}")


def _record(value: Any) -> Conversation:
    version = need(value, "version", int)
    if version > VERSION:
        raise InvalidMessageError(f"version {version} of this format needs a newer redis_history: upgrade the package")
    fields = value_from_json(need(value, "conversation", dict))
    known = {name: fields.get(name) for name in ("conversation_id", *RECORD_FIELDS) if fields.get(name) is not None}
    try:
        return msgspec.convert(known, Conversation)
    except msgspec.ValidationError as error:
        raise InvalidMessageError(f"the line is not a conversation record: {error}") from error


def _message(value: Any) -> Message:
    message = message_from_json(need(value, "message", dict) | {"timestamp": value.get("timestamp"), "sequence": None})
    encode_body(message)  # raises an error for a message that cannot be stored
    return message
