"""A file of JSON records, read one at a time: lines or one document, plain or gzipped."""

from __future__ import annotations

import gzip
import logging
import lzma
import zipfile
import zlib
from collections.abc import Iterator
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

import msgspec

from redis_history.errors import InvalidInputError
from redis_history.importers.transcript import ImportProblem, OnError

__all__ = ["SUFFIXES", "Record", "Source"]

_log = logging.getLogger("redis_history.importers")
_decode = msgspec.json.decode
SUFFIXES = frozenset((".gz", ".json", ".jsonl", ".ndjson", ".traj"))
_LOOK_AHEAD = 20  # a session file may open with entries of other kinds
# The last three of a member of an archive: damaged; and a RuntimeError if it is encrypted, or packed in a way unknown.
_BROKEN = (EOFError, OSError, zlib.error, zipfile.BadZipFile, lzma.LZMAError, RuntimeError)

_Stream = IO[bytes] | gzip.GzipFile
Record = tuple[int, Any]  # line (or number in the document) from 1, value


class Source:
    """One file. Raises InvalidInputError at once if it cannot be opened."""

    def __init__(self, path: Path, on_error: OnError | None) -> None:
        self.path = path
        self._on_error = on_error
        try:
            with self._open() as stream:
                stream.read(1)
        except FileNotFoundError as error:
            raise InvalidInputError(f"there is no file {path}") from error
        except _BROKEN as error:
            raise InvalidInputError(f"{path} cannot be read: {error}") from error

    @property
    def name(self) -> str:
        """The file's name without its endings: the part of an id that tells files apart, wherever they lie."""
        name = self.path.name
        while (suffix := Path(name).suffix.lower()) in SUFFIXES:
            name = name[: -len(suffix)]
        return name

    def problem(self, line: int, reason: str) -> None:
        """Report what is left out: to the callback, or as a logged warning."""
        self.report(self.path, line, reason, self._on_error)

    @staticmethod
    def report(path: Path, line: int, reason: str, on_error: OnError | None) -> None:
        problem = ImportProblem(str(path), line, reason)
        if on_error is not None:
            on_error(problem)
        else:
            _log.warning("%s", problem)

    @cached_property
    def head(self) -> list[Any]:
        """The first records, to tell the format by. Nothing is reported for them here."""
        told, self._on_error = self._on_error, lambda problem: None
        try:
            return [record for _, record in islice(self.records(), _LOOK_AHEAD)]
        finally:
            self._on_error = told

    def records(self) -> Iterator[Record]:
        """Every record, in order. Lines that are not JSON are reported and left out."""
        with self._open() as stream:
            lines = self._lines(stream)
            first = next(lines, None)
            if first is None:
                return
            second = next(lines, None)
            if second is None or _value(first[1])[1] is not None:
                rest = b"".join(line for _, line in chain([] if second is None else [second], lines))
                document = _document(first[1] + rest)
                if document is not None:
                    yield from document
                    return
            else:
                yield from self._parsed(chain([first, second], lines))
                return
        with self._open() as stream:  # lines after all, the first of them broken
            yield from self._parsed(self._lines(stream))

    def _parsed(self, lines: Iterator[tuple[int, bytes]]) -> Iterator[Record]:
        for number, line in lines:
            value, reason = _value(line)
            if reason is None:
                yield number, value
            else:
                self.problem(number, f"not JSON: {reason}")

    def _lines(self, stream: _Stream) -> Iterator[tuple[int, bytes]]:
        number = 0
        try:
            for number, line in enumerate(stream, 1):
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                if line.strip():
                    yield number, line
        except _BROKEN as error:
            self.problem(number + 1, f"the file breaks off here: {error}")

    def _open(self) -> _Stream:
        with self._open_plain() as stream:
            packed = stream.read(2) == b"\x1f\x8b"
        plain = self._open_plain()
        return _Unpacked(plain) if packed else plain

    def _open_plain(self) -> IO[bytes]:
        return self.path.open("rb")


class _Unpacked(gzip.GzipFile):
    """What is in a gzipped stream; closes that too."""

    def __init__(self, packed: IO[bytes]) -> None:
        super().__init__(fileobj=packed)
        self._packed = packed

    def close(self) -> None:
        super().close()
        self._packed.close()


def _value(data: bytes) -> tuple[Any, str | None]:
    # msgspec's reader, not orjson's: that one turns integers beyond 64 bits into floats without a word.
    try:
        return _decode(data), None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return None, str(error)
    except RecursionError:
        return None, "nested too deeply"


def _document(data: bytes) -> Iterator[Record] | None:
    """The records of a file that is one JSON value, or None if it is not."""
    if not data.lstrip().startswith(b"["):
        value, reason = _value(data)
        if isinstance(value, dict) and isinstance(value.get("simulations"), list):
            return enumerate(value["simulations"], 1)  # a results file of tau2
        return None if reason is not None else iter([(1, value)])
    try:
        items = _decode(data, type=list[msgspec.Raw])  # checked as a whole; made objects one by one
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    first = _value(bytes(items[0]))[0] if items else None
    if isinstance(first, dict) and "role" in first:  # the messages of one conversation
        return iter([(1, _decode(data))])
    return ((number, _value(bytes(item))[0]) for number, item in enumerate(items, 1))
