"""Lossless JSONL, the export format: every field of every message and of each conversation record.

The first line of a conversation is its record, and each further line is a message:

    {"type": "conversation", "version": 2, "conversation": {"conversation_id": …, "revision": …, …},
     "archives": [{"number": 1, "summary_id": …, "former": …}], "ttl": …, "sequence": …}
    {"type": "message", "conversation_id": …, "timestamp": …, "sequence": …, "archive": 1, "message": {…}}

`archive` is the number of the archive that has the message; live messages have none. Archives are numbered in the order
of their compactions; `former` is the summary before `summary_id`, if it is in the archive. `ttl` is in seconds.
`sequence` is the highest one, which a removed message may have had.
Messages have the form of `redis_history.formats.json_form`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import orjson
from msgspec.structs import asdict, replace

from redis_history._validation import is_integer
from redis_history.errors import InvalidInputError, InvalidMessageError
from redis_history.formats.json_form import message_from_json, message_to_json, value_from_json, value_to_json
from redis_history.importers.source import Source
from redis_history.importers.transcript import Original, Transcript, need
from redis_history.model import Conversation, Message
from redis_history.model.message import RECORD_FIELDS
from redis_history.model.times import to_microseconds
from redis_history.model.wire import encode_body
from redis_history.operations import Archive
from redis_history.operations.fork import Snapshot

VERSION = 2
#: How the line of a record begins.
RECORD_START = b'{"type":"conversation"'
_TIMES = ("created_at", "updated_at", "first_message_at", "last_message_at")
_FIELDS = ("conversation_id", *RECORD_FIELDS, *_TIMES, "revision")


def record_line(snapshot: Snapshot) -> bytes:
    """The line for a conversation record, with its line feed."""
    record = snapshot.record
    given = {name: value for name in _FIELDS if (value := getattr(record, name)) not in (None, {})}
    if record.forked_from is not None:
        given["forked_from"] = asdict(record.forked_from)
    line: dict[str, Any] = {"type": "conversation", "version": VERSION, "conversation": value_to_json(given)}
    if snapshot.archives:
        line["archives"] = [asdict(archive) for archive in snapshot.archives]
    if snapshot.ttl is not None:
        line["ttl"] = snapshot.ttl
    return _line(line | {"sequence": snapshot.sequence})


def message_line(conversation_id: str, message: Message, archive: int) -> bytes:
    """The line for a message, with its line feed. `archive`: 0 for a live message."""
    body = message_to_json(message)
    place = {"timestamp": body.pop("timestamp", None), "sequence": body.pop("sequence", None)}
    if archive:
        place["archive"] = archive
    return _line({"type": "message", "conversation_id": conversation_id, **place, "message": body})


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
    snapshot: Snapshot | None = None
    messages: list[Message] = []
    archive_of: dict[str, int] = {}
    size, most = 0, source.limits.max_conversation_bytes
    for line, value in source.records():
        try:
            following, message = _read(value)
        except InvalidInputError as error:
            source.problem(line, str(error))
            continue
        conversation_id = following.record.conversation_id
        if snapshot is None or message is None or conversation_id != snapshot.record.conversation_id:
            if snapshot is not None:
                yield _transcript(snapshot, messages, archive_of)
            snapshot, messages, archive_of, size = following, [], {}, 0
        before, size = size, size + source.size
        if message is not None and size <= most:
            messages.append(message)
            if is_integer(archive := value.get("archive"), 1):
                archive_of[message.id] = archive
        elif message is not None and before <= most:
            subject = f"the conversation {conversation_id[:80]!r}"
            reason = source.limits.refusal("max_conversation_bytes", subject)
            source.problem(line, f"this and all further messages of it are left out: {reason}")
    if snapshot is not None:
        yield _transcript(snapshot, messages, archive_of)


def _transcript(snapshot: Snapshot, messages: list[Message], archive_of: dict[str, int]) -> Transcript:
    return Transcript(
        conversation_id=snapshot.record.conversation_id,
        format="redis_history",
        messages=tuple(messages),
        title=snapshot.record.title,
        metadata=snapshot.record.metadata,
        exported=Original(snapshot, archive_of),
    )


def _read(value: Any) -> tuple[Snapshot, Message | None]:
    """The record of a line, or the conversation's id as a record, and the message."""
    kind = need(value, "type", str)
    if kind == "message":
        sequence = value.get("sequence")
        if sequence is not None and not is_integer(sequence, 1, 2**32 - 1):
            raise InvalidMessageError(f"the sequence of a message must be an integer from 1, not {sequence!r}")
        message = message_from_json(need(value, "message", dict) | {"timestamp": value.get("timestamp")})
        message = replace(message, sequence=sequence)
        encode_body(message)  # raises an error for a message that cannot be stored
        return Snapshot(Conversation(need(value, "conversation_id", str)), []), message
    if kind != "conversation":
        raise InvalidMessageError(f"type must be conversation or message, not {kind[:40]!r}")
    version = need(value, "version", int)
    if version != VERSION:
        raise InvalidMessageError(f"version {version} of this format needs another release of redis_history")
    fields = value_from_json(need(value, "conversation", dict))
    known = {name: fields[name] for name in (*_FIELDS, "forked_from") if fields.get(name) is not None}
    try:
        record = msgspec.convert(known, Conversation)
        archives = msgspec.convert(value.get("archives", []), list[Archive])
        for time in (getattr(record, name) for name in _TIMES):
            if time is not None:
                to_microseconds(time)  # raises an error for a time that cannot be stored
        ttl = msgspec.convert(value.get("ttl"), float | None)
        sequence = value.get("sequence", 0)
        if (
            record.revision < 0
            or not is_integer(sequence, 0, 2**32 - 1)
            or any(not 1 <= one.number <= 2**31 for one in archives)
            or (ttl is not None and ttl < 0)
        ):
            raise InvalidMessageError("the line has a number that no conversation has")
        return Snapshot(record, archives, ttl, sequence), None
    except (msgspec.ValidationError, OverflowError) as error:
        raise InvalidMessageError(f"the line is not a conversation record: {error}") from error
