"""A source of several files: a folder or a zip archive."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from redis_history.errors import InvalidInputError
from redis_history.importers.source import (
    BROKEN,
    SUFFIXES,
    Budget,
    ImportLimits,
    LimitReachedError,
    Opened,
    Source,
    open_file,
    report,
)
from redis_history.importers.transcript import ImportProblem, OnError

_LIST_SIZE = 5  # index in the end record of an archive: the size of its central directory, in bytes
_ENTRY_BYTES = 256  # size of an entry with a long name
_BOUNDED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # zipfile needs unbounded memory for other methods


def is_bundle(path: Path) -> bool:
    return path.is_dir() or (path.is_file() and zipfile.is_zipfile(path))


class Bundle:
    """The files of a folder or archive that may contain records: their `paths` inside it, sorted, and their `names`.
    Raises InvalidInputError if it cannot be read."""

    def __init__(self, path: Path, on_error: OnError | None, limits: ImportLimits) -> None:
        self._path, self._on_error, self._limits = path, on_error, limits
        self.name = path.name.removesuffix(".zip")  # part of the ids, so that different bundles have different ids
        self._root = path.resolve()
        self._open: Callable[[str], Opened] = lambda inner: open_file(self._full(inner), self._root)
        try:
            self._budget = Budget(limits, None if path.is_dir() else path.stat().st_size)
            self.paths = sorted(self._scan_folder() if path.is_dir() else self._scan_archive())
        except BROKEN as error:
            raise InvalidInputError(f"{path} cannot be read: {error}") from error
        self.names = {path.rpartition("/")[2] for path in self.paths}

    def sources(self, paths: Iterable[str]) -> Iterator[Source]:
        """Open these files. Files that cannot be read (damaged or encrypted) are reported and skipped."""
        for path in paths:
            try:
                yield Source(self._full(path), self._on_error, self._budget, partial(self._open, path))
            except InvalidInputError as error:
                self._skip(path, str(error))

    def problem(self, line: int, reason: str) -> None:
        """Report a problem of the bundle as a whole."""
        report(ImportProblem(str(self._path), line, reason), self._on_error)

    def _skip(self, path: str, reason: str) -> None:
        report(ImportProblem(str(self._full(path)), 1, reason), self._on_error)

    def _full(self, path: str) -> Path:
        return self._path / path.lstrip("/")

    def _scan_folder(self) -> Iterator[str]:
        folders, count = [""], 0
        while folders:
            folder = folders.pop()
            try:
                with os.scandir(self._root / folder) as entries:
                    for entry in entries:
                        count += 1
                        if count > self._limits.max_files:
                            raise LimitReachedError(self._limits.refusal("max_files", "the count of files and folders"))
                        path = f"{folder}/{entry.name}".lstrip("/")
                        if entry.is_dir(follow_symlinks=False):
                            folders.append(path)
                        elif self._may_be_read(entry, path):
                            yield path
            except OSError as error:
                if not folder:
                    raise
                self._skip(folder, f"the folder cannot be read: {error}")

    def _may_be_read(self, entry: os.DirEntry[str], path: str) -> bool:
        """Whether the entry is a file of records. Links out of the folder and special files are reported."""
        has_suffix = _has_suffix(path)
        try:
            target = Path(entry.path).resolve(strict=True) if entry.is_symlink() else self._root
        except FileNotFoundError:  # the link's target
            return False
        except (OSError, RuntimeError) as error:
            self._skip(path, f"the link cannot be followed: {error}")
            return False
        if not target.is_relative_to(self._root):
            if has_suffix or target.is_dir():
                self._skip(path, f"the link leads out of the folder, to {target}: copy its target into the folder")
            return False
        if has_suffix and not entry.is_file():
            self._skip(path, "it is not a regular file")
        return has_suffix and entry.is_file()

    def _scan_archive(self) -> Iterator[str]:
        # Check the size before zipfile reads all entries: an entry takes 46 bytes in the file, but 700 in memory.
        with self._path.open("rb") as stream:
            end = zipfile._EndRecData(stream)  # type: ignore[attr-defined]
        if end is not None and end[_LIST_SIZE] > self._limits.max_files * _ENTRY_BYTES:
            raise LimitReachedError(self._limits.refusal("max_files", "the list of entries"))
        archive = zipfile.ZipFile(self._path)
        entries = archive.infolist()
        if len(entries) > self._limits.max_files:
            raise LimitReachedError(self._limits.refusal("max_files", "the number of entries"))
        self._open = partial(_open_member, archive, self._path.stat().st_size)
        yield from {info.filename for info in entries if not info.is_dir() and _has_suffix(info.filename)}


def _open_member(archive: zipfile.ZipFile, size: int, path: str) -> Opened:
    """A file of an archive of `size` bytes, read without unpacking the archive."""
    info = archive.getinfo(path)
    if info.compress_type not in _BOUNDED:
        raise OSError("its compression method is not deflate: unpack the archive and import the folder")
    return archive.open(info), min(info.compress_size, size)


def _has_suffix(path: str) -> bool:
    return Path(path).suffix.lower() in SUFFIXES
