"""An imported conversation, whose ids are the same at every import, and helpers for the importers of all formats."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from redis_history.errors import InvalidMessageError, InvalidTimestampError
from redis_history.store.operations.fork import Snapshot
from redis_history.values import Message
from redis_history.values.ids import MAX_ID_BYTES
from redis_history.values.times import Instant, from_microseconds, to_microseconds
from redis_history.values.wire import encode_body

_TITLE_CHARACTERS = 80


class ImportProblem(msgspec.Struct, frozen=True):
    """A record, line or file that an import skipped: its `path`, its `line`, from 1 (in a file with one JSON document,
    the number of the record), and the `reason`."""

    path: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}"


OnError = Callable[[ImportProblem], None]


class Original(NamedTuple):
    """A conversation as it was exported: its record and archives, and the archive of each archived message."""

    snapshot: Snapshot
    archive_of: Mapping[str, int]


class Transcript(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation of a file: `messages` in the order of the source, its `format`, and its `title`, `user_id` and
    `agent_name`.

    `conversation_id` and the ids of messages depend only on the name and content of the file, so a repeated import adds
    nothing. Timestamps decide the order in a store, and the order of the source must be kept. So messages only have
    timestamps if the source has one for each message, in ascending order. The source's own text for the time is always
    in `metadata["time"]`.

    `exported`: data that only exports of redis_history contain.
    """

    conversation_id: str
    format: str
    messages: tuple[Message, ...]
    title: str | None = None
    user_id: int | str | None = None
    agent_name: str | None = None
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    exported: Original | None = None


class Turn(NamedTuple):
    """A message for `build`. `id`: the id in the source. `time`: the time as the source writes it. `at`: the same as an
    instant, if possible. `line`: set if an invalid `message` is skipped without rejecting the conversation."""

    message: Message
    id: str | None = None
    time: Any = None
    at: Instant | None = None
    line: int | None = None


def build(
    turns: Iterable[Turn],
    *,
    format: str,
    key: str,
    on_bad_line: Callable[[int, str], None],
    title: str | None = None,
    user_id: int | str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Transcript:
    """Build a transcript from turns. `key` identifies the conversation within its `format`. `title`, `user_id` (the
    owner) and `metadata` are those of the `Transcript`.

    Raises InvalidMessageError for a message that cannot be stored. If its turn has a `line`, the message is reported to
    `on_bad_line` and skipped instead.
    """
    conversation_id = _capped(f"{format}:{key}")
    prefix = hashlib.blake2b(conversation_id.encode(), digest_size=8).hexdigest()
    kept: list[tuple[Turn, Message]] = []
    seen: dict[str, int] = {}
    for number, turn in enumerate(turns, 1):
        changes: dict[str, Any] = {"id": unique_id(_capped(turn.id or f"{prefix}-{number}"), seen)}
        if turn.time is not None:
            changes["metadata"] = {**turn.message.metadata, "time": turn.time}
        message = msgspec.structs.replace(turn.message, **changes)
        try:
            encode_body(message)
        except InvalidMessageError as error:
            if turn.line is None:
                raise
            on_bad_line(turn.line, str(error))
        else:
            kept.append((turn, message))
    times = _times([turn.at for turn, _ in kept])
    messages = tuple(
        message if at is None else msgspec.structs.replace(message, timestamp=at)
        for (_, message), at in zip(kept, times, strict=True)
    )
    return Transcript(
        conversation_id=conversation_id,
        format=format,
        messages=messages,
        title=title or title_of(messages),
        user_id=user_id,
        metadata=dict(metadata or {}),
    )


def _times(instants: list[Instant | None]) -> list[datetime | None]:
    nothing: list[datetime | None] = [None] * len(instants)
    try:
        times = [to_microseconds(at) for at in instants if at is not None]
    except InvalidTimestampError:
        return nothing
    if len(times) < len(instants) or any(later < earlier for earlier, later in pairwise(times)):
        return nothing
    return [from_microseconds(time) for time in times]


def unique_id(id_: str, seen: dict[str, int]) -> str:
    """The id; with a number if it was seen before. `seen` counts, so that many equal ids take linear time."""
    found = id_
    while found in seen:
        seen[id_] += 1
        found = f"{id_}#{seen[id_]}"
    seen[found] = 1
    return found


def _capped(text: str) -> str:
    """`text`, shortened to its beginning and a digest if it exceeds the limit for ids."""
    data = text.encode("utf-8", "replace")
    if len(data) <= MAX_ID_BYTES - 16:  # room for the mark of a repeated id
        return data.decode()
    digest = hashlib.blake2b(data, digest_size=16).hexdigest()
    return f"{data[:400].decode('utf-8', 'ignore')}~{digest}"


def title_of(messages: Iterable[Message]) -> str | None:
    """The beginning of the first text of a user."""
    for message in messages:
        if message.role == "user" and (text := " ".join(message.text.split())):
            return text if len(text) <= _TITLE_CHARACTERS else text[: _TITLE_CHARACTERS - 1] + "…"
    return None
