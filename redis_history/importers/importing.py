"""Import transcripts into a store, and export them. Coroutines do the work, also for synchronous stores: see `_run`."""

from __future__ import annotations

import asyncio
import gzip
import os
import stat
import zlib
from collections.abc import AsyncIterator, Callable, Container, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable
from os import PathLike
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import msgspec
import orjson

from redis_history import AsyncHistoryStore, HistoryStore
from redis_history._files import replacing
from redis_history._validation import check_integer
from redis_history.errors import (
    ConversationExistsError,
    InvalidInputError,
    MessageConflictError,
)
from redis_history.importers._lossless import RECORD_START, message_line, record_line
from redis_history.importers.reader import read_transcripts
from redis_history.importers.source import ImportLimits, report
from redis_history.importers.transcript import ImportProblem, OnError, Original, Transcript
from redis_history.model import Conversation, Message
from redis_history.model.ids import check_conversation_id
from redis_history.model.message import RECORD_FIELDS
from redis_history.operations import Appended
from redis_history.operations import fork as forks
from redis_history.operations.backend import features
from redis_history.operations.record import WriteRecord

T = TypeVar("T")

#: Bytes of a member of a gzipped export before packing.
_MEMBER_BYTES = 1 << 20


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

    A repeated import adds nothing, because ids depend only on the source; a conversation that has grown gets its new
    messages. A new conversation gets the title and metadata of the source. A conversation of an export appears
    in one step, as it was: with its revision, times and archives. If it exists, it gets those messages that it lacks;
    archived ones are left out then, and a problem is reported.

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
    include_archived: bool = True,
    resume: bool = False,
    on_progress: Callable[[Exported], None] | None = None,
) -> Exported:
    """Write conversations as lossless JSONL for `import_messages`: records with their times and revisions, messages
    with their positions, archives, the origins of forks, and replies that are being written, as far as they are.

    `conversation_ids` are the conversations to write; None: all. Each is written as of one revision.
    `include_archived`: also archived messages. `on_progress` is called after each conversation.

    `target` is a path or a binary file. A file at the path is replaced only when the export is complete, and keeps its
    mode. A link is followed. Devices and named pipes are written directly. If the path ends in .gz, the output is
    gzipped. With `resume`, an interrupted export to the path leaves `<path>.partial`, and the next one continues it,
    without the conversations that it has.

    Raises InvalidInputError for an unknown conversation id, and for `resume` without the path of a file.
    """
    with _opened(target, resume) as (stream, known):
        return _run(_export(store, next, stream, conversation_ids, include_archived, on_progress, known))


