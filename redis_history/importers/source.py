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
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, Literal, Self, cast

import msgspec

from redis_history._validation import check_integer
from redis_history.errors import InvalidInputError
from redis_history.importers.transcript import ImportProblem, OnError, Transcript, unique_id

_log = logging.getLogger("redis_history.importers")
_decode = msgspec.json.decode
SUFFIXES = frozenset((".gz", ".json", ".jsonl", ".ndjson", ".traj"))
_LOOK_AHEAD = 20  # a session file may begin with entries of other kinds
_HEAD_BYTES = 1 << 20
_CHUNK = 1 << 18  # bytes
_DEEPEST = 250  # importers may use two Python frames per level, and Python's default limit is 1,000
_RATIO_FREE = 16 << 20  # unpacked bytes before the ratio is checked

Record = tuple[int, Any]  # line (or number in the document) from 1, value
_Form = Literal["lines", "list", "messages", "document", "too large"]

# Match JSON text up to the next bracket, with complete strings; in the outermost list also up to the next comma.
_STRING_REST = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_STRINGS = re.compile(_STRING + b"?", re.DOTALL)  # "?" also matches an unclosed string, to search in linear time
# The outer "*" is not possessive: before Python 3.11.5, "*+" around a group stops after it has failed once (gh-106052).
_INSIDE = re.compile(rb'(?:[^"\[\]{}]++|' + _STRING + rb")*", re.DOTALL)
_IN_LIST = re.compile(rb'(?:[^"\[\]{},]++|' + _STRING + rb")*", re.DOTALL)


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


class _NotJSONError(Exception):
    pass


# The last three come from members of an archive: damaged, encrypted (RuntimeError) or an unknown compression method.
BROKEN = (
    LimitReachedError, EOFError, OSError, OverflowError, ValueError, struct.error,
    zlib.error, zipfile.BadZipFile, RuntimeError,
)  # fmt: skip


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


class _Counted:
    """A stream that counts the bytes read from it. Also closes the underlying stream."""

    def __init__(self, stream: IO[bytes], count: Callable[[int], None], below: _Counted | None = None) -> None:
        self._stream, self._count, self._below = stream, count, below
        self._read = 0

    def read(self, size: int, /) -> bytes:
        """Read at least one byte, except at the end. Returns all bytes before a damaged place before it raises."""
        data = cast("bytes", self._stream.read1(size))  # type: ignore[attr-defined]
        self._read += len(data)
        self._count(self._read)
        return data

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exit_: object) -> None:
        self._stream.close()
        if self._below is not None:
            self._below.__exit__()


