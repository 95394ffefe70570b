"""Detect the format of a file, and read its transcripts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib.metadata import entry_points
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from redis_history._validation import check_choice
from redis_history.errors import InvalidInputError
from redis_history.importers import _chatgpt, _claude_code, _lossless, _message_lists
from redis_history.importers._bundle import Bundle, is_bundle
from redis_history.importers._slack import is_slack, slack
from redis_history.importers.source import Budget, ImportLimits, Source, each, renamed
from redis_history.importers.transcript import OnError, Transcript


class Importer(NamedTuple):
    """A format: `matches` says whether a record has it, and `read` gives the conversations of a `Source`.

    An installed package brings a format by an entry point of the group `redis_history.importers`: the name of the
    format, and an Importer.
    """

    matches: Callable[[Any], bool]
    read: Callable[[Source], Iterator[Transcript]]


_IMPORTERS: dict[str, Importer] = {
    "redis_history": Importer(_lossless.is_lossless, _lossless.lossless),
    "chatgpt": Importer(_chatgpt.is_tree, partial(each, convert=_chatgpt.chatgpt)),
    "langchain": Importer(_message_lists.is_langchain, partial(_message_lists.read_chats, form="langchain")),
    "claude_code": Importer(_claude_code.matches, _claude_code.claude_code),
}
#: Chat records match most easily, so detection tries them last.
_CHATS: dict[str, Importer] = {
    "openai_chat": Importer(_message_lists.is_chat, partial(_message_lists.read_chats, form="openai_chat")),
    "anthropic": Importer(_message_lists.is_chat, partial(_message_lists.read_chats, form="anthropic")),
}

#: The formats that come with this package: values of `format` in `read_transcripts`, in addition to "auto".
FORMATS: tuple[str, ...] = (*_IMPORTERS, *_CHATS, "slack")


@cache
def _importers() -> dict[str, Importer]:
    installed = {one.name: one.load() for one in entry_points(group="redis_history.importers")}
    return {**_IMPORTERS, **{name: one for name, one in installed.items() if name not in FORMATS}, **_CHATS}


def read_transcripts(
    path: str | PathLike[str],
    *,
    format: str | None = "auto",
    on_error: OnError | None = None,
    limits: ImportLimits | None = None,
) -> Iterator[Transcript]:
    """Read conversations one at a time from a file (JSON or JSONL, plain or gzipped), a folder or a zip archive.

    `format` is one of FORMATS or the name of an installed `Importer`. With "auto" (or None) it is detected from the
    first records, separately for each file of a folder or archive. Bad lines and records are skipped and passed to
    `on_error` (without it, logged as warnings). So are records that exceed the `limits`, links out of a folder,
    devices, pipes and sockets.

    Raises InvalidInputError immediately, before the first conversation, if `path` is not a regular file or folder,
    cannot be read, has an unknown format or has more files than `limits` allow.
    """
    check_choice(format, "format", (None, "auto", *_importers(), "slack"), InvalidInputError)
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
    if not bundle.paths:
        raise InvalidInputError(f"{path} cannot be read: it contains no files with JSON records")
    return _of_bundle(bundle, chosen)


def _of_source(source: Source, format: str | None) -> Iterator[Transcript]:
    if format is not None:
        return _importers()[format].read(source)
    for record in source.head:
        for name, importer in _importers().items():
            if importer.matches(record):
                return _message_lists.read_chats(source) if name in _CHATS else importer.read(source)
    what = f"the format of {source.path} is unknown" if source.head else f"{source.path} holds no JSON records"
    raise InvalidInputError(f"{what}; known formats: {', '.join((*_importers(), 'slack'))}")


def _of_bundle(bundle: Bundle, format: str | None) -> Iterator[Transcript]:
    """Read a bundle file by file. Files of an unknown format are reported. Repeated conversation ids get a number."""
    seen: dict[str, int] = {}
    for source in bundle.sources(bundle.paths):
        try:
            found = _of_source(source, format)
        except InvalidInputError as error:
            source.problem(1, str(error))
            continue
        for transcript in found:
            yield renamed(transcript, seen)
