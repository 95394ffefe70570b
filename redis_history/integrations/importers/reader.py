"""Detect the format of a file, and read its transcripts."""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike
from pathlib import Path

from redis_history.errors import InvalidInputError
from redis_history.integrations.importers._lossless import is_lossless, lossless
from redis_history.integrations.importers._message_lists import read_chats
from redis_history.integrations.importers._records import is_conversation
from redis_history.integrations.importers.source import ImportLimits, Source
from redis_history.integrations.importers.transcript import OnError, Transcript
from redis_history.values._validation import check_choice

#: Values of `format` in `read_transcripts`, in addition to "auto".
FORMATS: tuple[str, ...] = ("redis_history", "langchain", "openai_chat", "openai_responses", "anthropic", "sharegpt")

_FROM_CSV = "python -c 'import csv, json, sys; [print(json.dumps(row)) for row in csv.DictReader(sys.stdin)]'"


def read_transcripts(
    path: str | PathLike[str],
    *,
    format: str | None = "auto",
    on_error: OnError | None = None,
    limits: ImportLimits | None = None,
) -> Iterator[Transcript]:
    """Read conversations one at a time from a file: JSON or JSONL, plain or gzipped.

    `format` is a name in FORMATS; "auto" (or None) detects it from the first records. Invalid lines and records, and
    records that exceed the `limits`, are skipped and passed to `on_error` (without it, logged as warnings).

    Raises InvalidInputError immediately, before the first conversation, if `path` is not a regular file, cannot be
    read or has an unknown format.
    """
    check_choice(format, "format", (None, "auto", *FORMATS), InvalidInputError)
    source = Source(Path(path), on_error, limits or ImportLimits())
    match format:
        case "redis_history":
            return lossless(source)
        case "langchain" | "openai_chat" | "openai_responses" | "anthropic" | "sharegpt":
            return read_chats(source, format)
    for record in source.head:
        if is_lossless(record):
            return lossless(source)
        if is_conversation(record):
            return read_chats(source)
    if source.head:
        remedy = "for other data, convert its records with `build`, see docs/how-to/import.md"
        raise InvalidInputError(
            f"the format of {source.path} is unknown; known formats: {', '.join(FORMATS)}; {remedy}"
        )
    raise InvalidInputError(
        f"{source.path} holds no JSON records; known formats, as JSON or JSONL: {', '.join(FORMATS)}. A table of "
        f"messages as CSV becomes JSONL with: {_FROM_CSV}"
    )