class Source:
    """One file; with `root`, a file in that folder. Raises InvalidInputError immediately if it cannot be opened."""

    def __init__(self, path: Path, on_error: OnError | None, budget: Budget, root: Path | None = None) -> None:
        self.path = path
        self.limits = budget.limits
        self.size = 0  # bytes of the last record
        self._on_error = on_error
        self._budget = budget
        self._root = root
        self._broke_off = False
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
        with self._silent():
            for _, record in self._records(self.limits.max_record_bytes + _HEAD_BYTES):
                found.append(record)
                size += self.size
                if len(found) == _LOOK_AHEAD or size > _HEAD_BYTES:
                    break
        return found

    def records(self) -> Iterator[Record]:
        """All records, in order; sets `size` to the bytes of each. Records that are not JSON or exceed a limit are
        reported and skipped."""
        return self._records(None)

    def of_one_conversation(self) -> list[Record]:
        """All records as a list. Reports a problem and returns [] if they exceed `max_conversation_bytes`."""
        found: list[Record] = []
        size = 0
        for record in self.records():
            size += self.size
            if size > self.limits.max_conversation_bytes:
                self.problem(record[0], self.limits.refusal("max_conversation_bytes", "the conversation"))
                return []
            found.append(record)
        return found

    @contextmanager
    def _silent(self) -> Iterator[None]:
        """Report no problems: the file will be read again."""
        before, self._on_error = self._on_error, lambda problem: None
        try:
            yield
        finally:
            self._on_error = before

    def _records(self, most: int | None) -> Iterator[Record]:
        """The records in the first `most` bytes; None reads all."""
        form = self._form
        try:
            stream = self._open()
        except BROKEN as error:
            self.problem(1, f"the file can no longer be read: {error}")
            return
        with stream:
            chunks = self._chunks(stream, most)
            if form == "lines":
                yield from self._values(self._lines(chunks), "the line")
            elif form == "list":
                yield from self._values(self._items(chunks), "the item")
            elif form == "messages":
                yield from self._messages(chunks)
            elif form == "document":
                yield from self._values([(1, self._whole(chunks))], "the document")
            else:
                self.problem(1, self.limits.refusal("max_record_bytes", "the document"))

    @cached_property
    def _form(self) -> _Form:
        """Whether the file has lines or one document. In a file of lines the first line is JSON, and more follows."""
        with self._silent():
            try:
                with self._open() as stream:
                    chunks = self._chunks(stream, None)
                    first = next((chunk.lstrip() for chunk in chunks if chunk.strip()), b"")
                    lines = self._lines(chain([first], chunks))
                    return self._form_of_list(lines) if first[:1] == b"[" else self._form_of_text(lines)
            except BROKEN:
                return "lines"

    def _form_of_list(self, lines: Iterator[tuple[int, bytes | None]]) -> _Form:
        _, line = next(lines)
        problems: list[str] = []
        if line is not None:
            for _ in _items([line], 0, lambda _, reason: problems.append(reason)):
                pass
            if not problems and next(lines, None) is not None:  # the first line is a whole list, and more follows
                return "lines"
        problems.clear()
        with self._open() as stream:
            items = _items(
                self._chunks(stream, None), self.limits.max_record_bytes, lambda _, reason: problems.append(reason)
            )
            number, text = next(items, (0, None))
            if number == 0 and problems:
                return "lines"
            try:
                value = None if text is None else self._value(text)
            except LimitReachedError:
                return "list"
            except _NotJSONError:
                return "lines"
        return "messages" if isinstance(value, dict) and "role" in value else "list"

    def _form_of_text(self, lines: Iterator[tuple[int, bytes | None]]) -> _Form:
        _, line = next(lines, (1, None))
        try:
            if line is not None:
                self._value(line)
            return "lines" if line is None or next(lines, None) is not None else "document"
        except LimitReachedError:
            return "lines"
        except _NotJSONError:
            pass
        with self._open() as stream:
            data = self._whole(self._chunks(stream, None))
        try:
            if data is not None:
                self._value(data)
                return "document"
        except LimitReachedError:
            return "document"
        except _NotJSONError:
            return "lines"
        for _, text in islice(lines, _LOOK_AHEAD):
            try:
                if text is not None and isinstance(self._value(text), dict | list):
                    return "lines"
            except (LimitReachedError, _NotJSONError):
                pass
        return "too large"

    def _messages(self, chunks: Iterator[bytes]) -> Iterator[Record]:
        """A list of messages as one record."""
        found: list[Any] = []
        size = 0
        for number, value in self._values(self._items(chunks), "the item"):
            size += self.size
            if size > self.limits.max_conversation_bytes:
                self.problem(number, self.limits.refusal("max_conversation_bytes", "the list of messages"))
                return
            found.append(value)
        self.size = size
        yield 1, found

    def _values(self, texts: Iterable[tuple[int, bytes | None]], what: str) -> Iterator[Record]:
        """The values of JSON texts; None is a text beyond `max_record_bytes`."""
        for number, text in texts:
            if text is None:
                self.problem(number, self.limits.refusal("max_record_bytes", what))
                continue
            try:
                value = self._value(text)
            except (LimitReachedError, _NotJSONError) as error:
                self.problem(number, str(error))
            else:
                self.size = len(text)
                yield number, value

    def _value(self, data: bytes) -> Any:
        """The value of JSON text. Raises _NotJSONError or LimitReachedError."""
        brackets = data.count(b"[") + data.count(b"{")
        if brackets + data.count(b",") >= self.limits.max_values:  # an upper bound: some are inside strings
            bare = _STRINGS.sub(b"", data)
            if bare.count(b"[") + bare.count(b"{") + bare.count(b",") >= self.limits.max_values:
                raise LimitReachedError(self.limits.refusal("max_values", "the number of values"))
        try:
            # msgspec and not orjson, which silently converts integers beyond 64 bits to floats.
            value = _decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise _NotJSONError(f"not JSON: {error}") from error
        except RecursionError as error:
            raise LimitReachedError(self.limits.refusal("max_depth", "its depth")) from error
        if brackets > self.limits.max_depth and _is_deeper(value, self.limits.max_depth):
            raise LimitReachedError(self.limits.refusal("max_depth", "its depth"))
        return value

    def _whole(self, chunks: Iterator[bytes]) -> bytes | None:
        """All bytes; None if they exceed `max_record_bytes`."""
        found, size = [], 0
        for chunk in chunks:
            size += len(chunk)
            if size > self.limits.max_record_bytes:
                return None
            found.append(chunk)
        return b"".join(found)

    def _items(self, chunks: Iterator[bytes]) -> Iterator[tuple[int, bytes | None]]:
        return _items(chunks, self.limits.max_record_bytes, self.problem)

    def _lines(self, chunks: Iterator[bytes]) -> Iterator[tuple[int, bytes | None]]:
        """The lines that are not blank, with their numbers; None for a line that is too long."""
        most = self.limits.max_record_bytes
        number, parts, size = 1, [b""], 0
        for chunk in chunks:
            *ended, last = chunk.split(b"\n")
            for line in ended:
                size += len(line)
                text = b"".join([*parts, line]) if size <= most else None
                if text is None or text.strip():
                    yield number, text
                number, parts, size = number + 1, [], 0
            size += len(last)
            if size <= most:
                parts.append(last)
            else:
                parts.clear()
        text = b"".join(parts) if size <= most else None
        if not self._broke_off and (text is None or text.strip()):
            yield number, text

    def _chunks(self, stream: _Counted, most: int | None) -> Iterator[bytes]:
        """The content without its byte order mark, up to `most` bytes. Reports a file that breaks off."""
        lines, self._broke_off = 1, False
        try:
            chunk = stream.read(_CHUNK).removeprefix(b"\xef\xbb\xbf")
            while chunk and (most is None or most > 0):
                lines += chunk.count(b"\n")
                if most is not None:
                    most -= len(chunk)
                yield chunk
                chunk = stream.read(_CHUNK)
        except BROKEN as error:
            self._broke_off = True
            self.problem(lines, f"the file breaks off here: {error}")

    def _open(self) -> _Counted:
        """The unpacked content."""
        stream, packed = self._open_packed()
        plain = _Counted(stream, lambda count: self._count(0, count, packed))
        try:
            if stream.peek(2)[:2] != b"\x1f\x8b":  # type: ignore[attr-defined]
                return plain
            size = self.path.stat().st_size if packed is None else packed
        except BaseException:
            stream.close()
            raise
        unpacked = gzip.GzipFile(fileobj=cast("IO[bytes]", plain), mode="rb")
        return _Counted(cast("IO[bytes]", unpacked), lambda count: self._count(1, count, size), plain)

    def _count(self, layer: int, read: int, packed: int | None) -> None:
        new = read - self._most_read[layer]
        if new > 0:
            self._most_read[layer] = read
            self._budget.take(new)
        self._budget.check_ratio(read, packed)

    def _open_packed(self) -> tuple[IO[bytes], int | None]:
        """The file, and its packed bytes if it is a member of an archive."""
        path, flags = self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        if self._root is not None:
            path = path.resolve(strict=True)
            if not path.is_relative_to(self._root):
                raise OSError(f"it is a link that leads out of the folder, to {path}")
            flags |= os.O_NOFOLLOW
        file = os.open(path, flags)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise OSError("it is not a regular file")
        return os.fdopen(file, "rb"), None


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


