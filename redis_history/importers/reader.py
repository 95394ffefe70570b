"""Detect the format of a file, and read its transcripts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from redis_history.errors import InvalidInputError
from redis_history.importers import _agents, _chat, _chatgpt, _claude_code, _langchain, _lossless, _people
from redis_history.importers._bundle import Bundle, is_bundle
from redis_history.importers._convert import each
from redis_history.importers._slack import is_slack, slack
from redis_history.importers.source import Budget, ImportLimits, Source
from redis_history.importers.transcript import OnError, Transcript

__all__ = ["FORMATS", "read_transcripts"]


class _Importer(NamedTuple):
    matches: Callable[[Any], bool]
    read: Callable[[Source], Iterator[Transcript]]


def _has(record: Any, **kinds: type) -> bool:
    return isinstance(record, dict) and all(isinstance(record.get(key), kind) for key, kind in kinds.items())


def _inner(record: Any, key: str) -> Any:
    return record[key] if _has(record, **{key: dict}) else record


def _first_item(record: Any) -> Any:
    messages = record.get("messages") if isinstance(record, dict) else None
    return messages[0] if isinstance(messages, list) and messages else None


# The order matters for detection: chat records come last, because they match most easily.
_IMPORTERS: dict[str, _Importer] = {
    "redis_history": _Importer(_lossless.is_lossless, _lossless.lossless),
    "chatgpt": _Importer(_chatgpt.is_tree, partial(each, convert=_chatgpt.chatgpt)),
    "langchain": _Importer(_langchain.is_langchain, _langchain.langchain),
    "taubench": _Importer(lambda r: _has(r, traj=list) and "task_id" in r, partial(each, convert=_agents.taubench)),
    "sweagent": _Importer(lambda r: _has(_inner(r, "traj"), history=list), partial(each, convert=_agents.sweagent)),
    "miniswe": _Importer(
        lambda r: _has(_inner(r, "traj"), messages=list) and ("traj" in r or _has(r, trajectory_format=str)),
        partial(each, convert=_agents.miniswe),
    ),
    "tau2": _Importer(
        lambda r: isinstance(r, dict) and "task_id" in r and _has(_first_item(r), turn_idx=int),
        partial(each, convert=_agents.tau2),
    ),
    "claude_code": _Importer(lambda r: _has(r, entries=list) or _claude_code.is_entry(r), _claude_code.claude_code),
    "irc": _Importer(lambda r: _has(r, channel=str, file=str, n=int, text=str), _people.irc),
    "locomo": _Importer(
        lambda r: _has(r, conversation=dict) and any(key.startswith("session_") for key in r["conversation"]),
        partial(each, convert=_people.locomo),
    ),
    "kdconv": _Importer(
        lambda r: _has(_first_item(_inner(r, "dialogue")), message=str), partial(each, convert=_people.kdconv)
    ),
    "openai_chat": _Importer(_chat.is_chat, _chat.openai_chat),
    "anthropic": _Importer(_chat.is_chat, _chat.anthropic),
}

#: The values of `format` in `read_transcripts`, in addition to "auto".
FORMATS: tuple[str, ...] = (*_IMPORTERS, "slack")


def read_transcripts(
    path: str | PathLike[str],
    *,
    format: str | None = "auto",
    on_error: OnError | None = None,
    limits: ImportLimits | None = None,
) -> Iterator[Transcript]:
    """Read conversations one at a time from a file (JSON or JSONL, plain or gzipped), a folder or a zip archive.

    `format` is one of FORMATS. With "auto" (or None) it is detected from the first records, separately for each file
    of a folder or archive. Bad lines and records are skipped and passed to `on_error` (without it, logged as
    warnings). The same holds for records that exceed one of the `limits`, links out of a folder, devices, pipes and
    sockets.

    Raises InvalidInputError immediately, before the first conversation, if `path` is not a regular file or folder,
    cannot be read, has an unknown format or has more files than `limits` allow.
    """
    if format not in (None, "auto", *FORMATS):
        raise InvalidInputError(f"format must be one of {', '.join(FORMATS)}, not {format!r}")
    chosen = None if format == "auto" else format
    where = Path(path)
    limits = limits or ImportLimits()
    if not is_bundle(where):
        if chosen == "slack":
            raise InvalidInputError(f"{path} must be a folder or zip archive for the format slack")
        return _of_source(Source(where, on_error, Budget(limits)), chosen)
    bundle = Bundle(where, on_error, limits)
    if chosen == "slack" or (chosen is None and is_slack(bundle)):
        return slack(bundle)
    if not bundle.paths():
        raise InvalidInputError(f"{path} cannot be read: it contains no files with JSON records")
    return _of_bundle(bundle, chosen)


def _of_source(source: Source, format: str | None) -> Iterator[Transcript]:
    if format is not None:
        return _IMPORTERS[format].read(source)
    for record in source.head:
        for name, importer in _IMPORTERS.items():
            if importer.matches(record):
                return _chat.chat(source) if name == "openai_chat" else importer.read(source)
    if not source.head:
        raise InvalidInputError(f"{source.path} holds no JSON records; known formats: {', '.join(FORMATS)}")
    raise InvalidInputError(f"the format of {source.path} is unknown; known formats: {', '.join(FORMATS)}")


def _of_bundle(bundle: Bundle, format: str | None) -> Iterator[Transcript]:
    """Read a bundle file by file. Files of an unknown format are reported. Repeated conversation ids get a number."""
    seen: dict[str, int] = {}
    for source in bundle.sources(bundle.paths()):
        try:
            found = _of_source(source, format)
        except InvalidInputError as error:
            source.problem(1, str(error))
            continue
        for transcript in found:
            count = seen[transcript.conversation_id] = seen.get(transcript.conversation_id, 0) + 1
            yield (
                transcript
                if count == 1
                else msgspec.structs.replace(transcript, conversation_id=f"{transcript.conversation_id}#{count}")
            )
