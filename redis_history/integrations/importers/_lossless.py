"""Lossless JSONL, the export format: every field of every message and of each conversation record.

The first line of a conversation is its record, and each further line is a message:

    {"type": "conversation", "version": 2, "conversation": {"conversation_id": …, "revision": …, …},
     "archives": [{"number": 1, "summary_id": …, "former": …}], "ttl": …, "sequence": …,
     "usage": {"2026-01-31": [1200, 80, 0, 4000000]}}
    {"type": "message", "conversation_id": …, "timestamp": …, "sequence": …, "archive": 1, "message": {…}}

`archive` is the number of the archive that contains the message; live messages lack it. Archives are numbered in the
order of their compactions; `former` is the summary before `summary_id`, if the archive contains it. `ttl` is in
seconds. `sequence` is the highest sequence number, also if its message was removed. `usage` has for each day the input,
output and cached tokens and the billionths of the cost, also of messages that were removed.
Messages have the form of `redis_history.formats.json_form`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict, replace

from redis_history.errors import InvalidInputError, InvalidMessageError
from redis_history.formats.json_form import message_from_json, message_to_json, value_from_json, value_to_json
from redis_history.integrations.importers.source import Source
from redis_history.integrations.importers.transcript import Original, Transcript
from redis_history.store.operations import Archive
from redis_history.store.operations.fork import Snapshot
from redis_history.values import Conversation, Message
from redis_history.values.message import RECORD_FIELDS
from redis_history.values.times import to_microseconds
from redis_history.values.usage import date_of, day_of
from redis_history.values.wire import encode_body

VERSION = 2
#: How the line of a record begins.
RECORD_START = b'{"type":"conversation"'
_TIMES = ("created_at", "updated_at", "first_message_at", "last_message_at")
_FIELDS = ("conversation_id", *RECORD_FIELDS, *_TIMES, "revision")


_Number = Annotated[int, Meta(ge=0, lt=2**53)]


class _RecordLine(Struct, tag_field="type", tag="conversation", omit_defaults=True):
    version: int
    conversation: dict[str, Any]
    archives: list[Archive] = []
    ttl: Annotated[float, Meta(ge=0)] | None = None
    sequence: Annotated[int, Meta(ge=0, lt=2**32)] = 0
    usage: dict[str, tuple[_Number, _Number, _Number, _Number]] | None = None


class _MessageLine(Struct, tag_field="type", tag="message", omit_defaults=True, kw_only=True):
    conversation_id: str
    timestamp: Any = None
    sequence: Annotated[int, Meta(ge=1, lt=2**32)] | None = None
    archive: Annotated[int, Meta(ge=0)] = 0
    message: dict[str, Any]


def record_line(snapshot: Snapshot) -> bytes:
    """The line for a conversation record, with its line feed."""
    record = snapshot.record
    given = {name: value for name in _FIELDS if (value := getattr(record, name)) not in (None, {})}
    if record.forked_from is not None:
        given["forked_from"] = asdict(record.forked_from)
    usage = None
    if snapshot.usage is not None:
        usage = {date_of(day).isoformat(): numbers for day, numbers in snapshot.usage.items()}
    line = _RecordLine(VERSION, value_to_json(given), snapshot.archives, snapshot.ttl, snapshot.sequence, usage)
    return msgspec.json.encode(line) + b"\n"


def message_line(conversation_id: str, message: Message, archive: int) -> bytes:
    """The line for a message, with its line feed. `archive`: 0 for a live message."""
    body = message_to_json(message)
    place = {name: body.pop(name, None) for name in ("timestamp", "sequence")}
    line = _MessageLine(conversation_id=conversation_id, **place, archive=archive, message=body)
    return msgspec.json.encode(line) + b"\n"


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
            following, message, archive = _read(value)
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
            if archive:
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


def _read(value: Any) -> tuple[Snapshot, Message | None, int]:
    """The record of a line, or the conversation's id as a record, and the message and its archive."""
    try:
        line = msgspec.convert(value, _RecordLine | _MessageLine)
        if isinstance(line, _MessageLine):
            message = message_from_json(line.message | {"timestamp": line.timestamp})
            message = replace(message, sequence=line.sequence)
            encode_body(message)  # raises an error for a message that cannot be stored
            return Snapshot(Conversation(line.conversation_id), []), message, line.archive
        if line.version != VERSION:
            raise InvalidMessageError(f"version {line.version} of this format needs another release of redis_history")
        fields = value_from_json(line.conversation)
        known = {name: fields[name] for name in (*_FIELDS, "forked_from") if fields.get(name) is not None}
        record = msgspec.convert(known, Conversation)
        for time in (getattr(record, name) for name in _TIMES):
            if time is not None:
                to_microseconds(time)  # raises an error for a time that cannot be stored
        usage = None if line.usage is None else {_day(day): numbers for day, numbers in line.usage.items()}
    except (msgspec.ValidationError, OverflowError) as error:
        raise InvalidMessageError(f"the line is not one of an export: {error}") from error
    numbers = [one.number for one in line.archives]  # later compactions number theirs by their revisions
    most = max(record.revision, len(numbers))
    if record.revision < 0 or numbers != sorted(set(numbers)) or any(not 1 <= number <= most for number in numbers):
        raise InvalidMessageError("the line has a number that no conversation has")
    return Snapshot(record, line.archives, line.ttl, line.sequence, usage), None, 0


def _day(text: str) -> int:
    """The number of a day of `usage`. Raises InvalidMessageError."""
    try:
        return day_of(to_microseconds(date.fromisoformat(text).isoformat()))
    except ValueError as error:
        raise InvalidMessageError(f"{text[:20]!r} is not a day such as 2026-01-31") from error
