"""Read JSON records from a file, one at a time and within limits: lines or one document, plain or gzipped."""

from __future__ import annotations

import gzip
import logging
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, cast

import msgspec

from redis_history._validation import check_integer
from redis_history.errors import InvalidInputError
from redis_history.importers.transcript import ImportProblem, OnError, Transcript, unique_id

_log = logging.getLogger("redis_history.importers")
SUFFIXES = frozenset((".gz", ".json", ".jsonl", ".ndjson", ".traj"))
_LOOK_AHEAD = 20  # a session file may begin with entries of other kinds
_HEAD_BYTES = 1 << 20
_CHUNK = 1 << 18  # bytes
_DEEPEST = 250  # importers may use two Python frames per level, and Python's default limit is 1,000
_RATIO_FREE = 16 << 20  # unpacked bytes before the ratio is checked

Record = tuple[int, Any]  # line (or number in the document) from 1, value
Opened = tuple[IO[bytes], int | None]  # a file, and its packed bytes if it is a member of an archive
_Form = Literal["lines", "list", "messages", "document"]

_STRING_REST = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_STRINGS = re.compile(rb'"' + _STRING_REST.pattern + rb'("?)', re.DOTALL)  # "?": an unclosed string takes linear time
_MARKS = re.compile(rb"[][{},]|" + _STRINGS.pattern, re.DOTALL)


class ImportLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of an import. Content that exceeds a limit is rejected with an error that names the limit.

    - `max_bytes`: unpacked bytes of a source; for a folder or archive, of all its files together.
    - `max_ratio`: unpacked bytes per packed byte, after the first 16 MiB.
    - `max_files`: files and folders in a folder, or entries of an archive.
    - `max_record_bytes`: bytes of a record: a line, an item of a list, or another JSON document.
    - `max_values`: numbers, strings, lists and objects in a record.
    - `max_depth`: nesting depth of lists and objects in a record, at most 250.
    - `max_conversation_bytes`: bytes of all lines of one conversation.

    Raises InvalidInputError for a limit that is not an integer of at least 1.
    """

    max_bytes: int = 8 << 30
    max_ratio: int = 200
    max_files: int = 100_000
    max_record_bytes: int = 32 << 20
    max_values: int = 500_000
    max_depth: int = 100
    max_conversation_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            most = _DEEPEST if name == "max_depth" else float("inf")
            check_integer(getattr(self, name), name, 1, most, error=InvalidInputError)

    def refusal(self, name: str, subject: str) -> str:
        """An error message: `subject` exceeds the limit `name`, and how to raise the limit."""
        option = "--" + name.replace("_", "-")
        return f"{subject} exceeds {name}={getattr(self, name)}: raise it with ImportLimits({name}=...) or {option}"


class LimitReachedError(Exception):
    """A limit was reached; the message is the reason. For use inside this package."""


class _BreaksOffError(Exception):
    """The file cannot be read beyond a line."""

    def __init__(self, line: int, error: Exception) -> None:
        super().__init__(f"the file breaks off here: {error}")
        self.line = line


# The last three come from members of an archive: damaged, encrypted (RuntimeError) or an unknown compression method.
BROKEN = (
    LimitReachedError, EOFError, OSError, OverflowError, ValueError, struct.error,
    zlib.error, zipfile.BadZipFile, RuntimeError,
)  # fmt: skip


class _Rejected(NamedTuple):
    """The reason why a text is not a record."""

    reason: str
    is_json: bool = False  # valid, but beyond a limit


class _Text:
    """Collects the pieces of a text, and keeps at most `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit, self._pieces, self._size = limit, list[bytes](), 0

    def add(self, piece: bytes) -> bool:
        """Add a piece; return whether the text is still short enough."""
        self._size += len(piece)
        fits = self._size <= self._limit
        if fits:
            self._pieces.append(piece)
        else:
            self._pieces.clear()
        return fits

    def take(self) -> bytes | None:
        """The pieces since the last call; None if they were too long."""
        text = b"".join(self._pieces) if self._size <= self._limit else None
        self._pieces, self._size = [], 0
        return text


def report(problem: ImportProblem, on_error: OnError | None) -> None:
    """Pass a problem to `on_error`, or log a warning."""
    if on_error is not None:
        on_error(problem)
    else:
        _log.warning("%s", problem)


class Budget:
    """Limits the unpacked bytes of all files of a source. `packed`: bytes of the archive, None for other sources."""

    def __init__(self, limits: ImportLimits, packed: int | None = None) -> None:
        self.limits = limits
        self._packed = packed
        self._taken = 0

    def take(self, count: int) -> None:
        """Count unpacked bytes. Raises LimitReachedError."""
        self._taken += count
        if self._taken > self.limits.max_bytes:
            raise LimitReachedError(self.limits.refusal("max_bytes", "the unpacked size of the source"))
        self.check_ratio(self._taken, self._packed)

    def check_ratio(self, unpacked: int, packed: int | None) -> None:
        """Raises LimitReachedError if `packed` bytes were unpacked to too many."""
        if packed is not None and unpacked > max(_RATIO_FREE, packed * self.limits.max_ratio):
            raise LimitReachedError(self.limits.refusal("max_ratio", "the ratio of unpacked to packed bytes"))


class _CountedStream:
    """Calls `count` with the position after each read."""

    def __init__(self, stream: Any, count: Callable[[int], None]) -> None:
        self._stream, self._count, self._position = stream, count, 0

    def read(self, size: int, /) -> bytes:
        """Read at least one byte, except at the end. Returns all bytes before a damaged place before it raises."""
        data = cast("bytes", self._stream.read1(size))
        self._position += len(data)
        self._count(self._position)
        return data


def open_file(path: Path, root: Path | None = None) -> Opened:
    """Open a regular file. With `root`, it must be in this folder. Raises OSError."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    if root is not None:
        path = path.resolve(strict=True)
        if not path.is_relative_to(root):
            raise OSError(f"it is a link that leads out of the folder, to {path}")
        flags |= os.O_NOFOLLOW
    file = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError("it is not a regular file")
    return os.fdopen(file, "rb"), None


class Source:
    """One file. `opener` opens it (None: at `path`). Raises InvalidInputError immediately if it cannot be opened."""

    def __init__(
        self, path: Path, on_error: OnError | None, budget: Budget, opener: Callable[[], Opened] | None = None
    ) -> None:
        self.path = path
        self.limits = budget.limits
        self.size = 0  # bytes of the last record
        self._on_error = on_error
        self._budget = budget
        self._opener = opener or partial(open_file, path)
        self._most_read = [0, 0]  # highest positions in the file and in its unpacked content, over all reads
        try:
            with self._open() as stream:
                stream.read(1)
        except FileNotFoundError as error:
            raise InvalidInputError(f"there is no file {path}") from error
        except BROKEN as error:
            raise InvalidInputError(f"{path} cannot be read: {error}") from error

    @property
    def name(self) -> str:
        """The file name without suffixes. It is part of the ids, and does not depend on the folder."""
        name = self.path.name
        while (suffix := Path(name).suffix.lower()) in SUFFIXES:
            name = name[: -len(suffix)]
        return name

    def problem(self, line: int, reason: str) -> None:
        """Report a problem to the callback; without one, log a warning."""
        report(ImportProblem(str(self.path), line, reason), self._on_error)

    @cached_property
    def head(self) -> list[Any]:
        """The first records, for format detection. Reports no problems."""
        found: list[Any] = []
        size = 0
        for _, value in islice(self._values(), _LOOK_AHEAD):
            if not isinstance(value, _Rejected):
                found.append(value)
            size += self.size
            if size > _HEAD_BYTES:
                break
        return [found] if self._form == "messages" else found

    def records(self) -> Iterator[Record]:
        """All records, in order; sets `size` to the bytes of each. Records that are not JSON or exceed a limit are
        reported and skipped."""
        if self._form != "messages":
            yield from self._accepted()
        elif messages := self._limited(self._accepted(), "the list of messages"):
            yield 1, [value for _, value in messages]

    def of_one_conversation(self) -> list[Record]:
        """All records as a list. Reports a problem and returns [] if they exceed `max_conversation_bytes`."""
        return self._limited(self.records(), "the conversation")

    def _limited(self, records: Iterable[Record], subject: str) -> list[Record]:
        found: list[Record] = []
        size = 0
        for record in records:
            size += self.size
            if size > self.limits.max_conversation_bytes:
                self.problem(record[0], self.limits.refusal("max_conversation_bytes", subject))
                return []
            found.append(record)
        self.size = size
        return found

    def _accepted(self) -> Iterator[Record]:
        for number, value in self._values():
            if isinstance(value, _Rejected):
                self.problem(number, value.reason)
            else:
                yield number, value

    def _values(self) -> Iterator[tuple[int, Any]]:
        """The value of each record, or a _Rejected."""
        form = self._form
        try:
            texts: Iterable[tuple[int, bytes | _Rejected | None]]
            if form == "document":
                texts = self._whole()
            else:
                texts = self._lines() if form == "lines" else self._items(self._chunks())
            for number, text in texts:
                self.size = len(text) if isinstance(text, bytes) else 0
                yield number, text if isinstance(text, _Rejected) else self._value(text)
        except _BreaksOffError as error:
            yield error.line, _Rejected(str(error))

    @cached_property
    def _form(self) -> _Form:
        """Whether the file has lines or one document. In a file of lines the first line is JSON, and more follows."""
        try:
            start = next((text for chunk in self._chunks() if (text := chunk.lstrip())), b"")
            lines = self._lines()
            _, line = next(lines, (1, b""))
            if start[:1] == b"[":
                closed = line is not None and not any(isinstance(text, _Rejected) for _, text in self._items([line]))
                if closed and next(lines, None) is not None:  # the first line is a whole list, and more follows
                    return "lines"
                _, item = next(self._items(self._chunks()), (1, b"[]"))
                value = item if isinstance(item, _Rejected) else self._value(item)
                if _is_not_json(value):
                    return "lines"
                return "messages" if isinstance(value, dict) and "role" in value else "list"
            if not _is_not_json(self._value(line)):
                return "lines"
            _, document = next(self._whole())
            if document is not None:
                return "lines" if _is_not_json(self._value(document)) else "document"
            others = (self._value(text) for _, text in islice(lines, _LOOK_AHEAD))
            return "lines" if any(isinstance(value, dict | list) for value in others) else "document"
        except _BreaksOffError:
            return "lines"

    def _value(self, text: bytes | None) -> Any:
        """The value of JSON text, or a _Rejected. `text` is None if it exceeds `max_record_bytes`."""
        if text is None:
            return self._beyond("max_record_bytes", "the record")
        brackets = text.count(b"[") + text.count(b"{")
        if brackets + text.count(b",") >= self.limits.max_values:  # an upper bound: some are inside strings
            bare = _STRINGS.sub(b"", text)
            if bare.count(b"[") + bare.count(b"{") + bare.count(b",") >= self.limits.max_values:
                return self._beyond("max_values", "the number of values")
        try:
            # msgspec and not orjson, which silently converts integers beyond 64 bits to floats.
            value = msgspec.json.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return _Rejected(f"not JSON: {error}")
        except RecursionError:
            return self._beyond("max_depth", "its depth")
        if brackets > self.limits.max_depth and _is_deeper(value, self.limits.max_depth):
            return self._beyond("max_depth", "its depth")
        return value

    def _beyond(self, limit: str, subject: str) -> _Rejected:
        return _Rejected(self.limits.refusal(limit, subject), is_json=True)

    def _whole(self) -> Iterator[tuple[int, bytes | None]]:
        """All bytes, up to where the file breaks off; None if they exceed `max_record_bytes`."""
        text = _Text(self.limits.max_record_bytes)
        try:
            for chunk in self._chunks():
                if not text.add(chunk):
                    break
        except _BreaksOffError:
            yield 1, text.take()
            raise
        yield 1, text.take()

    def _lines(self) -> Iterator[tuple[int, bytes | None]]:
        """The lines that are not blank, with their numbers; None for a line that is too long."""
        number, text = 1, _Text(self.limits.max_record_bytes)
        for chunk in chain(self._chunks(), [b"\n"]):
            piece, *others = chunk.split(b"\n")
            text.add(piece)
            for piece in others:
                line = text.take()
                if line is None or line.strip():
                    yield number, line
                number += 1
                text.add(piece)

    def _items(self, chunks: Iterable[bytes]) -> Iterator[tuple[int, bytes | _Rejected | None]]:
        """The JSON of each item of a list, with its number; None for an item that is too long. Does not validate the
        items. A _Rejected reports an unclosed list, or data after the list."""
        text, number, depth = _Text(self.limits.max_record_bytes), 1, 0
        in_string, left = False, b""  # `left`: a backslash at the end of a chunk
        chunks = iter(chunks)
        for chunk in chunks:
            chunk, begin, end = left + chunk, 0, 0
            if in_string:
                end = _STRING_REST.match(chunk).end()  # type: ignore[union-attr]
                in_string = chunk[end : end + 1] != b'"'
                end += not in_string
            for match in _MARKS.finditer(chunk, end):
                mark, end = chunk[match.start() : match.start() + 1], match.end()
                if mark == b'"':
                    in_string = not match[1]
                elif mark in b"[{":
                    depth += 1
                    if depth == 1:
                        begin = end
                elif mark in b"]}":
                    depth -= 1
                if depth == 0 or (depth == 1 and mark == b","):
                    text.add(chunk[begin : match.start()])
                    begin, item = end, text.take()
                    if depth or number > 1 or item is None or item.strip():
                        yield number, item
                    number += 1
                if depth == 0:
                    if any(part.strip() for part in chain([chunk[end:]], chunks)):
                        yield number, _Rejected("the file has more data after the end of the list")
                    return
            left = chunk[end:] if in_string else b""
            text.add(chunk[begin : len(chunk) - len(left)])
        yield number, _Rejected("the file breaks off here: the list is not closed")

    def _chunks(self) -> Iterator[bytes]:
        """The content without its byte order mark. Raises _BreaksOffError."""
        lines = 1
        try:
            with self._open() as stream:
                chunk = stream.read(_CHUNK).removeprefix(b"\xef\xbb\xbf")
                while chunk:
                    lines += chunk.count(b"\n")
                    yield chunk
                    chunk = stream.read(_CHUNK)
        except BROKEN as error:
            raise _BreaksOffError(lines, error) from error

    @contextmanager
    def _open(self) -> Iterator[_CountedStream]:
        """The unpacked content."""
        file, packed = self._opener()
        with file:
            stream = _CountedStream(file, partial(self._count, 0, packed))
            if file.peek(2)[:2] == b"\x1f\x8b":  # type: ignore[attr-defined]
                size = os.fstat(file.fileno()).st_size if packed is None else packed
                with gzip.GzipFile(fileobj=cast("IO[bytes]", stream), mode="rb") as unpacked:
                    yield _CountedStream(unpacked, partial(self._count, 1, size))
            else:
                yield stream

    def _count(self, layer: int, packed: int | None, position: int) -> None:
        new = position - self._most_read[layer]
        if new > 0:
            self._most_read[layer] = position
            self._budget.take(new)
        self._budget.check_ratio(position, packed)


def _is_not_json(value: Any) -> bool:
    return isinstance(value, _Rejected) and not value.is_json


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
        yield renamed(transcript, seen)


def renamed(transcript: Transcript, seen: dict[str, int]) -> Transcript:
    """The transcript, with a number in its id if the id was seen before."""
    return msgspec.structs.replace(transcript, conversation_id=unique_id(transcript.conversation_id, seen))


def _is_deeper(value: Any, depth: int) -> bool:
    """Whether lists and objects are nested more than `depth` levels deep."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(depth):
        inner = chain.from_iterable(one.values() if isinstance(one, dict) else one for one in level)
        level = [one for one in inner if isinstance(one, dict | list)]
        if not level:
            return False
    return True