async def async_export_messages(
    store: AsyncHistoryStore,
    target: str | PathLike[str] | IO[bytes],
    *,
    conversation_ids: Iterable[str] | None = None,
    include_archived: bool = True,
    resume: bool = False,
    on_progress: Callable[[Exported], None] | None = None,
) -> Exported:
    """Like `export_messages`, for an async store."""
    with _opened(target, resume) as (stream, known):
        return await _export(store, anext, stream, conversation_ids, include_archived, on_progress, known)


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
            if transcript.exported is None or not await self._publish(transcript, transcript.exported):
                await self._add(transcript)
            self._count(conversations=1)
            self._report_progress()
        return self.counts

    async def _publish(self, transcript: Transcript, exported: Original) -> bool:
        """Make the conversation as it was exported. False: the store has it already, and other messages; or it cannot,
        because of its backend, or of the lines."""
        if not features(self.store.backend).forks:
            return False
        snapshot, count = exported.snapshot, len(transcript.messages)
        record, numbers = snapshot.record, {archive.number for archive in snapshot.archives}
        archive_of = {name: number for name, number in exported.archive_of.items() if number in numbers}
        places = {(archive_of.get(one.id, 0), one.position) for one in transcript.messages}
        lacks = any(one.position is None for one in transcript.messages)
        if lacks or not len(places) == len({one.id for one in transcript.messages}) == count:
            return False
        fields = {name: getattr(record, name) for name in RECORD_FIELDS}
        try:
            WriteRecord.of(record.conversation_id, fields, create=True)
            if record.forked_from is not None:
                check_conversation_id(record.forked_from.conversation_id)
        except InvalidInputError:
            return False
        present: Conversation | None = await _answer(self.store.get_conversation(record.conversation_id))
        if present is not None:
            if (present.revision, present.updated_at) != (record.revision, record.updated_at) or not record.revision:
                return False
            self._count(messages=count, duplicates=count)
            return True
        try:
            steps = forks.publish(snapshot, archive_of, transcript.messages)
            await _answer(self.store._publish(record.conversation_id, steps))
        except ConversationExistsError:  # somebody has just made it
            return False
        self._count(messages=count, new=count)
        return True

    async def _add(self, transcript: Transcript) -> None:
        """Append the messages that the store lacks."""
        await self._create(transcript)
        messages, exported = transcript.messages, transcript.exported
        if exported is not None:
            archived = [one for one in messages if one.id in exported.archive_of]
            messages = tuple(one for one in messages if one.id not in exported.archive_of)
            if archived:
                self._count(messages=len(archived), duplicates=len(archived))
                self._problem(
                    f"{len(archived):,} archived messages of {transcript.conversation_id[:80]!r} are left out: only a "
                    "conversation that does not exist gets archives; import it into another namespace, or delete it"
                )
        for at in range(0, len(messages), self.batch):
            await self._append(transcript.conversation_id, messages[at : at + self.batch])
            self._report_progress()

    def _read(self, format: str, limits: ImportLimits | None) -> Iterable[Transcript]:
        if not isinstance(self.source, str | PathLike):
            return self.source
        return read_transcripts(self.source, format=format, on_error=self._report, limits=limits)

    async def _create(self, transcript: Transcript) -> None:
        id_ = transcript.conversation_id
        record = Conversation(
            id_,
            title=transcript.title,
            user_id=transcript.user_id,
            agent_name=transcript.agent_name,
            metadata=transcript.metadata,
        )
        if transcript.exported is not None:
            record = transcript.exported.snapshot.record
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

    def _count(self, **counts: int) -> None:
        changed = {name: getattr(self.counts, name) + count for name, count in counts.items()}
        self.counts = msgspec.structs.replace(self.counts, **changed)

    def _problem(self, reason: str) -> None:
        path = str(self.source) if isinstance(self.source, str | PathLike) else "transcripts"
        self._report(ImportProblem(path, self.number, reason))

    def _report(self, problem: ImportProblem) -> None:
        self._count(problems=1)
        report(problem, self.on_error)

    def _report_progress(self) -> None:
        if self.on_progress is not None:
            self.on_progress(self.counts)


async def _export(
    store: Any,
    following: Callable[..., Any],
    stream: IO[bytes],
    ids: Iterable[str] | None,
    include_archived: bool,
    on_progress: Callable[[Exported], None] | None,
    known: Container[str] = (),
) -> Exported:
    """`following` is `next`, or `anext` for an async store. `known`: ids that the stream has already."""
    done = Exported()
    conversations = _ids(store, following) if ids is None else _given(ids)
    async for id_ in conversations:
        if id_ in known:
            continue
        encode = partial(message_line, id_)
        steps = forks.collect(id_, encode, archives=features(store.backend).compacts)
        found = await _answer(store._steps(steps))
        if found is None:
            if ids is None:
                continue
            raise InvalidInputError(f"conversation_ids: there is no conversation {id_[:80]!r}")
        snapshot, messages = found
        if not include_archived:
            snapshot = snapshot._replace(archives=[])
            messages = [one for one in messages if not one.archive]
        stream.write(record_line(snapshot) + b"".join(one.encoded for one in messages))
        done = Exported(done.conversations + 1, done.messages + len(messages))
        if on_progress is not None:
            on_progress(done)
    return done


