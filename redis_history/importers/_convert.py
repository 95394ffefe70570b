"""Helpers for the importers of all formats: checked access to records, one transcript per record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from redis_history.errors import InvalidInputError, InvalidMessageError
from redis_history.importers.source import Source
from redis_history.importers.transcript import Transcript

__all__ = ["each", "need", "rest", "scalar"]

T = TypeVar("T")


def each(source: Source, convert: Callable[[Source, int, Any], Transcript]) -> Iterator[Transcript]:
    """Call `convert(source, line, record)` for every record, and report the records it rejects. Repeated conversation
    ids get a number."""
    seen: dict[str, int] = {}
    for line, record in source.records():
        try:
            transcript = convert(source, line, record)
        except InvalidInputError as error:
            source.problem(line, str(error))
            continue
        count = seen[transcript.conversation_id] = seen.get(transcript.conversation_id, 0) + 1
        if count > 1:
            again = f"{transcript.conversation_id}#{count}"
            transcript = msgspec.structs.replace(transcript, conversation_id=again)
        yield transcript


def need(record: Any, key: str, kind: type[T]) -> T:
    """`record[key]`. Raises InvalidMessageError unless it is a `kind`."""
    value = record.get(key) if isinstance(record, Mapping) else None
    if not isinstance(value, kind):
        raise InvalidMessageError(f"{key!r} is missing or is not a {kind.__name__}")
    return value


def rest(record: Mapping[str, Any], *without: str) -> dict[str, Any]:
    """The record without these keys."""
    return {key: value for key, value in record.items() if key not in without}


def scalar(value: Any) -> str | None:
    """`value` as text for an id; None if it is not text or a number."""
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) and value != "" else None
