"""A source of several files: a folder or a zip archive."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import IO

from redis_history.errors import InvalidInputError
from redis_history.importers.source import BROKEN, SUFFIXES, Budget, ImportLimits, LimitReachedError, Source, report
from redis_history.importers.transcript import ImportProblem, OnError

_LIST_SIZE = 5  # index in the end record of an archive: the size of its central directory, in bytes
_ENTRY_BYTES = 256  # size of an entry with a long name
_BOUNDED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # zipfile needs unbounded memory for other methods


def is_bundle(path: Path) -> bool:
    return path.is_dir() or (path.is_file() and zipfile.is_zipfile(path))


class Bundle:
    """The files of a folder or archive that may contain records. Raises InvalidInputError if it cannot be read."""

    def __init__(self, path: Path, on_error: OnError | None, limits: ImportLimits) -> None:
        self.path = path
        self._on_error = on_error
        self._limits = limits
        self._archive: zipfile.ZipFile | None = None
        try:
            if path.is_dir():
                self._root = path.resolve()
                self._budget = Budget(limits)
                self._files = self._found_in_folder()
            else:
                self._size = path.stat().st_size
                self._budget = Budget(limits, self._size)
                self._files = self._found_in_archive()
        except BROKEN as error:
            raise InvalidInputError(f"{path} cannot be read: {error}") from error

    @property
    def name(self) -> str:
        """The name without its suffix. It is part of the ids, so that different bundles have different ids."""
        return self.path.name.removesuffix(".zip")

    def paths(self) -> list[str]:
        """The paths of the files inside the bundle, sorted."""
        return self._files

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(path.rpartition("/")[2] for path in self._files)

    def names(self) -> frozenset[str]:
        """The names of the files, without folders."""
        return self._names

    def sources(self, paths: Iterable[str]) -> Iterator[Source]:
        """Open these files. Files that cannot be read (damaged or encrypted) are reported and skipped."""
        for path in paths:
            try:
                source = self._source(path)
            except InvalidInputError as error:
                self._skip(path, str(error))
            else:
                yield source

    def _source(self, path: str) -> Source:
        if self._archive is None:
            return Source(self.path / path, self._on_error, self._budget, self._root)
        return _Member(self._archive, path, self._size, self.path, self._on_error, self._budget)

    def _skip(self, path: str, reason: str) -> None:
        report(ImportProblem(str(self.path / path), 1, reason), self._on_error)

    def problem(self, line: int, reason: str) -> None:
        """Report a problem of the bundle as a whole."""
        report(ImportProblem(str(self.path), line, reason), self._on_error)

    def _found_in_folder(self) -> list[str]:
        found: list[str] = []
        folders, count = [""], 0
        while folders:
            folder = folders.pop()
            try:
                with os.scandir(self._root / folder) as entries:
                    for entry in entries:
                        count += 1
                        if count > self._limits.max_files:
                            raise LimitReachedError(self._limits.refusal("max_files", "the count of files and folders"))
                        path = f"{folder}/{entry.name}" if folder else entry.name
                        if entry.is_dir(follow_symlinks=False):
                            folders.append(path)
                        elif self._may_be_read(entry, path):
                            found.append(path)
            except OSError as error:
                if not folder:
                    raise
                self._skip(folder, f"the folder cannot be read: {error}")
        return sorted(found)

    def _may_be_read(self, entry: os.DirEntry[str], path: str) -> bool:
        """Whether the entry is a file that may contain records. Links out of the folder and special files are
        reported."""
        records = _may_hold_records(path)
        if entry.is_symlink():
            try:
                target = (self._root / path).resolve()
            except (OSError, RuntimeError) as error:
                self._skip(path, f"the link cannot be followed: {error}")
                return False
            if not target.is_relative_to(self._root) and (records or target.is_dir()):
                reason = (
                    f"the link leads out of the folder, to {target}, and is skipped: copy its target into the folder"
                )
                self._skip(path, reason)
                return False
            return records and target.is_file()
        if records and not entry.is_file():
            self._skip(path, "a device, pipe or socket is skipped")
        return records and entry.is_file()

    def _found_in_archive(self) -> list[str]:
        # Check the size before zipfile reads all entries: an entry takes 46 bytes in the file, but 700 in memory.
        with self.path.open("rb") as stream:
            end = zipfile._EndRecData(stream)  # type: ignore[attr-defined]
            if end is not None and end[_LIST_SIZE] > self._limits.max_files * _ENTRY_BYTES:
                raise LimitReachedError(self._limits.refusal("max_files", "the list of entries"))
        self._archive = zipfile.ZipFile(self.path)
        entries = self._archive.infolist()
        if len(entries) > self._limits.max_files:
            raise LimitReachedError(self._limits.refusal("max_files", "the number of entries"))
        return sorted({info.filename for info in entries if not info.is_dir() and _may_hold_records(info.filename)})


def _may_hold_records(path: str) -> bool:
    return Path(path).suffix.lower() in SUFFIXES


class _Member(Source):
    """A file of an archive of `size` bytes, read without unpacking the archive."""

    def __init__(
        self, archive: zipfile.ZipFile, member: str, size: int, path: Path, on_error: OnError | None, budget: Budget
    ) -> None:
        self._archive = archive
        self._info = archive.getinfo(member)
        self._packed = min(self._info.compress_size, size)
        super().__init__(Path(f"{path}/{member.lstrip('/')}"), on_error, budget)

    def _open_packed(self) -> tuple[IO[bytes], int | None]:
        if self._info.compress_type not in _BOUNDED:
            raise OSError("its compression method is not deflate: unpack the archive and import the folder")
        return self._archive.open(self._info), self._packed
