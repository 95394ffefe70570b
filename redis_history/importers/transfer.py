"""Import transcripts into a store, and export them."""

from __future__ import annotations

import asyncio
import gzip
import logging
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from os import PathLike
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from redis_history import AsyncHistoryStore, HistoryStore
from redis_history._files import replacing
from redis_history.errors import InvalidInputError
from redis_history.importers._lossless import message_line, record_line
from redis_history.importers._plan import Imported, OnProgress, check_batch, steps
from redis_history.importers.reader import read_transcripts
from redis_history.importers.source import ImportLimits
from redis_history.importers.transcript import ImportProblem, OnError
from redis_history.model import Conversation

__all__ = ["Exported", "async_export_messages", "async_import_messages", "export_messages", "import_messages"]

_log = logging.getLogger("redis_history.importers")
_PAGE = 200
_TOLD = 1000


class Exported(msgspec.Struct, frozen=True):
    """Numbers of conversations and messages that an export has written."""

    conversations: int = 0
    messages: int = 0


def import_messages(
    source: str | PathLike[str],
    store: HistoryStore,
    *,
    format: str = "auto",
    batch: int = 200,
    limits: ImportLimits | None = None,
    on_error: OnError | None = None,
    on_progress: OnProgress | None = None,
) -> Imported:
    """Import the conversations of `source` into `store`, one at a time, in batches of `batch` messages (1 to 1,000).

    A repeated import adds nothing, because ids depend only on the source; a conversation that has grown gets its new
    messages. A new conversation gets the title and metadata of the source. Archived messages of an export are archived
    again by the same compactions. If the store cannot repeat a compaction (it does not support compaction, or the
    conversation has other messages there), the summary is stored as a normal message, and a problem is reported.

    Problems are passed to `on_error`; without it they are logged as warnings. Invalid records are problems, and so are
    messages that the store has with other content; these are skipped. `on_progress` is called after every batch.
    `limits` restricts the amount of data (None: `ImportLimits()`).

    Raises InvalidInputError like `read_transcripts`, and the errors of the store.
    """
    check_batch(batch)
    counter = _Counter(on_error)
    transcripts = read_transcripts(source, format=format, on_error=counter, limits=limits)
    plan = steps(transcripts, source, batch=batch, on_error=counter, on_progress=counter.with_problems(on_progress))
    answer: Any = None
    while True:
        try:
            step = plan.send(answer)
        except StopIteration as end:
            return counter.final(end.value())
        try:
            answer = getattr(store, step.method)(*step.arguments, **step.options)
        except step.known as error:
            answer = error


async def async_import_messages(
    source: str | PathLike[str],
    store: AsyncHistoryStore,
    *,
    format: str = "auto",
    batch: int = 200,
    limits: ImportLimits | None = None,
    on_error: OnError | None = None,
    on_progress: OnProgress | None = None,
) -> Imported:
    """`import_messages` for an async store. Reads the source in a thread, which may also call `on_error`."""
    check_batch(batch)
    counter = _Counter(on_error)
    transcripts = await asyncio.to_thread(
        partial(read_transcripts, source, format=format, on_error=counter, limits=limits)
    )
    plan = steps(transcripts, source, batch=batch, on_error=counter, on_progress=counter.with_problems(on_progress))
    answer: Any = None
    while True:
        step = await asyncio.to_thread(_next, plan, answer)
        if callable(step):
            return counter.final(step())
        try:
            answer = await getattr(store, step.method)(*step.arguments, **step.options)
        except step.known as error:
            answer = error


def _next(plan: Any, answer: Any) -> Any:
    try:
        return plan.send(answer)
    except StopIteration as end:  # a coroutine cannot raise StopIteration
        return end.value


class _Counter:
    """Reports and counts problems."""

    def __init__(self, on_error: OnError | None) -> None:
        self._on_error = on_error
        self._count = 0

    def __call__(self, problem: ImportProblem) -> None:
        self._count += 1
        if self._on_error is not None:
            self._on_error(problem)
        else:
            _log.warning("%s", problem)

    def final(self, counts: Imported) -> Imported:
        return msgspec.structs.replace(counts, problems=self._count)

    def with_problems(self, on_progress: OnProgress | None) -> OnProgress | None:
        return None if on_progress is None else lambda counts: on_progress(self.final(counts))


