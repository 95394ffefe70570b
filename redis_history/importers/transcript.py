"""One imported conversation, with ids that are the same at every import."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import msgspec

from redis_history._time import Instant, from_microseconds, to_microseconds
from redis_history.errors import InvalidMessageError, InvalidTimestampError
from redis_history.model import Conversation, Message
from redis_history.model.wire import encode_body

__all__ = ["ImportProblem", "OnError", "Transcript", "Turn", "build"]

_MAX_ID_BYTES = 512
_TITLE_CHARACTERS = 80


class ImportProblem(msgspec.Struct, frozen=True):
    """Something in a file that was left out. `line` counts from 1; in a file that is one JSON document it is the
    number of the record."""

    path: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}"


OnError = Callable[[ImportProblem], None]


class Transcript(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation of a file, in the order of the source.

    `conversation_id` and the messages' ids depend only on the file's name and content, so importing twice stores once.
    Messages have timestamps only if the source has one for each of them and none goes back: timestamps decide the
    order, and the order of the source must win. The source's own time text is in `metadata["time"]` in any case.
    `record` is the record of the conversation, where the source has one of ours. `form` is the provider's form the
    messages came in, if any; `originals` are then the provider's own dicts, which `to_openai_chat` or `to_anthropic`
    gives again with `shape="original"`. `archived` are the ids of messages for which a summary stands that comes after
    them, in files of our own.
    """

    conversation_id: str
    format: str
    messages: tuple[Message, ...]
    title: str | None = None
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    form: Literal["openai_chat", "anthropic"] | None = None
    originals: tuple[Mapping[str, Any], ...] = ()
    record: Conversation | None = None
    archived: frozenset[str] = frozenset()


class Turn(NamedTuple):
    """A message on its way into a transcript. `id`: the source's own; `time`: as the source writes it; `at`: the
    instant it means, if it is one; `line`: set where a bad message costs its line only, not the conversation."""

    message: Message
    id: str | None = None
    time: Any = None
    at: Instant | None = None
    line: int | None = None
    original: Mapping[str, Any] | None = None


def build(
    turns: Iterable[Turn],
    *,
    format: str,
    key: str,
    on_bad_line: Callable[[int, str], None],
    title: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    form: Literal["openai_chat", "anthropic"] | None = None,
) -> Transcript:
    """The transcript of these turns; `key` names the conversation within its format.

    Raises InvalidMessageError for a message that no store would take, unless its turn has a line of its own.
    """
    conversation_id = _capped(f"{format}:{key}")
    prefix = hashlib.blake2b(conversation_id.encode(), digest_size=8).hexdigest()
    kept: list[tuple[Turn, Message]] = []
    seen: set[str] = set()
    for number, turn in enumerate(turns, 1):
        changes: dict[str, Any] = {"id": _unique(_capped(turn.id or f"{prefix}-{number}"), seen)}
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
    originals = tuple(turn.original for turn, _ in kept if turn.original is not None) if form else ()
    return Transcript(
        conversation_id=conversation_id,
        format=format,
        messages=messages,
        title=title or _title(messages),
        metadata=dict(metadata or {}),
        form=form,
        originals=originals,
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


def _unique(id_: str, seen: set[str]) -> str:
    found, count = id_, 1
    while found in seen:
        count += 1
        found = f"{id_}#{count}"
    seen.add(found)
    return found


def _capped(text: str) -> str:
    """`text`, or its beginning and a digest, within the cap on ids."""
    data = text.encode("utf-8", "replace")
    if len(data) <= _MAX_ID_BYTES - 16:  # room for the mark of a repeated id
        return data.decode()
    digest = hashlib.blake2b(data, digest_size=16).hexdigest()
    return f"{data[:400].decode('utf-8', 'ignore')}~{digest}"


def _title(messages: Iterable[Message]) -> str | None:
    for message in messages:
        if message.role == "user" and (text := " ".join(message.text.split())):
            return text if len(text) <= _TITLE_CHARACTERS else text[: _TITLE_CHARACTERS - 1] + "…"
    return None
