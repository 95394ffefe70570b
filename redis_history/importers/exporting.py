"""Export conversations of a store to a file or stream. A coroutine does the work, also for synchronous stores."""

from __future__ import annotations

import gzip
import os
import stat
import zlib
from collections.abc import AsyncIterator, Callable, Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from os import PathLike
from pathlib import Path
from typing import IO, Any

import msgspec
import orjson

from redis_history import AsyncHistoryStore, HistoryStore
from redis_history._files import replacing
from redis_history.errors import InvalidInputError
from redis_history.importers._faces import answer_of, run_at_once
from redis_history.importers._lossless import RECORD_START, message_line, record_line
from redis_history.operations import fork as forks
from redis_history.operations.backend import features

#: Bytes of a member of a gzipped export before packing.
_MEMBER_BYTES = 1 << 20


class Exported(msgspec.Struct, frozen=True):
    """Numbers of `conversations` and `messages` that an export has written."""

    conversations: int = 0
    messages: int = 0


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
        return run_at_once(_export(store, next, stream, conversation_ids, include_archived, on_progress, known))


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
    async for id_ in _ids(store, following, ids):
        if id_ in known:
            continue
        encode = partial(message_line, id_)
        steps = forks.collect(id_, encode, archives=features(store.backend).compacts)
        found = await answer_of(store._steps(steps))
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


async def _ids(store: Any, following: Callable[..., Any], given: Iterable[str] | None) -> AsyncIterator[str]:
    for id_ in given or ():
        yield id_
    found = store.iter_conversations()
    while given is None and (one := await answer_of(following(found, None))) is not None:
        yield one.conversation_id


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
