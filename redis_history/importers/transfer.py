"""Import transcripts into a store, and export them. Coroutines do the work, also for synchronous stores: see `_run`."""

from __future__ import annotations

import asyncio
import gzip
import os
import stat
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from inspect import isawaitable
from os import PathLike
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar, cast

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

T = TypeVar("T")

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

    A repeated import adds nothing, because ids depend only on the source. A conversation that has grown gets its new
    messages. A new conversation gets the title and metadata of the source. Archived messages of an export are archived
    again by the same compactions. If the store cannot repeat a compaction (it does not support compaction, or the
    conversation has other messages there), the summary is stored as a normal message, and a problem is reported.

    Problems are passed to `on_error`; without it they are logged as warnings. Invalid records are problems, and so are
    messages that the store has with other content; these are skipped. `on_progress` is called after every batch.
    `limits` restricts the amount of data (None: `ImportLimits()`).

    Raises InvalidInputError like `read_transcripts`, and the errors of the store.
    """
    return _run(_Import(store, source, batch, on_error, on_progress).run(format, limits))


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
    return await _Import(store, source, batch, on_error, on_progress).run(format, limits, asyncio.to_thread)


def export_messages(
    store: HistoryStore,
    target: str | PathLike[str] | IO[bytes],
    *,
    conversation_ids: Iterable[str] | None = None,
    include_archived: bool = False,
    on_progress: Callable[[Exported], None] | None = None,
) -> Exported:
    """Write conversations as lossless JSONL for `import_messages`.

    `conversation_ids` are the conversations to write; None: all. `target` is a path or a binary file. A file at the
    path is replaced only when the export is complete, and keeps its mode. A link is followed. Devices and named pipes
    are written directly. If the path ends in .gz, the output is gzipped. `include_archived` also writes archived
    messages, marked as such; each summary follows the messages it replaced, and an import repeats the compaction.
    `on_progress` is called after each conversation and after every 1,000 messages. The export may or may not contain
    messages that are written while it runs.

    Raises InvalidInputError for an unknown conversation id.
    """
    with _opened(target) as stream:
        return _run(_export(store, next, stream, conversation_ids, include_archived, on_progress))


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
        return await _export(store, anext, stream, conversation_ids, include_archived, on_progress)


async def _answer(answer: Any) -> Any:
    """The answer of a store: asynchronous stores return an awaitable."""
    return await answer if isawaitable(answer) else answer


def _run(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that uses a synchronous store, and so never waits."""
    try:
        work.send(None)
    except StopIteration as end:
        return cast("T", end.value)
    raise RuntimeError("the coroutine waits")


class _Section(NamedTuple):
    """Messages to append, then an optional summary that replaces the messages in `replaced`."""

    messages: tuple[Message, ...]
    replaced: tuple[Message, ...] = ()
    summary: Message | None = None


@dataclass
class _Import:
    """An import, conversation by conversation, and its counts."""

    store: HistoryStore | AsyncHistoryStore
    source: str | PathLike[str] | Iterable[Transcript]
    batch: int
    on_error: OnError | None
    on_progress: OnProgress | None
    counts: Imported = Imported()  # noqa: RUF009 - it is frozen
    number: int = 0  # of the conversation

    def __post_init__(self) -> None:
        check_integer(self.batch, "batch", 1, 1000, error=InvalidInputError)

    async def run(
        self, format: str, limits: ImportLimits | None, in_thread: Callable[..., Any] = lambda call, *args: call(*args)
    ) -> Imported:
        """`in_thread` calls a function that reads the source."""
        transcripts = iter(await _answer(in_thread(self._read, format, limits)))
        while (transcript := await _answer(in_thread(next, transcripts, None))) is not None:
            self.number += 1
            id_ = transcript.conversation_id
            await self._create(transcript)
            for section in _sections(transcript):
                for at in range(0, len(section.messages), self.batch):
                    await self._append(id_, section.messages[at : at + self.batch])
                    self._add()
                if section.summary is not None:
                    await self._compact(id_, section.replaced, section.summary)
            self._add(conversations=1)
        return self.counts

    def _read(self, format: str, limits: ImportLimits | None) -> Iterable[Transcript]:
        if not isinstance(self.source, str | PathLike):
            return self.source
        return read_transcripts(self.source, format=format, on_error=self._report, limits=limits)

    async def _create(self, transcript: Transcript) -> None:
        id_ = transcript.conversation_id
        record = transcript.record or Conversation(id_, title=transcript.title, metadata=transcript.metadata)
        with suppress(ConversationExistsError, InvalidInputError):
            try:
                await _answer(self.store.create_conversation(record))
            except InvalidInputError as error:
                self._problem(f"the record of conversation {id_[:80]!r} is left out: {error}")
                await _answer(self.store.create_conversation(Conversation(id_)))

    async def _append(self, id_: str, messages: tuple[Message, ...]) -> None:
        try:
            done: list[Appended] = await _answer(self.store.append_many(id_, messages))
        except (MessageConflictError, InvalidInputError) as error:
            if len(messages) > 1:  # the batch is too large, or one message is rejected: split it
                half = len(messages) // 2
                await self._append(id_, messages[:half])
                await self._append(id_, messages[half:])
            else:
                self._count(messages=1)
                self._problem(f"message {messages[0].id[:80]!r} of {id_[:80]!r} is left out: {error}")
        else:
            duplicates = sum(one.duplicate for one in done)
            self._count(messages=len(done), new=len(done) - duplicates, duplicates=duplicates)

    async def _compact(self, id_: str, replaced: tuple[Message, ...], summary: Message) -> None:
        """Replace the appended messages by a summary, unless the store already has it."""
        if await _answer(self.store.get_message(id_, summary.id)) is None:
            reason: object = "there is nothing to replace"
            try:
                compacted = self.store.compact(id_, through=replaced[-1].id, summary=summary, seen=replaced)
                done: Compacted = await _answer(compacted)
                if done.changed:
                    self._count(messages=1, new=1)
                    return
            except _NO_COMPACTION as error:
                reason = error
            subject = f"the summary {summary.id[:80]!r} of {id_[:80]!r}"
            self._problem(f"{subject} is stored as a normal message, and the messages it replaced stay: {reason}")
        await self._append(id_, (summary,))  # reports a summary that the store has with other content

    def _count(self, **counts: int) -> None:
        changed = {name: getattr(self.counts, name) + count for name, count in counts.items()}
        self.counts = msgspec.structs.replace(self.counts, **changed)

    def _problem(self, reason: str) -> None:
        path = str(self.source) if isinstance(self.source, str | PathLike) else "transcripts"
        self._report(ImportProblem(path, self.number, reason))

    def _report(self, problem: ImportProblem) -> None:
        self._count(problems=1)
        report(problem, self.on_error)

    def _add(self, **counts: int) -> None:
        """Count, and report the progress."""
        self._count(**counts)
        if self.on_progress is not None:
            self.on_progress(self.counts)


