"""Several files in one source: a folder, or a zip archive."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import IO, cast

from redis_history.errors import InvalidInputError
from redis_history.importers.source import SUFFIXES, Source
from redis_history.importers.transcript import OnError

__all__ = ["Bundle", "is_bundle"]


def is_bundle(path: Path) -> bool:
    return path.is_dir() or (path.is_file() and zipfile.is_zipfile(path))


class Bundle:
    """The files of a folder or archive. Raises InvalidInputError at once if it cannot be read."""

    def __init__(self, path: Path, on_error: OnError | None) -> None:
        self.path = path
        self._on_error = on_error
        try:
            self._files = self._found()
        except (OSError, zipfile.BadZipFile) as error:
            raise InvalidInputError(f"{path} cannot be read: {error}") from error

    @property
    def name(self) -> str:
        """Its name without an ending, the part of an id that tells bundles apart."""
        return self.path.name.removesuffix(".zip")

    def paths(self) -> list[str]:
        """The files, by their paths inside, in order."""
        return self._files

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(path.rpartition("/")[2] for path in self._files)

    def names(self) -> frozenset[str]:
        """The files, by their names alone."""
        return self._names

    def of_records(self) -> list[str]:
        """The paths of the files that may hold records."""
        return [path for path in self._files if Path(path).suffix.lower() in SUFFIXES]

    def sources(self, paths: Iterable[str]) -> Iterator[Source]:
        """These files. One that cannot be read, as it is damaged or encrypted, is reported."""
        for path in paths:
            try:
                source = self._source(path)
            except InvalidInputError as error:
                Source.report(self.path / path, 1, str(error), self._on_error)
            else:
                yield source

    def _source(self, path: str) -> Source:
        if self.path.is_dir():
            return Source(self.path / path, self._on_error)
        return _Member(self.path, path, self._on_error)

    def problem(self, line: int, reason: str) -> None:
        """Report what is left out of the bundle as a whole."""
        Source.report(self.path, line, reason, self._on_error)

    def _found(self) -> list[str]:
        if self.path.is_dir():
            files = (path for path in self.path.rglob("*") if path.is_file())
            return sorted(path.relative_to(self.path).as_posix() for path in files)
        with zipfile.ZipFile(self.path) as archive:
            return sorted(info.filename for info in archive.infolist() if not info.is_dir())


class _Member(Source):
    """A file of an archive, read without unpacking the archive."""

    def __init__(self, archive: Path, member: str, on_error: OnError | None) -> None:
        self._archive = archive
        self._member = member
        super().__init__(archive / member, on_error)

    def _open_plain(self) -> IO[bytes]:
        return cast("IO[bytes]", _Whole(self._archive, self._member))


class _Whole:
    """A member as a stream that closes its archive too."""

    def __init__(self, archive: Path, member: str) -> None:
        self._archive = zipfile.ZipFile(archive)
        try:
            self._stream = self._archive.open(member)
        except BaseException:
            self._archive.close()
            raise

    def __enter__(self) -> _Whole:
        return self

    def __exit__(self, *exit_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._stream)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def close(self) -> None:
        self._stream.close()
        self._archive.close()