def export_messages(
    store: HistoryStore,
    target: str | PathLike[str] | IO[bytes],
    *,
    conversation_ids: Iterable[str] | None = None,
    include_archived: bool = False,
    on_progress: Callable[[Exported], None] | None = None,
) -> Exported:
    """Write conversations as lossless JSONL for `import_messages`: those in `conversation_ids`, or all (None).

    `target` is a path or a binary file. A file at the path is replaced only when the export is complete, and keeps its
    mode; a link is followed. Devices and named pipes are written directly. If the path ends in .gz, the output is
    gzipped. `include_archived` also writes archived messages, marked as such; each summary follows the messages it
    replaced, and an import repeats the compaction. `on_progress` is called after each conversation and after every
    1,000 messages. The export may or may not contain messages that are written while it runs.

    Raises InvalidInputError for an unknown conversation id.
    """
    done = Exported()
    with _opened(target) as stream:
        for record in _chosen(store, conversation_ids):
            stream.write(record_line(record))
            identity = record.conversation_id
            live = {message.id for message in store.iter(identity)} if include_archived else None
            for message in store.iter(identity, include_archived=include_archived):
                stream.write(message_line(identity, message, archived=live is not None and message.id not in live))
                done = Exported(done.conversations, done.messages + 1)
                if on_progress is not None and done.messages % _TOLD == 0:
                    on_progress(done)
            done = Exported(done.conversations + 1, done.messages)
            if on_progress is not None:
                on_progress(done)
    return done


async def async_export_messages(
    store: AsyncHistoryStore,
    target: str | PathLike[str] | IO[bytes],
    *,
    conversation_ids: Iterable[str] | None = None,
    include_archived: bool = False,
    on_progress: Callable[[Exported], None] | None = None,
) -> Exported:
    """`export_messages` for an async store."""
    done = Exported()
    with _opened(target) as stream:
        async for record in _async_chosen(store, conversation_ids):
            stream.write(record_line(record))
            identity = record.conversation_id
            live = {message.id async for message in store.iter(identity)} if include_archived else None
            async for message in store.iter(identity, include_archived=include_archived):
                stream.write(message_line(identity, message, archived=live is not None and message.id not in live))
                done = Exported(done.conversations, done.messages + 1)
                if on_progress is not None and done.messages % _TOLD == 0:
                    on_progress(done)
            done = Exported(done.conversations + 1, done.messages)
            if on_progress is not None:
                on_progress(done)
    return done


@contextmanager
def _opened(target: str | PathLike[str] | IO[bytes]) -> Iterator[IO[bytes]]:
    if not isinstance(target, str | PathLike):
        yield target
        return
    path = Path(target)
    with _written(path) as stream:
        if path.suffix == ".gz":
            with gzip.GzipFile("", "wb", fileobj=stream, mtime=0) as packed:
                yield cast("IO[bytes]", packed)
        else:
            yield stream


@contextmanager
def _written(path: Path) -> Iterator[IO[bytes]]:
    """Replace a file when everything is written; write directly to a device or pipe."""
    mode = None
    with suppress(FileNotFoundError):
        mode = path.stat().st_mode
    if mode is None or stat.S_ISREG(mode):
        with replacing(Path(os.path.realpath(path)), mode and stat.S_IMODE(mode)) as stream:
            yield stream
    else:
        with path.open("wb") as stream:  # raises for a folder
            yield stream


def _chosen(store: HistoryStore, ids: Iterable[str] | None) -> Iterator[Conversation]:
    if ids is not None:
        for identity in ids:
            yield _found(identity, store.get_conversation(identity))
        return
    # List all ids first, because concurrent writes change the order of the pages.
    found: dict[str, None] = {}
    while page := store.list_conversations(limit=_PAGE, offset=len(found)):
        before = len(found)
        found |= dict.fromkeys(one.conversation_id for one in page)
        if len(found) == before:
            break
    for identity in found:
        if (record := store.get_conversation(identity)) is not None:
            yield record


async def _async_chosen(store: AsyncHistoryStore, ids: Iterable[str] | None) -> AsyncIterator[Conversation]:
    if ids is not None:
        for identity in ids:
            yield _found(identity, await store.get_conversation(identity))
        return
    found: dict[str, None] = {}
    while page := await store.list_conversations(limit=_PAGE, offset=len(found)):
        before = len(found)
        found |= dict.fromkeys(one.conversation_id for one in page)
        if len(found) == before:
            break
    for identity in found:
        if (record := await store.get_conversation(identity)) is not None:
            yield record


def _found(identity: str, record: Conversation | None) -> Conversation:
    if record is None:
        raise InvalidInputError(f"conversation_ids: there is no conversation {identity[:80]!r}")
    return record