def _items(
    chunks: Iterable[bytes], most: int, problem: Callable[[int, str], None]
) -> Iterator[tuple[int, bytes | None]]:
    """The JSON of each item of a list, with its number; None for an item of more than `most` bytes.

    Reports an unclosed list and data after the list. Does not validate the items.
    """
    number, depth = 1, 0
    parts: list[bytes] = []
    size = 0
    in_string = escaped = ended = False
    for chunk in chunks:
        at = begin = 0
        if depth == 0 and not ended:
            at = chunk.find(b"[")
            if at < 0:
                continue
            at = begin = at + 1
            depth = 1
        while at < len(chunk) and not ended:
            if in_string:
                if escaped:
                    at, escaped = at + 1, False
                at = cast("re.Match[bytes]", _STRING_REST.match(chunk, at)).end()
                if at < len(chunk):
                    in_string, escaped = chunk[at] != 0x22, chunk[at] != 0x22  # otherwise a backslash, the last byte
                    at += 1
                continue
            at = cast("re.Match[bytes]", (_IN_LIST if depth == 1 else _INSIDE).match(chunk, at)).end()
            if at == len(chunk):
                break
            byte = chunk[at : at + 1]
            if byte == b'"':
                in_string = True
            elif byte in b"[{":
                depth += 1
            elif byte in b"]}":
                depth -= 1
            if depth == 0 or (depth == 1 and byte == b","):
                size += at - begin
                text = b"".join([*parts, chunk[begin:at]]) if size <= most else None
                if depth or number > 1 or text is None or text.strip():
                    yield number, text
                number, parts, size, begin = number + 1, [], 0, at + 1
                ended = depth == 0
            at += 1
        if ended:
            if chunk[begin:].strip():
                problem(number, "the file has more data after the end of the list")
                return
            continue
        size += len(chunk) - begin
        if size <= most:
            parts.append(chunk[begin:])
        else:
            parts.clear()
    if not ended:
        problem(number, "the file breaks off here: the list is not closed")


def _is_deeper(value: Any, depth: int) -> bool:
    """Whether lists and objects are nested more than `depth` levels deep."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(depth):
        inner = chain.from_iterable(one.values() if isinstance(one, dict) else one for one in level)
        level = [one for one in inner if isinstance(one, dict | list)]
        if not level:
            return False
    return True
