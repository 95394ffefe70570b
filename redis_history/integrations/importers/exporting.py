"""Export conversations of a store to a file or stream. The work is written as steps, for both kinds of stores."""

from __future__ import annotations

import errno
import gzip
import os
import shutil
import stat
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from os import PathLike
from pathlib import Path
from typing import IO, Any

import msgspec
import orjson

from redis_history.embedded._files import replacing
from redis_history.errors import InvalidInputError
from redis_history.integrations.importers._lossless import RECORD_START, message_line, record_line
from redis_history.store.operations import Steps
from redis_history.store.operations import fork as forks
from redis_history.store.operations.listing import all_ids
from redis_history.store.operations.tasks import Executes, R


class Exported(msgspec.Struct, frozen=True):
    """Numbers of `conversations` and `messages` that an export has written."""

    conversations: int = 0
    messages: int = 0


def export_messages(
    store: Executes[Exported, R],
    target: str | PathLike[str] | IO[bytes],
    *,
    conversation_ids: Iterable[str] | None = None,
    include_archived: bool = True,
    resume: bool = False,
    on_progress: Callable[[Exported], None] | None = None,
) -> R:
    """Write conversations as lossless JSONL for `import_messages`: records with their times and revisions, messages
    with their positions, archives, the origins of forks, and replies that are being written, as far as they are.

    Await the result if the store is asynchronous. `async_export_messages` is the same function.

    `conversation_ids` are the conversations to write; None: all. Each is written as of one revision.
    `include_archived`: also archived messages. `on_progress` is called after each conversation.

    `target` is a path or a binary file. A file at the path is replaced only when the export is complete, and keeps its
    mode. A link is followed. Devices and named pipes are written directly. If the path ends in .gz, the output is
    gzipped. With `resume`, an interrupted export to the path leaves `<path>.partial`, which is not gzipped, and the
    next export continues it, without the conversations that it already contains.

    Raises InvalidInputError for an unknown conversation id, for `resume` without the path of a file, and if
    `<path>.partial` is a link or another user's.
    """
    return store.execute(_export(target, conversation_ids, include_archived, resume, on_progress))


async_export_messages = export_messages


def _export(
    target: str | PathLike[str] | IO[bytes],
    ids: Iterable[str] | None,
    include_archived: bool,
    resume: bool,
    on_progress: Callable[[Exported], None] | None,
) -> Steps[Exported]:
    done = Exported()
    with _opened(target, resume) as (stream, known):
        for id_ in (yield from all_ids()) if ids is None else ids:
            if id_ in known:
                continue
            found = yield from forks.collect(id_, partial(message_line, id_))
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
    # A new file is private, because it holds conversations.
    new_mode = 0o600 if mode is None else stat.S_IMODE(mode)
    if mode is not None and not stat.S_ISREG(mode):
        if resume:
            raise InvalidInputError(f"resume needs a file as target, and {str(path)!r} is none")
        opened: Any = _packing(path.open("wb"), path)  # raises for a folder
    elif resume:
        opened = _continuing(Path(os.path.realpath(path)), new_mode)
    else:
        opened = _packing(replacing(Path(os.path.realpath(path)), new_mode), path)
    with opened as found:
        yield found if resume else (found, ())


@contextmanager
def _packing(opened: AbstractContextManager[IO[bytes]], path: Path) -> Iterator[Any]:
    """The stream, gzipped if the path ends in .gz."""
    with opened as stream:
        if path.suffix == ".gz":
            with gzip.GzipFile("", "wb", fileobj=stream, mtime=0) as packed:
                yield packed
        else:
            yield stream


@contextmanager
def _continuing(path: Path, mode: int) -> Iterator[tuple[IO[bytes], Container[str]]]:
    """A stream to `<path>.partial`, which becomes `path` at the end, and the ids of its complete conversations."""
    part = path.with_name(f"{path.name}.partial")
    with _own_file(part, mode) as stream:
        yield stream, _recovered(stream)
        if path.suffix == ".gz":
            stream.seek(0)
            with _packing(replacing(path, mode), path) as packed:
                shutil.copyfileobj(stream, packed)
            part.unlink()
            return
    part.replace(path)


def _own_file(path: Path, mode: int) -> IO[bytes]:
    """Open a new file, or an existing file of this user. The name can be guessed. Other users with write access to the
    folder could therefore create a link to a file that this user may overwrite, or a file that they may read, before
    the export. Raises InvalidInputError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe would wait for its reader
    try:
        number = os.open(path, flags, mode)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise
        raise _foreign(path) from error
    found = os.fstat(number)
    # Another name of the file would be a link, too.
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink != 1:
        os.close(number)
        raise _foreign(path)
    return os.fdopen(number, "r+b")


def _foreign(path: Path) -> InvalidInputError:
    return InvalidInputError(
        f"resume continues only a file of this user, and {str(path)!r} is a link, or another user's, or no file: "
        "remove it, or choose another target"
    )


def _recovered(file: IO[bytes]) -> Container[str]:
    """The ids of the complete conversations of an interrupted export. Cuts off the last one, which may lack
    messages."""
    ids: list[str] = []
    start = end = 0
    for line in file:
        if line.startswith(RECORD_START):
            with suppress(ValueError, LookupError, TypeError):  # it breaks off
                ids.append(orjson.loads(line)["conversation"]["conversation_id"])
                end = start
        start += len(line)
    file.seek(end)
    file.truncate()
    return set(ids[:-1])