def _sections(transcript: Transcript) -> Iterator[_Section]:
    """Split a transcript into sections, in the order in which they were written. A live message before a summary was
    appended after it (otherwise the summary would have replaced it). Its timestamp gives its position. Archived
    messages without a later summary are live messages of the last section."""
    messages, archived = transcript.messages, transcript.archived
    begin, earlier, later = 0, tuple[Message, ...](), list[Message]()
    for at, message in enumerate(messages):
        if not message.is_summary:
            continue
        before = messages[begin:at]
        if replaced := tuple(one for one in before if one.id in archived):
            appended = tuple(one for one in before if one.id in archived or stays(one))
            yield _Section(appended, (*earlier, *replaced), message)
            later += (one for one in before if one.id not in archived and not stays(one))
            begin, earlier = at + 1, (message,)
    yield _Section((*later, *messages[begin:]))


async def _export(
    store: Any,
    following: Callable[..., Any],
    stream: IO[bytes],
    ids: Iterable[str] | None,
    include_archived: bool,
    on_progress: Callable[[Exported], None] | None,
) -> Exported:
    """`following` is `next`, or `anext` for an async store."""
    conversations = messages = 0
    for id_ in await _all_ids(store) if ids is None else ids:
        record = await _answer(store.get_conversation(id_))
        if record is None:
            if ids is None:
                continue
            raise InvalidInputError(f"conversation_ids: there is no conversation {id_[:80]!r}")
        stream.write(record_line(record))
        live = set()
        if include_archived:
            found = store.iter(id_)
            while (message := await _answer(following(found, None))) is not None:
                live.add(message.id)
        found = store.iter(id_, include_archived=include_archived)
        while (message := await _answer(following(found, None))) is not None:
            stream.write(message_line(id_, message, archived=include_archived and message.id not in live))
            messages += 1
            if on_progress is not None and messages % _PROGRESS_EVERY == 0:
                on_progress(Exported(conversations, messages))
        conversations += 1
        if on_progress is not None:
            on_progress(Exported(conversations, messages))
    return Exported(conversations, messages)


async def _all_ids(store: Any) -> Iterable[str]:
    """All ids. They are listed first, because concurrent writes change the order of the pages."""
    found: dict[str, None] = {}
    while page := await _answer(store.list_conversations(limit=_PAGE, offset=len(found))):
        before = len(found)
        found |= dict.fromkeys(one.conversation_id for one in page)
        if len(found) == before:
            break
    return found


@contextmanager
def _opened(target: str | PathLike[str] | IO[bytes]) -> Iterator[IO[bytes]]:
    """A stream to `target`. A file is replaced when all is written. A device or pipe is written directly."""
    if not isinstance(target, str | PathLike):
        yield target
        return
    path = Path(target)
    mode = path.stat().st_mode if path.exists() else None
    if mode is None or stat.S_ISREG(mode):
        # A new file is private, because it holds conversations.
        opened: Any = replacing(Path(os.path.realpath(path)), 0o600 if mode is None else stat.S_IMODE(mode))
    else:
        opened = path.open("wb")  # raises for a folder
    with opened as stream:
        if path.suffix == ".gz":
            with gzip.GzipFile("", "wb", fileobj=stream, mtime=0) as packed:
                yield cast("IO[bytes]", packed)
        else:
            yield stream
