"""Read JSON records from a file, one at a time and within limits: JSON lines or one JSON document, plain or gzipped."""

from __future__ import annotations

import gzip
import logging
import os
import re
import stat
import struct
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import msgspec

from redis_history.errors import InvalidInputError
from redis_history.integrations.importers._columns import names_conversation
from redis_history.integrations.importers.transcript import ImportProblem, OnError
from redis_history.values._validation import check_integer

_log = logging.getLogger("redis_history.integrations.importers")
_SUFFIXES = frozenset((".gz", ".json", ".jsonl", ".ndjson"))
_LOOK_AHEAD = 20  # the first lines may be damaged
_HEAD_BYTES = 1 << 20
_CHUNK = 1 << 18  # bytes
_DEEPEST = 250  # importers may use two Python frames per level, and Python's default limit is 1,000
_RATIO_FREE = 16 << 20  # unpacked bytes before the ratio is checked

Record = tuple[int, Any]  # line (or number in the document) from 1, value

_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)  # "?": an unclosed string takes linear time


class ImportLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of an import. Content that exceeds a limit is rejected with an error that names the limit.

    - `max_bytes`: unpacked bytes of a file.
    - `max_ratio`: unpacked bytes per packed byte, after the first 16 MiB.
    - `max_record_bytes`: bytes of a record: a line, or a file with one JSON document.
    - `max_values`: numbers, strings, lists and objects in a record.
    - `max_depth`: nesting depth of lists and objects in a record, at most 250.
    - `max_conversation_bytes`: bytes of all lines of one conversation.

    Raises InvalidInputError for a limit that is not an integer of at least 1.
    """

    max_bytes: int = 8 << 30
    max_ratio: int = 200
    max_record_bytes: int = 32 << 20
    max_values: int = 500_000
    max_depth: int = 110  # a message of 100 levels, and the line around it
    max_conversation_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            most = _DEEPEST if name == "max_depth" else float("inf")
            check_integer(getattr(self, name), name, 1, most, error=InvalidInputError)

    def refusal(self, name: str, subject: str) -> str:
        """An error message: `subject` exceeds the limit `name`, and how to raise the limit."""
        return f"{subject} exceeds {name}={getattr(self, name)}: raise it with ImportLimits({name}=...)"


class _BreaksOffError(Exception):
    """The file cannot be read beyond a line."""

    def __init__(self, line: int, error: Exception) -> None:
        super().__init__(f"the file breaks off here: {error}")
        self.line = line


_BROKEN = (EOFError, OSError, OverflowError, ValueError, struct.error, zlib.error)


class _Rejected(NamedTuple):
    """The reason why a text is not a record."""

    reason: str
    is_json: bool = False  # valid, but beyond a limit


def report(problem: ImportProblem, on_error: OnError | None) -> None:
    """Pass a problem to `on_error`, or log a warning."""
    if on_error is not None:
        on_error(problem)
    else:
        _log.warning("%s", problem)


class Source:
    """One file. Raises InvalidInputError immediately if it cannot be opened."""

    def __init__(self, path: Path, on_error: OnError | None, limits: ImportLimits) -> None:
        self.path = path
        self.limits = limits
        self.size = 0  # bytes of the last record
        self._on_error = on_error
        try:
            with self._open() as (stream, _):
                stream.read1(1)
        except FileNotFoundError as error:
            raise InvalidInputError(f"there is no file {path}") from error
        except _BROKEN as error:
            reason = getattr(error, "strerror", None) or error
            raise InvalidInputError(f"{path} cannot be read: {reason}") from error

    @property
    def name(self) -> str:
        """The file name without suffixes. It is part of the ids, and does not depend on the folder."""
        name = self.path.name
        while (suffix := Path(name).suffix.lower()) in _SUFFIXES:
            name = name[: -len(suffix)]
        return name

    def problem(self, line: int, reason: str) -> None:
        """Report a problem to the callback; without one, log a warning."""
        report(ImportProblem(str(self.path), line, reason), self._on_error)

    @cached_property
    def head(self) -> list[Any]:
        """The first records, for format detection. Reports no problems."""
        records: list[Any] = []
        size = 0
        for _, value in islice(self._values(), _LOOK_AHEAD):
            if not isinstance(value, _Rejected):
                records.append(value)
            size += self.size
            if size > _HEAD_BYTES:
                break
        return records

    def records(self) -> Iterator[Record]:
        """All records, in order; sets `size` to the bytes of each. Records that are not JSON or exceed a limit are
        reported and skipped."""
        for number, value in self._values():
            if isinstance(value, _Rejected):
                self.problem(number, value.reason)
            else:
                yield number, value

    def _values(self) -> Iterator[tuple[int, Any]]:
        """The value of each record, or a _Rejected."""
        try:
            for number, text in self._whole() if self._is_document else self._lines():
                self.size = len(text or b"")
                value = self._value(text)
                if self._is_document and isinstance(value, list) and not _has_role(value):
                    self.size = len(text or b"") // max(1, len(value))
                    yield from enumerate(value, 1)
                else:
                    yield number, value
        except _BreaksOffError as error:
            yield error.line, _Rejected(str(error))

    @cached_property
    def _is_document(self) -> bool:
        """Whether the file has one JSON document. Otherwise it has lines: the first line is JSON, and if it is a list,
        more lines follow."""
        try:
            lines = self._lines()
            _, line = next(lines, (1, b""))
            value = self._value(line)
            if not _is_not_json(value):
                return isinstance(value, list) and next(lines, None) is None
            _, document = next(self._whole())
            if document is not None and not _is_not_json(self._value(document)):
                return True
            others = (self._value(text) for _, text in islice(lines, _LOOK_AHEAD))
            return not any(isinstance(value, dict | list) for value in others)
        except _BreaksOffError:
            return False

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
        text = bytearray()
        try:
            for chunk in self._chunks():
                text += chunk
                if len(text) > self.limits.max_record_bytes:
                    break
        except _BreaksOffError:
            yield 1, self._record_in(text)
            raise
        yield 1, self._record_in(text)

    def _lines(self) -> Iterator[tuple[int, bytes | None]]:
        """The lines that are not blank, with their numbers; None for a line that is too long."""
        number, line = 1, bytearray()
        for chunk in chain(self._chunks(), [b"\n"]):
            if not line and not chunk.strip(b"\n"):  # only blank lines, of which a small file can unpack to many
                number += len(chunk)
                continue
            *ends, rest = chunk.split(b"\n")
            for end in ends:
                line += end
                if line.strip():
                    yield number, self._record_in(line)
                number, line = number + 1, bytearray()
            line += rest
            del line[self.limits.max_record_bytes + 1 :]  # it is too long anyway

    def _record_in(self, text: bytearray) -> bytes | None:
        return bytes(text) if len(text) <= self.limits.max_record_bytes else None

    def _chunks(self) -> Iterator[bytes]:
        """The content without its byte order mark, all of it before a damaged place. Raises _BreaksOffError."""
        lines, size = 1, 0
        try:
            with self._open() as (stream, packed):
                while chunk := stream.read1(_CHUNK):
                    size += len(chunk)
                    self._check_size(size, packed)
                    if size == len(chunk):
                        chunk = chunk.removeprefix(b"\xef\xbb\xbf")
                    lines += chunk.count(b"\n")
                    yield chunk
        except _BROKEN as error:
            raise _BreaksOffError(lines, error) from error

    @contextmanager
    def _open(self) -> Iterator[tuple[Any, int | None]]:
        """The unpacked content, and the size of the file if it is packed."""
        # O_NONBLOCK: opening a named pipe must not wait for its writer.
        with open(self.path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise OSError("it is not a regular file")
            if file.peek(2)[:2] == b"\x1f\x8b":
                with gzip.GzipFile(fileobj=cast("IO[bytes]", file), mode="rb") as unpacked:
                    yield unpacked, status.st_size
            else:
                yield file, None

    def _check_size(self, unpacked: int, packed: int | None) -> None:
        if unpacked > self.limits.max_bytes:
            raise ValueError(self.limits.refusal("max_bytes", "the unpacked size of the file"))
        if packed is not None and unpacked > max(_RATIO_FREE, packed * self.limits.max_ratio):
            raise ValueError(self.limits.refusal("max_ratio", "the ratio of unpacked to packed bytes"))


def _is_not_json(value: Any) -> bool:
    return isinstance(value, _Rejected) and not value.is_json


def _has_role(items: list[Any]) -> bool:
    """Whether a list contains the messages of one conversation, not conversations, and not the rows of a table."""
    is_one = bool(items) and isinstance(items[0], dict) and "role" in items[0]
    return is_one and not any(map(names_conversation, items))


def _is_deeper(value: Any, depth: int) -> bool:
    """Whether lists and objects are nested more than `depth` levels deep."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(depth):
        inner: Iterable[Any] = chain.from_iterable(item.values() if isinstance(item, dict) else item for item in level)
        level = [item for item in inner if isinstance(item, dict | list)]
        if not level:
            return False
    return True