async def _ids(store: Any, following: Callable[..., Any]) -> AsyncIterator[str]:
    found = store.iter_conversations()
    while (one := await _answer(following(found, None))) is not None:
        yield one.conversation_id


async def _given(ids: Iterable[str]) -> AsyncIterator[str]:
    for one in ids:
        yield one


class _Members:
    """Packs conversations in members of a gzip file, which end with a conversation, so that a file that breaks off can
    be continued."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._size = 0
        self._member: gzip.GzipFile | None = None

    def write(self, data: bytes) -> None:
        if self._member is None:
            self._member = gzip.GzipFile("", "wb", fileobj=self._stream, mtime=0)
        self._member.write(data)
        self._size += len(data)
        if self._size >= _MEMBER_BYTES:
            self.close()

    def close(self) -> None:
        if self._member is not None:
            self._member.close()
            self._stream.flush()
        self._member, self._size = None, 0


@contextmanager
def _opened(target: str | PathLike[str] | IO[bytes], resume: bool) -> Iterator[tuple[Any, Container[str]]]:
    """A stream to `target`, and the ids that it has already. A file is replaced when all is written. A device or pipe
    is written directly."""
    if not isinstance(target, str | PathLike):
        if resume:
            raise InvalidInputError("resume needs the path of a file as target, not a stream")
        yield target, ()
        return
    path = Path(target)
    mode = path.stat().st_mode if path.exists() else None
    known: Container[str] = ()
    # A new file is private, because it holds conversations.
    new_mode = 0o600 if mode is None else stat.S_IMODE(mode)
    if mode is not None and not stat.S_ISREG(mode):
        if resume:
            raise InvalidInputError(f"resume needs a file as target, and {str(path)!r} is none")
        opened: Any = path.open("wb")  # raises for a folder
    elif resume:
        path = Path(os.path.realpath(path))
        part = path.with_name(f"{path.name}.partial")
        known = _recovered(part, packed=path.suffix == ".gz")
        opened = _continuing(part, path, new_mode)
    else:
        opened = replacing(Path(os.path.realpath(path)), new_mode)
    with opened as stream:
        if path.suffix == ".gz":
            members = _Members(stream)
            yield members, known
            members.close()
        else:
            yield stream, known


@contextmanager
def _continuing(part: Path, path: Path, mode: int) -> Iterator[IO[bytes]]:
    with open(part, "ab", opener=lambda name, flags: os.open(name, flags, mode)) as stream:
        yield stream
    part.replace(path)


def _recovered(part: Path, *, packed: bool) -> Container[str]:
    """The ids of the complete conversations of an interrupted export. Cuts off what is not complete."""
    if not part.exists():
        return ()
    ids: set[str] = set()
    end = 0
    with part.open("r+b") as file:
        if packed:
            for at, text in _members_of(file):
                end = at
                ids.update(filter(None, map(_id_in, text.splitlines())))
        else:
            last, file_at = None, 0
            for line in file:
                if (found := _id_in(line)) is not None:
                    ids.update([last] if last is not None else [])
                    last, end = found, file_at
                file_at = file_at + len(line)
        file.truncate(end)
    return ids


def _members_of(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """The complete members of a gzip file: where each ends, and its content."""
    at = 0
    unpack, found, rest = zlib.decompressobj(wbits=31), [], b""
    with suppress(zlib.error):
        while data := rest or file.read(_MEMBER_BYTES):
            found.append(unpack.decompress(data))
            rest = unpack.unused_data
            at += len(data) - len(rest)
            if unpack.eof:
                yield at, b"".join(found)
                unpack, found = zlib.decompressobj(wbits=31), []


def _id_in(line: bytes) -> str | None:
    """The id in the line of a conversation's record."""
    if not line.startswith(RECORD_START):
        return None
    try:
        return str(orjson.loads(line)["conversation"]["conversation_id"])
    except (ValueError, KeyError, TypeError):
        return None
