"""Writing a file in one step."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from redis_history.values.ids import new_token


@contextmanager
def replacing(path: Path, mode: int | None = None) -> Iterator[IO[bytes]]:
    """A stream whose content replaces the file at `path` when all is written, with `mode` or the mode of new files.
    Readers see the old file or the new one. An error or a signal leaves the old one. Raises OSError."""
    # A new name each time, because several processes may write at the same time. Shorter than the longest names.
    part = path.with_name(f".{path.name[:40]}.{new_token()}.part")

    def create(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_EXCL, 0o666 if mode is None else mode)

    try:  # before the file exists: a signal may come while it is created
        with open(part, "wb", opener=create) as stream:
            if mode is not None:
                part.chmod(mode)  # the umask may have removed bits
            yield stream
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise
