"""Import transcripts into a store, and export them.

The steps are generators that yield the calls of a store, so that imports and exports are written once for both kinds of
stores.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import stat
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from os import PathLike
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import msgspec

from redis_history import AsyncHistoryStore, HistoryStore
from redis_history._files import replacing
from redis_history._validation import check_integer
from redis_history.errors import (
    CapabilityError,
    ConflictError,
    ConversationExistsError,
    InvalidInputError,
    MessageConflictError,
    NotFoundError,
)
from redis_history.importers._lossless import message_line, record_line
from redis_history.importers.reader import read_transcripts
from redis_history.importers.source import ImportLimits, report
from redis_history.importers.transcript import ImportProblem, OnError, Transcript
from redis_history.model import Conversation, Message
from redis_history.model.ranges import stays
from redis_history.operations import Appended, Compacted

_PAGE = 200
_PROGRESS_EVERY = 1000  # messages
#: Errors of a store that cannot compact at all, or cannot compact these messages.
_NO_COMPACTION = (CapabilityError, ConflictError, NotFoundError, InvalidInputError)


class Imported(msgspec.Struct, frozen=True):
    """Progress or result of an import: numbers of `conversations` and `messages` read, of messages that were `new` or
    already in the store (`duplicates`), and of reported `problems`."""

    conversations: int = 0
    messages: int = 0
    new: int = 0
    duplicates: int = 0
    problems: int = 0


class Exported(msgspec.Struct, frozen=True):
    """Numbers of `conversations` and `messages` that an export has written."""

    conversations: int = 0
    messages: int = 0


OnProgress = Callable[[Imported], None]
#: A call of the store, and the types of exceptions to send back as its answer.
_Step = tuple[Callable[[], Any], tuple[type[Exception], ...]]
_Steps = Generator[_Step, Any, Any]


def import_messages(
    source: str | PathLike[str] | Iterable[Transcript],
    store: HistoryStore,
    *,
    format: str = "auto",
    batch: int = 200,
    limits: ImportLimits | None = None,
    on_error: OnError | None = None,
    on_progress: OnProgress | None = None,
) -> Imported:
    """Import the conversations of `source` into `store`, one at a time, in batches of `batch` messages (1 to 1,000).

    `source` is a path (`format` and `limits` are for it), or transcripts, such as a `FrameworkSource`.

    A repeated import adds nothing, because ids depend only on the source; a conversation that has grown gets its new
    messages. A new conversation gets the title and metadata of the source. Archived messages of an export are archived
    again by the same compactions. If the store cannot repeat a compaction (it does not support compaction, or the
    conversation has other messages there), the summary is stored as a normal message, and a problem is reported.

    Problems are passed to `on_error`; without it they are logged as warnings. Invalid records are problems, and so are
    messages that the store has with other content; these are skipped. `on_progress` is called after every batch.
    `limits` restricts the amount of data (None: `ImportLimits()`).

    Raises InvalidInputError like `read_transcripts`, and the errors of the store.
    """
    work = _Import(store, source, batch, on_error, on_progress)
    return cast("Imported", _run(work.steps(work.read(format, limits))))


async def async_import_messages(
    source: str | PathLike[str] | Iterable[Transcript],
    store: AsyncHistoryStore,
    *,
    format: str = "auto",
    batch: int = 200,
    limits: ImportLimits | None = None,
    on_error: OnError | None = None,
    on_progress: OnProgress | None = None,
) -> Imported:
    """Like `import_messages`, for an async store. Reads the source in a thread, which may also call `on_error`."""
    work = _Import(store, source, batch, on_error, on_progress)
    transcripts = await asyncio.to_thread(work.read, format, limits)
    return cast("Imported", await _async_run(work.steps(transcripts), in_thread=True))


def export_messages(
    store: HistoryStore,
    target: str | PathLike[str] | IO[bytes],
    *,
    conversation_ids: Iterable[str] | None = None,
    include_archived: bool = False,
    on_progress: Callable[[Exported], None] | None = None,
) -> Exported:
    """Write conversations as lossless JSONL for `import_messages`: those in `conversation_ids`, or all (None).

    `conversation_ids` are the conversations to write; None: all. `target` is a path or a binary file. A file at the
    path is replaced only when the export is complete, and keeps its mode; a link is followed. Devices and named pipes
    are written directly. If the path ends in .gz, the output is gzipped. `include_archived` also writes archived
    messages, marked as such; each summary follows the messages it replaced, and an import repeats the compaction.
    `on_progress` is called after each conversation and after every 1,000 messages. The export may or may not contain
    messages that are written while it runs.

    Raises InvalidInputError for an unknown conversation id.
    """
    with _opened(target) as stream:
        steps = _export(store, next, stream, conversation_ids, include_archived, on_progress)
        return cast("Exported", _run(steps))


async def async_export_messages(
    store: AsyncHistoryStore,
    target: str | PathLike[str] | IO[bytes],
    *,
    conversation_ids: Iterable[str] | None = None,
    include_archived: bool = False,
    on_progress: Callable[[Exported], None] | None = None,
) -> Exported:
    """Like `export_messages`, for an async store."""
    with _opened(target) as stream:
        steps = _export(store, anext, stream, conversation_ids, include_archived, on_progress)
        return cast("Exported", await _async_run(steps))


def _run(steps: _Steps) -> Any:
    answer: Any = None
    while True:
        try:
            call, known = steps.send(answer)
        except StopIteration as end:
            return end.value
        try:
            answer = call()
        except known as error:
            answer = error


async def _async_run(steps: _Steps, *, in_thread: bool = False) -> Any:
    answer: Any = None
    while True:
        found, end = await asyncio.to_thread(_next, steps, answer) if in_thread else _next(steps, answer)
        if found is None:
            return end
        call, known = found
        try:
            answer = await call()
        except known as error:
            answer = error


def _next(steps: _Steps, answer: Any) -> tuple[_Step | None, Any]:
    try:
        return steps.send(answer), None
    except StopIteration as end:  # a coroutine cannot raise StopIteration
        return None, end.value


class _Part(NamedTuple):
    """A section of a transcript: messages to append, then an optional summary that replaces the messages in
    `replaced`."""

    messages: tuple[Message, ...]
    replaced: tuple[Message, ...] = ()
    summary: Message | None = None


class _Import:
    """The steps of an import, conversation by conversation, and its counts."""

    def __init__(
        self,
        store: HistoryStore | AsyncHistoryStore,
        source: str | PathLike[str] | Iterable[Transcript],
        batch: int,
        on_error: OnError | None,
        on_progress: OnProgress | None,
    ) -> None:
        check_integer(batch, "batch", 1, 1000, error=InvalidInputError)
        self._store, self._source, self._batch = store, source, batch
        self._on_error, self._on_progress = on_error, on_progress
        self._counts = Imported()
        self._number = 0  # of the conversation

    def read(self, format: str, limits: ImportLimits | None) -> Iterable[Transcript]:
        if not isinstance(self._source, str | PathLike):
            return self._source
        return read_transcripts(self._source, format=format, on_error=self._report, limits=limits)

    def steps(self, transcripts: Iterable[Transcript]) -> _Steps:
        for self._number, transcript in enumerate(transcripts, 1):
            identity = transcript.conversation_id
            yield from self._create(transcript)
            for part in _parts_of(transcript):
                for at in range(0, len(part.messages), self._batch):
                    yield from self._append(identity, part.messages[at : at + self._batch])
                    self._progress()
                if part.summary is not None:
                    yield from self._compact(identity, part.replaced, part.summary)
            self._add(conversations=1)
            self._progress()
        return self._counts

    def _create(self, transcript: Transcript) -> _Steps:
        identity, record, known = transcript.conversation_id, transcript.record, ConversationExistsError
        record = record or Conversation(identity, title=transcript.title, metadata=transcript.metadata)
        answer = yield partial(self._store.create_conversation, record), (known, InvalidInputError)
        if isinstance(answer, InvalidInputError):
            self._problem(f"the record of conversation {identity[:80]!r} is left out: {answer}")
            yield partial(self._store.create_conversation, Conversation(identity)), (known, InvalidInputError)

    def _append(self, identity: str, messages: tuple[Message, ...]) -> _Steps:
        call = partial(self._store.append_many, identity, messages)
        answer = yield call, (MessageConflictError, InvalidInputError)
        if isinstance(answer, list):
            old = sum(1 for one in answer if isinstance(one, Appended) and one.duplicate)
            self._add(messages=len(answer), new=len(answer) - old, duplicates=old)
        elif len(messages) > 1:  # the batch is too large, or one message is rejected: split it
            half = len(messages) // 2
            yield from self._append(identity, messages[:half])
            yield from self._append(identity, messages[half:])
        else:
            self._add(messages=1)
            self._problem(f"message {messages[0].id[:80]!r} of {identity[:80]!r} is left out: {answer}")

    def _compact(self, identity: str, replaced: tuple[Message, ...], summary: Message) -> _Steps:
        """Replace the appended messages by a summary, unless the store already has it."""
        if (yield partial(self._store.get_message, identity, summary.id), ()) is None:
            change = partial(self._store.compact, identity, through=replaced[-1].id, summary=summary, seen=replaced)
            answer = yield change, _NO_COMPACTION
            if isinstance(answer, Compacted) and answer.changed:
                self._add(messages=1, new=1)
                return
            reason = answer if isinstance(answer, Exception) else "there is nothing to replace"
            of = f"the summary {summary.id[:80]!r} of {identity[:80]!r}"
            self._problem(f"{of} is stored as a normal message, and the messages it replaced stay: {reason}")
        yield from self._append(identity, (summary,))  # reports a summary that the store has with other content

    def _add(self, **counts: int) -> None:
        changed = {name: getattr(self._counts, name) + count for name, count in counts.items()}
        self._counts = msgspec.structs.replace(self._counts, **changed)

    def _problem(self, reason: str) -> None:
        path = str(self._source) if isinstance(self._source, str | PathLike) else "transcripts"
        self._report(ImportProblem(path, self._number, reason))

    def _report(self, problem: ImportProblem) -> None:
        self._add(problems=1)
        report(problem, self._on_error)

    def _progress(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self._counts)


def _parts_of(transcript: Transcript) -> Iterator[_Part]:
    """Split a transcript into sections, in the order in which they were written. A live message before a summary was
    appended after it (otherwise the summary would have replaced it); its timestamp gives its position. Archived
    messages without a later summary are live messages of the last section."""
    every, archived = transcript.messages, transcript.archived
    begin, former, later = 0, tuple[Message, ...](), list[Message]()
    for at, message in enumerate(every):
        if not message.is_summary:
            continue
        before = every[begin:at]
        if leaving := tuple(one for one in before if one.id in archived):
            appended = tuple(one for one in before if one.id in archived or stays(one))
            yield _Part(appended, (*former, *leaving), message)
            later += (one for one in before if one.id not in archived and not stays(one))
            begin, former = at + 1, (message,)
    yield _Part((*later, *every[begin:]))


def _export(
    store: Any,
    following: Callable[..., Any],
    stream: IO[bytes],
    ids: Iterable[str] | None,
    include_archived: bool,
    on_progress: Callable[[Exported], None] | None,
) -> _Steps:
    """The steps of an export. `following` is `next`, or `anext` for an async store."""
    conversations = messages = 0
    for identity in (yield from _listed(store)) if ids is None else ids:
        record = yield partial(store.get_conversation, identity), ()
        if record is None:
            if ids is None:
                continue
            raise InvalidInputError(f"conversation_ids: there is no conversation {identity[:80]!r}")
        stream.write(record_line(record))
        live: set[str] | None = None
        if include_archived:
            live, found = set(), store.iter(identity)
            while (message := (yield partial(following, found, None), ())) is not None:
                live.add(message.id)
        found = store.iter(identity, include_archived=include_archived)
        while (message := (yield partial(following, found, None), ())) is not None:
            stream.write(message_line(identity, message, archived=live is not None and message.id not in live))
            messages += 1
            if on_progress is not None and messages % _PROGRESS_EVERY == 0:
                on_progress(Exported(conversations, messages))
        conversations += 1
        if on_progress is not None:
            on_progress(Exported(conversations, messages))
    return Exported(conversations, messages)


def _listed(store: Any) -> _Steps:
    """All ids. They are listed first, because concurrent writes change the order of the pages."""
    found: dict[str, None] = {}
    while page := (yield partial(store.list_conversations, limit=_PAGE, offset=len(found)), ()):
        before = len(found)
        found |= dict.fromkeys(one.conversation_id for one in page)
        if len(found) == before:
            break
    return found


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
